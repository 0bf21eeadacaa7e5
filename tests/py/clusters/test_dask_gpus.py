"""cableway.dask and arrays in GPU memory, on the test double of the driver and stand-ins for CuPy and Numba. Runs in `make test-more`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import cuda_support
import pytest
from conftest import PATH
from dask_runs import limit, run

cuda_support.require()
ROUNDS = 30 if os.environ.get("CABLEWAY_SOAK") else 4
KILLED_SECONDS = 120 + 30 * ROUNDS
pytestmark = [
    limit(),
    pytest.mark.skipif(
        cuda_support.REAL, reason="tools/bench/clusters/bench_dask_gpu.py is for real GPUs"
    ),
]
STANDINS = Path(__file__).resolve().parent / "standins"


def environment(folder, **settings):
    """What finds the stand-ins, and the double with two GPUs."""
    found = cuda_support.double(folder / "card", **{"devices": 2, **settings})
    return {
        **found,
        "CABLEWAY_GPU_CACHE_BYTES": "0",
        "PYTHONPATH": os.pathsep.join([str(STANDINS), *PATH]),
    }


@pytest.mark.parametrize(
    "name", ["by_handle", "unseen", "maker_killed", "broker_killed", "data_of_dask_cuda"]
)
def test_gpu_arrays_go(name, tmp_path):
    run("dask_gpus.py", name, tmp_path, environment(tmp_path))


@pytest.mark.parametrize("name", ["shared", "shared_where_it_lies", "kinds", "data_of_dask_cuda"])
def test_one_array_for_a_gpu(name, tmp_path):
    share = {"DASK_CABLEWAY__GPU_SHARE": "true", "DASK_CABLEWAY__THRESHOLD": "4 KiB"}
    run("dask_gpus.py", name, tmp_path, {**environment(tmp_path), **share})


def test_one_array_for_a_gpu_and_a_broker_that_is_killed(tmp_path):
    share = {"DASK_CABLEWAY__GPU_SHARE": "true"}
    run("dask_gpus.py", "broker_killed", tmp_path, {**environment(tmp_path), **share})


def test_all_kinds_of_gpu_objects_are_as_stock_has_them(tmp_path):
    run("dask_gpus.py", "kinds", tmp_path, {**environment(tmp_path), "DASK_CABLEWAY__THRESHOLD": "4 KiB"})  # fmt: skip


def test_gpu_memory_that_is_full_for_blocks_means_bytes(tmp_path):
    limit = {"CABLEWAY_MAX_GPU_BYTES": str(4 << 20)}
    run("dask_gpus.py", "full", tmp_path, {**environment(tmp_path), **limit})


def test_gpu_memory_that_is_full_for_the_reader_means_bytes(tmp_path):
    run("dask_gpus.py", "full_for_the_reader", tmp_path, environment(tmp_path, memory_mib=20))


@limit(KILLED_SECONDS)
@pytest.mark.parametrize("share", ["false", "true"])
def test_workers_are_killed_in_the_midst(share, tmp_path):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    where = {**environment(tmp_path), "DASK_CABLEWAY__GPU_SHARE": share}
    run("dask_gpus.py", "killed", tmp_path, where, str(ROUNDS), str(seed), seconds=KILLED_SECONDS)  # fmt: skip
