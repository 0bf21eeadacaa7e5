"""`cableway trace` of GPU memory: copies have tracks of their own, one for each way, and say which process made them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cuda_programs
import cuda_support
from cli_support import run, suspend
from test_cli_trace import check, named, slices

cuda_support.require()

gpus = cuda_support.for_module()
MIB = 1 << 20

TEXT = """
import cableway as cw
x = cw.empty(1 << 18, "f4", device="cuda:0")
y = cw.empty(1 << 18, "f4")
z = cw.empty(1 << 18, "f4", device="cuda:0")
y.copy_from(x)
x.copy_from(y)
z.copy_from(x)
cw.put("trace/gpu", x)
print("there", flush=True)
input()
"""


def tracks(found: Any) -> dict[str, list[Any]]:
    """The copies of each track of GPU copies, by its name."""
    (pid,) = {
        event["pid"]
        for event in found["traceEvents"]
        if event["name"] == "process_name" and event["args"]["name"] == "GPU copies"
    }
    names = {
        event["tid"]: event["args"]["name"]
        for event in found["traceEvents"]
        if event["name"] == "thread_name" and event["pid"] == pid
    }
    copies: dict[str, list[Any]] = {name: [] for name in names.values()}
    for event in slices(found):
        if event["pid"] == pid:
            copies[names[event["tid"]]].append(event)
    return copies


def test_copies_of_gpu_memory_have_a_track_for_each_way() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TEXT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "there\n"
        found = json.loads(run("trace").stdout)
        other.communicate("\n")
    check(found)
    copies = tracks(found)
    for way in ("cpu to cuda:0", "cuda:0 to cpu", "cuda:0 to cuda:0"):
        mine = [copy for copy in copies[way] if copy["args"]["pid"] == other.pid]
        assert [copy["args"]["bytes"] for copy in mine] == [MIB], way
        assert mine[0]["name"] == f"copy {way}"
        assert mine[0]["dur"] > 0
    order = [
        copies[way][-1]["ts"] for way in ("cuda:0 to cpu", "cpu to cuda:0", "cuda:0 to cuda:0")
    ]
    assert order == sorted(order)


WAITER = """
w = cw.empty(1000, "u1", device="cuda:0")
s = Stream()
s.hold("go")
with w.writing(s):
    s.fill(low(w), 7)
say("there")
w.wait(timeout=60)
say("came")
input()
"""


def test_a_wait_for_gpu_work_is_one_also_if_its_process_was_stopped_meanwhile(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", cuda_programs.LIBRARY + WAITER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path,
    ) as other:  # fmt: skip
        assert other.stdout
        assert other.stdout.readline() == "there\n"
        time.sleep(0.7)  # longer than one call
        suspend(other.pid)
        time.sleep(0.5)
        os.kill(other.pid, signal.SIGCONT)
        time.sleep(0.7)
        found = json.loads(run("trace").stdout)
        check(found)
        (wait,) = named(found, "wait for GPU work", other.pid)
        assert wait["args"]["under_way"]
        assert wait["dur"] > 1.4e6
        (tmp_path / "go").touch()
        assert other.stdout.readline() == "came\n"
        found = json.loads(run("trace").stdout)
        (wait,) = named(found, "wait for GPU work", other.pid)
        assert wait["args"] == {}
        assert wait["dur"] > 1.6e6
        other.communicate("\n")
