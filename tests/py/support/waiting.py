"""Waiting for what comes true by itself; also for scripts that the tests run."""

from __future__ import annotations

import time
from collections.abc import Callable


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether a condition comes true in time. The limit is for what never does: a machine may be busy."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


def soon(condition: Callable[[], bool], hundredths: int = 100) -> bool:
    """Whether a condition comes true in so many hundredths of a second, as we live them: a busy machine stops us too."""
    for _ in range(hundredths):
        if condition():
            return True
        time.sleep(0.01)
    return condition()
