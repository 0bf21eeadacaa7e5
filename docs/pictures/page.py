"""Takes page.png, the page of `cableway exporter`, and notebook.png, in a headless browser, with the programs of top.py.

    python docs/pictures/page.py BUILD          # writes both beside this file

It needs the package cableway, a Chromium, and for the notebook nbclient, ipykernel, nbconvert and Pillow. Its GPU is the double of the driver.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

from PIL import Image

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent.parent / "tests/py"
sys.path[:0] = [str(TESTS), str(TESTS / "support"), str(TESTS / "watching")]

from browser import Browser  # noqa: E402 - where the path leads only now
from exporter_process import Exporter  # noqa: E402

COLORS = 256  # of a picture, which makes it small
WATCHED_SECONDS = 60  # so long the page is open: its curves have some length then
CELLS = [
    "import cableway as cw, time\n\ndef fit(x):\n    time.sleep(0.02)\n    return x * x\n\npool = cw.Pool(4)",
    "results = pool.map(fit, range(400), chunksize=1, progress=True)",
    "pool",
    "cw.status()",
]
NOTEBOOK_WIDTH = 900


def page() -> bytes:
    """The page, after it was open for some time."""
    with Exporter() as exporter, Browser(1280, 1160) as browser:
        browser.open(f"http://127.0.0.1:{exporter.port}/")
        time.sleep(WATCHED_SECONDS)
        browser.value('document.getElementById("at").textContent = ""')  # the name of a machine
        height = browser.value("document.documentElement.scrollHeight")
        return browser.picture(height=min(height, 1160))


def notebook(folder: Path) -> bytes:
    """The cells with their outputs, as nbconvert shows them."""
    runner = TESTS / "watching/notebook.py"
    ran = subprocess.run([sys.executable, runner], input=json.dumps(CELLS), capture_output=True, text=True, check=True)  # fmt: skip
    folder = folder / "converted"  # not beside the programs: one is called as a module is
    folder.mkdir()
    (folder / "shown.ipynb").write_text(ran.stdout)
    convert = [sys.executable, "-m", "nbconvert", "--to", "html", "--template", "lab", "--log-level", "ERROR", "shown.ipynb"]  # fmt: skip
    subprocess.run(convert, cwd=folder, check=True)
    with Browser(NOTEBOOK_WIDTH, 800) as browser:
        browser.open((folder / "shown.html").as_uri())
        height = browser.value("document.querySelector('main').scrollHeight")
        return browser.picture(height=height)


def small(picture: bytes) -> bytes:
    """The same PNG with fewer colors."""
    out = BytesIO()
    with Image.open(BytesIO(picture)) as opened:
        opened.convert("RGB").quantize(COLORS).save(out, "png", optimize=True)
    return out.getvalue()


def main() -> None:
    """Takes both."""
    parser = argparse.ArgumentParser(description="Takes page.png and notebook.png.")
    parser.add_argument("build", type=Path)
    build = parser.parse_args().build.resolve()
    programs = runpy.run_path(str(HERE / "top.py"))["programs"]
    with tempfile.TemporaryDirectory() as made, programs(build, Path(made)):
        (HERE / "page.png").write_bytes(small(page()))
        (HERE / "notebook.png").write_bytes(small(notebook(Path(made))))


if __name__ == "__main__":
    main()
