"""`cableway leaks` and `metrics` of GPU memory: on which GPU, whose it is, what is free, what is left of a dead process."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import cuda_support
from cli_support import run, run_json
from conftest import eventually
from prometheus_client.openmetrics import parser as openmetrics

import cableway as cw

cuda_support.require()

gpus = cuda_support.for_module()

TEXT = """
import cableway as cw
x = cw.empty(1 << 20, "f4", device="cuda:0")
cw.put("gpu/x", x, keep=True)
y = cw.empty(2 << 20, "f4", device="cuda:0")
y.close()
print("there", flush=True)
input()
"""


def memory() -> dict[tuple[str, str, str], float]:
    """`cableway_memory_bytes` by device, owner and state."""
    families = openmetrics.text_string_to_metric_families(run("metrics").stdout)
    (family,) = [family for family in families if family.name == "cableway_memory_bytes"]
    return {
        (sample.labels["device"], sample.labels["owner"], sample.labels["state"]): sample.value
        for sample in family.samples
    }


def of_gpus(part: str) -> list[dict[str, Any]]:
    rows = run_json("leaks", "--older", "0")[part]
    return [row for row in rows if row["device"] != "cpu"]


def test_memory_on_a_gpu_is_told_by_gpu_and_outlives_its_maker_as_an_orphan() -> None:
    mine = cw.put("gpu/on-the-host", [1, 2, 3])  # a broker runs before and after the child
    with subprocess.Popen(
        [sys.executable, "-c", TEXT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "there\n"
        (row,) = [row for row in of_gpus("caches") if row["pid"] == child.pid]
        gpu = row["device"]
        assert gpu.startswith("GPU-")
        assert len(gpu) == 40
        assert row["live_bytes"] >= 4 << 20
        assert row["free_bytes"] >= 8 << 20
        (client,) = [row for row in run_json("status")["clients"] if row["pid"] == child.pid]
        assert row["live_bytes"] + row["free_bytes"] == client["gpu_bytes"]
        figures = memory()
        assert figures[gpu, "client", "live"] == row["live_bytes"]
        assert figures[gpu, "client", "free"] == row["free_bytes"]
        assert figures[gpu, "nobody", "live"] == 0
        assert of_gpus("orphans") == []
        child.send_signal(signal.SIGKILL)
    assert eventually(lambda: of_gpus("orphans") != [] and of_gpus("caches") == [])
    figures = memory()
    assert figures[gpu, "client", "live"] == figures[gpu, "client", "free"] == 0
    assert figures[gpu, "nobody", "live"] >= 4 << 20
    gauges = run_json("status")["gauges"]
    assert figures[gpu, "nobody", "live"] + figures[gpu, "nobody", "free"] == gauges["gpu_orphan_bytes"]  # fmt: skip
    (name,) = [row for row in run_json("leaks", "--older", "0")["unheld"] if row["name"] == "gpu/x"]
    assert name["device"] == gpu
    cw.remove("gpu/x")
    assert eventually(lambda: of_gpus("orphans") == [])
    assert mine.nbytes == 24
