"""Starts for which the interpreter's exit waits.

At exit the main thread ends everything that runs, once. A daemon thread may be starting workers at that moment, which nobody would end
afterwards: the main thread would wait for them for ever, or leave them behind. So each start goes through a gate:

    a thread that starts    makes a note of itself; checks whether the gate is closed (then: RuntimeError); starts, and puts the
                            result where the exit finds it; removes its note
    the exit                closes the gate; waits until no other thread has a note; ends everything that it finds

Each side stores first and checks then, so one of them sees the other (the interpreter's lock puts all of that in one order). So what is
started is found, or the start was refused. The exit's wait ends, since threads run until it is over. Only the main thread can be
interrupted by a signal handler and so leave its note behind; the exit runs on the main thread and does not wait for its own note.
After a fork the child has no other thread: it begins anew.
"""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["Starts"]


class Starts:
    """A gate: `with starts:` around a start.

    Args:
        refusal: what RuntimeError says once it is closed.
        here: whether the thread that has closed it, where exit handlers run, may start things still.
    """

    def __init__(self, refusal: str, *, here: bool) -> None:
        self._refusal = refusal
        self._here = here
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._notes: dict[int, int] = {}  # how many starts a thread is in
        self._left = threading.Event()
        self._closed_by: int | None = None

    @property
    def closed(self) -> bool:
        """Whether the interpreter ends."""
        return self._closed_by is not None

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._notes[me] = self._notes.get(me, 0) + 1
        if self._closed_by is not None and not (self._here and self._closed_by == me):
            self.__exit__()
            raise RuntimeError(self._refusal)

    def __exit__(self, *error: object) -> None:
        me = threading.get_ident()
        left = self._notes.pop(me, 1) - 1
        if left:
            self._notes[me] = left
        elif self._closed_by is not None:
            self._left.set()

    def close(self) -> None:
        """Nothing starts in other threads from now on. Waits for what is being started. At the interpreter's exit alone."""
        me = self._closed_by = threading.get_ident()
        while True:
            self._left.clear()
            if not set(self._notes) - {me}:
                return
            self._left.wait()


_all: weakref.WeakSet[Starts] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for starts in list(_all):
        starts._begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
