"""Runs programs in the environment of Dask, with a broker of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import PATH, processes_with
from waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
PLACE = Path(os.environ.get("CABLEWAY_BUILD", ROOT / "build")).resolve() / "dask"
SECONDS = 240


def interpreter() -> str:
    """The Python that has Dask and the wheel of this build; skips the test if there is none."""
    if not (PLACE / "made.stamp").exists():
        pytest.skip("`make build/dask/made.stamp` was not called")
    return str(PLACE / "bin/python")


def run_words(
    words: list[str],
    folder: Path,
    environment: dict[str, str],
    seconds: float = SECONDS,
    fails: bool = False,
) -> tuple[str, str]:
    """What a command prints and says as errors; it must succeed, or fail. Afterwards its broker is stopped."""
    interpreter()
    broker = folder / "broker"
    broker.mkdir(mode=0o700, exist_ok=True)
    where = {
        **os.environ,
        "PATH": f"{PLACE}/bin:{os.environ['PATH']}",
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
        subprocess.run(
            [PLACE / "bin/cableway", "stop", "--yes", "--force"],
            env=where,
            capture_output=True,
            check=False,
        )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr[-20000:]
    setting = f"CABLEWAY_DIR={broker}"
    assert eventually(lambda: not processes_with(setting), 20), processes_with(setting)
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
