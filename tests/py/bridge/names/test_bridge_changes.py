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

PUTS = 150  # in a row
ROWS = (
    20  # in one of them at least nobody is late; a busy machine may hold a bridge up now and then
)
PACE = 0.01  # seconds from put to put, at least
LATE = 15  # puts; a bridge that nobody wakes sleeps for up to 100, in each row
READER = """
import sys, time, numpy as np, cableway as cw
count = np.memmap(sys.argv[1], "i8", "r+")
while count[0] >= 0:
    now = int(count[0])
    count[2] = max(count[2], now - int(cw.get("//a/x").numpy()[0]))
    count[1] += 1
    time.sleep(0.002)
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
    # How many were put, how often they were read, and how many puts a read was behind.
    count = np.memmap(tmp_path / "count", "i8", "w+", shape=3)
    with contextlib.ExitStack() as stack:
        stack.enter_context(a.here())
        cw.put("x", [0])
        words = b.inside([sys.executable, "-c", READER, str(tmp_path / "count")])
        reader = stack.enter_context(subprocess.Popen(words, env=b.environment))
        stack.callback(reader.kill)

        def put() -> None:
            """The next one, when the last one, or one before it, was read."""
            reads = count[1]
            cw.put("x", [count[0] + 1])
            count[0] += 1
            time.sleep(PACE)
            while count[1] == reads:
                assert reader.poll() is None
                time.sleep(PACE)

        late = []
        while not late or (late[-1] >= LATE and len(late) < ROWS):
            put()
            count[2] = 0
            for _ in range(PUTS):
                put()
            late.append(int(count[2]))
        count[0] = -1
        assert reader.wait(60) == 0
        assert late[-1] < LATE, late
