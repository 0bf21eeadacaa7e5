"""Where a task's function may come from: a script, a notebook's cells, a lambda, a closure, a local class.

Runs in `make test-more`: it starts hundreds of interpreters.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pool_tasks as tasks
import pytest
from conftest import Script
from pool_support import LONG

import cableway as cw

# ---- lambdas and what is local


def test_lambdas_and_local_functions_work_in_every_call(pool: cw.Pool) -> None:
    base = 10

    def local(x: int, y: int = 0) -> int:
        return x + y + base

    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    class Adder:
        def __init__(self, n: int) -> None:
            self.n = n

        def __call__(self, x: int) -> int:
            return x + self.n

        def method(self, x: int) -> int:
            return x * self.n

    assert pool.map(local, range(5)) == [10, 11, 12, 13, 14]
    assert pool.starmap(local, [(1, 2), (3, 4)]) == [13, 17]
    assert list(pool.imap(local, range(3))) == [10, 11, 12]
    assert list(pool.imap(lambda x: x + base, iter(range(3)), 2)) == [10, 11, 12]
    assert sorted(pool.imap_unordered(lambda x: x - base, range(3))) == [-10, -9, -8]
    assert pool.apply(lambda x, *, y: x + y + base, (1,), {"y": 2}) == 13
    assert pool.map_async(factorial, range(5)).get(LONG) == [1, 1, 2, 6, 24]
    assert pool.map(functools.partial(local, y=5), [1]) == [16]
    assert pool.map(Adder(3), range(3)) == [3, 4, 5]
    assert pool.map(Adder(3).method, range(3)) == [0, 3, 6]
    assert pool.map(lambda f: f(2), [lambda x: x + 1, local, Adder(7)]) == [3, 12, 9]
    base = 20
    assert pool.map(local, range(2)) == [20, 21]


def test_an_instance_of_a_local_class_comes_back_as_one(pool: cw.Pool) -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    found = pool.map(lambda p: p.x + 1, [Point(1), Point(2)])
    assert found == [2, 3]


def test_the_initializer_may_be_a_lambda(method: str) -> None:
    values = [1, 2]
    with cw.Pool(1, lambda: tasks.remember(*values), context=method) as pool:
        assert pool.apply(tasks.remembered) == [1, 2]


# ---- scripts

SCRIPT = """
    import functools, sys
    import cableway as cw

    def square(x):
        return x * x

    class Point:
        def __init__(self, x):
            self.x = x

        def moved(self, by=1):
            return Point(self.x + by)

    class Trouble(Exception):
        pass

    def fail(x):
        raise Trouble("of the script", x)

    def start(value):
        global shared
        shared = value

    def use(x):
        return x + shared

    if __name__ == "__main__":
        method = sys.argv[1]
        with cw.Pool(2, start, (100,), context=method) as pool, cw.Executor(2, method) as executor:
            print(pool.map(square, range(4), 1))
            print(list(executor.map(square, range(4))))
            print(pool.map(lambda x: square(x) + 1, range(4), 1))
            print([type(p) is Point and p.x for p in pool.map(Point.moved, [Point(1), Point(2)])])
            print(pool.apply(Point(5).moved, (2,)).x)
            print(pool.map(use, range(3), 1))
            try:
                pool.apply(fail, (1,))
            except Trouble as error:
                print(*error.args)
"""
PRINTED = """\
[0, 1, 4, 9]
[0, 1, 4, 9]
[1, 2, 5, 10]
[2, 3]
7
[100, 101, 102]
of the script 1
"""


def test_what_a_script_defines_works(script: Script, method: str) -> None:
    done = script(SCRIPT, method)
    assert (done.stdout, done.stderr) == (PRINTED, "")


def test_what_a_module_run_as_a_program_defines_works(tmp_path: Path, method: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "program.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "package.program", method]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert (done.stdout, done.stderr) == (PRINTED, "")


def test_a_function_that_only_the_parent_has_hangs_nothing(script: Script, method: str) -> None:
    done = script(
        """
        import sys
        import cableway as cw

        if __name__ == "__main__":
            def late(x):
                return x * x

            with cw.Pool(2, context=sys.argv[1]) as pool:
                try:
                    print(pool.map(late, range(3)))
                except AttributeError as error:
                    print("late" in str(error))
                print(pool.map(abs, [-1]))
        """,
        method,
    )
    first, second = done.stdout.splitlines()
    assert first in ("[0, 1, 4]", "True") and second == "[1]"
    assert method != "fork" or first == "[0, 1, 4]"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_a_guard_ends_and_says_why(script: Script, method: str) -> None:
    done = script(
        """
        import sys
        import cableway as cw

        pool = cw.Pool(2, context=sys.argv[1])
        print(pool.map(abs, [-1, -2]))
        """,
        method,
        check=False,
    )
    assert done.returncode == 1 and "[1, 2]" not in done.stdout
    assert 'if __name__ == "__main__"' in done.stderr.replace("'", '"')


# ---- a notebook: __main__ has no file, and its cells run one after the other

NOTEBOOK = """
    import code, json, sys, types

    if __name__ == "__main__":
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        interpreter = code.InteractiveInterpreter(main.__dict__)
        for cell in json.loads(sys.argv[1]):
            interpreter.runsource(cell, "<cell>", "exec")
            sys.stdout.flush()
