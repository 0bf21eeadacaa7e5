"""HTML for notebooks: tables and bars of values that are anybody's text. No script, no class, nothing from elsewhere.

>>> str(table(["NAME", "BYTES"], [["<b>", 1 << 20]], total=3))
'<table style="border-collapse:collapse;white-space:nowrap"><tr><th style="text-align:left">NAME</th><th>BYTES</th></tr><tr><td style="text-align:left">&lt;b&gt;</td><td>1048576</td></tr></table><div style="opacity:.6">and 2 more</div>'
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["TEXT_MAX", "Markup", "bar", "join", "size", "table", "text"]

TEXT_MAX = 60  # characters of a value in a table
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Markup(str):
    """Text that is HTML already. Everything else is escaped."""

    __slots__ = ()


def size(count: float) -> str:
    """A number of bytes for people.

    >>> size(512), size(8 << 20)
    ('512 B', '8.0 MiB')
    """
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.1f} {_UNITS[unit]}" if unit else f"{count:.0f} B"


def text(value: Any) -> Markup:
    """A value, escaped. None is a dash."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape("-" if value is None else str(value)))


def _cell(value: Any) -> Markup:
    if isinstance(value, str) and not isinstance(value, Markup) and len(value) > TEXT_MAX:
        value = f"{value[: TEXT_MAX - 1]}…"
    return text(value)


def join(parts: Iterable[Any]) -> Markup:
    """Parts behind each other; those that are no Markup are escaped."""
    return Markup("".join(map(text, parts)))


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]], total: int = 0) -> Markup:
    """A table; texts are on the left, numbers and Markup on the right. total: of how many rows these are."""
    left = [
        all(
            isinstance(row[i], (str, type(None))) and not isinstance(row[i], Markup) for row in rows
        )
        for i in range(len(headings))
    ]
    lines = [_row("th", headings, left), *(_row("td", row, left) for row in rows)]
    more = (
        f'<div style="opacity:.6">and {total - len(rows)} more</div>' if total > len(rows) else ""
    )
    return Markup(
        f'<table style="border-collapse:collapse;white-space:nowrap">{"".join(lines)}</table>{more}'
    )


def _row(tag: str, values: Sequence[Any], left: Sequence[bool]) -> str:
    styles = [' style="text-align:left"' if at_left else "" for at_left in left]
    cells = "".join(
        f"<{tag}{style}>{_cell(value)}</{tag}>" for value, style in zip(values, styles, strict=True)
    )
    return f"<tr>{cells}</tr>"


def bar(parts: Iterable[tuple[float, str]], width: int = 220) -> Markup:
    """A bar of shares of 1 with their colors."""
    pieces = "".join(
        f'<span style="display:inline-block;height:10px;width:{max(0.0, min(1.0, share)) * width:.0f}px;background:{color}"></span>'
        for share, color in parts
    )
    return Markup(
        f'<span style="display:inline-block;text-align:left;line-height:0;width:{width}px;background:#8883">{pieces}</span>'
    )
