"""Members that are killed at random points: everybody else is told, and goes on.

Runs in `make test-more`. `group_storm.py` says how long that takes.
"""

from __future__ import annotations

import os

import group_storm
import pytest

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")


def test_everybody_is_told_and_goes_on() -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    told, _ = group_storm.storm(100, seed)
    assert len(told) == 100, "all were told of each death, and the last two members went on"
