"""All idioms of Pool, Executor and Queue at once, while workers, parents and brokers are killed and stopped at random.

A minute, and an hour with `make soak`. What is promised, and how it is checked, stands in idiom_storm.py, a program of its
own: `python tests/py/pool/faults/idiom_storm.py --seed N --only M` runs one round again.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import PATH, describe, processes_with

SECONDS = 3600 if os.environ.get("CABLEWAY_SOAK") else 60
SECONDS_MAX = SECONDS + 600  # a round that hangs is told earlier, with all its stacks
STORM = Path(__file__).parent / "idiom_storm.py"


@pytest.mark.timeout(SECONDS_MAX + 30)
def test_whoever_is_killed_or_stopped_each_call_is_right_or_told_and_nothing_is_left() -> None:
    done = subprocess.run(
        [sys.executable, str(STORM), "--seconds", str(SECONDS)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    # All of it is long: why it failed, and the end of what its last round said.
    failed = done.stdout[found:] if (found := done.stdout.find("FAILED:")) >= 0 else done.stdout
    assert done.returncode == 0, f"{failed[:3000]}\n...\n{failed[-3000:]}"
    # It was a storm: something was killed and something stopped.
    assert re.search(r'"a worker SIGKILL": \d', done.stdout)
    assert re.search(r'"a worker SIGSTOP": \d', done.stdout)


REPORT = 'out.put(("got" if is_whole(found) else "WRONG", reader, found[:2]))'
LIES = {
    "a wrong result": ("    return x * x\n", "    return x * x + (x == 5)\n", "is not right|lost"),
    "an item twice": (REPORT, f"{REPORT}; {REPORT}", "items came twice|not in order"),
    "an item lost": (REPORT, f"found[1] == 3 or {REPORT}", "are missing"),
    "a call that hangs": ("    return x * y\n", "    time.sleep(1000)\n", "HANG"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lie", LIES)
def test_the_storm_sees(lie: str, tmp_path: Path) -> None:
    """Its tasks are changed so that one thing is wrong. Then it tells what, and leaves no process and no file."""
    was, now, found = LIES[lie]
    for file in (
        file for folder in (STORM.parent, *map(Path, PATH)) for file in folder.glob("*.py")
    ):
        shutil.copy(file, tmp_path)
    for name in ("idiom_tasks.py", "pool_sends.py"):
        file = tmp_path / name
        file.write_text(file.read_text().replace(was, now))
    with tempfile.TemporaryDirectory(prefix="cwlie-") as folder:  # a socket's path is short
        done = subprocess.run(
            # It ends with the round that saw it; a busy machine needs more time for as many rounds.
            [sys.executable, str(tmp_path / STORM.name), "--seconds", "180", "--seed", "1", "--hung", "15"],
            env={**os.environ, "TMPDIR": folder},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, check=False,
        )  # fmt: skip
        assert [describe(pid) for pid in processes_with(f"TMPDIR={folder}")] == []
        assert os.listdir(folder) == []
    assert done.returncode == 1 and re.search(found, done.stdout), done.stdout[-5000:]
    assert "FAILED: round 1 " in done.stdout and "--seed 1 --only " in done.stdout
