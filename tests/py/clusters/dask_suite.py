"""distributed's own tests over cableway.dask, beside stock: what passes there must pass with ours. By hand, since it takes an hour.

    python dask_suite.py CHECKOUT [TEST FILE...]

CHECKOUT is a checkout of github.com/dask/distributed of about the installed version, whose tests are run over the installed package:
the wheel has none. This Python needs distributed, cableway, pytest, pytest-timeout and pytest-rerunfailures. With ours every frame from 64 bytes on
goes by handle. Nothing of it is kept in this repository.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

FILES = [
    "comm/tests", "protocol/tests", "shuffle/tests", "tests/test_worker.py", "tests/test_client.py", "tests/test_scheduler.py",
    "tests/test_spill.py", "tests/test_worker_memory.py", "tests/test_failed_workers.py", "tests/test_active_memory_manager.py",
    "tests/test_nanny.py", "tests/test_stress.py", "tests/test_tls_functional.py", "tests/test_actor.py", "tests/test_core.py",
]  # fmt: skip
SECONDS = 120  # for a test
PLUGIN = """
import cableway.dask
from cableway._dask import family, node

node.has_data = lambda: True  # tests of connections make no worker
counts = {"sent": 0, "came": 0}

def counted(what, call):
    def count(*arguments):
        found = call(*arguments)
        counts[what] += found is not None
        return found
    return count

family.pack = counted("sent", family.pack)
family.unpack = counted("came", family.unpack)

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


def run(folder: Path, files: list[str], ours: bool) -> dict[str, str]:
    """What became of each test."""
    report = folder / f"report-{ours}.xml"
    broker = folder / f"broker-{ours}"
    broker.mkdir(mode=0o700)
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--timeout={SECONDS}",
        "--timeout-method=signal",
        f"--junit-xml={report}",
    ]
    words += [
        *(["-p", "with_cableway"] if ours else []),
        *(f"distributed/{file}" for file in files),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "CABLEWAY_DIR": str(broker),
        "CABLEWAY_MAX_CLIENTS": "1000",
        "DASK_CABLEWAY__THRESHOLD": "64 B",
    }
    with open(folder / f"output-{ours}.txt", "w") as output:
        subprocess.run(
            words, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        )
    text = (folder / f"output-{ours}.txt").read_text(errors="replace")
    print(*[line for line in text.splitlines() if line.startswith("objects by handle")], sep="\n")
    if ours and "'sent': 0" in text:
        raise SystemExit("nothing went by handle: this run says nothing")
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {part.tag for part in case}
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = (
            "failed"
            if kinds & {"failure", "error"}
            else "skipped"
            if "skipped" in kinds
            else "passed"
        )
    return found


def main() -> None:
    """Prints what fails with ours alone; its status is whether something does."""
    checkout, *files = sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="dask-suite-"))
    prepared(Path(checkout), folder)
    stock, ours = (run(folder, files or FILES, with_ours) for with_ours in (False, True))
    for name, results in (("stock", stock), ("ours", ours)):
        counts = {kind: [*results.values()].count(kind) for kind in ("passed", "failed", "skipped")}
        print(name, *(f"{count} {kind}" for kind, count in counts.items()))
    worse = sorted(
        name for name, result in ours.items() if result == "failed" and stock.get(name) != "failed"
    )
    print(*(f"with ours alone: {name}" for name in worse), f"output in {folder}", sep="\n")
    raise SystemExit(bool(worse) or not ours)


if __name__ == "__main__":
    main()
