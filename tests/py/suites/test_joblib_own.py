"""joblib's own tests of parallel backends, with ours: all that take a backend as parameter, but those named here.

Runs in `make test-more`.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import itertools
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

theirs = pytest.importorskip("joblib.test.test_parallel")
import cableway.joblib  # noqa: E402

BACKENDS = {"backend", "parent_backend", "child_backend", "inner_backend", "outer_backend"}
LEFT_OUT = {
    "auto_memmap_on_arrays_from_generator": "arrays are shared as np.memmap: ours are no files",
    "memmapping_leaks": "arrays are shared as files in a folder",
    "error_capture": "KeyboardInterrupt in a task is raised at the caller: it ends a worker of ours, which is told",
    "multiple_generator_call_separated_gc": "two generators of one backend are refused: ours serves both",
    "nested_parallel_warnings": "the text of a warning, from a table by the names of joblib's backends",
    "parallel_thread_limit": "joblib's helper for OpenMP, which must be compiled",
    "parallel_with_unpicklable_functions_in_args": "a script of joblib's, without our import",
    "parallel_with_interactively_defined_functions": "a script of joblib's, without our import; see test_joblib.py",
}


@pytest.fixture(autouse=True, scope="module")
def workers_end(broker_folder: Any) -> Iterator[None]:
    """None of ours are left, nor of loky, which some of the tests use beside it."""
    yield
    cableway.joblib.shutdown()
    loky = pytest.importorskip("joblib.externals.loky")
    loky.get_reusable_executor(max_workers=1).shutdown(wait=True, kill_workers=True)
    gc.collect()  # managers of the tests, which hold its pipe
    tracker = importlib.import_module("joblib.externals.loky.backend.resource_tracker")
    tracker._resource_tracker._stop()


@pytest.fixture(autouse=True)
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their stopwatches stop at 2 to 20 seconds: on a machine that is busy a second counts as a fifth of one."""
    clock = types.SimpleNamespace(time=lambda: time.time() / 5, sleep=time.sleep)
    monkeypatch.setattr(theirs, "time", clock)


def cases(test: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """The arguments that pytest would run a test with, each once, with our backend for all others."""
    choices = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names = mark.args[0]
            names = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
            sets = [getattr(values, "values", values) for values in mark.args[1]]
            choices.append(
                [dict(zip(names, v if len(names) > 1 else [v], strict=True)) for v in sets]
            )
    seen = []
    for parts in itertools.product(*choices):
        case = {name: value for part in parts for name, value in part.items()}
        case.update(dict.fromkeys(BACKENDS & case.keys(), "cableway"))
        if BACKENDS & case.keys() and case not in seen:
            seen.append(case)
            yield case


def found() -> Iterator[Any]:
    """(name, arguments) of all that run."""
    for name, test in vars(theirs).items():
        short = name.removeprefix("test_")
        if short != name and short not in LEFT_OUT:
            for i, case in enumerate(cases(test)):
                yield pytest.param(name, case, id=f"{short}-{i}")


@pytest.mark.parametrize(("name", "arguments"), list(found()))
def test_joblibs_own(name: str, arguments: dict[str, Any], request: pytest.FixtureRequest) -> None:
    test = getattr(theirs, name)
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "skipif" and mark.args[0]:
            pytest.skip(mark.kwargs["reason"])
    names = [p for p in inspect.signature(test).parameters if p not in arguments]
    fixtures = {name: request.getfixturevalue(name) for name in names}
    try:
        test(**arguments, **fixtures)
    except pytest.skip.Exception:  # what ours has not, loky has not
        theirs_too = {**arguments, **dict.fromkeys(BACKENDS & arguments.keys(), "loky")}
        with pytest.raises(pytest.skip.Exception):
            test(**theirs_too, **fixtures)
        raise


def test_what_is_left_out_is_there() -> None:
    tests = {name.removeprefix("test_") for name in vars(theirs)}
    assert set(LEFT_OUT) <= tests, "joblib has them no more"
