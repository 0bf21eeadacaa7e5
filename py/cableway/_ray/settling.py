"""Memory comes back to the process that made it once all have let go of it, and that process has to look for it. A thread does so after
this process let go of blocks, as long as something has not come back: soon, then every LOOK_SECONDS.

Owner: this process; a thread at a time. It ends with the process.
"""

from __future__ import annotations

import os
import threading
import time

from cableway._core import idle_memory

__all__ = ["LOOK_SECONDS", "soon"]

LOOK_SECONDS = 2.0
_FIRST_SECONDS = 0.05

_lock = threading.Lock()
_runs = False


def _after_fork_in_child() -> None:
    global _lock, _runs
    _lock, _runs = threading.Lock(), False


os.register_at_fork(after_in_child=_after_fork_in_child)


def soon() -> None:
    """This process let go of blocks. Never blocks."""
    global _runs
    with _lock:
        if _runs:
            return
        _runs = True
    threading.Thread(target=_run, name="cableway.ray settling", daemon=True).start()


def _run() -> None:
    global _runs
    pause = _FIRST_SECONDS
    while True:
        time.sleep(pause)
        pause = min(2 * pause, LOOK_SECONDS)
        with _lock:
            if not idle_memory.settle():
                _runs = False
                return
