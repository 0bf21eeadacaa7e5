"""Lines of Markdown that an editor shows whole: what programs write into pages of docs/benchmarks.

    python wrapped.py PAGE.md ...      # the same for pages that people write

Sentences are filled anew, also those of a list; a row of a table that is too long goes on in rows whose other cells are
empty. What is shown stays the same. Code stays as it is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

WIDTH = 132
ROW = 160
LEAST = 12  # of a cell
TOGETHER = re.compile(r"`[^`]+`|\[[^\]]*\]\([^)]*\)")  # code, and links
BLANK, BAR = "\x01", "\x02"  # that stand for a blank and a | inside of these
BEGINS_A_BLOCK = re.compile(r"\s*([-+*>#|=]|\d+[.)]\s)")


def filled(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most so many characters, with what stands before the first one and before all others."""
    lines, current = [], first
    begun = False
    for word in TOGETHER.sub(lambda part: part[0].replace(" ", BLANK), text).split():
        if begun and len(current) + 1 + len(word) > width:
            lines.append(current)
            current = rest + word
        else:
            current += f" {word}" if begun else word
        begun = True
    return [line.replace(BLANK, " ") for line in [*lines, current]]


def sentence(line: str) -> list[str]:
    """A paragraph, or an item of a list. No line of it may begin as an item or a heading does."""
    match = re.match(r"(\s*)((?:[-*+]|\d+[.)])\s+)?(.*)", line)
    assert match
    indent, bullet, text = match[1], match[2] or "", match[3]
    for width in range(WIDTH, WIDTH // 2, -1):
        lines = filled(text, width, indent + bullet, indent + " " * len(bullet))
        if not any(BEGINS_A_BLOCK.match(one) for one in lines[1:]):
            return lines
    raise ValueError(f"cannot be wrapped: {line}")


def row(line: str) -> list[str]:
    """A row of a table, and rows that go on with it."""
    indent = line[: len(line) - len(line.lstrip())]
    kept = re.sub(r"`[^`]+`|\\\|", lambda part: part[0].replace("|", BAR), line.strip()[1:-1])
    cells = [cell.strip().replace(BAR, "|") for cell in kept.split("|")]
    widths = [len(cell) for cell in cells]
    while sum(widths) > ROW - len(indent) - 3 * len(cells) - 1:
        widths[widths.index(max(widths))] -= 1
    parts = [filled(cell, max(width, LEAST)) for cell, width in zip(cells, widths, strict=True)]
    count = max(map(len, parts))
    for i, width in enumerate(widths):  # as even as they can be with as many rows
        while len(parts[i]) > 1 and width > LEAST and len(narrower := filled(cells[i], width - 1)) <= count:  # fmt: skip
            parts[i], width = narrower, width - 1
    rows = [[part[i] if i < len(part) else "" for part in parts] for i in range(count)]
    return [
        f"{indent}|{'|'.join(f' {cell} ' if cell else ' ' for cell in found)}|" for found in rows
    ]


def wrapped(page: str) -> str:
    """A page without long lines."""
    lines: list[str] = []
    is_code = False
    for line in page.splitlines():
        is_code ^= line.lstrip().startswith("```")
        is_row = line.lstrip().startswith("|")
        if is_code or len(line) <= (ROW if is_row or line.startswith("#") else WIDTH):
            lines.append(line)
        else:
            lines += row(line) if is_row else sentence(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(wrapped(Path(name).read_text()))
