"""Draws the Pool beside its peers from the JSON of a run: picture.py RUN.json OUT.png.

One panel a kind of call, one bar a peer on a logarithmic axis: the median, with p10 and p90. Shorter is better.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from targets import number

# A panel is a title and its benches: the name in the JSON, and what stands beside its bars.
PANELS = [
    (
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
        "Arrays of 64 MiB",
        [
            ("pool 64 MiB there", "argument"),
            ("pool 64 MiB there and back, new result", "argument\nand result"),
            ("pool one array of 64 MiB, 100 tasks", "one array\n100 tasks"),
        ],
    ),
    (
        "scikit-learn's GridSearchCV through joblib",
        [
            ("joblib GridSearchCV, short fits on digits", "150 short fits\non digits"),
            ("joblib GridSearchCV, 51 MiB of pixels", "20 fits\nof 51 MiB"),
            ("joblib GridSearchCV, short fits on digits, peak memory", "short fits\nmemory"),
            ("joblib GridSearchCV, 51 MiB of pixels, peak memory", "51 MiB\nmemory"),
        ],
    ),
]
COLOURS = [
    ("causeway", "#0b6e4f"),
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


def text(row: dict[str, Any]) -> str:
    """A median with its unit."""
    value, unit = row["median"], row["unit"].replace("us", "µs")
    if unit == "ms" and value >= 1000:
        value, unit = value / 1000, "s"
    return f"{number(value)} {unit}"


def panel(
    axes: Axes, title: str, benches: list[tuple[str, str]], rows: list[dict[str, Any]]
) -> None:
    """The bars of one panel, from above."""
    at, ticks, labels = 0.0, [], []
    for bench, label in benches:
        found = [row for row in rows if row["bench"] == bench]
        found.sort(key=lambda row: not row["name"].startswith("causeway"))
        if not found:
            continue
        ticks.append(at + (len(found) - 1) / 2)
        labels.append(label)
        for row in found:
            middle, low, high = row["median"], row["p10"], row["p90"]
            axes.barh(at, middle, BAR, color=colour(row["name"]))
            axes.plot([low, high], [at, at], color="black", linewidth=0.8, alpha=0.7)
            words = f" {row['name']}  {text(row)}"
            axes.text(max(high, middle), at, words, va="center", fontsize=6.5)
            at += 1
        at += 0.8
    axes.set_yticks(ticks, labels, fontsize=7.5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.75)  # room for the words
    axes.set_title(title, fontsize=9, loc="left", fontweight="bold")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def draw(run: dict[str, Any], out: Path) -> None:
    """The whole picture."""
    rows = run["rows"]
    there = {row["bench"] for row in rows}
    panels = [
        (title, [bench for bench in benches if bench[0] in there]) for title, benches in PANELS
    ]
    panels = [(title, benches) for title, benches in panels if benches]
    counts = [sum(row["bench"] in dict(benches) for row in rows) for _, benches in panels]
    columns = [panels[0::2], panels[1::2]]
    heights = [counts[0::2], counts[1::2]]
    tall = max(sum(column) + 5 * len(column) for column in heights)
    figure = plt.figure(figsize=(12, 0.155 * tall + 1.1), layout="constrained")
    parts = figure.subfigures(1, len([column for column in columns if column]), squeeze=False)[0]
    for part, column, ratios in zip(parts, columns, heights, strict=False):
        found = part.subplots(len(column), 1, squeeze=False, height_ratios=[n + 4 for n in ratios])
        for axes, (title, benches) in zip(found[:, 0], column, strict=True):
            panel(axes, title, benches, rows)
    caption = (
        f"Median time of a call with p10 and p90, logarithmic: shorter is better. {run['workers']} workers each, turn by"
        f" turn in one run. causeway spins for about one wake-up before it sleeps; the others sleep."
        f" {run['machine']}. {run['date']}, {run['command']}."
    )
    figure.suptitle("\n".join(textwrap.wrap(caption, 185)), fontsize=8, x=0.01, ha="left")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=110, pil_kwargs={"optimize": True})
    plt.close(figure)


def main() -> None:
    """Reads and draws."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
