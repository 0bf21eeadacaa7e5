"""The sum of a large matrix's columns on several nodes: each makes its part, gets the others', and checks the whole.

Run in a job of SLURM, on each node once (two_nodes.sbatch), while cablewayd listens there and all are connected.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

import cableway as cw


def part(which: int, rows: int) -> np.ndarray:
    """What a node makes: here random numbers, by its place in the job."""
    return np.random.default_rng(which).random((rows, 100))


def main() -> int:
    """Returns the exit code: 0 if the sum is right."""
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=1_000_000, help="of each node")
    rows = options.parse_args().rows

    me = os.environ["SLURMD_NODENAME"]
    told = subprocess.run(["cableway", "peers", "--json"], check=True, capture_output=True)
    nodes = sorted([me, *(peer["name"] for peer in json.loads(told.stdout))])

    cw.put("shared/part", part(nodes.index(me), rows), keep=True)
    total = np.zeros(100)
    begun, count = time.perf_counter(), 0
    for node in nodes:
        name = "shared/part" if node == me else f"//{node}/shared/part"
        there = cw.get(name, timeout=60)  # waits until it is put; one transfer, whole and checked
        count += there.nbytes if node != me else 0
        total += there.numpy().sum(axis=0)
    seconds = time.perf_counter() - begun
    right = np.allclose(total, sum(part(which, rows).sum(axis=0) for which in range(len(nodes))))
    print(f"{me}: {count / 1e6:.0f} MB from {len(nodes) - 1} other nodes, with sums {seconds:.2f} s: "
          f"{'right' if right else 'WRONG'}", flush=True)  # fmt: skip

    # Nobody ends before all have what they need: a node's arrays go with its broker.
    for node in nodes:
        if node != me:
            cw.put(f"//{node}/inbox/done/{me}", [right])
    for node in nodes:
        if node != me:
            right = bool(cw.get(f"inbox/done/{node}", timeout=60).numpy()[0]) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
