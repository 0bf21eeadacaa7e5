"""multiprocess's own tests of its Pool and queues (multiprocess.tests), over ours.

multiprocess is the standard library's multiprocessing with dill as its pickle, and contexts and processes of its own.
"""

from __future__ import annotations

import unittest
from unittest import mock

import in_place
import multiprocess.tests as theirs
import suite_queue

LEFT_OUT = {
    "test_async_timeout": "multiprocess.TimeoutError is a class of its own: ours is multiprocessing's",
    **suite_queue.LEFT_OUT,
}


class Ours(in_place.Ours):
    """Ours in the place of multiprocess's."""

    package = theirs.multiprocessing


@in_place.without(LEFT_OUT)
class TestPool(Ours, theirs._TestPool, theirs.ProcessesMixin, unittest.TestCase):
    """All methods of one pool."""


class TestPoolWorkerErrors(
    Ours, theirs._TestPoolWorkerErrors, theirs.ProcessesMixin, unittest.TestCase
):
    """Exceptions and results that cannot be pickled."""


class TestPoolWorkerLifetime(
    Ours, theirs._TestPoolWorkerLifetime, theirs.ProcessesMixin, unittest.TestCase
):
    """maxtasksperchild, and the end of the interpreter."""

    def test_worker_finalization_via_atexit_handler_of_multiprocessing(self) -> None:
        """A pool that lives until the interpreter ends."""
        helper = theirs.test.support.script_helper
        script = in_place.Script(
            helper.assert_python_ok, "from multiprocess import Pool", "from cableway import Pool"
        )
        with mock.patch.object(helper, "assert_python_ok", script):
            super().test_worker_finalization_via_atexit_handler_of_multiprocessing()


@in_place.only("test_pool_initializer")
class TestInitializers(theirs.TestInitializers):
    """A pool's initializer."""

    def test_pool_initializer(self) -> None:
        """The manager's process is made before: what it pickles needs multiprocess as it is."""
        with in_place.ours(theirs.multiprocessing):
            super().test_pool_initializer()


@in_place.without(LEFT_OUT)
class TestQueue(Ours, theirs._TestQueue, theirs.ProcessesMixin, unittest.TestCase):
    """Queue and JoinableQueue."""


@in_place.without(LEFT_OUT)
class TestSimpleQueue(Ours, theirs.TestSimpleQueue):
    """SimpleQueue."""


@in_place.only("test_nested_startmethod")
class TestStartMethod(Ours, theirs.TestStartMethod):
    """A queue that goes on to a grandchild."""


@in_place.only("test_pool_in_process", "test_queue_in_process")
class TestStdinBadfiledescriptor(theirs.TestStdinBadfiledescriptor):
    """A pool and a queue in a child process."""

    def test_pool_in_process(self) -> None:
        """Four workers of a child."""
        in_place.check_child(theirs.pool_in_process, theirs.multiprocessing)

    def test_queue_in_process(self) -> None:
        """A child that passes a queue on to its own child."""
        in_place.check_child(theirs._test_process, theirs.multiprocessing)
