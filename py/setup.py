"""Builds the wheel: the package, its extensions, and the programs cablewayd, cableway-mover and cableway beside it.

The C parts come from a build folder that make has filled; CABLEWAY_BUILD_DIR names it (absolute). The extensions share
the library, libcableway-python.so.0, which lies beside them: a process has one. So the wheel needs nothing else of ours
on the machine. One wheel serves Python 3.10 and later (abi3).
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import Distribution, Extension, find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent
DISPATCH_PARTS = (
    "", "_plain", "_small", "_parent", "_submit", "_collect", "_calls", "_outcome", "_begin",
    "_worker", "_defer", "_queue", "_group", "_elements", "_lease_cell", "_answer", "_arrays", "_signals",
    "_messages",
)  # fmt: skip
OPTIMISED = ["-O2"]  # CFLAGS of the environment, if only empty, replaces what Python was built with
BUILD = Path(os.environ.get("CABLEWAY_BUILD_DIR", ROOT / "build"))
LIBRARY = BUILD / "libcableway-python.so.0"
PROGRAMS = ["cablewayd", "cableway-mover", "cableway"]
if (BUILD / "cableway-bridge").exists():  # where liburing and OpenSSL were there to build it
    PROGRAMS.append("cableway-bridge")


class BuildWithPrograms(build_py):
    """Puts the library beside the extensions, and the programs where _cableway_programs finds them."""

    def run(self) -> None:
        """Copies the package, then the library and the programs."""
        super().run()
        package = Path(self.build_lib) / "cableway"
        shutil.copy2(LIBRARY, package / LIBRARY.name)
        target = package / "bin"
        target.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            if not (BUILD / name).exists():
                raise SystemExit(
                    f"{BUILD / name} is missing: run make first, or set CABLEWAY_BUILD_DIR"
                )
            shutil.copy2(BUILD / name, target / name)


class BinaryDistribution(Distribution):
    """A distribution that is for one platform even before its extension is known."""

    def has_ext_modules(self) -> bool:
        """Says that it is."""
        return True


def version() -> str:
    """The version that cableway.h states."""
    header = (ROOT / "ipc" / "cableway.h").read_text()
    found = re.search(r'define CW_VERSION\s+"([^"]+)"', header)
    assert found, "cableway.h states no CW_VERSION"
    return found[1]


def manual() -> dict[str, list[Path]]:
    """The man pages, by section."""
    pages: dict[str, list[Path]] = {}
    for page in sorted((ROOT / "docs" / "man").glob("*.[1-9]")):
        pages.setdefault(page.suffix[1:], []).append(page)
    return pages


setup(
    version=version(),
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    packages=find_packages(include=["cableway", "cableway.*"]),
    py_modules=["_cableway_programs"],
    data_files=[
        (f"share/man/man{section}", [os.path.relpath(page, ROOT / "py") for page in pages])
        for section, pages in manual().items()
    ],
    package_data={"cableway": ["py.typed", "*.pyi"], "cableway._watch": ["*.html"]},
    cffi_modules=["cableway_build.py:ffibuilder"],
    ext_modules=[
        Extension(
            "cableway._dlpack",
            sources=["csrc/dlpack/dlpack.c", "csrc/dlpack/leaves.c"],
            include_dirs=[str(ROOT), "csrc"],
            depends=["csrc/dlpack/dlpack.h", str(ROOT / "ipc" / "tree" / "index.h")],
            extra_compile_args=OPTIMISED,
            define_macros=[("Py_LIMITED_API", "0x030a0000")],
            py_limited_api=True,
        ),
        Extension(
            "cableway._dispatch",
            sources=[f"csrc/dispatch{part}.c" for part in DISPATCH_PARTS],
            include_dirs=[str(ROOT), "csrc"],
            depends=[*map(str, Path("csrc").glob("dispatch*.h")), str(ROOT / "ipc" / "cableway.h")],
            define_macros=[("Py_LIMITED_API", "0x030a0000"), ("_GNU_SOURCE", None)],
            extra_compile_args=OPTIMISED,
            # Never unloaded: it has a fork handler.
            extra_link_args=[str(LIBRARY), "-Wl,-rpath,$ORIGIN", "-Wl,-z,nodelete"],
            libraries=["pthread"],
            py_limited_api=True,
        ),
    ],
    cmdclass={"build_py": BuildWithPrograms},
    distclass=BinaryDistribution,
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
