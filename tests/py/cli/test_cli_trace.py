"""`cableway trace`: what crossed processes is in the file, with times that fit, also when the broker is stopped or dead."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import FAILED, USAGE, run, run_json, suspend
from conftest import eventually, running_broker

import cableway as cw

READER = """
import cableway as cw
x = cw.get("trace/here")
print("there", flush=True)
cw.wait("trace/never", timeout=60)
"""
Event = dict[str, Any]


def traced(*arguments: str) -> Any:
    return json.loads(run("trace", *arguments).stdout)


def slices(found: Any) -> list[Event]:
    return [event for event in found["traceEvents"] if event["ph"] == "X"]


def named(found: Any, name: str, pid: int | None = None) -> list[Event]:
    return [
        event for event in slices(found) if event["name"] == name and pid in (None, event["pid"])
    ]


def check(found: Any) -> None:
    """What the Trace Event Format asks for, and that slices of a track lie within one another or apart."""
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in found["traceEvents"]:
        assert event["ph"] in "MXstf"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert event["args"]["name"]
            continue
        assert event["ts"] >= 0
        assert event["cat"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
    names = {
        (event["pid"], event["tid"])
        for event in found["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert set(tracks) == names
    for events in tracks.values():
        ends: list[float] = []
        before = 0.0
        for event in events:
            assert event["ts"] >= before
            before = event["ts"]
            end = event["ts"] + event["dur"]
            while ends and ends[-1] <= before + 1e-6:
                ends.pop()
            assert not ends or end <= ends[-1] + 1e-6
            ends.append(end)
    check_flows(found)


def check_flows(found: Any) -> None:
    """Each flow begins once, ends once, and its points lie in slices."""
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
            assert any(
                it["ts"] == event["ts"] and it["cat"] == "task"
                for it in slices(found)
                if (it["pid"], it["tid"]) == (event["pid"], event["tid"])
            )
    for events in flows.values():
        phases = sorted(event["ph"] for event in events)
        assert phases in (["f", "s"], ["f", "s", "t"])


def test_puts_first_gets_and_waits_of_names_are_there_and_warm_gets_are_not() -> None:
    x = cw.put("trace/here", np.ones(1 << 20))
    reader = subprocess.Popen([sys.executable, "-c", READER], stdout=subprocess.PIPE, text=True)
    assert reader.stdout
    assert reader.stdout.readline() == "there\n"
    try:
        assert eventually(lambda: bool(named(traced(), "wait trace/never", reader.pid)))
        begun_ns = time.monotonic_ns()
        for _ in range(100):
            cw.get("trace/here").close()
        found = traced()
    finally:
        reader.kill()
        reader.wait()
    check(found)
    (put,) = named(found, "put trace/here", os.getpid())
    assert put["args"] == {"bytes": x.nbytes}
    (get,) = named(found, "get trace/here", reader.pid)
    assert get["ts"] > put["ts"]
    (opened,) = named(found, "open memory", reader.pid)
    assert get["ts"] <= opened["ts"]
    assert opened["ts"] + opened["dur"] <= get["ts"] + get["dur"] + 1e-6
    (wait,) = named(found, "wait trace/never", reader.pid)
    assert wait["args"]["under_way"]
    now_ns, origin_ns = found["otherData"]["now_ns"], found["otherData"]["origin_ns"]
    assert wait["ts"] + wait["dur"] == pytest.approx((now_ns - origin_ns) / 1e3, abs=1e5)
    since = (begun_ns - origin_ns) / 1e3
    assert not [event for event in slices(found) if event["pid"] == os.getpid() and event["ts"] > since]  # fmt: skip


def square(x: float) -> float:
    time.sleep(0.002)
    return x * x


def test_a_task_is_linked_from_its_submission_to_its_result() -> None:
    x = cw.put("trace/client", [1])  # top shows a client's pools
    with cw.Pool(2) as pool:
        assert pool.map(square, range(20), chunksize=1) == [x * x for x in range(20)]
        late = pool.apply_async(time.sleep, (0.5,))
        assert eventually(lambda: bool(named(traced(), "time.sleep")))
        found = traced()
        late.get()
        shown = json.loads(run("top", "--json").stdout)["pools"]
    check(found)
    tasks = [event for event in slices(found) if event["name"].endswith(".square")]
    assert len(tasks) == 20
    assert all(2000 <= task["dur"] < 1e6 for task in tasks)
    assert os.getpid() not in {task["pid"] for task in tasks}
    (pool_id,) = {task["args"]["pool"] for task in tasks}
    assert pool_id in {str(row["pool"]) for row in shown}
    for task in tasks:
        number = task["args"]["task"]
        same = {
            event["name"]: event
            for event in slices(found)
            if event["args"].get("task") == number and event["args"]["pool"] == pool_id
        }
        assert same["submit"]["ts"] <= task["ts"] + 1e-6
        assert task["ts"] + task["dur"] <= same["result"]["ts"] + 1e-6
    (running,) = named(found, "time.sleep")
    assert running["args"]["under_way"]
    flows = [event for event in found["traceEvents"] if event["ph"] in "stf"]
    assert len([event for event in flows if event["ph"] == "t"]) == 20
    assert len([event for event in flows if event["ph"] == "s"]) >= 21
    assert named(found, "wait for results", os.getpid())
    assert named(found, "wait for a task")
    assert x.nbytes


def test_a_queue_that_is_waited_for_and_copies_of_much_memory_are_there() -> None:
    queue: Any = cw.Queue(maxsize=1)
    before = len(named(traced(), "queue is empty: get waits", os.getpid()))

    def put_late() -> None:
        time.sleep(0.05)
        for item in (1, 2, 3):
            queue.put(item)

    late = threading.Thread(target=put_late)
    late.start()
    assert queue.get() == 1
    time.sleep(0.05)
    assert (queue.get(), queue.get()) == (2, 3)
    late.join()
    x = cw.put("trace/x", np.ones(1 << 20))
    y = cw.empty(x.shape, x.dtype)
    y.copy_from(x)
    found = traced()
    check(found)
    waits = named(found, "queue is empty: get waits", os.getpid())
    assert len(waits) > before
    assert max(wait["dur"] for wait in waits) > 20_000
    (shown,) = run_json("top", "--once")["queues"]
    assert waits[-1]["args"]["queue"] == str(shown["queue"])  # by the same number
    assert named(found, "queue is full: put waits", os.getpid())
    copies = named(found, "copy cpu to cpu", os.getpid())
    assert x.nbytes in [copy["args"]["bytes"] for copy in copies]
    assert named(found, "wake others", os.getpid())


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_it_works_while_the_broker_is_stopped_and_when_it_is_dead(how: signal.Signals, broker_folder: Path) -> None:  # fmt: skip
    x = cw.put("trace/broker", [1])
    pid = running_broker(broker_folder)
    if how == signal.SIGSTOP:
        suspend(pid)
    else:
        os.kill(pid, how)
        assert eventually(lambda: not Path(f"/proc/{pid}/root").exists())
    try:
        begun = time.monotonic()
        found = traced()
        assert time.monotonic() - begun < 10
    finally:
        if how == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    check(found)
    assert named(found, "put trace/broker", os.getpid())
    assert x.nbytes


def test_a_file_is_written_and_old_events_are_left_out(tmp_path: Path) -> None:
    x = cw.put("trace/old", [1])
    time.sleep(0.3)
    path = tmp_path / "trace.json"
    done = run("trace", "--output", str(path))
    assert done.stdout == ""
    assert named(json.loads(path.read_text()), "put trace/old", os.getpid())
    found = traced("--seconds", "0.25")
    check(found)
    assert not named(found, "put trace/old")
    done = run("trace", "--output", str(tmp_path / "no" / "trace.json"), expect=FAILED)
    assert "no/trace.json cannot be written: No such file or directory" in done.stderr
    done = run("trace", "--seconds", "soon", expect=USAGE)
    assert "--seconds takes a number of seconds, not 'soon'" in done.stderr
    assert x.nbytes


def test_of_another_broker_nothing_is_shown_and_none_is_no_error(tmp_path: Path) -> None:
    x = cw.put("trace/mine", [1])
    done = run("trace", env={"CABLEWAY_DIR": str(tmp_path)})
    assert not named(json.loads(done.stdout), "put trace/mine")
    assert x.nbytes


POOL_ALONE = """
import time
import cableway as cw
if __name__ == "__main__":
    with cw.Pool(1) as pool:
        pool.apply(time.sleep, (0.01,))
        print("there", flush=True)
        input()
