"""Submits tasks: those that wait in the parent, and how they are sent.

Tasks wait here if there is no room: all cells are under way, or too many bytes. One thread at a time sends for all (it *pumps*). Quick
calls, which wait in the same row, are sent by the dispatch (csrc/dispatch_begin.c) when they are first, by any thread that has freed a
cell. A signal handler may end the sending thread's work at any line. Then the supervisor goes on, and knows from `work.sent`, which
the dispatch sets as it sends, what was sent, so that nothing is sent twice.

The lock guards what is shared; no code of the user runs under it. A finaliser may take it on a thread that holds it already, so it
is a lock that lets the same thread in again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cableway import _dispatch, client
from cableway._core.handler_errors import is_handlers
from cableway._pool.devices.fast_path import FastPath
from cableway._pool.jobs import Job, Outcome, Source, Task, job_of
from cableway._pool.task_arrays import TaskEncoder
from cableway._transport import message as wire
from cableway.array import Array
from cableway.errors import Error

if TYPE_CHECKING:
    from cableway._pool.devices.placement import Placement
    from cableway._pool.workers import Workers
    from cableway._transport.blocks import BlockStore

__all__ = ["InFlight", "SubmitQueue"]

_IN_FLIGHT_BYTES = 256 << 20  # of large arguments on their way; one for each worker in any case
_BURST = 64  # tasks that are sent before somebody looks whether they still may be
_REFILL = 4  # a map is cut further when a quarter of the cells is free
_NO_ROOM, _NOT_PLAIN, _SHUT = -1, -3, -4  # of _dispatch's submit calls


class InFlight:
    """An encoded message that goes with a task, and stays until the task has ended."""

    __slots__ = ("encoded", "nbytes")

    def __init__(self, encoded: wire.EncodedMessage) -> None:
        self.encoded = encoded
        self.nbytes = sum(block.capacity for block in encoded.blocks)


class SubmitQueue:
    """What waits to be sent, and who sends it.

    Args:
        workers: whose workers take it.
        store: where large arguments go.
        placement: knows to which group of workers a task goes.
        refusal: why nothing is sent any more; None as long as it is.
        lock: the engine's, under which it decides that nothing waits and nothing will.
    """

    def __init__(
        self,
        workers: Workers,
        store: BlockStore,
        placement: Placement,
        refusal: Callable[[], BaseException | None],
        lock: threading.RLock,
    ) -> None:
        self._workers = workers
        self._placement = placement
        self._dispatch = workers.dispatch
        self._store = store
        self._refusal = refusal
        self._encoders: list[TaskEncoder] = []
        devices = workers.devices
        self._fast_path = (
            None if devices is None or devices.peer else FastPath(devices, _dispatch.DATA_MAX)
        )
        self._lock = lock
        self.pending: deque[Task | Source | Outcome] = deque()
        self._sending: Task | Source | None = None  # never a quick one: those are sent at one go
        self._in_flight: dict[InFlight, int] = {}  # under way: their bytes

    def __bool__(self) -> bool:
        return bool(self.pending)

    def add(self, work: Task | Source) -> None:
        """Behind all that waits, to be pumped."""
        with self._lock:
            self.pending.append(work)

    def put_back(self, task: Task) -> None:
        """Before all that waits: a task that was sent before, and was lost."""
        task.sent = 0
        with self._lock:
            self.pending.appendleft(task)

    def jobs(self) -> list[Any]:
        """Those of all that waits."""
        with self._lock:
            return [job_of(work) for work in list(self.pending)]

    def take_all(self) -> list[Job]:
        """The jobs of all that waits, which it does no more. Once the dispatch is shut."""
        with self._lock:
            waiting = [job_of(work) for work in self.pending]
            self.pending.clear()
        return waiting

    def withdraw(self, job: Job | None, taken: list[Task | Source | Outcome]) -> None:
        """Takes back what waits of a job, or all that waits, but for what is being sent just now."""
        with self._lock:
            self._withdraw(job, taken)

    def _withdraw(self, job: Job | None, taken: list[Task | Source | Outcome]) -> None:
        for work in list(self.pending):
            if job is None or job_of(work) is job:
                taken.append(work)  # before it waits no more: a Ctrl-C may come in between
                if not self._take_out(work):
                    taken.pop()

    def forget(self, works: list[Task | Source | Outcome]) -> None:
        """They wait no more. May be repeated."""
        for work in works:
            self._forget(work)

    def _take_out(self, work: Task | Source | Outcome) -> bool:
        """Takes something out of the row, unless it is being sent or was."""
        if isinstance(work, Task) and self._is_being_sent(work):
            return False
        return self._dispatch.take_out(work)

    def _is_being_sent(self, work: Task) -> bool:
        return work is self._sending or work.sent > 0

    # ---- sending

    def pump(self) -> None:
        """Sends what waits, as far as there is room. One thread does it, for all; if it is interrupted the supervisor does."""
        if self.pending:
            self._dispatch.send_exclusive(self._send_all)

    def _send_all(self) -> None:
        try:
            while self._send_first():
                pass
        finally:
            self._sending = None

    def _send_first(self) -> bool:
        """Sends what waits first; False when nothing waits, or there is no room for it, or nobody to take it yet."""
        with self._lock:
            if not self.pending:
                return False
            try:
                work = self.pending[0]
            except IndexError:  # a quick one that was sent meanwhile
                return False
            if isinstance(work, Outcome):
                self._sending = None
            else:
                self._sending = work
        if isinstance(work, Outcome):
            return self._send_quick(work)
        if work.all_sent:  # who sent it was interrupted
            self._forget(work)
            return True
        refusal = self._refusal()
        if refusal is None and not self._workers.started:
            return False
        if refusal is None:
            cell = self._send(work) if isinstance(work, Task) else self._send_chunks(work)
            if cell == _NO_ROOM:
                return False
            if cell >= 0 and not work.all_sent:
                return True
            refusal = self._refusal() if cell == _SHUT else None
        self._forget(work)
        if refusal is not None:
            work.job.abort(refusal)
        return True

    def _send_quick(self, work: Outcome) -> bool:
        refusal = self._refusal()
        if refusal is None:
            return self._dispatch.pump()
        self._forget(work)
        job: Any = work
        job.abort(refusal)
        return True

    def _forget(self, work: Task | Source | Outcome) -> None:
        with self._lock:
            self._dispatch.take_out(work)  # first, unless a task that was lost has come before it

    def _send_chunks(self, work: Source) -> int:
        """As many chunks as there is room for. 0, or why it stopped."""
        cells = self._workers.task_queue.cells
        if self._dispatch.under_way > cells - cells // _REFILL and self._dispatch.ready() > 0:
            return _NO_ROOM
        job = work.job
        if self._fast_path is not None and self._fast_path.takes(
            work.items[work.sent * work.chunksize]
        ):
            cell = self._send_arrays(work)
            return self._send_message(work, work.task(work.sent)) if cell is None else cell
        if job.described is not None:
            one_group = self._workers.task_queue.groups == 1
            most = cells if one_group else 1  # the next one may go elsewhere
            while True:
                _, why = self._dispatch.submit_chunks(
                    work,
                    job,
                    work.sent,
                    work.kind,
                    job.described,
                    work.items,
                    work.chunksize,
                    most,
                    self._placement.idlest(),
                )
                if why == _NOT_PLAIN:
                    break
                if why or one_group or work.all_sent:
                    return why
        return self._send_message(work, work.task(work.sent))

    def _send_arrays(self, work: Source) -> int | None:
        """Tasks of arrays alone, as many as there are and there is room for. 0, or why it stopped; None: the next is none."""
        fast_path = self._fast_path_now()
        for sent in range(_BURST):
            first = work.sent * work.chunksize
            items = work.items[first : first + work.chunksize]
            cell = self._send_by_fast_path(fast_path, work, work.sent, items)
            if cell is None:
                return 0 if sent else None
            if cell < 0 or work.all_sent:
                return cell
        return 0

    def _fast_path_now(self) -> FastPath | None:
        """Who encodes tasks of arrays alone. None: nobody, or the broker is gone, which the other way tells."""
        try:
            return None if self._fast_path is None or client.current().lost else self._fast_path
        except Error:
            return None

    def _send_by_fast_path(
        self, fast_path: FastPath | None, work: Task | Source, number: int, args: tuple[Any, ...]
    ) -> int | None:
        """Sends a task of GPU arrays alone: its cell, or why not; None: it is none, or cannot be encoded so."""
        job = work.job
        if fast_path is None or job.described is None:
            return None
        if self._dispatch.under_way >= self._workers.task_queue.cells:
            return _NO_ROOM
        try:
            encoded = fast_path.encode(number, work.kind, args)
        except Exception:  # it is met again where the task is encoded the other way, and told
            return None
        if encoded is None:
            return None
        data, arrays, group = encoded
        cell: int = self._dispatch.submit(
            work, job, number, wire.MESSAGE, job.described, data, arrays, group
        )
        return cell

    def _send(self, task: Task) -> int:
        job = task.job
        args = task.args[0] if task.kind == wire.APPLY else task.args
        if args and self._fast_path is not None and self._fast_path.takes(args[0]):
            sent = self._send_by_fast_path(self._fast_path_now(), task, task.number, task.args)
            return self._send_message(task, task) if sent is None else sent
        if job.described is not None:
            cell = self._dispatch.submit_plain(
                task,
                job,
                task.number,
                task.kind,
                job.described,
                task.args,
                self._placement.idlest(),
            )
            if cell != _NOT_PLAIN:
                return cell
        return self._send_message(task, task)

    def _send_message(self, work: Task | Source, task: Task) -> int:
        """Encodes a task of some work and sends it. A task that cannot be encoded has failed, and counts as sent."""
        if (
            len(self._in_flight) > self._workers.size
            and sum(self._in_flight.values()) > _IN_FLIGHT_BYTES
        ):
            return _NO_ROOM
        if self._dispatch.under_way >= self._workers.task_queue.cells:
            return _NO_ROOM
        job, number = task.job, task.number
        body = task.args if job.described is not None else (job.function, task.args)
        try:
            encoder = self._encoders.pop()
        except IndexError:
            encoder = self._new_encoder()
        try:
            encoded = encoder.encode(number, task.kind, b"", body, cloud=True, shared=job.shared)
        except BaseException as error:
            # What a handler raises is the caller's, and leaves the task where it is; all else is the task's own.
            if is_handlers(error, lambda: self._encode_in_vain(task, body)):
                raise
            job.task_done(number, False, error)
            work.sent = number + 1
            return 0
        finally:
            self._encoders.append(encoder)
        payload = InFlight(encoded)
        cell = _NO_ROOM
        try:
            with self._lock:
                self._in_flight[payload] = payload.nbytes
            cell = self._dispatch.submit(
                work,
                job,
                number,
                wire.MESSAGE,
                job.described,
                encoded.data,
                payload,
                self._placement.group_of(encoded.held) if task.group is None else task.group,
            )
            return cell
        finally:
            if cell < 0 and work.sent <= number:
                self.unhold(payload)

    def _new_encoder(self) -> TaskEncoder:
        devices = self._workers.devices
        return TaskEncoder(
            self._store,
            _dispatch.DATA_MAX,
            transit=False,
            main=self._workers.main,
            lender=None if devices is None else devices.lender,
            groups=None if devices is None else devices.by_gpu,
            peer=devices is not None and devices.peer,
        )

    def _encode_in_vain(self, task: Task, body: Any) -> None:
        """Encodes a task to see what that raises."""
        job = task.job
        encoded = self._new_encoder().encode(
            task.number, task.kind, b"", body, cloud=True, shared=job.shared
        )
        for write_back in encoded.write_backs:
            write_back.end()
        self._store.untake(encoded.blocks)

    # ---- what went with tasks: an encoded message, or arrays alone, which are held by the dispatch and need nothing else

    def land(self, payload: InFlight | tuple[Array, ...] | None) -> ValueError | None:
        """A task has succeeded: its results go into the caller's arrays. May be repeated until it is released.

        Returns:
            Why one of them cannot be written any more.
        """
        if type(payload) is InFlight and payload in self._in_flight:
            for write_back in payload.encoded.write_backs:
                why_not = write_back.land()
                if why_not is not None:
                    return why_not
        return None

    def unhold(self, payload: InFlight | tuple[Array, ...] | None) -> None:
        """What went with a task that was not sent, or was taken back."""
        if type(payload) is InFlight and self._count_back(payload):
            self._store.untake(payload.encoded.blocks)

    def release(self, payload: InFlight | tuple[Array, ...] | None, receiver: object) -> None:
        """What went with a task that has ended; a second time changes nothing."""
        if type(payload) is InFlight and self._count_back(payload):
            self._store.lent(payload.encoded.blocks, receiver)

    def lose(self, payload: InFlight | tuple[Array, ...] | None) -> None:
        """What went with a task that was lost with its worker."""
        if type(payload) is InFlight and self._count_back(payload):
            for block in payload.encoded.blocks:
                block.close()

    def _count_back(self, payload: InFlight) -> bool:
        with self._lock:
            if payload not in self._in_flight:
                return False
            for write_back in payload.encoded.write_backs:
                write_back.end()
            return self._in_flight.pop(payload, None) is not None
