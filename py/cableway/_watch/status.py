"""`cableway.status`: what `cableway top` shows, as an object."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from cableway import client
from cableway._watch import command, html, state
from cableway.errors import Error

__all__ = ["Status", "status"]

_ROWS_MAX = 5  # of a list, in a notebook
_DEVICE_MAX = 13  # characters; a GPU's UUID has 40, of which the first tell it apart
_COLORS = {"live": "#2f6fb0", "cached": "#8fb8de", "orphan": "#d0503c", "context": "#9a8fb5"}


class Status:
    """What ran at one moment, from `cableway.status`. Printed, it is a summary; in a notebook, a table.

    Rows are dicts, as in ``cableway top --json``: sizes in bytes, times in seconds, None for what is not known.

    Attributes:
        broker: pid, state ("idle", "running", "hangs", "stopped", "gone"), uptime_seconds and more; None if none runs.
        devices: memory by device: device, live_bytes, cached_bytes, orphan_bytes, context_bytes, total_bytes.
        memory: the same by device and process.
        clients: the processes that are connected: pid, command, held_arrays, held_bytes, waiting_for and more.
        arrays: those with a name, of all namespaces: namespace, name, device, shape, dtype, bytes, owner_pid, holders and more.
        pools: pid, workers, busy_workers, queued_chunks, tasks, failed_tasks and more.
        queues: pid, items, max_items, bytes and more.
        routes: bytes copied to, from and between GPUs.
        peers: other nodes of which something lies here.
        interval_seconds: between the two looks of which rates are differences; None if there was one.
    """

    broker: dict[str, Any] | None
    devices: list[dict[str, Any]]
    memory: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    arrays: list[dict[str, Any]]
    pools: list[dict[str, Any]]
    queues: list[dict[str, Any]]
    routes: list[dict[str, Any]]
    peers: list[dict[str, Any]]
    interval_seconds: float | None

    def __init__(self, found: dict[str, Any]) -> None:
        self.broker = found["broker"]
        self.interval_seconds = found["interval_seconds"]
        self.devices = found["devices"]
        for name in state.LISTS:
            setattr(self, name, found[name])

    @property
    def running(self) -> bool:
        """Whether a broker runs and answers."""
        return self.broker is not None and self.broker["state"] in ("idle", "running")

    def as_dict(self) -> dict[str, Any]:
        """All attributes, as plain lists and dicts."""
        return dict(vars(self))

    def _headline(self) -> str:
        if self.broker is None:
            several = " (memory that several processes have is counted for each)"
            return "no broker runs" + (several if self.devices else "")
        return f"broker {self.broker['pid']} {self.broker['state']}, up {_span(self.broker['uptime_seconds'])}"

    def _counts(self) -> str:
        return ", ".join(
            f"{name} {len(getattr(self, name))}"
            for name in ("clients", "arrays", "pools", "queues")
        )

    def __repr__(self) -> str:
        lines = [f"{self._headline()}: {self._counts()}"]
        for row in self.devices:
            parts = ", ".join(f"{html.size(row[f'{name}_bytes'])} {name}" for name in _COLORS if row[f"{name}_bytes"])  # fmt: skip
            lines.append(f"  {row['device']}: {parts or html.size(row['total_bytes'])}")
        for row in self.pools:
            lines.append(
                f"  Pool of {row['pid']} ({row['command']}): {row['busy_workers']} of {row['workers']} workers busy, "
                f"{row['queued_chunks']} chunks queued, {row['tasks']} tasks done, {row['failed_tasks']} failed"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts: list[Any] = [
            html.Markup("<div><b>cableway</b> "), self._headline(), ": ", self._counts(), html.Markup("</div>")
        ]  # fmt: skip
        most = max([1, *(row["total_bytes"] for row in self.devices)])
        if self.devices:
            parts.append(html.table(
                ["MEMORY", "LIVE", "CACHED", "ORPHAN", "CONTEXT", "TOTAL", ""],
                [[_device(row["device"]), *(_size(row[f"{name}_bytes"]) for name in (*_COLORS, "total")),
                  html.bar([(row[f"{name}_bytes"] / most, color) for name, color in _COLORS.items()])] for row in self.devices],
            ))  # fmt: skip
        for name, columns, by in _TABLES:
            rows = getattr(self, name)
            largest = sorted(rows, key=lambda row: -(row[by] or 0))[:_ROWS_MAX]
            if rows:
                parts.append(html.table(
                    [name.upper(), *(heading for heading, _ in columns[1:])],
                    [[_cell(row, key) for _, key in columns] for row in largest], len(rows),
                ))  # fmt: skip
        return html.join(parts)


_TABLES: tuple[tuple[str, tuple[tuple[str, str], ...], str], ...] = (
    ("pools", (("", "command"), ("PID", "pid"), ("WORKERS", "workers"), ("BUSY", "busy_workers"), ("QUEUED", "queued_chunks"),
               ("TASKS", "tasks"), ("FAILED", "failed_tasks")), "tasks"),
    ("arrays", (("", "name"), ("DEVICE", "device"), ("SHAPE", "shape"), ("DTYPE", "dtype"), ("BYTES", "bytes"),
                ("HOLDERS", "holders")), "bytes"),
    ("queues", (("", "command"), ("PID", "pid"), ("ITEMS", "items"), ("BYTES", "bytes")), "items"),
    ("clients", (("", "command"), ("PID", "pid"), ("ARRAYS", "held_arrays"), ("BYTES", "held_bytes"),
                 ("WAITS FOR", "waiting_for")), "held_bytes"),
)  # fmt: skip


def _size(count: float | None) -> html.Markup:
    return html.text(None if count is None else html.size(count)) if count else html.text(None)


def _cell(row: dict[str, Any], key: str) -> Any:
    if key == "device":
        return _device(row[key])
    return _size(row[key]) if key.endswith("bytes") else row[key]


def _device(name: str) -> str:
    return name if len(name) <= _DEVICE_MAX else f"{name[: _DEVICE_MAX - 1]}…"


def _span(seconds: float) -> str:
    for most, unit, of in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < most:
            return f"{seconds / of:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def status(seconds: float | None = None) -> Status:
    """What runs here now: broker, memory by device, clients, arrays, Pools, Queues. Starts no broker and asks none.

    It reads shared memory from outside, in the program ``cableway top``, so it also works while the broker is stopped or hangs,
    and takes some milliseconds, or seconds if they are given.

    Args:
        seconds: look twice, so long apart (at least 0.1), so that rates such as tasks_per_second are known. Blocks so long.

    Raises:
        ValueError: seconds is below 0.1.
        Error: the command failed, and why.

    >>> import cableway as cw
    >>> x = cw.put("x", [1, 2, 3])
    >>> found = cw.status()
    >>> found.running, [(row["name"], row["bytes"]) for row in found.arrays if row["name"] == "x"]
    (True, [('x', 24)])
    """
    arguments = ["top", "--json"]
    if seconds is not None:
        if not seconds >= 0.1:
            raise ValueError(f"seconds must be at least 0.1, not {seconds!r}")
        arguments += ["-d", repr(float(seconds))]
    try:
        done = subprocess.run(
            command.words(*arguments), env=_environment(), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=command.TIMEOUT_SECONDS + (seconds or 0), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Error(f"`cableway top` did not end within {error.timeout:g} s") from None
    except OSError as error:
        raise Error(f"`cableway top` cannot be run: {error}; install cableway again") from None
    if done.returncode not in (command.OK, command.NO_BROKER):
        raise Error(f"`cableway top` failed: {command.said(done.stderr)}")
    return Status(state.read(done.stdout))


def _environment() -> dict[str, str]:
    """That of this process, with the folder of the broker that it is connected to."""
    address = client.settings()[0]
    if address is None:
        return dict(os.environ)
    folder = os.path.dirname(address) if address.endswith(".sock") else address
    return {**os.environ, "CABLEWAY_DIR": folder}
