"""What comes back from workers, on its way to its jobs.

Whatever thread collects answers delivers them. Handlers of signals run on the main thread, at any line of this, and may
raise: then the exception is the caller's, and the rest of the list is the helper's, whom no handler interrupts
(csrc/dispatch_collect.c). So each step can be done twice, and begun by one thread and ended by another: how far an answer
has come stands in its entry of the list, and which of its blocks are open is noted by C (`wire.Message`).

Each message with blocks ends in one of these ways, and its worker, which stays for it, hears of it by one word in the
Pool's own memory (csrc/dispatch_answer.c), which needs nothing of a broker:

    opened     the worker may go on, or go
    refused    it cannot be opened (no descriptor, no memory, no broker, no client more): its task gets that error
    let go     nobody wants it: its caller has left, the Pool has ended, or it was itself lost
    its worker died, and what it held with it: the task is lost with its worker, as if it had not answered: it is run
               again with `retries`, else it raises WorkerDied. The helper decides (`Helper.lost`)

What keeps a block from being opened may pass in a moment (somebody else's descriptors): a result that was computed is worth
some more looks, so the helper tries again for PATIENCE_SECONDS before it refuses; the worker stays meanwhile.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cableway._dispatch import Answer
from cableway._pool import answers as outcomes
from cableway._pool.handler_errors import is_handlers
from cableway._pool.jobs import name_of
from cableway._transport import message as wire
from cableway.errors import BrokerLost, Error, Stale

if TYPE_CHECKING:
    from cableway._pool.submit import Outgoing
    from cableway._pool.supervisor import Helper
    from cableway._pool.workers import Crew, Worker

__all__ = ["LOOK_SECONDS", "PATIENCE_SECONDS", "Incoming", "decoded", "may_pass"]

_FAULTS_MAX = 8  # in a row, as csrc/dispatch_collect.c counts
# What has become of a message, beside the kinds of answers: its blocks are being opened; it is decoded.
_OPENING, _DECODED = 101, 102
PATIENCE_SECONDS, LOOK_SECONDS = 1.0, 0.02  # how long, and how often, a block is tried to be opened
_NEEDS_NOTHING = (type(None), tuple)  # of what went with a task: nothing, or arrays alone
_VALUE, _plain_loads = wire.ANSWER_VALUE, wire.plain_loads


class Incoming:
    """Delivers answers.

    Args:
        fail: told of a fault of ours, with which nothing can go on.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._crew: Crew
        self._outgoing: Outgoing

    def connect(self, crew: Crew, outgoing: Outgoing, helper: Helper) -> None:
        """Before the first answer comes."""
        self._crew = crew
        self._outgoing = outgoing
        self._helper_of = weakref.ref(helper)  # which has this

    @property
    def _helper(self) -> Helper:
        helper = self._helper_of()
        assert helper is not None  # the engine has both, and whoever delivers the engine
        return helper

    def deliver(self, told: list[Any], faults: int) -> None:
        """Gives answers to their jobs, from the end of the list on, and takes them out of it. What is left in the list when
        it returns or raises is the helper's to deliver.

        Args:
            told: (owner, number, worker, kind, data, cell, held) of each.
            faults: how often in a row it was called by the helper and brought nothing about.
        """
        if faults == _FAULTS_MAX:
            self._fail(Error("an answer could not be given to its caller; the Pool has ended"))
            told.clear()
        while told:
            job, number, slot, kind, data, _, held = told[-1]
            if kind == _VALUE and not faults and type(held) in _NEEDS_NOTHING:  # most are so
                job.task_done(number, True, _plain_loads(data))
            elif job is None:
                self._crew.broke(slot, data)
            elif not self._take(told):
                return
            told.pop()
        if self._outgoing:
            self._outgoing.pump()

    def _take(self, told: list[Any]) -> bool:
        """Sees to the last answer of the list. False: that is the helper's to do."""
        job, number, slot, kind, data, _, held = told[-1]
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
                told[-1] = (job, number, slot, _OPENING, data, 0, held)
            if not data.is_open:
                why_not = data.open()
                if why_not is not None and self._helper.is_needed:
                    return False
                if why_not is not None and self._helper.sees_to(why_not, told[-1]):
                    return True
                if why_not is not None:
                    found = False, outcomes.undecodable(why_not, name_of(job.function))
            if found is None:
                found = decoded(data, name_of(job.function))
            told[-1] = (job, number, slot, _DECODED, found, 0, held)
            data.close()
        success, value = found
        if held is not None:
            why_not = self._outgoing.land(held) if success else None
            if why_not is not None:
                success, value = False, why_not
            self._outgoing.release(held, self._crew.at(slot))
        job.task_done(number, success, value)
        return True

    def _plain(self, data: bytes, job: Any) -> tuple[bool, Any]:
        try:
            return True, _plain_loads(data)
        except BaseException as error:  # a handler's, or there is no memory
            if self._helper.is_needed:
                raise
            return False, outcomes.undecodable(error, name_of(job.function))

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
            until = until or now + PATIENCE_SECONDS
            if not may_pass(why_not) or now >= until:
                worker = self._sender_of(why_not, data)
                if worker is not None:
                    return False, outcomes.death(worker, function, None)
                return False, outcomes.undecodable(why_not, name_of(function))
            time.sleep(LOOK_SECONDS)
        found = decoded(message, name_of(function))
        message.close()
        return found

    def _sender_of(self, why_not: Exception, data: Any) -> Worker | None:
        """The worker with which went what a message needs; None: it is otherwise."""
        if isinstance(why_not, Stale) and type(data) is Answer:
            return self._crew.dead_sender(data.worker)
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
        return outcomes.decode(message, what)
    except BaseException as error:
        if is_handlers(error, lambda: outcomes.decode(message, what)):
            raise
        return False, outcomes.undecodable(error, what, outcomes.printed(message))
