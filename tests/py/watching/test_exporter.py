"""`cableway exporter`: what it serves is what `cableway metrics` and `top` print, also while the broker is stopped or dead."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import run, run_json
from conftest import eventually
from exporter_process import SECONDS, Exporter
from prometheus_client import parser as text_format
from prometheus_client.openmetrics import parser as openmetrics

import cableway as cw
from cableway._watch import neighbours, state
from cableway._watch.cached import CachedCommand, CommandFailed
from cableway._watch.request import is_host_known
from cableway.exporter import main

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
    for accept in (
        "*/*",
        "text/plain",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text; version=1.0.0; q=0.3, text/plain;q=0.5",
    ):
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
        assert (status, b"neither an IP address nor a name" in body) == (421, True), host
    assert is_host_known("Grafana:80", frozenset({"grafana"}))


def test_a_request_may_name_the_whole_address(exporter: Exporter) -> None:
    whole = f"http://127.0.0.1:{exporter.port}"
    assert exporter.ask(f"{whole}/metrics?x=1")[2].startswith(b"# TYPE cableway_up")
    assert exporter.ask("HTTP://localhost/metrics", Accept=SCRAPER)[0] == 200
    assert exporter.ask(whole)[1]["Content-Type"].startswith("text/html")
    assert exporter.ask(f"{whole}/other")[0] == exporter.ask("ftp://127.0.0.1/metrics")[0] == 404
    assert exporter.ask(f"{whole}/metrics", Host="evil.example")[0] == 421


@pytest.mark.parametrize("name", ["", "a b", "a:80", "http://a", "-a", "a" * 254])
def test_a_host_that_is_no_name_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([f"--host={name}"])
    assert ended.value.code == 2 and "a host name has" in capsys.readouterr().err


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
