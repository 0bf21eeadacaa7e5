"""Runs tests of one suite under one start method: suite_run.py SUITE METHOD REPORT CLASS.TEST...

A process of its own for each start method, as CPython does it: the method holds for a whole process. REPORT gets a
line of JSON when a test begins and when it ends: its name, and passed, failed or skipped with the reason.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import multiprocessing
import sys
import unittest
from typing import Any, TextIO

TEST_LIMIT_S = (
    100  # a test that takes longer hangs: all threads' stacks are printed, and the process ends
)
END_LIMIT_S = 20  # the same for the interpreter's end, after the last test


class Report(unittest.TestResult):
    """Writes what becomes of each test."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out
        self.case = ""
        self.texts: list[str] = []
        self.reason: str | None = None

    def _write(self, **fields: Any) -> None:
        print(json.dumps(fields), file=self.out, flush=True)

    def startTest(self, test: unittest.TestCase) -> None:
        """It begins."""
        super().startTest(test)
        self.case, self.texts, self.reason = ".".join(test.id().split(".")[-2:]), [], None
        self._write(case=self.case, outcome="begun")
        print(f"---- {test.id()}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(TEST_LIMIT_S, exit=True, file=sys.__stderr__)

    def stopTest(self, test: unittest.TestCase) -> None:
        """It has ended."""
        super().stopTest(test)
        outcome = "failed" if self.texts else "passed" if self.reason is None else "skipped"
        self._write(case=self.case, outcome=outcome, text="\n".join(self.texts) or self.reason)
        self.case = ""

    def _failed(self, test: Any, error: Any) -> None:
        text = self._exc_info_to_string(error, test)  # type: ignore[attr-defined]
        self.texts.append(text)
        self._whole_class(test, "failed", text)

    def addError(self, test: Any, err: Any) -> None:
        """An exception."""
        self._failed(test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        """A failed assertion."""
        self._failed(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        """A part of a test."""
        if err is not None:
            self._failed(subtest, err)

    def addUnexpectedSuccess(self, test: Any) -> None:
        """It was to fail."""
        self.texts.append("it was expected to fail, and passed")

    def addSkip(self, test: Any, reason: str) -> None:
        """It does not run here."""
        self.reason = reason
        self._whole_class(test, "skipped", reason)

    def _whole_class(self, test: Any, outcome: str, text: str) -> None:
        if not self.case:  # such as "setUpClass (suite.Class)"
            self._write(case=str(test).strip(")").split(".")[-1], outcome=outcome, text=text)


def main() -> None:
    """Runs what the command line says."""
    name, method, report, *cases = sys.argv[1:]
    multiprocessing.set_start_method(method)
    multiprocessing.set_forkserver_preload([name])  # as CPython does, for speed
    suite = importlib.import_module(name)
    if multiprocess := sys.modules.get("multiprocess"):  # the suite is of that
        multiprocess.set_start_method(method)
        multiprocess.set_forkserver_preload([name])
    with open(report, "a") as out:
        unittest.defaultTestLoader.loadTestsFromNames(cases, suite).run(Report(out))
    faulthandler.dump_traceback_later(END_LIMIT_S, exit=True, file=sys.__stderr__)


if __name__ == "__main__":
    main()
