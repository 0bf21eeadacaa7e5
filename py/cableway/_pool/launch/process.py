"""Worker processes: multiprocessing's Process. With spawn and forkserver our server forks them, with fork this process does.

A `SpawnProcess` or `ForkServerProcess` of this module is that of multiprocessing in everything that it shows (attributes,
active_children, join, exit codes) and in what the worker sees. Only the way in which it is made differs (_pool.launch.server); if no
server serves, it is made by plain spawn. Two things differ for the worker from a plain spawn: os.getppid() is the server, and the main
module was imported once, before.

Owner: the parent process holds a pidfd and its end of the worker's *line*, a socket whose other end the worker and the server hold.
The parent says on it that the worker may run, the server how the worker ended. The worker sees by it that the parent is gone
(multiprocessing.parent_process()).

Deaths: if the parent dies, the line and its pidfd close; server and worker watch them. If the server dies, no exit code comes on the
line: then it is UNKNOWN_EXIT. It is also UNKNOWN_EXIT if a living server has not reported it within STATUS_SECONDS of the worker's end
(the server is stopped, or gets no CPU time), until it does. The exit code is never guessed. All signals go through the pidfd, so that
none reaches another process with the same number.
"""

from __future__ import annotations

import atexit
import fcntl
import io
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, starmap
from multiprocessing import context as contexts
from multiprocessing import popen_fork, popen_spawn_posix, reduction, spawn, util
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

from cableway._core.descriptors import above_stdio
from cableway._pool.launch import forker
from cableway._pool.launch import server as servers

__all__ = [
    "STATUS_SECONDS",
    "ForkProcess",
    "ForkServerProcess",
    "SpawnProcess",
    "end_unknown",
    "exitcode_of",
    "hurry",
    "let_go",
    "open_pidfd",
    "pipelined",
    "process_class",
]  # fmt: skip

STATUS_SECONDS = 5.0  # from a worker's end until the server has told how
_TURN_SECONDS = 1.0  # of a wait for a worker's end
_FDS_MAX = 240  # of one worker; the kernel takes 253 in one message
_EXITCODE = struct.Struct("<i")

_POLL = popen_fork.Popen.poll.__code__
# PIDFD_GET_INFO of linux/pidfd.h: struct pidfd_info begins with a mask of what is asked, and has the exit code at its end.
_GET_INFO, _INFO_BYTES, _INFO_EXIT, _INFO_EXIT_AT = 0xC040FF0B, 64, 8, 60
_INFO_MASK = struct.Struct("<Q")
# From Python 3.13 on what a forked process does at its end are handlers of atexit, its own ones among them.
_ENDS_BY_ATEXIT = sys.version_info >= (3, 13)
_PIPELINE_DEPTH = 4  # workers that are asked for before the first one is there


