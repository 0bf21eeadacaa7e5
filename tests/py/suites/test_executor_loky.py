"""loky's own tests of its process executor over ours: see loky_suite/loky_ours.py.

They come from loky's source package, which is fetched for this run. (Those of `get_reusable_executor` are of a function that
ours has not.) Runs in `make test-more`.
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


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_loky(method: str, source: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
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
        [
            *(sys.executable, "-m", "pytest", *words, f"--junitxml={report}"),
            f"tests/test_process_executor_{method}.py",
        ],
        cwd=source,
        env={**os.environ, "PYTHONPATH": ":".join(path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{done.stdout[-20000:]}\n{done.stderr[-4000:]}"
    cases = list(ElementTree.parse(report).iter("testcase"))
    ran = [case for case in cases if case.find("skipped") is None]
    assert len(ran) >= LEAST, f"of {len(cases)} tests {len(ran)} ran"
