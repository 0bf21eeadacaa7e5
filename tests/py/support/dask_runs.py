"""Runs a program of tests/py/clusters in the environment of Dask, with a broker of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLACE = Path(os.environ.get("CABLEWAY_BUILD", ROOT / "build")).resolve() / "dask"
SECONDS = 240


def run(
    program: str,
    name: str,
    folder: Path,
    environment: dict[str, str],
    *arguments: str,
    seconds: float = SECONDS,
) -> str:
    """What a function of a program prints. Afterwards nothing of it runs, and its broker has given all memory back."""
    if not (PLACE / "made.stamp").exists():
        pytest.skip("`make build/dask/made.stamp` was not called")
    broker = folder / "broker"
    broker.mkdir(mode=0o700)
    where = {
        **os.environ,
        "PATH": f"{PLACE}/bin:{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "CABLEWAY_DIR": str(broker),
        "DASK_TEMPORARY_DIRECTORY": str(folder),
        **environment,
    }
    try:
        done = subprocess.run(
            [PLACE / "bin/python", ROOT / "tests/py/clusters" / program, name, *arguments],
            cwd=folder,
            env=where,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    finally:
        subprocess.run(
            [PLACE / "bin/cableway", "stop", "--yes", "--force"], env=where, capture_output=True
        )
    assert done.returncode == 0, done.stdout + done.stderr[-20000:]
    assert done.stdout.endswith("well\n"), done.stdout
    return done.stdout