class _DupFd:
    """A descriptor on its way to a worker."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """In the worker: the descriptor."""
        return forker.inherited[self._index]


class _Request:
    """A worker that a server was asked for: what it is made of was sent, and nothing has come of it yet.

    Raises:
        ServerLost: ask another server.
    """

    DupFd = _DupFd

    def __init__(self, process: BaseProcess, server: servers.Server, told: Any) -> None:
        self.process = process
        self.server = server
        self._fds: list[int] = []
        buffer = io.BytesIO()
        contexts.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            reduction.dump(told, buffer)
            reduction.dump(process, buffer)
        finally:
            contexts.set_spawning_popen(None)
        if len(self._fds) > _FDS_MAX:
            raise ValueError(
                f"a worker was to be given {len(self._fds)} descriptors (those in its initargs, one of the Pool's); the limit is {_FDS_MAX}"
            )
        data = above_stdio(lambda: os.memfd_create("cableway-pool-start", os.MFD_CLOEXEC))
        self.line, theirs = above_stdio(
            lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        try:
            with open(data, "wb", closefd=False) as file:
                file.write(buffer.getbuffer())
            os.lseek(data, 0, os.SEEK_SET)
            server.ask(data, theirs.fileno(), self._fds)
        except BaseException:
            self.line.close()
            raise
        finally:
            os.close(data)
            theirs.close()

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return len(self._fds) - 1


class _Popen(popen_fork.Popen):
    method = "spawn"

    def __init__(self, process: BaseProcess, request: _Request) -> None:
        self._server = request.server
        self._line = request.line
        super().__init__(process)

    def _launch(self, process: BaseProcess) -> None:
        try:
            self.pid, self.sentinel = self._server.answer()
        except BaseException:
            self._line.close()
            raise
        self.finalizer = util.Finalize(self, _close, (self._line, self.sentinel))
        try:
            self._line.send(forker.GO, socket.MSG_NOSIGNAL)
        except OSError:  # dead already
            pass

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        wait = flag != os.WNOHANG
        told = None
        try:
            # In turns: the descriptor may have become somebody else's, see let_go.
            while self.returncode is None and not _readable(
                self.sentinel, _TURN_SECONDS if wait else 0
            ):
                if not wait:
                    return None
            if self.returncode is None:
                told = self._ending(STATUS_SECONDS if wait else 0)
            elif self.returncode == servers.UNKNOWN_EXIT and self._line.fileno() >= 0:
                told = self._ending(0)  # it may have been told since
        except (OSError, ValueError):
            if self.returncode is None:
                raise
            # Another thread learned how it ended, and let go of it in the midst of this.
        if told is not None and self.returncode in (None, servers.UNKNOWN_EXIT):
            self.returncode = told
        return self.returncode

    def _ending(self, seconds: float) -> int | None:
        """How a dead worker ended; None: it is not told yet, and the time is not over."""
        server_ended = self._server.ended()  # what it has told is there before it is dead
        if not _readable(self._line.fileno(), 0 if server_ended else seconds):
            waited = server_ended or seconds > 0
            return servers.UNKNOWN_EXIT if waited else None
        # It stays there: another thread may look at the same time.
        try:
            told = self._line.recv(_EXITCODE.size, socket.MSG_PEEK)
        except (
            ConnectionResetError
        ):  # it died before it had read GO; what was sent to us comes next
            told = self._line.recv(_EXITCODE.size, socket.MSG_PEEK)
        if len(told) != _EXITCODE.size:
            return servers.UNKNOWN_EXIT
        return int(_EXITCODE.unpack(told)[0])

    def _send_signal(self, sig: int) -> None:
        if self.returncode is None:
            try:
                signal.pidfd_send_signal(self.sentinel, sig)
            except ProcessLookupError:
                pass


def _close(line: socket.socket, pidfd: int) -> None:
    line.close()
    os.close(pidfd)


def _readable(fd: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


_thread = threading.local()


def hurry() -> None:
    """Processes that this thread starts never wait until a server is ready."""
    _thread.hurries = True


def _server_for(process: Any) -> tuple[servers.Server | None, Any]:
    """The server for a process, None if there is none; and what multiprocessing tells the process."""
    told = spawn.get_preparation_data(process._name)
    start = [type(process), process._target, *process._args]
    wait = not getattr(_thread, "hurries", False)
    also = getattr(process, "modules", ())
    environment = getattr(process, "environment", {})
    server = servers.find(process._start_method, told, start, wait, also, environment)
    return server, told


class _Pipeline:
    """Workers that are started one after the other, and asked for some ahead: the server forks one while this process
    makes the next one ready and sees to the one before. All are of one server, whose lock the caller holds.
    """

    def __init__(self, processes: list[Any], server: servers.Server, told: Any) -> None:
        self._processes = deque(processes)
        self._server = server
        self._told = told
        self._asked: deque[_Request] = deque()

    def take(self, process: Any) -> _Request | None:
        """What was asked for a process, None if nothing was."""
        try:
            while self._processes and len(self._asked) < _PIPELINE_DEPTH:
                told = {**self._told, "name": self._processes[0]._name}
                self._asked.append(_Request(self._processes[0], self._server, told))
                self._processes.popleft()
        except servers.ServerLost:
            self._processes.clear()
        if not self._asked or self._asked[0].process is not process:
            return None
        return self._asked.popleft()

    def close(self) -> None:
        """Who was asked for and not taken never runs."""
        for request in self._asked:
            request.line.close()
        self._server.end_turn()


@contextmanager
def pipelined(processes: list[Any]) -> Iterator[None]:
    """In this block processes of one context are started, these and in this order, by this thread."""
    server = None
    if len(processes) > 1 and type(processes[0]) in (SpawnProcess, ForkServerProcess):
        server, told = _server_for(processes[0])
    if server is None:
        yield
        return
    try:
        with server.lock:
            pipeline = _thread.pipeline = _Pipeline(processes, server, told)
            try:
                yield
            finally:
                _thread.pipeline = None
                pipeline.close()
    finally:
        server.close_retired()


def _popen(process: Any) -> popen_fork.Popen:
    pipeline: _Pipeline | None = getattr(_thread, "pipeline", None)
    request = pipeline.take(process) if pipeline is not None else None
    if request is not None:
        try:
            return _Popen(process, request)
        except servers.ServerLost:
            pass
    for _ in range(2):  # a server may die between two requests; two in a row have a reason
        server, told = _server_for(process)
        if server is None:
            break
        try:
            with server.lock:
                try:
                    return _Popen(process, _Request(process, server, told))
                finally:
                    server.end_turn()
        except servers.ServerLost:
            continue
        finally:
            server.close_retired()
    return popen_spawn_posix.Popen(process)


class _ForkPopen(popen_fork.Popen):
    """multiprocessing's. What it makes is noted in the same moment, in C, whatever a signal's handler raises: else a child
    would run, and descriptors be open, of which nobody knows.
    """

    def _launch(self, process_obj: Any) -> None:
        ends: list[int] = []
        self.finalizer = util.Finalize(self, _close_all, (ends,))
        forked = process_obj.forked
        try:
            ends.extend(chain.from_iterable(starmap(os.pipe, ((), ()))))
            forked.extend(starmap(os.fork, ((),)))
            self.pid = forked[0]
            if self.pid:
                deque(map(os.close, map(ends.pop, (2, 1))), maxlen=0)  # the child's
                self.sentinel = ends[0]
        finally:
            if forked and not forked[0]:
                try:
                    os._exit(_run(process_obj, ends))
                finally:  # whatever a signal's handler raises: the child is never the program anew
                    os._exit(1)


def _close_all(ends: list[int]) -> None:
    while ends:
        os.close(ends.pop())


def _run(process_obj: Any, ends: list[int]) -> int:
    """In the child: its exit status."""
    parent_r, _, child_r, parent_w = ends
    os.close(parent_r)
    os.close(parent_w)
    if _ENDS_BY_ATEXIT:  # as in popen_fork
        atexit._clear()  # the parent's
        atexit.register(util._exit_function)  # type: ignore[attr-defined]
    try:
        return int(process_obj._bootstrap(parent_sentinel=child_r))
    finally:
        if _ENDS_BY_ATEXIT:
            atexit._run_exitfuncs()


class ForkProcess(contexts.ForkProcess):
    """multiprocessing's, of which it is known whether it was forked.

    Attributes:
        forked: its pid, once it is there, also while multiprocessing does not know it yet.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.forked: list[int] = []

    @staticmethod
    def _Popen(process: Any) -> Any:
        return _ForkPopen(process)


