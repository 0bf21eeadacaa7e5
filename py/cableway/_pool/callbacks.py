"""Callbacks of a Pool's results, in a thread of their own: a slow one holds back no result but its own."""

from __future__ import annotations

import queue
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable

from cableway._core import locks

__all__ = ["Callbacks"]

_Callback = Callable[[], object]


class Callbacks:
    """Runs callbacks one after the other. The thread starts with the first."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[_Callback, _Callback] | None] = queue.SimpleQueue()
        self._threads: list[int] = []  # its number, once it runs
        self._served = threading.Event()
        self._ended = False
        self._lock = locks.RLock()  # a finaliser may come to take it on a thread that has it

    def run(self, callback: _Callback, then: _Callback) -> None:
        """Runs callback, and then the other one, even where callback raises. May be repeated: callback knows."""
        with self._lock:
            if not self._ended:
                if not self._threads:
                    # In C, so that it is noted whatever a signal's handler raises.
                    self._threads.extend(map(start_new_thread, (self._serve,), ((),)))
                self._queue.put((callback, then))
                return
        _run(callback, then)  # of an answer that was still on its way when the Pool had ended

    def end(self) -> None:
        """No more callbacks come, but for what is delivered just now."""
        with self._lock:
            self._ended = True
            self._queue.put(None)

    def join(self) -> None:
        """Waits until all have run."""
        if self._threads and threading.get_ident() not in self._threads:
            self._served.wait()

    def _serve(self) -> None:
        try:
            while True:
                entry = self._queue.get()
                if entry is None:
                    return
                _run(*entry)
                del entry
        finally:
            self._served.set()


def _run(callback: _Callback, then: _Callback) -> None:
    try:
        callback()
    except BaseException as error:
        _show(error)
    then()


def _show(error: BaseException) -> None:
    """Shows an exception by the user's hook; what the hook raises is shown by Python's own."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as another:
        sys.__excepthook__(type(another), another, another.__traceback__)
