"""Threads whose start may raise."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["OwnThread"]


class OwnThread(threading.Thread):
    """A daemon thread that its owner can call off, whatever the start has come to.

    `start` may raise when the thread runs already, or will in a moment: a signal's handler raises what it likes, wherever the
    main thread is. Whether it has run cannot be read from outside then. So one lock decides, which the thread takes before
    anything else: either it begins, or it was withdrawn and never will.

    Args:
        target: what it runs.
        name: as `threading.Thread`'s.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(target=target, name=name, daemon=True)
        self._turn = threading.Lock()

    def run(self) -> None:
        """On the thread."""
        if self._turn.acquire(blocking=False):
            super().run()

    def withdraw(self) -> bool:
        """Whether it has not begun, and never will from now on. To be asked once."""
        return self._turn.acquire(blocking=False)

    def end(self) -> None:
        """Waits for its end, if it has begun; else it never will."""
        if not self.withdraw():
            self.join()
