"""CPython's own tests, run over ours, as tests of pytest.

cpython/suite_*.py say which tests there are, and which are left out and why. The parts of a suite, one start method
and one class each, run in processes of their own (cpython/suite_run.py), several at a time: they mostly sleep.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "cpython"
METHODS = ("spawn", "forkserver", "fork")  # the slowest first
AT_ONCE = 6
LIMIT_S = 240  # for one part

# Where that is, CPython's package `test` is the one in FOLDER: here and in every child.
sys.path.insert(0, str(FOLDER))

Case = tuple[str, str]  # the start method, and Class.test
Outcome = tuple[str, str]  # passed, failed or skipped, and why


def cases(suite: str) -> list[Case]:
    """All tests of a suite, in all start methods. Skips the module if CPython's tests are not here."""
    try:
        module = importlib.import_module(suite)
    except ImportError as error:
        pytest.skip(
            f"CPython's own tests are not here ({error}); on Debian they are in the package"
            f" libpython{sys.version_info[0]}.{sys.version_info[1]}-testsuite",
            allow_module_level=True,
        )
    except unittest.SkipTest as error:
        pytest.skip(str(error), allow_module_level=True)
    classes = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == suite]
    names = [
        f"{c.__name__}.{name}"
        for c in classes
        if issubclass(c, unittest.TestCase)
        for name in unittest.defaultTestLoader.getTestCaseNames(c)
    ]
    return [(method, name) for name in names for method in METHODS]


class Part:
    """Tests of one class under one start method, and what became of them."""

    def __init__(self, suite: str, method: str, names: list[str], folder: Path) -> None:
        self.suite = suite
        self.method = method
        self.names = names
        stem = f"{method}-{names[0].split('.')[0]}"
        self.report = folder / f"{stem}.json"
        self.log = folder / f"{stem}.log"
        self.outcomes: dict[Case, Outcome] = {}

    def run(self) -> None:
        """Runs them; if the process ends in the midst of one, then the rest in another."""
        end = time.monotonic() + LIMIT_S
        while left := [name for name in self.names if (self.method, name) not in self.outcomes]:
            ended = self._process(left, max(1.0, end - time.monotonic()))
            begun = self._read()
            if ended:
                failed = begun or left[-1]  # the process's end counts to its last test
                self.outcomes[self.method, failed] = ("failed", f"{ended}\n{self._tail()}")
            if begun is None:  # it has run all that it could
                break
        for name in self.names:
            self.outcomes.setdefault(
                (self.method, name), ("failed", f"it was not run\n{self._tail()}")
            )

    def _process(self, names: list[str], limit_s: float) -> str:
        """Runs a process; returns how it ended if it did not end well."""
        command = [sys.executable, FOLDER / "suite_run.py", self.suite, self.method, self.report]
        path = (
            f"{FOLDER}:{os.environ['PYTHONPATH']}" if os.environ.get("PYTHONPATH") else str(FOLDER)
        )
        with open(self.log, "w") as log:
            child = subprocess.Popen(
                [*command, *names],
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                status = child.wait(limit_s)
                return f"its process ended with {status}" if status else ""
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                return f"not done after {LIMIT_S} s with the tests of its class before it"

    def _read(self) -> str | None:
        """Takes the outcomes from the report; returns the test that had begun and not ended."""
        begun = None
        for line in self.report.read_text().splitlines() if self.report.exists() else ():
            fields = json.loads(line)
            name, outcome = fields["case"], (fields["outcome"], fields.get("text") or "")
            if outcome[0] == "begun":
                begun = name
            elif "." not in name:  # the whole class
                self.outcomes.update({(self.method, each): outcome for each in self.names})
            else:
                self.outcomes[self.method, name] = outcome
                begun = None
        return None if (self.method, begun) in self.outcomes else begun

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-80:])


def run(suite: str, chosen: list[Case], folder: Path) -> dict[Case, Outcome]:
    """Runs the chosen tests; returns what became of each."""
    parts: dict[tuple[str, str], list[str]] = {}
    for method, name in chosen:
        parts.setdefault((method, name.split(".")[0]), []).append(name)
    runs = [Part(suite, method, names, folder) for (method, _), names in parts.items()]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(Part.run, runs))
    return {case: outcome for part in runs for case, outcome in part.outcomes.items()}


def check(outcome: Outcome) -> None:
    """Passes, fails or skips as the test did."""
    what, why = outcome
    if what == "skipped":
        pytest.skip(why)
    assert what == "passed", f"{what}\n{why}"


def chosen(request: Any) -> list[Case]:
    """Those tests of a module that this run of pytest is to run."""
    return [
        item.callspec.params["case"]
        for item in request.session.items
        if item.module is request.module
    ]


def outcomes(suite: str) -> Any:
    """A fixture: what became of a suite's tests."""

    @pytest.fixture(scope="module")
    def outcomes(request: Any, tmp_path_factory: Any) -> Iterator[dict[Case, Outcome]]:
        yield run(suite, chosen(request), tmp_path_factory.mktemp(suite))

    return outcomes


def tests(suite: str) -> Any:
    """The test function that reports them."""

    @pytest.mark.timeout(2 * LIMIT_S)
    @pytest.mark.parametrize("case", cases(suite), ids="-".join)
    def test_cpython(case: Case, outcomes: dict[Case, Outcome]) -> None:
        check(outcomes[case])

    return test_cpython
