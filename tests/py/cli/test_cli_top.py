"""`cableway top --once` and `--json`: what it tells is what `ls`, `status` and `metrics` tell, and nobody is asked for it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import COMMAND, NO_BROKER, USAGE, run, run_json, suspend
from conftest import eventually, running_broker
from prometheus_client.openmetrics import parser as openmetrics
from top_terminal import top as screen

import cableway as cw

MANY = 10_000
ONCE_SECONDS = 0.2


def top(*arguments: str, **options: Any) -> Any:
    return run_json("top", *arguments, **options)


def mine(found: Any) -> Any:
    """This process among the clients."""
    (row,) = [row for row in found["clients"] if row["pid"] == os.getpid()]
    return row


def named(found: Any, name: str) -> Any:
    (row,) = [row for row in found["arrays"] if row["name"] == name]
    return row


def test_a_name_says_whether_it_is_kept_or_tied() -> None:
    x = cw.put("top/plain", [1])
    cw.put("top/tied", x, tied=True)
    cw.put("top/kept", x, keep=True)
    lines = run("top", "--once").stdout.splitlines()
    words = [line.split() for line in lines if " top/" in line]
    shown = {row[1]: row[-1] for row in words if row[1].startswith("top/")}
    assert shown == {"top/plain": "no", "top/tied": "tied", "top/kept": "yes"}
    assert named(top(), "top/tied")["keep"] is False
    listed = {row["name"]: (row["keep"], row["tied"]) for row in run_json("ls", "top/")}
    assert listed == {"top/plain": (False, False), "top/tied": (False, True), "top/kept": (True, False)}  # fmt: skip
    assert run_json("stat", "top/tied")["tied"] is True


def test_arrays_are_those_of_ls() -> None:
    kept = [cw.put("top/kept", np.ones((3, 4), "f4"), keep=True), cw.put("top/bytes", b"abc")]
    cw.put("top/tree", {"a": np.ones(4), "b": np.ones(5)}, keep=True).close()
    listed = {row["name"]: row for row in run_json("ls")}
    found = {row["name"]: row for row in top()["arrays"]}
    assert set(found) == set(listed)
    for name, row in listed.items():
        shown = found[name]
        assert (shown["bytes"], shown["device"], shown["dtype"], shown["owner_pid"], shown["keep"]) == (
            row["bytes"], row["device"], row["dtype"], row["owner_pid"], row["keep"],
        ), name  # fmt: skip
        if row["dtype"] != "tree":
            assert shown["shape"] == str(tuple(row["shape"])), name
        assert shown["holders"] == row["holders"], name
        assert abs(shown["age_seconds"] - row["age_seconds"]) < 5
    assert found["top/kept"]["holders"] == 1
    assert found["top/tree"]["holders"] == 0
    assert found["top/tree"]["shape"] == "2 leaves"
    assert len(kept) == 2
    for name in list(found):
        cw.remove(name)


def test_memory_is_that_of_metrics() -> None:
    x, y = cw.put("top/large", np.ones(1 << 20)), cw.empty(4 << 20)
    y.close()
    text = run("metrics").stdout
    samples = [
        sample
        for family in openmetrics.text_string_to_metric_families(text)
        if family.name == "cableway_memory_bytes"
        for sample in family.samples
    ]
    told = {(sample.labels["owner"], sample.labels["state"]): sample.value for sample in samples}
    rows = top()["memory"]
    assert sum(row["live_bytes"] or 0 for row in rows) == told["client", "live"]
    assert sum(row["cached_bytes"] or 0 for row in rows) == told["client", "free"]
    assert sum(row["orphan_bytes"] or 0 for row in rows) == sum(
        value for (owner, _), value in told.items() if owner == "nobody"
    )
    assert sum(row["total_bytes"] for row in rows) == sum(told.values())
    assert {row["device"] for row in rows} == {"cpu"}
    (row,) = [row for row in rows if row["pid"] == os.getpid()]
    assert row["live_bytes"] >= x.nbytes
    assert row["cached_bytes"] >= 32 << 20
    assert row["context_bytes"] is None
    cw.remove("top/large")


def test_memory_of_the_dead_is_an_orphan() -> None:
    x = cw.put("top/here", [1])
    text = 'import cableway as cw; cw.put("top/left", bytes(1 << 20), keep=True)'
    subprocess.run([sys.executable, "-c", text], check=True)
    assert eventually(lambda: any(row["orphan_bytes"] for row in top()["memory"]))
    (row,) = [row for row in top()["memory"] if row["orphan_bytes"]]
    assert row["orphan_bytes"] >= 1 << 20
    assert (row["pid"], row["command"], row["live_bytes"]) == (None, "no process", None)
    cw.remove("top/left")
    assert x.nbytes


def test_a_wait_of_several_calls_is_one_and_the_last_call() -> None:
    """Python waits in calls of 0.5 s, so that signals are served."""
    x = cw.put("top/mine", [1])
    before = run_json("status")["counters"]["waits"]
    text = 'import cableway as cw; cw.put("top/theirs", [1]); cw.wait("top/never", timeout=60)'
    with subprocess.Popen([sys.executable, "-c", text]) as other:

        def row() -> Any:
            return next(iter(row for row in top()["clients"] if row["pid"] == other.pid), None)

        assert eventually(lambda: (row() or {}).get("waiting_for") == "name top/never")
        began = time.monotonic()
        time.sleep(1.8)
        lasted = time.monotonic() - began
        now = row()
        assert now["last_call_age_seconds"] > lasted - 0.1
        assert now["last_call"].startswith("wait")
        assert run_json("status")["counters"]["waits"] == before + 1
        x = cw.put("top/never", [1])
        assert other.wait() == 0
    assert x.nbytes


WAITERS = {
    "an item of queue": "q = cw.Queue(); q.put(1); q.get(); q.get()",
    "room in queue": "q = cw.Queue(maxsize=1); q.put(1); q.put(2)",
    "results of pool": "x = cw.put('top/pool', [1]); cw.Pool(1).apply(time.sleep, (600,))",
    "group": "cw.Group('top-group', size=2, rank=0)",
}


@pytest.mark.parametrize("wait", WAITERS)
def test_what_a_client_waits_for_is_seen_also_if_the_broker_is_stopped(wait: str, broker_folder: Path) -> None:  # fmt: skip
    x = cw.put("top/mine", [1])
    pid = running_broker(broker_folder)
    text = f"""
