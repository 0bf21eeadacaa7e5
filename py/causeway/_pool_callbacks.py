"""Callbacks of a Pool's results, in a thread of their own: a slow one holds back no result but its own."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable

__all__ = ["Callbacks"]

_Callback = Callable[[], object]


class Callbacks:
    """Runs callbacks one after the other. The thread starts with the first."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[_Callback, _Callback] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def run(self, callback: _Callback, then: _Callback) -> None:
        """Runs callback, and then the other one, even where callback raises."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="causeway-pool-callbacks", daemon=True
                )
                self._thread.start()
        self._queue.put((callback, then))

    def end(self) -> None:
        """No more callbacks come."""
        self._queue.put(None)

    def join(self) -> None:
        """Waits until all have run."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _serve(self) -> None:
        while True:
            entry = self._queue.get()
            if entry is None:
                return
            callback, then = entry
            try:
                callback()
            except BaseException as error:
                _show(error)
            then()
            del entry, callback, then


def _show(error: BaseException) -> None:
    """Shows an exception by the user's hook; what the hook raises is shown by Python's own."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as another:
        sys.__excepthook__(type(another), another, another.__traceback__)
