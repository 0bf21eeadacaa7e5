"""A node's own bridge: what its broker and its clients have of it when it stands, is slow, or has nothing to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import numpy as np
import pytest
from bridge_support import Node
from conftest import eventually

import causeway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

WAITS = "import causeway as cw; print('asks', flush=True); cw.get('//b/open/never', timeout=None)"


@pytest.fixture
def two() -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other."""
    with bridge_support.net("a", "b") as made:
        made.acquaint("--read", "open/*", "--write", "in/*")
        made.start()
        made.connected()
        yield made.nodes["a"], made.nodes["b"]


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def stop(node: Node) -> int:
    """Stops a node's bridge, as a debugger or a kernel that thrashes would."""
    pid = node.bridge_pid()
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: stopped(pid))
    return pid


def test_a_bridge_that_stands_is_replaced_and_its_requests_are_answered(
    two: tuple[Node, Node],
) -> None:
    a, b = two
    with b.here():
        cw.put("open/x", [1, 2])
    with a.here():
        pid = stop(a)
        assert cw.get("//b/open/x").numpy().tolist() == [1, 2]
        assert f"(pid {pid}) has said nothing" in a.said()
        assert a.bridge_pid() not in (0, pid)


def test_replicas_do_not_outlive_a_bridge_that_stands(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/x", [1])
    with a.here():
        held = cw.get("//b/open/x")
    stop(a)
    with b.here():
        cw.put("open/x", [2])
    with a.here():
        assert eventually(lambda: cw.get("//b/open/x").numpy().tolist() == [2], 30)
        assert held.numpy().tolist() == [1]


def test_ctrl_c_ends_a_get_whose_bridge_stands(two: tuple[Node, Node]) -> None:
    a, _ = two
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], env=a.environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stdout.readline() == "asks\n"
        stop(a)
        assert not eventually(lambda: child.poll() is not None, 0.3)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=30)[1]
        assert "KeyboardInterrupt" in said


def test_a_timeout_bounds_the_way_here_and_nothing_is_lost(two: tuple[Node, Node]) -> None:
    a, b = two
    values = np.arange(100_000)
    with b.here():
        cw.put("open/slow", values)
    pid = stop(b)
    with a.here():
        for seconds in (0.1, 0.3):
            with pytest.raises(cw.Timeout, match="did not come"):
                cw.get("//b/open/slow", timeout=seconds)
        os.kill(pid, signal.SIGCONT)
        assert (cw.get("//b/open/slow", timeout=30).numpy() == values).all()
        with pytest.raises(cw.Timeout):
            cw.get("//b/open/none", timeout=0.1)


def cpu_seconds(pid: int) -> float:
    """What a process has used, all its threads."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("engine", ["io_uring", "epoll"])
def test_an_idle_bridge_takes_no_cpu(engine: str) -> None:
    with bridge_support.net("a", "b") as made:
        made.acquaint("--read", "open/*")
        made.start(**({"CAUSEWAY_BRIDGE_EPOLL": "1"} if engine == "epoll" else {}))
        made.connected()
        a, b = made.nodes.values()
        with b.here():
            cw.put("open/x", [1])
        with a.here():
            held = cw.get("//b/open/x")  # a replica that stands: it is looked after
            pids = [a.bridge_pid(), b.bridge_pid()]
            before = [cpu_seconds(pid) for pid in pids]
            begun = time.monotonic()
            time.sleep(3)  # nothing is waited for: this is the idleness that is measured
            passed = time.monotonic() - begun
            used = [cpu_seconds(pid) - first for pid, first in zip(pids, before, strict=True)]
            assert max(used) < 0.05 * passed  # one that spins takes all of it
            assert held.numpy().tolist() == [1]
