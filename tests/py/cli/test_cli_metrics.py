"""`cableway metrics`: what Prometheus's own parsers read is what the broker has, and nobody is asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import FAILED, NO_BROKER, run, run_json, suspend
from conftest import eventually, running_broker
from prometheus_client import parser as text_format
from prometheus_client.openmetrics import parser as openmetrics

import cableway as cw

BYTES_OF_ROUTES = ("same_gpu", "peer", "to_gpu", "from_gpu", "staged")


def families() -> dict[str, Any]:
    """What the command prints, read by both formats' parsers; family by name."""
    text = run("metrics").stdout
    # The format in which node_exporter takes files: it knows fewer types, and refuses a file for one that it does not know.
    for family in text_format.text_string_to_metric_families(text):
        assert family.type in ("gauge", "counter", "unknown")
        assert not any(sample.timestamp for sample in family.samples)
    return {family.name: family for family in openmetrics.text_string_to_metric_families(text)}


def value(found: dict[str, Any], name: str, **labels: str) -> float:
    """The one sample of a family that has these labels."""
    (sample,) = [
        sample
        for sample in found[name].samples
        if all(sample.labels.get(label) == text for label, text in labels.items())
    ]
    return float(sample.value)


def test_every_figure_of_status_is_there_with_type_unit_and_help() -> None:
    x = cw.put("metrics/x", np.ones(1000))
    found, status = families(), run_json("status")
    for name, figure in status["gauges"].items():
        family = found["cableway_slab_bytes" if name == "bytes" else f"cableway_{name}"]
        assert (family.type, family.samples[0].value) == ("gauge", figure), name
    for name, figure in status["counters"].items():
        route = name.removeprefix("bytes_")
        if route != name:
            assert route in BYTES_OF_ROUTES
            assert value(found, "cableway_copied_bytes", route=route) == figure
            continue
        family = found[f"cableway_{name}"]
        assert family.type == "counter"
        assert [(sample.name, sample.value) for sample in family.samples] == [
            (f"cableway_{name}_total", figure)
        ], name
    for name, figure in status["limits"].items():
        assert value(found, f"cableway_limit_{name}") == (
            float("inf") if figure is None else figure
        )
    for family in found.values():
        assert family.documentation
        assert family.name.startswith("cableway_")
        for unit in ("bytes", "seconds"):
            assert (family.unit == unit) == family.name.endswith(f"_{unit}"), family.name
    started = status["broker"]["started_ns"] * 1e-9
    assert value(found, "cableway_start_time_seconds") == pytest.approx(started, abs=1e-3)
    assert value(found, "cableway_build", version=cw.__version__) == 1
    assert x.nbytes == 8000


def test_clients_are_told_one_by_one_and_by_role() -> None:
    x = cw.put("metrics/mine", np.ones(1000))
    found, rows = families(), run_json("status")["clients"]
    (mine,) = [row for row in rows if row["pid"] == os.getpid()]
    labels = {"pid": str(os.getpid()), "session": str(mine["session"]), "role": "client"}
    for family, field in [("slabs", "slabs"), ("slab_bytes", "bytes"), ("gpu_bytes", "gpu_bytes"),
                          ("transits", "transits"), ("waiting", "waits"), ("requests", "requests")]:  # fmt: skip
        assert value(found, f"cableway_client_{family}", **labels) == mine[field], family
    assert value(found, "cableway_connected", role="client") == len(rows)
    assert value(found, "cableway_connected", role="bridge") == 0
    assert x.nbytes == 8000


