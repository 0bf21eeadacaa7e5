"""All that is to be seen on real GPUs in one call: tests, deaths, compute-sanitizer, benchmarks; called by run.sh.

Each step is a program with a time limit of its own, in a process group that ends with it. What it prints goes to
OUT/running at once and, when it has ended, to the end of OUT/logs.txt, so that a call that is cut off leaves what there
was. Several test files run at a time, with compute-sanitizer beside them; deaths and benchmarks run alone, since they
look at what the GPU holds or how fast it is. Last comes a line for each step, which is in OUT/table.txt too; what was cut
short, or never begun since the time was over, says so, and a benchmark that kept its results and missed a promise names
it. The exit status is 0 if all was ok.

    steps.py one|two [--seconds N] [--out FOLDER] [--at-once N] [--only NAME,...] [--kills N]

one: what one GPU is enough for. two: the tests that one GPU skips, and what is measured between two. --kills: of members of groups in group-deaths, which
has all the seconds then: `--only group-deaths --kills 1000 --seconds 590`.
With CABLEWAY_TEST_GPU=0 all of it runs on the test double, benchmarks in tiny sizes, to see that it does.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
TESTS, BENCH = HERE.parent / "py", HERE.parent.parent / "tools/bench"
BUILD = Path(os.environ["CABLEWAY_BUILD"])
REAL = os.environ["CABLEWAY_TEST_GPU"] == "1"
FILES = (
    "test_cuda*.py", "test_evict*.py", "test_mover*.py", "test_overlap*.py", "test_pool_devices*.py", "test_transfers_gpu.py",
    "test_gpu_examples.py", "test_guide.py", "test_bridge_gpu*.py", "test_cli_top_gpu.py",
)  # fmt: skip
_NOTHING_RUN = 5  # pytest's exit status when it has run no test
_GRACE = 5  # seconds between SIGTERM and SIGKILL


class Step(NamedTuple):
    """One program.

    Attributes:
        limit: seconds.
        alone: the seconds that it takes about, in which nothing else runs; 0: others may. Time is kept for those: what
            else has not begun by then comes after them.
    """

    name: str
    command: list[str]
    limit: int
    alone: int = 0


def pytest(file: str) -> list[str]:
    """The command for one file of tests."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rs",
        "--durations=5",
    ]
    if importlib.util.find_spec("pytest_timeout") is not None:
        command += ["--timeout=90", "--timeout-method=thread"]
    (path,) = TESTS.rglob(file)
    return [*command, str(path)]


def tests(saying: str = "") -> list[Step]:
    """The files of tests, those that take longest first; of those with a text in them."""
    found = {path for pattern in FILES for path in TESTS.rglob(pattern)}
    files = sorted(path.name for path in found if saying in path.read_text())
    last = ("test_overlap_ahead.py", "test_cuda_interfaces.py", "test_pool_devices_alone.py")
    files.sort(key=lambda name: (name in last, not name.startswith(("test_pool", "test_mover"))))
    return [Step(Path(name).stem[5:], pytest(name), 240) for name in files]


def whole(file: str) -> Step:
    """A file whose tests use as many GPUs as there are, none of which is marked: all of it on two, too."""
    return Step(Path(file).stem[5:], ["env", "-u", "CABLEWAY_TEST_SECOND_GPU", *pytest(file)], 240)


def benchmark(name: str, *arguments: str) -> list[str]:
    """The command for one of tools/bench."""
    if not REAL:
        tiny = {
            "bench_gpu_pool": ["--smoke"],
            "bench_gpu_staged": [str(1 << 20)],
            "bench_tree_copy": ["40", "100000"],
            "gpu/bench_groups": ["--largest", "65536", "--rounds", "2"],
        }
        arguments = (*tiny.get(name, []), *arguments)
    return [sys.executable, str(BENCH / f"{name}.py"), *arguments]


def deaths(seconds: int) -> Step:
    """Producers killed for so many seconds; kills of several runs, each with its seed, may be added up."""
    command = [str(BUILD / "tests/gpu/fence_deaths"), os.environ.get("DEATHS", "1000"), "8"]
    return Step("deaths", [*command, str(seconds)], seconds + 30, seconds - 40)


