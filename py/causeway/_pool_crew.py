"""The crew of a Pool: its worker processes, the channels to them, and the watch over their lives.

A worker lives in a slot of the plane (see _pool_channel); its successor takes the same slot, once it is dead
and what it had published is read. The watcher thread sleeps on the workers' pidfds (a sentinel of
multiprocessing stays open while a child of the worker lives) and rings the helper's bell.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from causeway import _pool_process, _pool_worker, client
from causeway._pool_channel import PARENT, Bell, Channel, Plane
from causeway._pool_jobs import Task
from causeway._pool_wire import Parcel
from causeway.create import zeros

__all__ = ["BUSY", "DEAD", "IDLE", "LEAVING", "STARTING", "Crew", "Worker"]

STARTING, IDLE, BUSY, LEAVING, DEAD = "starting", "idle", "busy", "leaving", "dead"

_RING_BYTES = 256 << 10
_GRACE_SECONDS = 2.0  # from SIGTERM to SIGKILL


class Worker:
    """One worker process, as the parent sees it.

    Attributes:
        task: what it was given.
        parcel: set once the task is sent.
    """

    __slots__ = (
        "channel", "exitcode", "parcel", "pid", "pidfd", "process", "slot", "state", "task", "tasks_done",
    )  # fmt: skip

    def __init__(self, slot: int, channel: Channel, process: BaseProcess) -> None:
        self.slot = slot
        self.channel = channel
        self.process = process
        self.pid = 0
        self.pidfd = -1
        self.exitcode: int | None = None
        self.state = STARTING
        self.task: Task | None = None
        self.parcel: Parcel | None = None
        self.tasks_done = 0


class Crew:
    """Starts workers, knows which live, ends them. The helper thread owns it, apart from terminate().

    Attributes:
        dead: workers that have died, for the helper to see to.
        bell: where the helper sleeps.
    """

    def __init__(
        self,
        size: int,
        context: Any,
        initializer: Callable[..., object] | None,
        initargs: tuple[Any, ...],
        daemon: bool,
    ) -> None:
        self._daemon = daemon
        self._context = context
        self._start = (initializer, initargs)
        self._parent = _pool_worker.ParentId()
        self._settings = client.current().settings
        self._plane = Plane(size, _RING_BYTES)
        self._memory = zeros(self._plane.nbytes, "u1")
        self._view = self._memory.numpy()  # keeps it mapped as long as this object lives
        self._address: int = self._view.__array_interface__["data"][0]
        self.bell = Bell(self._address)
        self.dead: deque[Worker] = deque()
        self._workers: list[Worker | None] = [None] * size
        self._watched: dict[int, Worker] = {}
        self._epoll = select.epoll()
        self._quit = os.eventfd(0, os.EFD_CLOEXEC)
        self._epoll.register(self._quit, select.EPOLLIN)
        self._watcher = threading.Thread(
            target=self._watch, name="causeway-pool-deaths", daemon=True
        )

    def start_all(self) -> None:
        """The first workers; none is left if one cannot be started."""
        try:
            for slot in range(len(self._workers)):
                self.start(slot)
        except BaseException:
            for worker in self.living():
                worker.process.kill()
                worker.process.join()
            raise
        self._watcher.start()

    def start(self, slot: int) -> None:
        """A worker for a slot that is free."""
        channel = Channel(self._address + self._plane.offset(slot), self._plane, PARENT, self.bell)
        by_fork = self._context.get_start_method() == "fork"
        # The parent holds the plane anyway: without a transit lease nothing stays of a worker that never opens it.
        memory = self._address if by_fork else self._memory.reduce(transit=False)
        process = _pool_process.process_class(self._context)(
            target=_pool_worker.main,
            args=(memory, slot, self._plane, self._parent, self._settings, *self._start),
        )
        process.name = process.name.replace("Process", "PoolWorker")
        process.daemon = self._daemon
        worker = Worker(slot, channel, process)
        process.start()
        worker.pid = process.pid
        self._workers[slot] = worker
        try:
            worker.pidfd = _pool_process.open_pidfd(process)
        except ProcessLookupError:  # dead and reaped already
            self.dead.append(worker)
            self.bell.ring()
            return
        self._watched[worker.pidfd] = worker
        self._epoll.register(worker.pidfd, select.EPOLLIN)

    def living(self) -> list[Worker]:
        """The workers that were not discarded."""
        return [worker for worker in self._workers if worker is not None]

    def has_died(self, worker: Worker) -> bool:
        """Whether a worker is dead already, seen to or not."""
        return _ended(worker, 0)

    def reap(self, worker: Worker) -> None:
        """Learns how a dead worker ended. By forkserver it is told a moment later."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while worker.process.exitcode is None and time.monotonic() < deadline:
            time.sleep(0.002)
        worker.exitcode = _pool_process.exitcode_of(worker.process)
        worker.process.join(timeout=0)  # so that multiprocessing forgets it

    def discard(self, worker: Worker) -> None:
        """Lets go of a dead worker; its slot is free."""
        worker.state = DEAD
        worker.channel.close()
        if self._workers[worker.slot] is worker:
            self._workers[worker.slot] = None
        if worker.pidfd >= 0:
            os.close(worker.pidfd)
            worker.pidfd = -1

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
        self._watcher.join()
        self._epoll.close()
        os.close(self._quit)
        return there

    def _watch(self) -> None:
        while True:
            for fd, _ in self._epoll.poll():
                if fd == self._quit:
                    return
                worker = self._watched.pop(fd, None)
                self._epoll.unregister(fd)
                if worker is not None:
                    self.dead.append(worker)
            self.bell.ring()


def _ended(worker: Worker, seconds: float | None) -> bool:
    """Waits for a worker's end. Its sentinel would stay open as long as a child of the worker lives."""
    if worker.pidfd < 0:
        return True
    poll = select.poll()
    poll.register(worker.pidfd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0, int(seconds * 1000))))
