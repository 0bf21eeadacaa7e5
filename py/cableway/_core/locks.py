"""Locks that are free again when a signal's handler raises where a `with` begins.

Python 3.14 looks for signals between the end of a lock's `__enter__` and the `with` that called it. What a handler raises there leaves the
lock locked (CPython's issue 148874): of signals that came at any moment of `with lock: pass`, two in five did. An `__enter__` in Python that
calls nothing behind `acquire` is not looked at on its way back, and it can undo what `acquire` did. Its `__exit__` stays the one in C,
since a function in Python looks for signals when it begins. Earlier Pythons do not look there, and have their own locks.

From Python 3.13 on what a handler raises where a conditional jump goes back in a loop leaves the `with` (or `try`) around the loop without
its end (issue 130279). So no such loop stands in a `with` of a lock: it is a function, which the `with` calls.

A signal's handler, or a finaliser, may also run on a thread that has such a lock, and there wait for another thread, which needs the
lock: both would wait for ever. Who lets users wait for threads of ours asks `held_here` before. Invariant: each RLock of the package
that these threads take was made here, so that it is known. A forked child knows none of its parent's: a worker is forked in the midst
of a step, which it never ends.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import weakref
from typing import Any

__all__ = ["Lock", "RLock", "held_here"]

_made: set[weakref.ref[Any]] = set()  # of each RLock that is alive
os.register_at_fork(after_in_child=_made.clear)

if sys.version_info >= (3, 14):

    class _RLock(_thread.RLock):
        """`threading.RLock`."""

        def __enter__(self) -> bool:
            before = self._recursion_count()
            try:
                self.acquire()
            except BaseException:
                while self._recursion_count() > before:
                    self.release()
                raise
            return True

    Lock = (
        _RLock  # one in C cannot be a base; who takes it gives it back, so that it may be this one
    )
else:
    _RLock, Lock = threading.RLock, threading.Lock


def RLock(*, known: bool = True) -> Any:
    """A `threading.RLock`. known: `held_here` knows it; False: none of our threads ever takes it."""
    lock = _RLock()
    if known:
        _made.add(weakref.ref(lock, _made.discard))
    return lock


def held_here() -> bool:
    """Whether this thread has a known RLock that was made here: then it is in the midst of a step that others may wait for.

    >>> lock = RLock()
    >>> with lock:
    ...     held_here()
    True
    >>> held_here()
    False
    """
    return any(lock is not None and lock._is_owned() for lock in [each() for each in list(_made)])
