"""The server process: it imports the user's modules and then forks workers (_pool.launch.server is the parent's side).

Invariant: while it serves, it has one thread, runs no code of the user, and blocks all signals, so that only the workers handle a
Ctrl-C or another signal. It keeps none of the parent's stdin, stdout and stderr, which may be pipes whose end somebody waits for. It
does not keep the pipe of the parent's resource tracker either, since the tracker lives as long as any process has that pipe. (A
worker has it; the server has it while it imports, and to its end if it does not serve.) The server waits for nobody: a request comes
whole in one message, and answers and exit codes fit into the sockets.

A worker is a fork that goes on as a spawned process. It waits for the parent's word on its line (none comes if the parent has given
the request up), takes its stdin, stdout, stderr, resource tracker and other descriptors, and runs what multiprocessing.spawn would
run. Exit handlers that the import registered belong to the server: they run once, at its end, since they may delete what all workers
use. A worker runs the exit handlers that it registered itself. It ends without taking the interpreter down, as with fork, since that
would flush and finalise what it shares with others.

The server ends when the parent is dead (and kills its workers), or when the parent has let go of it and the last worker has ended.
"""

from __future__ import annotations

import atexit
import errno
import gc
import json
import logging
import os
import select
import signal
import socket
import struct
import sys
import weakref
from collections.abc import Callable
from multiprocessing import resource_tracker, spawn, util
from typing import Any, NoReturn

from cableway._pool.launch import preload as preloading

__all__ = ["ANSWER", "GO", "inherited", "main", "signature"]

ANSWER = struct.Struct("<q")  # the new worker's pid, or minus an errno
GO = b"g"
_EXITCODE = struct.Struct("<i")
_FDS_MAX = 253  # the kernel's limit for one message
_ORPHANED = 1

inherited: list[int] = []  # in a worker: the descriptors that were sent with it


class _Server:
    def __init__(
        self, control: socket.socket, parent: int, before_fork: Callable[[], None]
    ) -> None:
        self._before_fork = before_fork
        self._control = control
        self._parent = parent
        self._workers: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: pid and line
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._poll.register(parent, select.POLLIN)
        self._listening = True

    def serve(self) -> tuple[int, list[int]] | None:
        """Forks workers until all is over. In a worker it returns the request that it was made for."""
        while self._listening or self._workers:
            for fd, _ in self._poll.poll():
                if fd == self._parent:
                    for pidfd in self._workers:
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    return None
                if fd != self._control.fileno():
                    self._reap(fd)
                    continue
                request = self._receive()
                if request is None:
                    self._poll.unregister(self._control)
                    self._listening = False
                elif self._fork(*request):
                    return request
        return None

    def _receive(self) -> tuple[int, list[int]] | None:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 1, _FDS_MAX, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        return (data[0], fds) if data else None

    def _fork(self, standard: int, fds: list[int]) -> bool:
        """True in the worker."""
        self._before_fork()
        try:
            pid = os.fork()
        except OSError as error:
            self._answer(-(error.errno or errno.EAGAIN), [])
        else:
            if pid == 0:
                self._control.close()
                os.close(self._parent)
                for pidfd, (_, line) in self._workers.items():
                    os.close(pidfd)
                    line.close()
                return True
            pidfd = os.pidfd_open(pid)
            self._workers[pidfd] = (pid, socket.socket(fileno=os.dup(fds[1])))
            self._poll.register(pidfd, select.POLLIN)
            self._answer(pid, [pidfd])
        for fd in fds:
            os.close(fd)
        return False

    def _answer(self, pid: int, fds: list[int]) -> None:
        try:
            socket.send_fds(self._control, [ANSWER.pack(pid)], fds, socket.MSG_NOSIGNAL)
        except OSError:  # it will be seen to have gone
            pass

    def _reap(self, pidfd: int) -> None:
        """Tells how a worker ended."""
        pid, line = self._workers.pop(pidfd)
        self._poll.unregister(pidfd)
        try:
            _, status = os.waitpid(pid, 0)
            told = _EXITCODE.pack(os.waitstatus_to_exitcode(status))
            line.send(told, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:  # the user's modules ignore SIGCHLD, or nobody asks any more
            pass
        line.close()
        os.close(pidfd)


def main(report: int, data: dict[str, Any]) -> NoReturn:
    """What the server process runs, and then each of its workers.

    Args:
        report: a file to tell in what was imported.
        data: of _pool.launch.server.
    """
    resource_tracker._resource_tracker._fd = data["tracker"]  # type: ignore[attr-defined]
    control = socket.socket(fileno=data["control"])
    os.set_inheritable(control.fileno(), False)
    os.set_inheritable(data["parent"], False)
    os.set_inheritable(report, False)
    os.environ.update(data["variables"])
    preload = preloading.Preload()
    refusal = preload.run(data["preparation"], data["modules"])
    if not refusal:
        _let_go_of_tracker()
    _flush()
    told = {"refusal": refusal, "files": _user_files(), "modules": sorted(sys.modules)}
    os.ftruncate(report, 0)
    os.pwrite(report, json.dumps(told).encode(), 0)
    os.close(report)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    on_child = signal.getsignal(signal.SIGCHLD)
    if on_child is signal.SIG_IGN:  # the parent ignores it: nobody would be told how a worker ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(nothing, fd)
    if nothing > 2:
        os.close(nothing)
    try:
        control.send(GO, socket.MSG_NOSIGNAL)
    except OSError:
        os._exit(_ORPHANED)
    exit_ = _Exit()
    gc.collect()
    gc.freeze()  # a worker that collects garbage does not touch, and so copy, what all share
    server = _Server(control, data["parent"], preload.renew_randomness)
    request = None if refusal else server.serve()
    if request is None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, data["exit_seconds"])
        exit_.leave(0)
    if on_child is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    preload.restore_randomness()
    code = 1
    try:
        code = _begin(*request)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    exit_.leave(code)


