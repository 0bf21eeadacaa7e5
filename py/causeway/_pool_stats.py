"""What a Pool's workers have done so far, as figures and as a table."""

from __future__ import annotations

from typing import Any

__all__ = ["summary", "table"]

_SUMS = ("tasks", "seconds", "bytes_in", "bytes_out")


def summary(workers: list[dict[str, Any]]) -> dict[str, Any]:
    """The sums over all workers, and the workers themselves.

    >>> summary([{"tasks": 2, "seconds": 0.5, "bytes_in": 8, "bytes_out": 4}])["tasks"]
    2
    """
    return {**{name: sum(worker[name] for worker in workers) for name in _SUMS}, "workers": workers}


def table(workers: list[dict[str, Any]]) -> str:
    """The same for people to read.

    >>> print(table([{"worker": 0, "pid": 7, "tasks": 2, "seconds": 0.5, "bytes_in": 8 << 20, "bytes_out": 4}]))
    worker       pid      tasks    seconds      MiB in     MiB out
         0         7          2      0.500         8.0         0.0
       all                    2      0.500         8.0         0.0
    """
    lines = [f"{'worker':>6}{'pid':>10}{'tasks':>11}{'seconds':>11}{'MiB in':>12}{'MiB out':>12}"]
    for worker in workers:
        lines.append(_line(str(worker["worker"]), str(worker["pid"] or "-"), worker))
    lines.append(_line("all", "", summary(workers)))
    return "\n".join(lines)


def _line(name: str, pid: str, figures: dict[str, Any]) -> str:
    return (
        f"{name:>6}{pid:>10}{figures['tasks']:>11}{figures['seconds']:>11.3f}"
        f"{figures['bytes_in'] / (1 << 20):>12.1f}{figures['bytes_out'] / (1 << 20):>12.1f}"
    )
