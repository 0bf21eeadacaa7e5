"""The worker of a Pool: takes tasks from the task queue, runs them, and answers.

The loop and all plain tasks are in C (_dispatch.WorkerEnd); this module does the rest. The process belongs to the parent's Pool. It ends
when it is told to, and within moments of the parent's death. A thread watches for that through the parent's pidfd (PR_SET_PDEATHSIG
would follow the thread that started the worker). It owns nothing that others need: the broker knows what it had.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.pool import MaybeEncodingError  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from cableway import _dispatch, client
from cableway._core import idle_memory, imports
from cableway._pool.launch.environment import Description
from cableway._pool.task_queue import Memory, TaskQueue
from cableway._pool.worker import member
from cableway._pool.worker.own_gpu import OWN, OwnGpu
from cableway._pool.worker.prefetch import Prefetch
from cableway._pool.worker.staging import Device
from cableway._pool.worker.task_arrays import Arguments
from cableway._pool.worker.write_back import WriteBackThread
from cableway._transport import message as wire
from cableway._transport.blocks import Block, BlockStore
from cableway._transport.external_arrays import Lender
from cableway._transport.table import is_arrays_only
from cableway.constant import arguments, met, resolve, sweep
from cableway.errors import BrokerLost, DeviceError, LimitExceeded

__all__ = ["FAILED", "READY", "ParentId", "Place", "main"]

READY, FAILED = 1, 2  # what a worker tells of itself; FAILED goes with a message

_LOGGER = logging.getLogger("concurrent.futures")
_KEEP_BYTES = 128 << 20  # memory for results that a worker keeps
_INTERRUPTED = 130  # exit code after SIGINT in a task, as shells have it
_ORPHANED = 1
_FUNCTION_TYPES = (types.FunctionType, types.BuiltinFunctionType)


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
        _dispatch.watch(fd, _ORPHANED)  # a thread of C: a task may hold the interpreter for ever


def _start_time(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


class Place:
    """Where a worker belongs: what all start methods carry to it.

    Attributes:
        slot: which one of the task queue.
        spinners: how many workers may spin at a time.
        parent: the process to end with.
        settings: how the parent connects to the broker; None is told by the environment.
        stderr: what to open as stderr, None to leave it.
        group: in which group of workers it is.
        device: its place on a GPU; None: the Pool has no devices.
        kept: modules that the thread that made the Pool was importing.
    """

    def __init__(
        self,
        slot: int,
        task_queue: TaskQueue,
        spinners: int,
        parent: ParentId,
        settings: tuple[str | None, str | None],
        stderr: str | None,
        group: int = 0,
        device: Description | None = None,
        kept: frozenset[str] = frozenset(),
    ) -> None:
        self.slot = slot
        self.task_queue = task_queue
        self.spinners = spinners
        self.parent = parent
        self.settings = settings
        self.stderr = stderr
        self.group = group
        self.device = device
        self.kept = kept

    def open(self, address: int) -> Any:
        """The worker's end of the task queue that is mapped at address."""
        task_queue = self.task_queue
        return _dispatch.WorkerEnd(
            address,
            task_queue.nbytes,
            task_queue.workers,
            task_queue.cells,
            task_queue.groups,
            self.slot,
            self.group,
            self.spinners,
        )


class ContextFailed(Exception):
    """The worker's GPU cannot be used by this process any more."""


