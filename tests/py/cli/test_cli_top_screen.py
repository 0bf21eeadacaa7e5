"""The screen of `cableway top`: on terminals of 80x24 and 200x50, with its keys, its signals and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cli_support import COMMAND, FAILED, state, suspend
from conftest import broker_pid, eventually, running_broker
from top_terminal import Terminal, top

import cableway as cw

SIZES = [(80, 24), (200, 50)]
MANY = 10_000
CPU_SHARE = 0.02
FAST = ("-d", "0.1")


@pytest.fixture(autouse=True)
def arrays() -> object:
    """Some arrays with names, of sizes that rise."""
    return [cw.put(f"top/{i:02}", np.ones(10 * (i + 1))) for i in range(60)]


def names(terminal: Terminal) -> list[str]:
    return [word for line in terminal.lines[4:-1] for word in line.split() if word[:4] == "top/"]


@pytest.mark.parametrize(("columns", "lines"), SIZES)
def test_each_view_fits_and_has_its_rows(columns: int, lines: int) -> None:
    queue = cw.Queue()
    queue.put(1)
    with cw.Pool(1) as pool, top(columns, lines, *FAST) as terminal:
        pool.map(abs, range(5))
        terminal.shows("broker", "1 clients", "7 peers", str(os.getpid()), "q quit", "BYTES")
        for key, title, text in [
            ("2", "NAME", "top/59"), ("3", "TASKS/S", str(os.getpid())), ("4", "ITEMS", str(os.getpid())),
            ("5", "CONTEXT", "cpu"), ("6", "ROUTE", "GPU to GPU through the host"), ("7", "NODE", "nothing of another node"),
            ("1", "LAST CALL", "python"),
        ]:  # fmt: skip
            terminal.type(key)
            terminal.shows(title, text)
            assert all(len(line) <= columns for line in terminal.lines)
            assert terminal.screen.cursor.y < lines
        terminal.type("\t")
        terminal.shows("top/59")
        terminal.type("\x1b[Z")
        terminal.shows("LAST CALL")
        if columns == 200:  # all columns have room there
            terminal.shows("USER", "ROLE", "REQ/S", "UNREAD", "SENT", "WAITS FOR", "SESSION")
        terminal.type("q")
        assert terminal.wait() == 0


@pytest.mark.parametrize(("columns", "lines"), SIZES)
def test_sort_reverse_scroll_and_filter(columns: int, lines: int) -> None:
    with top(columns, lines, *FAST) as terminal:
        terminal.shows("1 clients")
        terminal.type("2")
        terminal.shows("of 60 by BYTES")
        rows = lines - 5
        assert names(terminal) == [f"top/{i:02}" for i in range(59, 59 - rows, -1)]
        terminal.type("r")
        terminal.until(lambda: "top/00" in terminal.lines[4])
        terminal.type("\x1b[B")
        terminal.until(lambda: "top/01" in terminal.lines[4])
        terminal.type("\x1b[6~")
        terminal.until(lambda: f"{min(rows + 2, 61 - rows)}-" in terminal.lines[-1])
        terminal.type("\x1b[F")
        terminal.until(lambda: "top/59" in terminal.lines[-2])
        terminal.type("\x1b[H")
        terminal.until(lambda: "top/00" in terminal.lines[4])
        terminal.type(">")
        terminal.shows("by OWNER")
        terminal.type("<<")
        terminal.shows("by DTYPE")
        terminal.type("/P/1")  # upper and lower case are alike
        terminal.shows("Filter: P/1_")
        terminal.type("\r")
        terminal.shows("of 10 by DTYPE with P/1")
        terminal.type("/x\x7f7\r")
        terminal.shows("of 1 by", "top/17")
        terminal.type("/zzz\r")
        terminal.shows("no row has what the filter says")
        terminal.type("\x1b")
        terminal.shows("of 60 by DTYPE")


def test_the_column_by_which_rows_are_sorted_is_on_a_narrow_screen_too() -> None:
    with top(80, 24, *FAST) as terminal:
        for key in "1245":  # those that have rows here, or more columns than there is room for
            terminal.type(key)
            terminal.shows(" by ")
            seen: list[str] = []
            while True:
                title = terminal.lines[-1].rpartition(" by ")[2].strip()
                if title in seen:
                    break
                seen.append(title)
                terminal.until(lambda now=title: now in terminal.lines[3])
                assert all(len(line) <= 80 for line in terminal.lines)
                terminal.type(">")
                terminal.until(lambda now=title: not terminal.lines[-1].endswith(f" by {now}"))
            assert len(seen) > 5 or key != "2", seen


def test_pause_help_and_resize() -> None:
    with top(80, 24, *FAST) as terminal:
        terminal.type("2")
        terminal.shows("of 60 by BYTES")
        terminal.type("p")
        terminal.shows("PAUSED")
        x = cw.put("top/new", np.ones(10_000))
        for _ in range(5):
            terminal.read(0.1)
        assert "top/new" not in terminal.text
        terminal.type("?")
        terminal.shows("another view", "Any key goes back")
        terminal.type("x")
        terminal.type(" ")
        terminal.shows("top/new", "of 61 by BYTES")
        assert "PAUSED" not in terminal.text
        for columns, lines in [(200, 50), (40, 10), (12, 3), (1, 1), (80, 24)]:
            terminal.resize(columns, lines)
            if lines > 3:
                terminal.until(lambda columns=columns, lines=lines: "of 61" in terminal.lines[-1])  # type: ignore[misc]
            for _ in range(3):
                assert terminal.read(0.1), f"it ended at {columns}x{lines}"
        terminal.shows("top/new", "q quit  h help")
        cw.remove("top/new")
        assert x.nbytes


def test_names_of_others_stay_in_their_columns() -> None:
    evil = "top/\u202e\u6f22\u5b57\u0301\u0301\u0301\u0301\u0301/" + "\u6f22" * 50
    text = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\\x1b[2J\\x1b[H\\xff")
import cableway as cw
x = cw.put(sys.argv[1], bytes(1 << 20))
print("there", flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", text, evil],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout
        assert child.stdout.readline() == "there\n"
        for columns, lines in SIZES:
            with top(columns, lines, *FAST) as terminal:
                terminal.shows("\\x1b[2J", str(child.pid), "q quit")
                assert terminal.lines[0].startswith("cableway top")
                terminal.type("2")
                terminal.shows("top/\\xe2\\x80\\xae\u6f22", "1.0 MiB", "of 61 by BYTES")
                # The sizes stand in one column, behind names of any width.
                end = terminal.lines[3].index("BYTES") + len("BYTES")
                for line in range(4, lines - 1):
                    cells = [terminal.screen.buffer[line][end - 1 + i].data for i in range(2)]
                    assert cells == ["B", " "], terminal.text
                terminal.type("q")
                assert terminal.wait() == 0
                assert b"\x1b[2J\x1b[H\xff" not in terminal.written
                assert "\u202e".encode() not in terminal.written
        child.communicate("\n")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("keys", ["q", "\x03"])
def test_quitting_gives_the_terminal_back(keys: str) -> None:
    with top(80, 24, *FAST) as terminal:
        terminal.shows("q quit")
        assert terminal.modes() != terminal.before
        terminal.type(keys)
        assert terminal.wait() == 0
        assert b"\x1b[?1049l" in terminal.written[-200:]
        assert terminal.modes()[3] == terminal.before[3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_gives_the_terminal_back_and_is_what_it_dies_of(number: int) -> None:
    with top(80, 24, *FAST) as terminal:
        terminal.shows("q quit")
        os.kill(terminal.pid, number)
        assert os.WTERMSIG(terminal.wait()) == number
        assert b"\x1b[?1049l" in terminal.written[-200:]
        assert terminal.modes()[3] == terminal.before[3]


def test_a_signal_ends_it_while_its_output_is_held() -> None:
    """Ctrl-S holds all output, and with it whoever would give the terminal back; the next signal does not wait for that."""
    with top(80, 24, *FAST) as terminal:
        terminal.shows("q quit")
        terminal.type("\x13")
        time.sleep(0.5)
        for _ in range(100):
            os.kill(terminal.pid, signal.SIGTERM)
            pid, status = os.waitpid(terminal.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.05)
        assert pid
        terminal.status = status
        assert os.WTERMSIG(status) == signal.SIGTERM


@pytest.mark.parametrize("ignores", [False, True])
def test_it_ends_when_the_terminal_goes_away(ignores: bool) -> None:
    """Also under nohup, where no signal tells of it."""
    command = f"exec {COMMAND} top -d 0.1"
    shell = ["/bin/sh", "-c", f"trap '' HUP; {command}" if ignores else command]
    terminal = Terminal(80, 24, shell)
    try:
        terminal.shows("q quit")
        terminal.hang_up()
        status = terminal.wait()
        assert os.WIFEXITED(status) if ignores else os.WTERMSIG(status) == signal.SIGHUP
    finally:
        terminal.close()


def test_stopping_and_going_on() -> None:
    """Ctrl-Z gives the terminal to the shell, fg brings the screen back."""
    script = f"set -m; {COMMAND} top -d 0.1; read answer; fg; echo ended $?"
    terminal = Terminal(80, 24, ["/bin/sh", "-c", script])
    try:
        terminal.shows("q quit", "1 clients")
        terminal.type("\x1a")
        # Not by what the shell writes: Ctrl-Z makes the kernel drop what is under way to the terminal, and perhaps that.
        terminal.until(lambda: terminal.modes()[3] == terminal.before[3])
        (child,) = children(terminal.pid)
        terminal.until(lambda: state(child) == "T")
        terminal.screen.reset()
        while "1 clients" not in terminal.text:
            terminal.type("\n")
            terminal.read(0.5)
        terminal.shows("q quit", "1 clients")
        terminal.type("2")
        terminal.shows("of 60 by BYTES")
        terminal.type("q")
        terminal.shows("ended 0")
    finally:
        terminal.close()


def test_the_broker_stops_dies_and_comes_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "d"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(folder))
    text = """
