"""The worker of a Pool: takes tasks from its channel, runs them, sends results.

The process belongs to the parent's Pool. It ends when it is told to (EXIT), and within moments of the parent's death,
which a thread watches through the parent's pidfd (PR_SET_PDEATHSIG would follow the thread that made us).
It holds nothing that others need: what it had is known to the broker.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from causeway import _pool_wire as wire
from causeway import client
from causeway._pool_buffers import Block, BlockStore
from causeway._pool_channel import WORKER, Bell, Channel, Plane
from causeway.array import Array
from causeway.constant import arguments, met, resolve, sweep
from causeway.errors import BrokerLost, LimitExceeded

__all__ = ["ParentId", "main"]

_KEEP_BYTES = 128 << 20  # memory for results that a worker keeps
_FUNCTIONS_MAX = 1000
_INTERRUPTED = 130  # exit code after SIGINT in a task, as shells have it
_ORPHANED = 1


class ParentId:
    """Which process is the parent: its pid and when it started, so that a pid used again is not taken for it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.started = _start_time(self.pid)

    def alive(self) -> bool:
        """Whether that very process still runs."""
        return _start_time(self.pid) == self.started

    def watch(self) -> None:
        """Ends this process when the parent ends."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            os._exit(_ORPHANED)
        if not self.alive():
            os._exit(_ORPHANED)
        threading.Thread(target=_end_with, args=(fd,), name="causeway-parent", daemon=True).start()


def _start_time(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _end_with(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    while not poll.poll():
        pass
    os._exit(_ORPHANED)


class _Worker:
    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.store = BlockStore(_KEEP_BYTES)
        self.encoder = wire.Encoder(self.store, channel.max_bytes, transit=True)
        self.functions: dict[bytes, Callable[..., Any]] = {}
        self.unopened: list[Block] = []  # of results that the parent may not have opened yet
        self.running = False
        self.pid = os.getpid()

    def serve(self) -> None:
        """Runs tasks until told to end."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self.interrupt)
        while True:
            received = self.channel.receive()
            if received is None:
                continue
            # Whatever we sent before, the parent has opened it before it sent this.
            opened, self.unopened = self.unopened, []
            self.store.lent(opened, None)
            if received[0] == wire.EXIT:
                return
            self.run(received[1])
            del received

    def interrupt(self, number: int, frame: Any) -> None:
        """SIGINT: ends a task that runs, and the worker with it. Between tasks it is the parent's to decide."""
        if self.running:
            self.running = False
            raise KeyboardInterrupt

    def run(self, data: Any) -> None:
        """Runs one task and sends its result."""
        try:
            self.running = True
            value = self.call(data)
            self.running = False
            success = True
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)
        except SystemExit:
            raise
        except BaseException as error:
            self.running = False
            value, success = error, False
        if os.getpid() != self.pid:  # the task has forked, and this is the child
            os._exit(0)
        self.answer(success, value)
        value = None  # else the exception, its traceback and this frame would keep each other, and the arguments

    def call(self, data: Any) -> Any:
        """Unpickles a task and calls its function. The arguments live no longer than this call."""
        sweep()
        constants_before = met.count
        message = wire.read(data)
        if message.lead:
            key = bytes(message.lead)
            function = self.functions.get(key)
            if function is None:
                if len(self.functions) >= _FUNCTIONS_MAX:
                    self.functions.clear()
                function = self.functions[key] = pickle.loads(key)
            args = wire.loads(message)
        else:
            function, args = wire.loads(message)
        message.buffers.clear()
        message.by_pickle.clear()
        if met.count != constants_before:
            function, args = resolve(function), _resolved(message.call, args)
        if message.call == wire.APPLY:
            positional, named = args
            del args
            return function(*positional, **named)
        if message.call == wire.MAP:
            return [function(item) for item in args]
        return [function(*item) for item in args]

    def answer(self, success: bool, value: Any) -> None:
        """Sends a result, or instead of it why it cannot be sent."""
        lead = b"" if success else _traceback(value)
        try:
            parcel = self.encoder.encode(0, int(success), lead, value)
        except (LimitExceeded, BrokerLost) as error:
            parcel = self.encoder.encode(0, 0, lead or _traceback(error), _bare(error))
        except Exception as error:
            wrapped = _encoding_error(error, value)
            parcel = self.encoder.encode(0, 0, lead or _traceback(error), wrapped)
        self.unopened = parcel.blocks
        self.channel.send(wire.RESULT, parcel.data)


def _resolved(call: int, args: Any) -> Any:
    """A task's arguments with the objects in place of constants."""
    if call == wire.APPLY:
        return arguments(args[0], args[1] if len(args) > 1 else {})
    if call == wire.MAP:
        return [resolve(item) for item in args]
    return [[resolve(part) for part in item] for item in args]


def _traceback(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return text.encode("utf-8", "backslashreplace")


def _bare(error: Exception) -> Exception:
    return type(error)(*error.args)


def _encoding_error(error: Exception, value: Any) -> MaybeEncodingError:
    try:
        return MaybeEncodingError(error, value)
    except Exception:  # its repr raises
        return MaybeEncodingError(error, f"<{type(value).__name__} object>")


def main(
    memory: tuple[Callable[..., Array], tuple[Any, ...]] | int,
    slot: int,
    plane: Plane,
    parent: ParentId,
    settings: tuple[str | None, str | None],
    initializer: Callable[..., object] | None,
    initargs: tuple[Any, ...],
) -> None:
    """What a worker process runs.

    Args:
        memory: the plane: how to open it, or its address where it came by fork.
        slot: which channel on it.
        plane: how it is laid out.
        parent: the process to end with.
        settings: how the parent is connected to the broker; None is told by the environment.
        initializer: called with initargs before the first task.
    """
    try:
        _main(memory, slot, plane, parent, settings, initializer, initargs)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _main(
    memory: tuple[Callable[..., Array], tuple[Any, ...]] | int,
    slot: int,
    plane: Plane,
    parent: ParentId,
    settings: tuple[str | None, str | None],
    initializer: Callable[..., object] | None,
    initargs: tuple[Any, ...],
) -> None:
    parent.watch()
    if isinstance(memory, int):
        address = memory
    else:
        if settings != (None, None):
            client.connect(*settings)
        opened = memory[0](*memory[1]).numpy()  # mapped for as long as this function runs
        address = opened.__array_interface__["data"][0]
    channel = Channel(address + plane.offset(slot), plane, WORKER, Bell(address))
    worker = _Worker(channel)
    if initializer is not None:
        try:
            initializer(*map(resolve, initargs))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            try:
                parcel = worker.encoder.encode(0, 0, _traceback(error), error)
            except Exception as refusal:
                parcel = worker.encoder.encode(
                    0, 0, _traceback(error), _encoding_error(refusal, error)
                )
            channel.send(wire.START_FAILED, parcel.data)
            while channel.receive() is None:  # until the parent, which reads it first, ends us
                pass
            sys.exit(1)
    channel.send(wire.READY, b"")
    worker.serve()
