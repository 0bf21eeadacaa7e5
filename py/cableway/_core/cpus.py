"""The number of CPUs that this process may use, by its affinity and the quotas of its cgroups.

A Pool without a number of processes has that many workers, where `multiprocessing.Pool` counts all CPUs of the machine.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["usable_cpus"]


def usable_cpus(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """CPUs by affinity, or fewer where a cgroup's quota gives less; at least 1.

    >>> usable_cpus() >= 1
    True
    """
    count = len(os.sched_getaffinity(0))
    for quota in _quotas(proc, sys):
        count = min(count, max(1, math.ceil(quota)))
    return count


def _quotas(proc: Path, sys: Path) -> list[float]:
    """The CPUs that each cgroup above this process allows, version 2 and version 1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, read = sys / "fs" / "cgroup", _quota_2
        elif "cpu" in controllers.split(","):
            root, read = sys / "fs" / "cgroup" / "cpu", _quota_1
        else:
            continue
        folder = root / path.lstrip("/")
        for place in [folder, *folder.parents]:
            quota = read(place)
            if quota is not None:
                found.append(quota)
            if place == root:
                break
    return found


def _quota_2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return None if quota <= 0 else quota / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None
