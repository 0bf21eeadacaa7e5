"""CPython's tests of process pools (test.test_concurrent_futures), over `cableway.Executor`."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType
from typing import Any
from unittest import mock

import in_place

import cableway as cw

_PRIVATE = "looks at private attributes of ProcessPoolExecutor"
_ALONE = "ours fails this task alone, and with the error itself; see test_executor.py"
_AT_ONCE = "ours starts all workers with the first task"
_NO_EXIT = "here sys.exit in a worker is its death, told as such; see test_executor.py"
LEFT_OUT = {
    "test_killed_child": "the whole pool breaks there; ours fails the task alone (test_executor.py)",
    "test_idle_process_reuse_one": _AT_ONCE,
    "test_idle_process_reuse_multiple": _AT_ONCE,
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
    "test_context_manager_shutdown": "makes a ProcessPoolExecutor by itself",
    "test_del_shutdown": _PRIVATE + " (_call_queue)",
    "test_shutdown_no_wait": _PRIVATE + " (_call_queue)",
}


def _modules() -> list[ModuleType]:
    """CPython's suite: one module up to Python 3.11, a package later."""
    whole = importlib.import_module("test.test_concurrent_futures")
    if not hasattr(whole, "__path__"):
        return [whole]
    parts = (
        "util",
        "executor",
        "process_pool",
        "deadlock",
        "init",
        "shutdown",
        "wait",
        "as_completed",
    )
    names = [part if part in ("util", "executor") else f"test_{part}" for part in parts]
    return [importlib.import_module(f"{whole.__name__}.{name}") for name in names]


class _Everything:
    def __init__(self) -> None:
        self.modules = _modules()

    def __getattr__(self, name: str) -> Any:
        return next(vars(module)[name] for module in self.modules if name in vars(module))


cpython = _Everything()


class Process:
    """What the tests of all kinds need."""

    executor_type: Any = ProcessPoolExecutor if in_place.THEIRS else cw.Executor
    worker_count = 5 if in_place.THEIRS else 3  # 3 are what the tests need of ours; 5 start slowly

    @property
    def ctx(self) -> str:
        """The start method."""
        return multiprocessing.get_start_method()

    def get_context(self) -> Any:
        """Its context."""
        return multiprocessing.get_context(self.ctx)

    def tearDown(self) -> None:
        """Threads that only garbage holds are gone: Python 3.11.2 takes a second and much work over each of these."""
        self.executor.shutdown(wait=True)
        self.executor = mock.Mock()
        gc.collect()
        super().tearDown()  # type: ignore[misc]


class TestWait(cpython.WaitTests, Process, cpython.ExecutorMixin, cpython.BaseTestCase):
    """futures.wait."""


class TestAsCompleted(
    cpython.AsCompletedTests, Process, cpython.ExecutorMixin, cpython.BaseTestCase
):
    """futures.as_completed."""


@in_place.without(LEFT_OUT)
class TestExecutor(
    cpython.ProcessPoolExecutorTest, Process, cpython.ExecutorMixin, cpython.BaseTestCase
):
    """submit and map."""

    def test_max_tasks_per_child(self) -> None:
        """With fork there is no such limit there, and none at all before Python 3.11; ours has it."""
        test = getattr(super(), "test_max_tasks_per_child", None)
        if self.ctx == "fork" or test is None:
            self.skipTest("is refused there; see test_executor.py")
        test()


@in_place.without(LEFT_OUT)
class TestDeadlock(
    cpython.ExecutorDeadlockTest, Process, cpython.ExecutorMixin, cpython.BaseTestCase
):
    """Nothing hangs."""

    def _fail_on_deadlock(self, executor: Any) -> None:
        if in_place.THEIRS:
            super()._fail_on_deadlock(executor)
        executor.kill_workers()
        self.fail("it hangs")


class TestInitializer(Process, cpython.InitializerMixin, cpython.BaseTestCase):
    """The initializer."""


class TestFailingInitializer(Process, cpython.FailingInitializerMixin, cpython.BaseTestCase):
    """An initializer that raises."""


@in_place.without(LEFT_OUT)
class TestShutdown(
    cpython.ProcessPoolShutdownTest, Process, cpython.ExecutorMixin, cpython.BaseTestCase
):
    """shutdown, and the interpreter's end."""

    def setUp(self) -> None:
        """Scripts use ours."""
        super().setUp()
        for module in cpython.modules:
            if hasattr(module, "assert_python_ok"):
                script = in_place.Script(
                    module.assert_python_ok,
                    "from concurrent.futures import Executor",
                    "import multiprocessing; from cableway import Executor",
                )
                patch = mock.patch.object(module, "assert_python_ok", script)
                patch.start()
                self.addCleanup(patch.stop)

    def test_cancel_futures(self) -> None:
        """Some of its tasks must have begun at its shutdown: theirs have at once, ours when a worker takes them."""
        if in_place.THEIRS:
            super().test_cancel_futures()
            return
        executor, futures = self.executor, []
        submit, shutdown = executor.submit, executor.shutdown

        def kept(*call: Any) -> Any:
            futures.append(submit(*call))
            return futures[-1]

        def later(**settings: Any) -> None:
            while not any(future.running() or future.done() for future in futures):
                time.sleep(0.001)
            shutdown(**settings)

        with mock.patch.multiple(executor, submit=kept, shutdown=later):
            super().test_cancel_futures()
