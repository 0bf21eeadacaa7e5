"""What a Pool's workers have done so far, as figures and as a table."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from cableway._watch import html

if TYPE_CHECKING:
    from cableway._pool.devices.devices import Devices

__all__ = ["html_of", "html_table", "summary", "table"]

_SUMS = ("tasks", "chunks", "seconds", "bytes_in", "bytes_out")


def summary(workers: list[dict[str, Any]], devices: Devices | None = None) -> dict[str, Any]:
    """The sums over all workers, those over the workers of each device where there are any, and the workers themselves.

    >>> found = summary([{"device": "cuda:0", "tasks": 2, "chunks": 1, "seconds": 0.5, "bytes_in": 8, "bytes_out": 4}])
    >>> found["tasks"], found["devices"]["cuda:0"]["tasks"]
    (2, 2)
    """
    found = _sums(workers)
    if workers and "device" in workers[0]:
        names = dict.fromkeys(worker["device"] for worker in workers)
        found["devices"] = {
            name: _sums([worker for worker in workers if worker["device"] == name])
            for name in names
        }
    if devices is not None:
        found["lent"] = {"shared": devices.lender.shared, "copied": devices.lender.copied}
    return {**found, "workers": workers}


def _sums(workers: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: sum(worker[name] for worker in workers) for name in _SUMS}


def table(workers: list[dict[str, Any]]) -> str:
    """The same for people to read.

    >>> print(table([{"worker": 0, "pid": 7, "tasks": 2, "chunks": 1, "seconds": 0.5, "bytes_in": 8 << 20, "bytes_out": 4}]))
    worker       pid      tasks    seconds      MiB in     MiB out
         0         7          2      0.500         8.0         0.0
       all                    2      0.500         8.0         0.0
    """
    lines = [f"{'worker':>6}{'pid':>10}{'tasks':>11}{'seconds':>11}{'MiB in':>12}{'MiB out':>12}"]
    for worker in workers:
        line = _line(str(worker["worker"]), str(worker["pid"] or "-"), worker)
        lines.append(f"{line}  {worker['device']}" if "device" in worker else line)
    found = summary(workers)
    lines.extend(_line("on", name, sums) for name, sums in found.get("devices", {}).items())
    lines.append(_line("all", "", found))
    return "\n".join(lines)


def html_of(pool: Any) -> str:
    """What a notebook shows of a Pool."""
    engine = pool._engine
    title = f"cableway.Pool, {engine.processes} workers, {engine.state}"
    # Of a fork's copy the figures are the parent's.
    return html_table(title, engine.figures() if engine.pid == os.getpid() else [])


def html_table(title: str, workers: list[dict[str, Any]], rows: int = 16) -> str:
    """The same for a notebook, with at most so many workers."""
    found = _sums(workers)
    most = max([1e-9, *(worker["seconds"] for worker in workers)])
    has_device = any("device" in worker for worker in workers)
    lines: list[list[Any]] = [
        [worker["worker"], worker["pid"] or html.text(None), worker["tasks"], html.text(f"{worker['seconds']:.1f} s"),
         html.bar([(worker["seconds"] / most, "#2f6fb0")], 80), *_sizes(worker),
         *([worker.get("device")] if has_device else [])]
        for worker in workers[:rows]
    ]  # fmt: skip
    said = f"{title}: {found['tasks']} tasks done in {found['seconds']:.1f} s of its workers, "
    said += f"{html.size(found['bytes_in'])} in, {html.size(found['bytes_out'])} out"
    headings = [
        "WORKER",
        "PID",
        "TASKS",
        "BUSY",
        "",
        "IN",
        "OUT",
        *(["DEVICE"] if has_device else []),
    ]
    return html.join([html.Markup("<div>"), said, html.Markup("</div>"), html.table(headings, lines, len(workers))])  # fmt: skip


def _sizes(figures: dict[str, Any]) -> list[html.Markup]:
    return [html.text(html.size(figures[name])) for name in ("bytes_in", "bytes_out")]


def _line(name: str, pid: str, figures: dict[str, Any]) -> str:
    return (
        f"{name:>6}{pid:>10}{figures['tasks']:>11}{figures['seconds']:>11.3f}"
        f"{figures['bytes_in'] / (1 << 20):>12.1f}{figures['bytes_out'] / (1 << 20):>12.1f}"
    )
