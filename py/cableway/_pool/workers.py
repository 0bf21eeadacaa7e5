"""The workers of a Pool: its worker processes, and the watch over their lives.

A worker has a slot of the task queue (see _pool.task_queue). Its successor gets the same slot when the worker is dead and its tasks
are dealt with. The watcher thread sleeps on the workers' pidfds (a sentinel of multiprocessing would stay open while a child of the
worker lives) and tells the supervisor. Captured stderr of workers comes by a pipe, which the watcher reads; it keeps the last part,
and another thread passes the text on (_pool.launch.stderr).
"""

from __future__ import annotations

import operator
import os
import select
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from cableway import _dispatch, client
from cableway._core import imports
from cableway._core.descriptors import above_stdio
from cableway._core.threads import OwnThread
from cableway._pool.devices.devices import Devices
from cableway._pool.launch import process as processes
from cableway._pool.launch.environment import Name, describe, move
from cableway._pool.launch.stderr import Capture, Outlet
from cableway._pool.options import Options
from cableway._pool.task_queue import Memory, TaskQueue, spin_seconds, spinners
from cableway._pool.worker import worker as worker_main
from cableway._transport import main_module
from cableway._transport.start_arguments import start_arguments

__all__ = ["Worker", "Workers"]

_GRACE_SECONDS = 2.0  # from SIGTERM to SIGKILL
_START_SECONDS = 10.0  # that tasks wait for the first worker of each group


class Worker:
    """One worker process, as the parent sees it.

    Attributes:
        ready: it has started, and takes tasks.
        told_to_leave: it is to end, though nothing is wrong with it.
        overran: the time limit that its task had passed when it was killed for that.
        overran_tasks: those that had: their jobs (None: a call's) and numbers.
        fault: what it did that cannot be, for which it was killed.
        failure: what its initializer has raised.
        stderr: what it prints, if that is captured.
        group: in which group it is.
        part: which one of its group, from 0 on.
        cpus: its share of the cores near its GPU; None: it has none.
        done_before: tasks that its slot's workers before it had done.
        shown: the caller has its process, and may be asking it: its descriptors stay as long as that.
    """

    __slots__ = (
        "cpus", "done_before", "exitcode", "failure", "fault", "group", "overran", "overran_tasks", "part", "pid", "pidfd", "process",
        "ready", "shown",
        "slot", "stderr", "told_to_leave",
    )  # fmt: skip

    def __init__(
        self, slot: int, group: int, part: int, process: BaseProcess, stderr: Capture | None
    ) -> None:
        self.slot = slot
        self.group = group
        self.part = part
        self.process = process
        self.pid = 0
        self.pidfd = -1
        self.exitcode: int | None = None
        self.ready = False
        self.told_to_leave = False
        self.overran: float | None = None
        self.overran_tasks: list[tuple[Any, int]] = []
        self.fault: str | None = None
        self.failure: BaseException | None = None
        self.stderr = stderr
        self.cpus: list[int] | None = None
        self.done_before = 0
        self.shown = False


