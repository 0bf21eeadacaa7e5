"""What the kernel tells of a process; also for scripts that the tests run."""

from __future__ import annotations

from pathlib import Path


def stat_fields(pid: int | str) -> list[str]:
    """The words of /proc/PID/stat behind the name, the state first. A process's name may be any bytes, spaces and brackets too.

    Raises:
        OSError: there is no such process.
    """
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
