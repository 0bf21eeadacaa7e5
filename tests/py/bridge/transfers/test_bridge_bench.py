"""The benchmark of GPU arrays across the bridge runs, at a size at which its figures say nothing; it checks its results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import bridge_support
import cuda_support
import pytest

cuda_support.require()
pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())
BENCH = Path(__file__).resolve().parents[4] / "tools" / "bench" / "bench_bridge_gpu.py"


gpus = cuda_support.for_module()


def test_the_benchmark_runs() -> None:
    build = Path(bridge_support.program("cablewayd")).parent
    done = subprocess.run(
        [sys.executable, str(BENCH), "--build", str(build), "--smoke"],
        capture_output=True, text=True, timeout=120, env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("across the bridge: ran, with cableway, GPU to host"), done.stdout
