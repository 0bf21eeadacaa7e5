"""Forks while a thread imports: workers begin the import again, and never wait for a thread that is not there.

Runs in `make test-more`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Script

# A module that calls `within.work` in the process that has set it, in the middle of its import; no sleeps, no events.
SLOW = """
    import within
    first = object()
    within.here()
    value = 42
    def f(x): return (x, value)
"""
WITHIN = """
    import importlib.machinery, os
    work, pid, found = None, 0, []
    def here():
        global work
        if work is not None and os.getpid() == pid:
            call, work = work, None
            found.append(call())
    def during(call):
        global work, pid
        work, pid = call, os.getpid()
    class Loader:
        def __init__(self, loader, begun): self.loader, self.begun = loader, begun
        def create_module(self, spec):
            if not self.begun: here()
            return self.loader.create_module(spec)
        def exec_module(self, module):
            if self.begun: here()
            self.loader.exec_module(module)
    class Finder:
        "Calls when a module is found, and not yet in sys.modules; or when it is there, and empty."
        def __init__(self, name, begun=False): self.name, self.begun = name, begun
        def find_spec(self, name, path=None, target=None):
            if name != self.name or work is None: return
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            spec.loader = Loader(spec.loader, self.begun)
            return spec
    def in_thread(call):
        import threading
        got, failed = [], []
        def run():
            try: got.append(call())
            except BaseException as error: failed.append(error)
        thread = threading.Thread(target=run)
        thread.start(); thread.join()
        if failed: raise failed[0]
        return got[0]
"""
HEAD = """
    import faulthandler, os, signal, sys
    faulthandler.dump_traceback_later(50, exit=True)
    import within
    import multiprocessing
    multiprocessing.set_start_method("fork")
    def die(_): os.kill(os.getpid(), signal.SIGKILL)
    def fall(pool, cw):
        try: pool.apply(die, (0,))
        except cw.WorkerDied: return
        raise AssertionError
    def in_fork(call):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(50)
                call()
                code = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

Program = Callable[..., str]
begun = pytest.mark.parametrize("begun", [False, True], ids=["found", "begun"])


@pytest.fixture
def program(tmp_path: Path, script: Script) -> Program:
    """Runs a program that has the module `within` and others beside it; returns what it printed."""

    def run(text: str, **modules: str) -> str:
        for name, body in {"within": WITHIN, **modules}.items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(textwrap.dedent(body))
        done = script(textwrap.dedent(HEAD) + textwrap.dedent(text))
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    return run


def test_a_worker_forked_within_an_import_imports_that_module_itself(program: Program) -> None:
    printed = program(
        """
        import cableway as cw
        def use(x):
            import slow
            return slow.f(x)
        pool = cw.Pool(1)
        def work():
            fall(pool, cw)
            return pool.apply(use, (1,)), pool.map(use, [2, 3])
        within.during(work)
        import slow
        print(within.found, slow.f(4), pool.apply(slow.f, (5,)))
        pool.terminate(); pool.join()
        """,
        slow=SLOW,
    )
    assert printed == "[((1, 42), [(2, 42), (3, 42)])] (4, 42) (5, 42)\n"


def test_a_worker_that_resize_adds_within_an_import_imports_that_module_itself(
    program: Program,
) -> None:
    printed = program(
        """
        import cableway as cw, time
        def use(x):
            import slow
            return os.getpid(), slow.f(x)
        def pid(x):
            time.sleep(0.01)
            return os.getpid()
        pool = cw.Pool(1)
        def work():
            pool.resize(2)
            while len(set(pool.map(pid, range(8), 1))) < 2: pass
            answers = pool.map(use, range(8), 1)
            return {answer for _, answer in answers} == {(x, 42) for x in range(8)}
        within.during(work)
        import slow
        print(within.found)
        pool.terminate(); pool.join()
        """,
        slow=SLOW,
    )
    assert printed == "[True]\n"


@begun
@pytest.mark.parametrize("moment", ["package", "submodule", "pack", "pack.first", "pack.second"])
def test_a_package_begins_again_as_a_whole(program: Program, moment: str, begun: bool) -> None:
    """Its classes are of one import, wherever the fork came."""
    here = "import within; within.here()"
    printed = program(
        f"""
        import cableway as cw
        def use(x):
            import pack
            import pack.second
            assert pack.second.Second.__mro__[1] is pack.Base and isinstance(pack.one, pack.Base)
            assert pack.first is sys.modules["pack.first"]
            return pack.first.First().name, pack.second.Second().name
        pool = cw.Pool(1)
        sys.meta_path.insert(0, within.Finder({moment!r}, {begun}))
        def work():
            fall(pool, cw)
            return pool.apply(use, (1,))
        within.during(work)
        import pack
        print(within.found, use(1))
        pool.terminate(); pool.join()
        """,
        **{
            "pack/__init__": f"""
                class Base: name = None
                from pack.first import First
                one = First()
                {here if moment == "package" else ""}
                from pack import second
            """,
            "pack/first": "from pack import Base\nclass First(Base): name = 1",
            "pack/second": f"""
                from pack import Base
                {here if moment == "submodule" else ""}
                class Second(Base): name = 2
            """,
        },
    )
    assert printed == "[(1, 2)] (1, 2)\n"


