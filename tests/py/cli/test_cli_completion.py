"""Words that bash and zsh complete at Tab: the commands' own, and what is there. Nothing is started by it, and nothing hangs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from cli_support import COMMAND, USAGE, broker_pid, run, suspend
from conftest import running_broker
from top_terminal import Terminal

import cableway as cw

ENDS_WITHIN_S = 0.3  # of processor and clock, on an idle machine; the program gives up after 0.25
TRIES = 20  # of a Tab


@contextmanager
def unhurried() -> Iterator[None]:
    """What is started here never gives up, however busy the machine is: its alarm is blocked, and a program inherits that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def offered(*words: str, **environment: str) -> list[str]:
    """What the last word may become."""
    with unhurried():
        lines = run("completion", "candidates", *words, env=environment).stdout.splitlines()
    return [line.split("\t")[0] for line in lines]


def commands() -> list[str]:
    listed = run("--help").stdout.split("Commands:\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines()]


def test_the_first_word_is_each_command_that_help_lists() -> None:
    assert offered("cableway", "") == [*commands(), "help"]
    assert offered("cableway", "help", "") == commands()
    assert offered("cableway", "-") == ["--help", "--version"]
    assert offered("cableway", "help", "ls", "") == offered("cableway", "no-command", "") == []


@pytest.mark.parametrize("command", commands())
def test_the_options_are_those_that_the_help_of_the_command_lists(command: str) -> None:
    told = run("help", command, env={"CABLEWAY_PYTHON": sys.executable}).stdout
    if command == "peers":  # its usage lines have them
        usage = told.split("\nThe nodes")[0]
        for part in re.split(r"cableway peers ", usage)[1:]:
            verb = part.split()[0].strip("[]")
            listed = sorted({*re.findall(r"--[a-z][a-z-]*", part), "--help"})
            assert sorted(offered("cableway", "peers", verb, "-")) == listed, verb
        return
    listed = re.findall(r"(?m)^  (--[a-z][a-z-]*)", told)
    if "--help" not in listed:
        listed.append("--help")
    letters = {f"-{letter}" for letter in re.findall(r", also -([a-z]) ", told)}
    assert sorted(offered("cableway", command, "-")) == sorted([*listed, *letters])
    assert letters == {"run": {"-n"}, "top": {"-d"}}.get(command, set())


def test_the_broker_itself_has_its_options() -> None:
    assert offered("/usr/bin/cablewayd", "--") == offered("cableway", "broker", "--")
    assert "--listen" in offered("cablewayd", "--")


def test_words_of_a_usage_line_stand_for_themselves() -> None:
    assert offered("cableway", "limit", "") == ["show", "set"]
    assert offered("cableway", "completion", "") == ["bash", "zsh"]
    assert offered("cableway", "peers", "re") == ["remove"]
    limits = [line.split()[0] for line in run("limit", "show").stdout.splitlines()[1:]]
    assert limits
    assert sorted(offered("cableway", "limit", "set", "")) == sorted(limits)
    assert sorted(offered("cableway", "limit", "show", "")) == sorted(limits)
    assert offered("cableway", "limit", "set", "max_names", "") == []
    assert offered("cableway", "limit", "show", "max_names", "") == []


def test_devices_are_those_that_are_there() -> None:
    there = [f"cuda:{i}" for i in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
    assert offered("cableway", "cp", "a", "b", "--device", "") == ["cpu", *there]
    assert offered("cableway", "load", "--device=c") == [f"--device={d}" for d in ["cpu", *there]]
    assert offered("cableway", "cp", "--device", "", CUDA_VISIBLE_DEVICES="") == ["cpu"]


def test_files_are_left_to_the_shell() -> None:
    for words in (("put", "x"), ("get", "x"), ("load", "x"), ("run", "p.py"), ("broker", "--config")):  # fmt: skip
        assert offered("cableway", *words, "") == [""], words
    assert offered("cableway", "run", "p.py", "--") == [""]  # the program's own
    for words in (("run",), ("run", "-n", "2")):
        assert run("completion", "candidates", "cableway", *words, "").stdout == "\tprograms\n"
    assert offered("cableway", "run", "-n", "") == offered("cableway", "top", "-d", "") == []


def test_names_are_those_of_the_namespace(tmp_path: Path) -> None:
    x = cw.put("train/x", [1])
    cw.put("train/labels y", x)
    cw.put("weights/cuda:0", x)
    np.save(tmp_path / "file.npy", np.arange(3))
    run("put", "other", str(tmp_path / "file.npy"), "--namespace=elsewhere")
    try:
        assert offered("cableway", "ls", "") == ["train/labels y", "train/x", "weights/cuda:0"]
        assert offered("cableway", "rm", "train/x", "tr") == ["train/labels y", "train/x"]
        assert offered("cableway", "put", "w") == ["weights/cuda:0"]
        assert offered("cableway", "rm", "--namespace", "elsewhere", "") == ["other"]
        assert offered("cableway", "rm", "--namespace=elsewhere", "") == ["other"]
        assert offered("cableway", "rm", "", CABLEWAY_NAMESPACE="elsewhere") == ["other"]
        assert offered("cableway", "ls", "--namespace", "") == ["elsewhere"]
        assert offered("cableway", "ls", "--namespace=e") == ["--namespace=elsewhere"]
        assert offered("cableway", "ls", "//node/") == []
        assert offered("cableway", "stat", "train/x", "") == []
    finally:
        run("rm", "other", "--namespace=elsewhere")


def test_of_many_names_the_next_part_is_offered() -> None:
    x = cw.put("one", [1])
    for i in range(150):
        cw.put(f"many/{i:03}/x", x)
    assert offered("cableway", "ls", "") == ["many/", "one"]
    assert offered("cableway", "ls", "many/14") == [f"many/{i}/x" for i in range(140, 150)]
    assert len(offered("cableway", "ls", "many/")) == 150


def test_of_more_names_than_fit_all_their_beginnings_are_offered() -> None:
    x = cw.put("a", [1])
    for i in range(1100):
        cw.put(f"many{i:04}", x)
    assert offered("cableway", "ls", "") == ["a", *(f"many{i:03}" for i in range(110))]
    assert offered("cableway", "ls", "many01") == [f"many{i:04}" for i in range(100, 200)]


def test_a_name_that_would_be_an_option_is_offered_behind_the_dashes_alone() -> None:
    x = cw.put("-dash", [1])
    cw.put("--help", x)
    cw.put("plain", x)
    assert offered("cableway", "rm", "") == ["plain"]
    assert offered("cableway", "rm", "--", "") == ["--help", "-dash", "plain"]
    assert offered("cableway", "rm", "--", "-") == ["--help", "-dash"]


def test_what_a_terminal_must_not_see_is_not_offered() -> None:
    cw.put("right\u202eleft", cw.put("plain", [1]))
    assert offered("cableway", "ls", "") == ["plain"]


def test_no_broker_is_started(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for words in (("ls", ""), ("ls", "--namespace", ""), ("limit", "set", ""), ("cp", "--device", "")):  # fmt: skip
        offered("cableway", *words, CABLEWAY_DIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == [] and not broker_pid(tmp_path)


def test_a_stopped_broker_is_not_waited_for(broker_folder: Path) -> None:
    x = cw.put("still/here", [1])
    pid = running_broker(broker_folder)
    suspend(pid)
    try:
        took = []
        for _ in range(5):
            began = time.monotonic()
            assert offered("cableway", "ls", "st") == ["still/here"]
            assert offered("cableway", "limit", "set", "max_nam") == ["max_names"]
            took.append((time.monotonic() - began) / 2)
        assert min(took) < ENDS_WITHIN_S, took
    finally:
        os.kill(pid, signal.SIGCONT)
    assert x.nbytes == 8


def test_it_gives_up_in_time_without_a_word(tmp_path: Path) -> None:
    """Where another program's help never ends: the one thing here that is waited for."""
    bridge = tmp_path / "bridge"
    bridge.write_text("#!/bin/sh\nexec sleep 2\n")
    bridge.chmod(0o755)
    began = time.monotonic()
    done = subprocess.run(
        [COMMAND, "completion", "candidates", "cableway", "peers", ""],
        env={**os.environ, "CABLEWAY_BRIDGE": str(bridge)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert time.monotonic() - began < 1.9


def test_another_shell_is_told_which_there_are() -> None:
    said = run("completion", "fish", expect=USAGE).stderr
    assert "bash" in said and "zsh" in said


# ---- in the shells ----

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], ""),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -D -u; "),
}


@contextmanager
def shell(name: str, set_up: str = "") -> Iterator[Terminal]:
    """A shell on a terminal, with the completion of this command."""
    words, before = SHELLS[name]
    program = shutil.which(words[0])
    if not program:
        pytest.skip(f"{name} is not installed")
    path = f"{Path(COMMAND).parent}:{os.environ['PATH']}"
    terminal = Terminal(150, 40, [program, *words[1:]], PATH=path, PS1="$ ", HISTFILE="")
    try:
        set_up = set_up or f'{before}eval "$(cableway completion {name})"'
        terminal.type(f"{set_up}; clear; echo rea''dy\n")
        terminal.shows("ready\n")
        yield terminal
    finally:
        terminal.close()


def shows(terminal: Terminal, *texts: str) -> bool:
    """Whether all of these come onto the screen within a second."""
    end = time.monotonic() + 1
    while time.monotonic() < end:
        terminal.read()
        if all(text in terminal.text for text in texts):
            return True
    return False


def completed(terminal: Terminal, typed: str, *shown: str) -> None:
    """Types that and Tab in an empty line; the screen must show all of these, and the line be empty again after it."""
    terminal.type("clear\n")
    terminal.until(lambda: terminal.text.strip() in ("$", "%", "#"))
    terminal.type(typed + "\t")
    for _ in range(
        TRIES
    ):  # zsh unblocks the alarm, so that on a busy machine the command may give up
        if shows(terminal, *shown):
            break
        terminal.type("\t")
    terminal.shows(*shown)
    terminal.type("\x15\x0b")  # the line is not run


@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_completes_what_is_typed(name: str) -> None:
    x = cw.put("train/x", [1])
    for taken in ("weights/cuda:0", "a/b cat", "a/b d"):
        cw.put(taken, x)
    with shell(name) as terminal:
        completed(terminal, "cableway stat\t", "$ cableway stat", "status")
        completed(terminal, "cableway top --on", "cableway top --once")
        completed(terminal, "cableway ls tra", "cableway ls train/x")
        completed(terminal, "cableway ls weights/cuda:", "cableway ls weights/cuda:0")
        completed(terminal, "cableway limit set max_nam", "cableway limit set max_names")
        completed(terminal, "cableway cp a b --device=c", "cableway cp a b --device=cpu")
        completed(terminal, "cablewayd --idl", "cablewayd --idle-exit")
        completed(terminal, "cableway rm a/b\\ c", "cableway rm a/b\\ cat")
        completed(terminal, "cd /; cableway rm tra", "cableway rm train/x")
        completed(terminal, f"cableway put new {tidy_beginning()}", str(Path(__file__).resolve()))


QUOTED = {
    "cableway stat 'a b": "cableway stat 'a b/c d'",
    'cableway stat "a b': 'cableway stat "a b/c d"',
    "cableway stat a\\ b": "cableway stat a\\ b/c\\ d",
    'cableway rm "sp': 'cableway rm "sp/\\`tick and \\"two\\""',
    "cableway rm 'sp": "cableway rm 'sp/`tick and \"two\"'",
    "cableway rm \"a'b": 'cableway rm "a\'b/$H"'.replace("$", "\\$"),
    "cableway rm o\\'c": "cableway rm o\\'clock",
    "cableway rm bob": "cableway rm bob@host/",
    "cableway rm bob@host/a": "cableway rm bob@host/apple",
    "cableway rm 'bob@host/b": "cableway rm 'bob@host/b:1=2'",
    "cableway rm bob@host/b:1": "cableway rm bob@host/b:1=2",
    "cableway rm x'y z'\"w\" 'a b": "'a b/c d'",
}


@pytest.mark.parametrize("name", SHELLS)
def test_what_is_quoted_becomes_the_name_and_nothing_that_was_typed_goes(name: str) -> None:
    x = cw.put("a b/c d", [1])
    for taken in ('sp/`tick and "two"', "a'b/$H", "o'clock", "bob@host/apple", "bob@host/b:1=2"):
        cw.put(taken, x)
    with shell(name) as terminal:
        for typed, line in QUOTED.items():
            completed(terminal, typed, line)
        terminal.type("cableway rm bob\t\t\t")
        terminal.shows("cableway rm bob@host/")
        terminal.type("\x15\x0bcableway rm a\\'\t")
        terminal.shows("cableway rm a\\'")


def test_a_quote_in_the_name_is_closed_and_opened_again_by_bash() -> None:
    x = cw.put("it's", [1])
    cw.put("now!here", x)
    with shell("bash") as terminal:
        completed(terminal, "cableway rm 'it", "cableway rm 'it'\\''s'")
        completed(terminal, 'cableway rm "now', 'cableway rm "now"\'!\'"here"')
        terminal.type("cableway stat 'it\t\n")
        terminal.shows("it's\n")


@pytest.mark.parametrize("name", SHELLS)
def test_run_finds_a_program_of_the_path(name: str, tmp_path: Path) -> None:
    program = tmp_path / "a-program-of-the-path"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    with shell(name) as terminal:
        terminal.type(f"PATH={tmp_path}:$PATH\n")
        completed(terminal, "cableway run -n 2 a-progr", f"cableway run -n 2 {program.name}")


def tidy_beginning() -> str:
    """The name of a file without its end."""
    return str(Path(__file__).resolve())[:-6]


def test_the_scripts_are_good_ones_in_the_eyes_of_their_shells() -> None:
    for name, (words, _) in SHELLS.items():
        if program := shutil.which(words[0]):
            text = run("completion", name).stdout
            subprocess.run([program, "-n"], input=text, text=True, check=True, timeout=60)
