"""The programs that the wheel carries, run in place of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def path(name: str) -> str:
    """Where the program of that name lies inside the package."""
    return str(Path(__file__).resolve().parents[1] / "bin" / name)


def _become(name: str) -> NoReturn:
    program = path(name)
    try:
        os.execv(program, [name, *sys.argv[1:]])
    except OSError as error:
        print(
            f"{name}: cannot run {program}: {error.strerror}; install cableway again",
            file=sys.stderr,
        )
        sys.exit(127)


def cableway() -> NoReturn:
    """The `cableway` command."""
    _become("cableway")


def cablewayd() -> NoReturn:
    """The broker."""
    _become("cablewayd")
