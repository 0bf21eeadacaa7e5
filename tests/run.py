#!/usr/bin/env python3
"""Runs the test programs, prints a line for each, and one line of counts at the end.

An argument is PART:PROGRAM (an executable or a script, with its own arguments), or for Python
PART:pytest [--quick | --more] FOLDER, PART:pytest-asan FOLDER, PART:pytest-bridge FILE (the bridge is the build folder's), PART:doctest
PACKAGE. A program that prints TAP lines ("ok 1 - name", "not ok 2 - name", "ok 3 # SKIP why") counts by these; any other
is one test by its exit status: 0 passed, 77 skipped, else failed. cmocka programs are asked for TAP.

Every program gets an own CABLEWAY_DIR and time limit. When it has ended, its folder's broker is told to end, which
would do so by itself a minute later; what else it left behind is killed and named: the lane is the subreaper, so
every orphan becomes its child. The full output stands in BUILD/test-logs.

Programs run in lanes, one after another in each: a lane is a process that takes the next program when it has ended one
(--lanes, one a core up to four). `pytest FOLDER` is shared out among them by files; --more takes those of them whose
docstring says that they run in `make test-more`, and --quick all others.
The last line is `N passed, N failed, N skipped`; the exit status is 0 only if nothing failed.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SKIP_STATUS = 77
TURN = struct.Struct("I")
TAP_LINE = re.compile(r"^(not ok|ok) +\d+\b(.*)$")
PYTHON_KINDS = ("pytest", "pytest-asan", "pytest-bridge", "doctest")
PYTHON_LIMIT_S = 900.0
LANES_MAX = 4
KEPT = ("CABLEWAY_SOAK", "CABLEWAY_SET_UP")  # what is said to all programs
MORE = "make test-more"
PYTEST_SHARES = 12  # of a folder, where there are several lanes
BROKER_END_S = 10.0
ORPHANS_END_S = 2.0


@dataclass
class Counts:
    """Numbers of tests, and the names of those that failed or were skipped."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Adds the counts of other."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


def counts_of_tap(output: str, status: int) -> Counts:
    """Counts by TAP lines if there are any, else by the exit status."""
    counts = Counts()
    seen = False
    for line in output.splitlines():
        match = TAP_LINE.match(line)
        if not match:
            continue
        seen = True
        name = match[2].strip(" -")
        if re.search(r"# *skip", name, re.IGNORECASE):  # cmocka writes "not ok 2 # SKIP name"
            counts.skipped.append(re.sub(r"^# *skip *", "", name, flags=re.IGNORECASE))
        elif match[1] == "not ok":
            counts.failed.append(name)
        else:
            counts.passed += 1
    if not seen and status == SKIP_STATUS:
        counts.skipped.append(
            output.strip().splitlines()[-1] if output.strip() else "no reason given"
        )
    elif not seen and status == 0:
        counts.passed = 1
    elif status not in (0, SKIP_STATUS) and not counts.failed:
        counts.failed.append(f"exit status {status}")
    return counts


def counts_of_pytest(report: Path, status: int) -> Counts:
    """Counts of a junit report. A run without a report is one failure."""
    counts = Counts()
    if not report.exists():
        return Counts(failed=[f"pytest ended with status {status} and without a report"])
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}".strip(".")
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            counts.failed.append(name)
        elif skipped is not None:
            counts.skipped.append(f"{name}: {skipped.get('message', '')}")
        else:
            counts.passed += 1
    if status not in (0, 5) and not counts.failed:  # 5: pytest found no tests
        counts.failed.append(f"pytest ended with status {status}")
    return counts


def wait_and_reap(child: subprocess.Popen[bytes], limit_s: float) -> tuple[int, bool]:
    """Waits for child and returns its exit status and whether it ran past its limit.

    Orphans that end meanwhile are reaped at once: a program may wait for its broker to be gone, and a zombie is not.
    """
    end = time.monotonic() + limit_s
    timed_out = False
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child.pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode, timed_out
        if pid == 0:
            time.sleep(0.01)
        if not timed_out and time.monotonic() > end:
            timed_out = True
            os.killpg(child.pid, signal.SIGKILL)


