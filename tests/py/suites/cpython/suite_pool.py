"""CPython's tests of multiprocessing.Pool (test._test_multiprocessing), over `cableway.Pool`."""

from __future__ import annotations

import multiprocessing
import unittest
from typing import Any
from unittest import mock

import in_place
import test._test_multiprocessing as cpython

import cableway as cw


class TestPool(in_place.Ours, cpython._TestPool, cpython.ProcessesMixin, unittest.TestCase):
    """All methods of one pool."""


class TestPoolWorkerErrors(
    in_place.Ours, cpython._TestPoolWorkerErrors, cpython.ProcessesMixin, unittest.TestCase
):
    """Exceptions and results that cannot be pickled."""


class TestPoolWorkerLifetime(
    in_place.Ours, cpython._TestPoolWorkerLifetime, cpython.ProcessesMixin, unittest.TestCase
):
    """maxtasksperchild, and the end of the interpreter."""

    def test_worker_finalization_via_atexit_handler_of_multiprocessing(self) -> None:
        """A pool that lives until the interpreter ends."""
        helper = cpython.test.support.script_helper
        script = in_place.Script(
            helper.assert_python_ok, "from multiprocessing import Pool", "from cableway import Pool"
        )
        with mock.patch.object(helper, "assert_python_ok", script):
            super().test_worker_finalization_via_atexit_handler_of_multiprocessing()


class TestPoolNotLeakOnFailure(unittest.TestCase):
    """The fake processes of CPython's test have no pid; these are real."""

    def test_release_unused_processes(self) -> None:
        """The fourth worker cannot be started: Pool raises that, and ends the three."""
        if in_place.THEIRS:
            cpython.TestPoolNotLeakOnFailure.test_release_unused_processes(self)
            return
        default = multiprocessing.get_context()
        started = []

        def make(*args: Any, **settings: Any) -> Any:
            process = default.Process(*args, **settings)  # type: ignore[attr-defined]
            if len(started) == 3:
                process.start = mock.Mock(side_effect=OSError("Manually induced OSError"))
            else:
                started.append(process)
            return process

        context = mock.Mock(wraps=default, Process=make)
        context.get_context = lambda method=None: context
        with self.assertRaisesRegex(OSError, "Manually induced OSError"):
            cw.Pool(5, context=context)
        for process in started:
            process.join(cpython.support.SHORT_TIMEOUT)
            self.assertFalse(process.is_alive())
        self.assertEqual(len(started), 3)


@in_place.only("test_pool_initializer")
class TestInitializers(cpython.TestInitializers):
    """A pool's initializer."""

    def test_pool_initializer(self) -> None:
        """The manager's process is made before: what it pickles needs multiprocessing as it is."""
        with in_place.ours():
            super().test_pool_initializer()


@in_place.only("test_pool_in_process")
class TestStdinBadfiledescriptor(cpython.TestStdinBadfiledescriptor):
    """A pool in a child process."""

    def test_pool_in_process(self) -> None:
        """Four workers of a child."""
        in_place.check_child(cpython.pool_in_process)
