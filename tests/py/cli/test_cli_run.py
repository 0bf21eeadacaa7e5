"""`cableway run`: many processes of one program, and that none of them is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_support import COMMAND, FAILED, LIMIT, OK, USAGE, run, state
from conftest import eventually

TIMES = 20  # deaths of each kind


def shell(text: str) -> list[str]:
    return ["--", "sh", "-c", text]


@contextmanager
def job(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A job that runs. It must have ended by itself at the end of the block."""
    with subprocess.Popen(
        [COMMAND, "run", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    ) as process:
        try:
            yield process
            process.wait(timeout=60)
        finally:
            process.kill()


# Each rank starts a child, which starts another one; all write their pids and sleep for ever.
SLEEPERS = """
sh -c 'echo $$ >>"$PIDS"; sleep 1000 & echo $! >>"$PIDS"; wait' &
echo $$ >>"$PIDS"
wait
"""


def pids_in(path: Path, count: int) -> list[int]:
    """The pids of sleepers, once all are there."""
    found: list[int] = []

    def all_there() -> bool:
        found[:] = [int(line) for line in path.read_text().split()] if path.exists() else []
        return len(found) == count

    assert eventually(all_there), found
    return found


def all_ended(pids: list[int]) -> bool:
    return all(state(pid) in "ZX" for pid in pids)


def test_each_process_knows_its_rank_and_all_the_same_group(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "e = os.environ\n"
        "said = [e['CABLEWAY_RANK'], e['CABLEWAY_SIZE'], e['CABLEWAY_GROUP'], *sys.argv[1:]]\n"
        "os.write(1, (' '.join(said) + '\\n').encode())\n"
    )
    python = {"CABLEWAY_PYTHON": sys.executable}
    groups = set()
    for _ in range(2):
        said = run("run", "-n", "3", str(script), "-n", "7", env=python).stdout.splitlines()
        lines = sorted(line.split() for line in said)
        assert [(line[0], line[1], line[3:]) for line in lines] == [
            (str(rank), "3", ["-n", "7"]) for rank in range(3)
        ]
        assert len({line[2] for line in lines}) == 1
        groups.add(lines[0][2])
    assert len(groups) == 2, "each job has a group of its own"


def test_a_script_is_run_by_the_first_python_in_path(tmp_path: Path) -> None:
    script, python = tmp_path / "script.py", tmp_path / "python3"
    script.write_text("")
    python.write_text('#!/bin/sh\necho "my python runs $1"\n')
    python.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CABLEWAY_PYTHON": ""}
    assert run("run", "-n", "1", str(script), env=path).stdout == f"my python runs {script}\n"


def test_the_first_process_reads_stdin() -> None:
    said = run(
        "run", "-n", "3", "--tag", *shell("cat; echo end"), stdin=None, input="for rank 0\n"
    ).stdout
    assert sorted(said.splitlines()) == ["[0] end", "[0] for rank 0", "[1] end", "[2] end"]


def test_tagged_lines_are_whole() -> None:
    write = (
        "for i in $(seq 200); do printf 'one '; printf 'line\\n'; echo err >&2; done; printf cut"
    )
    done = run("run", "-n", "4", "--tag", *shell(write))
    for rank in range(4):
        assert done.stdout.splitlines().count(f"[{rank}] one line") == 200
        assert done.stdout.splitlines().count(f"[{rank}] cut") == 1
        assert done.stderr.splitlines().count(f"[{rank}] err") == 200
    assert len(done.stdout.splitlines()) == 4 * 201


def test_a_long_line_is_cut() -> None:
    text = "head -c 150000 /dev/zero | tr '\\0' x"
    said = run("run", "-n", "1", "--tag", *shell(text)).stdout.splitlines()
    assert [len(line) for line in said] == [65540, 65540, 150000 - 2 * 65536 + 4]


def test_a_reader_that_goes_away_ends_the_job() -> None:
    with job("-n", "2", "--tag", *shell("yes")) as process:
        assert process.stdout is not None
        assert process.stdout.readline() in ("[0] y\n", "[1] y\n")
        process.stdout.close()
        assert process.wait(timeout=60) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("exit 3", 3, "rank 1 .* ended with exit code 3; the others are ended"),
        ("kill -9 $$", 128 + 9, "rank 1 .* was killed by signal 9 .*; the others are ended"),
    ],
)
def test_the_first_that_fails_ends_the_others(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    pids = tmp_path / "pids"
    both = f"[ $CABLEWAY_RANK = 1 ] && {{ read x <{tmp_path}/go; {text}; }}; {SLEEPERS}"
    os.mkfifo(tmp_path / "go")
    with job("-n", "3", *shell(both), env={**os.environ, "PIDS": str(pids)}) as process:
        sleepers = pids_in(pids, 6)
        (tmp_path / "go").write_text("now\n")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert re.search(said, errors), errors
    assert all_ended(sleepers)


def test_keep_going_lets_the_others_end_by_themselves() -> None:
    text = (
        "[ $CABLEWAY_RANK = 1 ] && exit 3; sleep 0.2; echo done; exit $((4 * (CABLEWAY_RANK / 2)))"
    )
    done = run("run", "-n", "3", "--keep-going", *shell(text), expect=3)
    assert done.stdout == "done\ndone\n"
    assert "the others go on" in done.stderr


def test_who_does_not_heed_sigterm_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = (
        f'trap "" TERM; [ $CABLEWAY_RANK = 1 ] && {{ read x <{tmp_path}/go; exit 3; }}; {SLEEPERS}'
    )
    os.mkfifo(tmp_path / "go")
    with job(
        "-n", "2", "--grace", "0.1", *shell(text), env={**os.environ, "PIDS": str(pids)}
    ) as process:
        sleepers = pids_in(pids, 3)
        (tmp_path / "go").write_text("now\n")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "1 ranks had not ended after 0.1 s" in errors
    assert all_ended(sleepers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_all_processes(number: signal.Signals) -> None:
    text = f"""
import os, signal, time
signal.signal({int(number)}, lambda *_: exit(7))
os.write(1, b"there\\n")  # at one go, whatever PYTHONUNBUFFERED says
time.sleep(1000)
"""
    with job("-n", "3", "--", sys.executable, "-c", text) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == "there\n"
        process.send_signal(number)
        assert process.wait(timeout=60) == 7


def test_a_signal_that_kills_is_the_exit_code() -> None:
    with job("-n", "2", *shell("echo there; exec sleep 1000")) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 128 + signal.SIGINT


def test_a_signal_that_was_ignored_stays_so() -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    text = "grep SigIgn /proc/$$/status; read x"
    with subprocess.Popen(
        [COMMAND, "run", "-n", "1", *shell(text)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=ignore, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert int(process.stdout.readline().split()[1], 16) & 1 << (signal.SIGINT - 1)
        process.send_signal(signal.SIGINT)
        process.communicate("go on\n", timeout=60)
        assert process.returncode == OK


def test_nothing_is_left_when_the_command_is_killed(tmp_path: Path) -> None:
    for i in range(TIMES):
        pids = tmp_path / f"pids{i}"
        with job("-n", "2", *shell(SLEEPERS), env={**os.environ, "PIDS": str(pids)}) as process:
            sleepers = pids_in(pids, 6)
            process.kill()
            assert eventually(lambda sleepers=sleepers: all_ended(sleepers))


def keeper_of(process: subprocess.Popen[str]) -> int:
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def test_nothing_is_left_when_the_keeper_is_killed(tmp_path: Path) -> None:
    for i in range(TIMES):
        pids = tmp_path / f"pids{i}"
        with job("-n", "2", *shell(SLEEPERS), env={**os.environ, "PIDS": str(pids)}) as process:
            sleepers = pids_in(pids, 6)
            os.kill(keeper_of(process), signal.SIGKILL)
            assert process.wait(timeout=60) == 128 + signal.SIGKILL
            assert all_ended(sleepers)


def test_what_ranks_leave_behind_is_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = 'sleep 1000 & echo $! >>"$PIDS"'
    run(
        "run",
        "-n",
        "3",
        *shell(text),
        env={"PIDS": str(pids)},
        stdout=subprocess.DEVNULL,
        capture_output=False,
    )
    assert all_ended(pids_in(pids, 3))


def test_a_session_of_its_own_outlives_the_job(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = 'setsid sh -c \'echo $$ >>"$PIDS"; exec sleep 1000\' >/dev/null 2>&1 </dev/null & while ! [ -s "$PIDS" ]; do sleep 0.01; done'
    run("run", "-n", "1", *shell(text), env={"PIDS": str(pids)})
    (daemon,) = pids_in(pids, 1)
    assert state(daemon) == "S"
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["-n", "257", "true"], USAGE, "-n 257: a group has at most 256 processes"),
        (["-n", "99999999999999999999", "true"], USAGE, "at most 256 processes"),
        (["-n", "0", "true"], USAGE, "from 1 to 256, not '0'"),
        (["-n", "x", "true"], USAGE, "from 1 to 256, not 'x'"),
        (["-n", "2"], USAGE, "too few"),
        (["--grace", "-1", "true"], USAGE, "--grace takes a number of seconds, not '-1'"),
        (["--what", "true"], USAGE, "no such option: --what"),
        (["-n", "2", "/no/such"], 127, "/no/such cannot be run: No such file"),
        (["-n", "2", "/"], 126, "/ cannot be run: Permission denied"),
    ],
)
def test_bad_arguments(arguments: list[str], code: int, said: str) -> None:
    errors = run("run", *arguments, expect=code).stderr
    assert said in errors
    assert errors.count("\n") == 1, "it is said once"


def test_a_python_that_is_none_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    errors = run("run", str(script), expect=127, env={"CABLEWAY_PYTHON": "/no/python"}).stderr
    assert "CABLEWAY_PYTHON names /no/python, which cannot be run" in errors
    errors = run("run", str(script), expect=127, env={"CABLEWAY_PYTHON": "", "PATH": "/no"}).stderr
    assert "set CABLEWAY_PYTHON to its path" in errors


def test_output_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = run(
            "run",
            "-n",
            "1",
            "--tag",
            *shell("echo lost; exit 0"),
            stdout=full,
            stderr=subprocess.PIPE,
            capture_output=False,
            expect=FAILED,
        )
    assert "writing the output failed: No space left" in done.stderr


def test_as_many_as_cpus_without_a_number() -> None:
    said = run("run", *shell("echo $CABLEWAY_SIZE"), expect=OK).stdout.split()
    assert said == [str(len(os.sched_getaffinity(0)))] * len(os.sched_getaffinity(0))


def test_an_empty_program_is_no_program() -> None:
    done = run("run", "-n", "2", "", expect=127)
    assert "there is no program" in done.stderr


def test_tags_that_find_no_descriptors_start_nothing() -> None:
    for limit in (40, 64):
        done = subprocess.run(
            ["sh", "-c", f'ulimit -n {limit}; exec "$0" run -n 40 --tag true', COMMAND],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == LIMIT, done
        assert "assertion" not in done.stderr
