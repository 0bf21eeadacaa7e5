"""The module that CFFI compiles: the functions of ipc/cableway.h, csrc/extra.h and csrc/allocators."""

from typing import Any

ffi: Any
lib: Any
