"""tests/run.py deals out every test file: what `make test` leaves out, `make test-more` runs."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SPEC = importlib.util.spec_from_file_location("cableway_tests_run", ROOT / "tests/run.py")
assert SPEC is not None and SPEC.loader is not None
RUN = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = RUN  # its dataclasses look there
SPEC.loader.exec_module(RUN)
PY = ROOT / "tests/py"
ALL = sorted(str(file) for file in PY.rglob("test_*.py"))


def dealt(item: str) -> list[str]:
    """The files of all shares."""
    words = [word for share in RUN.shares(item) for word in shlex.split(share.partition(":")[2])]
    return sorted(word for word in words if word.endswith(".py"))


def test_what_make_test_leaves_out_make_test_more_runs() -> None:
    quick, more = dealt(f"py:pytest --quick {PY}"), dealt(f"py:pytest --more {PY}")
    assert more and quick and not set(quick) & set(more)
    assert sorted(quick + more) == ALL == dealt(f"py:pytest {PY}")
    for option, files in (("--quick", quick), ("--more", more)):  # one lane does not share out
        assert sorted(RUN.narrowed(["pytest", option, str(PY)])[1:]) == files


@pytest.mark.parametrize(
    "item", ["py:pytest tests/py/cli/test_cli.py -k stop", "tidy:tests/tidy.py"]
)
def test_what_is_no_folder_runs_as_it_is_asked_for(item: str) -> None:
    assert RUN.shares(item) == [item]


def test_ci_runs_all_tests() -> None:
    makefile = (ROOT / "Makefile").read_text()
    ci = (ROOT / ".ci/run").read_text()
    assert all(f"\nrun {target}" in ci for target in ("test\n", "test-more\n", "test-fresh "))
    for words in (
        "py:pytest --quick tests/py",
        "py:pytest --more tests/py",
        "tests/compilers.sh",
        "tests/fuzz.sh 5",
    ):
        assert words in makefile


LIMITS = """
import sys
import pytest

class Limits:
    def pytest_collection_finish(self, session):
        from dask_runs import SECONDS
        for item in session.items:
            mark = item.get_closest_marker("timeout")
            if mark is None or mark.args[0] <= SECONDS:
                print("cut short:", item.nodeid)

words = ["--collect-only", "-q", "-p", "no:cacheprovider", sys.argv[1]]
raise SystemExit(pytest.main(words, plugins=[Limits()]))
"""


def test_a_command_of_a_cluster_says_where_it_stands_before_pytest_ends_it() -> None:
    words = [sys.executable, "-c", LIMITS, str(PY / "clusters")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "test_dask.py::" in done.stdout and "cut short:" not in done.stdout, done.stdout
