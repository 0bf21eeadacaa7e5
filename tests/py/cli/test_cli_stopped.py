"""What commands do while the broker is stopped: they wait a moment, then show what shared memory tells, and say what to do.

Runs in `make test-more`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import FAILED, run, run_json, suspend
from conftest import running_broker

import cableway as cw


@contextlib.contextmanager
def stopped(folder: Path) -> Iterator[int]:
    """The broker's pid; it is stopped for so long."""
    pid = running_broker(folder)
    suspend(pid)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)


def waits(pid: int) -> str:
    return f"cableway: the broker (pid {pid}) is stopped; waiting 2 s for it"


def gives_up(pid: int) -> str:
    return (
        f"cableway: the broker (pid {pid}) does not answer; it is stopped (state T). Let it go on, nothing is lost by that: "
        f"`kill -CONT {pid}`"
    )


@pytest.mark.parametrize("command", [("ls",), ("leaks",), ("limit", "set", "max_client_waits", "1024"), ("limit", "show"), ("status",)], ids=" ".join)  # fmt: skip
@pytest.mark.parametrize("seconds", [0.05, 0.8])
def test_a_broker_that_is_stopped_for_a_moment_fails_no_command(
    command: tuple[str, ...], seconds: float, broker_folder: Path
) -> None:
    x = cw.put("stopped/x", [1])
    pid = running_broker(broker_folder)
    suspend(pid)
    again = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
    again.start()
    try:
        done = run(*command)
    finally:
        again.join()
    assert done.stderr in ("", f"cableway: the broker (pid {pid}) is stopped; waiting 2 s for it\n")
    assert x.nbytes == 8


def without_holders(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    unknown = {"holders": None, "references": None, "age_seconds": None}
    return [{**row, **unknown} for row in rows]


def test_ls_shows_what_the_directory_tells_without_the_broker(broker_folder: Path) -> None:
    x = cw.put("stopped/x", np.ones((3, 4), "f4"))
    tree = cw.put("stopped/tree", {"a": np.ones(10), "b": np.ones(5)})
    with cw.connect(namespace="elsewhere"):
        cw.put("stopped/y", [1], keep=True).close()
    before, of_all = run_json("ls", "stopped/"), run_json("ls", "--all")
    with stopped(broker_folder) as pid:
        begun = time.monotonic()
        done = run("ls", "stopped/", "--json", expect=FAILED)
        seconds = time.monotonic() - begun
        found = run_json("ls", "stopped/", expect=FAILED)
        found_of_all = run_json("ls", "--all", expect=FAILED)
        other = run_json("ls", "--namespace", "elsewhere", expect=FAILED)
        text = run("ls", "stopped/", expect=FAILED).stdout
        old = run("ls", "--old", expect=FAILED)
    assert [row["name"] for row in found] == ["stopped/tree", "stopped/x"]
    assert all(row["holders"] is row["references"] is None for row in found + found_of_all + other)
    assert without_holders(found) == without_holders(before)
    assert without_holders(found_of_all) == without_holders(of_all)
    assert [(row["namespace"], row["name"], row["keep"]) for row in other] == [("elsewhere", "stopped/y", True)]  # fmt: skip
    assert "(3, 4)" in text
    assert 2 <= seconds < 10
    assert done.stderr.splitlines() == [
        waits(pid),
        gives_up(pid),
        "cableway: the list is as the directory has it; how many hold each only the broker could tell",
    ]
    assert old.stdout == ""
    assert run_json("ls", "stopped/")[1]["holders"] == 1
    with cw.connect(namespace="elsewhere"):
        cw.remove("stopped/y")
    assert (x.nbytes, tree.version) > (0, 0)


def test_what_needs_the_broker_says_how_to_let_it_go_on(
    broker_folder: Path, tmp_path: Path
) -> None:
    """And never to end it, by which names are lost."""
    x = cw.put("stopped/x", [1])
    np.save(tmp_path / "x.npy", np.ones(3))
    with stopped(broker_folder) as pid:
        for command in (("stat", "stopped/x"), ("rm", "stopped/x"), ("get", "stopped/x", str(tmp_path / "y.npy")),
                        ("put", "z", str(tmp_path / "x.npy")), ("limit", "set", "max_names", "9"), ("leaks",)):  # fmt: skip
            assert run(*command, expect=FAILED).stderr.splitlines() == [waits(pid), gives_up(pid)]
        assert f"kill -CONT {pid}" in run("status").stdout
        run("metrics")
        run("limit", "show")
    assert run_json("ls", "stopped/")[0]["name"] == "stopped/x"
    assert x.nbytes == 8
