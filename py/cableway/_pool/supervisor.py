"""The supervisor of a Pool: the thread that handles answers while nobody listens, deaths, time limits and the end.

Deaths: an answer that a dead worker had published counts, if it can still be opened. The task that it had taken raises WorkerDied, or
is run again, and another worker starts in its place. Signal handlers run on the main thread, so nothing interrupts this one.

Sleep: the supervisor reads the news counter, checks everything below, and sleeps until the counter has changed, or until a time limit.
So whoever changes one of the following changes it first and then wakes the supervisor (`Engine.wake`, which takes no lock):

    a worker has become ready or failed     the worker itself, by its state
    a worker has died                       the watcher, or who started it: `workers.dead`
    answers, and nobody listens             the worker
    answers whose delivery was interrupted  C (`rest`), and `help` looks for them before it sleeps
    answers that C may not deliver (late)   who submits; `help` looks for them before it sleeps
    cells are free for waiting tasks        who frees them sends the tasks, or wakes
    a sending thread was interrupted        `Dispatch.send_exclusive`, in one step with its end
    nothing waits any more                  who takes the last task out, if we have asked (`_dismiss`)
    an input is at its end                  the feeder (`Engine.fed`)
    close, terminate, error, resize, cancelled tasks, a Pool that is garbage, deferred work: who does it
    somebody wants our idle memory          who asks (`_core.idle_memory`)
    time limits                             nobody: they bound the sleep

The news counter must be read before any of this is checked. docs/ARCHITECTURE.md has the argument, and the listeners' part.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cableway._core import idle_memory
from cableway._core.threads import OwnThread
from cableway._pool import answers
from cableway._pool.deliver import LOOK_SECONDS, OPEN_TIMEOUT_SECONDS, decoded, may_pass
from cableway._pool.launch import process
from cableway._transport import message as wire
from cableway.errors import Stale

if TYPE_CHECKING:
    from cableway._pool.deliver import Delivery
    from cableway._pool.engine import Engine
    from cableway._pool.jobs import Job
    from cableway._pool.submit import SubmitQueue
    from cableway._pool.workers import Worker, Workers
    from cableway._transport.blocks import BlockStore

__all__ = ["Supervisor"]

_DEATHS_MAX = 3  # one after the other: while they start, or before any had done a task
_END_SECONDS = 2.0  # how long a worker whose initializer has failed is waited for


class Supervisor:
    """The thread, and what it does."""

    def __init__(
        self,
        engine: Engine,
        workers: Workers,
        submit_queue: SubmitQueue,
        store: BlockStore,
        delivery: Delivery,
    ) -> None:
        self._engine_of = weakref.ref(engine)  # the engine has this, and its thread the engine
        self._delivery = delivery
        self._workers = workers
        self._dispatch = workers.dispatch
        self._submit_queue = submit_queue
        self._store = store
        self._start_deaths = 0  # one after the other
        self._idle_deaths = 0  # of workers that had had no task, since the Pool's last one was done
        self._done_then = 0  # tasks that were done at the latest of these
        self._failure: BaseException | None = None  # of the first initializer that has raised
        self._failed_until = 0.0  # how long its worker's end is waited for
        self._deferred: deque[Callable[[], object]] = deque()
        self._later: list[Any] = []  # answers whose blocks could not be opened, as delivered
        self._until: dict[Any, float] = {}  # of each: how long it is tried
        self._ended = False
        self.thread = OwnThread(self._serve, "cableway-pool")
        self._gave_up_start = False
        self._starting: Engine | None = None  # nobody else may have it when the thread begins

    @property
    def _engine(self) -> Engine:
        engine = self._engine_of()
        assert engine is not None  # who calls this has it
        return engine

    def start(self) -> None:
        """Starts it."""
        self._starting = self._engine
        self.thread.start()

    def give_up_start(self) -> None:
        """The start of the Pool, at whatever step, has raised: ends what there is of it, here or on its thread."""
        engine = self._engine
        engine.abandoned = True
        if self.thread.withdraw():
            self._gave_up_start = True
            self._starting = None
            self._end()
        else:
            engine.wake()

    def join(self, seconds: float | None = None) -> bool:
        """Waits for its end, or seconds: whether it has come. At once and True on threads that the end waits for, and where
        it never began.
        """
        its_own = self.thread, self._workers.watcher
        if threading.current_thread() in its_own or self._gave_up_start:
            return True
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def defer(self, work: Callable[[], object]) -> None:
        """Does something soon, on the supervisor's thread. Any thread."""
        self._deferred.append(work)
        if self._ended:
            self._do_deferred()
        else:
            self._engine.wake()

    # ---- answers that others leave to it

    @property
    def is_needed(self) -> bool:
        """True on any thread but the supervisor's, while it runs."""
        return not self._ended and threading.current_thread() is not self.thread

    def sees_to(self, why_not: Exception, entry: Any) -> bool:
        """Decides about an answer whose blocks cannot be opened. On the supervisor's thread, or once it has ended.

        Returns:
            True: the supervisor has taken the answer over, do not deliver it now.
        """
        job, number, slot, _, message, _, payload = entry
        worker = self._workers.dead_sender(slot) if isinstance(why_not, Stale) else None
        if worker is not None:
            message.close()
            self._submit_queue.lose(payload)
            self._lost(worker, job, number, True)
            return True
        now = time.monotonic()
        if (
            may_pass(why_not)
            and not self._engine.must_end
            and now < self._until.setdefault(message, now + OPEN_TIMEOUT_SECONDS)
        ):
            self._later.append(entry)
            return True
        self._until.pop(message, None)
        return False

    def _open_again(self) -> float | None:
        """Tries to deliver what could not be opened before. Seconds until the next time."""
        told, self._later = self._later, []
        try:
            self._delivery.deliver(told, 0)
        finally:
            self._later += told
        if not self._later:
            self._until.clear()
            return None
        return LOOK_SECONDS

    def _do_deferred(self) -> None:
        while True:
            try:
                work = self._deferred.popleft()
            except IndexError:
                return
            work()

    def _serve(self) -> None:
        engine, self._starting = self._engine, None
        process.hurry()  # results must not wait while a server for workers starts
        try:
            self._serve_until_ended()
        except BaseException as error:  # a fault of ours: nobody may wait for ever because of it
            engine.fail(error)
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            self._end()

    def _serve_until_ended(self) -> None:
        engine, workers = self._engine, self._workers
        while True:
            was = self._dispatch.news(True)
            idle_memory.heed(self._dispatch)
            while workers.dead and not engine.must_end:
                self._reap(workers.dead.popleft())
            ending = self._look_at_starting()
            workers.share_anew()
            waits = workers.look_at_start()
            self._do_deferred()
            if engine.must_end:
                return
            self._submit_queue.pump()
            if engine.is_open:
                self._fill()
            elif self._dismiss():
                return
            again = self._open_again() if self._later else None
            overdue = self._end_overdue()
            seconds = [
                t for t in (waits, again, overdue, ending, workers.fill_again) if t is not None
            ]
            self._dispatch.help(was, min(seconds, default=None))

    def _look_at_starting(self) -> float | None:
        """Sees to workers that are ready or have failed. Seconds until one of the latter is waited for no more.

        What a worker logged into a queue is on its way until it ends. So the error is told when the worker is buried,
        as in the standard library, which learns of the failure by the end.
        """
        for worker, failure in self._workers.look_at_starting():
            if failure is None:
                self._start_deaths = 0
            elif worker.failure is None:
                message = wire.Message(failure)
                worker.failure = message.open() or decoded(message, "the initializer")[1]
                worker.process.terminate()
                if self._failure is None:
                    self._failure = worker.failure
                    self._failed_until = time.monotonic() + _END_SECONDS
        if self._failure is None:
            return None
        left = self._failed_until - time.monotonic()
        if left <= 0:
            self._engine.fail(self._failure)
        return max(left, 0.0)

    def _dismiss(self) -> bool:
        """Closing: workers leave when nothing is left to do. True when all have gone."""
        while True:
            self._dispatch.ask_emptied()  # before the look: who takes the last one out now tells us
            left = self._engine.has_work
            self._dispatch.close(not left)
            living = len(self._workers.living())
            ready = self._dispatch.ready()  # perhaps submitted just before the end, to nobody
            if left or ready:
                self._fill(
                    None if left else living + ready
                )  # for those that have died, or done their maxtasksperchild
                return False
            if living:
                return False
            if self._engine.end_if_done():
                return True  # else something came at this moment, and nobody tells us of it again

    def _end_overdue(self) -> float | None:
        """Kills workers whose task runs too long. Seconds until the next may."""
        limit = self._engine.options.task_timeout
        if limit is None:
            return None
        soonest = limit
        overran: dict[int, list[tuple[Any, int]]] = {}
        self._dispatch.collect()  # what has ended runs no more
        for job, number, slot, seconds, _ in self._dispatch.running():
            if seconds < limit:
                soonest = min(soonest, limit - seconds)
            else:
                overran.setdefault(slot, []).append((job, number))
        for slot, tasks in overran.items():
            self._workers.overran(slot, limit, tasks)
        return max(soonest, 0.001) if self._dispatch.under_way else limit

    def _reap(self, worker: Worker) -> None:
        """Sees to a worker that has died: its last words, its task, its successor."""
        workers = self._workers
        workers.reap(worker)
        tasks = self._dispatch.reap(worker.slot)
        for job, number, _slot, begun, what, _, payload in tasks:
            if job is None:
                overran = (None, number) in worker.overran_tasks
                self._dispatch.count_lost(False)
                self._dispatch.fail(number, answers.death(worker, what, None, overran))
                continue
            self._submit_queue.lose(payload)
            self._lost(worker, job, number, bool(begun))
        self._store.lost(worker)
        started = worker.ready
        workers.discard(worker)
        if worker.failure is not None:
            self._engine.fail(worker.failure)
        elif not started and not worker.told_to_leave:
            self._start_deaths += 1
            if self._start_deaths >= _DEATHS_MAX:
                self._engine.fail(answers.start_death(worker, self._start_deaths))
        elif not tasks and not workers.has_done_any(worker):
            self._died_idle(worker)

    def _died_idle(self, worker: Worker) -> None:
        """A worker that was ready has died without having had a task. One that others have killed is replaced for ever; if
        they die of something here, there is an end to it: its successors are likely to die in the same way.
        """
        open_ = self._engine.is_open
        if worker.told_to_leave or not answers.by_itself(worker):
            return
        if not open_ and not self._engine.has_work and not self._dispatch.ready():
            return  # it has left, as it should
        done = self._workers.done()
        if done != self._done_then:
            self._idle_deaths, self._done_then = 0, done
        self._idle_deaths += 1
        # All that have left while a Pool closes may be seen together, after a task came back to be run again.
        limit = _DEATHS_MAX if open_ else _DEATHS_MAX + self._workers.size
        if self._idle_deaths >= limit:
            self._engine.fail(answers.idle_death(worker, self._idle_deaths, limit))

    def _fill(self, most: int | None = None) -> None:
        try:
            self._workers.fill(most)
        except Exception as error:  # no process or no broker any more
            self._engine.fail(error)

    def _lost(self, worker: Worker, job: Job, number: int, begun: bool) -> None:
        """A task went with its worker: it is run again, or has failed.

        Of a worker that was killed for its time limit this is that task, or one beside it. That one may have run: its
        function may even have ended, its results being on their way out. Without retries nothing runs twice. Where the
        Pool was terminated its workers die of that.
        """
        if self._engine.must_end:
            self._dispatch.count_lost(False)
            self._abort(job, number)
            return
        task, retries = None, self._engine.options.retries
        overran = (job, number) in worker.overran_tasks
        if worker.overran is None or (begun and not overran):
            if retries:
                if job.tries is None:
                    job.tries = {}
                tries = job.tries[number] = job.tries.get(number, 0) + 1
                task = job.again(number) if tries <= retries else None
        elif not overran:
            task = job.again(number)
        self._dispatch.count_lost(task is not None)
        if task is not None:
            self._submit_queue.put_back(task)
        else:
            error = answers.death(worker, job.function, job.span(number), overran)
            job.task_done(number, False, error)

    def _end(self) -> None:
        """Ends every worker, then every job that is not done."""
        engine = self._engine
        closed, aborted = engine.begin_end()
        aborted.extend(self._submit_queue.take_all())
        try:
            dead = self._workers.end_all()
        except Exception as error:
            engine.fail(error)
            dead = self._workers.living()
        for worker in dead:
            try:
                for job, number, *_ in self._dispatch.reap(worker.slot):
                    self._abort(job, number)
            except Exception as error:
                engine.fail(error)
            self._workers.discard(worker)
        try:
            self._dispatch.collect()  # with what others had left
            self._open_again()  # for the last time
        except Exception as error:
            engine.fail(error)
        aborted.extend(job for job, *_ in self._dispatch.withdraw_all(None))
        for job in aborted:
            job.abort(engine.end_error())
        self._dispatch.fail(0, engine.end_error())
        self._ended = True
        self._dispatch.leave()
        self._do_deferred()
        engine.has_ended(closed)

    def end_error(self) -> BaseException | None:
        """What becomes of calls where the Pool ends now; None: it does not."""
        engine = self._engine
        return engine.end_error() if engine.must_end else None

    def _abort(self, job: Job | None, number: int) -> None:
        error = self._engine.end_error()
        if job is None:
            self._dispatch.fail(number, error)
        else:
            job.abort(error)
