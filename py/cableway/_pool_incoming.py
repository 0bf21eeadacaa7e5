"""What comes back from workers, on its way to its jobs.

Whatever thread collects answers delivers them. A Ctrl-C may end its work at any line: then the dispatch calls
again with what is left, and each step can be done twice. An answer that was decoded is kept for the second time,
since what its blocks held may be gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cableway import _pool_outcomes as outcomes
from cableway import _pool_wire as wire
from cableway._pool_jobs import name_of
from cableway.errors import Error, Stale

if TYPE_CHECKING:
    from cableway._pool_crew import Crew
    from cableway._pool_outgoing import Outgoing

__all__ = ["Incoming", "decoded", "drop"]

_FAULTS_MAX = 8  # in a row, as csrc/dispatch_collect.c counts
# What has become of a message, beside the kinds of answers: its blocks are being opened, are open, were open when
# decoding was interrupted; it is decoded.
_OPENING, _OPENED, _OPENED_TWICE, _DECODED = 101, 102, 103, 104
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

    def connect(self, crew: Crew, outgoing: Outgoing) -> None:
        """Before the first answer comes."""
        self._crew = crew
        self._outgoing = outgoing

    def deliver(self, told: list[Any], faults: int) -> None:
        """Gives answers to their jobs, and takes them out of the list. Called again when it was interrupted.

        Args:
            told: (owner, number, worker, kind, data, cell, held) of each.
            faults: how often in a row it was called and brought nothing about.
        """
        if faults == 0:
            told.reverse()
        elif faults == _FAULTS_MAX:
            self._fail(Error("an answer could not be given to its caller; the Pool has ended"))
            told.clear()
        while told:
            job, number, _, kind, data, _, held = told[-1]
            if kind == _VALUE and type(held) in _NEEDS_NOTHING and job is not None:  # most are so
                job.task_done(number, True, _plain_loads(data))
            else:
                self._take(told)
            told.pop()
        if self._outgoing:
            self._outgoing.pump()

    def _take(self, told: list[Any]) -> None:
        """The last answer of the list."""
        job, number, slot, kind, data, _, held = told[-1]
        if job is None:
            self._take_nobodys(slot, kind, data)
            return
        if kind == wire.ANSWER_NONE:
            success, value = True, None
        elif kind == _VALUE:
            success, value = True, _plain_loads(data)
        else:
            success, value = self._message(told)
        if held is not None:
            if success:
                try:
                    self._outgoing.land(held)
                except ValueError as error:
                    success, value = False, error
            self._outgoing.release(held, self._crew.at(slot))
        job.task_done(number, success, value)

    def _message(self, told: list[Any]) -> tuple[bool, Any]:
        job, number, slot, kind, data, _, held = told[-1]
        what = name_of(job.function)

        def keep(state: int, value: Any) -> None:
            told[-1] = (job, number, slot, state, value, 0, held)

        found: tuple[bool, Any]
        try:
            if kind == _OPENING and wire.has_blocks(data):
                # Some may have been opened, let go, and used again by their sender.
                drop(data)
                interrupt = KeyboardInterrupt("while its blocks were opened")
                found = False, outcomes.undecodable(interrupt, what)
            elif kind in (wire.ANSWER_MESSAGE, _OPENING):
                keep(_OPENING, data)
                message = wire.read(data)
                keep(_OPENED, message)
                found = outcomes.decode(message, what, interruptible=True)
            elif kind == _OPENED:
                keep(_OPENED_TWICE, data)
                found = outcomes.decode(data, what)
            elif kind == _OPENED_TWICE:
                found = outcomes.decode(data, what)
            else:
                return data  # type: ignore[no-any-return]
        except Stale as error:
            found = False, self._stale(error, job, number, slot)
        except Exception as error:
            found = False, outcomes.undecodable(error, what)
        keep(_DECODED, found)
        return found

    def _stale(self, error: Stale, job: Any, number: int, slot: int) -> BaseException:
        """What an answer needs is gone: with its worker, or else."""
        worker = self._crew.dead_sender(slot)
        if worker is not None:
            return outcomes.death(worker, job.function, job.span(number))
        return outcomes.undecodable(error, name_of(job.function))

    def _take_nobodys(self, slot: int, kind: int, data: Any) -> None:
        if kind == wire.ANSWER_MESSAGE:
            drop(data)
        else:
            self._crew.broke(slot, data)


def drop(data: bytes) -> None:
    """Opens a message that nobody wants: its sender waits for that."""
    try:
        wire.read(data)
    except Exception:  # it is gone already
        pass


def decoded(what: Any, messages: list[bytes]) -> tuple[bool, Any]:
    """What a message says, which is taken out of the list once it was opened. what: the function, or how to call it."""
    name = what if isinstance(what, str) else name_of(what)
    try:
        message = wire.read(messages[0])
    except Exception as error:
        return False, outcomes.undecodable(error, name)
    messages.clear()
    return outcomes.decode(message, name, interruptible=True)
