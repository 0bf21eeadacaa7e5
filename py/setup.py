"""Builds the wheel: the package, its extension, and the programs causewayd, causeway-mover and causeway beside it.

The C parts come from a build folder that make has filled; CAUSEWAY_BUILD_DIR names it (absolute). The extension is
linked against libcauseway.a there, so the wheel needs nothing else of ours on the machine. One wheel serves Python
3.10 and later (abi3).
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent
DISPATCH_PARTS = (
    "", "_plain", "_small", "_parent", "_submit", "_collect", "_calls", "_outcome", "_begin",
    "_worker", "_defer", "_queue", "_held",
)  # fmt: skip
BUILD = Path(os.environ.get("CAUSEWAY_BUILD_DIR", ROOT / "build"))
PROGRAMS = ["causewayd", "causeway-mover", "causeway"]
if (BUILD / "causeway-bridge").exists():  # where liburing and OpenSSL were there to build it
    PROGRAMS.append("causeway-bridge")


class BuildWithPrograms(build_py):
    """Puts the programs into the package, where causeway._programs finds them."""

    def run(self) -> None:
        """Copies the package, then the programs."""
        super().run()
        target = Path(self.build_lib) / "causeway" / "bin"
        target.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            if not (BUILD / name).exists():
                raise SystemExit(
                    f"{BUILD / name} is missing: run make first, or set CAUSEWAY_BUILD_DIR"
                )
            shutil.copy2(BUILD / name, target / name)


class BinaryDistribution(Distribution):
    """A distribution that is for one platform even before its extension is known."""

    def has_ext_modules(self) -> bool:
        """Says that it is."""
        return True


def version() -> str:
    """The version that causeway.h states."""
    header = (ROOT / "ipc" / "causeway.h").read_text()
    found = re.search(r'define CW_VERSION\s+"([^"]+)"', header)
    assert found, "causeway.h states no CW_VERSION"
    return found[1]


setup(
    version=version(),
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    packages=["causeway"],
    package_data={"causeway": ["py.typed", "*.pyi"]},
    cffi_modules=["causeway_build.py:ffibuilder"],
    ext_modules=[
        Extension(
            "causeway._dlpack",
            sources=["csrc/dlpack.c"],
            define_macros=[("Py_LIMITED_API", "0x030a0000")],
            py_limited_api=True,
        ),
        Extension(
            "causeway._dispatch",
            sources=[f"csrc/dispatch{part}.c" for part in DISPATCH_PARTS],
            include_dirs=[str(ROOT), "csrc"],
            depends=[*map(str, Path("csrc").glob("dispatch*.h")), str(ROOT / "ipc" / "causeway.h")],
            extra_objects=[str(BUILD / "libcauseway.a")],
            define_macros=[("Py_LIMITED_API", "0x030a0000"), ("_GNU_SOURCE", None)],
            # Never unloaded: it has a fork handler.
            extra_link_args=["-Wl,--exclude-libs,ALL", "-Wl,-z,nodelete"],
            libraries=["pthread"],
            py_limited_api=True,
        ),
    ],
    cmdclass={"build_py": BuildWithPrograms},
    distclass=BinaryDistribution,
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
