"""Daemon threads that use a Pool while the interpreter exits.

At exit, Pools are ended after all threads except daemons have ended. Results of calls that daemon threads have begun then never
come. In the standard library these threads wait on and end with the process, and so they do here: an exception would be printed for
each of them, after a program that has done all its work. Other threads, which exit handlers may have started, and the main thread
get an exception.
"""

from __future__ import annotations

import threading
import time

__all__ = ["begin", "begun", "cut_short", "hold"]

_LONG_SECONDS = 3600.0

_begun = False


def begin() -> None:
    """The interpreter ends."""
    global _begun
    _begun = True


def begun() -> bool:
    """Whether it does."""
    return _begun


def cut_short(error: Exception) -> Exception:
    """An error of the Pool's end, which is told to who waits."""
    error._cableway_at_exit = _begun  # type: ignore[attr-defined]
    return error


def hold(error: object) -> None:
    """Does not return if this is a daemon thread, and error what the interpreter's end has cut short. Before it is raised."""
    if _begun and getattr(error, "_cableway_at_exit", False) and threading.current_thread().daemon:
        while True:
            time.sleep(_LONG_SECONDS)
