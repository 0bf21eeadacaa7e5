"""The server from which worker processes are forked, with spawn and forkserver: the parent's side.

A worker by plain spawn is a new interpreter that imports everything that the user's script imports. The server does this once: it is
started by plain spawn, imports what every worker would import before its first task (_pool.launch.preload), and then forks workers on
request (_pool.launch.forker).

Owner: the parent process. A server belongs to one parent (`_servers`; a fork of the parent has none) and to one kind: the start method,
with or without the main module, with or without variables of its own (joblib's). Requests to one server go one after the other. A
caller that starts many workers sends the next requests before it has the answer to the first (_pool.launch.process.pipelined).

A worker gets and inherits what a plain spawn would give it now. So the next start makes a new server if one of these has changed since
the server's start: the preparation data of multiprocessing (sys.path, sys.argv, folders, main module), the environment, the working
folder, the interpreter (set_executable) and its flags, the CPUs, or the list of set_forkserver_preload. It also makes a new one if a
source file of the user that the server has imported was edited, as in a notebook (files of the standard library and of installed
packages do not count), or if the server lacks a module that the worker needs to start. stdin, stdout and stderr are passed with each
request. Signal mask, umask, nice value and resource limits are those of the server's start.

A caller that makes a Pool waits for the server. The start of a worker's successor does not wait (_pool.launch.process.hurry): while no
suitable server is ready the successor is made by plain spawn, and the next one by the server that was started meanwhile.

No server serves if the import left something that a fork must not share (_pool.launch.preload). Then workers are made by plain spawn,
and multiprocessing's logger says why, once. This holds until one of the things above changes.

Deaths
    the parent     the server sees its pidfd, kills its workers and ends
    the server     workers go on, and watch the parent themselves; how they end is then unknown (UNKNOWN_EXIT). A request under
                   way raises ServerLost: the caller asks a new server, then uses plain spawn. A worker that was forked for such
                   a request ends before it does anything, since it waits for the parent's word on its line
    a worker       the server reaps it and reports its exit code on its line
A server that was replaced ends with its last worker.

The resource tracker of multiprocessing ends when no process has its pipe any more, and whoever ends it waits for that; later Pythons do
so at the interpreter's exit. So a server that serves does not have the pipe, and each worker gets it with its request. A server that
still imports when the interpreter exits is killed.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import select
import signal
import socket
import sys
import threading
import types
from collections.abc import Iterable
from multiprocessing import forkserver, resource_tracker, spawn, util
from typing import Any

from cableway._core import locks
from cableway._core.descriptors import above_stdio
from cableway._pool.launch import forker

__all__ = ["UNKNOWN_EXIT", "Server", "ServerLost", "find", "stop"]

UNKNOWN_EXIT = 256  # no process ends with it: the exit code is not known, since the server is gone
_REPLY_SECONDS = 5.0  # a server that does not fork in this time (stopped?) is given up
_EXIT_SECONDS = 10.0  # for the exit handlers in the server: enough on a busy machine; some hang
_MOMENT_SECONDS = 0.05
_INTERACTIVE = ("IPython", "ipykernel")
_COMMAND = (
    "import pickle, sys; data = pickle.load(open({0}, 'rb', closefd=False)); sys.path = data['preparation']['sys_path']; "
    "from cableway._pool.launch.forker import main; main({0}, data)"
)


class ServerLost(Exception):
    """The server has died, or does not answer: no worker came of the request, and none will."""


class Server:
    """One server process. Once it has told what it is (`learn`), it forks workers, or `refusal` says why it does not.

    Args:
        state: what it shall have of this process, of `_state`.
        modules: to be imported besides the main module.
    """

    def __init__(self, state: dict[str, Any], modules: set[str]) -> None:
        self.state = state
        self.refusal = ""
        self._learned = False
        self._files: dict[str, list[int]] = {}
        self._modules = set(modules)  # also those that cannot be imported
        self.lock = locks.RLock()
        self._retired = False
        self._unanswered = 0
        self._report = above_stdio(lambda: os.memfd_create("cableway-pool-server", os.MFD_CLOEXEC))
        self._control, theirs = above_stdio(
            lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        self.pidfd = -1
        parent = above_stdio(lambda: os.pidfd_open(os.getpid()))
        try:
            tracker = _tracker()
            data = {
                "preparation": state["preparation"],
                "modules": sorted(modules),
                "variables": state["variables"],
                "control": theirs.fileno(),
                "parent": parent,
                "tracker": tracker,
                "exit_seconds": _EXIT_SECONDS,
            }
            os.write(self._report, pickle.dumps(data))
            os.lseek(self._report, 0, os.SEEK_SET)
            executable: Any = spawn.get_executable()
            self.pid = util.spawnv_passfds(
                executable,
                [executable, *state["flags"], "-c", _COMMAND.format(self._report)],
                [theirs.fileno(), parent, self._report, tracker],
            )
            self.pidfd = above_stdio(lambda: os.pidfd_open(self.pid))
        except BaseException:
            self.kill()
            raise
        finally:
            theirs.close()
            os.close(parent)

    def learn(self, wait: bool) -> bool:
        """Whether it has imported all, which may take long; wait: for as long as it takes."""
        if self._learned:
            return True
        try:
            if not self._await_answer(None if wait else 0):
                return False
        except BaseException:  # Ctrl-C: who waits has it
            self.kill()
            raise
        self._learned = True
        try:
            told = self._control.recv(1, socket.MSG_DONTWAIT)
        except OSError:  # its end came without a word
            told = b""
        if told:
            report = json.loads(os.pread(self._report, os.fstat(self._report).st_size, 0))
            self.refusal = report["refusal"]
            self._files = report["files"]
            self._modules.update(report["modules"])
        else:
            self.refusal = "the server for them died while it imported the user's modules"
        os.close(self._report)
        if self.refusal:
            util.info(f"workers come by plain spawn: {self.refusal}")
            self.retire()
            self.reap(1)
        return True

    def serves(self, state: dict[str, Any], modules: set[str]) -> bool:
        """Whether it lives, and a worker that it forks is what a plain spawn would give now. The same for its refusal."""
        ended = self._retired or (self._learned and self.ended())
        lives = bool(self.refusal) or not ended
        return (
            lives
            and state == self.state
            and modules <= self._modules
            and all(forker.signature(path) == was for path, was in self._files.items())
        )

    def end_turn(self) -> None:
        """The last thing that who holds `lock` does. An answer that is left would be taken for the next one's: then the
        server is killed.
        """
        if self._unanswered:
            self.kill()

    def ask(self, data: int, line: int, fds: Iterable[int]) -> None:
        """Asks for a new worker, and does not wait. It runs when it is told so on its line. Who holds `lock` from here on
        until the answer, and ends with `end_turn`, may ask for more meanwhile.

        Args:
            data: a file with what multiprocessing.spawn reads.
            line: the worker's end of a socket to the parent.
            fds: what else it shall have, by index.

        Raises:
            ServerLost: ask another one.
        """
        standard = [fd for fd in range(3) if _is_open(fd)]
        request = bytes([sum(1 << fd for fd in standard)])
        everything = [data, line, _tracker(), *standard, *fds]
        if self._retired:
            raise ServerLost
        self._unanswered += 1
        try:
            socket.send_fds(self._control, [request], everything, socket.MSG_NOSIGNAL)
        except OSError:
            self.kill()
            raise ServerLost from None
        except BaseException:
            self.kill()
            raise

    def answer(self) -> tuple[int, int]:
        """What came of the request that was asked first: the worker's pid and a pidfd, which the caller closes. Also of
        a server that another thread has retired since: what it was asked before that it does.

        Raises:
            ServerLost: ask another one.
            OSError: no process could be made.
        """
        if self._control.fileno() < 0:
            raise ServerLost
        try:
            if not self._await_answer(_REPLY_SECONDS):
                raise ServerLost
            answer, got, _, _ = socket.recv_fds(
                self._control,
                forker.ANSWER.size,
                1,
                socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT,
            )
            if len(answer) != forker.ANSWER.size:
                raise ServerLost
        except OSError:
            self.kill()
            raise ServerLost from None
        except BaseException:
            self.kill()
            raise
        self._unanswered -= 1
        (pid,) = forker.ANSWER.unpack(answer)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        if not got:  # no descriptor is free here
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return pid, got[0]

    def _await_answer(self, seconds: float | None) -> bool:
        """Whether it has answered, or died."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def ended(self, seconds: float = 0) -> bool:
        """Whether its process has ended; waits so long for it."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def retire(self) -> None:
        """It gets no more requests, and ends with its last worker. Waits for nobody: who has its turn may wait for
        another server, and so for who retires this one.
        """
        self._retired = True
        self.close_retired()

    def close_retired(self) -> None:
        """Lets go of it if it was retired while somebody had its turn, which has ended."""
        if self._retired and self.lock.acquire(blocking=False):
            try:
                self._control.close()
            finally:
                self.lock.release()

    def kill(self) -> None:
        """Ends it now. May be repeated."""
        self.retire()
        if self.pidfd >= 0:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def forget(self) -> None:
        """In a fork of the parent: closes what is the parent's. Takes no lock, which may be another thread's."""
        self._control.close()

    def reap(self, seconds: float = 0) -> bool:
        """Lets go of its process if it has ended; waits so long for that."""
        if self.pidfd < 0:
            return True
        if not self.ended(seconds):
            return False
        try:
            os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody has waited for all children
            pass
        return True

    def __del__(self) -> None:
        if not self._learned:
            os.close(self._report)
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


_lock = threading.Lock()
_servers: dict[tuple[str, bool, bool], Server] = {}
_replaced: list[Server] = []


def find(
    method: str,
    preparation: dict[str, Any],
    start: Iterable[Any],
    wait: bool = True,
    also: Iterable[str] = (),
    environment: dict[str, str] | None = None,
) -> Server | None:
    """The server for a new worker, started if need be; None where it must come by plain spawn.

    Args:
        method: "spawn" or "forkserver".
        preparation: what multiprocessing tells the worker.
        start: functions and classes that the worker needs before its first task.
        wait: until a server has imported all; else a worker that is needed meanwhile comes by plain spawn.
        also: modules that a server imports as well if it is started now. One that lacks them serves.
        environment: variables that it has besides this process's, while it imports.
    """
    state = {**_state(method, preparation), "variables": environment or {}}
    modules = _modules(method, preparation, start)
    kind = (method, state["main"], bool(environment))
    if not _lock.acquire(timeout=-1 if wait else _MOMENT_SECONDS):  # another thread waits
        return None
    try:
        _replaced[:] = [server for server in _replaced if not server.reap()]
        server = _servers.get(kind)
        if server is not None and not server.serves(state, modules):
            server.retire()
            _replaced.append(_servers.pop(kind))
            server = None
        if server is None:
            server = _servers[kind] = Server(state, modules.union(also))
        if not server.learn(wait) or server.refusal:
            return None
        return server
    finally:
        _lock.release()


def stop() -> None:
    """Ends all servers of this process, once their workers have ended, and waits for it (some seconds at most)."""
    with _lock:
        _replaced.extend(_servers.values())
        _servers.clear()
        for server in _replaced:
            _end(server)
        _replaced.clear()


def _end(server: Server) -> None:
    server.retire()
    if not server.reap(5):
        server.kill()
        server.reap(5)


def _state(method: str, preparation: dict[str, Any]) -> dict[str, Any]:
    """What a server has of this process, and what makes it useless when it differs."""
    mine = {"name", "authkey", "log_to_stderr", "log_level"}  # told to each worker
    preload = list(forkserver._forkserver._preload_modules) if method == "forkserver" else []  # type: ignore[attr-defined]
    told = {name: value for name, value in preparation.items() if name not in mine}
    main = any(name.startswith("init_main") for name in told)
    if method == "forkserver" and "__main__" not in preload:
        told.pop("init_main_from_path", None)  # each worker imports it then
        told.pop("init_main_from_name", None)
    return {
        "preparation": told,
        "main": main,
        "preload": preload,
        "environment": os.environ._data.copy(),  # type: ignore[attr-defined]  # dict(os.environ) takes 0.1 ms
        "executable": spawn.get_executable(),
        "flags": util._args_from_interpreter_flags(),  # type: ignore[attr-defined]
        "cpus": os.sched_getaffinity(0),
    }


def _modules(method: str, preparation: dict[str, Any], start: Iterable[Any]) -> set[str]:
    """What a worker imports besides the main module: of what it needs to start, and what set_forkserver_preload says.

    Where it does not import the main module (a notebook, python -c, joblib), what that one refers to is taken: tasks
    of functions defined there will.
    """
    found: set[Any] = {getattr(item, "__module__", None) for item in start}
    if not any(name.startswith("init_main") for name in preparation):
        for name, value in list(vars(sys.modules["__main__"]).items()):
            if name.startswith("_"):
                continue
            if isinstance(value, types.ModuleType):
                found.add(value.__name__)
            elif isinstance(value, (type, types.FunctionType)):
                found.add(value.__module__)
    names = {
        name
        for name in found
        if isinstance(name, str)
        and name in sys.modules
        and name.partition(".")[0] not in _INTERACTIVE
    }
    if method == "forkserver":
        names.update(forkserver._forkserver._preload_modules)  # type: ignore[attr-defined]
    return names - {"__main__", "__mp_main__"}


def _tracker() -> int:
    found = resource_tracker.getfd()
    assert found is not None
    return found


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for server in [*_servers.values(), *_replaced]:
        server.forget()
    _servers.clear()
    _replaced.clear()


def _kill_importing() -> None:
    """At the interpreter's exit. Takes no lock, which a thread may hold that waits for the import."""
    for server in [*_servers.values(), *_replaced]:
        if not server._learned:
            server.kill()


os.register_at_fork(after_in_child=_after_fork_in_child)
util.Finalize(None, _kill_importing, exitpriority=0)
