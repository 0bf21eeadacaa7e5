"""Delivers to the jobs what comes back from workers.

The thread that collects answers delivers them, whichever it is. Signal handlers run on the main thread, at any line of this, and may
raise. Then the exception goes to the caller, and the supervisor delivers the rest of the list, since no handler interrupts it
(csrc/dispatch_collect.c). So each step may be done twice, or begun by one thread and ended by another: an answer's entry in the list
says how far it has come, and C notes which of its blocks are open (`wire.Message`).

Each message with blocks ends in one of these ways. Its worker, which stays alive for it, learns this from one word in the Pool's own
memory (csrc/dispatch_answer.c), which needs no broker:

    opened     the worker may go on, or leave
    refused    it cannot be opened (no descriptor, no memory, no broker, too many clients): its task gets that error
    let go     nobody wants it: its caller has left, the Pool has ended, or it was itself lost
    its worker died, and with it the blocks: the task is lost with its worker, as if it had not answered. With `retries` it is run
               again, else it raises WorkerDied; where the Pool was terminated, it is told that. The supervisor decides
               (`Supervisor._lost`)

The reason why a block cannot be opened may be gone in a moment (another process used the last descriptors), and a result that was
computed is worth another attempt. So the supervisor tries again for OPEN_TIMEOUT_SECONDS before it refuses; the worker stays meanwhile.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cableway._core.handler_errors import is_handlers
from cableway._dispatch import Answer
from cableway._pool import answers
from cableway._pool.jobs import name_of
from cableway._transport import message as wire
from cableway.errors import BrokerLost, Error, Stale

if TYPE_CHECKING:
    from cableway._pool.submit import SubmitQueue
    from cableway._pool.supervisor import Supervisor
    from cableway._pool.workers import Worker, Workers

__all__ = ["LOOK_SECONDS", "OPEN_TIMEOUT_SECONDS", "Delivery", "decoded", "may_pass"]

_FAULTS_MAX = 8  # in a row, as csrc/dispatch_collect.c counts
# What has become of a message, beside the kinds of answers: its blocks are being opened; it is decoded.
_OPENING, _DECODED = 101, 102
OPEN_TIMEOUT_SECONDS = 1.0  # how long a block is tried to be opened
LOOK_SECONDS = 0.02  # and how often
_NEEDS_NOTHING = (type(None), tuple)  # of what went with a task: nothing, or arrays alone
_VALUE, _plain_loads = wire.ANSWER_VALUE, wire.plain_loads


class Delivery:
    """Delivers answers.

    Args:
        fail: told of a fault of ours, with which nothing can go on.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._workers: Workers
        self._submit_queue: SubmitQueue

    def connect(self, workers: Workers, submit_queue: SubmitQueue, supervisor: Supervisor) -> None:
        """Before the first answer comes."""
        self._workers = workers
        self._submit_queue = submit_queue
        self._supervisor_of = weakref.ref(supervisor)  # which has this

    @property
    def _supervisor(self) -> Supervisor:
        supervisor = self._supervisor_of()
        assert supervisor is not None  # the engine has both, and whoever delivers the engine
        return supervisor

    def deliver(self, told: list[Any], faults: int) -> None:
        """Gives answers to their jobs, from the end of the list on, and takes them out of it. What is left in the list when
        it returns or raises is the supervisor's to deliver.

        Args:
            told: (owner, number, worker, kind, data, cell, payload) of each.
            faults: how often in a row it was called by the supervisor and brought nothing about.
        """
        if faults == _FAULTS_MAX:
            self._fail(Error("an answer could not be given to its caller; the Pool has ended"))
            told.clear()
        while told:
            job, number, slot, kind, data, _, payload = told[-1]
            if kind == _VALUE and not faults and type(payload) in _NEEDS_NOTHING:  # most are so
                job.task_done(number, True, _plain_loads(data))
            elif job is None:
                self._workers.broke(slot, data)
            elif not self._take(told):
                return
            told.pop()
        if self._submit_queue:
            self._submit_queue.pump()

    def _take(self, told: list[Any]) -> bool:
        """Sees to the last answer of the list. False: that is the supervisor's to do."""
        job, number, slot, kind, data, _, payload = told[-1]
        found: tuple[bool, Any] | None = None
        if kind == wire.ANSWER_NONE:
            found = True, None
        elif kind == _VALUE:
            found = self._plain(data, job)
        elif kind == _DECODED:
            found = data
        else:
            if kind == wire.ANSWER_MESSAGE:
                data = wire.Message(data)
                told[-1] = (job, number, slot, _OPENING, data, 0, payload)
            if not data.is_open:
                why_not = data.open()
                if why_not is not None and self._supervisor.is_needed:
                    return False
                if why_not is not None and self._supervisor.sees_to(why_not, told[-1]):
                    return True
                if why_not is not None:
                    found = False, answers.undecodable(why_not, name_of(job.function))
            if found is None:
                found = decoded(data, name_of(job.function))
            told[-1] = (job, number, slot, _DECODED, found, 0, payload)
            data.close()
        success, value = found
        if payload is not None:
            why_not = self._submit_queue.land(payload) if success else None
            if why_not is not None:
                success, value = False, why_not
            self._submit_queue.release(payload, self._workers.at(slot))
        job.task_done(number, success, value)
        return True

    def _plain(self, data: bytes, job: Any) -> tuple[bool, Any]:
        try:
            return True, _plain_loads(data)
        except BaseException as error:  # a handler's, or there is no memory
            if self._supervisor.is_needed:
                raise
            return False, answers.undecodable(error, name_of(job.function))

    def call_decoded(self, function: Any, data: Any) -> tuple[bool, Any]:
        """What a message says, to whoever waits for this very one and decodes it himself. Its worker is released by the
        caller.

        Raises:
            What a signal's handler raises.
        """
        message = wire.Message(data)
        until = 0.0
        while (why_not := message.open()) is not None:
            now = time.monotonic()
            until = until or now + OPEN_TIMEOUT_SECONDS
            if not may_pass(why_not) or now >= until:
                worker = self._sender_of(why_not, data)
                if worker is not None:
                    end = self._supervisor.end_error()
                    return False, end or answers.death(worker, function, None)
                return False, answers.undecodable(why_not, name_of(function))
            time.sleep(LOOK_SECONDS)
        found = decoded(message, name_of(function))
        message.close()
        return found

    def _sender_of(self, why_not: Exception, data: Any) -> Worker | None:
        """The worker with which went what a message needs; None: it is otherwise."""
        if isinstance(why_not, Stale) and type(data) is Answer:
            return self._workers.dead_sender(data.worker)
        return None


def may_pass(why_not: Exception) -> bool:
    """Whether it may help to try again, after a block could not be opened."""
    return not isinstance(why_not, (Stale, BrokerLost, ValueError))


def decoded(message: wire.Message, what: str) -> tuple[bool, Any]:
    """What a message that is open says.

    Raises:
        What a signal's handler raises.
    """
    try:
        return answers.decode(message, what)
    except BaseException as error:
        if is_handlers(error, lambda: answers.decode(message, what)):
            raise
        return False, answers.undecodable(error, what, answers.printed(message))
