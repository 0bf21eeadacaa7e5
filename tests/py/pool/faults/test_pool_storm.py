"""Workers killed at random during mixed work: nothing hangs, leaks or is lost but what was on a killed worker.

300 kills in all, 10,000 with `make soak`. What is promised, and how it is checked, stands in pool_storm.py, which
is a program of its own: `CABLEWAY_TRANSIT_SECONDS=10 python tests/py/pool/faults/pool_storm.py --seed N` runs one again.

Runs in `make test-more`: hundreds of kills take minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import describe, eventually, processes_with, stop_broker

SOAK = bool(os.environ.get("CABLEWAY_SOAK"))
SECONDS_MAX = 3600 if SOAK else 110
KILLS = {"fork": 6000, "spawn": 2000, "forkserver": 2000}  # 10,000 in all


@pytest.fixture
def folder() -> Iterator[Path]:
    """The socket folder of a broker that soon ends what nobody opens."""
    made = Path(tempfile.mkdtemp(prefix="cwstorm-"))
    yield made
    stop_broker(made)
    shutil.rmtree(made)


@pytest.mark.timeout(SECONDS_MAX + 30)
@pytest.mark.parametrize("method", KILLS)
def test_a_storm_of_kills_loses_only_what_was_on_the_killed(method: str, folder: Path) -> None:
    kills = KILLS[method] if SOAK else KILLS[method] * 3 // 100
    setting = f"CABLEWAY_DIR={folder}"
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "pool_storm.py")]
        + ["--kills", str(kills), "--method", method],
        env={**os.environ, "CABLEWAY_DIR": str(folder), "CABLEWAY_TRANSIT_SECONDS": "10"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0
    stop_broker(folder)
    assert eventually(lambda: not processes_with(setting)), [
        describe(pid) for pid in processes_with(setting)
    ]
