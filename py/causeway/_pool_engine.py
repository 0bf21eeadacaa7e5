"""The engine of a Pool: which tasks are under way, what comes back, deaths.

Threads of the parent
    callers     submit on their own threads; who waits for a result listens for answers and sees to all that come,
                its own and others'
    helper      sees to answers while nobody listens, to deaths, time limits, the end
    watcher     (_pool_crew) sleeps on the workers' pidfds, tells the helper who died
    callbacks   (_pool_callbacks) runs the callbacks; started when there is one
    feeders     one for each imap over an iterator of unknown length: reads it

Tasks are taken by the workers from shared memory (shm/dispatch.h), and bound when they are taken. The parent keeps
in `_pending` what there is no room for: all cells are under way, or so many bytes.

What came back is delivered by the thread that collected it. A Ctrl-C may end that thread's work at any line: what
it was at is done again (jobs take a task's result once), so that nobody waits for ever for what it dropped.

Deaths: what a dead worker had published counts. The one task that it had taken raises WorkerDied, or is run again,
and another worker starts in its place. The parent's death ends the workers (see _pool_worker). `_lock` guards what is
shared; no code of the user's runs under it, and no finaliser takes it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from multiprocessing import util
from typing import Any

from causeway import _pool_outcomes as outcomes
from causeway import _pool_process
from causeway import _pool_wire as wire
from causeway._pool_buffers import BlockStore
from causeway._pool_callbacks import Callbacks
from causeway._pool_crew import Crew, Worker
from causeway._pool_functions import Functions
from causeway._pool_imap import IMapIterator
from causeway._pool_incoming import Incoming, drop
from causeway._pool_jobs import Job, Source, Task, name_of
from causeway._pool_options import Options
from causeway._pool_outgoing import Outgoing
from causeway._pool_shared import Shared, recurring
from causeway.errors import Error

__all__ = ["CLOSE", "RUN", "TERMINATE", "Engine"]

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"

_KEEP_BYTES = 512 << 20  # memory for arguments that the parent keeps
_START_DEATHS_MAX = 3
_READ_AHEAD = 4  # tasks for each worker that imap reads ahead of what is done
_SLICE_SECONDS = (
    1.0  # a signal may come just before the sleep: who waits for ever looks up now and then
)


class Engine:
    """Runs jobs on worker processes. `Pool` and `Executor` are its faces."""

    def __init__(self, processes: int, context: Any, options: Options, daemon: bool = True) -> None:
        self.pid = os.getpid()
        self.state = RUN
        self.abandoned = False  # set without a lock by the Pool's finaliser
        self.options = options
        self._store = BlockStore(_KEEP_BYTES)
        self._lock = threading.RLock()  # a finaliser may come to take it on a thread that has it
        self._over = self._helper_ended = False
        self._deferred: deque[Callable[[], object]] = deque()  # for the helper to do
        self._feeding: set[IMapIterator] = set()
        self._waiters: set[int] = set()  # threads that wait for a job
        self._error: BaseException | None = None  # why nothing works any more
        self._start_deaths = 0

        self._callbacks = Callbacks()
        incoming = Incoming(self._fail)
        self._crew = Crew(processes, context, options, daemon, incoming.deliver)
        self.dispatch = self._crew.dispatch
        self._outgoing = Outgoing(self._crew, self._store, self._refusal)
        incoming.connect(self._crew, self._outgoing)
        self.functions = Functions(self.dispatch.put_function, self._crew.main)
        self._helper = threading.Thread(target=self._serve, name="causeway-pool", daemon=True)
        self._crew.start_all()
        self._at_exit = util.Finalize(None, self.terminate, exitpriority=15)
        try:
            self._helper.start()
        except BaseException:
            self.abandoned = True
            if self._helper.ident is None:  # it will never run
                self._end()
            else:
                self.wake()
            raise

    # ---- what the Pool calls, on callers' threads

    @property
    def processes(self) -> int:
        """How many workers there shall be."""
        return self._crew.size

    @property
    def is_open(self) -> bool:
        """Whether it takes work."""
        return self.state == RUN

    def check_running(self) -> None:
        """ValueError if the Pool takes no more work; what broke it if something did."""
        if os.getpid() != self.pid:
            raise ValueError(
                f"Pool not running in this process: it belongs to the process {self.pid}"
            )
        if self._error is not None:
            raise self._error
        if self.state != RUN:
            raise ValueError("Pool not running")

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """One call, waited for. (value,), or None where it must go as a job (nothing was begun then)."""
        if self._outgoing or self.options.retries:
            return None
        found = self.functions.find(function)
        if found is None:
            return None
        messages: list[bytes] = []
        try:
            answer = self.dispatch.call(
                wire.APPLY, found.described, function, (args, named) if named else (args,), messages
            )
            if answer is None:
                return None
            plain, value = answer
            if plain:
                return (value,)
            success, value = _decoded(function, messages)
        except BaseException:
            for data in messages:  # it was interrupted before they were opened
                drop(data)
            raise
        finally:
            self.functions.unuse(found)
        if success:
            return (value,)
        try:
            raise value
        finally:
            del value  # the exception's traceback holds this frame, and it the arguments

    def shared_by(self, job: Job, items: tuple[Any, ...], chunksize: int) -> Shared | None:
        """What the tasks of a job over items have in common."""
        arrays = recurring(job.function, items, chunksize, with_function=job.found is None)
        return Shared(self._store, arrays) if arrays else None

    def submit(self, job: Job, work: Task | Source) -> int:
        """Submits a job's work, or what there is room for. The cell of a single plain task, else -1."""
        if type(work) is Task and not self._outgoing and job.described is not None:
            cell: int = self.dispatch.submit_plain(
                None, job, work.number, work.kind, job.described, work.args
            )
            if cell >= 0:
                return cell
        self._outgoing.put(work)
        return -1

    def feed(
        self, job: IMapIterator, iterable: Iterable[Any], chunksize: int, buffersize: int | None
    ) -> None:
        """Runs a job over an iterable that a thread of its own reads, some tasks ahead."""
        with self._lock:
            self._feeding.add(job)
        threading.Thread(
            target=self._feed,
            args=(job, iterable, chunksize, buffersize),
            name="causeway-pool-input",
            daemon=True,
        ).start()

    def wait_for(self, job: Job, timeout: float | None) -> None:
        """Waits until a job has settled, or timeout seconds."""
        self.wait_until(lambda: job.settled, timeout)

    def wait_until(self, seen: Callable[[], bool], timeout: float | None) -> bool:
        """Waits for answers, and sees to them, until seen() is true, or timeout seconds. Whether it is."""
        until = None if timeout is None else time.monotonic() + timeout
        me = threading.get_ident()
        self._waiters.add(me)  # before seen() is asked: who changes it tells us
        try:
            while True:
                was = self.dispatch.news(False)
                if seen():
                    return True
                left = _SLICE_SECONDS if until is None else until - time.monotonic()
                self.dispatch.listen(was, min(max(left, 0.0), _SLICE_SECONDS))
                if left <= 0:
                    return seen()
        finally:
            self._waiters.discard(me)

    def notify(self) -> None:
        """Something has changed for who waits, in another thread than this one."""
        waiters = self._waiters
        if waiters and (len(waiters) > 1 or threading.get_ident() not in waiters):
            self.dispatch.tell(False)

    def collect(self) -> bool:
        """Sees to the answers that are there. True, so that it can stand in a condition."""
        self.dispatch.collect()
        return True

    def withdraw(self, job: Job | None = None) -> list[tuple[Job, int | None]]:
        """Takes back what no worker has taken: of one job or of all. (job, task), None: all from a task on."""
        if os.getpid() != self.pid:
            return []
        taken = self._outgoing.withdraw(job)
        self.wake()
        return taken

    def cancel(self, job: Job, cell: int) -> bool:
        """Takes back a job of one task. False: a worker has it, or had it, or is about to."""
        return os.getpid() == self.pid and self._outgoing.cancel(job, cell)

    def kill(self) -> None:
        """Sends SIGKILL to all workers: the tasks that they run are lost. Any thread."""
        for worker in self._crew.living():
            worker.process.kill()

    def resize(self, processes: int) -> None:
        """Changes how many workers there are. Those that are too many leave after their task."""
        self._crew.resize(processes)
        self.wake()

    def figures(self) -> list[dict[str, Any]]:
        """What each worker has done so far."""
        return self._crew.figures()

    @property
    def error(self) -> BaseException | None:
        """Why nothing works any more, if so."""
        return self._error

    @property
    def callbacks(self) -> Callbacks:
        """The thread for callbacks."""
        return self._callbacks

    def close(self) -> None:
        """No more work; workers end when all is done."""
        with self._lock:
            if self.state == RUN:
                self.state = CLOSE
            feeding = list(self._feeding)
        for job in feeding:
            job.look_again()
        self.wake()

    def terminate(self) -> None:
        """Ends the workers now, and with them all that is not done."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            self.state = TERMINATE
        self._crew.terminate()
        self.wake()
        if threading.current_thread() is not self._helper:
            self._helper.join()

    def join(self) -> None:
        """Waits until all workers have ended and all callbacks have run."""
        if threading.current_thread() is not self._helper:
            self._helper.join()
        self._callbacks.join()

    def defer(self, work: Callable[[], object]) -> None:
        """Lets the helper do something, which no signal's handler interrupts."""
        self._deferred.append(work)
        if self._helper_ended:
            self._do_deferred()
        else:
            self.wake()

    def wake(self) -> None:
        """Makes the helper look around. Takes no lock."""
        self.dispatch.tell(True)

    def job_done(self, job: Job) -> None:
        """All tasks of a job have ended: runs its callback, then tells who waits. May be repeated."""
        self.functions.leave(job)
        if job.shared is not None:
            job.shared.close()
        if job.calls_back:
            self._callbacks.run(job.call_back, job.settle)
        else:
            job.settle()

    # ---- iterables

    def _feed(
        self, job: IMapIterator, iterable: Iterable[Any], chunksize: int, buffersize: int | None
    ) -> None:
        limit = buffersize or _READ_AHEAD * self.processes
        number = 0
        try:
            iterator = iter(())
            started = False
            while job.begin(limit, buffersize is not None):
                try:
                    if not started:
                        iterator, started = iter(iterable), True
                    chunk = tuple(islice(iterator, chunksize))
                except BaseException as error:
                    job.task_done(number, False, error)
                    number += 1
                    break
                if not chunk:
                    break
                task = Task(job, number, wire.MAP, chunk)
                if self.options.retries:
                    job.give(task)
                self.submit(job, task)
                number += 1
            job.input_ended(number)
        finally:
            with self._lock:
                self._feeding.discard(job)
            self.wake()

    # ---- the helper

    def _serve(self) -> None:
        _pool_process.hurry()  # results must not wait while a server for workers starts
        try:
            self._serve_until_ended()
        except BaseException as error:  # a fault of ours: nobody may wait for ever because of it
            self._error = error
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            self._end()

    def _serve_until_ended(self) -> None:
        crew = self._crew
        while True:
            was = self.dispatch.news(True)
            while crew.dead and not self._must_end():
                self._bury(crew.dead.popleft())
            self._look_at_starting()
            self._do_deferred()
            if self._must_end():
                return
            self._outgoing.pump()
            if self.state == RUN:
                self._fill()
            elif self.state == CLOSE and self._dismiss():
                return
            self.dispatch.help(was, self._end_overdue())

    def _must_end(self) -> bool:
        return self.abandoned or self.state == TERMINATE or self._error is not None

    def _do_deferred(self) -> None:
        while True:
            try:
                work = self._deferred.popleft()
            except IndexError:
                return
            work()

    def _fail(self, error: BaseException) -> None:
        """Nothing works any more. Any thread."""
        self._error = self._error or error
        self.wake()

    def _refusal(self) -> BaseException | None:
        """Why nothing is sent any more, if so."""
        if self._over or self.state == TERMINATE or self._error is not None:
            return self._end_error()
        return None

    def _look_at_starting(self) -> None:
        for worker, failure in self._crew.look_at_starting():
            if failure is None:
                self._start_deaths = 0
            else:
                _, self._error = _decoded("the initializer's exception", [failure])
                worker.process.terminate()

    def _dismiss(self) -> bool:
        """Closing: workers leave when nothing is left to do. True when all have gone."""
        left = bool(self._outgoing or self._feeding)
        self.dispatch.close(not left)
        if self._crew.living():
            return False
        if left or self.dispatch.ready():  # submitted just before the end, to nobody
            self._fill(1)
            return False
        return True

    def _end_overdue(self) -> float | None:
        """Kills workers whose task runs too long. Seconds until the next may."""
        limit = self.options.task_timeout
        if limit is None:
            return None
        soonest = limit
        self.dispatch.collect()  # what has ended runs no more
        for job, number, slot, seconds, _ in self.dispatch.running():
            if seconds < limit:
                soonest = min(soonest, limit - seconds)
            else:
                self._crew.overran(slot, limit, (job, number))
        return max(soonest, 0.001) if self.dispatch.under_way else limit

    # ---- deaths, and the end

    def _bury(self, worker: Worker) -> None:
        """Sees to a worker that has died: its last words, its task, its successor."""
        crew = self._crew
        crew.reap(worker)
        for job, number, _slot, _, what, _, held in self.dispatch.bury(worker.slot):
            if job is None:
                self.dispatch.fail(number, outcomes.death(worker, what, None))
                continue
            self._outgoing.lose(held)
            self._lost(worker, job, number)
        self._store.lost(worker)
        started = worker.ready
        crew.discard(worker)
        if not started and not worker.told_to_leave:
            self._start_deaths += 1
            if self._start_deaths >= _START_DEATHS_MAX and self._error is None:
                self._error = outcomes.start_death(worker, self._start_deaths)
        left = self._outgoing or self._feeding or self.dispatch.ready()
        if left and self.state == CLOSE and not self._must_end():
            self._fill(1)

    def _fill(self, most: int | None = None) -> None:
        try:
            self._crew.fill(most)
        except Exception as error:  # no process or no broker any more
            self._error = error
            self.wake()

    def _lost(self, worker: Worker, job: Job, number: int) -> None:
        """A task went with its worker: it is run again, or has failed."""
        task = None
        if worker.overran is None:
            if self.options.retries:
                if job.tries is None:
                    job.tries = {}
                tries = job.tries[number] = job.tries.get(number, 0) + 1
                task = job.again(number) if tries <= self.options.retries else None
        elif worker.overran_task != (job, number):
            task = job.again(
                number
            )  # the other one had just ended when the worker was killed for it
        if task is not None:
            self._outgoing.put_back(task)
        else:
            job.task_done(number, False, outcomes.death(worker, job.function, job.span(number)))

    def _end(self) -> None:
        """Ends every worker, then every job that is not done."""
        with self._lock:
            closed = self.state == CLOSE and self._error is None and not self.abandoned
            self.state = TERMINATE
            self._over = True
            aborted: list[Job] = list(self._feeding)
        self.dispatch.shut()
        aborted.extend(work.job for work in self._outgoing.take_all())
        try:
            dead = self._crew.end_all()
        except Exception as error:
            self._error, dead = self._error or error, self._crew.living()
        for worker in dead:
            try:
                for job, number, *_ in self.dispatch.bury(worker.slot):
                    self._abort(job, number)
            except Exception as error:
                self._error = self._error or error
            self._crew.discard(worker)
        aborted.extend(job for job, *_ in self.dispatch.withdraw_all(None))
        for job in aborted:
            job.abort(self._end_error())
        self.dispatch.fail(0, self._end_error())
        self._helper_ended = True
        self._do_deferred()
        self._callbacks.end()
        self._store.close()
        self._at_exit.cancel()
        if closed:
            self.state = CLOSE
        self.dispatch.tell(False)

    def _abort(self, job: Job | None, number: int) -> None:
        if job is None:
            self.dispatch.fail(number, self._end_error())
        else:
            job.abort(self._end_error())

    def _end_error(self) -> BaseException:
        if self._error is not None:
            return self._error
        return Error(
            "the Pool was terminated before this call had ended; nothing of it will come any more"
        )


def _decoded(what: Any, messages: list[bytes]) -> tuple[bool, Any]:
    """What a message says, which is taken out of the list once it was opened."""
    name = what if isinstance(what, str) else name_of(what)
    try:
        message = wire.read(messages[0])
    except Exception as error:
        return False, outcomes.undecodable(error, name)
    messages.clear()
    return outcomes.decode(message, name, interruptible=True)