def test_a_process_may_have_any_name() -> None:
    """It chooses the name itself, and so what stands in the labels."""
    name = b'a"b\\c\nd'
    text = f"""
import ctypes
ctypes.CDLL(None).prctl(15, {name!r})
import cableway as cw
x = cw.put("metrics/odd", [1])
print("there", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "there\n"
        row = [
            sample.labels
            for sample in families()["cableway_client_slabs"].samples
            if sample.labels["pid"] == str(child.pid)
        ]
        child.communicate("\n")
    assert [labels["command"] for labels in row] == ['a"b\\c\\x0ad']


def test_memory_is_told_by_device_owner_and_state() -> None:
    x = cw.put("metrics/large", np.ones(1 << 20))
    y = cw.empty(4 << 20)
    y.close()
    found = families()
    live, free = (
        value(found, "cableway_memory_bytes", device="cpu", owner="client", state=state)
        for state in ("live", "free")
    )
    assert live >= x.nbytes
    assert free >= 32 << 20
    assert live + free <= run_json("status")["gauges"]["bytes"]
    # No other owner, state or device than the four pairs of this one.
    assert sum(sample.value for sample in found["cableway_memory_bytes"].samples) == live + free + sum(
        value(found, "cableway_memory_bytes", owner="nobody", state=state) for state in ("live", "free")
    )  # fmt: skip
    cw.remove("metrics/large")


def _hold(gate: str) -> None:
    with open(gate, "rb") as file:  # opens once the test opens the other end
        file.read()


def test_pools_show_their_workers_tasks_and_queue(tmp_path: Path) -> None:
    x = cw.put("metrics/of-the-parent", [1])  # it is a client
    with cw.Pool(2) as pool:
        assert pool.map(abs, range(20), chunksize=1) == list(range(20))
        labels = {"pid": str(os.getpid())}
        found = families()
        assert value(found, "cableway_pool_tasks", **labels) == 20
        assert value(found, "cableway_pool_chunks", **labels) == 20
        assert value(found, "cableway_pool_workers", **labels) == 2
        assert value(found, "cableway_pool_queued_chunks", **labels) == 0
        assert value(found, "cableway_pool_busy_seconds", **labels) > 0
        assert value(found, "cableway_pool_in_bytes", **labels) > 0
        gates = [str(tmp_path / f"gate{i}") for i in range(5)]
        for gate in gates:
            os.mkfifo(gate)
        jobs = [pool.apply_async(_hold, (gate,)) for gate in gates]
        # Two run; what a worker takes ahead is its own business.
        assert eventually(lambda: value(families(), "cableway_pool_queued_chunks", **labels) >= 1)
        openers = [threading.Thread(target=lambda gate=gate: open(gate, "wb").close()) for gate in gates]  # type: ignore[misc]  # fmt: skip
        for opener in openers:
            opener.start()
        for job in jobs:
            job.get(60)
        for opener in openers:
            opener.join()
        assert eventually(lambda: value(families(), "cableway_pool_tasks", **labels) == 25)
        assert value(families(), "cableway_pool_queued_chunks", **labels) == 0
    assert not families()["cableway_pool_tasks"].samples
    assert x.nbytes == 8


def _first(x: Any) -> int:
    return int(np.ravel(x)[0])


def _fails_at_first_three(x: Any) -> int:
    if _first(x) == 3:
        raise ValueError
    return _first(x)


@pytest.mark.parametrize("large", [False, True])
def test_tasks_are_counted_and_not_the_chunks_in_which_they_travel(large: bool) -> None:
    """Plain ones in C, and those with arrays in Python."""
    held = cw.put("metrics/of-the-parent", [1])
    labels = {"pid": str(os.getpid())}

    def item(i: int) -> Any:
        return np.full(20_000, i, "i4") if large else i

    def counted(tasks: int, chunks: int) -> bool:
        """Both ways; a worker counts what it has answered already."""
        found, stats = families(), pool.stats()
        told = [value(found, f"cableway_pool_{name}", **labels) for name in ("tasks", "chunks")]
        return told == [stats["tasks"], stats["chunks"]] == [tasks, chunks]

    with cw.Pool(2) as pool:
        assert pool.map(_first, [item(i) for i in range(1000)], chunksize=100) == list(range(1000))
        assert eventually(lambda: counted(1000, 10))
        assert pool.starmap(pow, [(i, 2) for i in range(30)], chunksize=10)[5] == 25
        assert pool.apply(_first, (item(7),)) == 7
        assert eventually(lambda: counted(1031, 14))
        with pytest.raises(ValueError):  # the fourth of five: the last is not called  # noqa: PT011
            pool.map(_fails_at_first_three, [item(i) for i in range(5)], chunksize=5)
        assert eventually(lambda: counted(1035, 15))
    # A worker goes on with the figures of the one before it. Spawned: a forked one would have the pipe of a command that runs then.
    with cw.Pool(1, maxtasksperchild=1, context="spawn") as pool:
        assert pool.map(_first, [item(i) for i in range(6)], chunksize=2) == list(range(6))
        assert eventually(lambda: counted(6, 3))
    assert held.nbytes == 8


def test_it_costs_the_broker_nothing_and_works_while_it_is_stopped(broker_folder: Path) -> None:
    x = cw.put("metrics/kept", np.ones(10))
    pid = running_broker(broker_folder)
    before = run_json("status")
    suspend(pid)
    try:
        for _ in range(20):
            found = families()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert value(found, "cableway_up") == 0
    assert value(found, "cableway_broker_state", state="stopped") == 1
    assert value(found, "cableway_names") == before["gauges"]["names"]
    assert eventually(lambda: value(families(), "cableway_up") == 1)
    after = run_json("status")
    for name in ("requests", "clients_accepted"):
        assert after["counters"][name] == before["counters"][name], name
    assert x.nbytes == 80


def test_sums_of_host_memory_differ_by_the_tables_alone(broker_folder: Path) -> None:
    """What `status` and slab_bytes count is what `top` and memory_bytes do, and the block tables, to the byte."""
    arrays = [cw.put("sum/x", np.ones(1 << 20)), cw.put("sum/y", np.ones(3 << 20))]
    folder = Path(f"/proc/{running_broker(broker_folder)}/fd")
    tables = {
        fd.stat().st_ino: fd.stat().st_size
        for fd in folder.iterdir()
        if os.readlink(fd).startswith("/memfd:cw-blocks ")
    }
    held = run_json("status")["gauges"]["bytes"]
    found = families()
    shown = sum(
        row["total_bytes"] for row in run_json("top", "--once")["memory"] if row["device"] == "cpu"
    )
    assert value(found, "cableway_slab_bytes") == held
    assert sum(sample.value for sample in found["cableway_memory_bytes"].samples) == shown
    assert held == shown + sum(tables.values())
    assert shown >= sum(x.nbytes for x in arrays)


def test_a_broker_that_was_killed_or_never_ran_is_not_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It exits with 0: a collector that fails would leave the last figures standing."""
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(folder))
    run("status", expect=NO_BROKER)
    assert {name: family.samples[0].value for name, family in families().items()} == {"cableway_up": 0}  # fmt: skip
    np.save(tmp_path / "x.npy", np.ones(3))
    run("put", "x", str(tmp_path / "x.npy"), "--keep")
    assert value(families(), "cableway_up") == 1
    os.kill(running_broker(folder), signal.SIGKILL)
    assert eventually(lambda: list(families()) == ["cableway_up"])
    assert value(families(), "cableway_up") == 0


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = run("metrics", stdout=full, stderr=subprocess.PIPE, capture_output=False, expect=FAILED)  # fmt: skip
    assert "No space left" in done.stderr
