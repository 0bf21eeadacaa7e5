"""Draws top_80x24.svg, top_memory.svg and top_200x50.svg: the screen of `cableway top` on terminals of 80x24 and 200x50.

    python docs/pictures/top.py                      # writes all beside this file, from the screens in top.json
    python docs/pictures/top.py --record build       # first runs programs, with what is built there, and takes their screens anew

A test draws them again and compares. Recording needs the package cableway and pyte; its GPU is the double of the driver.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
SCREENS = {"top_80x24": (80, 24, "1"), "top_memory": (80, 24, "5"), "top_200x50": (200, 50, "2")}
INK, PAPER, QUIET = "#1f2933", "#ffffff", "#c8d0d8"
WIDTH, HEIGHT, SIZE = 7.8, 17, 13  # of a character's cell, and of its letters
REVERSE, BOLD = 1, 2

# Each program: what it is called, what it does, and how many of it run.
COMMON = """
import ctypes, random, sys, threading, time
import numpy as np
import cableway as cw
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())
def there():
    print("there", flush=True)
    threading.Event().wait()
"""
PROGRAMS = [
    ("load.py", 1, """
kept = [cw.put(f"imagenet/train/{i:04}", np.zeros((4 + i * 37 % 61, 3, 64, 64), "f4"), keep=True) for i in range(240)]
kept += [cw.put(f"imagenet/labels/{i:04}", np.zeros(4 + i * 37 % 61, "i8"), keep=True) for i in range(240)]
kept += [cw.put(f"features/{name}", np.zeros((1 + i, 1000, 768), "f2"), keep=True) for i, name in enumerate(["color", "edges", "text"])]
there()
"""),
    ("train.py", 1, """
weights = {f"layers.{i}.{part}": cw.zeros((512, 512), "f4", device="cuda:0") for i in range(12) for part in ("q", "k", "v", "o")}
tree = cw.put("models/vit", weights, keep=True)
batches = cw.Queue(maxsize=64)
def feed():
    while True:
        batches.put(random.random()); batches.get(); time.sleep(0.004)
threading.Thread(target=feed, daemon=True).start()
a, b = cw.zeros((256, 1024), "f4"), cw.zeros((256, 1024), "f4", device="cuda:0")
def copy():
    while True:
        b.copy_from(a); time.sleep(0.02)
threading.Thread(target=copy, daemon=True).start()
there()
"""),
    ("augment.py", 1, """
def crop(seconds):
    time.sleep(seconds)
    return seconds
if __name__ == "__main__":
    x = cw.put("augment/mean", np.zeros(3))
    with cw.Pool(4) as pool:
        threading.Thread(target=lambda: [pool.map(crop, [0.02] * 12 + [0.05]) for _ in iter(int, 1)], daemon=True).start()
        there()
"""),
    ("evaluate.py", 1, """
threading.Thread(target=lambda: cw.get("models/vit/best", timeout=3600), daemon=True).start()
held = [cw.get(f"imagenet/train/{i:04}") for i in range(64)]
there()
"""),
    ("notebook", 2, """
