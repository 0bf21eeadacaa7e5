"""`cableway exporter`: what it serves is what `cableway metrics` and `top` print, also while the broker is stopped or dead."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import COMMAND, broker_pid, run, run_json, suspend
from conftest import eventually, running_broker
from exporter_process import SECONDS, Exporter
from prometheus_client import parser as text_format
from prometheus_client.openmetrics import parser as openmetrics

import cableway as cw
from cableway._watch import neighbours, state
from cableway._watch.cached import CachedCommand, CommandFailed
from cableway._watch.request import is_host_known

SCRAPER = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
HOSTILE = "</script><img src=x onerror=alert(1)>\u2028'\""
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.fixture(scope="module")
def exporter(broker_folder: Path) -> Iterator[Exporter]:
    assert broker_folder
    with Exporter() as made:
        yield made


def figures(exporter: Exporter) -> dict[str, Any]:
    """The families that a scraper gets, by their names."""
    status, headers, body = exporter.ask("/metrics", Accept=SCRAPER)
    assert (status, headers["Content-Type"]) == (200, OPENMETRICS)
    return {family.name: family for family in openmetrics.text_string_to_metric_families(body.decode())}  # fmt: skip


# ---- what it serves


def test_metrics_are_those_of_the_command(exporter: Exporter) -> None:
    x = cw.put("exporter/x", np.ones(1000))
    printed = run("metrics").stdout
    assert eventually(lambda: figures(exporter)["cableway_up"].samples[0].value == 1)
    found = figures(exporter)
    assert found.keys() == {family.name for family in openmetrics.text_string_to_metric_families(printed)}  # fmt: skip
    assert found["cableway_names"].samples[0].value == run_json("status")["gauges"]["names"]
    assert x.nbytes == 8000


def test_a_scraper_of_the_older_format_is_told_that_it_is_that(exporter: Exporter) -> None:
    for accept in ("*/*", "text/plain"):
        status, headers, body = exporter.ask("/metrics", Accept=accept)
        assert (status, headers["Content-Type"]) == (
            200,
            "text/plain; version=0.0.4; charset=utf-8",
        )
        found = {
            family.name: family
            for family in text_format.text_string_to_metric_families(body.decode())
        }
        new = figures(exporter)
        assert found.keys() == new.keys()
        for name, family in found.items():
            assert (family.type, family.documentation) == (new[name].type, new[name].documentation)
            assert [s.name for s in family.samples] == [s.name for s in new[name].samples]


def test_promtool_finds_nothing_to_say_against_the_metrics(exporter: Exporter) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    x = cw.put("exporter/tool", [1])
    with cw.Pool(1) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]
        # What is half a second old is not looked at again.
        assert eventually(lambda: b"cableway_pool_tasks_total{" in exporter.ask("/metrics")[2])
        body = exporter.ask("/metrics")[2]
    done = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, timeout=SECONDS, check=False)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert x.nbytes == 8


def test_the_state_is_that_of_top(exporter: Exporter) -> None:
    x = cw.put(HOSTILE, np.ones((3, 4), "f4"))
    assert eventually(lambda: any(row["name"] == HOSTILE for row in exporter.state()["arrays"]))
    body = exporter.ask("/state")[2]
    body.decode("ascii")  # as ASCII no byte of a name is anything but text
    shown, told = exporter.state(), run_json("top")
    assert shown["broker"]["pid"] == told["broker"]["pid"]
    (row,) = [row for row in shown["arrays"] if row["name"] == HOSTILE]
    (same,) = [row for row in told["arrays"] if row["name"] == HOSTILE]
    assert row.keys() == same.keys()
    assert (row["shape"], row["bytes"], row["owner_pid"]) == ("(3, 4)", 48, os.getpid())
    (client,) = [row for row in shown["clients"] if row["pid"] == os.getpid()]
    assert client["requests_per_second"] is not None  # two looks
    (host,) = [row for row in shown["devices"] if row["device"] == "cpu"]
    assert host["total_bytes"] == sum(row["total_bytes"] for row in shown["memory"] if row["device"] == "cpu")  # fmt: skip
    assert shown["totals"]["arrays"] == len(told["arrays"])
    assert x.nbytes == 48


def test_a_list_is_cut_after_its_largest_rows_and_says_so() -> None:
    rows = [{"name": str(i), "bytes": i * 7919 % 1000} for i in range(1000)]
    found = {**dict.fromkeys(state.LISTS, []), "arrays": rows}
    shown = state.cut(found, 10)
    assert [row["bytes"] for row in shown["arrays"]] == [*range(999, 989, -1)]
    assert shown["totals"]["arrays"] == 1000
    assert len(found["arrays"]) == 1000


def test_the_page_is_one_file_and_its_policy_lets_nothing_else_run(exporter: Exporter) -> None:
    status, headers, body = exporter.ask("/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = headers["Content-Security-Policy"]
    for tag in ("script", "style"):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert set(re.findall(rb"https?://[^\"'` ]+", body)) == {
        b"http://www.w3.org/2000/svg"
    }  # a namespace
    assert not re.search(
        rb"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(| on\w+=| style=", body
    )
    assert not re.search(rb"<(script|link|img|iframe)[^>]+src=", body)
    assert "Access-Control-Allow-Origin" not in headers
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_head_has_the_headers_of_get_alone(exporter: Exporter) -> None:
    for path in ("/", "/state", "/metrics"):
        status, headers, body = exporter.ask(path, "HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["Content-Length"]) > 100


# ---- the broker may be in any state


def test_it_starts_no_broker_and_says_that_none_runs(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    with Exporter(env={**os.environ, "CABLEWAY_DIR": str(folder)}) as exporter:
        shown = exporter.state()
        assert shown["broker"] is None
        assert "no broker runs" in shown["message"]
        assert figures(exporter)["cableway_up"].samples[0].value == 0
    assert list(folder.iterdir()) == []


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


# ---- many at once


def test_many_who_ask_at_once_start_one_command_and_get_the_same() -> None:
    async def ask() -> tuple[int, set[bytes], int]:
        look = CachedCommand(
            ("top", "--json"), lambda printed, errors, code: b"%d" % os.urandom(1)[0] + printed
        )
        found = set(await asyncio.gather(*(look.get() for _ in range(1000))))
        at_once = look.begun
        found.add(await look.get())  # so soon it is the same
        await asyncio.sleep(0.6)
        await look.get()
        return at_once, found, look.begun

    at_once, found, begun = asyncio.run(ask())
    assert (at_once, len(found), begun) == (1, 1, 2)


def test_who_goes_away_does_not_end_the_look_of_the_others() -> None:
    async def ask() -> bytes:
        look = CachedCommand(("top", "--json", "-d", "0.2"), lambda printed, errors, code: printed)
        gone = asyncio.ensure_future(look.get())
        stays = asyncio.ensure_future(look.get())
        await asyncio.sleep(0.05)
        gone.cancel()
        return await stays

    assert asyncio.run(ask()).startswith(b"{")


def test_a_command_that_fails_or_hangs_is_an_error_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(printed: bytes, errors: str, code: int) -> bytes:
        raise ValueError(errors)

    with pytest.raises(CommandFailed, match="`cableway top` failed: .*no such option: --jsson"):
        asyncio.run(CachedCommand(("top", "--jsson"), refuse).get())
    monkeypatch.setattr("cableway._watch.command.TIMEOUT_SECONDS", 0.3)
    with pytest.raises(CommandFailed, match=r"did not end within 0\.3 s"):
        asyncio.run(CachedCommand(("top", "--json", "-d", "60"), refuse).get())
    monkeypatch.setattr("cableway._watch.command.OUTPUT_MAX_BYTES", 10)
    monkeypatch.setattr("cableway._watch.command.TIMEOUT_SECONDS", 10)
    with pytest.raises(CommandFailed, match="more than 10 bytes"):
        asyncio.run(CachedCommand(("metrics",), refuse).get())


def test_forty_scrapers_at_once_are_all_answered(exporter: Exporter) -> None:
    with ThreadPoolExecutor(40) as threads:
        found = list(
            threads.map(lambda i: exporter.ask(["/metrics", "/state"][i % 2])[0], range(160))
        )
    assert found == [200] * 160


# ---- who may see it


def test_a_host_header_must_be_a_name_of_this_machine(exporter: Exporter) -> None:
    """Else a page of another site could point its own name here, and read (DNS rebinding)."""
    for host in (
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1:9",
        "[::1]:9",
        "10.1.2.3",
        socket.gethostname(),
    ):
        assert exporter.ask("/metrics", Host=host)[0] == 200, host
    for host in (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:80",
        "",
        "[::1",
        "a@localhost.b",
    ):
        status, _, body = exporter.ask("/state", Host=host)
        assert (status, b"neither an address nor a name" in body) == (421, True), host
    assert is_host_known("Grafana:80", frozenset({"grafana"}))


def test_another_name_may_be_allowed() -> None:
    with Exporter("--host", "Proxy.Example") as exporter:
        assert exporter.ask("/", Host="proxy.example:80")[0] == 200
        assert exporter.ask("/", Host="other.example")[0] == 421


def test_the_kernel_tells_whose_the_other_end_is() -> None:
    for family, address in (
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::"),
    ):
        with socket.socket(family) as listener:
            listener.bind((address, 0))
            listener.listen()
            reach = "127.0.0.1" if address == "::" else address
            with socket.create_connection((reach, listener.getsockname()[1])) as client:
                ours, theirs = listener.accept()
                with ours:
                    assert neighbours.user_of(theirs[:2], ours.getsockname()[:2]) == os.getuid()
                    wrong = (theirs[0], theirs[1] ^ 1)
                    assert neighbours.user_of(wrong, ours.getsockname()[:2]) is None
                assert client.fileno() >= 0


def _as_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_of_this_machine_gets_figures_but_no_page(exporter: Exporter) -> None:
    ask = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).status)"

    def as_nobody(port: int, path: str) -> str:
        python = os.path.realpath("/usr/bin/python3")
        done = subprocess.run(
            [python, "-c", ask, f"http://127.0.0.1:{port}{path}"], preexec_fn=_as_nobody, cwd="/",
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        return done.stdout.strip() or done.stderr.splitlines()[-1]

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


# ---- its start and its end


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


OWN = {"CABLEWAY_PYTHON": sys.executable}


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


# ---- the command


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