def _let_go_of_tracker() -> None:
    tracker: Any = resource_tracker._resource_tracker
    os.close(tracker._fd)
    tracker._fd = None


def _begin(standard: int, fds: list[int]) -> int:
    """In a new worker: becomes what multiprocessing's spawned process is."""
    data, line, tracker, *fds = fds
    for fd in range(3):
        if standard & 1 << fd:
            given = fds.pop(0)
            os.dup2(given, fd)
            os.close(given)
        else:
            os.close(fd)
    resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
    inherited[:] = fds
    if os.read(line, 1) != GO:
        os._exit(_ORPHANED)
    return spawn._main(data, line)


class _Exit:
    """Ends the process. Made when all is imported: exit handlers run in turn, the last one first, and a worker
    stops at what was registered before. (To take those away in each new worker would touch many pages.)
    """

    def __init__(self) -> None:
        self._server = os.getpid()
        self._code = 0
        self._imported = list(weakref.finalize._registry)  # type: ignore[attr-defined]
        atexit.register(self._stop)

    def leave(self, code: int) -> NoReturn:
        """Runs the exit handlers that are this process's own, then ends."""
        self._code = code
        try:
            atexit._run_exitfuncs()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        _flush()
        os._exit(code)

    def _stop(self) -> None:
        if os.getpid() == self._server:
            return
        for finalizer in self._imported:
            finalizer.atexit = False
        # From Python 3.13 on multiprocessing's end is such a handler, registered when it was imported.
        util._exit_function()  # type: ignore[attr-defined]
        weakref.finalize._exitfunc()  # type: ignore[attr-defined]
        logging.shutdown()
        _flush()
        os._exit(self._code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass


# ---- the source files of the user's


def signature(path: str) -> list[int]:
    """What differs when a file was edited; nothing if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_size, found.st_ino]


def _user_files() -> dict[str, list[int]]:
    """The user's files that are imported."""
    found = {}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and preloading.is_users(path):
            found[path] = signature(path)
    return found
