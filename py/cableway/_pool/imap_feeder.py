"""The thread that reads the input of an imap.

It reads some tasks ahead of those that are done, or, with buffersize, of those whose results were taken. In the second case it
holds the iterator weakly while it waits. When the iterator is dropped, no more of the input is read, and the Pool that the
iterator held can be dropped, too.
"""

from __future__ import annotations

import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from cableway._pool.jobs import Task
from cableway._transport import message as wire

if TYPE_CHECKING:
    from cableway._pool.engine import Engine
    from cableway._pool.imap import IMapIterator

__all__ = ["Feeder"]

_READ_AHEAD = 4  # tasks for each worker


class Feeder:
    """Reads one input.

    Args:
        engine: it runs the tasks; told at the end.
        job: whose input it is.
        chunksize: items of one task.
        buffersize: tasks ahead of those whose results were asked for; None: ahead of those that are done.
    """

    def __init__(
        self,
        engine: Engine,
        job: IMapIterator,
        chunksize: int,
        buffersize: int | None,
    ) -> None:
        self._engine = engine
        self._chunksize = chunksize
        self._limit = buffersize or _READ_AHEAD * engine.processes
        self._of_results = buffersize is not None
        self._function = job.found
        self._room = job.room
        self._number = 0  # of the next task
        self._gone = False
        self.job: Callable[[], IMapIterator | None] = (
            weakref.ref(job, self._job_gone) if self._of_results else lambda: job
        )

    def start(self, iterable: Iterable[Any], feeding: set[Feeder]) -> None:
        """Begins to read, as one of those that do.

        Both or none, whatever a signal's handler raises: one that counts and does not run would keep the Pool from
        ending. (A `threading.Thread` whose start() is interrupted runs, and may fail as it begins.)
        """
        begin = partial(start_new_thread, self._serve, (iterable,))
        steps: tuple[Any, ...] = (partial(feeding.add, self), begin)
        try:
            deque(map(partial.__call__, steps), maxlen=0)  # in C
        except RuntimeError:  # no more threads
            feeding.discard(self)
            raise

    def look_again(self) -> None:
        """Something that it waits for may have changed."""
        with self._room:
            self._room.notify_all()

    def _job_gone(self, _: object) -> None:
        with self._room:
            self._gone = True
            self._room.notify_all()

    def _serve(self, iterable: Iterable[Any]) -> None:
        try:
            ended = self._feed(iterable)
            job = self.job()
            if job is not None:
                if ended:
                    job.input_ended(self._number)
            elif self._function is not None:
                self._engine.functions.unuse(self._function)
        finally:
            self._engine.fed(self)

    def _feed(self, iterable: Iterable[Any]) -> bool:
        """False: the Pool has ended first, or nobody asks any more; what was not read must not look like the end."""
        iterator = None
        while self._wait_for_room():
            try:
                if iterator is None:
                    iterator = iter(iterable)
                chunk = tuple(islice(iterator, self._chunksize))
            except BaseException as error:
                self._give(None, error)
                return True
            if not chunk:
                return True
            self._give(chunk)
        return False

    def _wait_for_room(self) -> bool:
        """Waits until one more task may begin. False: none may any more."""
        with self._room:
            while not self._gone:
                begun = self._begin()
                if begun is not None:
                    return begun
                if not self._gone:  # what that held for a moment may have been the last of it
                    self._room.wait()
            return False

    def _begin(self) -> bool | None:
        job = self.job()
        return None if job is None else job.begin(self._limit, self._of_results)

    def _give(self, chunk: tuple[Any, ...] | None, error: BaseException | None = None) -> None:
        """One more task: items, or what reading them has raised."""
        job, number = self.job(), self._number
        self._number = number + 1
        if job is None:
            return
        if chunk is None:
            assert error is not None
            job.input_failed(number, error)
            return
        task = Task(job, number, wire.MAP, chunk)
        if self._engine.options.retries:
            job.give(task)
        self._engine.submit(job, task)
