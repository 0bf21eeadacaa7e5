"""The commands of the wheel, run in place of this process.

This module stands beside the package, so that a command starts without importing it and NumPy: that takes a tenth of a second, and
Ctrl-C in it would print a traceback. From here on Ctrl-C ends the process as it ends any program, and a shell says 130.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored: so be it
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def path(name: str) -> str:
    """Where the program of that name lies inside the package."""
    return os.path.join(os.path.dirname(os.path.realpath(__file__)), "cableway", "bin", name)


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
    """The `cableway` command. A part of it is written in Python: it must find the one that it is installed for."""
    if sys.argv[1:2] == ["exporter"]:
        os.environ.setdefault("CABLEWAY_PYTHON", sys.executable)
    _become("cableway")


def cablewayd() -> NoReturn:
    """The broker."""
    _become("cablewayd")
