"""The benchmark of a Pool over GPUs runs, at sizes at which its figures say nothing; it checks its own results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cuda_support
import pytest

cuda_support.require()
BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench" / "bench_gpu_pool.py"


@pytest.fixture(scope="module", autouse=True)
def gpus(broker_folder: Path) -> Iterator[None]:
    """The broker and the benchmark see the same GPUs."""
    with cuda_support.gpus(broker_folder):
        yield


def test_the_benchmark_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--smoke"], capture_output=True, text=True, timeout=120, env=os.environ
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["what", "target", "met", "found"] and len(lines) == 9, done.stdout
    assert any(line.startswith("idle") for line in lines)
