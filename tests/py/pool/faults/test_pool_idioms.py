"""Every way in which people end a pool or an executor ends it, and each result comes once.

The rounds are those of the script pool_idioms.py, which says what it does and what it prints. With CABLEWAY_SOAK set
each idiom runs 1,000 times with each start method. What is expected is what the standard library's own comes to.

Runs in `make test-more`: each idiom runs many times.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pool_idioms
import pytest
from pool_idioms import EXECUTOR_ENDS, OURS_ALONE, POOL_ENDS

SCRIPT = Path(__file__).parent / "pool_idioms.py"
SOAK = bool(os.environ.get("CABLEWAY_SOAK"))
ROUNDS = {"fork": 20, "spawn": 2, "forkserver": 2}
ENDS = POOL_ENDS + EXECUTOR_ENDS
# One script runs several idioms: its start costs more than most rounds.
PARTS = [
    ("fork", POOL_ENDS[:8]),
    ("fork", POOL_ENDS[8:]),
    ("fork", EXECUTOR_ENDS),
    ("spawn", ENDS),
    ("forkserver", ENDS),
]


def rounds_of(
    library: str, method: str, rounds: int, seed: int, names: list[str]
) -> dict[str, Any]:
    """What each idiom came to: by name, how often to what."""
    print(f"{library} {method}: {rounds} rounds, seed {seed}")
    # The script itself tells of a round that hangs, before this limit.
    arguments = [library, method, str(rounds), str(seed), *names]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=36000 if SOAK else 900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line["outcomes"] for line in lines}


@pytest.fixture(scope="module")
def seed() -> Iterator[int]:
    yield int.from_bytes(os.urandom(4), "little")


@pytest.mark.parametrize(("method", "ends"), PARTS)
def test_each_result_comes_once_and_the_end_comes(
    method: str, ends: tuple[Any, ...], seed: int
) -> None:
    rounds = 1000 if SOAK else ROUNDS[method]
    names = [idiom.__name__ for idiom in ends]
    assert rounds_of("cableway", method, rounds, seed, names) == {
        name: {"ok": rounds} for name in names
    }


@pytest.mark.parametrize("ends", [POOL_ENDS, EXECUTOR_ENDS], ids=["pool", "executor"])
def test_the_standard_library_comes_to_the_same(ends: tuple[Any, ...], seed: int) -> None:
    names = [idiom.__name__ for idiom in ends if idiom not in OURS_ALONE]
    rounds = 18 if SOAK else 1
    assert rounds_of("standard", "fork", rounds, seed, names) == {
        name: {"ok": rounds} for name in names
    }


def test_all_idioms_are_run() -> None:
    for wanted in ROUNDS:
        run = [idiom for method, ends in PARTS if method == wanted for idiom in ends]
        assert run == list(pool_idioms.IDIOMS.values())


def test_a_hang_is_told_with_what_was_waited_for() -> None:
    program = """if 1:
        import sys, threading
        import pool_idioms as idioms
        import cableway as cw
        idioms.LIMIT = 0.2
        pool = cw.Pool(1, context="fork")
        idioms.Watch(ours=True).begin("a round that waits for ever")
        threading.Event().wait()
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=SCRIPT.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 3
    for part in (
        "HANG: a round that waits for ever",
        "_serve_until_ended",
        "engine: state RUN",
        "in the row 0",
    ):
        assert part in done.stderr
