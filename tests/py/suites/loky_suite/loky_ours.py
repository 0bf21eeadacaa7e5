"""`cableway.Executor` as loky's `ProcessPoolExecutor`, for loky's own tests, and which of these are left out.

A plugin of the pytest that runs them, too. What it adds to an Executor is names: arguments, attributes that the tests look at,
and loky's classes of errors. With CABLEWAY_SUITE=theirs loky's own stays: for what is skipped with ours, and not left out.
"""

from __future__ import annotations

import importlib
import os
from concurrent.futures import process
from typing import Any

import pytest
from loky import process_executor

import cableway as cw
from cableway._pool.engine import RUN
from cableway.executor import ExecutorWorkerDied

THEIRS = os.environ.get("CABLEWAY_SUITE") == "theirs"
WORKERS = 3  # what the tests need; loky's 5 take longer to start than the tests do

_BREAKS = "the whole pool breaks there; ours fails the task alone (test_executor.py)"
_PRIVATE = "looks at private parts of loky's executor"
_THEIRS = "of an argument that ProcessPoolExecutor has not, nor ours"
LEFT_OUT = {
    "test_killed_child": _BREAKS,
    "test_killed_child_with_cancelled_work_items": _BREAKS,
    "test_exited_child": _BREAKS,
    "test_processes_crash_handling_after_executor_gc": _BREAKS,
    "test_manager_thread_crash_breaks_executor": _PRIVATE,
    "test_feeder_error_hook_crash_breaks_executor": _PRIVATE,
    "test_shutdown_no_wait": _PRIVATE + " (_call_queue)",
    "test_worker_timeout": _THEIRS + " (timeout)",
    "test_serialization": _THEIRS + " (job_reducers, result_reducers)",
    "test_max_depth[True]": "loky bounds executors within executors, at 10",
    "test_max_depth[False]": "loky bounds executors within executors, at 10",
    "test_memory_leak_protection": "loky replaces workers that grow; see max_tasks_per_child",
    "test_shutdown_and_kill_workers": "ours raises ExecutorBroken, as ProcessPoolExecutor.kill_workers does",
    "test_shutdown_with_sys_exit_at_pickle": "ours pickles where submit() is called, and exits there",
}


class _Flags:
    """What becomes of an executor, also after it was collected."""

    def __init__(self, executor: cw.Executor) -> None:
        self._engine = executor._engine

    @property
    def broken(self) -> BaseException | None:
        """Why it does nothing any more."""
        return None if self._engine is None else self._engine.error

    @property
    def shutdown(self) -> bool:
        """It takes no more work."""
        return self._engine is None or self._engine.state != RUN


class ProcessPoolExecutor(cw.Executor):
    """Ours, made as theirs."""

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        context: Any = None,
        initializer: Any = None,
        initargs: Any = (),
    ) -> None:
        method = "spawn" if context is None else context.get_start_method()
        super().__init__(max_workers, method, initializer, initargs)

    @property
    def _flags(self) -> _Flags:
        return _Flags(self)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Theirs has an error of its own after the end, which is a RuntimeError."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError as error:
            if "after shutdown" in str(error):
                raise process_executor.ShutdownExecutorError(str(error)) from None
            raise

    def shutdown(self, wait: bool = True, kill_workers: bool = False) -> None:  # type: ignore[override]
        """Theirs may kill."""
        if kill_workers:
            self.kill_workers()
        super().shutdown(wait)


def install() -> None:
    """Puts ours, and its errors, where the tests find theirs."""
    if THEIRS:
        return
    process_executor.ProcessPoolExecutor = ProcessPoolExecutor
    process_executor.TerminatedWorkerError = ExecutorWorkerDied
    process_executor.BrokenProcessPool = process.BrokenProcessPool
    process_executor._RemoteTraceback = process._RemoteTraceback


def _check_number(
    executor: Any = None, expected_process_number: int | None = None, **_: Any
) -> None:
    """Theirs counts child processes; of ours some belong to no executor."""
    if executor is not None and expected_process_number is not None:
        assert len(executor._processes) == expected_process_number


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the tests must know of ours; and those that are left out are skipped."""
    if THEIRS:
        return
    mixin = importlib.import_module("tests._executor_mixin")
    mixin.ExecutorMixin.worker_count = WORKERS
    mixin._check_subprocesses_number = _check_number
    mixin.psutil = None
    unknown = LEFT_OUT.keys() - {item.name for item in items}
    assert not unknown, f"loky has no such tests: {unknown}"
    for item in items:
        if item.name in LEFT_OUT:
            item.add_marker(pytest.mark.skip(reason=f"left out: {LEFT_OUT[item.name]}"))
