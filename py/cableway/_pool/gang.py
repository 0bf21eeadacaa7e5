"""`Pool.spmd`: one function at once on n distinct workers, which are the members of a group.

A *gang* is a job of n tasks, one for each rank. A task that runs keeps its worker until all ranks have one (_pool.worker.member), and
a worker runs one task at a time, so the ranks are on distinct workers.

Invariants
    One gang at a time is let in (`Turn`), so two never wait for each other's workers. It has at most as many ranks as the Pool has
    workers, and other tasks end by themselves: in the end each rank has a worker.
    With devices a rank belongs to a GPU; if an idle worker of another one has taken it, it comes back and is sent again.
    No rank is called before all have a worker, and none is called twice.

Who ends it
    a rank fails, or its worker dies   the group tells those that run; word 0 those that wait for a worker; what no worker has taken
                                       is taken back. The caller gets the first failure when all others have ended
    the Pool is made smaller           while ranks wait for workers that will not come: as above
    a signal's handler raises          as above, in the caller; ranks that run go on to their end
    close()                            the gang is done as a whole, or refused as a whole
    terminate(), or the Pool breaks    the caller is told at once
"""

from __future__ import annotations

import operator
import os
import secrets
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from cableway import create
from cableway._core import locks
from cableway._pool import interpreter_exit
from cableway._pool.jobs import Task, Withdrawable, name_of
from cableway._pool.worker.member import Member, NotBegun, NotHere, Seat
from cableway._transport.message import APPLY
from cableway.errors import Error, GroupBroken, WorkerDied
from cableway.transfers import check_distinct

if TYPE_CHECKING:
    from cableway._pool.engine import Engine

__all__ = ["RANKS_MAX", "Gang", "Turn", "run"]

RANKS_MAX = 256  # CW_GROUP_RANKS_MAX