"""


@pytest.fixture
def notebook(script: Script, method: str) -> Callable[..., list[str]]:
    """Runs cells, after one that makes a pool; returns the lines that they printed."""

    def run(*cells: str) -> list[str]:
        first = f"import cableway as cw; method = {method!r}"
        last = "pool.terminate()"
        texts = [textwrap.dedent(cell) + "\n" for cell in (first, *cells, last)]
        done = script(NOTEBOOK, json.dumps(texts))
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


MAKE = "pool = cw.Pool(2, context=method)"


def test_a_notebooks_lambdas_see_its_variables(notebook: Callable[..., list[str]]) -> None:
    assert notebook(
        MAKE,
        "base = 5",
        "print(pool.map(lambda x: x + base, range(3)))",
        "base = 6",
        "print(pool.map(lambda x: x + base, range(3)))",
    ) == ["[5, 6, 7]", "[6, 7, 8]"]


def test_a_notebooks_functions_from_before_the_pool_work(
    notebook: Callable[..., list[str]],
) -> None:
    assert (
        notebook(
            "def square(x):\n    return x * x",
            MAKE,
            "print(pool.map(square, range(4), 1))",
            "print(list(pool.imap(square, range(4))))",
        )
        == ["[0, 1, 4, 9]"] * 2
    )


def test_a_notebooks_initializer_sets_what_tasks_read(notebook: Callable[..., list[str]]) -> None:
    assert notebook(
        "def start(value):\n    global shared\n    shared = value",
        "def use(x):\n    return x + shared",
        "pool = cw.Pool(2, start, (100,), context=method)",
        "print(pool.map(use, range(3), 1))",
    ) == ["[100, 101, 102]"]


def test_a_notebooks_functions_are_those_of_now(notebook: Callable[..., list[str]]) -> None:
    assert notebook(
        MAKE,
        "def square(x):\n    return x * x",
        "print(pool.map(square, range(4), 1))",
        "def square(x):\n    return -x * x",
        "print(pool.map(square, range(4), 1))",
        "def outer(x):\n    return square(x) + offset",
        "offset = 1",
        "print(pool.map(outer, range(4), 1))",
        "offset = 2",
        "def square(x):\n    return x",
        "print(pool.map(outer, range(4), 1))",
        "print(pool.apply(outer, (1,)), list(pool.imap(outer, iter([1]))), pool.starmap(outer, [(1,)]))",
    ) == ["[0, 1, 4, 9]", "[0, -1, -4, -9]", "[1, 0, -3, -8]", "[2, 3, 4, 5]", "3 [3] [3]"]


def test_a_notebooks_function_defined_anew_is_not_mistaken_for_the_old_one(
    notebook: Callable[..., list[str]],
) -> None:
    assert notebook(
        "def square(x):\n    return x * x",
        MAKE,
        "print(pool.map(square, range(4), 1))",
        "def square(x):\n    return -x",
        "print(pool.map(square, range(4), 1))",
    ) == ["[0, 1, 4, 9]", "[0, -1, -2, -3]"]


def test_a_notebooks_classes_and_exceptions_go_there_and_back(
    notebook: Callable[..., list[str]],
) -> None:
    assert notebook(
        MAKE,
        """
        class Point:
            def __init__(self, x):
                self.x = x
        """,
        "class Trouble(Exception):\n    pass",
        "def moved(p):\n    return Point(p.x + 1)",
        "print([isinstance(p, Point) and p.x for p in pool.map(moved, [Point(1), Point(2)])])",
        "def fail(x):\n    raise Trouble('of the notebook', x)",
        """
        try:
            pool.apply(fail, (1,))
        except Trouble as error:
            print(*error.args)
        """,
    ) == ["[2, 3]", "of the notebook 1"]


def test_what_a_notebooks_function_reads_is_that_of_now_however_it_is_reached(
    notebook: Callable[..., list[str]],
) -> None:
    assert notebook(
        "import functools",
        """
        def twice(function):
            @functools.wraps(function)
            def wrapper(*args):
                return 2 * function(*args)
            return wrapper
        """,
        "def helper(x):\n    return x + offset",
        "@twice\ndef decorated(x):\n    return helper(x)",
        """
        class Model:
            factor = 10
            @staticmethod
            def scaled(x):
                return helper(x)
            @classmethod
            def made(cls, x):
                return cls.factor * cls.scaled(x)
            @property
            def value(self):
                return helper(0)
            def predict(self, x):
                return self.made(x) + self.value
        """,
        "class Child(Model):\n    pass",
        "@functools.lru_cache(10)\ndef cached(n):\n    return n * offset if n < 2 else cached(n - 1) + helper(n)",
        "model = Child()",
        "def use(x):\n    return model.predict(x)",
        "calls = [decorated, Model.scaled, Child.made, model.predict, use, functools.partial(helper, 1)]",
        "offset = 1",
        MAKE,
        "print([pool.apply(f, () if i == 5 else (1,)) for i, f in enumerate(calls)], pool.apply(cached, (3,)))",
        "offset = 2",
        "print([pool.apply(f, () if i == 5 else (1,)) for i, f in enumerate(calls)], pool.apply(cached, (3,)))",
        "def helper(x):\n    return x",
        "print([pool.apply(f, () if i == 5 else (1,)) for i, f in enumerate(calls)], pool.apply(cached, (3,)))",
    ) == [
        "[4, 2, 20, 21, 21, 2] 8",
        "[6, 3, 30, 32, 32, 3] 11",
        "[2, 1, 10, 10, 10, 3] 7",  # the partial has the old one
    ]


def test_a_notebooks_numbers_are_told_apart_even_at_the_same_address(
    notebook: Callable[..., list[str]],
) -> None:
    assert notebook(
        "offset = 0.5",
        "def add(x):\n    return x + offset",
        MAKE,
        """
        found = []
        for i in range(100):
            offset = i + 0.5
            found.append(pool.apply(add, (0,)))
        print(found == [i + 0.5 for i in range(100)])
        """,
    ) == ["True"]


def test_a_notebooks_tasks_find_what_the_initializer_set_also_when_they_were_defined_anew(
    notebook: Callable[..., list[str]],
) -> None:
    assert notebook(
        "class Setting:\n    def __init__(self, value):\n        self.value = value",
        "cache = {}",
        "def start(setting):\n    global shared\n    shared = setting.value\n    cache['key'] = shared + 1",
        "pool = cw.Pool(1, start, (Setting(100),), context=method)",
        "def use(x):\n    return x + shared",
        "print(pool.map(use, range(3), 1), pool.apply(lambda: shared))",
        "def use(x):\n    return x - shared",
        "print(pool.map(use, range(3), 1))",
    ) == ["[100, 101, 102] 100", "[-100, -99, -98]"]


def test_a_notebooks_workers_that_start_later_run_no_other_text(
    notebook: Callable[..., list[str]],
) -> None:
    assert notebook(
        "import os, signal",
        "def f():\n    return 1",
        "first = f",
        "pool = cw.Pool(1, context=method)",
        "print(pool.apply(f))",
        # Whoever starts the next worker is slow to go on: cells are run meanwhile.
        "import multiprocessing.context as mp, time",
        "start = mp.ForkProcess.start",
        "mp.ForkProcess.start = lambda process: (start(process), time.sleep(1))",
        "def f():\n    return 2",
        """
        try:
            pool.apply(os.kill, (pool.apply(os.getpid), signal.SIGKILL))
        except cw.WorkerDied:
            print(pool.apply(f))
        """,
        "f = first",
        "print(pool.apply(f), pool.apply(first))",
        "del f",
        "print(pool.apply(first))",
    ) == ["1", "2", "1 1", "1"]


def test_the_executor_follows_the_same_rule_in_a_notebook(
    notebook: Callable[..., list[str]],
) -> None:
    assert notebook(
        "def square(x):\n    return x * x",
        "pool = cw.Executor(2, method, lambda: square(2))",
        "print(list(pool.map(square, range(3))), pool.submit(square, 3).result())",
        "def square(x):\n    return -x",
        "print(list(pool.map(square, range(3))), pool.submit(square, 3).result())",
        "pool.terminate = pool.shutdown",
    ) == ["[0, 1, 4] 9", "[0, -1, -2] -3"]


def test_a_program_from_the_command_line_is_as_a_notebook(method: str) -> None:
    text = textwrap.dedent(
        """
        import sys, cableway as cw
        def square(x):
            return x * x
        with cw.Pool(2, context=sys.argv[1]) as pool:
            print(pool.map(square, range(4)))
            def square(x):
                return -x
            print(pool.map(square, range(4)))
        """
    )
    command = [sys.executable, "-c", text, method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG, check=False)
    assert (done.stdout, done.stderr) == ("[0, 1, 4, 9]\n[0, -1, -2, -3]\n", "")