def group_deaths(kills: int = 40 if REAL else 8, seconds: int = 90) -> Step:
    """Members of groups killed in operations on GPUs; fewer when the seconds are over. Many die in groups of eight, since CUDA
    takes its time to begin in each process, of which two of four live on.
    """
    command = [sys.executable, str(TESTS / "groups/group_storm.py"), str(kills), "0", "gpu"]
    command += ["--members", "8" if kills > 100 else "4", "--seconds", str(seconds)]
    return Step("group-deaths", command, seconds + 30, 50)


def steps(which: str) -> list[Step]:
    """What there is to do, in its order."""
    programs = BUILD / "tests/gpu"
    if which == "two":
        return [
            *tests("second_gpu"),
            *(whole(name) for name in ("test_gpu_examples.py", "test_pool_devices_resize.py")),
            Step(
                "bench-gpu",
                benchmark("bench_gpu", "--seconds", "80", "fences", "imports", "peers"),
                120,
                80,
            ),
            Step("bench-staged", benchmark("bench_gpu_staged"), 90, 40),
            Step("bench-tree-copy", benchmark("bench_tree_copy"), 90, 40),
            Step("bench-pool", benchmark("bench_gpu_pool", "scaling", "overlap", "idle"), 90, 40),
            Step("bench-groups", benchmark("gpu/bench_groups", "--seconds", "80"), 150, 100),
            group_deaths(),
        ]
    return [
        Step("sanitize", [sys.executable, str(HERE / "sanitize.py")], 300),
        *tests(),
        Step("bad-import", [str(programs / "bad_import")], 30, 3),
        Step("broken-context", [str(programs / "broken_context")], 30, 5),
        Step("bench-pool", benchmark("bench_gpu_pool"), 120, 60),
        Step("bench-gpu", benchmark("bench_gpu", "--seconds", "100"), 150, 90),
        group_deaths(),
        deaths(170),
    ]  # fmt: skip


class Running:
    """A step that runs."""

    def __init__(self, step: Step, folder: Path, end: float) -> None:
        self.step = step
        self.log = folder / f"{step.name}.txt"
        self.begin = time.monotonic()
        self.end = min(self.begin + step.limit, end)
        env = dict(os.environ)
        if not REAL:
            env["CABLEWAY_FAKECUDA_MEMORY_MIB"] = "4096" if step.name == "deaths" else "1024"
        if not REAL and step.name.startswith(("bench", "group")):
            env["CABLEWAY_CUDA_DRIVER"] = str(BUILD / "tests/fakecuda/libcuda-double.so")
            env["CABLEWAY_FAKECUDA_DIR"] = env["CABLEWAY_DIR"]
            env["CABLEWAY_BENCH_LARGEST_MIB"] = "8"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                step.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=TESTS,
                env=env,
                start_new_session=True,
            )
        self.cut = ""

    def ended(self) -> bool:
        """Whether it has; it is ended when its time is over."""
        if self.process.poll() is not None:
            return True
        late = time.monotonic() - self.end
        if late >= 0:
            self.cut = f", CUT at {self.end - self.begin:.0f} s"
            self.signal(signal.SIGKILL if late > _GRACE else signal.SIGTERM)
        return False

    def signal(self, number: int) -> None:
        """To all of its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def line(self) -> str:
        """What the table says of it."""
        seconds = time.monotonic() - self.begin
        good, said = verdict(
            self.log.read_text(errors="replace"), self.process.returncode, self.cut
        )
        return f"{self.step.name:24}{seconds:6.0f} s  {good:8}{said}"


_TELLS = re.compile(
    r"\d+ (passed|failed|skipped|deselected|error)|promises|producers killed|^compute-sanitizer:|s on \d"
)


def verdict(text: str, code: int, cut: str) -> tuple[str, str]:
    """Of a log and an exit status: ok, MISSED (a promise of a benchmark) or NOT OK, and what there is to say."""
    lines = [line.strip("= \n") for line in text.splitlines() if line.strip("= \n")]
    said = ([line for line in lines if _TELLS.search(line)] or lines or ["it said nothing"])[-1][
        :260
    ]
    reasons = sorted({line.partition(": ")[2] for line in lines if line.startswith("SKIPPED")})
    said += f" ({'; '.join(reasons)})"[:200] if reasons else ""
    if code == _NOTHING_RUN and not cut and re.search(r"\d+ (skipped|deselected)", said):
        return "ok", f"nothing for this machine: {said}"
    if code or cut:
        return "NOT OK", said + cut + (f", exit {code}" if code else "")
    gone = missed(text) if REAL else []  # the double's figures say nothing
    return ("MISSED", f"{said}: {'; '.join(gone)}") if gone else ("ok", said)


def missed(text: str) -> list[str]:
    """What the benchmarks say is not kept: of bench_gpu's second table, and of bench_gpu_pool's."""
    found = []
    for line in text.splitlines():
        words = re.split(r"\s{2,}", line.strip())
        if words[-1] == "MISSED":
            found.append(f"{words[0]} {words[-2]} ({words[-3]})")
        elif "NO" in words[1:3]:
            at = words.index("NO")
            found.append(f"{words[0]} {words[-1]} ({' '.join(words[1:at])})")
    return found


class Table:
    """What was found, written down as it is found."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.lines: list[str] = []
        self.failed = False
        (out / "logs.txt").write_bytes(b"")

    def add(self, line: str) -> None:
        """A line, at once."""
        self.lines.append(line)
        self.failed = self.failed or " ok " not in line[:48]
        (self.out / "table.txt").write_text("\n".join(self.lines) + "\n")

    def done(self, one: Running) -> None:
        """A step has ended."""
        one.signal(signal.SIGKILL)  # whatever it has left behind
        line = one.line()
        self.add(line)
        print(line, flush=True)
        with (self.out / "logs.txt").open("ab") as logs:
            logs.write(f"\n######## {line}\n".encode())
            logs.write(one.log.read_bytes())
        one.log.unlink()


