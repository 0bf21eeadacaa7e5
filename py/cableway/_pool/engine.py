"""The engine of a Pool: the state of all that is under way.

Threads of the parent
    callers     submit on their own threads. A caller that waits for a result listens for answers and delivers all that come, its
                own and others'; a caller that submits many tasks delivers plain answers in between
    supervisor  (_pool.supervisor) delivers answers while nobody listens, and handles deaths, time limits and the end
    watcher     (_pool.workers) sleeps on the workers' pidfds, and tells the supervisor which have died
    outlet      (_pool.launch.stderr) writes captured stderr to this process's own; starts when there is some
    callbacks   (_pool.callbacks) runs the callbacks; starts with the first one
    feeders     (_pool.imap_feeder) one for each imap over an iterator of unknown length: reads it

Workers take tasks from shared memory (shm/tasks/dispatch.h); a task belongs to a worker from then on. Tasks for which there is no
room wait in the parent (_pool.submit). The thread that collects an answer delivers it (_pool.deliver).

`_lock` guards the state; no code of the user runs under it, but for a signal's handler and a finaliser, which may come at any line of
any thread. So nobody waits for the Pool's end on a thread that has a lock of ours (`_wait_for_end`). When the parent dies, the workers end (see _pool.worker.worker).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from itertools import starmap
from multiprocessing import util
from typing import Any, NoReturn

from cableway._core import idle_memory, imports, locks
from cableway._pool import chunks, interpreter_exit
from cableway._pool.callbacks import Callbacks
from cableway._pool.cancelled import Cancelled
from cableway._pool.deliver import Delivery
from cableway._pool.devices.devices import Devices
from cableway._pool.devices.placement import Placement
from cableway._pool.functions import Functions
from cableway._pool.gang import Turn
from cableway._pool.imap import IMapIterator
from cableway._pool.imap_feeder import Feeder
from cableway._pool.jobs import Job, Outcome, Source, Task, Withdrawable
from cableway._pool.options import Options
from cableway._pool.starts import Starts
from cableway._pool.submit import SubmitQueue
from cableway._pool.supervisor import Supervisor
from cableway._pool.workers import Workers
from cableway._transport import message as wire
from cableway._transport.blocks import BlockStore
from cableway._transport.shared_arguments import Shared, recurring
from cableway.errors import Error

__all__ = ["CLOSE", "RUN", "TERMINATE", "Engine"]

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"

_SENDS = 2  # what Dispatch.holds_up says of a thread that sends
_LOOK_SECONDS, _LOOKS_MAX = 0.1, 10  # of who waits for the end, whether the end waits for it
_KEEP_BYTES = 512 << 20  # memory for arguments that the parent keeps
# A signal may come just before the sleep: who waits for ever looks up now and then. It is CW_TRACE_PART_NS: traces show
# calls with this limit as one wait.
_SLICE_SECONDS = 0.5


def _nothing_begins(*_: Any) -> None:
    """The quick way of a Pool that takes no more work: the other way says why."""


def _not_running() -> Exception:
    return ValueError("Pool not running")


def _weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a method as long as its object is there. Whoever may call it has it, but while all of it is dropped."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        found = reference()
        return None if found is None else found(*args)

    return call


def _check_not_begun_again() -> None:
    module = imports.begun_again_here()
    if module is not None:
        raise RuntimeError(
            f"cannot start workers here: the module {module} was being imported when this process was forked, so it is "
            "imported anew in this process, and starts workers again; start them under "
            "`if __name__ == '__main__'` or in a function that the program calls after its imports"
        )


class Engine:
    """Runs jobs on worker processes. `Pool` and `Executor` are its faces.

    Args:
        processes: how many.
        context: a multiprocessing context.
        options: of both faces.
        daemon: whether workers are daemons.
        devices: where they work; None: anywhere.
        not_running: makes the error of what comes after close().

    Closing: a call that comes beside close() is done as a whole, or refused as a whole. Work counts from the moment at
    which it stands in the dispatch, in the row of `SubmitQueue` or among the feeders, and not from the caller's look at
    `state`, which may be long past. The supervisor ends a closed Pool by one step (`end_if_done`), at which nothing stands
    anywhere; who comes later is refused, in the call itself.
    """

    def __init__(
        self,
        processes: int,
        context: Any,
        options: Options,
        daemon: bool = True,
        devices: Devices | None = None,
        not_running: Callable[[], Exception] = _not_running,
    ) -> None:
        _check_not_begun_again()
        self.pid = os.getpid()
        self.state = RUN
        self.abandoned = False  # set without a lock by the Pool's finaliser
        self.options = options
        self.context = context
        self._store = BlockStore(_KEEP_BYTES)
        self._lock = locks.RLock()  # a finaliser may come to take it on a thread that has it
        self._over = False
        self._done = False  # it was closed, and has ended by itself
        self._feeding: set[Feeder] = set()
        self._called_back: set[Job] = set()  # those whose callback has not returned
        self._waiters: set[int] = set()  # threads that wait for a job
        self.gangs = Turn()  # of callers of spmd()
        self._error: BaseException | None = None  # why nothing works any more

        self._callbacks = Callbacks()
        # Nothing below refers to what is above it but weakly: an ended Pool that is dropped is gone at once, without gc.
        delivery = self._delivery = Delivery(_weakly(self.fail))
        deliver = _weakly(delivery.deliver)
        self._workers = Workers(processes, context, options, daemon, deliver, devices)
        self.devices = devices
        self.dispatch = self._workers.dispatch
        self._placement = Placement(self._workers)
        self._not_running = not_running
        self._submit_queue = SubmitQueue(
            self._workers, self._store, self._placement, _weakly(self._refusal), self._lock
        )
        self.functions = Functions(self.dispatch.put_function, self._workers.main)
        self.dispatch.share(
            self.functions.pinned, self.functions.kinds, self._submit_queue.pending, self._waiters
        )
        # (class, self, owner, function, args, kwargs): an Outcome of that class, submitted; None: it must go by
        # submit(), and nothing was done.
        self.begin: Callable[..., Any] = self.dispatch.begin
        self._supervisor = Supervisor(
            self, self._workers, self._submit_queue, self._store, delivery
        )
        delivery.connect(self._workers, self._submit_queue, self._supervisor)
        self._at_exit: Any = None
        try:
            with _starts:
                _watch_exit()
                self._workers.start_all()
                _running.add(self)
                idle_memory.add_end(self.dispatch)
                self._at_exit = util.Finalize(None, self.terminate, exitpriority=15)
                self._supervisor.start()
        except BaseException:
            self._supervisor.give_up_start()
            raise

    @classmethod
    def begin_for(cls, owner: Any, *args: Any, **named: Any) -> None:
        """Makes one that is `owner._engine` in the same moment, in C: whatever a signal's handler raises, either its owner
        has it and ends it, or it has ended.
        """
        vars(owner).update(
            zip(("_engine",), starmap(partial(cls, *args, **named), ((),)), strict=True)
        )

    # ---- what the Pool calls, on callers' threads

    @property
    def processes(self) -> int:
        """How many workers there shall be."""
        return self._workers.size

    def spread(self, ranks: int) -> list[int | None]:
        """For each of so many ranks the group of workers that it goes to. ValueError: there are not so many workers."""
        return self._placement.spread(ranks)

    def has_room(self, groups: list[int | None]) -> bool:
        """Whether there are still as many workers as `spread` has found."""
        return self._placement.has_room(groups)

    def default_chunk(self, items: tuple[Any, ...]) -> int:
        """How many items a task of a map has where the caller does not say."""
        if self.options.maxtasks is not None:  # each task counts
            return max(1, -(-len(items) // (self.processes * 4)))
        return chunks.default(items, self.processes)

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
            self._refuse()

    def _refuse(self) -> NoReturn:
        """It was closed, and what comes now comes too late."""
        refusal = interpreter_exit.cut_short(self._not_running())
        interpreter_exit.hold(refusal)
        raise refusal

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """One call, waited for. (value,), or None where it must go as a job (nothing was begun then)."""
        if self._submit_queue or self.options.retries or not self._workers.started:
            return None
        found = self.functions.find(function)
        if found is None:
            return None
        try:
            answer = self._call(
                wire.APPLY,
                found.described,
                function,
                (args, named) if named else (args,),
                self._delivery.call_decoded,
                self._placement.idlest(),
            )
        finally:
            self.functions.unuse(found)
        if answer is None:
            return None
        success, value = answer
        del answer  # as below
        if success:
            return (value,)
        interpreter_exit.hold(value)
        try:
            raise value
        finally:
            del value  # the exception's traceback holds this frame, and it the arguments

    def _call(self, *call: Any) -> Any:
        try:
            return self.dispatch.call(*call)
        except Error as error:
            interpreter_exit.hold(error)
            raise

    def shared_by(self, job: Job, items: tuple[Any, ...], chunksize: int) -> Shared | None:
        """What the tasks of a job over items have in common."""
        arrays = recurring(job.function, items, chunksize, with_function=job.found is None)
        return Shared(self._store, arrays) if arrays else None

    def submit(self, job: Job, work: Task | Source) -> int:
        """Submits a job's work, or what there is room for. The cell of a single plain task, else -1.

        Raises:
            ValueError, or what else `not_running` makes: it was closed, and has ended by itself. Nothing was begun.
        """
        at_once = self._workers.started and not self._submit_queue
        if at_once and type(work) is Task and job.described is not None:
            cell: int = self.dispatch.submit_plain(
                None,
                job,
                work.number,
                work.kind,
                job.described,
                work.args,
                self._placement.idlest(),
            )
            if cell >= 0:
                return cell
        with self._lock:
            is_late = self._done
            if not is_late:
                self._submit_queue.add(work)
        if is_late:
            self._refuse()
        self._submit_queue.pump()
        return -1

    def feed(
        self, job: IMapIterator, iterable: Iterable[Any], chunksize: int, buffersize: int | None
    ) -> None:
        """Runs a job over an iterable that a thread of its own reads, some tasks ahead.

        Raises:
            As `submit`.
        """
        feeder = Feeder(self, job, chunksize, buffersize)
        try:
            with self._lock:
                is_late = self._done
                if not is_late:
                    feeder.start(iterable, self._feeding)
            if is_late:
                self._refuse()
        except BaseException:  # its thread did not start, or nobody will ask for the results
            self.fed(feeder)
            raise

    def fed(self, feeder: Feeder) -> None:
        """An input is at its end."""
        with self._lock:
            self._feeding.discard(feeder)
        self.wake()

    def wait_for(self, job: Job | Outcome, timeout: float | None) -> None:
        """Waits until a job has settled, or timeout seconds."""
        if isinstance(job, Outcome):
            self.dispatch.wait(job, timeout)
        else:
            self.wait_until(lambda: job.settled, timeout)

    def wait_until(self, seen: Callable[[], bool], timeout: float | None) -> bool:
        """Waits for answers, and sees to them, until seen() is true, or timeout seconds. Whether it is."""
        until = None if timeout is None else time.monotonic() + timeout
        me = threading.get_ident()
        nested = me in self._waiters  # by a signal's handler, in the middle of another wait
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
            if not nested:
                self._waiters.discard(me)

    def notify(self) -> None:
        """Something has changed for who waits, in any thread."""
        waiters = self._waiters
        if waiters and (len(waiters) > 1 or threading.get_ident() not in waiters):
            self.dispatch.tell(False)
        elif waiters:
            self.dispatch.note()  # in a signal's handler, perhaps, just before this thread sleeps

    def collect(self) -> bool:
        """Sees to the answers that are there. True, so that it can stand in a condition."""
        self.dispatch.collect()
        return True

    def withdraw(self, job: Withdrawable | None = None, cell: int = -1) -> None:
        """Takes back what no worker has taken, of one job or of all, and tells the jobs so.

        Args:
            job: whose; None: all.
            cell: where its only task was submitted to.
        """
        if os.getpid() != self.pid:
            return
        taken = Cancelled(self.dispatch, self._submit_queue)
        try:
            taken.take(job, cell)
            taken.tell()
        except BaseException:
            self.defer(taken.tell)
            raise
        self.wake()

    def kill(self) -> None:
        """Sends SIGKILL to all workers: the tasks that they run are lost. Any thread."""
        for worker in self._workers.living():
            worker.process.kill()

    def resize(self, processes: int) -> None:
        """Changes how many workers there are. Those that are too many leave after their task."""
        self._workers.resize(processes)
        self.wake()

    def figures(self) -> list[dict[str, Any]]:
        """What each worker has done so far."""
        return self._workers.figures()

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
        if os.getpid() != self.pid:  # a fork: the lock may be one's that is not here
            self.state = CLOSE if self.state == RUN else self.state
            return
        with self._lock:
            self.begin = _nothing_begins
            if self.state == RUN:
                self.state = CLOSE
        self._tell_state()

    def _tell_state(self) -> None:
        if os.getpid() != self.pid:
            return
        with self._lock:
            feeding = list(self._feeding)
        for feeder in feeding:
            feeder.look_again()
        self.wake()

    def terminate(self) -> None:
        """Ends the workers now, and with them all that is not done."""
        if os.getpid() != self.pid:
            return
        with self._lock:
            self.begin = _nothing_begins
            self.state = TERMINATE
        self.wake()  # at once: a signal's handler may raise on the way to what follows
        self._workers.terminate()
        self._wait_for_end()

    def join(self) -> None:
        """Waits until all workers have ended and all callbacks have run."""
        if os.getpid() != self.pid:
            return
        self._tell_state()  # a Ctrl-C may have come into `close` or `terminate` before they did
        if self._wait_for_end():
            self._callbacks.join()

    def _wait_for_end(self) -> bool:
        """Waits until the supervisor has ended. False: it was terminated, and cannot be waited for here, in the midst of a
        step of this thread that the end waits for; it ends when the step is done.

        Raises:
            RuntimeError: the same where it was closed. Where this thread delivers an answer, that is known only when it
                has not ended after a second.
        """
        looks = 0
        while True:
            terminated, step = self.must_end, self.dispatch.holds_up()
            held = locks.held_here() or (step == _SENDS and not terminated)
            if self._supervisor.join(0 if held else _LOOK_SECONDS):
                return True
            if terminated and held:
                return False
            looks = looks + 1 if step else 0
            if not terminated and (held or looks > _LOOKS_MAX):
                raise RuntimeError(
                    "it was closed and will end, but this thread cannot wait for that: a signal's handler or a finaliser "
                    "has interrupted a step of it that the end waits for; wait in another thread, or after the handler"
                )

    def defer(self, work: Callable[[], object]) -> None:
        """Lets the supervisor do something, which no signal's handler interrupts."""
        self._supervisor.defer(work)

    def drop(self) -> None:
        """Nobody has its face any more, in the process that made it. Takes no lock."""
        self.abandoned = self.abandoned or self.state == RUN
        self.wake()  # also where a Ctrl-C came into `close` or `terminate` before they did

    def wake(self) -> None:
        """Makes the supervisor look around. Takes no lock."""
        self.dispatch.tell(True)

    def job_done(self, job: Job) -> None:
        """All tasks of a job have ended: runs its callback, then tells who waits. May be repeated."""
        self.functions.leave(job)
        if job.shared is not None:
            job.shared.close()
        if job.calls_back:
            self._called_back.add(job)
            self._callbacks.run(job.call_back, partial(self._was_called_back, job))
        else:
            job.settle()

    def _was_called_back(self, job: Job) -> None:
        job.settle()
        self._called_back.discard(job)

    @property
    def supervisor_thread(self) -> threading.Thread:
        """Which sees to the engine until its end."""
        return self._supervisor.thread

    def workers(self) -> list[Any]:
        """The processes of the workers that live, as multiprocessing has them. Any thread."""
        return self._workers.show()

    def unfinished(self) -> list[Any]:
        """The jobs that have not ended, but for calls that their callers wait for; those under way first. Any thread. One
        whose answer another thread is at may be missing.
        """
        with self._lock:
            feeding = [feeder.job() for feeder in list(self._feeding)]
        found = [*self.dispatch.owners(), *self._submit_queue.jobs(), *feeding, *self._called_back]
        return [job for job in dict.fromkeys(found) if job is not None and not job.settled]

    # ---- its state, for the supervisor

    @property
    def must_end(self) -> bool:
        """Whether workers are to be ended now."""
        return self.abandoned or self.state == TERMINATE or self._error is not None

    @property
    def has_work(self) -> bool:
        """Whether something waits to be sent, or may come from an input."""
        return bool(self._submit_queue or self._feeding)

    def end_if_done(self) -> bool:
        """It was closed, and no worker lives: whether nothing is left to do. Then nothing can come any more, either."""
        with self._lock:
            self._done = not self.has_work and self.dispatch.shut_if_done()
            return self._done

    def fail(self, error: BaseException) -> None:
        """Nothing works any more. Any thread."""
        self.begin = _nothing_begins
        self._error = self._error or error
        self.wake()

    @property
    def failed(self) -> bool:
        """Whether it ends because it could not go on."""
        return self._error is not None

    def begin_end(self) -> tuple[bool, list[Job]]:
        """Nothing is sent from now on: whether it was closed and all is done, and the jobs whose input is read."""
        with self._lock:
            closed = self.state == CLOSE and self._error is None and not self.abandoned
            self.begin = _nothing_begins
            self.state = TERMINATE
            self._over = True
            feeding = [feeder.job() for feeder in list(self._feeding)]
        self.dispatch.shut()
        return closed, [job for job in feeding if job is not None]

    def has_ended(self, closed: bool) -> None:
        """No worker lives any more, and all jobs have ended."""
        self._callbacks.end()
        idle_memory.remove_end(self.dispatch)
        idle_memory.end(self._store.close)
        _running.discard(self)
        if self._at_exit is not None:
            self._at_exit.cancel()
        if closed:
            self.state = CLOSE
        self.dispatch.tell(False)

    def _refusal(self) -> BaseException | None:
        """Why nothing is sent any more, if so."""
        if self._done:
            return interpreter_exit.cut_short(self._not_running())
        if self._over or self.state == TERMINATE or self._error is not None:
            return self.end_error()
        return None

    def end_error(self) -> BaseException:
        """What becomes of calls that the end has cut short."""
        if self._error is not None:
            return self._error
        return interpreter_exit.cut_short(
            Error(
                "the Pool was terminated before this call had ended; nothing of it will come any more"
            )
        )


# ---- the interpreter's exit

_starts = Starts("cannot start workers after interpreter shutdown", here=True)
_running: set[Engine] = set()
_exit_watch: Any = None


def _end_running() -> None:
    """Before the engines' own finalizers: whose start this waits for is not among those that are run now."""
    interpreter_exit.begin()
    _starts.close()
    for engine in list(_running):
        engine.terminate()


def _watch_exit() -> None:
    """Once a process: a child of multiprocessing's begins without its parent's finalizers."""
    global _exit_watch
    if _exit_watch is None or not _exit_watch.still_active():
        _exit_watch = util.Finalize(None, _end_running, exitpriority=16)


_watch_exit()