def children() -> list[int]:
    """Our children, those that we adopted among them."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def end_broker(folder: str) -> None:
    """Ends the broker of a folder if it runs. One that does not obey is left to reap_orphans."""
    for lock in Path(folder).glob("*.lock"):
        words = lock.read_text().split()
        pid = int(words[0]) if words and words[0].isdigit() else 0
        if pid not in children():
            continue
        end = time.monotonic() + BROKER_END_S
        os.kill(pid, signal.SIGTERM)
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
            time.sleep(0.005)


def reap_orphans() -> list[str]:
    """The commands of the processes that the last program left behind, which are killed.

    Those are given a moment that end by themselves: a resource tracker whose process has ended, a mover whose broker has.
    """
    killed: list[str] = []
    end = time.monotonic() + ORPHANS_END_S
    while left := children():
        late = time.monotonic() > end
        for pid in left:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if late:
                    os.kill(pid, signal.SIGKILL)
                    if os.waitpid(pid, 0)[1] == signal.SIGKILL:
                        killed.append(textwrap.shorten(command, 160))
                else:
                    os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, FileNotFoundError, ChildProcessError):
                pass
        if not late:
            time.sleep(0.01)
    return killed


class Runner:
    """Runs programs and keeps the counts of each part."""

    def __init__(self, build: Path, limit_s: float) -> None:
        self.build = build.resolve()
        self.limit_s = limit_s
        self.logs = self.build / "test-logs"
        self.parts: dict[str, Counts] = {}

    def environment(self, folder: str) -> dict[str, str]:
        """What a program sees: the built broker and command, a folder of its own, TAP from cmocka."""
        env = dict(os.environ)
        for name in [n for n in env if n.startswith("CABLEWAY_") and n not in KEPT]:
            del env[name]
        path = f"{self.build}:{Path(sys.executable).parent}:{env.get('PATH', '/usr/bin:/bin')}"
        env.update(
            CABLEWAY_DIR=folder,
            CABLEWAY_BROKER=str(self.build / "cablewayd"),
            CABLEWAY_BUILD=str(self.build),
            CMOCKA_MESSAGE_OUTPUT="TAP",
            PATH=path,
            PYTHONFAULTHANDLER="1",
            PYTHONDONTWRITEBYTECODE="1",
            UBSAN_OPTIONS="print_stacktrace=1",
            TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1",
        )
        return env

    def command(
        self, words: list[str], env: dict[str, str], report: Path
    ) -> tuple[list[str], float]:
        """The command line of a program, and its time limit in seconds."""
        limit_s = self.limit_s
        words = narrowed(words)
        if words[0] in PYTHON_KINDS:
            limit_s = max(limit_s, PYTHON_LIMIT_S)
            options = [
                "-q",
                "-ra",
                "-p",
                "no:cacheprovider",
                "--timeout=120",
                f"--junitxml={report}",
            ]
            if words[0] == "doctest":
                options += ["--doctest-modules", "--doctest-ignore-import-errors", "--pyargs"]
            python = sys.executable
            if words[0] == "pytest-asan":
                preload_sanitizer(env)
                python = str(self.build / "venv/bin/python")
                env["PATH"] = env["PATH"].replace(
                    str(Path(sys.executable).parent), str(Path(python).parent)
                )
            if words[0] == "pytest-bridge":
                env["CABLEWAY_BRIDGE"] = str(self.build / "cableway-bridge")
            return [python, "-m", "pytest", *options, *words[1:]], limit_s
        if words[0].endswith(".py"):
            return [sys.executable, *words], limit_s
        return (["sh", *words] if words[0].endswith(".sh") else words), limit_s

    def run(self, part: str, words: list[str]) -> None:
        """Runs one program, prints its line, adds its counts."""
        name = f"{part}: {Path(words[0]).name} {shown(words[1:])}".strip()
        log = self.logs / (re.sub(r"[^A-Za-z0-9_.-]+", "-", name) + ".log")
        folder = tempfile.mkdtemp(prefix="cableway-test-")
        env = self.environment(folder)
        report = log.with_suffix(".xml")
        command, limit_s = self.command(words, env, report)
        began = time.monotonic()
        if not shutil.which(command[0]):
            command = ["sh", "-c", "echo 'not ok 1 - it was not built'"]
        with open(log, "wb") as out:
            child = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status, timed_out = wait_and_reap(child, limit_s)
        end_broker(folder)
        left = reap_orphans()
        shutil.rmtree(folder, ignore_errors=True)
        output = log.read_text(errors="replace")
        is_python = words[0] in PYTHON_KINDS
        counts = counts_of_pytest(report, status) if is_python else counts_of_tap(output, status)
        if timed_out:
            counts.failed.append(f"ran past {limit_s:.0f} s")
        self.parts.setdefault(part, Counts()).add(counts)
        orphans = f"; processes left behind: {', '.join(left)}" if left else ""
        verdict, seconds = "FAIL" if counts.failed else "ok", time.monotonic() - began
        lines = [f"{verdict:4} {seconds:6.1f} s  {name}: {counts}{orphans}"]
        lines += [f"       failed: {failure}" for failure in counts.failed]
        lines += [f"       skipped: {skip}" for skip in counts.skipped]
        if counts.failed:
            lines += ["       | " + line for line in output.splitlines()[-60:]]
        sys.stdout.write("\n".join(lines) + "\n")  # at once: other lanes write too
        sys.stdout.flush()

    def finish(self) -> int:
        """Prints the summary and returns the exit status."""
        total = Counts()
        print()
        for part, counts in self.parts.items():
            print(f"{part:10} {counts}")
            total.add(counts)
        print(total, flush=True)
        return 1 if total.failed or not total.passed else 0


def preload_sanitizer(env: dict[str, str]) -> None:
    """AddressSanitizer's runtime must come first in a program that was built without it. Python never frees all.

    Who breaks memory on purpose ends by its signal, as without it.
    """
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    cxx = subprocess.run(
        ["gcc", "-print-file-name=libstdc++.so.6"], capture_output=True, text=True, check=True
    )
    env["LD_PRELOAD"] = f"{library.stdout.strip()} {cxx.stdout.strip()}"
    env["ASAN_OPTIONS"] = "detect_leaks=0:allocator_may_return_null=1:handle_segv=0"
    env["CABLEWAY_ASAN"] = "1"


def shown(words: list[str]) -> str:
    """A program's arguments, many files by their number."""
    files = [word for word in words if word.endswith(".py")]
    if len(files) < 3:
        return " ".join(words)
    return " ".join(
        [
            *(w for w in words if w not in files),
            f"{len(files)} files, {Path(files[0]).stem} and others",
        ]
    )