import cableway as cw
x = cw.put("top/{0}", bytes(1 << 20))
print("there", flush=True)
input()
"""

    def client(name: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", text.format(name)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdout
        assert child.stdout.readline() == "there\n"
        return child

    with top(200, 50, *FAST) as terminal:
        terminal.shows("no broker runs")
        terminal.type("2")
        first = client("first")
        terminal.shows("top/first")
        pid = running_broker(folder)
        suspend(pid)
        terminal.shows("STOPPED", "top/first")
        os.kill(pid, signal.SIGKILL)
        terminal.shows("GONE", "top/first")
        terminal.type("1")
        terminal.shows("GONE", str(first.pid), "1.0 MiB")
        terminal.type("2")
        assert eventually(lambda: broker_pid(folder) == 0)
        second = client("second")
        terminal.shows("top/second")
        assert "top/first" not in terminal.text
        for child in (first, second):
            child.communicate("\n")
        os.kill(running_broker(folder), signal.SIGTERM)
        terminal.shows("GONE")
        terminal.type("q")
        assert terminal.wait() == 0


def test_terminals_without_a_description(tmp_path: Path) -> None:
    """Slim machines have no database of them: nearly all terminals understand what is built in."""
    nowhere = {"TERMINFO": str(tmp_path), "HOME": str(tmp_path)}
    with top(80, 24, *FAST, TERM="xterm-of-tomorrow", **nowhere) as terminal:
        terminal.shows("1 clients", "q quit", str(os.getpid()))
        terminal.type("2\x1b[B")
        terminal.shows("2-20 of 60 by BYTES")
        terminal.type("q")
        assert terminal.wait() == 0
    for term, text in [
        ("no-such-thing", 'no description of the terminal "no-such-thing"'),
        ("dumb", "TERM is dumb"),
    ]:
        with top(200, 24, TERM=term, **nowhere) as terminal:
            assert os.WEXITSTATUS(terminal.wait()) == FAILED
            terminal.read()
            assert text in terminal.text
            assert "--once" in terminal.text


def test_it_costs_little_of_a_core_with_ten_thousand_arrays() -> None:
    many = [cw.put(f"top/many/{i}", bytes(8)) for i in range(MANY)]
    with top(200, 50) as terminal:
        terminal.type("2")
        terminal.shows(f"of {MANY + 60} by BYTES", "AGE")
        begin, used = time.monotonic(), terminal.cpu_seconds()
        while time.monotonic() < begin + 8:
            terminal.read(0.1)
        share = (terminal.cpu_seconds() - used) / (time.monotonic() - begin)
        assert share < CPU_SHARE, share
        terminal.type("/many/9999\r")
        terminal.shows("of 1 by BYTES")
    for i, array in enumerate(many):
        cw.remove(f"top/many/{i}")
        array.close()
