"""distributed's own tests over cableway.dask, beside stock: what passes there must pass with ours. `make dask-suites CHECKOUT=FOLDER`;
by hand, since it takes hours.

    python dask_suite.py CHECKOUT [TEST FILE...]

CHECKOUT is a checkout of github.com/dask/distributed of about the installed version, whose tests are run over the installed package:
the wheel has none. With ours every frame from 64 bytes on goes by handle. File by file, first with stock Dask, then with ours; what
fails with ours alone is run three times more with each, and counts if it fails with ours more often than with stock. Nothing of it is
kept in this repository.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

FILES = [
    "comm/tests", "protocol/tests", "tests/test_spill.py", "tests/test_actor.py", "tests/test_core.py", "tests/test_stress.py",
    "tests/test_nanny.py", "tests/test_worker.py", "tests/test_worker_memory.py", "tests/test_failed_workers.py",
    "tests/test_active_memory_manager.py", "tests/test_tls_functional.py", "tests/test_scheduler.py", "tests/test_client.py",
    "shuffle/tests",
]  # fmt: skip
SECONDS = 120  # for a test
# What cannot be the same, and why: told, and not counted.
EXPECTED = {
    "protocol/tests/test_compression.py::test_compress_remote_comms": "what goes by handle is not compressed",
}
AGAIN = 3  # times that a suspect is run once more
PLUGIN = """
import numpy as np
from distributed.protocol import utils_test

import cableway.dask
from cableway._core.library import ffi
from cableway._dask import family, node

node.has_data = lambda: True  # tests of connections make no worker
counts = {"sent": 0, "came": 0}

def counted(what, call):
    def count(*arguments, **options):
        found = call(*arguments, **options)
        counts[what] += found is not None
        return found
    return count

family.pack = counted("sent", family.pack)
family.unpack = counted("came", family.unpack)

known = utils_test.get_host_array

def get_host_array(array):  # theirs refuses memory that neither NumPy nor the TCP stack has allocated
    owner, found = array, array.base
    while found is not None:
        owner = found
        found = getattr(owner, "obj" if isinstance(owner, memoryview) else "base", None)
    return owner if isinstance(owner, ffi.buffer) else known(array)

utils_test.get_host_array = get_host_array

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"objects by handle in this process: {counts}")
"""


def prepared(checkout: Path, folder: Path) -> None:
    """The installed package with the checkout's tests in it, and a plugin of pytest that turns ours on."""
    spec = importlib.util.find_spec("distributed")
    assert spec is not None and spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, folder / "distributed")
    for tests in checkout.glob("distributed/**/tests"):
        target = folder / tests.relative_to(checkout)
        shutil.copytree(tests, target, dirs_exist_ok=True)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(checkout / name, folder / name)
    (folder / "with_cableway.py").write_text(PLUGIN)


sent = 0  # objects by handle, in all runs


def run(folder: Path, tests: list[str], ours: bool) -> dict[str, str]:
    """What became of each test."""
    global sent
    work = Path(tempfile.mkdtemp(dir=folder, prefix="ours-" if ours else "stock-"))
    report, broker = work / "report.xml", work / "broker"
    broker.mkdir(mode=0o700)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junit-xml={report}",
        "-o",
        "junit_family=xunit1",
    ]
    words += [f"--timeout={SECONDS}", "--timeout-method=signal"]
    words += [
        *(["-p", "with_cableway"] if ours else []),
        *(f"distributed/{test}" for test in tests),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "CABLEWAY_DIR": str(broker),
        "CABLEWAY_MAX_CLIENTS": "1000",
        "DASK_CABLEWAY__THRESHOLD": "64 B",
    }
    with open(work / "output.txt", "w") as output:
        subprocess.run(
            words, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    text = (work / "output.txt").read_text(errors="replace")
    said = [line for line in text.splitlines() if line.startswith("objects by handle")]
    sent += sum(int(count) for line in said for count in re.findall("'sent': ([0-9]+)", line))
    print("  ours" if ours else "  stock", work, *said, flush=True)
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {part.tag for part in case}
        file = case.get("file", "")
        within = case.get("classname", "").removeprefix(file.removesuffix(".py").replace("/", "."))
        name = "::".join(
            [file.removeprefix("distributed/"), *within.split(".")[1:], case.get("name", "")]
        )
        found[name] = (
            "failed"
            if kinds & {"failure", "error"}
            else "skipped"
            if "skipped" in kinds
            else "passed"
        )
    return found


def compared(folder: Path, file: str) -> tuple[list[str], int]:
    """The tests of a file that fail with ours more often, and how many passed with ours."""
    print(file, flush=True)
    stock, ours = (run(folder, [file], with_ours) for with_ours in (False, True))
    for name, results in (("stock", stock), ("ours", ours)):
        counts = {kind: [*results.values()].count(kind) for kind in ("passed", "failed", "skipped")}
        print(" ", name, *(f"{count} {kind}" for kind, count in counts.items()), flush=True)
    suspects = sorted(
        name for name, result in ours.items() if result == "failed" and stock.get(name) != "failed"
    )
    fails = {name: [0, 1] for name in suspects}
    for _ in range(AGAIN if suspects else 0):
        for with_ours in (False, True):
            results = run(folder, suspects, with_ours)
            for name in suspects:  # one that was not run is a failure, too
                fails[name][with_ours] += results.get(name, "failed") == "failed"
    for name, (by_stock, by_ours) in fails.items():
        why = f" (expected: {EXPECTED[name]})" if name in EXPECTED else ""
        print(
            f"  {name}: failed {by_stock} of {AGAIN + 1} times with stock, {by_ours} with ours{why}"
        )
    worse = [
        name
        for name, (by_stock, by_ours) in fails.items()
        if by_ours > max(1, by_stock) and name not in EXPECTED
    ]
    return worse, [*ours.values()].count("passed")


def main() -> None:
    """Prints what fails with ours; its status is whether something does."""
    checkout, *files = sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="dask-suite-"))
    prepared(Path(checkout), folder)
    worse, passed = [], 0
    for file in files or FILES:
        found, good = compared(folder, file)
        worse += found
        passed += good
    print(*(f"with ours: {name}" for name in worse), f"output in {folder}", sep="\n")
    if not sent:
        print("nothing went by handle: this run says nothing")
    raise SystemExit(bool(worse) or not passed or not sent)


if __name__ == "__main__":
    main()
