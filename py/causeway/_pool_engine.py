"""The engine of a Pool: which task goes to which worker, results, deaths.

Threads of the parent
    callers     submit: they encode and send while a worker is idle, else the task waits in `_pending`
    helper      receives results, hands the worker its next task, sees to deaths, replaces workers, ends all
    watcher     (_pool_crew) sleeps on the workers' pidfds, tells the helper who died
    callbacks   (_pool_callbacks) runs the callbacks; started when there is one
    feeders     one for each imap over an iterator of unknown length: reads it

A worker has one task at a time, so that a slow task holds nobody back and a death costs the tasks of one
message alone. Who takes a worker out of `_idle` owns its sending side until the task is sent; the helper
alone receives. `_lock` guards what is shared; no code of the user's runs under it, and no finaliser takes it.

Deaths: a worker's last whole messages are read first (published, they count), then its task raises
WorkerDied, and another worker starts in its slot. The parent's death ends the workers (see _pool_worker).
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from multiprocessing import util
from typing import Any

from causeway import _pool_outcomes as outcomes
from causeway import _pool_wire as wire
from causeway._pool_buffers import BlockStore
from causeway._pool_callbacks import Callbacks
from causeway._pool_channel import Waiter, wait
from causeway._pool_crew import BUSY, DEAD, IDLE, LEAVING, STARTING, Crew, Worker
from causeway._pool_jobs import IMapIterator, Job, Source, Task, name_of
from causeway._pool_shared import Shared, recurring
from causeway.errors import Error, Stale

__all__ = ["CLOSE", "RUN", "TERMINATE", "Engine"]

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"

_KEEP_BYTES = 512 << 20  # memory for arguments that the parent keeps
_START_DEATHS_MAX = 3
_READ_AHEAD = 4  # tasks for each worker that imap reads ahead of what is done
_REFERENCES = (types.FunctionType, types.BuiltinFunctionType, type)
_REFERENCE_BYTES_MAX = 1024


class Engine:
    """Runs jobs on worker processes. `Pool` is its face."""

    def __init__(
        self,
        processes: int,
        initializer: Callable[..., object] | None,
        initargs: tuple[Any, ...],
        maxtasksperchild: int | None,
        context: Any,
        daemon: bool = True,
    ) -> None:
        self.pid = os.getpid()
        self.processes = processes
        self.state = RUN
        self.abandoned = False  # set without a lock by the Pool's finaliser
        self._maxtasks = maxtasksperchild
        self._store = BlockStore(_KEEP_BYTES)
        self._encoders: list[wire.Encoder] = []

        self._lock = threading.Lock()
        self._pending: deque[Task | Source] = deque()
        self._idle: list[Worker] = []
        self._jobs: set[Job] = set()
        self._feeders = 0
        self._error: BaseException | None = None  # why nothing works any more
        self._start_deaths = 0

        self._callbacks = Callbacks()
        self._crew = Crew(processes, context, initializer, initargs, daemon)
        self._helper = threading.Thread(target=self._serve, name="causeway-pool", daemon=True)
        self._crew.start_all()
        self._at_exit = util.Finalize(None, self.terminate, exitpriority=15)
        self._helper.start()

    # ---- what the Pool calls, on callers' threads

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

    def pickled_reference(self, function: Any) -> bytes:
        """The pickle of a function or class that the worker finds by its name; else b""."""
        if type(function) in _REFERENCES:
            try:
                found = pickle.dumps(function, protocol=5)
            except Exception:
                return b""
            if len(found) <= _REFERENCE_BYTES_MAX:
                return found
        return b""

    def shared_by(self, job: Job, items: tuple[Any, ...], chunksize: int) -> Shared | None:
        """What the tasks of a job over items have in common."""
        arrays = recurring(job.function, items, chunksize, with_function=not job.lead)
        return Shared(self._store, arrays) if arrays else None

    def submit(self, job: Job, work: Task | Source) -> None:
        """Queues a job's work, and sends what idle workers can take at once."""
        with self._lock:
            if self._error is None and self.state != TERMINATE:
                self._jobs.add(job)
                self._pending.append(work)
                ended = False
            else:
                ended = True
        if ended:
            job.abort(self._end_error())
        else:
            self._pump()

    def feed(self, job: IMapIterator, iterable: Iterable[Any], chunksize: int) -> None:
        """Runs a job over an iterable that a thread of its own reads, some tasks ahead."""
        with self._lock:
            self._jobs.add(job)
            self._feeders += 1
        limit = _READ_AHEAD * self.processes
        threading.Thread(
            target=self._feed,
            args=(job, iterable, chunksize, limit),
            name="causeway-pool-input",
            daemon=True,
        ).start()

    def withdraw(self, job: Job | None = None) -> list[Task | Source]:
        """Takes back the work that waits for a worker: of one job, which hears of the Pool's end no more, or of all."""
        with self._lock:
            waiting = list(self._pending)
            self._pending.clear()
            self._pending.extend(
                work for work in waiting if job is not None and work.job is not job
            )
            taken = [work for work in waiting if job is None or work.job is job]
            if job is not None:
                self._jobs.discard(job)
        self._crew.bell.ring()
        return taken

    def kill(self) -> None:
        """Sends SIGKILL to all workers: the tasks that they run are lost. Any thread."""
        for worker in self._crew.living():
            worker.process.kill()

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
        self._crew.bell.ring()

    def terminate(self) -> None:
        """Ends the workers now, and with them all that is not done."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            self.state = TERMINATE
        self._crew.terminate()
        self._crew.bell.ring()
        if threading.current_thread() is not self._helper:
            self._helper.join()

    def join(self) -> None:
        """Waits until all workers have ended and all callbacks have run."""
        if threading.current_thread() is not self._helper:
            self._helper.join()
        self._callbacks.join()

    def wake(self) -> None:
        """Makes the helper look around. Takes no lock."""
        self._crew.bell.ring()

    def job_done(self, job: Job) -> None:
        """All tasks of a job have ended: runs its callback, then tells who waits."""
        with self._lock:
            self._jobs.discard(job)
        if job.shared is not None:
            job.shared.close()
        callback = job.call_back()
        if callback is None:
            job.settle()
        else:
            self._callbacks.run(callback, job.settle)

    # ---- tasks on their way out

    def _pump(self) -> None:
        """Gives waiting tasks to idle workers."""
        while True:
            with self._lock:
                if not self._pending or not self._idle or self.state == TERMINATE:
                    return
                head = self._pending[0]
                if isinstance(head, Source):
                    task = head.take()
                    if head.empty:
                        self._pending.popleft()
                else:
                    task = head
                    self._pending.popleft()
                worker = self._idle.pop()
                worker.state, worker.task, worker.parcel = BUSY, task, None
            if task.job.begins(task):
                self._hand(worker, task)
            else:
                self._unhand(worker, task, back=False)

    def _hand(self, worker: Worker, task: Task) -> None:
        """Encodes a task and sends it to the worker that was taken for it."""
        lead = task.job.lead
        body = task.args if lead else (task.job.function, task.args)
        try:
            encoder = self._encoders.pop()
        except IndexError:
            encoder = wire.Encoder(self._store, worker.channel.max_bytes, transit=False)
        try:
            parcel = encoder.encode(
                task.number, task.call, lead, body, cloud=True, shared=task.job.shared
            )
        except BaseException as error:
            # A Ctrl-C is the caller's and leaves the task for another thread to send; all else is the task's own.
            ours = isinstance(error, KeyboardInterrupt)
            ours = ours and threading.current_thread() is threading.main_thread()
            self._unhand(worker, task, back=ours)
            if ours:
                raise
            task.job.task_done(task, False, error)
            return
        finally:
            self._encoders.append(encoder)
        with self._lock:
            if worker.state == BUSY:
                worker.parcel = parcel
                worker.channel.send(wire.TASK, parcel.data)
                return
        self._store.untake(parcel.blocks)
        self._unhand(worker, task, back=True)
        self._pump()

    def _unhand(self, worker: Worker, task: Task, back: bool) -> None:
        """The worker did not get the task: it is idle again, if it lives; back: the task waits again."""
        with self._lock:
            worker.task = None
            if worker.state == BUSY:
                worker.state = IDLE
                self._idle.append(worker)
            if back:
                self._pending.appendleft(task)
        self._crew.bell.ring()

    def _feed(self, job: IMapIterator, iterable: Iterable[Any], chunksize: int, limit: int) -> None:
        number = first = 0
        try:
            iterator = iter(())
            started = False
            while job.begin(limit):
                try:
                    if not started:
                        iterator, started = iter(iterable), True
                    chunk = tuple(islice(iterator, chunksize))
                except BaseException as error:
                    job.task_done(Task(job, number, wire.MAP, (), first, 0), False, error)
                    number += 1
                    break
                if not chunk:
                    break
                self.submit(job, Task(job, number, wire.MAP, chunk, first, len(chunk)))
                number += 1
                first += len(chunk)
            job.input_ended(number)
        finally:
            with self._lock:
                self._feeders -= 1
            self._crew.bell.ring()

    # ---- the helper

    def _serve(self) -> None:
        try:
            self._serve_until_ended()
        except BaseException as error:  # a fault of ours: nobody may wait for ever because of it
            self._error = error
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            self._end()

    def _serve_until_ended(self) -> None:
        living: list[Worker] = []
        waiter = Waiter([])
        while True:
            now = self._crew.living()
            if now != living:
                living = now
                waiter = Waiter([worker.channel for worker in living])
            wait(waiter, self._crew.bell)
            for worker in living:
                self._receive(worker)
            while self._crew.dead and not self._must_end():
                self._bury(self._crew.dead.popleft())
            if self._must_end():
                return
            self._pump()
            if self.state == CLOSE and self._dismiss():
                return

    def _must_end(self) -> bool:
        return self.abandoned or self.state == TERMINATE or self._error is not None

    def _receive(self, worker: Worker) -> None:
        """Takes all messages that a worker has sent."""
        while True:
            received = worker.channel.receive(0)
            if received is None:
                return
            kind, data = received
            if kind == wire.RESULT:
                self._take_result(worker, data)
            elif kind == wire.READY:
                self._start_deaths = 0
                self._release(worker)
            elif kind == wire.START_FAILED:
                _, error = outcomes.decode(wire.read(data), "the initializer's exception")
                self._error = error
            else:
                raise Error(
                    f"a Pool's worker (pid {worker.pid}) sent a message of unknown kind {kind}"
                )

    def _take_result(self, worker: Worker, data: Any) -> None:
        task, parcel = worker.task, worker.parcel
        if task is None or parcel is None:
            raise Error(f"a Pool's worker (pid {worker.pid}) sent a result without having a task")
        try:
            message = wire.read(data)
        except Exception as error:
            if isinstance(error, Stale) and self._crew.has_died(worker):
                return  # what it lent went with it: the task is lost, as _bury will tell
            message, lost = None, error
        worker.task = worker.parcel = None
        worker.tasks_done += 1
        self._store.lent(parcel.blocks, worker)
        del parcel
        self._release(worker)
        self._pump()  # the worker goes on while we unpickle
        if message is None:
            success, value = False, outcomes.undecodable(lost, name_of(task.job.function))
        else:
            success, value = outcomes.decode(message, name_of(task.job.function))
        task.job.task_done(task, success, value)

    def _release(self, worker: Worker) -> None:
        """The worker is free: for the next task, or to go when it has done all that it may do."""
        with self._lock:
            if worker.state in (LEAVING, DEAD):
                return
            if self._maxtasks is not None and worker.tasks_done >= self._maxtasks:
                self._send_exit(worker)
            else:
                worker.state = IDLE
                self._idle.append(worker)

    def _send_exit(self, worker: Worker) -> None:
        worker.state = LEAVING
        worker.channel.send(wire.EXIT, b"")

    def _dismiss(self) -> bool:
        """Closing: sends idle workers home when nothing waits. True when all have gone."""
        with self._lock:
            if self._pending or self._feeders:
                return False
            while self._idle:
                self._send_exit(self._idle.pop())
        return not self._crew.living()

    # ---- deaths, and the end

    def _bury(self, worker: Worker) -> None:
        """Sees to a worker that has died: its last words, its task, its successor."""
        self._crew.reap(worker)
        self._receive(worker)
        with self._lock:  # a caller that sends looks at the state under it
            was, worker.state = worker.state, DEAD
            if worker in self._idle:
                self._idle.remove(worker)
            task, parcel = worker.task, worker.parcel
            self._crew.discard(worker)
        self._store.lost(worker)
        if task is not None and parcel is not None:  # else it was not sent, and waits again
            for block in parcel.blocks:
                block.close()
            task.job.task_done(task, False, outcomes.death(worker.pid, worker.exitcode, task))
        if was == STARTING:
            self._start_deaths += 1
            if self._start_deaths >= _START_DEATHS_MAX and self._error is None:
                self._error = outcomes.start_death(worker.pid, worker.exitcode, self._start_deaths)
        with self._lock:
            needed = self.state == RUN or (self.state == CLOSE and (self._pending or self._feeders))
        if needed and self._error is None and not self.abandoned:
            try:
                self._crew.start(worker.slot)
            except Exception as error:  # no process or no broker any more
                self._error = error

    def _end(self) -> None:
        """Ends every worker, then every job that is not done."""
        with self._lock:
            closed = self.state == CLOSE and self._error is None and not self.abandoned
            self.state = TERMINATE
            self._pending.clear()
        for worker in self._crew.end_all():
            try:
                self._receive(worker)  # what it had published still counts
            except Exception as error:
                self._error = self._error or error
            with self._lock:
                self._crew.discard(worker)
        with self._lock:
            jobs = list(self._jobs)
            self._jobs.clear()
        for job in jobs:
            job.abort(self._end_error())
            if job.shared is not None:
                job.shared.close()
        self._callbacks.end()
        self._store.close()
        self._at_exit.cancel()
        if closed:
            self.state = CLOSE

    def _end_error(self) -> BaseException:
        if self._error is not None:
            return self._error
        return Error(
            "the Pool was terminated before this call had ended; nothing of it will come any more"
        )
