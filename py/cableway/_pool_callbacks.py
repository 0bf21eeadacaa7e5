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
        self._ended = False
        self._lock = threading.RLock()  # a finaliser may come to take it on a thread that has it

    def run(self, callback: _Callback, then: _Callback) -> None:
        """Runs callback, and then the other one, even where callback raises. May be repeated: callback knows."""
        with self._lock:
            if not self._ended:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._serve, name="cableway-pool-callbacks", daemon=True
                    )
                    thread.start()
                    self._thread = thread
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
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _serve(self) -> None:
        while True:
            entry = self._queue.get()
            if entry is None:
                self._queue.put(None)  # a Ctrl-C may have made `run` start two threads
                return
            _run(*entry)
            del entry


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
