"""Workers by spawn and forkserver: forked from one server, and yet what a plain spawn would give.

The processes themselves are in test_pool_process.py, the server's own reasons to refuse in test_pool_preload.py.

Runs in `make test-more`.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import server_tasks as tasks
from cli_support import suspend
from conftest import Script, eventually
from pool_support import gone
from server_support import parents_of_workers, server, start

import cableway as cw
from cableway._pool.launch import server as servers

METHODS = ["spawn", "forkserver"]
pytestmark = pytest.mark.usefixtures("no_server")


# ---- one server


def test_one_server_forks_the_workers_of_all_pools(context: Any) -> None:
    first = parents_of_workers(context)
    second = parents_of_workers(context)
    assert first == second == {server().pid}


def test_the_main_module_is_imported_once(script: Script, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    text = """
        import multiprocessing, os, sys
        import cableway as cw
        with open(sys.argv[2], "a") as file:
            print(__name__, file=file)
        class Mine:
            pass
        def make(_):
            return Mine()
        if __name__ == "__main__":
            for _ in range(2):
                with cw.Pool(3, context=multiprocessing.get_context(sys.argv[1])) as pool:
                    assert type(pool.map(make, range(6))[5]) is Mine
    """
    for method in METHODS:
        script(text, method, str(seen))
        assert seen.read_text().split() == ["__main__", "__mp_main__"]
        seen.unlink()


def test_a_main_module_that_was_run_by_name(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "program.py").write_text(
        "import multiprocessing, os, cableway as cw\n"
        "def parent(_):\n"
        "    return os.getppid()\n"
        "if __name__ == '__main__':\n"
        "    with cw.Pool(2, context=multiprocessing.get_context('spawn')) as pool:\n"
        "        print(pool.apply(parent, (1,)) not in (os.getpid(), 1))\n"
    )
    command = [sys.executable, "-m", "package.program"]
    assert _run(command, cwd=tmp_path).strip() == "True"


def test_without_a_main_module_the_server_imports_what_it_refers_to() -> None:
    command = (
        "import multiprocessing, colorsys, cableway as cw\n"
        "from calendar import Calendar\n"
        "from cableway._pool.launch import server as servers\n"
        "with cw.Pool(1, context=multiprocessing.get_context('spawn')) as pool:\n"
        "    assert pool.apply(abs, (-3,)) == 3\n"
        "(server,) = servers._servers.values()\n"
        "print(not server.refusal and {'colorsys', 'calendar'} <= server._modules)\n"
    )
    assert _run([sys.executable, "-c", command]).strip() == "True"


def _run(command: list[str], **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_what_was_set_for_multiprocessings_forkserver_counts() -> None:
    context = multiprocessing.get_context("forkserver")
    try:
        context.set_forkserver_preload(["colorsys", "no_such_module"])
        with cw.Pool(1, context=context) as pool:
            assert "colorsys" in pool.apply(tasks.modules)
        was = server()
        with cw.Pool(1, context=context) as pool:
            pool.apply(tasks.modules)
        assert server() is was  # also with a module that cannot be imported
    finally:
        context.set_forkserver_preload(["__main__"])


def test_joblibs_workers_come_from_a_server_that_does_not_run_the_script() -> None:
    joblib = pytest.importorskip("joblib")
    import cableway.joblib

    try:
        with joblib.parallel_config("cableway", n_jobs=2):
            found = joblib.Parallel()(joblib.delayed(tasks.parent_pid)(i) for i in range(8))
        assert set(found) == {servers._servers["spawn", False, True].pid}
    finally:
        cableway.joblib.shutdown()


# ---- as a plain spawn would have it now


def test_surroundings_are_those_of_now(
    context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> servers.Server:
        with cw.Pool(1, context=context) as pool:
            variable, folder, argv, path, cpus = pool.apply(tasks.surroundings, ("CW_TEST",))
        assert variable == os.environ.get("CW_TEST")
        assert folder == os.getcwd()
        assert argv == sys.argv
        assert path == sys.path
        assert cpus == os.sched_getaffinity(0)
        return server()

    seen = [check()]
    monkeypatch.setenv("CW_TEST", "1")
    seen.append(check())
    monkeypatch.chdir(tmp_path)
    seen.append(check())
    monkeypatch.setattr(sys, "argv", ["other", "words"])
    seen.append(check())
    monkeypatch.syspath_prepend(str(tmp_path))
    seen.append(check())
    all_cpus = os.sched_getaffinity(0)
    if len(all_cpus) > 1:
        os.sched_setaffinity(0, {min(all_cpus)})
        try:
            seen.append(check())
        finally:
            os.sched_setaffinity(0, all_cpus)
    assert len({id(found) for found in seen}) == len(seen)
    was = check()
    assert check() is was


def test_an_edited_module_is_imported_anew(
    context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / f"edited_{context.get_start_method()}.py"
    text = "def value():\n    return {}\ndef begin():\n    pass\n"
    module.write_text(text.format(1))
    monkeypatch.syspath_prepend(str(tmp_path))
    edited = __import__(module.stem)

    def value() -> Any:
        with cw.Pool(1, edited.begin, context=context) as pool:
            return pool.apply(edited.value)

    assert value() == 1
    was = server()
    assert value() == 1
    assert server() is was
    module.write_text(text.format(22))
    assert value() == 22


def test_the_interpreter_is_the_one_that_was_set(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nCW_TEST_WRAPPED=1 exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    before = multiprocessing.spawn.get_executable()
    try:
        context.set_executable(str(wrapper))
        with cw.Pool(1, context=context) as pool:
            assert pool.apply(tasks.surroundings, ("CW_TEST_WRAPPED",))[0] == "1"
    finally:
        multiprocessing.spawn.set_executable(before)
    with cw.Pool(1, context=context) as pool:
        assert pool.apply(tasks.surroundings, ("CW_TEST_WRAPPED",))[0] is None


# ---- deaths


def test_the_servers_death_leaves_its_workers_and_the_next_start_makes_a_new_one(
    context: Any,
) -> None:
    with cw.Pool(2, context=context) as pool:
        pids = set(pool.map(tasks.parent_pid, range(8), chunksize=1))
        was = server()
        assert pids == {was.pid}
        os.kill(was.pid, signal.SIGKILL)
        assert was.ended(30)
        assert pool.map(abs, range(-8, 0), chunksize=1) == list(range(8, 0, -1))
        with pytest.raises(cw.WorkerDied, match="is gone") as caught:
            pool.apply(tasks.end, (3,))
        assert caught.value.exitcode is None  # nobody can know it
        assert pool.map(abs, range(-8, 0), chunksize=1) == list(range(8, 0, -1))
    assert was.pid not in parents_of_workers(context)
    assert server() is not was


def test_a_stopped_server_is_given_up(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(context, tasks.end, 0).join()
    was = server()
    suspend(was.pid)
    monkeypatch.setattr(servers, "_REPLY_SECONDS", 0.1)
    process = start(context, tasks.end, 5)
    process.join(30)
    assert process.exitcode == 5
    assert was.ended(30)  # and with it the worker that it might still have made


def test_servers_that_die_again_and_again_give_way_to_plain_spawn(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: servers.Server, *args: Any) -> Any:
        self.kill()
        raise servers.ServerLost

    monkeypatch.setattr(servers.Server, "answer", lost)
    assert parents_of_workers(context) == {os.getpid()}


def test_a_server_that_dies_among_many_starts_has_its_workers_made_by_the_next(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, killed = servers.Server.answer, []

    def killed_after_three(self: servers.Server) -> tuple[int, int]:
        found = answer(self)
        killed.append(self.pid)
        if len(killed) == 3:
            os.kill(self.pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(servers.Server, "answer", killed_after_three)
    with cw.Pool(8, context=context) as pool:
        assert pool.map(abs, range(-40, 0), chunksize=1) == list(range(40, 0, -1))
        living = pool._engine._workers.living()
        assert len(living) == 8 and all(worker.process.is_alive() for worker in living)
        assert len({worker.pid for worker in living}) == 8
    assert server().pid == killed[-1] != killed[0]


def test_a_server_that_is_retired_among_many_starts_makes_those_that_it_was_asked_for(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, made = servers.Server.answer, []

    def retired_after_one(self: servers.Server) -> tuple[int, int]:
        made.append(self)
        found = answer(self)
        if len(made) == 1:
            other = threading.Thread(target=self.retire)
            other.start()
            other.join()
        return found

    monkeypatch.setattr(servers.Server, "answer", retired_after_one)
    with cw.Pool(6, context=context) as pool:
        was = made[0]
        assert made[:4] == [was] * 4 and was not in made[4:] and len(made) == 6
        assert len(pool._engine._workers.living()) == 6
        assert pool.map(abs, range(-6, 0), chunksize=1) == [6, 5, 4, 3, 2, 1]
        assert not was.ended()  # it was not killed: its workers' ends are told
    assert was.ended(30)


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_a_start_that_is_interrupted_leaves_no_worker_and_no_answer_for_the_next(
    context: Any, answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(context, tasks.end, 0).join()
    was, answer, made = server(), servers.Server.answer, []

    def interrupted(self: servers.Server) -> tuple[int, int]:
        if len(made) == answers:
            raise KeyboardInterrupt
        made.append(answer(self))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(servers.Server, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cw.Pool(6, context=context)
    assert was.ended(30)  # there were answers left
    assert not multiprocessing.active_children()
    assert parents_of_workers(context) == {server().pid}
    assert server() is not was


def test_a_server_that_dies_while_it_imports_gives_way_to_plain_spawn(script: Script) -> None:
    done = script(
        """
        import multiprocessing, os
        import cableway as cw
        from cableway._pool.launch import server as servers
        if __name__ == "__mp_main__" and not multiprocessing.current_process().daemon:
            if multiprocessing.process.current_process().name == "MainProcess":
                os._exit(3)
        if __name__ == "__main__":
            with cw.Pool(2, context=multiprocessing.get_context("spawn")) as pool:
                print(pool.map(abs, range(-4, 0)))
            (server,) = servers._servers.values()
            print(server.refusal)
        """
    )
    assert (
        done.stdout
        == "[4, 3, 2, 1]\nthe server for them died while it imported the user's modules\n"
    )


def test_nobody_outlives_the_parent(script: Script) -> None:
    done = script(
        """
        import multiprocessing, os, signal
        import cableway as cw
        from cableway._pool.launch import process as processes
        from cableway._pool.launch import server as servers
        import server_tasks as tasks
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            pool = cw.Pool(2, context=context)
            pool.map(abs, range(8))
            pids = [child.pid for child in multiprocessing.active_children()]
            deaf = processes.process_class(context)(target=tasks.nap)  # watches nobody
            deaf.start()
            (server,) = servers._servers.values()
            print(server.pid, deaf.pid, *pids, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 4
    assert eventually(lambda: all(gone(pid) for pid in pids))


def test_signals_for_all_of_a_terminal_leave_the_server(context: Any) -> None:
    parents_of_workers(context)
    was = server()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(was.pid, number)
    assert parents_of_workers(context) == {was.pid}


def test_a_replaced_server_ends_with_its_last_worker(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(context, tasks.nap)
    was = server()
    monkeypatch.setenv("CW_TEST", "2")
    start(context, tasks.end, 0).join()
    assert server() is not was
    assert not was.ended()
    process.terminate()
    process.join()
    assert process.exitcode == -signal.SIGTERM
    assert was.ended(30)


def test_a_fork_of_the_parent_has_a_server_of_its_own(script: Script) -> None:
    done = script(
        """
        import multiprocessing, os
        import cableway as cw
        from cableway._pool.launch import server as servers
        import server_tasks as tasks
        def parents():
            with cw.Pool(2, context=multiprocessing.get_context("spawn")) as pool:
                return set(pool.map(tasks.parent_pid, range(4)))
        if __name__ == "__main__":
            mine = parents()
            child = os.fork()
            if child == 0:
                others = parents()
                os._exit(not (len(others) == 1 and others.isdisjoint(mine | {os.getpid()})))
            assert os.waitpid(child, 0)[1] == 0
            assert parents() == mine
            print("good")
        """,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert done.stdout == "good\n"


def test_threads_start_pools_at_once(context: Any) -> None:
    found: list[set[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(parents_of_workers(context))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{server().pid}] * 4


def test_no_descriptor_is_left(context: Any) -> None:
    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def use() -> None:
        parents_of_workers(context)
        with contextlib.suppress(cw.WorkerDied), cw.Pool(1, context=context) as pool:
            pool.apply(tasks.end, (1,))

    use()
    before = count()
    use()
    use()
    assert eventually(lambda: count() <= before)
    servers.stop()
    assert count() < before
