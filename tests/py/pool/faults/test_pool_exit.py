"""How a Pool ends with its process: by Ctrl-C, at the interpreter's exit with work under way, by SIGKILL.

Each is a script of its own; what counts is that it ends, how, and that no worker is left.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import PATH, Script
from pool_support import LONG, gone
from waiting import eventually, soon

import cableway as cw

HEAD = f"""
    import os, signal, sys, threading, time
    sys.path[:0] = {PATH!r}
    import cableway as cw
    import pool_tasks as tasks
    from pool_support import gone, workers_of
    from waiting import eventually
"""


class Ended:
    """A script that has ended; its workers may live on, so that nothing here waits for their end."""

    def __init__(self, folder: Path, text: str) -> None:
        (folder / "script.py").write_text(textwrap.dedent(HEAD) + textwrap.dedent(text))
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            command = [sys.executable, str(folder / "script.py"), str(folder)]
            process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        try:
            self.status = process.wait(LONG)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self.status = 1000
        self.printed = (folder / "out").read_text()
        self.errors = (folder / "err").read_text()

    def pids(self) -> list[int]:
        return [int(word) for word in self.printed.split()]


# ---- Ctrl-C

CALLS = {
    "apply": "pool.apply(task, (args,))",
    "map": "pool.map(task, [args] * 4, 1)",
    "starmap": "pool.starmap(task, [(args,)] * 4)",
    "get": "pool.apply_async(task, (args,)).get()",
    "get with a timeout": "pool.map_async(task, [args]).get(600)",
    "wait": "pool.apply_async(task, (args,)).wait()",
    "imap": "list(pool.imap(task, [args] * 4))",
    "imap of a generator": "list(pool.imap(task, (args for _ in range(4))))",
    "imap next": "pool.imap(task, [args] * 4).next(600)",
    "imap_unordered": "list(pool.imap_unordered(task, iter([args] * 4)))",
    "join": "(pool.apply_async(task, (args,)), pool.close(), pool.join())",
}
INTERRUPTED = """
    def main():
        mark, go = sys.argv[1] + "/mark", sys.argv[1] + "/go"
        args, task = (mark, go), tasks.mark_and_wait

        def interrupt():
            assert eventually(lambda: os.path.exists(mark), 60)
            os.kill(0 if {to_all} else os.getpid(), signal.SIGINT)

        with cw.Pool(2, context={method!r}) as pool:
            pids = workers_of(pool, 2)
            threading.Thread(target=interrupt).start()
            try:
                {call}
                print("not interrupted")
            except KeyboardInterrupt:
                print("interrupted")
            open(go, "x").close()
            if not {ended}:
                print(pool.map(tasks.square, range(5)), 1)
                pids |= workers_of(pool, 2)
        pool.join()
        print(eventually(lambda: all(gone(pid) for pid in pids)))

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("call", "method", "to_all"),
    [
        *((call, "fork", True) for call in CALLS),
        *((call, "fork", False) for call in ("map", "imap next", "join")),
        ("map", "spawn", True),
        ("imap", "forkserver", True),
    ],
)
def test_ctrl_c_ends_the_wait_and_the_pool_goes_on(
    tmp_path: Path, call: str, method: str, to_all: bool
) -> None:
    text = INTERRUPTED.format(method=method, to_all=to_all, call=CALLS[call], ended=call == "join")
    done = Ended(tmp_path, text)
    squares = [] if call == "join" else ["[0, 1, 4, 9, 16] 1"]
    assert done.printed.splitlines() == ["interrupted", *squares, "True"], done.errors
    assert (done.status, done.errors) == (0, "")


def test_ctrl_c_that_nobody_catches_ends_the_script_and_the_workers(
    tmp_path: Path, method: str
) -> None:
    done = Ended(
        tmp_path,
        f"""
        def interrupt(mark):
            assert eventually(lambda: os.path.exists(mark), 60)
            os.killpg(0, signal.SIGINT)

        if __name__ == "__main__":
            pool = cw.Pool(2, context={method!r})
            print(*workers_of(pool, 2), flush=True)
            mark = sys.argv[1] + "/mark"
            threading.Thread(target=interrupt, args=(mark,)).start()
            pool.map(tasks.leave_mark, [mark] * 4, 1)
        """,
    )
    assert done.status == -signal.SIGINT, done.errors
    assert done.errors.count("Traceback") == 1 and done.errors.endswith("KeyboardInterrupt\n")
    assert len(done.pids()) == 2 and eventually(lambda: all(gone(pid) for pid in done.pids()))


# ---- the interpreter's exit

ENDINGS = {
    "falls off the end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise LookupError('of the script')", 1),
    "os._exit": ("os._exit(4)", 4),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
}
WORK = {
    "nothing": "pass",
    "asynchronous calls": (
        "pool.map_async(task, [mark] * 8, 1); pool.apply_async(task, (mark,), callback=print)"
    ),
    "an iterator": "results = pool.imap(task, iter([mark] * 8))",
    "a generator without end": (
        "results = pool.imap(tasks.square, itertools.count()); next(results); pool.apply_async(task, (mark,))"
    ),
    "daemon threads that wait": """
def wait(call):  # which may still raise; what threads print while the interpreter ends is cut anywhere
    try:
        call()
    except cw.Error as error:
        if "the Pool was terminated" not in str(error):
            os._exit(9)
for call in (
    lambda: pool.map(task, [mark] * 4, 1),
    lambda: pool.apply(task, (mark,)),
    lambda: next(pool.imap(task, iter([mark]))),
    lambda: (pool.apply_async(task, (mark,)).get(600)),
):
    threading.Thread(target=wait, args=(call,), daemon=True).start()""",
    "a callback that runs": (
        "pool.apply_async(tasks.square, (3,), callback=lambda _: (open(mark, 'x').close(), time.sleep(600)))"
    ),
}
EXITING = """
    import itertools

    if __name__ == "__main__":
        pool = cw.Pool(2, context={method!r})
        print(*workers_of(pool, 2), flush=True)
        mark, task = sys.argv[1] + "/mark", tasks.leave_mark
        exec({work!r})
        assert {work!r} == "pass" or eventually(lambda: os.path.exists(mark), 60)
        {ending}
"""


