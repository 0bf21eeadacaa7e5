"""What `cableway top --json` tells, as the page and `cableway.status` show it: sums by device, and long lists cut."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["LISTS", "ROWS_MAX", "cut", "dump", "read"]

LISTS = ("clients", "arrays", "pools", "queues", "memory", "routes", "peers")
ROWS_MAX = 500  # of a list, on the page
_SIZES = {"clients": "held_bytes", "arrays": "bytes", "queues": "bytes", "memory": "total_bytes", "peers": "bytes"}  # fmt: skip
_SUMS = ("live_bytes", "cached_bytes", "orphan_bytes", "context_bytes", "total_bytes")


def read(text: bytes) -> dict[str, Any]:
    """What the command printed, with "devices": the sums of "memory" by device, host memory first.

    A list that the command could not read is empty, and "unread" names it.

    Raises:
        ValueError: it is not what the command prints.
    """
    found = json.loads(text)
    if not isinstance(found, dict) or not {"broker", *LISTS} <= found.keys():
        raise ValueError("not the output of `cableway top --json`")
    found["unread"] = [name for name in LISTS if found[name] is None]
    for name in found["unread"]:
        found[name] = []
    found["devices"] = _by_device(found["memory"])
    return found


def _by_device(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    devices: dict[str, dict[str, Any]] = {}
    for row in rows:
        sums = devices.setdefault(row["device"], {"device": row["device"], **dict.fromkeys(_SUMS, 0)})  # fmt: skip
        for name in _SUMS:
            sums[name] += row[name] or 0
    return [devices[name] for name in sorted(devices, key=lambda name: (name != "cpu", name))]


def cut(found: dict[str, Any], rows: int = ROWS_MAX) -> dict[str, Any]:
    """The same with at most so many rows in each list, the largest; "totals" has the numbers of all."""
    shown = {**found, "totals": {name: len(found[name]) for name in LISTS}}
    for name in LISTS:
        if len(found[name]) > rows:
            size = _SIZES.get(name)
            kept = sorted(found[name], key=lambda row: -(row[size] or 0)) if size else found[name]
            shown[name] = kept[:rows]
    return shown


def dump(shown: dict[str, Any]) -> bytes:
    """As JSON in ASCII: no name of an array leaves its quotes, whatever takes the text for whatever."""
    return json.dumps(shown, separators=(",", ":")).encode()
