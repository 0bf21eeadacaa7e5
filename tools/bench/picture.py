"""Draws the Pool beside its peers from the JSON of a run: picture.py RUN.json OUT.png.

One panel a kind of call, one bar a peer: the median, with p10 and p90. Shorter is better. Axes are logarithmic, but
for panels whose bars are alike.
"""

from __future__ import annotations

import io
import json
import math
import sys
import textwrap
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from PIL import Image
from targets import number

# A panel is its column, a title and its benches: the name in the JSON, and what stands beside its bars.
PANELS = [
    (
        0,
        "Pool: one no-op",
        [
            ("pool apply", "apply"),
            ("pool apply, after 0.1 s", "apply\nafter sleep"),
            ("pool map, chunksize=1", "map\nchunksize=1"),
            ("pool map, default chunks", "map\ndefault chunks"),
            ("pool imap", "imap"),
            ("pool apply_async, 1,000 at once", "apply_async\n1,000 at once"),
        ],
    ),
    (
        1,
        "Executor and joblib: one no-op",
        [
            ("executor submit and result", "submit\nand result"),
            ("executor submit and result, after 0.1 s", "the same\nafter sleep"),
            ("executor submit, 1,000 at once", "submit\n1,000 at once"),
            ("executor map", "map"),
            ("joblib no-op, batches of 1", "joblib\nbatches of 1"),
        ],
    ),
    (
        0,
        "Arrays of 64 MiB",
        [
            ("pool 64 MiB there", "argument"),
            ("pool 64 MiB there and back, new result", "argument\nand result"),
            ("pool one array of 64 MiB, 100 tasks", "one array\n100 tasks"),
        ],
    ),
    (
        1,
        "scikit-learn's GridSearchCV through joblib",
        [
            ("joblib GridSearchCV, short fits on digits", "150 short fits\non digits"),
            ("joblib GridSearchCV, 51 MiB of pixels", "20 fits\nof 51 MiB"),
        ],
    ),
    (
        1,
        "The same: peak memory of all processes",
        [
            ("joblib GridSearchCV, short fits on digits, peak memory", "150 short fits\non digits"),
            ("joblib GridSearchCV, 51 MiB of pixels, peak memory", "20 fits\nof 51 MiB"),
        ],
    ),
]
COLOURS = [
    ("cableway", "#0b6e4f"),
    ("multiprocessing.Pool", "#8c8c8c"),
    ("ProcessPoolExecutor", "#b9b9b9"),
    ("loky", "#d9a441"),
    ("mpire", "#7a9cc6"),
    ("Ray", "#b07aa1"),
    ("joblib's own share", "#e6e6e6"),
]
BAR = 0.8  # of the room for one


def colour(name: str) -> str:
    """One for each peer."""
    return next((found for start, found in COLOURS if name.startswith(start)), "#cccccc")


def in_words(value: float, unit: str) -> str:
    """A value with the unit that suits it."""
    for smaller, larger in (("us", "ms"), ("ms", "s")):
        if unit == smaller and value >= 1000:
            value, unit = value / 1000, larger
    return f"{number(value)} {unit}".replace("us", "µs")


def mark_powers(axes: Axes, low: float, high: float, unit: str) -> None:
    """Powers of ten where there are bars, with their unit."""
    powers = range(math.ceil(math.log10(low)), math.ceil(math.log10(high)) + 1)
    axes.set_xticks([10.0**n for n in powers], [in_words(10.0**n, unit) for n in powers])
    axes.set_xticks([], minor=True)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def panel(
    axes: Axes, title: str, benches: list[tuple[str, str]], rows: list[dict[str, Any]]
) -> None:
    """The bars of one panel, from above."""
    at, ticks, labels = 0.0, [], []
    shown = [row for row in rows if row["bench"] in dict(benches)]
    unit = shown[0]["unit"]
    for bench, label in benches:
        found = [row for row in shown if row["bench"] == bench]
        found.sort(key=lambda row: not row["name"].startswith("cableway"))
        ticks.append(at + (len(found) - 1) / 2)
        labels.append(label)
        for row in found:
            middle, low, high = row["median"], row["p10"], row["p90"]
            axes.barh(at, middle, BAR, color=colour(row["name"]))
            axes.plot([low, high], [at, at], color="black", linewidth=0.8, alpha=0.7)
            words = f"  {row['name']}  {in_words(middle, unit)}"
            if row is not found[0]:
                by = middle / found[0]["median"]
                words += f"  ({by:.0f} x)" if by >= 10 else f"  ({by:.2g} x)"
            axes.text(max(high, middle), at, words, va="center", fontsize=6.5)
            at += 1
        at += 0.8
    low, high = min(row["p10"] for row in shown) / 2, max(row["p90"] for row in shown)
    linear = high / low < 50
    axes.set_yticks(ticks, labels, fontsize=7.5)
    axes.tick_params(axis="both", length=0, labelsize=7)
    axes.set_ylim(at - 0.8, -0.8)
    if linear:
        axes.set_xlim(0, high * 1.5)
    else:
        axes.set_xscale("log")
        axes.set_xlim(low, high * (high / low) ** 0.55)  # room for the words
    if linear:  # the words say enough
        axes.set_xticks([])
    else:
        mark_powers(axes, low, high, unit)
    axes.set_title(title, fontsize=9, loc="left", fontweight="bold")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def draw(run: dict[str, Any], out: Path) -> None:
    """The whole picture: two columns of about the same height."""
    rows = run["rows"]
    columns: list[list[tuple[str, list[tuple[str, str]], int]]] = [[], []]
    for side, title, benches in PANELS:
        counts = {bench: sum(row["bench"] == bench for row in rows) for bench, _ in benches}
        found = [bench for bench in benches if counts[bench[0]]]
        if found:
            columns[side].append((title, found, sum(counts.values()) + len(found)))
    columns = [column for column in columns if column]
    tall = max(sum(size + 4 for *_, size in column) for column in columns)
    figure = plt.figure(figsize=(12, 0.15 * tall + 0.8), layout="constrained")
    parts = figure.subfigures(1, len(columns), squeeze=False)[0]
    for part, column in zip(parts, columns, strict=True):
        ratios = [size + 1 for *_, size in column]
        all_axes = part.subplots(len(column), 1, squeeze=False, height_ratios=ratios)[:, 0]
        for axes, (title, benches, _) in zip(all_axes, column, strict=True):
            panel(axes, title, benches, rows)
    caption = (
        f"Median time of a call with p10 and p90: shorter is better; in brackets, by the first of ours. Axes with marks are logarithmic."
        f" {run['workers']} workers each, taking turns in one run. cableway spins for about one wake-up before it"
        f" sleeps; the others sleep. {run['machine']}. {run['date']}, {run['command']}."
    )
    figure.suptitle("\n".join(textwrap.wrap(caption, 190)), fontsize=8, x=0.01, ha="left")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    plt.close(figure)
    out.parent.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(48).save(out, optimize=True)


def main() -> None:
    """Reads and draws."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
