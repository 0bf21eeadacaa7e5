"""Draws models.svg: one name, versions that never change, and who has which.

    python docs/pictures/models.py          # writes models.svg beside this file

A test draws it again and compares.
"""

from __future__ import annotations

import runpy
from pathlib import Path

_shared = runpy.run_path(str(Path(__file__).with_name("overview.py")))
box, words, head = (_shared[name] for name in ("box", "words", "head"))
INK, QUIET, GREEN, PALE, BLUE, GOLD = (
    _shared[name] for name in ("INK", "QUIET", "GREEN", "PALE", "BLUE", "GOLD")
)

WIDTH, HEIGHT = 860, 400
PROCESSES = [
    ("trainer", 'cw.put("m", model)', 30),
    ("engine 1", "has version 7", 250),
    ("engine 2", "has version 8", 450),
    ("a new engine", 'cw.get("m")', 650),
]
VERSIONS = [
    ("version 7", "stays as long as engine 1 has it", 120, PALE),
    ("version 8", 'what "m" means now', 470, GOLD),
]


def slanted(x: float, top: float, to: float, bottom: float) -> str:
    """A line with a head at its lower end."""
    return (
        f'<line x1="{x:g}" y1="{top:g}" x2="{to:g}" y2="{bottom:g}" stroke="{GREEN}" stroke-width="2"'
        f' marker-end="url(#head-{GREEN[1:]})"/>'
    )


def version(name: str, what: str, x: float, fill: str) -> list[str]:
    """A version: its index, and the memory of its leaves."""
    mono = {"font_family": "Menlo, Consolas, monospace"}
    parts = [
        box(x, 190, 270, 180, fill, GREEN),
        words(x + 135, 214, name, 15, font_weight="bold"),
        words(x + 135, 233, what, 12, fill=QUIET),
        box(x + 20, 252, 230, 34, "#ffffff", GREEN),
        words(x + 135, 274, "index: paths, shapes, places", 13),
    ]
    for number, leaf in enumerate(("embed", "layer.0", "layer.1", "head")):
        place = x + 20 + number * 58
        parts += [
            box(place, 310, 54, 44, BLUE),
            words(place + 27, 336, leaf, 10, **mono),
        ]
    return parts


def draw() -> str:
    """The picture."""
    parts = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f"<defs>{head(GREEN)}{head(QUIET)}</defs>",
    ]
    for name, does, x in PROCESSES:
        parts += [
            box(x, 20, 180, 62, BLUE),
            words(x + 90, 45, name, 15, font_weight="bold"),
            words(x + 90, 67, does, 12, font_family="Menlo, Consolas, monospace"),
        ]
    parts += [
        slanted(120, 86, 500, 186),
        words(150, 150, "all of it at once", 13, fill=GREEN),
        slanted(340, 86, 270, 186),
        slanted(540, 86, 590, 186),
        slanted(720, 86, 680, 186),
        words(784, 140, "one lease, no copy", 13, fill=GREEN),
    ]
    for row in VERSIONS:
        parts += version(*row)
    body = "\n".join(parts)
    title = "One name, versions that never change, and who has which"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{title}</title>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(draw())