class _Own(threading.local):
    """Of a thread that answers: the blocks of its last answer."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []


class _Handler:
    """What the worker's end calls for all that is not plain."""

    def __init__(self, end: Any, gpu: OwnGpu | None, group: int) -> None:
        self.loaded_name = ""
        self._end = end
        self._gpu = gpu
        self._interrupted = False  # by a SIGINT, and not by a task that raises what looks so
        self._store = BlockStore(_KEEP_BYTES)
        self._own = _Own()
        self._encoder = wire.Encoder(
            self._store,
            _dispatch.WORDS_MAX,
            transit=True,
            lender=None if gpu is None else Lender(False),
        )
        own = None if gpu is None else Device(OWN, group)
        prefetch = None if own is None else Prefetch(end, own)
        self._arguments = Arguments(own, prefetch)
        self._late_encoder = wire.Encoder(self._store, _dispatch.WORDS_MAX, transit=True)
        self.write_back = WriteBackThread(self._answer_late, self._failed_to_write_back)

    def load_function(self, pickled: bytes) -> Any:
        """A function that is new here; `loaded_name` is then what traces call it."""
        function = pickle.loads(pickled)
        named = type(function) in _FUNCTION_TYPES  # others may run code to tell
        self.loaded_name = f"{function.__module__}.{function.__qualname__}" if named else ""
        return self._guarded(function)

    def _guarded(self, function: Any) -> Any:
        return function if self._gpu is None else self._gpu.guard(function)

    def run_message(self, data: memoryview, function: Any) -> Any:
        """Unpickles a task and calls its function. The arguments live no longer than this call."""
        sweep()
        try:
            value = self._call(data, function)
        finally:
            results = self._arguments.returned()
        if results:
            encoded = None if value is None else self._encoded(value)
            self.write_back.put(results, self._end.defer(), encoded)
            return None
        return value

    def _call(self, data: memoryview, function: Any) -> Any:
        if is_arrays_only(data):
            return self._call_with_arrays(data, function)
        constants_before = met.count
        message = self._arguments.read(data, self._end.place)
        self._end.extra_in, self._end.extra_back = message.block_bytes, message.back_bytes
        came_along = function is None
        if came_along:
            function, args = wire.loads(message)
        else:
            args = wire.loads(message)
        message.buffers.clear()
        message.by_pickle.clear()
        if met.count != constants_before:
            function, args = resolve(function), _resolved(message.call, args)
        if came_along:
            function = self._guarded(function)
        if message.call == wire.APPLY:
            positional, named = args if len(args) > 1 else (args[0], {})
            del args
            self._end.calls = 1
            return function(*positional, **named)
        if message.call == wire.MAP:
            return self._each(function, args)
        return self._each(lambda item: function(*item), args)

    def _call_with_arrays(self, data: memoryview, function: Any) -> Any:
        call, args, self._end.extra_in = self._arguments.read_arrays(data, self._end.place)
        if call == wire.APPLY:
            self._end.calls = 1
            return function(*args)
        return self._each(function, args)

    def _each(self, function: Any, items: Any) -> list[Any]:
        values: list[Any] = []
        try:
            for item in items:
                values.append(function(item))  # noqa: PERF401  # how many there are is told also if one fails
        except BaseException:
            self._end.calls = len(values) + 1
            raise
        self._end.calls = len(values)
        return values

    def encode_value(self, value: Any) -> tuple[bytes, int]:
        """A result as a message, or instead of it why it cannot be sent; and the bytes beside it."""
        return self._sent(self._encoded(value))

    def _encoded(self, value: Any) -> wire.EncodedMessage:
        try:
            return self._encoder.encode(0, 1, b"", value)
        except (LimitExceeded, BrokerLost) as error:
            return self._encoder.encode(0, 0, _traceback(error), _bare(error))
        except Exception as error:
            return self._encoder.encode(0, 0, _traceback(error), _encoding_error(error, value))

    def encode_exception(self, error: BaseException) -> tuple[bytes, int]:
        """An exception of the task's as a message. What ends the process goes on its way: sys.exit, and a SIGINT."""
        if isinstance(error, KeyboardInterrupt) and self._interrupted:
            sys.exit(_INTERRUPTED)
        if isinstance(error, SystemExit):
            raise error
        if isinstance(error, DeviceError) and self._gpu is not None and self._gpu.usable:
            error = self._looked_at(error)  # it came while arguments were copied
        return self._sent(self._failed(error, self._encoder))

    def _failed(self, error: BaseException, encoder: wire.Encoder) -> wire.EncodedMessage:
        lead = _traceback(error)
        try:
            return encoder.encode(0, 0, lead, error)
        except (LimitExceeded, BrokerLost) as refusal:
            return encoder.encode(0, 0, lead, _bare(refusal))
        except Exception as refusal:
            return encoder.encode(0, 0, lead, _encoding_error(refusal, error))

    def _failed_to_write_back(self, error: Exception) -> wire.EncodedMessage:
        """Instead of an answer whose results could not be copied; in the thread that copies them."""
        self._end.fail()
        return self._failed(error, self._late_encoder)

    def _answer_late(self, token: int, encoded: wire.EncodedMessage | None) -> None:
        """The answer of a task whose results have left; None is None. In the thread that copies them."""
        try:
            if encoded is None:
                self._end.answer(token, None)
            else:  # its blocks count as sent from now on: who waits until all are opened may be this thread
                self._end.answer_message(token, self._sent(encoded))
        except (
            ContextFailed
        ):  # by a later task: it was answered, and the main thread ends the process
            pass

    def _looked_at(self, error: DeviceError) -> DeviceError:
        assert self._gpu is not None
        try:
            self._gpu.settle(error)
        except DeviceError as broken:
            return broken
        return error

    def _sent(self, encoded: wire.EncodedMessage) -> tuple[bytes, int]:
        self._store.lent(encoded.blocks, None)
        self._own.blocks = encoded.blocks
        beside = sum(block.capacity for block in encoded.blocks)
        if self._gpu is not None and self._gpu.broken:
            beside += 1  # who says that there is something is asked to wait until it is opened, and leaves there
        return encoded.data, beside

    def heed(self) -> None:
        """Somebody wants the memory that this process keeps idle. Between tasks."""
        idle_memory.heed(self._end)

    def wait_until_released(self) -> None:
        """Until the parent has opened what it alone holds, or says that it never will: else its death could take answers
        along that were given.

        Raises:
            ContextFailed: this worker takes no more tasks.
        """
        spins, seconds = 200, 0.0001
        while not self._end.released():
            if spins:
                spins -= 1
                os.sched_yield()
            else:
                time.sleep(seconds)
                seconds = min(2 * seconds, 0.05)
        blocks, self._own.blocks = self._own.blocks, []
        self._store.refused(blocks)
        if self._gpu is not None and self._gpu.broken:
            raise ContextFailed

    def interrupt(self, number: int, frame: Any) -> None:
        """SIGINT: ends a task that runs, and the worker with it. Between tasks it is the parent's to decide."""
        if self._end.running:
            self._end.running = False
            self._interrupted = True
            raise KeyboardInterrupt


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
    memory: Memory,
    place: Place,
    initializer: Callable[..., object] | None,
    initargs: tuple[Any, ...],
    maxtasks: int | None,
) -> None:
    """What a worker process runs.

    Args:
        memory: the task queue.
        place: which part of it is this worker's, and more.
        initializer: called with initargs before the first task.
        initargs: its arguments.
        maxtasks: how many tasks it runs; None for any number.
    """
    try:
        _main(memory, place, initializer, initargs, maxtasks)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _main(
    memory: Memory,
    place: Place,
    initializer: Callable[..., object] | None,
    initargs: tuple[Any, ...],
    maxtasks: int | None,
) -> None:
    imports.begin_again(place.kept)
    place.parent.watch()
    if place.stderr is not None:
        _replace_stderr(place.stderr)
    if place.settings != client.ENVIRONMENT:
        client.use(place.settings)
    end = place.open(memory.address)
    member.here = place.group
    idle_memory.add_end(end)
    gpu = None if place.device is None else OwnGpu(place.device)
    handler = _Handler(end, gpu, place.group)
    if initializer is not None or gpu is not None:
        try:
            _begin(gpu, initializer, initargs)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if not multiprocessing.current_process().daemon:  # an Executor's
                _LOGGER.critical("Exception in initializer:", exc_info=True)  # as its users expect
            message, _ = handler.encode_exception(error)
            signal.signal(signal.SIGTERM, _leave)
            end.tell(FAILED, message)
            while True:  # until the parent, which reads it first, ends us
                signal.pause()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler.interrupt)
    end.tell(READY, b"")
    try:
        end.serve(handler, maxtasks or 0)
        handler.wait_until_released()
    except ContextFailed:
        handler.write_back.wait()
        util._flush_std_streams()  # type: ignore[attr-defined]
        os._exit(0)  # libraries would tidy up on a GPU that does not answer them


def _leave(number: int, frame: Any) -> None:
    """The parent has read why this worker failed. It ends as by itself: what it has logged into a queue gets there."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def _begin(
    gpu: OwnGpu | None, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
) -> None:
    """What comes before the first task."""
    if gpu is not None:
        gpu.begin()
        if initializer is not None:
            initializer = gpu.guard(initializer)
    if initializer is not None:
        initializer(*map(resolve, initargs))


def _replace_stderr(path: str) -> None:
    """What is written to stderr from now on goes to the parent, who passes it on."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(fd, 2)
    os.close(fd)
    # What the parent had put in its place (a notebook, a test's capture) came along by fork.
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