"""


def test_a_pool_that_asked_nobody_is_shown_to_its_own_folder_alone(tmp_path: Path) -> None:
    file = tmp_path / "pool_alone.py"
    file.write_text(POOL_ALONE)
    (tmp_path / "folder").mkdir(mode=0o700)
    elsewhere = {"CABLEWAY_DIR": str(tmp_path / "folder")}
    with subprocess.Popen(
        [sys.executable, str(file)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **elsewhere},
    ) as other:  # fmt: skip
        assert other.stdout
        assert other.stdout.readline() == "there\n"
        theirs = json.loads(run("trace", env=elsewhere).stdout)
        check(theirs)
        assert named(theirs, "submit", other.pid)
        assert named(theirs, "time.sleep")
        pids = {process["pid"] for process in theirs["otherData"]["processes"]}
        ours = {process["pid"] for process in traced()["otherData"]["processes"]}
        assert pids
        assert not pids & ours
        other.communicate("\n")
    assert not any((tmp_path / "folder").iterdir())  # no broker


@pytest.mark.parametrize("wish", ["no", "off", "false", "00", "2"])
def test_a_wish_that_is_neither_0_nor_1_is_refused(wish: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import cableway as cw; cw.put('trace/wish', [1])"],
        env={**os.environ, "CABLEWAY_TRACE": wish}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f'CABLEWAY_TRACE = "{wish}" is neither 0 (no trace) nor 1' in done.stderr


@pytest.mark.parametrize(("wish", "is_there"), [("0", False), ("1", True), ("", True)])
def test_a_process_has_a_trace_unless_it_wants_none(wish: str, is_there: bool) -> None:
    text = "import cableway as cw; x = cw.put('trace/wish', [1]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "CABLEWAY_TRACE": wish},
    ) as other:  # fmt: skip
        assert other.stdout
        assert other.stdout.readline() == "\n"
        assert bool(named(traced(), "put trace/wish", other.pid)) == is_there
        other.communicate("\n")


def test_names_are_made_harmless() -> None:
    name = 'trace/"\\ä\n\x1b[31m'
    x = cw.put("trace/plain", [1])
    text = f"""
