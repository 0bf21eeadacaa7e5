"""CFFI build of cableway._cableway: its cdef is the text of ipc/cableway.h, csrc/extra.h,
and those of csrc/allocators.

CFFI reads plain declarations: what only the preprocessor understands is stripped here. The C
compiler then sees the headers themselves, so the two cannot disagree.
"""

import os
import re
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ALLOCATORS = ("allocators/hooks", "allocators/numpy_memory")


def build_dir() -> Path:
    """Where libcableway-python.so.0, cablewayd and cableway were built."""
    return Path(os.environ.get("CABLEWAY_BUILD_DIR") or HERE.parent / "build").resolve()


def header_dir() -> Path:
    """The folder in which ipc/cableway.h lies."""
    return HERE.parent


def declarations(header: str) -> str:
    """Turns a header's text into a cdef.

    >>> declarations('#ifndef X\\n#define X\\n#define N 3 /* three */\\nint f(int n);\\n#endif\\n')
    '#define N ...\\nint f(int n);\\n'
    """
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.S)
    text = re.sub(r"^\s*#ifdef __cplusplus\b.*?^\s*#endif[^\n]*\n", "", text, flags=re.S | re.M)
    lines = []
    for line in text.splitlines():
        constant = re.match(r"\s*#\s*define\s+(\w+)\s+\(?-?(?:0x[0-9a-fA-F]+|\d+)", line)
        if constant:
            lines.append(f"#define {constant[1]} ...")
        elif not line.lstrip().startswith("#") and line.strip():
            lines.append(line)
    return "\n".join(lines) + "\n"


def extra_declarations(source: str) -> str:
    """The prototypes between the two `cdef` marks of csrc/extra.h or one of csrc/allocators."""
    text = source.split("/* cdef begins */")[1].split("/* cdef ends */")[0]
    return re.sub(r"^static ", "", declarations(text), flags=re.M)


def make() -> FFI:
    """The builder, which setup.py runs."""
    extra = (HERE / "csrc" / "extra.h").read_text()
    ffi = FFI()
    ffi.cdef(declarations((header_dir() / "ipc" / "cableway.h").read_text()))
    ffi.cdef(extra_declarations(extra))
    for name in ALLOCATORS:
        ffi.cdef(extra_declarations((HERE / "csrc" / f"{name}.h").read_text()))
    ffi.set_source(
        "cableway._cableway",
        "".join(f'#include "{name}.h"\n' for name in ("ipc/cableway", "extra", *ALLOCATORS)),
        sources=[f"csrc/{name}.c" for name in ALLOCATORS],
        extra_compile_args=["-O2"],  # as in setup.py
        include_dirs=[str(header_dir()), str(HERE / "csrc")],
        depends=[
            str(build_dir() / "libcableway-python.so.0"),
            str(header_dir() / "ipc" / "cableway.h"),
            str(HERE / "csrc" / "extra.h"),
            *(str(HERE / "csrc" / f"{name}.h") for name in ALLOCATORS),
        ],
        define_macros=[("Py_LIMITED_API", "0x030a0000"), ("_GNU_SOURCE", None)],
        # Never unloaded: it has a fork handler.
        extra_link_args=[
            str(build_dir() / "libcableway-python.so.0"),
            "-Wl,-rpath,$ORIGIN",
            "-Wl,-z,nodelete",
        ],
        libraries=["pthread", "dl"],
        py_limited_api=True,
    )
    return ffi


ffibuilder = make()
