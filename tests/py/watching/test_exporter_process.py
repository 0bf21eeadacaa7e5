"""`cableway exporter`: how it starts and ends, whom it serves, and a broker that stops and dies. Runs in `make test-more`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import COMMAND, broker_pid, run, suspend
from conftest import eventually, running_broker
from exporter_process import SECONDS, Exporter
from prometheus_client.openmetrics import parser as openmetrics

import cableway as cw
from cableway._watch import server

OWN = {"CABLEWAY_PYTHON": sys.executable}
LINE = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n"


def figures(exporter: Exporter) -> dict[str, Any]:
    """The families that a scraper gets, by their names."""
    body = exporter.ask("/metrics", Accept="application/openmetrics-text")[2]
    return {family.name: family for family in openmetrics.text_string_to_metric_families(body.decode())}  # fmt: skip


def test_it_works_while_the_broker_is_stopped_and_after_it_was_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(folder))
    np.save(tmp_path / "x.npy", np.ones(3))
    run("put", "x", str(tmp_path / "x.npy"), "--keep")
    pid = running_broker(folder)
    with Exporter() as exporter:
        assert exporter.state()["broker"]["pid"] == pid
        suspend(pid)
        try:
            assert eventually(lambda: exporter.state()["broker"]["state"] == "stopped")
            assert [row["name"] for row in exporter.state()["arrays"]] == ["x"]
            assert eventually(lambda: figures(exporter)["cableway_up"].samples[0].value == 0)
        finally:
            os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: exporter.state()["broker"] is None)
        assert eventually(lambda: figures(exporter).keys() == {"cableway_up"})
        run("put", "y", str(tmp_path / "x.npy"), "--keep")  # another broker: found by itself
        assert eventually(lambda: [row["name"] for row in exporter.state()["arrays"]] == ["y"])
    os.kill(running_broker(folder), signal.SIGTERM)
    assert eventually(lambda: broker_pid(folder) == 0)


def test_another_name_may_be_allowed() -> None:
    with Exporter("--host", "Proxy.Example") as exporter:
        assert exporter.ask("/", Host="proxy.example:80")[0] == 200
        assert exporter.ask("/", Host="other.example")[0] == 421


def _as_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_of_this_machine_gets_figures_but_no_page() -> None:
    ask = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).status)"

    def as_nobody(port: int, path: str) -> str:
        python = os.path.realpath("/usr/bin/python3")
        done = subprocess.run(
            [python, "-c", ask, f"http://127.0.0.1:{port}{path}"], preexec_fn=_as_nobody, cwd="/",
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        return done.stdout.strip() or done.stderr.splitlines()[-1]

    with Exporter() as exporter:
        assert as_nobody(exporter.port, "/metrics") == "200"
        for path in ("/", "/state"):
            assert "403" in as_nobody(exporter.port, path)
    with Exporter("--all-users") as shown:
        assert as_nobody(shown.port, "/state") == "200"
        shown.end()
        assert "every user of this machine sees the page" in shown.said


def test_what_others_see_is_said_where_others_reach_it() -> None:
    with Exporter(listen="0.0.0.0:0") as exporter:
        assert exporter.ask("/state")[0] == 200
        exporter.end()
    assert "everyone who reaches this address sees the page" in exporter.said
    with Exporter(listen="[::1]:0") as exporter:
        assert exporter.ask("/state", host="::1")[0] == 200
        exporter.end()
    assert exporter.said.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_quietly_also_while_somebody_waits(number: int) -> None:
    with Exporter() as exporter, exporter.connect(), exporter.connect() as asks:
        asks.sendall(b"GET /state HTTP/1.0\r\n\r\n")
        assert exporter.end(number) == 0
    assert exporter.said.count("\n") == 1, exporter.said


def test_a_port_that_is_taken_is_an_error_and_two_may_run_on_two() -> None:
    with Exporter() as one, Exporter() as two:
        assert one.port != two.port
        cw.put("exporter/two", [1], keep=True).close()
        pids = {made.state()["broker"]["pid"] for made in (one, two)}
        assert len(pids) == 1
        done = run("exporter", "--listen", f"127.0.0.1:{one.port}", expect=1, env=OWN)
    assert (
        f"cannot listen on 127.0.0.1:{one.port}: Address already in use; is another exporter"
        in done.stderr
    )


def test_one_that_was_killed_leaves_nothing_and_its_port_is_free() -> None:
    exporter = Exporter()
    asked = threading.Thread(target=lambda: pytest.raises(OSError, exporter.state))
    asked.start()
    exporter.process.kill()
    assert exporter.process.wait() == -signal.SIGKILL
    asked.join(SECONDS)
    assert exporter.process.stderr
    exporter.process.stderr.close()
    with Exporter(listen=f"127.0.0.1:{exporter.port}") as again:
        assert again.ask("/")[0] == 200


def test_the_command_becomes_the_python_that_has_the_package(tmp_path: Path) -> None:
    assert "--listen ADDRESS:PORT" in run("exporter", "--help", env=OWN).stdout
    for text, said in [
        ("1.2.3.4:x", "the port must be a number"), ("127.0.0.1:65536", "from 0 to 65535"), (":9477", "0.0.0.0:9477 listens on all"),
        ("::1:9477", "brackets"),
    ]:  # fmt: skip
        assert said in " ".join(run("exporter", "--listen", text, expect=2, env=OWN).stderr.split())
    errors = run("exporter", expect=1, env={"CABLEWAY_PYTHON": "/no/python"}).stderr
    assert "CABLEWAY_PYTHON names /no/python, which cannot be run" in errors
    errors = run("exporter", expect=1, env={"CABLEWAY_PYTHON": "", "PATH": "/no"}).stderr
    assert "exporter needs a python" in errors
    # A Python without the package; a folder with such a module is none.
    (tmp_path / "cableway.py").write_text("raise SystemExit('the wrong one')")
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    errors = run("exporter", expect=1, env={"CABLEWAY_PYTHON": str(bare)}, cwd=tmp_path).stderr
    assert "No module named 'cableway'" in errors
    assert "install it there, or set CABLEWAY_PYTHON" in errors
    assert "--listen ADDRESS:PORT" in run("exporter", "--help", env=OWN, cwd=tmp_path).stdout


def test_the_console_script_takes_its_own_python() -> None:
    script = Path(sys.executable).parent / "cableway"
    if not script.exists() or str(COMMAND) == str(script):
        pytest.skip("the package is not installed with its console script")
    environment = {name: value for name, value in os.environ.items() if name != "CABLEWAY_PYTHON"}
    done = subprocess.run(
        [script, "exporter", "--help"], env={**environment, "PATH": "/no"}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--listen ADDRESS:PORT" in done.stdout


def test_who_sends_byte_by_byte_is_cut_and_told() -> None:
    """The time is for the whole request, not for each byte."""
    begun = time.monotonic()
    with Exporter() as exporter, exporter.connect() as slow:
        slow.settimeout(0.2)
        answer = b""
        slow.sendall(LINE)
        while not answer:
            assert time.monotonic() - begun < server.HEAD_SECONDS + 20
            with contextlib.suppress(TimeoutError):
                slow.sendall(b"a")
                answer = slow.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - begun >= server.HEAD_SECONDS