held = [cw.get(f"imagenet/train/{i:04}") for i in range(8)]
y = cw.empty((1 << 20,), "f4", device="cuda:0")
there()
"""),
]  # fmt: skip


# ---- drawing ----


def spans(line: list[list[Any]]) -> list[tuple[int, str, int]]:
    """Where each piece of a line begins, with its text and attributes. A line is a list of [text, attributes]."""
    found, at = [], 0
    for text, attributes in line:
        found.append((at, text, attributes))
        at += len(text)
    return found


def draw(name: str) -> str:
    """The picture of one screen."""
    screens = json.loads((HERE / "top.json").read_text())
    columns, lines, _ = SCREENS[name]
    width, height = columns * WIDTH + 24, lines * HEIGHT + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="DejaVu Sans Mono, Menlo, Consolas, '
        f'monospace" font-size="{SIZE}">',
        f'<rect x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="6" fill="{PAPER}" stroke="{QUIET}"/>',
    ]
    for row, line in enumerate(screens[name]):
        top = 12 + row * HEIGHT
        for at, text, attributes in spans(line):
            left, long = 12 + at * WIDTH, len(text) * WIDTH
            if attributes & REVERSE:
                parts.append(f'<rect x="{left:g}" y="{top:g}" width="{long:g}" height="{HEIGHT}" fill="{INK}"/>')  # fmt: skip
            if not text.strip():
                continue
            colour = PAPER if attributes & REVERSE else INK
            weight = ' font-weight="bold"' if attributes & BOLD else ""
            parts.append(
                f'<text x="{left:g}" y="{top + 13:g}" textLength="{long:g}" xml:space="preserve" fill="{colour}"{weight}>{escape(text)}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


# ---- recording ----


def _text(screens: dict[str, Any]) -> str:
    """JSON with a line for each of a screen."""
    shown = [
        json.dumps(name)
        + ": [\n"
        + ",\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        + "\n]"
        for name, lines in screens.items()
    ]
    return "{\n" + ",\n".join(shown) + "\n}"


def line_of(screen: Any, row: int) -> list[list[Any]]:
    """A line of pyte's screen as pieces of one kind each."""
    pieces: list[list[Any]] = []
    for column in range(screen.columns):
        cell = screen.buffer[row][column]
        attributes = REVERSE * cell.reverse + BOLD * cell.bold
        if pieces and pieces[-1][1] == attributes:
            pieces[-1][0] += cell.data
        else:
            pieces.append([cell.data, attributes])
    return pieces if any(text.strip() or attributes for text, attributes in pieces) else []


@contextlib.contextmanager
def programs(build: Path, folder: Path) -> Any:
    """All programs, running; on a GPU of the double."""
    card = folder / "card"
    card.mkdir(mode=0o700)
    os.environ.update(
        CABLEWAY_DIR=str(folder),
        CABLEWAY_CUDA_DRIVER=str(build / "tests/fakecuda/libcuda-double.so"),
        CABLEWAY_FAKECUDA_DIR=str(card),
        CABLEWAY_FAKECUDA_DEVICES="1",
        CABLEWAY_NVML=str(build / "tests/fakecuda/libnvml-double.so"),
        CABLEWAY_FAKENVML_FILE=str(folder / "nvml"),
    )
    children = []
    for name, count, text in PROGRAMS:
        script = folder / f"{name}.py"
        script.write_text(COMMON + text)
        for _ in range(count):
            child = subprocess.Popen([sys.executable, str(script), name], stdout=subprocess.PIPE)
            children.append(child)
            assert child.stdout
            assert child.stdout.readline() == b"there\n"
    tell_driver(build, folder, [child.pid for child in children[1:2] + children[4:]])
    yield
    for child in children:
        child.kill()
        child.wait()
    subprocess.run([build / "cableway", "stop", "--yes", "--force"], check=False)


def tell_driver(build: Path, folder: Path, pids: list[int]) -> None:
    """What the driver counts: a context for each process, and some memory of its own."""
    topo = subprocess.run([build / "cableway", "topo", "--json"], capture_output=True, check=True)
    (gpu,) = json.loads(topo.stdout)["gpus"]
    mib = 1 << 20
    used = {pid: (480 + 40 * i) * mib for i, pid in enumerate(pids)}
    words = [gpu["uuid"], sum(used.values()) + 610 * mib, len(used)]
    words += [word for pair in used.items() for word in pair]
    (folder / "nvml").write_text(" ".join(map(str, words)))


def record(build: Path) -> None:
    """Takes the screens anew, into top.json."""
    root = HERE.parent.parent
    sys.path[:0] = [
        str(root / "tests/py"),
        str(root / "tests/py/support"),
        str(root / "tests/py/cli"),
    ]
    os.environ["CABLEWAY_COMMAND"] = str(build / "cableway")
    from top_terminal import top  # noqa: PLC0415 - where the path leads only now

    screens = {}
    with tempfile.TemporaryDirectory() as made, programs(build, Path(made)):
        for name, (columns, lines, keys) in SCREENS.items():
            with top(columns, lines) as terminal:
                terminal.type(keys)
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    terminal.read(0.1)
                screens[name] = [line_of(terminal.screen, row) for row in range(lines)]
    (HERE / "top.json").write_text(_text(screens) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draws the screen of cableway top.")
    parser.add_argument("--record", type=Path, metavar="BUILD", help="take the screens anew")
    options = parser.parse_args()
    if options.record:
        record(options.record.resolve())
    for picture in SCREENS:
        (HERE / f"{picture}.svg").write_text(draw(picture))
