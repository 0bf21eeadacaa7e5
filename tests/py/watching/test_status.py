"""`cw.status()`, and what notebooks show of it and of a Pool."""

from __future__ import annotations

import html.parser
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from cli_support import run, run_json, suspend
from conftest import eventually, running_broker

import cableway as cw

HOSTILE = "<script>alert(1)</script>&\"'"


class _Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(text: str) -> _Tags:
    """HTML that is well formed, small, and has nothing in it that does anything."""
    found = _Tags(text)
    assert found.tags <= {"div", "b", "span", "table", "tr", "th", "td"}
    assert found.attributes <= {"style"}
    assert "url(" not in text
    assert len(text) < 20_000
    return found


def test_it_is_what_top_says() -> None:
    x = cw.put(f"status/{HOSTILE}", np.ones((3, 4), "f4"))
    with cw.Pool(2) as pool:
        pool.map(abs, range(10), chunksize=1)
        found, told = cw.status(), run_json("top")
        assert found.running
        assert found.broker["pid"] == told["broker"]["pid"]
        for name in ("arrays", "clients", "pools", "queues", "memory", "peers"):
            assert [row.keys() for row in getattr(found, name)] == [row.keys() for row in told[name]], name  # fmt: skip
        (row,) = [row for row in found.arrays if row["name"] == f"status/{HOSTILE}"]
        assert (row["bytes"], row["shape"], row["owner_pid"]) == (48, "(3, 4)", os.getpid())
        assert found.pools[0]["workers"] == 2
        assert found.pools[0]["tasks_per_second"] is None
        assert cw.status(0.1).pools[0]["tasks_per_second"] is not None
        (host,) = found.devices
        assert host["live_bytes"] >= 48
        said = repr(found)
        assert re.match(rf"broker {found.broker['pid']} (idle|running), up \d+ s: clients 1, arrays 1, pools 1, queues 0\n", said)  # fmt: skip
        assert "  cpu: " in said
        assert f"Pool of {os.getpid()}" in said
        assert found.as_dict()["arrays"] == found.arrays
    assert x.nbytes == 48


def test_a_notebook_gets_tables_in_which_every_name_is_text() -> None:
    held = [cw.put(f"status/{i}{HOSTILE}", np.ones(i + 1)) for i in range(20)]
    held.append(cw.put("status/" + "long" * 40, np.ones(100)))
    shown = read(cw.status()._repr_html_())
    assert f"status/19{HOSTILE}" in shown.texts
    assert not any(f"status/3{HOSTILE}" in text for text in shown.texts)  # the largest alone
    assert any(re.fullmatch(r"and 1[0-9] more", text) for text in shown.texts)
    assert ("status/" + "long" * 40)[:59] + "…" in shown.texts
    assert len(held) == 21


def test_a_notebook_gets_a_table_of_a_pool_in_each_of_its_states() -> None:
    pool = cw.Pool(20)
    pool.map(abs, range(100), chunksize=1)
    assert eventually(lambda: "100 tasks done" in "".join(read(pool._repr_html_()).texts))
    shown = read(pool._repr_html_())
    assert "cableway.Pool, 20 workers, RUN: 100 tasks done" in "".join(shown.texts)
    assert "and 4 more" in shown.texts
    pool.close()
    pool.join()
    assert "CLOSE: 100 tasks done" in "".join(read(pool._repr_html_()).texts)
    pool.terminate()
    assert "TERMINATE: " in "".join(read(pool._repr_html_()).texts)
    with cw.Pool(1) as other:
        pid = os.fork()
        if pid == 0:
            os._exit("0 tasks done" not in other._repr_html_())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_it_starts_no_broker_and_works_while_one_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(folder))
    found = cw.status()
    assert (found.broker, found.running, found.arrays) == (None, False, [])
    # Behind it: memory of brokers that have ended, if a process still has some.
    several = " (memory that several processes have is counted for each)" if found.devices else ""
    assert repr(found).startswith(
        f"no broker runs{several}: clients 0, arrays 0, pools 0, queues 0"
    )
    assert "no broker runs" in "".join(read(found._repr_html_()).texts)
    assert list(folder.iterdir()) == []
    np.save(tmp_path / "x.npy", np.ones(3))
    run("put", "x", str(tmp_path / "x.npy"), "--keep")
    pid = running_broker(folder)
    suspend(pid)
    try:
        found = cw.status()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (found.broker["state"], found.running) == ("stopped", False)
    assert [row["name"] for row in found.arrays] == ["x"]
    os.kill(pid, signal.SIGTERM)
    assert eventually(lambda: cw.status().broker is None)


def test_it_is_of_the_broker_that_this_process_is_connected_to(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    here = cw.put("status/here", [1])
    for place in (folder, folder / "cablewayd-v4.sock"):
        with cw.connect(place) as connection:
            there = cw.put("status/there", [1])
            found = cw.status()
            assert found.broker["pid"] == connection.broker_pid
            assert [row["name"] for row in found.arrays] == ["status/there"]
            there.close()
    assert "status/here" in [row["name"] for row in cw.status().arrays]
    os.kill(running_broker(folder), signal.SIGTERM)
    assert here.nbytes == 8


def test_a_bad_interval_and_a_command_that_fails_are_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seconds in (0, -1, 0.01, float("nan")):
        with pytest.raises(ValueError, match="at least 0.1"):
            cw.status(seconds)
    monkeypatch.setenv("CABLEWAY_DIR", "relative")
    with pytest.raises(cw.Error, match="`cableway top` failed: .*CABLEWAY_DIR"):
        cw.status()
    monkeypatch.setattr("cableway._core.programs.path", lambda name: "/no/such/program")
    with pytest.raises(cw.Error, match="cannot be run: .*install cableway again"):
        cw.status()