class SpawnProcess(contexts.SpawnProcess):
    """multiprocessing's, forked from our server."""

    @staticmethod
    def _Popen(process: Any) -> Any:
        return _popen(process)


class ForkServerProcess(contexts.ForkServerProcess):
    """multiprocessing's, forked from our server."""

    @staticmethod
    def _Popen(process: Any) -> Any:
        return _popen(process)


_OURS = {"fork": ForkProcess, "spawn": SpawnProcess, "forkserver": ForkServerProcess}
_THEIRS = (
    contexts.Process,
    contexts.ForkProcess,
    contexts.SpawnProcess,
    contexts.ForkServerProcess,
)


def process_class(context: Any) -> Any:
    """The class that makes a worker as a context of multiprocessing says. One with a class of its own keeps it."""
    if context.Process in _THEIRS:
        return _OURS.get(context.get_start_method(), context.Process)
    return context.Process


def end_unknown(process: BaseProcess) -> None:
    """After a start that raised, of a process that multiprocessing says was not started: if it was forked all the same, it
    is killed, and its end waited for.
    """
    if process.ident is None and isinstance(process, ForkProcess) and process.forked:
        os.kill(process.forked[0], signal.SIGKILL)
        os.waitpid(process.forked[0], 0)


def open_pidfd(process: BaseProcess) -> int:
    """A pidfd of a started process, which the caller closes.

    Raises:
        ProcessLookupError: it has ended, and was reaped.
    """
    popen = process._popen  # type: ignore[attr-defined]
    if isinstance(popen, _Popen):
        return above_stdio(lambda: os.dup(popen.sentinel))
    return above_stdio(lambda: os.pidfd_open(popen.pid))


def exitcode_of(process: BaseProcess, pidfd: int = -1) -> int | None:
    """How a dead process ended. Waits until it is told; None if it is not in time (STATUS_SECONDS), or never will be.

    Somebody else may have waited for it: nobody is told then where SIGCHLD is ignored, or whoever called os.wait(). The
    kernel tells it all the same, from Linux 6.15 on; else it is not known.

    Args:
        process: it has ended.
        pidfd: of it, opened while it was there; -1: there is none.
    """
    popen = process._popen  # type: ignore[attr-defined]
    is_ours = isinstance(popen, _Popen)
    deadline = time.monotonic() + STATUS_SECONDS
    while process.exitcode is None and time.monotonic() < deadline:
        if not is_ours and _was_waited_for(popen) and process.exitcode is None:
            # Noted with multiprocessing too: it sends no signal to this pid any more, which may be a stranger's soon.
            told = _told_by_kernel(pidfd)
            popen.returncode = servers.UNKNOWN_EXIT if told is None else told
        else:
            time.sleep(0.002)
    found = process.exitcode
    return None if found == servers.UNKNOWN_EXIT else found


def _was_waited_for(popen: Any) -> bool:
    """Whether the status of a child is gone, and no thread of this process that has got it is about to note it."""
    try:
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return not any(map(partial(_is_polling, popen), sys._current_frames().values()))
    return False


def _is_polling(popen: Any, frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _POLL and frame.f_locals.get("self") is popen:
            return True
        frame = frame.f_back
    return False


def _told_by_kernel(pidfd: int) -> int | None:
    """How a process ended that was waited for."""
    info = bytearray(_INFO_BYTES)
    _INFO_MASK.pack_into(info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except (OSError, ValueError):  # an older kernel, or no pidfd
        return None
    if not _INFO_MASK.unpack_from(info)[0] & _INFO_EXIT:
        return None
    return os.waitstatus_to_exitcode(_EXITCODE.unpack_from(info, _INFO_EXIT_AT)[0])


def let_go(process: BaseProcess) -> None:
    """Closes what multiprocessing keeps open of a dead process, which it would until it is garbage.

    Other threads may be asking how it ended: Process.start() asks all children. They find it noted.
    """
    if process.exitcode is not None:  # else its descriptors may be asked for it yet
        process._popen.close()  # type: ignore[attr-defined]
