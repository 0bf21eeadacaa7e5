"""The benchmark of a Pool over GPUs runs, at sizes at which its figures say nothing; it checks its own results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cuda_support

cuda_support.require()
BENCH = Path(__file__).resolve().parents[4] / "tools" / "bench" / "bench_gpu_pool.py"


gpus = cuda_support.for_module()


def test_the_benchmark_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--smoke"], capture_output=True, text=True, timeout=120, env=os.environ
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    head, *rows, last = done.stdout.splitlines()
    assert head.split() == ["what", "target", "met", "found"], done.stdout
    assert "FAILED" not in done.stdout and last.endswith(" GPUs"), done.stdout
    parts = [
        "map over ", " tasks, ", "overlap, beside one after the other", "overlap, beside plain Pool code",
        "InOut of ", "tasks of 10 ms on ", "idle: ",
    ]  # fmt: skip
    for part in parts:  # how many rows a part has depends on the libraries that are there
        assert any(part in row for row in rows), (part, done.stdout)
