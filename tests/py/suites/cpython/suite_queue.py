"""CPython's tests of multiprocessing's queues (test._test_multiprocessing), over ours."""

from __future__ import annotations

import unittest

import in_place
import test._test_multiprocessing as cpython

LEFT_OUT = {
    "test_queue_feeder_donot_stop_onexc": "there is no feeder thread: put() raises what pickling raises (test_queue.py)",
    "test_queue_feeder_on_queue_feeder_error": "there is no feeder thread",
}


@in_place.without(LEFT_OUT)
class TestQueue(in_place.Ours, cpython._TestQueue, cpython.ProcessesMixin, unittest.TestCase):
    """Queue and JoinableQueue."""


@in_place.without(LEFT_OUT)
class TestSimpleQueue(in_place.Ours, cpython.TestSimpleQueue):
    """SimpleQueue."""


@in_place.only("test_queue_in_process")
class TestStdinBadfiledescriptor(cpython.TestStdinBadfiledescriptor):
    """A queue in a child process."""

    def test_queue_in_process(self) -> None:
        """A child that passes a queue on to its own child."""
        in_place.check_child(cpython._test_process)


@in_place.only("test_nested_startmethod")
class TestStartMethod(in_place.Ours, cpython.TestStartMethod):
    """A queue that goes on to a grandchild."""
