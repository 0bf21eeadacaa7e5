"""compute-sanitizer's memcheck over programs that launch kernels: run.sh BUILD sanitize.

First, two controls: a kernel that writes where nothing is must be reported, in a process that was exec'd by Python and
in one that was forked by a program. A tool that misses the first sees nothing, and that fails the check. Where it misses
the second alone, programs whose processes are forked are left out, and the result says so.

While a program runs its processes are looked at in /proc: which of them use CUDA, and whether the tool's library is in
them. One that uses CUDA without it fails the check, since nobody looks at its kernels. (Where not even the controls'
processes can be told so, that is said, and fails nothing.) The tool's own log has no part for each process: there is one
log a program.

The GPU's free memory is not looked at: other tests run beside this, and the tool takes some itself. The deaths, which
have the GPU for themselves, look at it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
MARK = "CABLEWAY_SANITIZED"  # in the environment of all that runs under the tool
GRACE_S = 2  # so long may a process use CUDA before the tool's library is in it
OPTIONS = (
    "--tool", "memcheck", "--target-processes", "all", "--max-connections", "64", "--report-api-errors", "no",
    "--require-cuda-init", "no", "--check-exit-code", "no",
)  # fmt: skip
BAD = re.compile(
    r"^=+ (Invalid|Misaligned|Program hit|Error:|Leaked|Out-of-range|Malloc|Internal)|ERROR SUMMARY: [1-9]",
    re.MULTILINE,
)
REPORTED = re.compile(r"^=+ Invalid .*write", re.MULTILINE)


class Program(NamedTuple):
    """What runs under the tool. forks: its processes are forked from one, and not exec'd."""

    name: str
    command: list[str]
    limit: int
    forks: bool = False


def controls(build: Path) -> list[Program]:
    """A bad kernel in a process that Python exec'd, and in a forked one."""
    broken = str(build / "tests/gpu/broken_context")
    start = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    return [
        Program("exec'd", [sys.executable, "-c", start, broken, "alone"], 60),
        Program("forked", [broken, "forked"], 60, forks=True),
    ]


def programs(build: Path) -> list[Program]:
    """What is looked at."""
    of = build / "tests/gpu"
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rs", "-k"]
    here = [name for name in ("cupy", "numba") if importlib.util.find_spec(name)]

    def file(name: str) -> str:
        (path,) = (HERE.parent / "py").rglob(name)
        return str(path)

    libraries = [
        Program(f"kernels of {name}", [*pytest, name, file("test_cuda_libraries.py")], 90)
        for name in here
    ]
    return [
        Program(
            "order and work",
            [*pytest, "reader_waits_for or one_piece_of_work or several_arrays_is", file("test_cuda_order.py"), file("test_cuda_work.py")],
            90,
        ),
        *libraries,
        Program("fence_deaths", [str(of / "fence_deaths"), "5", "1"], 90, forks=True),
        Program("bench_fence", [str(of / "bench_fence"), "50"], 60, forks=True),
        Program("bench_import", [str(of / "bench_import"), "3", "64"], 60, forks=True),
    ]  # fmt: skip


def looked(maps: str, files: list[str]) -> tuple[bool, bool]:
    """Of a process: whether it uses CUDA, and whether the tool's library is in it."""
    device = any(name.startswith("/dev/nvidia") for name in files) or "libcuda-double" in maps
    return device and "libcuda" in maps, "libsanitizer" in maps


