"""`cableway log`: each kind of the broker's errors once, with how often, when and by whom, also while the broker is stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_support import NO_BROKER, USAGE, run, run_json, suspend
from conftest import eventually, running_broker

import cableway as cw


def errors(words: str) -> list[dict[str, Any]]:
    return [row for row in run_json("log")["errors"] if words in row["error"]]


def test_what_clients_are_refused_is_counted_with_its_time(broker_folder: Path) -> None:
    x = cw.put("log/x", [1])
    begun_ns = time.time_ns()
    names = run_json("status")["gauges"]["names"]
    run("limit", "set", "max_names", str(names))
    try:
        for i in range(7):
            with pytest.raises(cw.LimitExceeded):
                cw.put(f"log/y{i}", [1])
    finally:
        run("limit", "set", "max_names", "1000000")
    (row,) = errors("max_names allows")
    assert (row["count"], row["pid"]) == (7, os.getpid())
    assert begun_ns < row["first_ns"] < row["last_ns"] < time.time_ns()
    assert f"max_names allows {names} " in row["error"]
    found = run_json("log")
    assert found["count"] >= 7
    assert found["forgotten"] == 0
    assert Path(found["log"]).parent == broker_folder
    (line,) = [line for line in run("log").stdout.splitlines() if "max_names allows" in line]
    assert line.split()[0] == "7"
    assert f"  {os.getpid()}  " in line
    assert x.nbytes == 8


def test_errors_are_shown_while_the_broker_is_stopped_and_what_is_usual_is_none(broker_folder: Path) -> None:  # fmt: skip
    x = cw.put("log/x", [1])
    before = run_json("log")["count"]
    with pytest.raises(KeyError):
        cw.get("log/nothing")
    assert run_json("log")["count"] == before
    run("limit", "set", "max_clients", "1")
    try:
        text = "import cableway as cw; cw.names()"
        for _ in range(2):
            subprocess.run([sys.executable, "-c", text], capture_output=True, check=False)
    finally:
        run("limit", "set", "max_clients", "256")
    pid = running_broker(broker_folder)
    suspend(pid)
    try:
        (row,) = errors("refused a client")
        assert "refused a client" in run("log").stdout
    finally:
        os.kill(pid, signal.SIGCONT)
    assert row["count"] == 2
    assert "max_clients allows 1" in row["error"]
    assert eventually(lambda: run_json("status")["broker"]["state"] in ("idle", "running"))
    assert x.nbytes == 8


def test_without_a_broker_or_errors_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip
    (tmp_path / "d").mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path / "d"))
    run("log", expect=NO_BROKER)
    run("log", "more", expect=USAGE)
    text = "import cableway as cw, os; cw.names(); os.system('cableway log')"
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, env=env)  # fmt: skip
    assert done.stdout.endswith("has met no error since it started.\n")
    run("stop", "--yes", "--force")


def test_bytes_that_are_refused_are_counted_and_the_whole_sentence_is_told() -> None:
    x = cw.put("log/x", [1])
    used = run_json("status")["gauges"]["bytes"]
    run("limit", "set", "max_bytes", str(used))
    before = run_json("log")["count"]
    try:
        with pytest.raises(cw.LimitExceeded) as told:
            cw.empty(256 << 20, "u1")
    finally:
        run("limit", "set", "max_bytes", "0")
    (row,) = errors("max_bytes allows")
    assert row["pid"] == os.getpid()
    assert row["count"] >= 1
    assert run_json("log")["count"] > before
    assert row["error"].endswith(", or CABLEWAY_MAX_BYTES")
    assert row["error"] in str(told.value)
    assert row["error"] in run("log").stdout
    assert x.nbytes == 8


@pytest.mark.parametrize("junk", [b"x", b"y" * 100, b"z" * 5000], ids=len)
def test_who_sends_what_is_no_message_is_named(broker_folder: Path, junk: bytes) -> None:
    x = cw.put("log/x", [1])
    (path,) = broker_folder.glob("*.sock")
    before = {row["error"]: row["count"] for row in errors("")}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.connect(str(path))
        other.send(junk)

        def new() -> list[dict[str, Any]]:
            return [row for row in errors("") if row["count"] != before.get(row["error"], 0)]

        assert eventually(lambda: bool(new()))
    (row,) = new()
    assert row["pid"] == os.getpid()
    assert f"(pid {os.getpid()})" in row["error"]
    assert x.nbytes == 8
