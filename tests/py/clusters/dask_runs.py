"""Runs programs in the environment of Dask, or of Ray, with a broker of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import PATH, describe, processes_with
from waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("CABLEWAY_BUILD", ROOT / "build")).resolve()
PLACE = BUILD / "dask"
SECONDS = 240


def interpreter(place: Path = PLACE) -> str:
    """The Python that has Dask, or Ray, and the wheel of this build; skips the test if there is none."""
    if not (place / "made.stamp").exists():
        pytest.skip(f"`make build/{place.name}/made.stamp` was not called")
    return str(place / "bin/python")


def run_words(
    words: list[str],
    folder: Path,
    environment: dict[str, str],
    seconds: float = SECONDS,
    fails: bool = False,
    place: Path = PLACE,
) -> tuple[str, str]:
    """What a command prints and says as errors; it must succeed, or fail. Afterwards its broker is stopped."""
    interpreter(place)
    broker = folder / "broker"
    broker.mkdir(mode=0o700, exist_ok=True)
    where = {
        **os.environ,
        "PATH": f"{place}/bin:{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(PATH),
        "CABLEWAY_DIR": str(broker),
        "DASK_TEMPORARY_DIRECTORY": str(folder),
        **environment,
    }
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=where,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    finally:
        stopped = subprocess.run(
            [place / "bin/cableway", "stop", "--yes", "--force"],
            env=where,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr[-20000:]
    setting = f"CABLEWAY_DIR={broker}"
    assert eventually(lambda: not processes_with(setting), 20), [
        *map(describe, processes_with(setting)),
        stopped,
    ]
    return done.stdout, done.stderr


def run(
    program: str,
    name: str,
    folder: Path,
    environment: dict[str, str],
    *arguments: str,
    seconds: float = SECONDS,
) -> str:
    """A function of a program of tests/py/clusters, which must come to its end. Returns what it said as errors."""
    file = Path(__file__).resolve().parent / program
    words = [interpreter(), str(file), name, *arguments]
    printed, errors = run_words(words, folder, environment, seconds)
    assert printed.endswith("well\n"), printed
    return errors
