"""The module that CFFI compiles: the functions of ipc/causeway.h and csrc/extra.h."""

from typing import Any

ffi: Any
lib: Any
