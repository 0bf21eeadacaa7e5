"""What a node reads of another is what the name meant there a moment ago, also while it changes on and on."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import numpy as np
import pytest
from bridge_support import Node

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

PUTS = 600
PACE = 0.01  # seconds from put to put
LATE = 15  # puts; a bridge that nobody wakes sleeps for up to 100
READER = """
import sys, time, numpy as np, cableway as cw
count = np.memmap(sys.argv[1], "i8", "r+")
late = 0
while (now := int(count[0])) >= 0:
    late = max(late, now - int(cw.get("//a/x").numpy()[0]))
    count[1] = 1
    time.sleep(0.002)
print(late)
"""


@pytest.fixture
def two() -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other."""
    with bridge_support.acquainted("--read", "*", "--write", "*") as made:
        yield made


def test_who_reads_a_name_that_changes_on_and_on_is_never_far_behind(
    two: tuple[Node, Node], tmp_path: Path
) -> None:
    a, b = two
    count = np.memmap(tmp_path / "count", "i8", "w+", shape=2)  # how many were put; who reads runs
    with contextlib.ExitStack() as stack:
        stack.enter_context(a.here())
        cw.put("x", [0])
        words = b.inside([sys.executable, "-c", READER, str(tmp_path / "count")])
        reader = stack.enter_context(
            subprocess.Popen(words, env=b.environment, stdout=subprocess.PIPE, text=True)
        )
        stack.callback(reader.kill)
        while not count[1]:
            assert reader.poll() is None
            time.sleep(PACE)
        for i in range(1, PUTS + 1):
            cw.put("x", [i])
            count[0] = i
            time.sleep(PACE)
        count[0] = -1
        said, _ = reader.communicate(timeout=60)
        assert int(said) < LATE