class Watch:
    """The processes that use CUDA, by their pids: the tool is in them, or since when it is not."""

    def __init__(self, mark: str) -> None:
        self.mark = f"{MARK}={mark}".encode()
        self.seen: set[int] = set()
        self.since: dict[int, float] = {}
        self.unseen: set[int] = set()

    def marked(self) -> Iterator[Path]:
        """Those of the programs, the tool's own among them, in /proc."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # it has ended, or is not ours
                if entry.name.isdigit() and self.mark in (entry / "environ").read_bytes().split(
                    b"\0"
                ):
                    yield entry

    def look(self) -> None:
        """Looks at all of them once."""
        for entry in self.marked():
            with contextlib.suppress(OSError):
                files = [os.readlink(fd) for fd in (entry / "fd").iterdir()]
                self.note(int(entry.name), *looked((entry / "maps").read_text(), files))

    def end(self, tool: int) -> None:
        """Kills all but the tool."""
        for entry in self.marked():
            with contextlib.suppress(OSError):
                name = (entry / "comm").read_text()
                if int(entry.name) != tool and not name.startswith(
                    ("TreeLauncher", "compute-sani")
                ):
                    os.kill(int(entry.name), signal.SIGKILL)

    def note(self, pid: int, uses: bool, inside: bool) -> None:
        """What was found of a process."""
        if uses and inside:
            self.seen.add(pid)
            self.unseen.discard(pid)
        elif uses and time.monotonic() - self.since.setdefault(pid, time.monotonic()) > GRACE_S:
            self.unseen.add(pid)


def find() -> str | None:
    """The tool's path."""
    places = sorted(Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    return os.environ.get("CABLEWAY_SANITIZER") or shutil.which("compute-sanitizer") or (str(places[-1]) if places else None)  # fmt: skip


def run(tool: str, program: Program, folder: Path, watch: Watch) -> tuple[str, int | None]:
    """Runs one under the tool: what the tool says, and the exit status; None: its time was over."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    print(f"# {program.name}: {' '.join(program.command)}", flush=True)
    env = {**os.environ, MARK: str(folder), "CABLEWAY_TEST_GPU_SHARED": "1"}
    if program.name.startswith("bench") and os.environ["CABLEWAY_TEST_GPU"] != "1":
        env["CABLEWAY_CUDA_DRIVER"] = (
            f"{os.environ['CABLEWAY_BUILD']}/tests/fakecuda/libcuda-double.so"
        )
        env["CABLEWAY_FAKECUDA_DIR"] = env["CABLEWAY_DIR"]
    process = subprocess.Popen(
        [tool, *OPTIONS, "--log-file", str(log), *program.command],
        stdin=subprocess.DEVNULL,
        cwd=HERE.parent / "py",
        env=env,
        start_new_session=True,
    )
    end = time.monotonic() + program.limit
    while process.poll() is None and time.monotonic() < end:
        watch.look()
        time.sleep(0.05)
    status = process.poll()
    if status is None:  # the tool writes its log when all have ended
        watch.end(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with what it left behind
    process.wait()
    return (log.read_text(errors="replace") if log.exists() else ""), status


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A folder for this run, with a broker of its own, which ends with it.

    It is there before: a broker that a program under the tool starts would be one of its processes, for which it waits.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cableway").mkdir(mode=0o700)
        os.environ["CABLEWAY_DIR"] = str(folder / "cableway")
        subprocess.run([os.environ["CABLEWAY_BROKER"], "--idle-exit", "900"], check=True)
        yield folder
        stop = [str(Path(os.environ["CABLEWAY_BUILD"]) / "cableway"), "stop"]
        subprocess.run(stop, capture_output=True, check=False)


def try_controls(tool: str, build: Path, folder: Path, watch: Watch) -> dict[str, bool]:
    """By name: whether a bad kernel was reported."""
    reports = {}
    for control in controls(build):
        log, _ = run(tool, control, folder, watch)
        reports[control.name] = bool(REPORTED.search(log))
        said = "was reported" if reports[control.name] else f"was NOT reported:\n{log[-3000:]}"
        print(f"# the control's bad kernel, {control.name}: {said}", flush=True)
    return reports


def check(tool: str, build: Path, folder: Path) -> list[str]:
    """All of it; what is wrong."""
    watch = Watch(str(folder))
    reports = try_controls(tool, build, folder, watch)
    if not reports["exec'd"]:
        return ["it sees nothing: a bad kernel was not reported"]
    told = bool(watch.seen)  # that the tool is in a process; else /proc does not tell it here
    wrong, watch = [], Watch(str(folder))
    chosen = [one for one in programs(build) if reports["forked"] or not one.forks]
    for program in chosen:
        before = len(watch.seen)
        log, status = run(tool, program, folder, watch)
        print(f"# {program.name}: {len(watch.seen) - before} processes with CUDA, exit {status}")
        if status is None:
            wrong.append(f"{program.name} took too long")
        elif status:
            wrong.append(f"{program.name} ended with {status}")
        if BAD.search(log):
            print(log, flush=True)
            wrong.append(f"errors in {program.name}")
        if told and len(watch.seen) == before:
            wrong.append(f"{program.name}: no process with CUDA was seen")
    if told and watch.unseen:
        wrong.append(f"{len(watch.unseen)} processes used CUDA out of its sight")
    count = f"{len(watch.seen)} processes with CUDA looked at"
    out = [] if reports["forked"] else [one.name for one in programs(build) if one.forks]
    print(
        f"compute-sanitizer: {len(chosen)} programs, "
        f"{count if told else 'processes with CUDA cannot be told here'}, "
        f"{'; '.join(wrong) or 'no errors'}"
        + (f"; forked children are out of its sight, left out: {', '.join(out)}" if out else "")
    )
    return wrong


def main() -> int:
    """0: all was seen, and nothing was wrong."""
    tool = find()
    if not tool:
        print("compute-sanitizer: it is not here (CUDA's toolkit has it): nothing was checked")
        return 1
    with own_folder() as folder:
        wrong = check(tool, Path(os.environ["CABLEWAY_BUILD"]), folder)
    if wrong and wrong[0].startswith("it sees nothing"):
        print(f"compute-sanitizer: {wrong[0]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
