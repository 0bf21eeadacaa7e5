"""`cableway trace`: a wait is one span, of however many calls and sleeps it is made, and takes no other events' places."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from cli_support import suspend
from conftest import eventually
from test_cli_trace import Event, check, named, slices, traced

import cableway as cw

WAITER = """
import cableway as cw
x = cw.put("trace/first", [1])
print("there", flush=True)
try:
    cw.wait("trace/later", timeout=60)
    print("came", flush=True)
    cw.wait("trace/never", timeout=0.8)
except TimeoutError:
    print("over", flush=True)
y = cw.put("trace/last", [1])
input()
"""


def test_a_wait_of_several_calls_is_one_also_if_its_process_was_stopped_between_them() -> None:
    x = cw.put("trace/mine", [1])
    with subprocess.Popen(
        [sys.executable, "-c", WAITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "there\n"
        begun = time.monotonic()
        time.sleep(0.7)  # longer than one call
        suspend(other.pid)
        time.sleep(1)
        os.kill(other.pid, signal.SIGCONT)
        time.sleep(0.7)
        found = traced("--seconds", "0.1")
        lasted = time.monotonic() - begun
        check(found)
        (wait,) = named(found, "wait trace/later", other.pid)
        assert wait["args"] == {"under_way": True}
        assert lasted - 1 < wait["dur"] / 1e6 < lasted + 1
        x = cw.put("trace/later", [1])
        assert other.stdout.readline() == "came\n"
        assert other.stdout.readline() == "over\n"
        assert eventually(lambda: bool(named(traced(), "put trace/last", other.pid)))
        found = traced()
        check(found)
        (wait,) = named(found, "wait trace/later", other.pid)
        assert wait["args"] == {}  # nothing failed
        assert 2 < wait["dur"] / 1e6 < lasted + 5
        (wait,) = named(found, "wait trace/never", other.pid)
        assert wait["args"] == {"failed": True}
        assert 0.7 < wait["dur"] / 1e6 < 5
        assert named(found, "put trace/first", other.pid)
        other.communicate("\n")
    assert x.nbytes


INTERRUPTED = """
import signal
import cableway as cw
def stop(*_):
    raise InterruptedError
signal.signal(signal.SIGUSR1, stop)
try:
    print("there", flush=True)
    cw.wait("trace/never", timeout=60)
except InterruptedError:
    print("interrupted", flush=True)
input()
x = cw.put("trace/last", [1])
print("put", flush=True)
input()
"""


def test_a_wait_that_a_handler_ended_has_ended_then() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout
        assert other.stdin
        assert other.stdout.readline() == "there\n"
        assert eventually(lambda: bool(named(traced(), "wait trace/never", other.pid)))
        time.sleep(0.7)
        os.kill(other.pid, signal.SIGUSR1)
        assert other.stdout.readline() == "interrupted\n"
        time.sleep(1)
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "put\n"
        found = traced()
        check(found)
        (wait,) = named(found, "wait trace/never", other.pid)
        assert wait["args"] == {"interrupted": True}
        (put,) = named(found, "put trace/last", other.pid)
        assert wait["ts"] + wait["dur"] < put["ts"] - 0.9e6
        other.communicate("\n")


RECEIVER = """
import sys, time
import cableway as cw
rank = int(sys.argv[1])
with cw.Group("trace/receive", size=2, rank=rank) as g:
    g.barrier()
    if rank == 0:
        print("there", flush=True)
        g.recv(1)
        print("received", flush=True)
    else:
        input()
        g.send(b"x", 0)
        print("sent", flush=True)
    input()
"""


def test_a_member_that_receives_for_long_keeps_what_it_did_before() -> None:
    members = [
        subprocess.Popen(
            [sys.executable, "-c", RECEIVER, str(rank)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip

    def of_the_first(found: Any) -> list[Event]:
        return [event for event in slices(found) if event["pid"] == members[0].pid]

    try:
        receiver, sender = members
        assert receiver.stdout
        assert sender.stdout
        assert sender.stdin
        assert receiver.stdout.readline() == "there\n"
        assert eventually(lambda: bool(named(traced(), "receive trace/receive", receiver.pid)))
        before = of_the_first(traced())
        time.sleep(1)
        found = traced()
        check(found)
        (wait,) = named(found, "receive trace/receive", receiver.pid)
        assert wait["args"] == {"under_way": True}
        assert len(of_the_first(found)) - len(before) <= 2
        sender.stdin.write("\n")
        sender.stdin.flush()
        assert receiver.stdout.readline() == "received\n"
        (wait,) = named(traced(), "receive trace/receive", receiver.pid)
        assert wait["args"] == {}
        assert wait["dur"] > 1e6
    finally:
        for member in members:
            member.kill()
            member.wait()


PARENT = """
import sys, time
import cableway as cw
if __name__ == "__main__":
    with cw.Pool(1) as pool:
        pool.apply(abs, (1,))
        print("there", flush=True)
        if sys.argv[1] == "apply":
            pool.apply(time.sleep, (2.2,))
        else:
            result = pool.map_async(time.sleep, [2.2])
            result.wait(30)
        print("done", flush=True)
        input()
"""


@pytest.mark.parametrize("call", ["apply", "wait"])
def test_the_wait_for_a_pools_results_is_one(call: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, call],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as parent:  # fmt: skip
        assert parent.stdout
        assert parent.stdout.readline() == "there\n"

        def waits() -> list[Event]:
            found = traced()
            check(found)
            return [e for e in named(found, "wait for results", parent.pid) if e["dur"] > 0.3e6]

        assert eventually(lambda: bool(waits()) and waits()[0]["dur"] > 1.3e6)
        (wait,) = waits()
        assert wait["args"]["under_way"]
        assert parent.stdout.readline() == "done\n"
        (wait,) = waits()
        assert "under_way" not in wait["args"]
        assert "failed" not in wait["args"]
        assert 2 < wait["dur"] / 1e6 < 12
        parent.communicate("\n")
