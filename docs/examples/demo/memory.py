"""Peak memory of a process and all that it started: the sum of their proportional set sizes (PSS).

PSS counts a page that n processes map as 1/n for each, so that the sum counts shared memory once. It is read from
/proc/PID/smaps_rollup ten times a second.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

INTERVAL_S = 0.1


def descendants(pid: int) -> list[int]:
    """pid and all processes below it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:  # it has just ended
                pass
    return found


def pss_bytes(pid: int) -> int:
    """Proportional set size of one process; 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return 0


class Peak(threading.Thread):
    """Watches a process tree while the `with` block runs; then peak_bytes is the highest sum seen.

    >>> import os
    >>> with Peak([os.getpid()]) as peak:
    ...     pass
    >>> peak.peak_bytes > 1 << 20
    True
    """

    def __init__(self, pids: list[int]) -> None:
        super().__init__(daemon=True)
        self.pids = pids
        self.peak_bytes = 0
        self._done = threading.Event()

    def run(self) -> None:
        """Samples until the block ends."""
        while True:
            tree = {pid for root in self.pids for pid in descendants(root)}
            self.peak_bytes = max(self.peak_bytes, sum(pss_bytes(pid) for pid in tree))
            if self._done.wait(INTERVAL_S):
                return

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self.join()
