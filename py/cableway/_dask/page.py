"""The scheduler's page about shared memory: `/cableway` of its dashboard, and `/cableway.json`."""

from __future__ import annotations

import html
from typing import Any

from dask.utils import format_bytes
from distributed.http.utils import RequestHandler

__all__ = ["routes", "rows"]


def rows(scheduler: Any) -> list[dict[str, Any]]:
    """What each worker last said: bytes that its data map, bytes that are its own, and the node's store."""
    found = []
    for address, ws in scheduler.workers.items():
        said = ws.metrics.get("cableway") or {}
        used, limit = said.get("store", (0, 0))
        found.append(
            {
                "worker": address,
                "node": said.get("node"),
                "broker": said.get("instance"),
                "mapped_bytes": said.get("mapped_bytes", 0),
                "private_bytes": said.get("private_bytes", ws.metrics.get("memory", 0)),
                "store_used_bytes": used,
                "store_limit_bytes": limit,
            }
        )
    return found


class _Json(RequestHandler):
    def get(self) -> None:
        """The rows."""
        self.write({"workers": rows(self.server)})


class _Page(RequestHandler):
    def get(self) -> None:
        """A table."""
        head = (
            "worker",
            "node",
            "broker",
            "mapped (shared)",
            "private",
            "store in use",
            "store limit",
        )
        lines = [
            [
                str(row["worker"]),
                str(row["node"] or "-"),
                str(row["broker"] or "none: bytes"),
                *(format_bytes(row[name]) for name in row if name.endswith("_bytes")),
            ]
            for row in rows(self.server)
        ]
        table = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>"
            for line in lines
        )
        titles = "".join(f"<th>{title}</th>" for title in head)
        self.write(
            "<!DOCTYPE html><title>cableway</title><meta http-equiv=refresh content=2>"
            f"<table border=1 cellpadding=4><tr>{titles}</tr>{table}</table>"
        )


routes: list[tuple[str, Any, dict[str, Any]]] = [
    (r"cableway", _Page, {}),
    (r"cableway.json", _Json, {}),
]
