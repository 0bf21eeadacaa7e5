"""Nothing of a group is left when all its members are gone, whoever of a job was killed and although others are connected."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import COMMAND, run_json, state
from conftest import eventually
from group_support import group
from processes import stat_fields

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
ENDS_WITHIN_S = 1.0  # README says 0.1, of a machine that is not busy with other tests

MEMBER = """
import os, sys, time
import cableway as cw
with cw.Group() as g:
    g.allgather(g.rank)
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(1000)
"""


def left() -> list[str]:
    return list(cw.names(".group/"))


def ends_soon(pids: list[int], bytes_before: int) -> None:
    """The name and the memory of a group go with these processes."""
    assert eventually(lambda: all(state(pid) in "XZ" for pid in pids), 20)
    ended = time.monotonic()
    assert eventually(lambda: not left(), 20), left()
    assert eventually(lambda: run_json("status")["gauges"]["bytes"] <= bytes_before, 20)
    assert time.monotonic() - ended < ENDS_WITHIN_S


@pytest.mark.parametrize("killed", ["front", "keeper", "ranks", "all", "all but a rank first"])
def test_a_killed_job_leaves_no_group(killed: str, tmp_path: Path) -> None:
    x = cw.put("another/client", np.arange(10))
    before = run_json("status")["gauges"]["bytes"]
    (tmp_path / "member.py").write_text(MEMBER)
    pids_file = tmp_path / "pids"
    words = [COMMAND, "run", "-n", "2", str(tmp_path / "member.py"), str(pids_file)]
    env = {**os.environ, "CABLEWAY_PYTHON": sys.executable}
    with subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL) as process:
        assert eventually(
            lambda: pids_file.exists() and len(pids_file.read_text().split()) == 2, 60
        )
        ranks = [int(pid) for pid in pids_file.read_text().split()]
        keeper = int(stat_fields(ranks[0])[1])
        assert len(left()) == 1
        victims = {
            "front": [process.pid],
            "keeper": [keeper],
            "ranks": ranks,
            "all": [process.pid, keeper, *ranks],
            "all but a rank first": [ranks[0], keeper, process.pid, ranks[1]],
        }[killed]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # the others end it when one has failed
                os.kill(pid, signal.SIGKILL)
        ends_soon(ranks, before)
        process.wait(timeout=60)
    assert x.nbytes == 80


def sits(g: cw.Group, pipe: Any) -> None:
    pipe.send("there")
    pipe.recv()


def test_a_group_that_is_killed_one_by_one_leaves_nothing() -> None:
    x = cw.put("another/client", np.arange(10))
    before = run_json("status")["gauges"]["bytes"]
    with group("one-by-one", 3, sits, timeout=None) as started:
        for member in started:
            assert member.next() == "there"
        for member in started:
            assert left() == [".group/one-by-one"]
            member.kill()
        ends_soon([member.pid for member in started], before)
    assert x.nbytes == 80


def test_who_comes_in_vain_leaves_nothing() -> None:
    cw.names()  # the broker has begun: the group's time is for its members
    with pytest.raises(TimeoutError, match="missing: rank"):
        cw.Group("alone", 2, timeout=0.5)
    assert eventually(lambda: not left(), 20), left()


def test_while_somebody_has_the_page_the_name_stays() -> None:
    with group("stays", 2, sits, timeout=None) as started:
        for member in started:
            assert member.next() == "there"
        page = cw.get(".group/stays")
        for member in started:
            member.kill()
        assert eventually(lambda: all(state(member.pid) in "XZ" for member in started), 20)
    time.sleep(0.3)  # longer than it takes to end it
    assert left() == [".group/stays"]
    with group("stays", 2, sits, timeout=None) as started:  # a next group uses it again
        for member in started:
            assert member.next() == "there"
            member.kill()
    assert left() == [".group/stays"]
    del page
    assert eventually(lambda: not left(), 20), left()
