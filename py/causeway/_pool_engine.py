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

from causeway import _dispatch, _pool_process
from causeway import _pool_outcomes as outcomes
from causeway import _pool_wire as wire
from causeway._pool_buffers import BlockStore
from causeway._pool_callbacks import Callbacks
from causeway._pool_crew import Crew, Worker
from causeway._pool_functions import Functions
from causeway._pool_jobs import IMapIterator, Job, Source, Task, name_of
from causeway._pool_options import Options
from causeway._pool_shared import Shared, recurring
from causeway.errors import Error, Stale

__all__ = ["CLOSE", "RUN", "TERMINATE", "Engine"]

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"

_KEEP_BYTES = 512 << 20  # memory for arguments that the parent keeps
_AHEAD_BYTES = 256 << 20  # of large arguments on their way; one for each worker in any case
_START_DEATHS_MAX = 3
_READ_AHEAD = 4  # tasks for each worker that imap reads ahead of what is done
_REFILL = 4  # a map is cut further when a quarter of the cells is free
_NO_ROOM, _NOT_PLAIN, _SHUT = -1, -3, -4  # of _dispatch's submit calls
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
        self._encoders: list[wire.Encoder] = []

        self._lock = threading.Lock()
        self._pending: deque[Task | Source] = deque()
        self._pumping = self._pump_again = False
        self._feeding: set[IMapIterator] = set()
        self._ahead_bytes = self._ahead_count = 0
        self._waiters: set[int] = set()  # threads that wait for a job
        self._error: BaseException | None = None  # why nothing works any more
        self._start_deaths = 0

        self._callbacks = Callbacks()
        self._crew = Crew(processes, context, options, daemon, self._deliver)
        self.dispatch = self._crew.dispatch
        self.functions = Functions(self.dispatch.put_function, self._crew.main)
        self._helper = threading.Thread(target=self._serve, name="causeway-pool", daemon=True)
        self._crew.start_all()
        self._at_exit = util.Finalize(None, self.terminate, exitpriority=15)
        self._helper.start()

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
        if self._pending or self.options.retries:
            return None
        found = self.functions.find(function)
        if found is None:
            return None
        try:
            answer = self.dispatch.call(
                wire.APPLY, found.described, function, (args, named) if named else (args,)
            )
        finally:
            self.functions.leave(found)
        if answer is None:
            return None
        plain, value = answer
        if plain:
            return (value,)
        success, value = self._decode(function, value)
        if success:
            return (value,)
        raise value

    def shared_by(self, job: Job, items: tuple[Any, ...], chunksize: int) -> Shared | None:
        """What the tasks of a job over items have in common."""
        arrays = recurring(job.function, items, chunksize, with_function=job.found is None)
        return Shared(self._store, arrays) if arrays else None

    def submit(self, job: Job, work: Task | Source) -> int:
        """Submits a job's work, or what there is room for. The cell of a single plain task, else -1."""
        if type(work) is Task and not self._pending and job.described is not None:
            cell: int = self.dispatch.submit_plain(
                job, work.number, work.kind, job.described, work.args
            )
            if cell >= 0:
                return cell
        with self._lock:
            self._pending.append(work)
        self._pump()
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
        until = None if timeout is None else time.monotonic() + timeout
        me = threading.get_ident()
        self._waiters.add(me)
        try:
            while True:
                was = self.dispatch.news(False)
                if job.settled:
                    return
                left = _SLICE_SECONDS if until is None else max(0.0, until - time.monotonic())
                self.dispatch.listen(was, left)
                if left == 0.0:
                    return
        finally:
            self._waiters.discard(me)

    def listen(self, was: int, timeout: float | None) -> None:
        """Waits for answers or news, and sees to them."""
        me = threading.get_ident()
        self._waiters.add(me)
        try:
            self.dispatch.listen(was, _SLICE_SECONDS if timeout is None else timeout)
        finally:
            self._waiters.discard(me)

    def news(self) -> int:
        """The number that `listen` compares with."""
        was: int = self.dispatch.news(False)
        return was

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
        with self._lock:
            waiting = list(self._pending)
            self._pending.clear()
            self._pending.extend(
                work for work in waiting if job is not None and work.job is not job
            )
        taken: list[tuple[Job, int | None]] = []
        for owner, number, *_, held in self.dispatch.withdraw_all(job):
            self._unhold(held)
            taken.append((owner, number))
        for work in waiting:
            if job is None or work.job is job:
                taken.append((work.job, work.number if isinstance(work, Task) else None))
        self.wake()
        return taken

    def cancel(self, job: Job, cell: int) -> bool:
        """Takes back a job of one task. False: a worker has it, or had it."""
        found = self.dispatch.withdraw(cell, job) if cell >= 0 else None
        if found is not None:
            self._unhold(found[-1])
            return True
        with self._lock:
            for work in self._pending:
                if work.job is job:
                    self._pending.remove(work)
                    return True
        return any(number is not None for _, number in self._withdraw_sent(job))

    def _withdraw_sent(self, job: Job) -> list[tuple[Job, int]]:
        found = self.dispatch.withdraw_all(job)
        for told in found:
            self._unhold(told[-1])
        return [(told[0], told[1]) for told in found]

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

    def wake(self) -> None:
        """Makes the helper look around. Takes no lock."""
        self.dispatch.tell(True)

    def job_done(self, job: Job) -> None:
        """All tasks of a job have ended: runs its callback, then tells who waits."""
        if job.found is not None:
            self.functions.leave(job.found)
        if job.shared is not None:
            job.shared.close()
        callback = job.call_back()
        if callback is None:
            job.settle()
        else:
            self._callbacks.run(callback, job.settle)

    # ---- tasks on their way out

    def _pump(self) -> None:
        """Sends what waits, as far as there is room. One thread does it, for all."""
        with self._lock:
            if self._pumping:
                self._pump_again = True
                return
            if not self._pending:
                return
            self._pumping = True
        try:
            while True:
                while self._pending and self._send_first():
                    pass
                with self._lock:
                    if not self._pump_again:
                        self._pumping = False
                        return
                    self._pump_again = False
        except BaseException:
            with self._lock:
                self._pumping = self._pump_again = False
            self.wake()
            raise

    def _send_first(self) -> bool:
        """Sends what waits first; False when there is no room for it."""
        try:
            work = self._pending[0]
        except IndexError:
            return False
        if self.state == TERMINATE or self._error is not None:
            self._take_first(work)
            work.job.abort(self._end_error())
            return True
        if isinstance(work, Task):
            cell = self._send(work)
        else:
            cell = self._send_chunks(work)
            if cell >= 0 and not work.empty:
                return True
        if cell == _NO_ROOM:
            return False
        self._take_first(work)
        if cell == _SHUT:
            work.job.abort(self._end_error())
        return True

    def _take_first(self, work: Task | Source) -> None:
        with self._lock:
            if self._pending and self._pending[0] is work:
                self._pending.popleft()

    def _send_chunks(self, work: Source) -> int:
        """As many chunks as there is room for. 0, or why it stopped."""
        cells = self._crew.plane.cells
        if self.dispatch.under_way > cells - cells // _REFILL and self.dispatch.ready() > 0:
            return _NO_ROOM
        job = work.job
        if job.described is not None:
            sent, why = self.dispatch.submit_chunks(
                job, work.number, work.kind, job.described, work.items, work.chunksize, cells
            )
            work.number += sent
            if why != _NOT_PLAIN:
                return int(why)
        cell = self._send_message(work.task(work.number))
        if cell >= 0:
            work.number += 1
        return cell

    def _send(self, task: Task) -> int:
        job = task.job
        if job.described is not None:
            cell: int = self.dispatch.submit_plain(
                job, task.number, task.kind, job.described, task.args
            )
            if cell != _NOT_PLAIN:
                return cell
        return self._send_message(task)

    def _send_message(self, task: Task) -> int:
        """Encodes a task and sends it. A task that cannot be encoded has failed, and counts as sent."""
        if self._ahead_bytes > _AHEAD_BYTES and self._ahead_count > self._crew.size:
            return _NO_ROOM
        if self.dispatch.under_way >= self._crew.plane.cells:
            return _NO_ROOM
        job = task.job
        body = task.args if job.described is not None else (job.function, task.args)
        try:
            encoder = self._encoders.pop()
        except IndexError:
            encoder = wire.Encoder(
                self._store, _dispatch.DATA_MAX, transit=False, main=self._crew.main
            )
        try:
            parcel = encoder.encode(
                task.number, task.kind, b"", body, cloud=True, shared=job.shared
            )
        except BaseException as error:
            # A Ctrl-C is the caller's, and leaves the task where it is; all else is the task's own.
            if (
                isinstance(error, KeyboardInterrupt)
                and threading.current_thread() is threading.main_thread()
            ):
                raise
            job.task_done(task.number, False, error)
            return 0
        finally:
            self._encoders.append(encoder)
        held = _Held(parcel)
        with self._lock:
            self._ahead_bytes += held.nbytes
            self._ahead_count += 1
        try:
            cell: int = self.dispatch.submit(
                job, task.number, wire.MESSAGE, job.described, parcel.data, held
            )
        except BaseException:
            self._unhold(held)
            raise
        if cell < 0:
            self._unhold(held)
        return cell

    def _unhold(self, held: _Held | None) -> None:
        """What went with a task that was not sent, or was taken back."""
        if held is not None:
            self._count_back(held)
            self._store.untake(held.parcel.blocks)

    def _count_back(self, held: _Held) -> None:
        with self._lock:
            self._ahead_bytes -= held.nbytes
            self._ahead_count -= 1

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

    # ---- what comes back

    def _deliver(self, told: list[Any]) -> None:
        """Gives answers to their jobs. Called by whatever thread has collected them."""
        interrupted: KeyboardInterrupt | None = None
        rest = iter(told)
        answer = None
        while True:
            try:
                if interrupted is not None and answer is not None:
                    self._take(answer)
                for answer in rest:  # noqa: B007
                    self._take(answer)
                break
            except KeyboardInterrupt as error:
                interrupted = error
        if self._pending:
            self._pump()
        if interrupted is not None:
            raise interrupted

    def _take(self, answer: Any) -> None:
        """One answer. May be called for the same one again."""
        job, number, slot, kind, data, _, held = answer
        if kind == wire.ANSWER_MESSAGE:
            try:
                success, value = self._decode(job.function, data)
            except Stale as error:
                worker = self._crew.at(slot)
                if worker is not None and self._crew.has_died(worker):
                    self._crew.reap(worker)
                    value = outcomes.death(worker, job.function, job.span(number))
                else:
                    value = outcomes.undecodable(error, name_of(job.function))
                success = False
        elif kind == wire.ANSWER_NONE:
            success, value = True, None
        else:
            success, value = True, wire.plain_loads(data)
        if held is not None and held.end():
            self._count_back(held)
            self._store.lent(held.parcel.blocks, self._crew.at(slot))
        job.task_done(number, success, value)

    def _decode(self, function: Any, data: bytes) -> tuple[bool, Any]:
        """What a message says. Stale: its sender died, and what went with it."""
        try:
            message = wire.read(data)
        except Stale:
            raise
        except Exception as error:
            return False, outcomes.undecodable(error, name_of(function))
        return outcomes.decode(message, name_of(function))

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
            if self._must_end():
                return
            self._pump()
            if self.state == RUN:
                self._fill()
            elif self.state == CLOSE and self._dismiss():
                return
            self.dispatch.help(was, self._end_overdue())

    def _must_end(self) -> bool:
        return self.abandoned or self.state == TERMINATE or self._error is not None

    def _look_at_starting(self) -> None:
        for worker, failure in self._crew.look_at_starting():
            if failure is None:
                self._start_deaths = 0
            else:
                _, error = outcomes.decode(wire.read(failure), "the initializer's exception")
                self._error = error
                worker.process.terminate()

    def _dismiss(self) -> bool:
        """Closing: workers leave when nothing is left to do. True when all have gone."""
        with self._lock:
            left = bool(self._pending or self._feeding)
        self.dispatch.close(not left)
        return not left and not self._crew.living() and not self.dispatch.ready()

    def _end_overdue(self) -> float | None:
        """Kills workers whose task runs too long. Seconds until the next may."""
        limit = self.options.task_timeout
        if limit is None:
            return None
        soonest = limit
        for _, _, slot, seconds, _ in self.dispatch.running():
            if seconds < limit:
                soonest = min(soonest, limit - seconds)
            else:
                self._crew.overran(slot, limit)
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
            if held is not None and held.end():
                self._count_back(held)
                for block in held.parcel.blocks:
                    block.close()
            self._lost(worker, job, number)
        self._store.lost(worker)
        started = worker.ready
        crew.discard(worker)
        if not started and not worker.told_to_leave:
            self._start_deaths += 1
            if self._start_deaths >= _START_DEATHS_MAX and self._error is None:
                self._error = outcomes.start_death(worker, self._start_deaths)
        if self.state == CLOSE and not self._must_end():
            with self._lock:
                left = bool(self._pending or self._feeding)
            if left or self.dispatch.ready():
                self._fill(1)

    def _fill(self, most: int | None = None) -> None:
        try:
            self._crew.fill(most)
        except Exception as error:  # no process or no broker any more
            self._error = error
            self.wake()

    def _lost(self, worker: Worker, job: Job, number: int) -> None:
        """A task went with its worker: it is run again, or has failed."""
        if self.options.retries and not worker.overran:
            if job.tries is None:
                job.tries = {}
            tries = job.tries[number] = job.tries.get(number, 0) + 1
            task = job.again(number)
            if task is not None and tries <= self.options.retries:
                with self._lock:
                    self._pending.appendleft(task)
                return
        job.task_done(number, False, outcomes.death(worker, job.function, job.span(number)))

    def _end(self) -> None:
        """Ends every worker, then every job that is not done."""
        with self._lock:
            closed = self.state == CLOSE and self._error is None and not self.abandoned
            self.state = TERMINATE
            waiting = list(self._pending) + [Task(job, 0, 0, None) for job in self._feeding]
            self._pending.clear()
        self.dispatch.shut()
        for worker in self._crew.end_all():
            try:
                for job, number, *_ in self.dispatch.bury(worker.slot):
                    self._abort(job, number)
            except Exception as error:
                self._error = self._error or error
            self._crew.discard(worker)
        for job, _, *_ in self.dispatch.withdraw_all(None):
            job.abort(self._end_error())
        self.dispatch.fail(0, self._end_error())
        for work in waiting:
            work.job.abort(self._end_error())
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


class _Held:
    """A parcel that goes with a task, and stays until the task has ended."""

    __slots__ = ("_ended", "nbytes", "parcel")

    def __init__(self, parcel: wire.Parcel) -> None:
        self.parcel = parcel
        self.nbytes = sum(block.capacity for block in parcel.blocks)
        self._ended = threading.Lock()

    def end(self) -> bool:
        """True for the first who asks."""
        return self._ended.acquire(blocking=False)