import os, cableway as cw
x = cw.put("trace/ä", [1])
y = cw.put({"trace/" + "a" * 150 + "/end"!r}, [1])
print(os.getpid(), flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", text, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert int(other.stdout.readline()) == other.pid
        found = traced()
        check(found)
        assert named(found, "put trace/ä", other.pid)
        (long,) = [event for event in slices(found) if event["name"].endswith("aaa/end")]
        assert long["name"].startswith("put ...aaa")
        (process,) = [it for it in found["otherData"]["processes"] if it["pid"] == other.pid]
        assert "\x1b" not in process["command"]
        other.communicate("\n")
    assert x.nbytes


HOSTILE = """
import fcntl, mmap, os, random, sys
import cableway as cw
x = cw.put("trace/hostile", [1])
def link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # listdir's own
        return ""
(mine,) = [fd for fd in os.listdir("/proc/self/fd") if link(fd).startswith("/memfd:cw-trace ")]
size = os.fstat(int(mine)).st_size
memory = mmap.mmap(int(mine), size)
chance = random.Random(int(sys.argv[1]))
kept = 112  # struct cw_trace up to `lost`: else it would be passed over whole
memory[kept:] = chance.randbytes(size - kept)
for at in range(4096, size, 64):  # marks that a reader believes, of any number
    memory[at:at + 8] = (chance.randrange(1 << 20) << 2 | chance.choice((2, 3))).to_bytes(8, "little")
for at in range(size - 2 * 1024 * 64, size, 64):
    place = (at - (size - 2 * 1024 * 64)) // 64 % 1024
    memory[at:at + 8] = (place << 2 | 2).to_bytes(8, "little")
    if chance.random() < 0.9:  # what may be an event, with all else by chance
        memory[at + 8:at + 16] = chance.randrange(1, 1 << 40).to_bytes(8, "little")
        memory[at + 16:at + 24] = chance.randrange(1 << 40).to_bytes(8, "little")
        memory[at + 24] = chance.randrange(18)
        memory[at + 28:at + 32] = chance.randrange(1, 4).to_bytes(4, "little")
        memory[at + 56:at + 64] = chance.randrange(100).to_bytes(8, "little")
for at in (128, 136):  # `next`: as many as there are places
    memory[at:at + 8] = (1024).to_bytes(8, "little")
print("there", flush=True)
input()
"""


@pytest.mark.parametrize("seed", range(4))
def test_what_a_hostile_process_writes_leads_nowhere(seed: int) -> None:
    x = cw.put("trace/honest", [1])
    with subprocess.Popen(
        [sys.executable, "-c", HOSTILE, str(seed)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout
        assert other.stdout.readline() == "there\n"
        found = traced()
        assert named(found, "put trace/honest", os.getpid())
        (told,) = [it for it in found["otherData"]["processes"] if it["pid"] == other.pid]
        assert told["broken"] > 10
        assert told["events"] > 100
        check(found)
        other.kill()
    assert x.nbytes


@pytest.mark.parametrize("size", [0, 100, 4096, 1 << 20])
def test_a_file_that_only_has_the_name_of_a_trace_is_passed_over(size: int) -> None:
    x = cw.put("trace/honest", [1])
    fd = os.memfd_create("cw-trace", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        if size:
            with mmap.mmap(fd, size) as memory:
                memory[:] = random.Random(1).randbytes(size)
        found = traced()
    finally:
        os.close(fd)
    check(found)
    assert named(found, "put trace/honest", os.getpid())
    assert x.nbytes


MEMBER = """
import sys, time
import cableway as cw
rank = int(sys.argv[1])
with cw.Group("trace/group", size=2, rank=rank) as g:
    g.barrier()
    print("there", flush=True)
    if rank == 0:
        g.barrier()
    else:
        input()
        g.barrier()
    input()
"""


def test_a_member_that_others_wait_for_is_the_one_without_a_wait() -> None:
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(rank)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        for member in members:
            assert member.stdout
            assert member.stdout.readline() == "there\n"

        def waiting() -> list[int]:
            return [
                event["pid"]
                for event in named(traced(), "barrier trace/group")
                if event["args"].get("under_way")
            ]

        assert eventually(lambda: waiting() == [members[0].pid])
        check(traced())
        members[1].communicate("\n\n")
        members[0].communicate("\n")
    finally:
        for member in members:
            member.kill()
            member.wait()
