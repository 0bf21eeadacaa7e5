"""docs/examples/gpu: each script is run, small, and checks its own result.

On real GPUs as they stand. Else what can run without: the kernels in Numba's simulator, and the network on two processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cuda_support
import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "docs/examples/gpu"
on_real_gpus = pytest.mark.skipif(not cuda_support.REAL, reason="no GPU")
on_the_cpu = pytest.mark.skipif(cuda_support.REAL, reason="real GPUs are there: it runs on them")


def run(name: str, *arguments: str, **environment: str) -> str:
    """Runs an example; what it prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    return done.stdout


def lacking(*libraries: str) -> None:
    """Skips a test whose libraries are not there."""
    for library in libraries:
        pytest.importorskip(library)


@on_the_cpu
@pytest.mark.parametrize(
    ("name", "size"), [("add.py", "--size=400"), ("integral.py", "--points=12")]
)
def test_kernels_in_the_simulator(name: str, size: str) -> None:
    lacking("numba")
    run(name, "--devices=auto", size, NUMBA_ENABLE_CUDASIM="1")


@on_the_cpu
def test_the_network_on_two_processes() -> None:
    assert "the same in every way" in run("spiking.py", "--cpu", "--neurons=300", "--steps=100")


@on_real_gpus
@pytest.mark.parametrize("name", ["add.py", "integral.py"])
def test_numba_on_every_gpu(name: str) -> None:
    lacking("numba")
    run(name)


@on_real_gpus
def test_one_array_through_three_libraries() -> None:
    lacking("cupy", "torch", "jax")
    run("passing.py", XLA_PYTHON_CLIENT_PREALLOCATE="false")


@on_real_gpus
def test_the_network_on_gpus() -> None:
    lacking("cupy")
    devices = ["cuda:0", "cuda:1"] if cuda_support.real_gpus() > 1 else ["cuda:0", "cuda:0"]
    assert "the same in every way" in run("spiking.py", "--devices", *devices)


def test_each_has_its_job_file() -> None:
    for script in EXAMPLES.glob("*.py"):
        job = script.with_suffix(".sbatch").read_text()
        assert f"/{script.name}" in job
        assert subprocess.run(["bash", "-n"], input=job, text=True).returncode == 0


@on_real_gpus
def test_players_swap_versions_in_under_captured_graphs() -> None:
    lacking("torch")
    assert "versions were swapped in" in run("rl.py", "--versions=20")


@on_real_gpus
def test_a_kernel_that_does_not_end_does_its_jobs() -> None:
    lacking("cupy")
    assert "jobs of the non-stop kernel are right" in run("nonstop.py", "--rounds=200")
