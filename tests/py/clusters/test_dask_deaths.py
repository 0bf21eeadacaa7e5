"""cableway.dask when workers or the broker are killed, with a seed that is printed. Runs in `make test-more`; `make soak`: often."""

from __future__ import annotations

import os
import random

import pytest
from dask_runs import limit, run

SOAK = bool(os.environ.get("CABLEWAY_SOAK"))


def seconds(rounds):
    return 60 + 30 * rounds


@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        pytest.param(name, rounds, marks=limit(seconds(rounds)))
        for name, rounds in (
            ("workers_killed", 400 if SOAK else 8),
            ("broker_killed", 50 if SOAK else 5),
        )
    ],
)
def test_results_are_right_though(name, rounds, tmp_path):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    run("dask_faults.py", name, tmp_path, {}, str(rounds), str(seed), seconds=seconds(rounds))
