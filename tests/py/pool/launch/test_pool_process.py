"""Worker processes by spawn and forkserver: as any other of multiprocessing's."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import server_tasks as tasks
from cli_support import suspend
from conftest import Script, eventually
from server_support import parents_of_workers, server, start

import cableway as cw
from cableway._pool import workers
from cableway._pool.launch import process as processes
from cableway._pool.launch import server as servers

pytestmark = pytest.mark.usefixtures("no_server")


def test_a_context_with_processes_of_its_own_keeps_them() -> None:
    class Process(multiprocessing.context.SpawnProcess):
        pass

    class Context(SpawnContext):
        pass

    Context.Process = Process
    assert processes.process_class(Context()) is Process
    fork = multiprocessing.get_context("fork")
    assert issubclass(processes.process_class(fork), fork.Process)  # of ours: the pid is noted


def test_exit_codes_are_told(context: Any) -> None:
    codes = {}
    for code in (0, 7):
        codes[code] = start(context, tasks.end, code)
    killed, lasting = start(context, tasks.nap), start(context, tasks.nap)
    for code, process in codes.items():
        process.join(30)
        assert process.exitcode == code
    assert lasting.is_alive()
    assert lasting in multiprocessing.active_children()
    killed.kill()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    lasting.terminate()
    assert multiprocessing.connection.wait([lasting.sentinel], 30)
    lasting.join()
    assert lasting.exitcode == -signal.SIGTERM
    assert lasting not in multiprocessing.active_children()


def test_descriptors_and_locks_reach_a_worker(context: Any) -> None:
    reader, writer = context.Pipe(duplex=False)
    with cw.Pool(1, tasks.keep, (writer, context.Lock()), context=context) as pool:
        assert server().pid in set(pool.map(tasks.parent_pid, range(2)))
        pool.apply(tasks.send_back, ("here",))
        assert reader.poll(30)
        assert reader.recv() == "here"


def test_too_many_descriptors_are_refused_with_the_limit() -> None:
    context = multiprocessing.get_context("spawn")
    many = [Connection(os.open(os.devnull, os.O_RDWR)) for _ in range(241)]
    with pytest.raises(ValueError, match="241 descriptors .*; the limit is 240"):
        start(context, tasks.keep, *many)
    process = start(context, tasks.keep, *many[:240])
    process.join()
    assert process.exitcode == 0
    assert parents_of_workers(context) == {server().pid}


def test_exit_handlers_of_import_run_once_and_those_of_a_worker_in_it(
    script: Script, tmp_path: Path
) -> None:
    mark = tmp_path / "ended"
    done = script(
        """
        import atexit, multiprocessing, os, sys, tempfile
        import cableway as cw
        from cableway._pool.launch import server as servers
        def ended(words):
            with open(sys.argv[1], "a") as file:
                print(words, os.getpid(), file=file)
        if __name__ != "__main__":
            folder = tempfile.TemporaryDirectory()
            atexit.register(ended, "import")
        def begin():
            atexit.register(ended, "worker")
        def shared(_):
            return folder.name
        if __name__ == "__main__":
            pool = cw.Pool(2, begin, context=multiprocessing.get_context("spawn"))
            (name,) = set(pool.map(shared, range(8)))
            pids = [child.pid for child in multiprocessing.active_children()]
            pool.close()
            pool.join()
            assert os.path.isdir(name)
            (server,) = servers._servers.values()
            print(*pids, server.pid, name)
        """,
        str(mark),
    )
    *pids, server, folder = done.stdout.split()
    expected = {f"worker {pid}" for pid in pids} | {f"import {server}"}
    assert eventually(lambda: set(mark.read_text().splitlines()) == expected)
    assert not Path(folder).exists()


def test_exit_handlers_of_a_forked_worker_run_as_with_multiprocessing(
    script: Script, tmp_path: Path
) -> None:
    """Finalizers with each Python, handlers of atexit from 3.13 on, and none of the parent's: in both pools the same."""
    text = """
        import atexit, multiprocessing, os, sys
        from multiprocessing import util
        import cableway as cw
        def ended(words):
            with open(sys.argv[1], "a") as file:
                print(words, os.getpid() == parent, file=file)
        def begin():
            atexit.register(ended, "atexit")
            util.Finalize(None, ended, ("finalizer",), exitpriority=0)
        parent = os.getpid()
        atexit.register(ended, "parent")
        context = multiprocessing.get_context("fork")
        pool = cw.Pool(2, begin, context=context) if OURS else context.Pool(2, begin)
        pool.map(abs, range(8))
        pool.close()
        pool.join()
    """
    said = []
    for ours in (True, False):
        mark = tmp_path / str(ours)
        script(text.replace("OURS", str(ours)), str(mark))
        said.append(sorted(mark.read_text().splitlines()))
    assert said[0] == said[1]
    assert said[0].count("finalizer False") == 2 and said[0].count("parent True") == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_start_as_a_package_like_multiprocessing_starts_them(
    script: Script, tmp_path: Path, method: str
) -> None:
    """As `multiprocess` is one, on which pathos stands: here the standard library's under another name."""
    own = Path(multiprocessing.__file__).parent
    shutil.copytree(own, tmp_path / "another", ignore=shutil.ignore_patterns("__pycache__"))
    for file in (tmp_path / "another").rglob("*.py"):
        file.write_text(re.sub(r"\bmultiprocessing\b", "another", file.read_text()))
    done = script(
        """
        import sys
        import another
        import cableway as cw
        def begin(queue):
            queue.put("begun")
        if __name__ == "__main__":
            context = another.get_context(sys.argv[1])
            queue = context.Queue()
            with cw.Pool(1, begin, (queue,), context=context) as pool:
                print(queue.get(timeout=60), pool.map(abs, [-1, -2]))
            with cw.Executor(1, context) as executor:
                print(list(executor.map(abs, [-3])))
        """,
        method,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.splitlines() == ["begun [1, 2]", "[3]"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_a_task_put_into_a_standard_queue_comes_though_its_worker_ends_at_once(
    method: str,
) -> None:
    context = multiprocessing.get_context(method)
    queue = context.Queue()  # its thread sends, which the end of a process waits for
    with cw.Pool(1, tasks.keep_queue, (queue,), 1, context) as pool:
        for size in (10_000, 20_000):
            pool.apply(tasks.put_into_given, (size,))
            assert len(queue.get(timeout=60)) == size
    queue.close()


def test_exit_handlers_that_hang_end_with_the_server(script: Script) -> None:
    done = script(
        """
        import atexit, multiprocessing, time
        import cableway as cw
        from cableway._pool.launch import server as servers
        if __name__ != "__main__":
            atexit.register(time.sleep, 3600)
        else:
            servers._EXIT_SECONDS = 0.2
            with cw.Pool(1, context=multiprocessing.get_context("spawn")) as pool:
                pool.apply(abs, (-1,))
            (server,) = servers._servers.values()
            print(server.pid)
        """
    )
    assert eventually(lambda: not Path(f"/proc/{int(done.stdout)}").exists())


def test_the_server_keeps_no_output_of_the_parent_open(context: Any) -> None:
    parents_of_workers(context)
    was = server()
    reader, writer = os.pipe()
    saved = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    try:
        with cw.Pool(1, context=context) as pool:
            pool.apply(tasks.say, ("to the new output",))
            pool.close()
            pool.join()
    finally:
        os.dup2(saved, 1)
        os.close(saved)
    with open(reader) as file:
        assert file.read() == "to the new output\n"  # and then its end, though the server lives
    assert server() is was


def test_a_thread_in_a_hurry_does_not_wait_for_a_server(context: Any, tmp_path: Path) -> None:
    found = []

    def parent_of_worker() -> int:
        file = tmp_path / str(len(list(tmp_path.iterdir())))
        start(context, tasks.write_parent_pid, str(file)).join()
        return int(file.read_text())

    def hurried() -> None:
        processes.hurry()
        found.append(parent_of_worker())
        server().learn(wait=True)
        found.append(parent_of_worker())

    def hurried_once() -> None:
        processes.hurry()
        found.append(parent_of_worker())

    def run(target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    with servers._lock:  # as if another thread waited
        run(hurried_once)
    run(hurried)
    assert found == [os.getpid(), os.getpid(), server().pid]


def test_how_a_worker_ended_is_not_waited_for_long_and_never_guessed(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STATUS_SECONDS", 0.1)
    process = start(context, tasks.nap)
    was = server()
    suspend(was.pid)
    try:
        process.kill()
        process.join()
        assert process.exitcode == servers.UNKNOWN_EXIT
        assert processes.exitcode_of(process) is None
        assert not process.is_alive()
    finally:
        os.kill(was.pid, signal.SIGCONT)
    assert eventually(lambda: process.exitcode == -signal.SIGKILL)  # told late
    assert processes.exitcode_of(process) == -signal.SIGKILL


def test_a_worker_whose_server_does_not_tell_fails_its_task_with_what_is_known(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STATUS_SECONDS", 0.1)
    with cw.Pool(1, context=context) as pool:
        pid = pool.apply(os.getpid)
        monkeypatch.setattr(servers, "_REPLY_SECONDS", 0.1)  # a busy machine forks no sooner
        task = pool.apply_async(tasks.nap)
        assert eventually(lambda: bool(pool._engine.dispatch.running()))
        was = server()
        suspend(was.pid)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(cw.WorkerDied, match="how it ended is not known") as caught:
            task.get(60)
        assert caught.value.exitcode is None and caught.value.pid == pid
        assert pool.apply(os.getpid) != pid
    assert was.ended(30)  # it was given up


def join_and_note(process: Any, found: list[int | None]) -> None:
    process.join()
    found.append(process.exitcode)


def test_threads_that_ask_at_once_are_told_the_same(context: Any) -> None:
    for _ in range(20):
        process = start(context, tasks.end, 3)
        found: list[int | None] = []
        threads = [threading.Thread(target=join_and_note, args=(process, found)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [3] * 4


@pytest.mark.parametrize("turn", [1, 2], ids=["before-the-end-is-seen", "before-it-is-told"])
def test_who_asks_while_another_thread_lets_go_is_told(
    context: Any, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process.start() asks all children of multiprocessing, those of a Pool that is just ending among them."""
    process = start(context, tasks.end, 7)
    assert multiprocessing.connection.wait([process.sentinel], 30)
    assert eventually(lambda: processes._readable(process._popen._line.fileno(), 0))
    readable, turns = processes._readable, 0

    def let_go_meanwhile(fd: int, seconds: float | None) -> bool:
        nonlocal turns
        turns += 1
        if turns == turn:
            assert process.exitcode == 7
            processes.let_go(process)
        return readable(fd, seconds)

    monkeypatch.setattr(processes, "_readable", let_go_meanwhile)
    assert process._popen.poll() == 7


def test_a_worker_of_a_request_that_was_given_up_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context("spawn")
    start(context, tasks.end, 0).join()
    made = []
    answer = servers.Server.answer

    def lost(self: servers.Server) -> Any:
        made.append(answer(self)[1])
        raise servers.ServerLost

    monkeypatch.setattr(servers.Server, "answer", lost)
    mark = tmp_path / "ran"
    process = start(context, Path.touch, mark)
    process.join()
    assert process.exitcode == 0  # by plain spawn
    mark.unlink()
    assert len(made) == 2
    for pidfd in made:
        assert multiprocessing.connection.wait([pidfd], 30)
        os.close(pidfd)
    assert not mark.exists()


@pytest.mark.parametrize("group", [0, 1])
def test_a_worker_that_could_not_be_started_counts_in_no_group(group: int) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.group: dict[int, int] = {}

        def assign(self, slot: int, group: int) -> None:
            self.group[slot] = group

        def reap(self, slot: int) -> list[Any]:
            del self.group[slot]
            return []

    class Process:
        ident = None

        def start(self) -> None:
            raise OSError("no process")

    dispatch: Any = Recorder()
    crew: Any = SimpleNamespace(dispatch=dispatch, _group_of={}, _done_in=lambda slot: 0, main=None)
    with pytest.raises(OSError, match="no process"):
        workers.Workers._start(crew, workers.Worker(3, group, 0, Process(), None))  # type: ignore[arg-type]
    assert dispatch.group == {}