def run(waiting: list[Step], table: Table, folder: Path, at_once: int, end: float) -> None:
    """Runs all steps, as many at a time as may be, until the time is over."""
    running: list[Running] = []
    try:
        while waiting or running:
            for one in [one for one in running if one.ended()]:
                running.remove(one)
                table.done(one)
            kept = sum(step.alone for step in waiting)
            if kept and time.monotonic() >= end - kept:
                waiting.sort(
                    key=lambda step: not step.alone
                )  # the rest comes after them, in its order
            while waiting and time.monotonic() < end:
                together = not any(one.step.alone for one in running) and len(running) < at_once
                if running and (waiting[0].alone or not together):
                    break
                until = end if waiting[0].alone else end - sum(step.alone for step in waiting)
                running.append(Running(waiting.pop(0), folder, until))
            if time.monotonic() >= end:
                for step in waiting:
                    table.add(f"{step.name:24}     -    NOT BEGUN, the time was over")
                waiting = []
            time.sleep(0.05)
    finally:
        for one in running:
            one.signal(signal.SIGKILL)


def gpu_memory() -> str:
    """What nvidia-smi says is in use on each GPU."""
    asked = ["nvidia-smi", "--query-gpu=name,memory.used", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return f"nvidia-smi: {error}"
    return "; ".join(told.split("\n")).strip("; ")


def main() -> int:
    """0 if all went well and nothing was cut."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("which", choices=("one", "two"))
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--out", type=Path, default=BUILD / "gpu")
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    begin = time.monotonic()
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ["CABLEWAY_DIR"] = tempfile.mkdtemp(prefix="cw-gpu-")
    if given.which == "two":
        os.environ["CABLEWAY_TEST_SECOND_GPU"] = "1"
    waiting = steps(given.which)
    if given.only:
        names = given.only.split(",")
        waiting = [step for step in waiting if step.name in names or ("tests" in names and not step.alone and step.name != "sanitize")]  # fmt: skip
    if given.kills:
        many = group_deaths(given.kills, max(1, int(given.seconds) - 30))
        waiting = [many if step.name == many.name else step for step in waiting]
    if [step.name for step in waiting] == ["deaths"]:
        waiting = [deaths(400)]  # it has all the time
    before, table, folder = gpu_memory(), Table(given.out), given.out / "running"
    folder.mkdir(exist_ok=True)
    run(waiting, table, folder, given.at_once, begin + given.seconds)
    subprocess.run([BUILD / "cableway", "stop"], capture_output=True, check=False)
    shutil.rmtree(os.environ["CABLEWAY_DIR"], ignore_errors=True)
    took = f"{time.monotonic() - begin:.0f} s; GPU memory before: {before}; after: {gpu_memory()}"
    print(f"\n#### {given.which} GPU(s), {took}")
    print("\n".join(table.lines))
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
