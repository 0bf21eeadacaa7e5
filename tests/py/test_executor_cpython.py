"""CPython's own tests of process pools (test.test_concurrent_futures), run over `causeway.Executor`.

They come with the interpreter (on Debian: libpython3.11-testsuite, or that of the version). Those that look at private
attributes or promise what we promise otherwise are left out by name, below, each with its reason.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import unittest
import unittest.mock
from concurrent import futures
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any

import pytest

from causeway.executor import Executor

try:
    importlib.import_module("test.test_concurrent_futures")
except ImportError:
    pytest.skip(
        "CPython's test.test_concurrent_futures is not there; on Debian the package libpython3.11-testsuite has it",
        allow_module_level=True,
    )

_PRIVATE = "looks at private attributes of ProcessPoolExecutor"
_BY_NAME = "runs a class of concurrent.futures by its name; ours is in test_executor.py"
_ALONE = "ours fails this task alone, and with the error itself; see test_executor.py"
_NO_EXIT = "here sys.exit in a worker is its death, told as such; see test_executor.py"
LEFT_OUT = {
    "test_killed_child": "the whole pool breaks there; ours fails the task alone (test_executor.py)",
    "test_idle_process_reuse_one": _PRIVATE,
    "test_idle_process_reuse_multiple": _PRIVATE,
    "test_max_tasks_per_child_defaults_to_spawn_context": "ours works with fork too",
    "test_python_finalization_error": _PRIVATE,
    "test_gh105829_should_not_deadlock_if_wakeup_pipe_full": _PRIVATE,
    "test_gh105829_should_not_deadlock_if_queue_full": _PRIVATE,
    "test_error_at_task_unpickle": _ALONE,
    "test_exit_during_func_exec_on_worker": _NO_EXIT,
    "test_exit_during_result_pickle_on_worker": _NO_EXIT,
    "test_error_during_result_pickle_on_worker": "ours raises MaybeEncodingError, as Pool does",
    "test_error_during_result_unpickle_in_result_handler": _ALONE,
    "test_exit_during_result_unpickle_in_result_handler": _ALONE,
    "test_interpreter_shutdown": _BY_NAME,
    "test_submit_after_interpreter_shutdown": _BY_NAME,
    "test_hang_gh83386": _BY_NAME,
    "test_processes_terminate": _PRIVATE,
    "test_context_manager_shutdown": _BY_NAME,
    "test_del_shutdown": _BY_NAME,
    "test_shutdown_no_wait": _BY_NAME,
}


class Adapted(Executor):
    """With what the tests look at beside the interface."""

    @property
    def _broken(self) -> bool:
        return self._engine is not None and self._engine.error is not None

    @property
    def _processes(self) -> dict[int, Any]:
        assert self._engine is not None
        return {worker.pid: worker.process for worker in self._engine._crew.living()}

    @property
    def _executor_manager_thread(self) -> Any:
        assert self._engine is not None
        return self._engine._helper


class Differences:
    """What the tests of all kinds need."""

    executor_type = Adapted
    worker_count = 4
    ctx = "fork"

    def get_context(self) -> Any:
        return multiprocessing.get_context(self.ctx)

    def test_traceback(self) -> None:
        with unittest.mock.patch.object(futures.process, "_RemoteTraceback", RemoteTraceback):
            super().test_traceback()  # type: ignore[misc]

    def test_max_tasks_per_child(self) -> None:
        if self.ctx == "fork":
            self.skipTest("the test wants fork to be refused; ours works with it")  # type: ignore[attr-defined]
        super().test_max_tasks_per_child()  # type: ignore[misc]

    def test_cancel_futures(self) -> None:
        # Some of its tasks must have begun at once: theirs count as begun before a worker is there.
        self.executor.submit(abs, 1).result()  # type: ignore[attr-defined]
        super().test_cancel_futures()  # type: ignore[misc]

    def _assert_logged(self, msg: str) -> Any:
        return contextlib.nullcontext()  # the exception itself comes, and nothing is logged


def _modules() -> list[Any]:
    """The suite: one module up to Python 3.11, a package later."""
    whole = importlib.import_module("test.test_concurrent_futures")
    if not hasattr(whole, "__path__"):
        return [whole]
    parts = ("process_pool", "deadlock", "init", "shutdown", "wait", "as_completed")
    return [importlib.import_module(f"{whole.__name__}.test_{part}") for part in parts]


def _make() -> None:
    found = {name: value for module in _modules() for name, value in vars(module).items()}
    base = (
        found.get("BaseTestCase")
        or importlib.import_module("test.test_concurrent_futures.util").BaseTestCase
    )
    mixin = (
        found.get("ExecutorMixin")
        or importlib.import_module("test.test_concurrent_futures.util").ExecutorMixin
    )
    for kind in (
        "ProcessPoolExecutorTest", "ExecutorDeadlockTest", "InitializerMixin", "FailingInitializerMixin",
        "ProcessPoolShutdownTest", "WaitTests", "AsCompletedTests",
    ):  # fmt: skip
        tests = found[kind]
        left_out = {
            name: unittest.skip(reason)(lambda self: None)
            for name, reason in LEFT_OUT.items()
            if hasattr(tests, name)
        }
        for method in ("fork", "spawn", "forkserver"):
            name = f"Test{method.capitalize()}{kind}"
            body = {**left_out, "ctx": method, "__module__": __name__, "__qualname__": name}
            hidden = {  # tests of Differences that this kind does not have
                n: None
                for n in ("test_traceback", "test_max_tasks_per_child", "test_cancel_futures")
                if not hasattr(tests, n)
            }
            globals()[name] = type(name, (Differences, tests, mixin, base), {**hidden, **body})


_make()
