"""One array on all workers of a SLURM job, which lies once in the memory of each node: sbatch slurm_job.sbatch [--mib N], or, with
bridges between the nodes, sbatch slurm_nodes.sbatch [--mib N]

SLURM starts this program once for each task of the job. The first one becomes the scheduler, the second one goes on with the program
below, all others become workers.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from dask.distributed import Client
from dask_jobqueue.slurm import SLURMRunner

import cableway.dask  # before the cluster: its workers then share arrays


def table(mib: int) -> np.ndarray[Any, Any]:
    """Some numbers."""
    return np.random.default_rng(7).random(mib << 17)


def part_sum(x: np.ndarray[Any, Any], part: int, parts: int) -> float:
    """A share of the work on it."""
    return float(x[part::parts].sum())


def is_shared(x: np.ndarray[Any, Any]) -> bool:
    """Whether the array is a view of shared memory here."""
    return cableway.dask.shared_bytes(x) > 0


def main() -> None:
    """Makes the array on one worker, and computes on all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256)
    mib = parser.parse_args().mib
    with SLURMRunner() as runner, Client(runner) as client:
        client.wait_for_workers(runner.n_workers)
        workers = [*client.scheduler_info(n_workers=-1)["workers"]]
        x = client.submit(table, mib)
        sums = [
            client.submit(part_sum, x, part, len(workers), workers=[worker])
            for part, worker in enumerate(workers)
        ]
        found, expected = sum(client.gather(sums)), float(table(mib).sum())
        assert abs(found - expected) < 1e-6 * expected, (found, expected)
        views = [client.submit(is_shared, x, workers=[worker], pure=False) for worker in workers]
        print(
            f"{len(workers)} workers, sum {found:.1f}, {sum(client.gather(views))} of them see shared memory"
        )


if __name__ == "__main__":
    main()
