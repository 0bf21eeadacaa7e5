"""`cableway limit`: what is shown is what holds, and what is set holds at once, also where a limit keeps everybody out."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import COMMAND, FAILED, LIMIT, NO_BROKER, USAGE, run, run_json, suspend
from conftest import eventually, running_broker

import cableway as cw


def shown(name: str) -> dict[str, Any]:
    (row,) = run_json("limit", "show", name)
    return row  # type: ignore[no-any-return]


@contextlib.contextmanager
def limit(name: str, value: int | str) -> Iterator[None]:
    """A limit set for so long."""
    before = run_json("limit", "set", name, str(value))["before"]
    try:
        yield
    finally:
        assert run_json("limit", "set", name, str(before))["value"] == before


@contextlib.contextmanager
def client(name: str = "python") -> Iterator[subprocess.Popen[str]]:
    """Another process that tries to connect under a name, says how that went, and stays."""
    text = f"""
import ctypes
ctypes.CDLL(None).prctl(15, {name.encode()!r})
import cableway as cw
try:
    cw.names()
    print("in", flush=True)
except cw.LimitExceeded as error:
    print(error, flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def test_all_limits_are_shown_with_default_and_use() -> None:
    x = cw.put("limit/x", np.ones(10))
    rows = {row["name"]: row for row in run_json("limit", "show")}
    status = run_json("status")
    assert {name: row["value"] for name, row in rows.items()} == status["limits"]
    for name, gauge in [("max_clients", "clients"), ("max_names", "names"), ("max_slabs", "slabs"), ("max_fds", "fds"),
                        ("max_bytes", "bytes"), ("max_user_bytes", "bytes"), ("max_gpu_bytes", "gpu_bytes")]:  # fmt: skip
        assert rows[name]["used"] == status["gauges"][gauge], name
    assert rows["max_clients"]["default"] == rows["max_clients"]["value"] == 256
    assert rows["max_bytes"]["default"] is None
    assert (rows["max_gpu_bytes"]["value"], rows["max_gpu_bytes"]["default"]) == (
        None,
        None,
    )  # none is set
    assert all(row["used"] is None or row["used"] >= 0 for row in rows.values())
    assert (rows["max_client_slabs"]["used"], rows["max_client_slabs"]["used_by_pid"]) == (1, os.getpid())  # fmt: skip
    text = run("limit", "show").stdout
    for name, row in rows.items():
        assert name in text
        assert row["what"] in text
    assert "half of the memory" in text
    assert x.nbytes == 80


def test_a_lower_limit_takes_nothing_away_and_says_how_to_raise_it() -> None:
    arrays = [cw.put(f"limit/{i}", np.full(3, i)) for i in range(5)]
    names = shown("max_names")["used"]
    with limit("max_names", names - 2):
        assert [int(cw.get(f"limit/{i}")[0]) for i in range(5)] == list(range(5))
        assert shown("max_names")["used"] == names
        with pytest.raises(cw.LimitExceeded) as refused:
            cw.put("limit/more", [1])
        assert f"max_names allows {names - 2}" in str(refused.value)
        assert "`cableway limit set max_names NUMBER`" in str(refused.value)
        cw.put("limit/0", np.full(3, 7))  # a name that is there already
        with limit("max_names", names + 1):
            cw.put("limit/more", [1])
            cw.remove("limit/more")
    assert all(array.nbytes == 24 for array in arrays)


def test_more_bytes_are_there_at_once() -> None:
    x = cw.put("limit/x", np.ones(10))
    used = shown("max_bytes")["used"]
    with limit("max_bytes", used + (4 << 20)):
        assert shown("max_user_bytes")["value"] == used + (4 << 20)  # nobody has set that one
        with pytest.raises(cw.LimitExceeded, match="cableway limit set max_bytes NUMBER"):
            cw.empty(8 << 20, "u1")
        with limit("max_bytes", "1GiB"):
            assert cw.empty(8 << 20, "u1").nbytes == 8 << 20
        assert shown("max_bytes")["value"] == used + (4 << 20)
    assert run_json("limit", "set", "max_bytes", "0")["value"] > 1 << 30  # half of the memory
    assert x.nbytes == 80


NO_LARGE_FILES = """
import resource, signal
import cableway as cw
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))    # shared memory of more than this is an error
try:
    cw.empty(1 << 30, "u1")
except cw.LimitExceeded as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["max_bytes", "max_client_bytes", "max_pid_bytes"])
def test_memory_that_a_limit_refuses_is_never_made(name: str) -> None:
    x = cw.put("limit/x", np.ones(10))
    with limit(name, "64MiB"):
        process = subprocess.run(
            [sys.executable, "-c", NO_LARGE_FILES], capture_output=True, text=True, check=True
        )
    assert f"a slab of {1 << 30} bytes was asked for" in process.stdout
    assert f"{name} allows {64 << 20}" in process.stdout
    assert x.sum() == 10


def test_who_comes_to_raise_a_limit_gets_in_where_nobody_else_does() -> None:
    x = cw.put("limit/x", np.ones(10))  # connected
    with limit("max_clients", 1):
        with client() as refused:
            assert "`cableway limit set max_clients NUMBER`" in said(refused)
        run("stat", "limit/x", expect=LIMIT)
        with limit("max_clients", 2):
            assert eventually(lambda: run_json("status")["gauges"]["clients"] == 1)
            with client() as admitted:
                assert said(admitted) == "in"
        # So many and no more: the name is no way around the limit.
        assert eventually(lambda: run_json("status")["gauges"]["clients"] == 1)
        with client("cableway-limit") as first, client("cableway-limit") as second:
            assert said(first) == said(second) == "in"
            assert "max_clients allows 1" in run("limit", "set", "max_clients", "9", expect=LIMIT).stderr  # fmt: skip
        assert eventually(lambda: run_json("status")["gauges"]["clients"] == 1)
    assert x.nbytes == 80


def test_who_looks_for_what_to_remove_gets_in_too_and_takes_no_place_of_who_raises_it() -> None:
    x = cw.put("limit/x", np.ones(10))
    cw.put("limit/y", np.ones(10), keep=True).close()
    with limit("max_clients", 1):
        assert "limit/y" in run("ls").stdout
        assert "limit/y" in run("leaks", "--older", "0").stdout
        run("rm", "limit/y")
        assert [row["name"] for row in run_json("ls")] == ["limit/x"]
        assert eventually(lambda: run_json("status")["gauges"]["clients"] == 1)
        with client("cableway-admin") as first, client("cableway-admin") as second:
            assert said(first) == said(second) == "in"
            assert "max_clients allows 1" in run("ls", expect=LIMIT).stderr
            run("limit", "set", "max_clients", "3")
            run("limit", "set", "max_clients", "1")
        assert eventually(lambda: run_json("status")["gauges"]["clients"] == 1)
    assert x.nbytes == 80


def test_a_full_broker_can_be_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path))
    with client() as other:
        assert said(other) == "in"
        run("limit", "set", "max_clients", "1")
        run("stop", "--yes")


@pytest.mark.parametrize("stay", [0, 2])
def test_of_thirty_who_come_at_once_at_a_full_broker_each_sets_its_limit(stay: int) -> None:
    """Also while others keep both places that are for them, for a second."""
    x = cw.put("limit/x", np.ones(10))  # connected
    with limit("max_clients", 1), contextlib.ExitStack() as others:
        for _ in range(stay):
            assert said(others.enter_context(client("cableway-limit"))) == "in"
        setters = [
            subprocess.Popen(
                [COMMAND, "limit", "set", "max_client_waits", str(100 + i)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for i in range(30)
        ]  # fmt: skip
        if stay:
            assert not any(setter.poll() for setter in setters)
            others.close()
        told = [setter.communicate(timeout=60)[0] for setter in setters]
        assert [setter.returncode for setter in setters] == [0] * 30, told
        for i, text in enumerate(told):
            assert text.startswith(f"max_client_waits is {100 + i} now, and was ")
        assert 100 <= shown("max_client_waits")["value"] < 130
    run("limit", "set", "max_client_waits", "1024")
    assert x.nbytes == 80


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_a_limit_that_was_set_is_not_said_to_have_failed_where_the_output_fails(json: tuple[str, ...]) -> None:  # fmt: skip
    x = cw.put("limit/x", [1])
    with open("/dev/full", "w") as full:
        done = run("limit", "set", "max_names", "77", *json, stdout=full, stderr=subprocess.PIPE, capture_output=False, expect=FAILED)  # fmt: skip
    assert done.stderr == (
        "cableway: max_names is 77 now, and was 1000000; that is done, only writing it to the output failed: "
        "No space left on device\n"
    )
    assert shown("max_names")["value"] == 77
    run("limit", "set", "max_names", "1000000")
    assert x.nbytes == 8


def ends_in() -> list[float]:
    return [row["ends_in_seconds"] for row in run_json("leaks", "--older", "0")["transits"]]


def test_time_limits_count_from_the_begin_also_of_what_is_under_way() -> None:
    x = cw.put("limit/x", np.ones(10))
    sent = pickle.dumps(x)
    assert len(ends_in()) == 1
    with limit("transit_seconds", 5000):
        (left,) = ends_in()
        assert 4000 < left <= 5000
        with limit("pickle_seconds", 1000):
            assert cw.Array is type(pickle.loads(sent))  # the maker's own starts no clock
            (left,) = ends_in()
            assert 4000 < left <= 5000
    (left,) = ends_in()
    assert 0 < left <= 300
    with limit("transit_seconds", 1):
        assert eventually(lambda: ends_in() == [])
    assert x.nbytes == 80


def test_pickles_that_were_opened_follow_their_limit() -> None:
    x = cw.put("limit/y", np.ones(10))
    sent = pickle.dumps(x)
    text = f"import pickle; pickle.loads({sent!r}); import cableway"
    with limit("pickle_seconds", 500):
        subprocess.run([sys.executable, "-c", text], check=True)
        assert eventually(lambda: [left for left in ends_in() if 300 < left <= 500] != [])
        with limit("pickle_seconds", 0):
            assert eventually(lambda: ends_in() == [])
    assert x.nbytes == 80


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("list",),
        ("show", "nonsense"),
        ("show", "max_names", "extra"),
        ("set", "max_names"),
        ("set", "nonsense", "1"),
        ("set", "max_names", "many"),
        ("set", "max_names", "-1"),
        ("set", "max_names", "1KiB"),
        ("set", "max_names", "0"),
        ("set", "max_bytes", "1KB"),
        ("set", "max_bytes", " 1"),
        ("set", "max_bytes", "1  KiB"),
        ("set", "max_bytes", ""),
        ("set", "max_bytes", "99999999999999999999"),
        ("set", "max_bytes", "9999999999TiB"),
        ("set", "max_clients", "1025"),
    ],
)
def test_wrong_usage_is_said_and_changes_nothing(arguments: tuple[str, ...]) -> None:
    x = cw.put("limit/x", [1])
    before = run_json("status")["limits"]
    done = run("limit", *arguments, expect=USAGE)
    assert done.stdout == ""
    assert done.stderr.startswith("cableway: ")
    assert run_json("status")["limits"] == before
    assert x.nbytes == 8


def test_more_open_files_than_the_machine_allows_are_refused_with_the_figure() -> None:
    x = cw.put("limit/x", [1])
    done = run("limit", "set", "max_fds", str(1 << 22), expect=LIMIT)
    assert "hard limit" in done.stderr
    assert shown("max_fds")["value"] < 1 << 22
    assert x.nbytes == 8


def test_a_stopped_broker_shows_its_limits_and_sets_none(broker_folder: Path) -> None:
    x = cw.put("limit/x", [1])
    pid = running_broker(broker_folder)
    suspend(pid)
    try:
        assert shown("max_clients")["value"] == 256
        told = run("limit", "set", "max_clients", "9", expect=FAILED).stderr
    finally:
        os.kill(pid, signal.SIGCONT)
    assert told.splitlines() == [
        f"cableway: the broker (pid {pid}) is stopped; waiting 2 s for it",
        f"cableway: the broker (pid {pid}) does not answer; it is stopped (state T). Let it go on, nothing is lost by that: "
        f"`kill -CONT {pid}`",
    ]
    assert shown("max_clients")["value"] == 256
    assert x.nbytes == 8


def test_without_a_broker_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path / "d"))
    run("limit", "show", expect=NO_BROKER)
    run("limit", "set", "max_clients", "9", expect=NO_BROKER)
