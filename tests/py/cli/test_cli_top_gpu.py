"""`cableway top` of GPU memory: whose it is, what no process shows, and that its rows add up to what the driver counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cuda_support
import pytest
from cli_support import run_json
from conftest import eventually

import cableway as cw

cuda_support.require()

gpus = cuda_support.for_module()
NVML = cuda_support.BUILD / "tests/fakecuda/libnvml-double.so"
MIB = 1 << 20

TEXT = """
import cableway as cw
x = cw.empty(1 << 20, "f4", device="cuda:0")
cw.put("gpu/x", x, keep=True)
y = cw.empty(2 << 20, "f4", device="cuda:0")
y.close()
z = cw.empty(1 << 20, "f4")
z.to("cuda:0")
print("there", flush=True)
input()
"""


def rows(found: Any) -> list[Any]:
    return [row for row in found["memory"] if row["device"] != "cpu"]


def used_by_all() -> str:
    """What nvidia-smi counts on each GPU, in MiB."""
    query = ["nvidia-smi", "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"]
    return subprocess.run(query, text=True, capture_output=True, check=True).stdout


def look() -> tuple[Any, str]:
    """What top shows, and what nvidia-smi counted before and after alike: other tests use the GPU meanwhile."""
    if not cuda_support.REAL:
        return run_json("top"), ""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        before, found, after = used_by_all(), run_json("top"), used_by_all()
        if before == after:
            return found, after
    raise AssertionError("others took and gave back GPU memory all the time, for 60 s")


def check_real(found: Any, shown: str, pid: int) -> None:
    """On a real GPU: the rows add up to what nvidia-smi shows, and a process has a context."""
    for uuid, used in (line.split(", ") for line in shown.splitlines()):
        ours = [row for row in rows(found) if row["device"] == uuid]
        if not ours:
            continue
        print(f"nvidia-smi: {uuid} {used} MiB; top: {ours}")
        assert sum(row["total_bytes"] for row in ours) / MIB == pytest.approx(int(used), abs=4)
        # What no process and no orphan explains is the driver's own, and little of an idle GPU.
        assert (
            sum(row["total_bytes"] for row in ours if row["command"] == "the driver") < 2048 * MIB
        )
        for row in ours:
            if row["pid"] == pid and row["context_bytes"] is None:
                print("NVML does not know the process: it counts in another pid namespace")
            elif row["pid"] == pid:
                assert row["context_bytes"] > 64 * MIB


def test_gpu_memory_adds_up_to_what_the_driver_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = cw.put("gpu/on-the-host", [1, 2, 3])  # a broker runs before and after the child
    said = tmp_path / "nvml"
    if not cuda_support.REAL:
        monkeypatch.setenv("CABLEWAY_NVML", str(NVML))
        monkeypatch.setenv("CABLEWAY_FAKENVML_FILE", str(said))
    with subprocess.Popen(
        [sys.executable, "-c", TEXT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "there\n"
        uuid = next(
            row["device"]
            for row in run_json("leaks", "--older", "0")["caches"]
            if row["device"] != "cpu"
        )
        if not cuda_support.REAL:  # another process, and what the driver has for itself
            said.write_text(
                f"{uuid} {1000 * MIB} 2 {child.pid} {500 * MIB} {os.getppid()} {300 * MIB}\n"
            )
        found, used = look()
        (row,) = [row for row in rows(found) if row["pid"] == child.pid]
        assert row["device"] == uuid
        assert row["live_bytes"] >= 4 * MIB
        assert row["cached_bytes"] >= 8 * MIB
        assert row["orphan_bytes"] is None
        (client,) = [row for row in found["clients"] if row["pid"] == child.pid]
        assert row["device"] in client["devices"].split(",")
        (array,) = [row for row in found["arrays"] if row["name"] == "gpu/x"]
        assert (array["device"], array["holders"]) == (row["device"], 1)
        if cuda_support.REAL:
            check_real(found, used, child.pid)
        else:
            assert row["total_bytes"] == 500 * MIB
            assert row["context_bytes"] == 500 * MIB - row["live_bytes"] - row["cached_bytes"]
            (other,) = [row for row in rows(found) if row["pid"] == os.getppid()]
            assert (other["context_bytes"], other["live_bytes"]) == (300 * MIB, None)
            assert sum(row["total_bytes"] for row in rows(found)) == 1000 * MIB
            (driver,) = [row for row in rows(found) if row["command"] == "the driver"]
            assert driver["total_bytes"] == 200 * MIB
            said.write_text("")  # it tells nothing any more
            (silent,) = [row for row in rows(run_json("top")) if row["pid"] == child.pid]
            assert silent["context_bytes"] is None
            assert silent["total_bytes"] == row["live_bytes"] + row["cached_bytes"]
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert eventually(lambda: any(row["orphan_bytes"] for row in rows(run_json("top"))))
    (orphan,) = [row for row in rows(run_json("top")) if row["orphan_bytes"]]
    assert orphan["orphan_bytes"] >= 4 * MIB
    assert orphan["pid"] is None
    if cuda_support.REAL:
        check_real(*look(), 0)
    assert mine.nbytes
    cw.remove("gpu/x")


def test_routes_are_counted_at_once() -> None:
    """The page's counters rise when the broker next hears of a client; a rate must not wait for that."""
    text = """
import sys, time
import cableway as cw
x = cw.zeros(1 << 20, "u1")
y = cw.empty(1 << 20, "u1", device="cuda:0")
print("there", flush=True)
while True:
    y.copy_from(x)
    time.sleep(0.01)
"""
    mine = cw.put("gpu/on-the-host", [1, 2, 3])
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "there\n"
        found = {row["route"]: row for row in run_json("top", "-d", "1")["routes"]}
        child.kill()
    assert 5 * MIB < found["host to GPU"]["bytes_per_second"] <= 110 * MIB
    assert found["GPU to host"]["bytes_per_second"] == 0
    assert run_json("top")["routes"][0]["bytes_per_second"] is None
    assert mine.nbytes
