"""CPython's own tests, run over ours, as tests of pytest.

cpython/suite_*.py say which tests there are, and which are left out and why. The parts of a suite, one start method
and one class each, run in processes of their own (cpython/suite_run.py), several at a time: they mostly sleep. Each runs with
the standard library's classes, too: what passes there must pass with ours, or be left out by name, and what is left out must
pass there, or it would be no difference.
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
from dataclasses import dataclass
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
OURS, THEIRS = "ours", "theirs"


@dataclass
class Outcomes:
    """What became of each test with ours and with theirs; and of those that are left out, with theirs."""

    ours: dict[Case, Outcome]
    theirs: dict[Case, Outcome]
    left_out: dict[Case, Outcome]

    def __str__(self) -> str:
        parts = (self.ours, self.theirs, self.left_out)
        ours, theirs, left_out = (
            f"{sum(outcome[0] == 'passed' for outcome in part.values())} of {len(part)}"
            for part in parts
        )
        return f"passed: {ours} with ours, {theirs} with theirs; left out: {left_out} with theirs"


def classes(suite: str) -> list[type[unittest.TestCase]]:
    """Those of a suite. Skips the module if the tests are not here."""
    try:
        module = importlib.import_module(suite)
    except ImportError as error:
        pytest.skip(
            f"the tests are not here ({error}); on Debian CPython's are in the package"
            f" libpython{sys.version_info[0]}.{sys.version_info[1]}-testsuite",
            allow_module_level=True,
        )
    except unittest.SkipTest as error:
        pytest.skip(str(error), allow_module_level=True)
    found = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == suite]
    return [c for c in found if issubclass(c, unittest.TestCase)]


def in_all_methods(names: list[str]) -> list[Case]:
    """Each in all start methods."""
    return [(method, name) for name in names for method in METHODS]


def cases(suite: str) -> list[Case]:
    """All tests of a suite."""
    names = unittest.defaultTestLoader.getTestCaseNames
    return in_all_methods([f"{c.__name__}.{name}" for c in classes(suite) for name in names(c)])


def cases_left_out(suite: str) -> list[Case]:
    """Those that a suite leaves out with ours."""
    return in_all_methods(
        [f"{c.__name__}.{name}" for c in classes(suite) for name in getattr(c, "left_out", [])]
    )


class Part:
    """Tests of one class under one start method, and what became of them."""

    def __init__(self, suite: str, whose: str, method: str, names: list[str], folder: Path) -> None:
        self.suite = suite
        self.whose = whose
        self.method = method
        self.names = names
        stem = f"{whose}-{method}-{names[0].split('.')[0]}"
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
                env={**os.environ, "PYTHONPATH": path, "CABLEWAY_SUITE": self.whose},
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


def run(suite: str, whose: dict[str, list[Case]], folder: Path) -> dict[str, dict[Case, Outcome]]:
    """Runs tests with ours and with theirs; returns what became of each."""
    parts: dict[tuple[str, str, str], list[str]] = {}
    for which, chosen in whose.items():
        for method, name in chosen:
            parts.setdefault((method, which, name.split(".")[0]), []).append(name)
    runs = [
        Part(suite, which, method, names, folder) for (method, which, _), names in parts.items()
    ]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(Part.run, runs))
    found: dict[str, dict[Case, Outcome]] = {OURS: {}, THEIRS: {}}
    for part in runs:
        found[part.whose].update(part.outcomes)
    return found


def check(ours: Outcome, theirs: Outcome) -> None:
    """Ours never fails, and skips nothing that passes with theirs."""
    what, why = ours
    assert what == "passed" or (what, theirs[0]) == ("skipped", "skipped"), (
        f"{what}\n{why}\nwith the standard library's: {theirs[0]}\n{theirs[1]}"
    )
    if what == "skipped":
        pytest.skip(why)


def chosen(request: Any, suite: str) -> tuple[list[Case], list[Case]]:
    """What this run of pytest is to run of a module: of its tests, and of what it leaves out."""
    items = [item for item in request.session.items if item.module is request.module]
    some = [item.callspec.params["case"] for item in items if hasattr(item, "callspec")]
    return some, cases_left_out(suite) if len(some) < len(items) else []


def outcomes(suite: str) -> Any:
    """A fixture: what became of a suite's tests."""

    @pytest.fixture(scope="module")
    def outcomes(request: Any, tmp_path_factory: Any) -> Iterator[Outcomes]:
        some, others = chosen(request, suite)
        whose = {OURS: some, THEIRS: some + others}
        found = run(suite, whose, tmp_path_factory.mktemp(suite))
        theirs = found[THEIRS]
        made = Outcomes(
            found[OURS],
            {case: theirs[case] for case in some},
            {case: theirs[case] for case in others},
        )
        print(f"{suite}: {made}")
        yield made

    return outcomes


def tests(suite: str) -> Any:
    """The test function that reports them."""

    @pytest.mark.timeout(4 * LIMIT_S)
    @pytest.mark.parametrize("case", cases(suite), ids="-".join)
    def test_ours_does_what_the_standard_library_does(case: Case, outcomes: Outcomes) -> None:
        check(outcomes.ours[case], outcomes.theirs[case])

    return test_ours_does_what_the_standard_library_does


def left_out(suite: str) -> Any:
    """The test function that looks whether what is left out is a difference at all."""

    @pytest.mark.timeout(4 * LIMIT_S)
    def test_what_is_left_out_passes_with_the_standard_library(outcomes: Outcomes) -> None:
        names = {name for _, name in outcomes.left_out}
        passed = {name for (_, name), (what, _) in outcomes.left_out.items() if what == "passed"}
        assert not names - passed, {
            case: outcome for case, outcome in outcomes.left_out.items() if case[1] not in passed
        }

    return test_what_is_left_out_passes_with_the_standard_library
