"""What the Pool's tests have in common."""

from __future__ import annotations

from pathlib import Path

import pool_tasks as tasks
from waiting import eventually

import cableway as cw

LONG = 60  # seconds after which a test has failed; nothing here takes long


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True


def workers_of(pool: cw.Pool, count: int) -> set[int]:
    """The pids of a pool's workers, once so many have run a task."""
    found: set[int] = set()

    def all_seen() -> bool:
        found.update(pool.map(tasks.pid_after_a_while, range(2 * count), chunksize=1))
        return sum(not gone(pid) for pid in found) == count

    assert eventually(all_seen, LONG), f"{count} workers, of which {found} have answered"
    return {pid for pid in found if not gone(pid)}