@begun
@pytest.mark.parametrize(
    "moment", ["cloudpickle", "cloudpickle.cloudpickle", "cableway._transport.by_value"]
)
def test_the_first_lambda_of_a_program_goes_to_a_worker_forked_meanwhile(
    program: Program, moment: str, begun: bool
) -> None:
    """The first lambda imports cloudpickle; a worker dies and is replaced at each moment of that."""
    printed = program(
        f"""
        import cableway as cw
        pool = cw.Pool(1)
        assert "cloudpickle" not in sys.modules
        pool.apply(abs, (1,))
        sys.meta_path.insert(0, within.Finder({moment!r}, {begun}))
        within.during(lambda: within.in_thread(lambda: (fall(pool, cw), pool.apply(abs, (-1,)))[1]))
        print(pool.map(lambda x: 2 * x, range(3)), within.found)
        pool.terminate(); pool.join()
        """
    )
    assert printed == "[0, 2, 4] [1]\n"


def test_a_pool_made_while_another_thread_imports_has_workers_that_import(
    program: Program,
) -> None:
    printed = program(
        """
        import cableway as cw
        def use(x):
            import slow
            return slow.f(x)
        def work():
            with cw.Pool(2) as pool: return pool.map(use, [1, 2])
        within.during(lambda: within.in_thread(work))
        import slow
        print(within.found)
        """,
        slow=SLOW,
    )
    assert printed == "[[(1, 42), (2, 42)]]\n"


def test_a_program_within_an_import_does_not_run_again_in_a_worker(program: Program) -> None:
    """Its module is half-imported in all workers, those that come later too, and has what there was."""
    printed = program(
        """
        import cableway as cw
        import app
        """,
        app="""
            import os, signal, sys
            import __main__, cableway as cw
            print("runs", flush=True)
            def f(x): return x + 1
            with cw.Pool(1) as pool:
                print(pool.apply(f, (1,)), flush=True)
                __main__.fall(pool, cw)
                print(pool.apply(f, (2,)), flush=True)
        """,
    )
    assert printed == "runs\n2\n3\n"


def test_a_module_that_begins_again_in_a_worker_starts_no_workers_there(program: Program) -> None:
    """Else a program in an import, whose thread starts the workers, would start workers in them without end."""
    printed = program(
        """
        import cableway as cw
        import app
        """,
        app="""
            import within, cableway as cw
            def f(x): return x + 1
            with cw.Executor(1, "fork") as executor:
                try:
                    within.in_thread(lambda: executor.submit(abs, -1).result())
                    print("ends", executor.submit(f, 1).result())
                except RuntimeError as error:
                    print(error, flush=True)
        """,
    )
    refused, ended = printed.splitlines()
    assert "the module app was being imported when this process was forked" in refused
    assert ended == "ends 2"


@begun
@pytest.mark.parametrize(
    "moment",
    [
        "cableway.pool",
        "multiprocessing.pool",
        "cableway._pool.engine",
        "cableway._transport.message",
    ],
)
def test_a_fork_while_a_thread_first_uses_the_pool_can_use_it(
    program: Program, moment: str, begun: bool
) -> None:
    printed = program(
        f"""
        import cableway as cw
        sys.meta_path.insert(0, within.Finder({moment!r}, {begun}))
        def use():
            with cw.Pool(1) as pool: assert pool.map(abs, [-1]) == [1]
            queue = cw.Queue(); queue.put(1); assert queue.get() == 1
        within.during(lambda: within.in_thread(lambda: in_fork(use)))
        cw.Pool
        print(within.found)
        """
    )
    assert printed == "[0]\n"


@begun
@pytest.mark.parametrize(
    "moment", ["cableway.array", "cableway._core.library", "cableway._cableway", "cableway.name"]
)
def test_a_fork_while_a_thread_imports_the_package_can_import_it(
    program: Program, moment: str, begun: bool
) -> None:
    printed = program(
        f"""
        sys.meta_path.insert(0, within.Finder({moment!r}, {begun}))
        def use():
            import numpy as np, cableway as cw
            cw.put("child", np.arange(10)); assert cw.get("child").numpy().sum() == 45
            with cw.Pool(1) as pool: assert pool.apply(abs, (-1,)) == 1
        within.during(lambda: within.in_thread(lambda: in_fork(use)))
        import cableway as cw
        cw.Pool  # some of it is imported first here
        print(within.found, cw.get("child").numpy().sum())
        """
    )
    assert printed == "[0] 45\n"


def test_a_fork_leaves_a_users_own_import_alone(program: Program) -> None:
    """It may be the program itself: what becomes of it in a child of the user's is Python's business."""
    printed = program(
        """
        import cableway as cw
        def use():
            assert sys.modules["slow"].first and cw._core.imports._cut_short
        within.during(lambda: within.in_thread(lambda: in_fork(use)))
        import slow
        print(within.found)
        """,
        slow=SLOW,
    )
    assert printed == "[0]\n"