class Turn:
    """Whose turn it is. A plain lock, which no signal's handler leaves held: `with turn.lock`.

    Attributes:
        lock: held while a gang is under way.
        thread: the last one that had it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread = 0

    def check(self) -> None:
        """RuntimeError in the handler of a signal that has interrupted spmd() in this thread: it would wait for itself."""
        if self.lock.locked() and self.thread == threading.get_ident():
            raise RuntimeError(
                "this thread is in spmd() already, which a signal's handler has interrupted: call it elsewhere"
            )


class Gang(Withdrawable):
    """The job.

    Args:
        engine: of the Pool.
        owner: the Pool.
        function: called with the Group and args.
        args: the same for each rank.
        size: how many ranks.
        timeout: seconds for each operation of the group; None: without limit.

    Raises:
        LimitExceeded: no memory for the words.
    """

    def __init__(
        self,
        engine: Engine,
        owner: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        size: int,
        timeout: float | None,
    ) -> None:
        super().__init__(engine, owner, Member(function))
        self.size = size
        self._args = args
        self._group = f"spmd-{os.getpid()}-{secrets.token_hex(8)}"
        self._timeout = timeout
        self._array = create.zeros(size + 1, "u4")
        self._words = self._array.numpy()
        self._workers = engine.spread(size)
        self._attempts = [0] * size
        self._lock = locks.RLock()  # a finaliser may come to take it on a thread that has it
        self._left = set(range(size))
        self._results: list[Any] = [None] * size
        self._errors: dict[int, BaseException] = {}
        self._ended_by: BaseException | None = None
        calls = tuple(args for _ in range(size))
        check_distinct(calls)
        self.shared = engine.shared_by(self, calls, 1)

    def run(self) -> list[Any]:
        """Submits all ranks, and waits for their results."""
        self._run_to_end()
        try:
            return self._result()
        finally:
            self = None  # type: ignore[assignment]  # else an exception's traceback would hold it

    def _run_to_end(self) -> None:
        try:
            for rank in range(self.size):
                self.engine.submit(self, self._task(rank))
            self.engine.wait_until(lambda: self.settled or self.broken, None)
            if not self.settled:
                self.call_off()
                self.engine.wait_until(lambda: self.settled, None)
        except BaseException:
            self.call_off()
            raise

    def _task(self, rank: int) -> Task:
        seat = Seat(
            self._group,
            rank,
            self.size,
            self._workers[rank],
            self._attempts[rank],
            self._timeout,
            self._array,
        )
        return Task(self, rank, APPLY, ((seat, *self._args),), self._workers[rank])

    def _send_again(self, rank: int, attempt: int) -> None:
        """On the supervisor's thread, so that it is done once."""
        if self._attempts[rank] == attempt and not self.settled:
            self._attempts[rank] = attempt + 1
            self.engine.submit(self, self._task(rank))

    @property
    def all_called(self) -> bool:
        """Whether each rank has a worker."""
        return bool(self._words[1:].all())

    @property
    def broken(self) -> bool:
        """Whether a rank has failed, or ranks wait for workers that will not come."""
        return bool(self._errors) or not (self.all_called or self.engine.has_room(self._workers))

    def call_off(self) -> None:
        """Ranks that have not been called will not be, but those that are let through just now."""
        self._words[0] = 1
        self.engine.withdraw(self)

    def span(self, number: int) -> tuple[int, int] | None:
        """A single call."""
        return None

    def task_done(self, number: int, success: bool, value: Any) -> None:
        """Takes one rank's result."""
        engine = self.engine
        if success and type(value) is NotHere:
            engine.defer(partial(self._send_again, number, value.attempt))
            return
        with self._lock:
            if number in self._left:
                if success:
                    self._results[number] = value
                else:
                    self._errors[number] = value
                    self._words[0] = 1
                self._left.discard(number)
            ended = not self._left
        if ended:
            engine.job_done(self)
        elif not success:
            engine.notify()

    def was_cancelled(self, number: int | None) -> None:
        """A rank was taken back: it is called no more."""
        if number is not None:
            self.task_done(number, False, NotBegun("the gang was called off"))

    def abort(self, error: BaseException) -> None:
        """The Pool has ended."""
        with self._lock:
            if self._left and self._ended_by is None:
                self._ended_by = error
                self._words[0] = 1
        self.engine.job_done(self)

    def settle(self) -> None:
        """Tells who waits."""
        self._settled = True
        self.owner = None
        self.engine.notify()

    def _result(self) -> list[Any]:
        """The results by rank, of a gang that has ended; or raises what has broken it."""
        error = self._ended_by or self._failure()
        if error is None:
            return self._results
        interpreter_exit.hold(error)
        try:
            raise error
        finally:
            self = error = None  # type: ignore[assignment]  # as above

    def _failure(self) -> BaseException | None:
        """Of the failures the first that is not only another one's."""
        if not self._errors:
            return None
        rank = min(self._errors, key=lambda rank: _blame(self._errors[rank]))
        error = self._errors[rank]
        if isinstance(error, NotBegun):
            return Error(
                f"the Pool was made smaller, to {self.engine.processes} workers, while {self.size} ranks of "
                f"{name_of(self.function)} waited for theirs; none was called"
            )
        _tell_rank(error, rank, self.size)
        return error


def _blame(error: BaseException) -> int:
    return 2 if isinstance(error, NotBegun) else 1 if isinstance(error, GroupBroken) else 0


def _tell_rank(error: BaseException, rank: int, size: int) -> None:
    """What a rank has raised says which one it was."""
    if isinstance(error, WorkerDied):
        error.index = rank
    if not isinstance(error, GroupBroken):  # which names the rank that broke the group
        error.rank = rank  # type: ignore[attr-defined]
    where = f"rank {rank} of {size} of Pool.spmd"
    if hasattr(error, "add_note"):
        error.add_note(where)
    elif isinstance(error.__cause__, RemoteTraceback):
        error.__cause__.tb = f"\n{where}:{error.__cause__.tb}"


def run(
    engine: Engine,
    owner: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    n: int | None,
    timeout: float | None,
) -> list[Any]:
    """Runs a gang, and waits for it."""
    if not callable(function):
        raise TypeError(f"spmd() calls a function, and {function!r} is none")
    engine.check_running()
    engine.gangs.check()
    with engine.gangs.lock:
        engine.gangs.thread = threading.get_ident()
        engine.check_running()  # it may have ended meanwhile
        size = engine.processes if n is None else operator.index(n)
        if size < 1:
            raise ValueError(f"spmd() runs on at least 1 worker, {size} were asked for")
        if size > RANKS_MAX:
            raise ValueError(
                f"a group has at most {RANKS_MAX} members, {size} were asked for: give n"
            )
        return Gang(engine, owner, function, args, size, timeout).run()
