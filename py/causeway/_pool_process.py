"""Worker processes: multiprocessing's Process, forked from our server with spawn and forkserver.

A `SpawnProcess` or `ForkServerProcess` of this module is multiprocessing's in all that it shows (attributes,
active_children, join, exit codes) and in what the worker sees; only its making differs (_pool_server), and where no
server serves it is made by plain spawn. What the worker sees otherwise than with a plain spawn: os.getppid() is the server,
and what the main module does when it is imported was done once, before.

Owner: the parent process holds a pidfd and its end of the worker's *line*, a socket whose other end the worker and
the server hold. The parent says on it that the worker may run, the server how it ended; the worker sees there
that the parent has gone (multiprocessing.parent_process()).

Deaths: the parent's closes the line and its pidfd, which server and worker watch. The server's leaves the line
without an exit code: then it is UNKNOWN_EXIT. All signals go through the pidfd, so that none reaches a stranger.
"""

from __future__ import annotations

import io
import os
import select
import signal
import socket
import struct
import threading
from multiprocessing import context as contexts
from multiprocessing import popen_fork, popen_spawn_posix, reduction, spawn, util
from multiprocessing.process import BaseProcess
from typing import Any

from causeway import _pool_forker, _pool_server

__all__ = [
    "ForkServerProcess", "SpawnProcess", "exitcode_of", "hurry", "open_pidfd", "process_class",
]  # fmt: skip

_STATUS_SECONDS = 2.0  # from a worker's end until the server has told how
_FDS_MAX = 240  # of one worker; the kernel takes 253 in one message
_EXITCODE = struct.Struct("<i")


class _DupFd:
    """A descriptor on its way to a worker."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """In the worker: the descriptor."""
        return _pool_forker.inherited[self._index]


class _Popen(popen_fork.Popen):
    method = "spawn"
    DupFd = _DupFd

    def __init__(self, process: BaseProcess, server: _pool_server.Server, told: Any) -> None:
        self._fds: list[int] = []
        self._server = server
        self._told = told
        super().__init__(process)

    def duplicate_for_child(self, fd: int) -> int:
        self._fds.append(fd)
        return len(self._fds) - 1

    def _launch(self, process: BaseProcess) -> None:
        buffer = io.BytesIO()
        contexts.set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            reduction.dump(self._told, buffer)
            reduction.dump(process, buffer)
        finally:
            contexts.set_spawning_popen(None)
        del self._told
        if len(self._fds) > _FDS_MAX:
            raise ValueError(
                f"a worker was to be given {len(self._fds)} descriptors (those in its initargs, one of the Pool's); the limit is {_FDS_MAX}"
            )
        data = os.memfd_create("causeway-pool-start", os.MFD_CLOEXEC)
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with open(data, "wb", closefd=False) as file:
                file.write(buffer.getbuffer())
            os.lseek(data, 0, os.SEEK_SET)
            self.pid, self.sentinel = self._server.fork(data, theirs.fileno(), self._fds)
        except BaseException:
            self._line.close()
            raise
        finally:
            os.close(data)
            theirs.close()
        self.finalizer = util.Finalize(self, _close, (self._line, self.sentinel))
        try:
            self._line.send(_pool_forker.GO, socket.MSG_NOSIGNAL)
        except OSError:  # dead already
            pass

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None and _readable(self.sentinel, 0 if flag == os.WNOHANG else None):
            self.returncode = self._ending(0 if flag == os.WNOHANG else _STATUS_SECONDS)
        return self.returncode

    def _ending(self, seconds: float) -> int | None:
        """How a dead worker ended; None: it is not told yet, and the time is not over."""
        server_ended = self._server.ended()  # what it has told is there before it is dead
        if not _readable(self._line.fileno(), 0 if server_ended else seconds):
            waited = server_ended or seconds > 0
            return _pool_server.UNKNOWN_EXIT if waited else None
        try:
            told = self._line.recv(_EXITCODE.size)
        except (
            ConnectionResetError
        ):  # it died before it had read GO; what was sent to us comes next
            told = self._line.recv(_EXITCODE.size)
        if len(told) != _EXITCODE.size:
            return _pool_server.UNKNOWN_EXIT
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


def _popen(process: Any) -> popen_fork.Popen:
    for _ in range(2):  # a server may die between two requests; two in a row have a reason
        told = spawn.get_preparation_data(process._name)
        start = [type(process), process._target, *process._args]
        wait = not getattr(_thread, "hurries", False)
        server = _pool_server.find(process._start_method, told, start, wait)
        if server is None:
            break
        try:
            return _Popen(process, server, told)
        except _pool_server.ServerLost:
            continue
    return popen_spawn_posix.Popen(process)


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


_OURS = {"spawn": SpawnProcess, "forkserver": ForkServerProcess}
_THEIRS = (contexts.Process, contexts.SpawnProcess, contexts.ForkServerProcess)


def process_class(context: Any) -> Any:
    """The class that makes a worker as a context of multiprocessing says. One with a class of its own keeps it."""
    if context.Process in _THEIRS:
        return _OURS.get(context.get_start_method(), context.Process)
    return context.Process


def open_pidfd(process: BaseProcess) -> int:
    """A pidfd of a started process, which the caller closes.

    Raises:
        ProcessLookupError: it has ended, and was reaped.
    """
    popen = process._popen  # type: ignore[attr-defined]
    if isinstance(popen, _Popen):
        return os.dup(popen.sentinel)
    return os.pidfd_open(popen.pid)


def exitcode_of(process: BaseProcess) -> int | None:
    """How a dead process ended, None if that cannot be known."""
    found = process.exitcode
    return None if found == _pool_server.UNKNOWN_EXIT else found
