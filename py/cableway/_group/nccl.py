"""`Group.nccl`: a communicator of NCCL for the members of a group, as CuPy has it, and its end when a member ends.

NCCL does not tell a process that another one has died: its kernels wait for ever. So each member has a thread that waits for the
members' processes to end (their pidfds), looks ten times a second whether the group is broken, and then aborts the communicators.

Who owns what: the communicator belongs to the caller and to a `Watch`, which belongs to the member. Deaths:
    a member before all have met        the group's own operations tell the others
    a member while NCCL joins           NCCL may never return: the thread that is in it is left alone, the caller is told by the group
    a member afterwards                 each watch aborts its member's communicator
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

from cableway import device as devices
from cableway._core import locks
from cableway._core.library import check, ffi, lib
from cableway.errors import DeviceError, Timeout

__all__ = ["Watch", "communicator", "stop"]

_TICK_S = 0.1


class Watch:
    """Aborts communicators when a member's process ends or the group breaks; and at `stop`.

    Its descriptors are open as long as it is there, so that whoever stops it, on whatever thread, finds them.

    Args:
        end: the member.
        pids: of the other members, which lived a moment ago.
    """

    def __init__(self, end: Any, pids: list[int]) -> None:
        self._end = end
        self._fds: list[int] = []
        self._communicators: list[Any] = []
        self._over = False  # what is added from now on is aborted at once
        self._lock = locks.RLock()  # a finaliser may come to stop it on a thread that has it
        self._pid = os.getpid()
        self._fds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # of who is gone already, the group tells
                self._fds.append(os.pidfd_open(pid))
        self._thread = threading.Thread(target=self._run, name="cableway-nccl", daemon=True)

    def __del__(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def add(self, communicator: Any) -> None:
        """One more to be aborted; at once, if the time for that has come already."""
        with self._lock:
            over = self._over
            if not over:
                self._communicators.append(communicator)
        if over:
            communicator.abort()

    def gone(self) -> bool:
        """Whether a member has ended or the group is broken."""
        return _broken(self._end) or _ended(self._fds[1:], 0)

    def stop(self) -> None:
        """Aborts them now, and ends the thread. Blocks until both is done. May be repeated. In a forked child it does nothing."""
        if os.getpid() != self._pid:
            return
        os.eventfd_write(self._fds[0], 1)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._abort()

    def _run(self) -> None:
        while not _ended(self._fds, _TICK_S) and not _broken(self._end):
            pass
        self._abort()

    def _abort(self) -> None:
        with self._lock:
            self._over = True
            found, self._communicators = self._communicators, []
        for communicator in found:
            communicator.abort()


def stop(watches: list[Watch]) -> None:
    """Stops all of a member's, and forgets them."""
    while last := watches[-1:]:
        last[0].stop()
        with contextlib.suppress(ValueError):  # another thread stops them, too
            watches.remove(last[0])


def _ended(fds: list[int], seconds: float) -> bool:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _broken(end: Any) -> bool:
    # Both with the GIL, so that no thread closes it in between. Of one that is closed `broken` is False.
    return not end.address() or bool(end.broken)


def _here(device: str | None) -> tuple[str, Any, Any, str]:
    """What is in the way here ("" if nothing is), CuPy, its `nccl`, and the UUID of the GPU."""
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        return f"it cannot import CuPy ({error}): install cupy-cuda12x or another", None, None, ""
    if not getattr(nccl, "available", True):
        return "its CuPy finds no NCCL: install nvidia-nccl-cu12 or another", None, None, ""
    try:
        name = devices.resolve(device or f"cuda:{cupy.cuda.Device().id}")
        if name == "cpu":
            return "NCCL needs a GPU, and its device is 'cpu'", None, None, ""
        told = ffi.new("cw_device_place *")
        check(lib.cw_device_place_of(name.encode(), told))
    except (DeviceError, TypeError, ValueError) as error:
        return str(error), None, None, ""
    chosen = cupy.cuda.Device(int(name.partition(":")[2]))
    return "", chosen, nccl, str(ffi.string(told.uuid), "ascii")


def _refuse(problems: list[str], uuids: list[str]) -> None:
    """Raises on all members what is in the way on one of them."""
    for rank, problem in enumerate(problems):
        if problem:
            raise DeviceError(f"no communicator of NCCL: rank {rank}: {problem}")
    for rank, uuid in enumerate(uuids):
        first = uuids.index(uuid)
        if first != rank:
            raise DeviceError(
                f"no communicator of NCCL: ranks {first} and {rank} are both on the GPU {uuid}, and NCCL wants one for each member; "
                "the operations of the group itself work there"
            )


class _Joining(threading.Thread):
    """NCCL's call by which all members join; it may never return."""

    def __init__(self, device: Any, make: Callable[[], Any]) -> None:
        super().__init__(name="cableway-nccl-join", daemon=True)
        self._device, self._make = device, make
        self._lock = locks.Lock()
        self._left = False
        self.made: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Joins, and aborts what nobody waits for any more."""
        try:
            with self._device:
                made = self._make()
        except Exception as error:
            self.error = error
            return
        with self._lock:
            if not self._left:
                self.made = made
                return
        made.abort()

    def leave(self) -> None:
        """Nobody waits for it."""
        with self._lock:
            self._left = True
            made, self.made = self.made, None
        if made is not None:
            made.abort()

    def wait(self, watch: Watch, timeout: float | None) -> None:
        """Until it has returned, or a member is gone."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.is_alive() and not watch.gone():
            if until is not None and time.monotonic() >= until:
                raise Timeout(
                    f"{timeout} s ran out while NCCL joined the members; NCCL_DEBUG=INFO says what it does"
                )
            self.join(_TICK_S)


def communicator(
    end: Any,
    exchange: Callable[[Any], list[Any]],
    device: str | None,
    timeout: float | None,
    watches: list[Watch],
) -> Any:
    """A communicator in which this member has its rank.

    Args:
        end: the member.
        exchange: gives an object, and gets those of all members.
        device: of this member; None: CuPy's current one.
        timeout: seconds, for NCCL to join the members.
        watches: of the member, who stops them before it ends; the one of this communicator is added.
    """
    rank, size, _ = end.numbers()
    problem, chosen, nccl, uuid = _here(device)
    number: Any = None
    if not problem and rank == 0:
        try:
            number = nccl.get_unique_id()
        except Exception as error:
            problem = f"NCCL makes no identifier: {error}"
    found = exchange((problem, uuid, os.getpid(), number))
    _refuse([each[0] for each in found], [each[1] for each in found])
    watch = Watch(end, [each[2] for i, each in enumerate(found) if i != rank])
    watches.append(watch)
    watch.start()
    joining = _Joining(chosen, lambda: nccl.NcclCommunicator(size, found[0][3], rank))
    try:
        return _join(watch, end, exchange, joining, timeout)
    except BaseException:
        watch.stop()
        raise


def _join(
    watch: Watch,
    end: Any,
    exchange: Callable[[Any], list[Any]],
    joining: _Joining,
    timeout: float | None,
) -> Any:
    joining.start()
    try:
        joining.wait(watch, timeout)
        error = joining.error
        _refuse(exchange("" if error is None else f"NCCL did not join it: {error}"), [])
        if joining.made is None:  # somebody is gone who had come to all of that
            end.barrier()
            raise DeviceError("no communicator of NCCL: a member ended meanwhile")
        watch.add(joining.made)
    except BaseException:
        joining.leave()
        raise
    return joining.made