import time
import cableway as cw
if __name__ == "__main__":
    {WAITERS[wait]}
"""
    with subprocess.Popen([sys.executable, "-c", text], start_new_session=True) as other:
        shown = ""

        def seen() -> bool:
            nonlocal shown
            rows = [row for row in top()["clients"] if row["pid"] == other.pid]
            shown = str(rows[0]["waiting_for"]) if rows else "nobody"
            return shown.startswith(wait + " ")

        try:
            assert eventually(seen), shown
            numbers = {str(row["queue"]) for row in top()["queues"]}
            numbers |= {str(row["pool"]) for row in top()["pools"]}
            assert shown.removeprefix(wait + " ") in {*numbers, "top-group"}
            suspend(pid)
            assert seen(), shown
        finally:
            os.killpg(other.pid, signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)
    assert x.nbytes


def test_clients_are_those_of_status_with_what_they_hold() -> None:
    before = mine(top())
    arrays = [cw.put(f"top/held/{i}", np.ones(1000)) for i in range(3)]
    twice = cw.get("top/held/0")
    found = top()
    assert {row["pid"] for row in found["clients"]} == {
        row["pid"] for row in run_json("status")["clients"]
    }
    row = mine(found)
    assert row["held_arrays"] == before["held_arrays"] + 3
    assert row["held_bytes"] - before["held_bytes"] >= 3 * 8000
    assert row["devices"] == "cpu"
    assert row["user"] == subprocess.run(["id", "-un"], text=True, capture_output=True, check=True).stdout.strip()  # fmt: skip
    assert row["last_call"] == "put top/held/2"
    assert (
        named(found, "top/held/0")["holders"] == 1
    )  # a process holds it once, however often it opened it
    for array in [*arrays, twice]:
        array.close()
    for i in range(3):
        cw.remove(f"top/held/{i}")
    assert mine(top())["held_arrays"] == before["held_arrays"]


def test_what_a_client_waits_for() -> None:
    x = cw.put("top/there", [1])
    assert mine(top())["waiting_for"] is None
    waiter = threading.Thread(target=lambda: cw.get("top/late", timeout=60))
    waiter.start()
    assert eventually(lambda: mine(top())["waiting_for"] == "name top/late")
    y = cw.put("top/late", [1])
    waiter.join()
    assert eventually(lambda: mine(top())["waiting_for"] is None)
    with pytest.raises(TimeoutError):
        cw.get("top/never", timeout=0.05)
    # That it is over, the broker hears in a message of its own.
    assert eventually(lambda: mine(top())["waiting_for"] is None)
    assert (x.nbytes, y.nbytes) != (0, 0)


def _hold(gate: str) -> None:
    with open(gate, "rb") as file:  # opens once the test opens the other end
        file.read()


def test_pools_and_queues(tmp_path: Path) -> None:
    gates = [str(tmp_path / f"gate{i}") for i in range(2)]
    for gate in gates:
        os.mkfifo(gate)
    queue = cw.Queue(maxsize=10)
    for i in range(4):
        queue.put(i)
    assert queue.get() == 0
    with cw.Pool(2) as pool:
        pool.map(abs, range(20), chunksize=1)
        jobs = [pool.apply_async(_hold, (gate,)) for gate in gates]
        assert eventually(lambda: top()["pools"][0]["busy_workers"] == 2)
        found = top("-d", "0.3")
        (row,) = found["pools"]
        assert (row["pid"], row["workers"], row["tasks"]) == (os.getpid(), 2, 20)
        assert row["busy_share"] > 0.8  # of tasks that are not done yet, too
        assert row["tasks_per_second"] == 0
        openers = [threading.Thread(target=lambda gate=gate: open(gate, "wb").close()) for gate in gates]  # type: ignore[misc]  # fmt: skip
        for opener in openers:
            opener.start()
        for job in jobs:
            job.get(60)
        for opener in openers:
            opener.join()
        assert eventually(lambda: top()["pools"][0]["busy_workers"] == 0)
    (row,) = top()["queues"]
    assert (row["pid"], row["items"], row["max_items"], row["put"], row["taken"], row["lost"]) == (
        os.getpid(), 3, 10, 4, 1, 0,
    )  # fmt: skip
    assert row["holders"] >= 1
    del queue
    assert eventually(lambda: not top()["queues"])


def _fail(kind: str, mark: str) -> int:
    if kind == "die" or (kind == "die once" and not os.path.exists(mark)):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "raise":
        raise ValueError(kind)
    return 1


def _both_live(pool: cw.Pool) -> bool:
    """Whether a dead one has its successor: one that is forked just now would keep the pipes of a program that we start."""
    pids = [worker["pid"] for worker in pool.stats()["workers"] if worker["pid"]]
    return sum(Path(f"/proc/{pid}").exists() for pid in pids) == 2


def test_tasks_that_failed_and_that_were_repeated(tmp_path: Path) -> None:
    """By an exception, or with their worker; with `retries` a task is run again before it counts as failed."""
    x = cw.put("top/of-the-parent", [1])  # it is a client
    mark = str(tmp_path / "mark")
    with cw.Pool(2) as pool:
        assert pool.apply(_fail, ("well", mark)) == 1
        for kind, error in [("raise", ValueError), ("die", cw.WorkerDied), ("raise", ValueError)]:
            with pytest.raises(error):
                pool.apply(_fail, (kind, mark))
        assert eventually(lambda: _both_live(pool))
        (row,) = top()["pools"]
        assert (row["failed_tasks"], row["repeated_tasks"]) == (3, 0)
    os.unlink(mark)
    with cw.Pool(2, retries=1) as pool:
        assert pool.apply(_fail, ("die once", mark)) == 1
        assert eventually(lambda: _both_live(pool))
        (row,) = top()["pools"]
        assert (row["failed_tasks"], row["repeated_tasks"], row["tasks"]) == (0, 1, 1)
        text = run("metrics").stdout
        assert f'cableway_pool_repeated_total{{pid="{os.getpid()}",pool="{row["pool"]}"}} 1' in text
        assert f'cableway_pool_failed_total{{pid="{os.getpid()}",pool="{row["pool"]}"}} 0' in text
    assert x.nbytes


def test_rates_are_between_two_looks() -> None:
    queue = cw.Queue()
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.01):
            queue.put(1)
            queue.get()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert top()["queues"][0]["put_per_second"] is None
        (row,) = top("-d", "1")["queues"]
    finally:
        stop.set()
        thread.join()
    assert 1 < row["put_per_second"] <= 110
    assert row["taken_per_second"] == pytest.approx(row["put_per_second"], abs=5)


def test_ten_thousand_arrays_take_less_than_the_promise() -> None:
    """More leases than one table has, too."""
    arrays = [cw.put(f"top/many/{i}", bytes(8)) for i in range(MANY)]
    took: list[float] = []
    text = ""

    def looked() -> bool:
        nonlocal text
        begin = time.monotonic()
        text = run("top", "--once").stdout
        took.append(time.monotonic() - begin)
        return took[-1] < ONCE_SECONDS

    assert eventually(looked), took  # a busy machine stops it, too
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("top", "--once")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime < ONCE_SECONDS
    assert sum(line.split()[1].startswith("top/many/") for line in text.splitlines() if len(line.split()) > 1) == MANY  # fmt: skip
    found = top()
    assert mine(found)["held_arrays"] >= MANY
    assert {row["holders"] for row in found["arrays"] if row["name"].startswith("top/many/")} == {1}
    for i, array in enumerate(arrays):
        cw.remove(f"top/many/{i}")
        array.close()


def test_it_costs_the_broker_nothing_and_works_while_it_is_stopped(broker_folder: Path) -> None:
    x = cw.put("top/stopped", np.ones(10))
    pid = running_broker(broker_folder)
    before = run_json("status")["counters"]
    suspend(pid)
    asker = threading.Thread(target=lambda: cw.put("top/asked", [1]))
    asker.start()
    try:
        assert eventually(lambda: mine(top())["unread_requests"] == 1)
        found = top()
    finally:
        os.kill(pid, signal.SIGCONT)
    asker.join()
    assert found["broker"]["state"] == "stopped"
    assert mine(found)["waiting_for"] == "the broker"
    assert mine(found)["last_call"] == "put top/asked"
    assert named(found, "top/stopped")["holders"] == 1
    assert eventually(lambda: mine(top())["unread_requests"] == 0)
    after = run_json("status")["counters"]
    assert after["clients_accepted"] == before["clients_accepted"]
    assert after["requests"] - before["requests"] <= 2  # this process's own
    assert x.nbytes == 80


HOLDER = """
import cableway as cw
x = cw.put("top/x", bytes(1 << 20))
print("there", flush=True)
input()
"""


@pytest.mark.parametrize("watched", [False, True], ids=["", "while another top is open"])
def test_of_a_broker_that_was_killed_is_seen_who_has_its_memory(
    watched: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(folder))
    empty = top(expect=NO_BROKER)
    assert (empty["broker"], empty["clients"], empty["arrays"]) == (None, [], [])
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", HOLDER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        assert child.stdout
        assert child.stdout.readline() == "there\n"
        assert not [row for row in empty["memory"] if row["pid"] == child.pid]
        if watched:  # it has mapped all that the broker had, too, and keeps it
            other = stack.enter_context(screen(80, 24))
            other.shows(str(child.pid))
        os.kill(running_broker(folder), signal.SIGKILL)
        assert eventually(lambda: subprocess.run([COMMAND, "top", "--once"], capture_output=True, check=False).returncode == NO_BROKER)  # fmt: skip
        found = top(expect=NO_BROKER)["memory"]
        (row,) = [row for row in found if row["pid"] == child.pid]
        assert row["total_bytes"] >= 1 << 20
        assert not watched or not [row for row in found if row["pid"] == other.pid]
        shown = run("top", "--once", expect=NO_BROKER)
        assert "none runs" in shown.stdout
        assert str(child.pid) in shown.stdout
        assert "no broker runs" in shown.stderr
        child.communicate("\n")


def test_names_of_others_harm_no_terminal() -> None:
    text = r"""
import ctypes
ctypes.CDLL(None).prctl(15, b"\x1b[2J\xff\n")
import cableway as cw
x = cw.put("top/\u202egnp.exe/\u0301\u6f22", [1])
print("there", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "there\n"
        shown, found = run("top", "--once").stdout, top()
        child.communicate("\n")
    assert "\\x1b[2J\\xff\\x0a" in shown
    assert not set(shown) & {"\x1b", "\u202e", "\x07"}
    assert "top/\\xe2\\x80\\xaegnp.exe/\u0301\u6f22" in shown
    (row,) = [row for row in found["arrays"] if row["name"].startswith("top/\u202e")]
    assert row["owner_pid"] == child.pid


def test_usage() -> None:
    assert "no terminal" in run("top", expect=USAGE).stderr
    for delay in ("0", "0.05", "-1", "x", "nan"):
        assert "from 0.1 on" in run("top", "--once", "-d", delay, expect=USAGE).stderr
    assert "--once" in run("top", "--help").stdout
