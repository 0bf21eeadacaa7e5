"""The progress of a map in a notebook, without widgets: one output of the cell, which is updated. It stays when the notebook is saved.

Owner: the thread that shows it. The kernel sends an update by itself, also while the cell runs.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any

from cableway._watch import html

__all__ = ["NotebookBar", "in_kernel"]

_UPDATE_SECONDS = 0.2
_COLOR, _DONE_COLOR = "#2f6fb0", "#2e8b57"


def in_kernel() -> bool:
    """Whether this process is a notebook's kernel, whose outputs can be updated."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None  # fmt: skip
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar with figures, behind the interface of tqdm's.

    Args:
        total: how many items; None if that is not known.
    """

    def __init__(self, total: int | None) -> None:
        display: Any = importlib.import_module("IPython.display").display

        self._total = total
        self._done = 0
        self._ended = False
        self._began = self._shown = time.monotonic()
        self._handle: Any = display(self._bundle(), raw=True, display_id=True)

    def update(self, count: int) -> None:
        """So many more."""
        self._done += count
        if time.monotonic() - self._shown >= _UPDATE_SECONDS:
            self._show()

    def close(self) -> None:
        """It is over; may be repeated."""
        if not self._ended:
            self._ended = True
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        said = self._said()
        if self._total is None:
            return {"text/plain": said, "text/html": html.join([said])}
        share = self._done / self._total if self._total else 1.0
        color = _DONE_COLOR if self._ended and share >= 1 else _COLOR
        return {
            "text/plain": said,
            "text/html": html.join([html.bar([(share, color)]), f" {said}"]),
        }

    def _said(self) -> str:
        seconds = time.monotonic() - self._began
        of = "" if self._total is None else f" of {self._total}"
        if not self._done:
            return f"0{of}"
        each = f", {self._done / seconds:.3g} a second" if seconds > 0 else ""
        left = ""
        if not self._ended and self._total and self._total > self._done:
            left = f", {seconds * (self._total - self._done) / self._done:.0f} s left"
        return f"{self._done}{of} in {seconds:.1f} s{each}{left}"
