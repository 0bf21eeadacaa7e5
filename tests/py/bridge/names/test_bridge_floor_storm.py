"""Readers that tell each other what they saw of another node's name, while all that serves it is killed, stopped and cut.

Runs in `make test-more`: a minute. With `make soak`, or CABLEWAY_SOAK, an hour and 10,000 kills, stops and cuts.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import bridge_proxy
import bridge_support
import cuda_support
import pytest
from bridge_floor_storm import Storm

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

SOAK = bool(os.environ.get("CABLEWAY_SOAK"))
SECONDS = 1800 if SOAK else 20  # of each of the two storms, at the least
WRONGS = 5000 if SOAK else 20  # the same: what goes wrong
READERS = 4


@pytest.mark.timeout(18000 if SOAK else 300)
@pytest.mark.parametrize("gpus", [False, True])
def test_a_remote_name_never_goes_back(tmp_path: Path, gpus: bool) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    if gpus and not cuda_support.REAL and not cuda_support.DOUBLE.exists():
        pytest.skip("no GPU, and no test double")
    with cuda_support.gpus(tmp_path), bridge_proxy.proxied() as (a, b, proxy):
        devices = ["cuda:0", "cuda:1"] if gpus else []
        storm = Storm(a, b, proxy, tmp_path / "shared", devices, random.Random(seed))
        with storm.readers(READERS):
            storm.run(SECONDS, WRONGS)
        print(dict(storm.wrongs), dict(storm.done))
        assert storm.done["get"] > storm.wrongs.total()
