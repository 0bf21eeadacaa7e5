"""Draws pictures for docs/ARCHITECTURE.md and the guide: who does what, one after another, from the top to the bottom.

    python docs/pictures/sequences.py          # writes array.svg, task.svg, remote_get.svg and bytes.svg beside this file

A test draws them again and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

INK, QUIET, GREEN, GOLD, PALE = "#1f2933", "#66727f", "#0b6e4f", "#fbf1dc", "#e3f2ec"
LANE, STEP, TOP, MARGIN = 250, 34, 66, 24


@dataclass(frozen=True)
class Step:
    """An arrow between two lanes, or (the same twice) a note in one. Dashed: only at times."""

    start: int
    end: int
    text: str
    dashed: bool = False


@dataclass(frozen=True)
class Picture:
    """Lanes with their titles, and what happens."""

    title: str
    lanes: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]


PICTURES = {
    "array": Picture(
        "An array from put to get",
        (("process A", "puts"), ("broker", "holds descriptors"), ("shared memory", "slab, block table, directory"), ("process B", "gets")),
        (
            Step(0, 1, "SLAB_ADD: descriptors of a new slab", dashed=True),
            Step(0, 2, "carves a block, writes the bytes"),
            Step(0, 1, "PUT: name, block, layout"),
            Step(1, 2, "enters the name in the directory"),
            Step(1, 0, "it is there"),
            Step(3, 2, "looks the name up, asks nobody"),
            Step(3, 1, "SLAB_OPEN", dashed=True),
            Step(1, 3, "the slab's descriptors, to be mapped", dashed=True),
            Step(3, 2, "takes a lease: one store; looks at the block"),
            Step(2, 2, "the same bytes in A and B"),
            Step(3, 2, "close: the lease ends, one store"),
            Step(0, 1, "REMOVE: the name ends"),
            Step(1, 2, "no name, no lease: the block is free"),
        ),
    ),
    "task": Picture(
        "A task there and back",
        (("caller's thread", "map, apply, result()"), ("cells", "memory of the Pool"), ("worker", "a process"), ("helper thread", "of the caller's process")),
        (
            Step(0, 1, "the pickled task into a free cell: READY"),
            Step(0, 2, "wakes one, if too few are awake", dashed=True),
            Step(2, 1, "takes it: its number by compare-and-swap"),
            Step(2, 2, "runs the function"),
            Step(2, 1, "the answer into the same cell"),
            Step(2, 0, "rings, if the caller sleeps", dashed=True),
            Step(2, 3, "rings, if nobody listens", dashed=True),
            Step(0, 1, "collects the answer, frees the cell"),
            Step(0, 0, "decodes: the result"),
            Step(3, 2, "the worker has died: its pidfd tells", dashed=True),
            Step(3, 1, "the cell says which task it had", dashed=True),
            Step(3, 0, "WorkerDied, or the task is READY again", dashed=True),
        ),
    ),
    "remote_get": Picture(
        'A remote get: cw.get("//b/x") on node a',
        (("client", "on node a"), ("bridge of a", "replicas"), ("bridge of b", "serves its peers"), ("broker of b", "its directory, its memory")),
        (
            Step(0, 1, "GET over the fast path; x is not here yet"),
            Step(1, 2, "OPEN x, and READs of its first pieces: TLS"),
            Step(2, 3, "looks x up and takes a lease, as any client"),
            Step(2, 1, "layout, pieces and their hash"),
            Step(1, 2, "READs of more, over several streams", dashed=True),
            Step(2, 1, "pieces, in any order", dashed=True),
            Step(1, 1, "all is here, the hash is right"),
            Step(1, 0, "where the replica lies"),
            Step(0, 0, "takes a lease, maps it read-only"),
            Step(1, 1, "its broker enters the replica's name"),
            Step(3, 2, "x means another array", dashed=True),
            Step(2, 1, "CHANGED: the replica is stale", dashed=True),
        ),
    ),
    "bytes": Picture(
        "Where the bytes of one Dask array go",
        (("worker 1", "node a; its task made the array"), ("shared memory of a", "each array once"), ("bridges of a and b", "one encrypted connection"), ("shared memory of b", "each array once"), ("workers of b", "say four")),
        (
            Step(0, 1, "before its first message: one copy"),
            Step(0, 0, "maps that one, gives its own up"),
            Step(1, 1, "worker 2 of a maps it, too: no bytes"),
            Step(4, 0, "asks for the array, as in Dask"),
            Step(0, 4, "its name, size and type: some 100 bytes"),
            Step(1, 2, "the bytes, once for all workers of b"),
            Step(2, 3, "the bytes, once; checked by a digest"),
            Step(3, 4, "each of the four maps it: no bytes"),
            Step(4, 4, "writes: its own copies of these pages"),
            Step(3, 2, "further nodes get them from b, too", dashed=True),
            Step(0, 4, "the bytes, if cableway or a bridge is missing", dashed=True),
        ),
    ),
}  # fmt: skip


def words(x: float, y: float, text: str, size: int = 13, **more: str) -> str:
    """A line of text around x."""
    given = {"fill": INK, "text-anchor": "middle", "font-family": "Helvetica, Arial, sans-serif"}
    given.update({name.replace("_", "-"): value for name, value in more.items()})
    attributes = "".join(f'\n  {name}="{escape(value)}"' for name, value in given.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}"{attributes}>{escape(text)}</text>'


def middle(lane: int) -> float:
    """Where a lane is."""
    return MARGIN + LANE * (lane + 0.5)


def step(number: int, one: Step) -> list[str]:
    """One arrow or note with its words."""
    y = TOP + STEP * (number + 1)
    if one.start == one.end:
        x = middle(one.start)
        return [
            f'<rect x="{x - LANE / 2 + 6:g}" y="{y - 16:g}" width="{LANE - 12}" height="22" rx="6" fill="{GOLD}"/>',
            words(x, y - 1, one.text, 12),
        ]
    dashes = ' stroke-dasharray="5 4"' if one.dashed else ""
    start, end = middle(one.start), middle(one.end)
    end += -5 if end > start else 5
    colour = QUIET if one.dashed else GREEN
    # The words stand over the half of the arrow where it begins: long arrows cross other lanes.
    near = start + (LANE / 2 if end > start else -LANE / 2)
    return [
        f'<line x1="{start:g}" y1="{y}" x2="{end:g}" y2="{y}" stroke="{colour}" stroke-width="1.8"\n'
        f'  marker-end="url(#head-{colour[1:]})"{dashes}/>',
        words(near, y - 5, one.text, 11, fill=colour),
    ]


def head(colour: str) -> str:
    """The head of arrows of one colour."""
    return (
        f'<marker id="head-{colour[1:]}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" markerHeight="6"\n'
        f'  orient="auto"><path d="M 0 0 L 10 5 L 0 10 z" fill="{colour}"/></marker>'
    )


def draw(name: str) -> str:
    """The text of one picture."""
    picture = PICTURES[name]
    width = 2 * MARGIN + LANE * len(picture.lanes)
    height = TOP + STEP * (len(picture.steps) + 1) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(picture.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f"<defs>{head(GREEN)}\n{head(QUIET)}</defs>",
    ]
    for lane, (title, under) in enumerate(picture.lanes):
        x = middle(lane)
        lines += [
            f'<line x1="{x:g}" y1="{TOP - 8}" x2="{x:g}" y2="{height - 34}" stroke="{QUIET}" stroke-width="0.8"/>',
            f'<rect x="{x - LANE / 2 + 10:g}" y="12" width="{LANE - 20}" height="44" rx="8" fill="{PALE}" stroke="{QUIET}"/>',
            words(x, 31, title, 14, font_weight="bold"),
            words(x, 48, under, 11, fill=QUIET),
        ]
    for number, one in enumerate(picture.steps):
        lines += step(number, one)
    lines.append(
        words(width / 2, height - 12, "from the top to the bottom; dashed: only when it is needed", 11, fill=QUIET)
    )  # fmt: skip
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    for each in PICTURES:
        Path(__file__).with_name(f"{each}.svg").write_text(draw(each))
