"""Draws overview.svg: many processes, one memory, and the broker, which has descriptors only.

    python docs/pictures/overview.py          # writes overview.svg beside this file

A test draws it again and compares.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 400
INK, QUIET, GREEN, PALE, BLUE, GOLD = (
    "#1f2933", "#66727f", "#0b6e4f", "#e3f2ec", "#e8eef6", "#fbf1dc",
)  # fmt: skip
PROCESSES = [
    ("your notebook", 'cw.put("train/x", x)'),
    ("Pool worker 1", 'cw.get("train/x")'),
    ("Pool worker 2", 'cw.get("train/x")'),
    ("a program in C", 'cw_get(c, "train/x", ...)'),
]
ARRAYS = [
    ("train/x", "(1000000, 10) float64"),
    ("train/y", "(1000000,) int8"),
    ("weights", "on a GPU: cuda:0"),
]


def box(x: float, y: float, width: float, height: float, fill: str, line: str = QUIET) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{fill}"'
        f' stroke="{line}" stroke-width="1.2"/>'
    )


def words(x: float, y: float, text: str, size: int = 14, **more: str) -> str:
    """A line of text around x."""
    given = {"fill": INK, "text-anchor": "middle", "font-family": "Helvetica, Arial, sans-serif"}
    given.update({name.replace("_", "-"): value for name, value in more.items()})
    attributes = " ".join(f'{name}="{escape(value)}"' for name, value in given.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" {attributes}>{escape(text)}</text>'


def arrow(x: float, top: float, bottom: float, line: str, dashes: str = "") -> str:
    """A line with a head at both ends."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x:g}" y1="{top:g}" x2="{x:g}" y2="{bottom:g}" stroke="{line}" stroke-width="2"{dashed}'
        f' marker-start="url(#head-{line[1:]})" marker-end="url(#head-{line[1:]})"/>'
    )


def head(line: str) -> str:
    """The head of arrows of one colour."""
    return (
        f'<marker id="head-{line[1:]}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" markerHeight="6"'
        f' orient="auto-start-reverse"><path d="M 0 0 L 10 5 L 0 10 z" fill="{line}"/></marker>'
    )


def draw() -> str:
    """The picture."""
    mono = {"font_family": "Menlo, Consolas, monospace"}
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f"<defs>{head(GREEN)}{head(QUIET)}</defs>",
    ]
    step, margin = 205.0, 30.0
    for number, (name, does) in enumerate(PROCESSES):
        x = margin + number * step
        middle = x + 92
        parts += [
            box(x, 24, 185, 62, BLUE),
            words(middle, 49, name, 15, font_weight="bold"),
            words(middle, 71, does, 11, **mono),
            arrow(middle, 92, 150, GREEN),
        ]
    parts += [
        words(margin + 1.5 * step + 92, 126, "reads and writes, no copies", 13, fill=GREEN),
        box(margin, 158, WIDTH - 2 * margin, 106, PALE, GREEN),
        words(
            WIDTH / 2, 181, "one shared memory, which belongs to no process", 15, font_weight="bold"
        ),
    ]
    for number, (name, what) in enumerate(ARRAYS):
        x = margin + 20 + number * 258
        parts += [
            box(x, 194, 244, 56, "#ffffff", GREEN),
            words(x + 122, 217, name, 14, **mono),
            words(x + 122, 238, what, 12, fill=QUIET),
        ]
    parts += [
        arrow(WIDTH / 2, 270, 312, QUIET, "5 4"),
        words(
            WIDTH / 2 + 16,
            296,
            "descriptors and names, never the bytes",
            13,
            fill=QUIET,
            text_anchor="start",
        ),
        box(margin + 200, 320, WIDTH - 2 * margin - 400, 60, GOLD),
        words(WIDTH / 2, 345, "the broker (cablewayd)", 15, font_weight="bold"),
        words(WIDTH / 2, 366, "starts and ends by itself; notices who has died", 12, fill=QUIET),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>Many processes, one memory, and a broker that holds descriptors only</title>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw())
