"""Old versions that processes still have open: who has them, and a put that would make too many of them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from cli_support import USAGE, run, run_json
from tree_support import state

import cableway as cw

READER = """
import sys, cableway as cw
tree = cw.get("m")
print(tree.version, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def nothing_is_held() -> None:
    """A caught exception's traceback has the trees of the test before."""
    gc.collect()


def reader() -> subprocess.Popen[str]:
    """A process that has the version open that "m" means now."""
    child = subprocess.Popen(
        [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline()
    return child


def ended(child: subprocess.Popen[str]) -> None:
    child.communicate()
    assert child.returncode == 0


def test_ls_old_lists_versions_that_are_held_and_by_whom() -> None:
    first = cw.put("m", state(1), keep=True)
    cw.put("other", state(1))
    cw.put("array", np.ones(3))
    assert run_json("ls", "--old") == []
    child = reader()
    second = cw.put("m", state(2), keep=True)
    third = cw.put("m", state(3), keep=True)
    rows = run_json("ls", "--old")
    assert [(row["name"], row["version"], row["bytes"]) for row in rows] == [
        ("m", first.version, first.nbytes), ("m", second.version, second.nbytes),
    ]  # fmt: skip
    assert sorted(rows[0]["pids"]) == sorted([os.getpid(), child.pid]) and rows[0]["holders"] == 2
    assert rows[1]["pids"] == [os.getpid()] and 0 <= rows[1]["age_seconds"] < 60
    first.close()
    second.close()
    title, line = run("ls", "--old", "m").stdout.splitlines()
    assert title.split() == ["NAME", "VERSION", "BYTES", "HELD", "BY", "AGE"]
    assert line.split()[:2] == ["m", str(rows[0]["version"])] and str(child.pid) in line
    assert run("ls", "--old", "x").stdout == ""
    child.kill()
    child.wait()
    assert run_json("ls", "--old") == []
    cw.remove("m")
    assert [row["version"] for row in run_json("ls", "--old")] == [
        third.version
    ]  # no name means it


def test_ls_old_refuses_what_it_does_not_know() -> None:
    assert "leave --all out" in run("ls", "--old", "--all", expect=USAGE).stderr
    assert "versions of this node" in run("ls", "--old", "//b/m", expect=USAGE).stderr


def test_a_put_that_would_make_too_many_old_versions_is_refused() -> None:
    cw.put("m", state(1), keep=True)
    child = reader()
    cw.put("m", state(2), max_old=1, keep=True).close()  # the reader's is the one old version
    cw.put("m", state(3), max_old=1, keep=True).close()  # nobody has 2 open
    held = cw.get("m")
    with pytest.raises(cw.LimitExceeded, match="max_old=1") as caught:
        cw.put("m", state(4), max_old=1)
    told = str(caught.value)
    assert str(child.pid) in told and str(os.getpid()) in told and str(held.version) in told
    assert cw.get("m").version == held.version  # nothing has changed
    begun = time.monotonic()
    with pytest.raises(cw.LimitExceeded):
        cw.put("m", state(4), max_old=1, timeout=0.1)
    assert time.monotonic() - begun >= 0.1
    assert cw.put("m", state(4), max_old=2, keep=True).version > held.version
    ended(child)


def test_a_put_waits_until_old_versions_are_closed() -> None:
    cw.put("m", state(1), keep=True).close()
    child = reader()
    threading.Timer(0.2, child.kill).start()
    assert cw.put("m", state(2), max_old=0, timeout=30)["norm.bias"].numpy()[1] == 2
    child.wait()


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [("1", TypeError, "max_old must be a whole number"), (-1, ValueError, "max_old must be 0 or more")],
)  # fmt: skip
def test_max_old_is_a_number(value: object, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        cw.put("m", state(), max_old=value)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="only for trees"):
        cw.put("x", np.ones(3), max_old=1)
    with pytest.raises(TypeError, match="timeout must be a number"):
        cw.put("m", state(), max_old=1, timeout="x")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [
        ("a", TypeError, "timeout must be a number"), (-5, ValueError, "timeout is 0 or more"), (float("nan"), ValueError, "not a number"),
        (3, ValueError, "with max_old="), (None, ValueError, "with max_old="),
    ],
)  # fmt: skip
def test_a_timeout_without_max_old_is_refused(value: Any, kind: type[Exception], told: str) -> None:
    for what in (state(), np.ones(3)):
        with pytest.raises(kind, match=told):
            cw.put("m", what, timeout=value)
    with pytest.raises(ValueError, match="timeout is 0 or more"):
        cw.put("m", state(), max_old=1, timeout=-0.5)
    assert cw.names() == []