@pytest.mark.parametrize(
    ("work", "ending", "method"),
    [
        *((work, "falls off the end", "fork") for work in WORK),
        *(("asynchronous calls", ending, "fork") for ending in [*ENDINGS][1:]),
        ("asynchronous calls", "falls off the end", "spawn"),
        ("daemon threads that wait", "falls off the end", "forkserver"),
    ],
)
def test_the_interpreters_exit_ends_a_pool_with_work_under_way(
    tmp_path: Path, work: str, ending: str, method: str
) -> None:
    statement, status = ENDINGS[ending]
    done = Ended(tmp_path, EXITING.format(method=method, work=WORK[work], ending=statement))
    assert done.status == status, done.errors
    assert len(done.pids()) == 2 and eventually(lambda: all(gone(pid) for pid in done.pids()))
    expected = "LookupError: of the script" if ending == "an exception" else ""
    assert done.errors.strip().rpartition("\n")[2] == expected


def test_the_interpreters_exit_waits_for_threads_that_are_no_daemons(tmp_path: Path) -> None:
    done = Ended(
        tmp_path,
        """
        def use(pool):
            time.sleep(0.1)  # the main thread has ended
            print(pool.map(tasks.slow_square, range(9), 1))

        pool = cw.Pool(2, context="fork")
        threading.Thread(target=use, args=(pool,)).start()
        """,
    )
    assert (done.status, done.printed) == (0, "[0, 1, 4, 9, 16, 25, 36, 49, 64]\n"), done.errors


# ---- the parent killed

KILLED = """
    import numpy as np

    def make(made):
        pool = cw.Pool(2, context={method!r})
        print(*workers_of(pool, 2), flush=True)
        made.append(pool)

    if __name__ == "__main__":
        mark = sys.argv[1] + "/mark"
        made = []
        thread = threading.Thread(target=make, args=(made,))  # PDEATHSIG would follow it
        thread.start()
        thread.join()
        (pool,) = made
        {work}
        os.kill(os.getpid(), signal.SIGKILL)
"""
UNDER_WAY = {
    "nothing": "pass",
    "tasks": (
        "pool.map_async(tasks.leave_mark, [mark] * 2, 1); eventually(lambda: os.path.exists(mark))"
    ),
    "arrays": "pool.map_async(tasks.doubled, [np.ones(1 << 20)] * 40, 1); time.sleep(0.1)",
    "a generator": "results = pool.imap(tasks.square, iter(range(10**9))); next(results)",
}


@pytest.mark.parametrize(
    ("work", "method"),
    [*((work, "fork") for work in UNDER_WAY), ("arrays", "spawn"), ("arrays", "forkserver")],
)
def test_workers_end_within_a_second_of_their_killed_parent(
    tmp_path: Path, method: str, work: str
) -> None:
    cw.names()  # a client that lives on, so that the broker does
    for attempt in range(3):
        (folder := tmp_path / str(attempt)).mkdir()
        done = Ended(folder, KILLED.format(method=method, work=UNDER_WAY[work]))
        assert done.status == -signal.SIGKILL, done.errors
        assert len(pids := done.pids()) == 2
        if soon(lambda p=pids: all(gone(pid) for pid in p)):  # type: ignore[misc]
            return
        assert eventually(lambda p=pids: all(gone(pid) for pid in p), LONG)  # type: ignore[misc]
    raise AssertionError("three times workers lived for more than a second after their parent")


def test_a_worker_that_never_lets_go_of_the_interpreter_ends_with_its_killed_parent(
    tmp_path: Path,
) -> None:
    work = "pool.apply_async(tasks.hold_the_interpreter, (mark,)); eventually(lambda: os.path.exists(mark)); time.sleep(0.1)"
    done = Ended(tmp_path, KILLED.format(method="fork", work=work))
    try:
        assert eventually(lambda: all(gone(pid) for pid in done.pids()))
    finally:
        for pid in done.pids():
            if not gone(pid):
                os.kill(pid, signal.SIGKILL)


def test_workers_of_workers_end_with_the_first_parent(tmp_path: Path, script: Script) -> None:
    done = Ended(
        tmp_path,
        """
        if __name__ == "__main__":
            executor = cw.Executor(2, "fork")
            mark = sys.argv[1] + "/mark"
            executor.submit(tasks.pool_that_leaves_marks, mark)
            eventually(lambda: os.path.exists(mark))
            print(open(mark).read(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert done.status == -signal.SIGKILL, done.errors
    assert len(done.pids()) == 3
    assert eventually(lambda: all(gone(pid) for pid in done.pids()), LONG / 2)
