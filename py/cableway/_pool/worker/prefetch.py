"""Prefetch: while a worker's task computes, arguments of the next tasks are copied to its GPU.

A thread of the worker looks at the tasks that its group may take next, without taking them (`WorkerEnd.peek`), and copies the memory
that their tables name to the GPU, in a stream of the library. If the worker then takes such a task, its arguments are there. If
another worker takes it, or it is cancelled, the copies are dropped.

Invariant: the copies for a task are what the task says. A task is known by its place, a number that no other task ever has, and its
contents do not change until it is taken. So a copy that was made for a place belongs to the task at that place, or to nobody. No task
is ever bound to this worker by this: to look changes nothing for others.

When copies are dropped: as long as a task runs, the worker takes no other. So a task with copies that is not among the next tasks, in
a look that began and ended within one running task, was taken by another worker.

Bounds: TASKS_PREFETCHED tasks, and one part of SHARE of the GPU's memory in all. Arguments that do not fit are copied when their task
is taken. If memory runs out, the copies are given back first (`give_way`). Several workers of one GPU do not prefetch: all would copy
for the same tasks, and one copies anyway while the others compute. The number of workers is asked for each task, since a Pool can be
resized.

Owner: the thread owns the copy that it makes; the lock guards the finished copies. Errors here are ignored: the thread that takes the
task makes the copy itself, and reports the error. If the process dies, its leases end, and nothing else knew of it. A lease holds the
source for the time of the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from cableway._core.leases import Lease
from cableway._pool.worker.staging import Device
from cableway._transport import table

__all__ = ["SHARE", "TASKS_PREFETCHED", "Prefetch"]

TASKS_PREFETCHED = 2
SHARE = 8  # one part of so many of the GPU's memory
_LOOK_SECONDS, _LOOK_MOST_SECONDS = 0.0005, 0.02  # between looks for tasks that have come since
_IDLE_SECONDS = 0.1  # a worker without a task keeps nothing for longer


class _Prefetched:
    """What was brought for one task, by the number of the entry; None: that one is not to be brought."""

    __slots__ = ("leases", "nbytes")

    def __init__(self) -> None:
        self.leases: dict[int, Lease | None] = {}
        self.nbytes = 0


class Prefetch:
    """What a worker has brought for tasks that it may take.

    Args:
        end: the worker's end.
        device: its GPU.
        limit_bytes: of memory there; None: one part of SHARE.
    """

    def __init__(self, end: Any, device: Device, limit_bytes: int | None = None) -> None:
        self._end = end
        self._device = device
        self._limit = limit_bytes
        self._changed = threading.Condition()
        self._kept: dict[int, _Prefetched] = {}
        self._bytes = 0
        self._working: int | None = None  # the place for which the thread brings something
        self._copying = False
        self._running = False
        self._round = 0  # how many tasks have begun
        self._thread: threading.Thread | None = None

    def begin(self, place: int) -> dict[int, Lease | None]:
        """A task was taken: what was brought for it, by the number of the entry. Waits for a copy that is on its way."""
        if self._thread is None:
            return {}
        with self._changed:
            self._round += 1
            while self._copying and self._working == place:
                self._changed.wait()
            if self._working == place:
                self._working = None
            kept = self._kept.pop(place, None)
            if kept is None:
                return {}
            self._bytes -= kept.nbytes
            return kept.leases

    def look(self) -> None:
        """The task that was taken last computes: now is the time."""
        if self._end.fellows() > 1:
            return
        with self._changed:
            self._running = True
            if self._thread is None:
                if self._limit is None:
                    self._limit = self._device.memory_bytes // SHARE
                self._thread = threading.Thread(
                    target=self._run, name="cableway-pool-prefetch", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def rest(self) -> None:
        """It has ended."""
        if self._thread is None:
            return
        with self._changed:
            self._running = False

    def give_way(self) -> None:
        """Drops all that is kept: its memory is needed."""
        with self._changed:
            dropped = self._drop(self._kept.keys())
        del dropped  # the end of a mapping takes its time: outside of the lock

    def _drop(self, places: Iterable[int]) -> list[_Prefetched]:
        dropped = [self._kept.pop(place) for place in list(places)]
        self._bytes -= sum(kept.nbytes for kept in dropped)
        return dropped

    # ---- the thread

    def _run(self) -> None:
        seconds, seen_round = _LOOK_SECONDS, 0
        while True:
            round_now = self._wait_for_a_task()
            seconds = min(2 * seconds, _LOOK_MOST_SECONDS)
            if round_now != seen_round:
                seconds, seen_round = _LOOK_SECONDS, round_now
            self._look_once(round_now)
            with self._changed:
                if self._running and self._round == round_now:
                    self._changed.wait(seconds)

    def _wait_for_a_task(self) -> int:
        """Until one runs. A worker that has none for a while keeps nothing."""
        while True:
            with self._changed:
                told = self._running or self._changed.wait(_IDLE_SECONDS if self._kept else None)
                if self._running:
                    return self._round
                dropped = [] if told else self._drop(self._kept.keys())
            del dropped

    def _look_once(self, round_now: int) -> None:
        places = set()
        for nth in range(TASKS_PREFETCHED):
            found = self._end.peek(nth)
            if found is None:
                break
            place, data = found
            places.add(place)
            with self._changed:
                if not self._running or self._round != round_now:
                    return
                self._working = place
            try:
                self._bring_all(place, data)
            finally:
                with self._changed:
                    self._working = None
        with self._changed:
            if not self._running or self._round != round_now:
                return
            dropped = self._drop(self._kept.keys() - places)
        del dropped

    def _bring_all(self, place: int, data: bytes) -> None:
        """Brings what one task needs, as far as there is room, until it is taken."""
        try:
            entries = table.peek(data)
        except Exception:  # others have the task by now, and its block may hold anything
            return
        for number, entry in enumerate(entries):
            if not self._device.needs(entry) or not self._reserve(place, number, entry.nbytes):
                continue
            lease = None
            try:
                if self._device.here(entry) is None:
                    lease = self._device.bring(entry)
            except Exception:
                pass  # who takes the task will meet it, and tell
            finally:
                self._note(place, number, entry.nbytes, lease)

    def _reserve(self, place: int, number: int, nbytes: int) -> bool:
        """Whether an entry is to be brought now; its bytes count from now on."""
        with self._changed:
            kept = self._kept.get(place)
            known = kept is not None and number in kept.leases
            if self._working != place or known or self._bytes + nbytes > (self._limit or 0):
                return False
            if kept is None:
                kept = self._kept[place] = _Prefetched()
            self._bytes += nbytes
            kept.nbytes += nbytes
            self._copying = True
            return True

    def _note(self, place: int, number: int, nbytes: int, lease: Lease | None) -> None:
        with self._changed:
            self._copying = False
            self._changed.notify_all()
            kept = self._kept.get(place)
            if kept is None:  # it was to give way
                return
            kept.leases[number] = lease
            if lease is None:
                self._bytes -= nbytes
                kept.nbytes -= nbytes
