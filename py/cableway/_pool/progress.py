"""Shows the progress of a map: by tqdm, by an object like it, or by plain lines.

`progress=True` uses tqdm.auto if tqdm is installed and somebody can see it: a bar in terminals, in notebooks a widget if ipywidgets is
installed, too. A notebook without these has a bar of ours. In a log, or in a terminal without tqdm, a line is printed now and then.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any

from cableway._pool import notebook_progress

__all__ = ["Progress"]

_LOOK_SECONDS = 0.2
_LINE_SECONDS = 10.0


class Progress:
    """What is shown for one call.

    Args:
        bar: an object with update(n) and close().
    """

    seconds = _LOOK_SECONDS  # between two looks

    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._at = 0

    @classmethod
    def of(cls, wanted: Any, total: int | None) -> Progress | None:
        """For what a caller gave as progress=; total: how many items, None when it is not known.

        Raises:
            TypeError: it is neither a bool, None nor callable.
        """
        if wanted is None or wanted is False:
            return None
        if wanted is True:
            return cls(_default(total))
        if not callable(wanted):
            raise TypeError(f"progress must be True, False or a callable like tqdm, not {wanted!r}")
        return cls(wanted(total=total))

    def reach(self, count: int) -> None:
        """So many items are done."""
        if count > self._at:
            self._bar.update(count - self._at)
            self._at = count

    def close(self) -> None:
        """It is over."""
        self._bar.close()


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


def _has_widgets() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("tqdm", "ipywidgets"))


def _default(total: int | None) -> Any:
    if _in_notebook() and notebook_progress.in_kernel() and not _has_widgets():
        return notebook_progress.NotebookBar(total)
    if _in_notebook() or (sys.stderr is not None and sys.stderr.isatty()):
        try:
            from tqdm.auto import tqdm
        except ImportError:
            pass
        else:
            return tqdm(total=total)
    return _Lines(total)


class _Lines:
    """A line to stderr every ten seconds, and at the end."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._done = 0
        self._began = self._printed = time.monotonic()

    def update(self, count: int) -> None:
        """So many more."""
        self._done += count
        if time.monotonic() - self._printed >= _LINE_SECONDS:
            self._print()

    def close(self) -> None:
        """The last line."""
        self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        seconds = self._printed - self._began
        of = "" if not self._total else f" of {self._total} ({100 * self._done // self._total} %)"
        each = f", {self._done / seconds:.1f} a second" if seconds > 0 else ""
        print(f"{self._done}{of} done in {seconds:.1f} s{each}", file=sys.stderr, flush=True)
