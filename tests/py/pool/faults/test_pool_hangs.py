"""Where multiprocessing.Pool waits for ever, ours says what went wrong, and goes on.

Each case is one script (pool_hangs.py), run once with each of the two. With the standard library all cases hang in
CPython 3.10, 3.11, 3.12 and 3.13.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import eventually

SCRIPT = Path(__file__).parent / "pool_hangs.py"
HANGS_SECONDS = (
    4  # how long the standard library's are watched; its control ends in a tenth of that
)
LONG = 60

SQUARES = "[0, 1, 4, 9, 16, 25]"
DIED = r"WorkerDied: .*worker \d+ {} while it ran __main__.{}, item 3;"
UNREADABLE = r"MaybeDecodingError: the .* of __main__.{} was sent, but cannot be unpickled here: {}"
CASES = {  # what ours prints for the call, and for another one after it
    "killed": (DIED.format("was killed by SIGKILL", "killed"), None),
    "exits": (DIED.format("ended with exit code 5", "exits"), None),
    "exits_at_once": (DIED.format("ended with exit code 5", "exits_at_once"), None),
    "unreadable_exception": (UNREADABLE.format("unreadable_exception", "TypeError"), None),
    "unreadable_result": (
        UNREADABLE.format("unreadable_result", ".*not to be unpickled here"),
        None,
    ),
    "failing_initializer": ("LookupError: no licence", "LookupError: no licence"),
    "failing_callback": (re.escape(SQUARES), None),
}
CONTROL = "nothing_wrong"


class Run:
    """The script as a program, in a session of its own."""

    def __init__(self, folder: Path, module: str, case: str) -> None:
        self._out = folder / f"{module}-{case}"
        self._err = folder / f"{module}-{case}-err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), module, case],
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def printed(self) -> list[str]:
        return self._out.read_text().splitlines()

    def errors(self) -> str:
        return self._err.read_text()

    def runs(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Kills whatever is left of it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(LONG)


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """Each case with multiprocessing.Pool, all at once; those that run still are hanging."""
    folder = tmp_path_factory.mktemp("standard")
    runs = {case: Run(folder, "multiprocessing", case) for case in (CONTROL, *CASES)}
    try:
        assert eventually(lambda: all(run.printed() for run in runs.values()), LONG)
        assert eventually(lambda: not runs[CONTROL].runs(), LONG)
        time.sleep(HANGS_SECONDS)
        yield runs
    finally:
        for run in runs.values():
            run.end()


def test_the_script_ends_with_the_standard_pool_where_nothing_is_wrong(
    standard: dict[str, Run],
) -> None:
    assert not standard[CONTROL].runs()
    assert standard[CONTROL].printed() == ["begun", SQUARES, SQUARES, "ended"]


@pytest.mark.parametrize("case", CASES)
def test_the_standard_pool_hangs_and_ours_raises(
    standard: dict[str, Run], tmp_path: Path, case: str
) -> None:
    assert standard[case].runs() and standard[case].printed() == ["begun"]
    standard[case].end()  # before ours: a failing initializer keeps it busy starting workers
    ours = Run(tmp_path, "cableway", case)
    try:
        status = ours.process.wait(LONG)
    finally:
        ours.end()
    begun, first, second, ended = ours.printed()
    expected, then = CASES[case]
    assert re.match(expected, first), (first, ours.errors())
    assert second == (then or SQUARES), (second, ours.errors())
    assert (begun, ended, status) == ("begun", "ended", 0), ours.errors()
    assert ("in a callback" in ours.errors()) == (case == "failing_callback"), ours.errors()
