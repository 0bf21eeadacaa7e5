"""loky's own tests of its process executor over ours: see loky_suite/loky_ours.py.

They come from loky's source package, which is fetched for this run. (Those of `get_reusable_executor` are of a function that
ours has not.) What ours skips and loky_ours.py does not name must not pass with loky's executor either. Runs in `make test-more`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

VERSION = "3.7.0"
SUITE = Path(__file__).parent / "loky_suite"
LIMIT_S = 560
LEFT_OUT = "left out: "  # what loky_ours.py says of these
LEAST = 35  # so many of the 55 run here; others are left out, or want what is not installed


@pytest.fixture(scope="module")
def source(tmp_path_factory: Any) -> Path:
    """loky's source package, unpacked: the package loky, and its tests as the package tests."""
    if importlib.util.find_spec("cloudpickle") is None:
        pytest.skip("loky needs cloudpickle, which is not installed")
    folder = tmp_path_factory.mktemp("loky")
    words = [
        "download",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
    ]
    try:
        fetched = subprocess.run(
            [sys.executable, "-m", "pip", *words, folder, f"loky=={VERSION}"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        why = fetched.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired:
        why = ["it took too long"]
    archives = list(folder.glob("loky-*.tar.gz"))
    if not archives:
        pytest.skip(f"loky {VERSION}, whose tests these are, cannot be fetched: {''.join(why)}")
    with tarfile.open(archives[0]) as archive:
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(folder, **safely)
    return folder / f"loky-{VERSION}"


def run(source: Path, whose: str, chosen: list[str], report: Path) -> list[ElementTree.Element]:
    """Runs tests of loky's, none of which may fail with ours; returns its cases."""
    words = [
        "-q",
        "--tb=short",
        "--timeout",
        "60",
        "-p",
        "no:cacheprovider",
        "-p",
        "loky_ours",
        "--skip-high-memory",
        "--loky-verbosity",
        "50",
    ]
    path = [str(SUITE), str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, f"--junitxml={report}", *chosen],
        cwd=source,
        env={**os.environ, "PYTHONPATH": ":".join(path), "CABLEWAY_SUITE": whose},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    bad = done.returncode not in ((0,) if whose == "ours" else (0, 1))
    assert not bad, f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}"
    return list(ElementTree.parse(report).iter("testcase"))


def skipped(cases: list[ElementTree.Element]) -> dict[str, str]:
    """Why, by the name that pytest knows a test by."""
    found = {}
    for case in cases:
        if (why := case.find("skipped")) is not None:
            module, tests = case.attrib["classname"].rsplit(".", 1)
            name = f"{module.replace('.', '/')}.py::{tests}::{case.attrib['name']}"
            found[name] = why.attrib["message"]
    return found


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_passes_with_lokys_executor_passes_with_ours(
    method: str, source: Path, tmp_path: Path
) -> None:
    file = f"tests/test_process_executor_{method}.py"
    cases = run(source, "ours", [file], tmp_path / "ours.xml")
    here = skipped(cases)
    assert len(cases) - len(here) >= LEAST, f"of {len(cases)} tests others were skipped: {here}"
    unnamed = [name for name, why in here.items() if not why.startswith(LEFT_OUT)]
    theirs = run(source, "theirs", unnamed, tmp_path / "theirs.xml") if unnamed else []
    no_pass = ("skipped", "failure", "error")
    passed = [
        c.attrib["name"] for c in theirs if not any(c.find(tag) is not None for tag in no_pass)
    ]
    assert not passed, "skipped with ours, and not named in loky_ours.py"