def narrowed(words: list[str]) -> list[str]:
    """The files in and below a folder that --quick or --more asks for; all else as it is."""
    if words[1:2] not in (["--quick"], ["--more"]):
        return words
    files = sorted(Path(words[-1]).rglob("test_*.py"))
    more = words[1] == "--more"
    return [words[0], *(str(f) for f in files if (MORE in (docstring_of(f) or "")) == more)]


def docstring_of(file: Path) -> str | None:
    """What a file says of itself."""
    return ast.get_docstring(ast.parse(file.read_text()))


def shares(item: str) -> list[str]:
    """A folder for pytest as several programs, each with some of its files; all else as it is."""
    part, _, program = item.partition(":")
    words = shlex.split(program)
    if words[0] not in ("pytest", "pytest-asan") or not Path(words[-1]).is_dir():
        return [item]
    words = narrowed(words)
    if Path(words[-1]).is_dir():
        words[-1:] = sorted(str(file) for file in Path(words[-1]).rglob("test_*.py"))
    head = [word for word in words if not word.endswith(".py")]
    files = words[len(head) :]
    dealt = [files[i::PYTEST_SHARES] for i in range(PYTEST_SHARES)]
    return [f"{part}:{shlex.join([*head, *share])}" for share in dealt if share]


def run_lane(runner: Runner, programs: list[str], turns: int) -> None:
    """Runs the programs whose numbers come from turns, a pipe that all lanes read."""
    # A shell that starts us in the background ignores SIGINT for us, and so for every program here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    while turn := os.read(turns, TURN.size):
        part, _, program = programs[TURN.unpack(turn)[0]].partition(":")
        runner.run(part, shlex.split(program))


def run_lanes(runner: Runner, programs: list[str], count: int) -> None:
    """Runs all programs in so many lanes; their counts are the runner's then."""
    turns, end = os.pipe()
    os.write(end, b"".join(TURN.pack(i) for i in range(len(programs))))
    os.close(end)
    lanes = []
    for lane in range(count):
        told = runner.logs / f"lane-{lane}.json"
        pid = os.fork()
        if pid == 0:
            try:
                run_lane(runner, programs, turns)
                told.write_text(json.dumps({part: vars(c) for part, c in runner.parts.items()}))
                os._exit(0)
            finally:
                os._exit(1)
        lanes.append((pid, told))
    os.close(turns)
    for pid, told in lanes:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status:
            runner.parts.setdefault("runner", Counts()).failed.append(f"a lane ended with {status}")
            continue
        for part, counts in json.loads(told.read_text()).items():
            runner.parts.setdefault(part, Counts()).add(Counts(**counts))


def main() -> int:
    """Parses the command line and runs all programs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=Path, required=True, help="the build folder")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one program")
    lanes = min(len(os.sched_getaffinity(0)), LANES_MAX)
    parser.add_argument("--lanes", type=int, default=lanes, help="how many run at once")
    parser.add_argument("programs", nargs="+", metavar="PART:PROGRAM")
    args = parser.parse_args()
    runner = Runner(args.build, args.timeout)
    shutil.rmtree(runner.logs, ignore_errors=True)
    runner.logs.mkdir(parents=True)
    programs = args.programs
    if args.lanes > 1:
        programs = [program for item in programs for program in shares(item)]
    run_lanes(runner, programs, min(args.lanes, len(programs)))
    return runner.finish()


if __name__ == "__main__":
    sys.exit(main())