class Workers:
    """Starts workers, knows which live, ends them. The supervisor thread owns it, apart from what says otherwise.

    Attributes:
        task_queue: the memory that is shared with them.
        dispatch: the parent's end of it.
        dead: workers that have died, for the supervisor to see to.
        devices: the groups, if the Pool has devices; else there is one.
        wanted: how many workers each group shall have.
        main: the notebook's `__main__`; None where there is none.
        watcher: the thread that sees them die.
        fill_again: seconds until `fill` is to be called again, since others import now; None: it need not be.
        started: tasks may be sent. With several groups the first ones wait until each has a worker that takes them: else
            those that are ready first would take what lies on the others' GPUs.
    """

    def __init__(
        self,
        size: int,
        context: Any,
        options: Options,
        daemon: bool,
        deliver: Callable[[list[Any], int], None],
        devices: Devices | None = None,
    ) -> None:
        self.devices = devices
        self.wanted = [size] if devices is None else [group.count for group in devices.groups]
        self.task_queue = TaskQueue(size, len(self.wanted))
        self.started = len(self.wanted) == 1
        self._start_until = time.monotonic() + _START_SECONDS
        self._daemon = daemon
        self._by_fork = context.get_start_method() == "fork"
        self.main = main_module.notebook(self._by_fork)
        self._options = options
        self._outlet = Outlet() if options.capture_stderr else None
        self._moment = imports.Moment()
        self.fill_again: float | None = None
        self._parent = worker_main.ParentId()
        self._settings = client.settings()
        self._spinners = spinners()
        self._process = processes.process_class(context)
        self._memory = Memory(self.task_queue.nbytes, self._process)
        self.dispatch = _dispatch.Dispatch(
            self._memory,
            self._memory.address,
            self.task_queue.nbytes,
            self.task_queue.workers,
            self.task_queue.cells,
            self.task_queue.groups,
            spin_seconds(),
            deliver,
        )
        self._used = size  # slots below it are looked at
        self._resized = False  # and workers have the shares of before
        self.dispatch.use(size)
        self.dead: deque[Worker] = deque()
        self._workers: list[Worker | None] = [None] * self.task_queue.workers
        self._buried: dict[int, Worker] = {}  # the last one of each slot
        self._group_of: dict[int, int] = {}  # of the last one of each slot
        self._watched: dict[int, Worker] = {}
        self._epoll = above_stdio(select.epoll)
        self._quit = above_stdio(lambda: os.eventfd(0, os.EFD_CLOEXEC))
        self._epoll.register(self._quit, select.EPOLLIN)
        self._is_first = True  # nobody runs yet
        self.watcher = OwnThread(self._watch, "cableway-pool-deaths")

    def start_all(self) -> None:
        """The first workers, and the thread that watches them. Where it raises, `end_all` ends what there is."""
        self.fill()
        self._is_first = False
        self.watcher.start()

    @property
    def size(self) -> int:
        """How many workers there shall be."""
        return sum(self.wanted)

    def fill(self, most: int | None = None) -> None:
        """Starts workers until there are as many as there shall be, or most of each group. See `fill_again`."""
        made: list[Worker] = []
        self.fill_again = None
        for group, wanted in enumerate(self.wanted):
            there = {worker.part for worker in self._staying(group)}
            missing = (wanted if most is None else min(most, wanted)) - len(there)
            if missing > 0 and self._by_fork and not self._is_first:
                self.fill_again = self._moment.wait()
                if self.fill_again is not None:
                    return
            for part in range(wanted):
                slot = self._free_slot(group, made) if missing > 0 and part not in there else -1
                if slot >= 0:  # else who leaves makes room
                    made.append(self._make(slot, group, part))
                    missing -= 1
        try:
            with processes.pipelined([worker.process for worker in made]):
                for worker in made:
                    self._start(worker)
        except BaseException:
            for worker in made:
                if self._workers[worker.slot] is not worker and worker.stderr is not None:
                    worker.stderr.close()
            raise

    def _staying(self, group: int) -> list[Worker]:
        return [
            worker
            for worker in self._workers
            if worker is not None and worker.group == group and not worker.told_to_leave
        ]

    def _free_slot(self, group: int, made: list[Worker]) -> int:
        """One that this group had before, so that figures of a slot are a device's; else any; -1. made: who has one."""
        taken = {worker.slot for worker in made}
        free = [
            slot for slot in range(self._used) if self._workers[slot] is None and slot not in taken
        ]
        known = self._group_of
        return min(free, key=lambda slot: known.get(slot, group) != group, default=-1)

    def _make(self, slot: int, group: int, part: int) -> Worker:
        """A worker for a slot that is free, to be started."""
        stderr = None if self._outlet is None else Capture(self._outlet)
        place = worker_main.Place(
            slot,
            self.task_queue,
            self._spinners,
            self._parent,
            self._settings,
            None if stderr is None else stderr.path,
            group,
            None if self.devices is None else describe(self.devices, group, part),
            self._moment.kept,
        )
        options = self._options
        initializer, initargs = options.initializer, options.initargs
        if not self._by_fork:
            initializer, initargs = start_arguments(self.main, initializer, initargs)
        process = self._process(
            target=worker_main.main,
            args=(self._memory, place, initializer, initargs, options.maxtasks),
        )
        process.name = process.name.replace("Process", "PoolWorker")
        process.daemon = self._daemon
        if place.device is not None:
            process.name = Name.with_environment(process.name, place.device)
        worker = Worker(slot, group, part, process, stderr)
        worker.cpus = None if place.device is None else place.device.cpus
        return worker

    def _start(self, worker: Worker) -> None:
        slot, group = worker.slot, worker.group
        process: Any = worker.process
        self.dispatch.assign(slot, group)
        self._group_of[slot] = group
        worker.done_before = self._done_in(slot)
        if (
            self.main is not None
        ):  # what it gets is what there is between this look and the one after its start
            self.main.worker_starts()
        try:
            above_stdio(process.start)
            if self.main is not None:
                self.main.worker_starts()
            worker.pid = process.pid
            self._workers[slot] = worker
            self._watch_for(worker)
        except BaseException:
            if process.ident is None:
                processes.end_unknown(process)
                self.dispatch.reap(slot)  # nobody runs there: its group does not count it
            else:
                self._give_up(worker)
            raise

    def _watch_for(self, worker: Worker) -> None:
        """Its end and its stderr are seen from now on."""
        try:
            worker.pidfd = processes.open_pidfd(worker.process)
        except ProcessLookupError:  # dead and reaped already
            self.dead.append(worker)
            self.dispatch.tell(True)
            return
        self._watched[worker.pidfd] = worker
        self._epoll.register(worker.pidfd, select.EPOLLIN)
        if worker.stderr is not None:
            self._watched[worker.stderr.fd] = worker
            self._epoll.register(worker.stderr.fd, select.EPOLLIN)

    def _give_up(self, worker: Worker) -> None:
        """Kills one that runs and cannot be watched. It keeps its slot, and is seen to with all others: the Pool ends by this."""
        process: Any = worker.process
        worker.pid = process.pid
        self._workers[worker.slot] = worker
        process.kill()

    def living(self) -> list[Worker]:
        """The workers that were not discarded. Any thread."""
        return [worker for worker in self._workers if worker is not None]

    def show(self) -> list[BaseProcess]:
        """The processes of the living, for the caller to keep. Any thread."""
        found = [worker for worker in self.living() if worker.pid]
        for worker in found:
            worker.shown = True
        return [worker.process for worker in found]

    def at(self, slot: int) -> Worker | None:
        """The worker in a slot. Any thread."""
        return self._workers[slot]

    def dead_sender(self, slot: int) -> Worker | None:
        """Who has sent something from a slot and died before it was opened: its worker, or the one before. Any thread."""
        worker = self._workers[slot]
        if worker is None or not _ended(worker, 0):
            return self._buried.get(slot)
        self.reap(worker)
        return worker

    def look_at_starting(self) -> list[tuple[Worker, bytes | None]]:
        """Workers that have become ready since, or, with their message, whose initializer has failed."""
        found: list[tuple[Worker, bytes | None]] = []
        for worker in self.living():
            if worker.ready:
                continue
            state = self.dispatch.look_at(worker.slot)[0]
            if state == worker_main.READY:
                worker.ready = True
                found.append((worker, None))
            elif state == worker_main.FAILED:
                found.append((worker, self.dispatch.words(worker.slot)))
        return found

    def look_at_start(self) -> float | None:
        """Whether tasks may be sent now: see `started`. Seconds until they may at the latest; None: they may."""
        if not self.started:
            left = self._start_until - time.monotonic()
            ready = {worker.group for worker in self.living() if worker.ready}
            if len(ready) < len(self.wanted) and left > 0:
                return left
            self.started = True
        return None

    def reap(self, worker: Worker) -> None:
        """Learns how a dead worker ended. By spawn and forkserver it is told a moment later."""
        worker.exitcode = processes.exitcode_of(worker.process, worker.pidfd)
        worker.process.join(timeout=0)  # so that multiprocessing forgets it
        if not worker.ready:
            worker.ready = self.dispatch.look_at(worker.slot)[0] == worker_main.READY
        if worker.stderr is not None:
            worker.stderr.pass_on()

    def discard(self, worker: Worker) -> None:
        """Lets go of a dead worker; its slot is free."""
        self._buried[worker.slot] = worker
        if self._workers[worker.slot] is worker:
            self._workers[worker.slot] = None
        if worker.pidfd >= 0:
            os.close(worker.pidfd)
            worker.pidfd = -1
        if not worker.shown:
            processes.let_go(worker.process)
        if worker.stderr is not None:
            if self._watched.pop(worker.stderr.fd, None) is not None and not self._epoll.closed:
                # Closing does not do it: children that were forked meanwhile have the pipe too.
                self._epoll.unregister(worker.stderr.fd)
            worker.stderr.close()

    def overran(self, slot: int, limit: float, tasks: list[tuple[Any, int]]) -> None:
        """Kills a worker of which tasks run longer than the limit."""
        worker = self._workers[slot]
        if worker is not None and worker.overran is None:
            worker.overran, worker.overran_tasks = limit, tasks
            worker.process.kill()

    def broke(self, slot: int, fault: str) -> None:
        """Kills a worker that did what cannot be. Any thread."""
        worker = self._workers[slot]
        if worker is not None and worker.fault is None:
            worker.fault = fault
            worker.process.kill()

    def resize(self, size: int) -> None:
        """Changes how many workers there shall be; the supervisor starts what is missing. Any thread."""
        size = operator.index(size)  # here: what the supervisor stumbles over ends the Pool
        if size < 1:
            raise ValueError(f"a Pool has at least 1 worker, {size} were asked for")
        if size > self.task_queue.workers:
            raise ValueError(
                f"a Pool that was made with room for {self.task_queue.workers} workers cannot have {size}; "
                "make one with more"
            )
        wanted = [size] if self.devices is None else self.devices.resize(size)
        self._used = max(self._used, size)
        self.dispatch.use(self._used)
        self.wanted = wanted
        for worker in self.living():
            if worker.part >= wanted[worker.group] and not worker.told_to_leave:
                worker.told_to_leave = True
                self.dispatch.dismiss(worker.slot)
        self._resized = True

    def share_anew(self) -> None:
        """After `resize`: workers run on their share of the cores as it is now, once they have started."""
        if not self._resized or self.devices is None:
            return
        self._resized = False
        for worker in self.living():
            if worker.told_to_leave or _ended(worker, 0):
                continue
            if not worker.ready:
                self._resized = True
                continue
            cpus = describe(self.devices, worker.group, worker.part).cpus
            if cpus != worker.cpus:
                move(worker.pid, worker.pidfd, worker.cpus, cpus)
                worker.cpus = cpus

    def _done_in(self, slot: int) -> int:
        return self.dispatch.look_at(slot)[1]

    def has_done_any(self, worker: Worker) -> bool:
        """Whether a worker, dead or alive, has done a task."""
        return self._done_in(worker.slot) != worker.done_before

    def done(self) -> int:
        """How many tasks all workers have done so far."""
        return sum(map(self._done_in, range(self._used)))

    def figures(self) -> list[dict[str, Any]]:
        """What the workers of each slot have done so far. Any thread."""
        found = []
        for slot, worker in enumerate(self._workers):
            _, chunks, busy_ns, bytes_in, bytes_out, tasks = self.dispatch.look_at(slot)
            if worker is not None or chunks:
                figures: dict[str, Any] = {"worker": slot}
                if self.devices is not None:
                    group = self.devices.groups[self._group_of[slot]]
                    figures["device"] = group.device.name
                found.append(
                    {
                        **figures,
                        "pid": worker.pid if worker is not None else None,
                        "tasks": tasks,
                        "chunks": chunks,
                        "seconds": busy_ns / 1e9,
                        "bytes_in": bytes_in,
                        "bytes_out": bytes_out,
                    }
                )
        return found

    def terminate(self) -> None:
        """Sends SIGTERM to all. Any thread."""
        for worker in self.living():
            worker.process.terminate()

    def end_all(self) -> list[Worker]:
        """Ends all, with SIGKILL if need be, and the watch; returns those that were still there."""
        there = self.living()
        self.terminate()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in there:
            if not _ended(worker, deadline - time.monotonic()):
                worker.process.kill()
                _ended(worker, None)
            self.reap(worker)
        os.eventfd_write(self._quit, 1)
        self.watcher.end()
        self._end_watch()
        return there

    def _end_watch(self) -> None:
        self._epoll.close()
        os.close(self._quit)
        self._memory.close()
        if self._outlet is not None:
            self._outlet.close()

    def _watch(self) -> None:
        while True:
            died = False
            for fd, _ in self._epoll.poll():
                if fd == self._quit:
                    return
                worker = self._watched.get(fd)
                if worker is not None and worker.stderr is not None and fd == worker.stderr.fd:
                    worker.stderr.pass_on()
                    continue
                # Else it was discarded meanwhile, and the number may be a new worker's.
                if worker is not None and _ended(worker, 0):
                    self._watched.pop(fd, None)
                    self._epoll.unregister(fd)
                    self.dead.append(worker)
                    died = True
            if died:
                self.dispatch.tell(True)


def _ended(worker: Worker, seconds: float | None) -> bool:
    """Waits for a worker's end. Its sentinel would stay open as long as a child of the worker lives."""
    if worker.pidfd < 0:
        return True
    poll = select.poll()
    poll.register(worker.pidfd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0, int(seconds * 1000))))
