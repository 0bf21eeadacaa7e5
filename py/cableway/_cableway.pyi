"""The module that CFFI compiles: the functions of ipc/cableway.h, csrc/extra.h and csrc/hooks.h."""

from typing import Any

ffi: Any
lib: Any
