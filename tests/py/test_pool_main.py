"""Where a task's function may come from: a script, a notebook's cells, a lambda, a closure, a local class."""

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

import causeway as cw

BY_NAME = "what __main__ defines goes to the workers by name alone"


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


def test_the_initializer_may_be_a_lambda(method: str, request: pytest.FixtureRequest) -> None:
    if method != "fork":
        reason = "the initializer goes by multiprocessing's pickle alone"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    values = [1, 2]
    with cw.Pool(1, lambda: tasks.remember(*values), context=method) as pool:
        assert pool.apply(tasks.remembered) == [1, 2]


# ---- scripts

SCRIPT = """
    import functools, sys
    import causeway as cw

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
        import causeway as cw

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
        import causeway as cw

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
        first = f"import causeway as cw; method = {method!r}"
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
    notebook: Callable[..., list[str]], method: str, request: pytest.FixtureRequest
) -> None:
    if method != "fork":
        request.applymarker(pytest.mark.xfail(strict=True, reason=BY_NAME))
    assert (
        notebook(
            "def square(x):\n    return x * x",
            MAKE,
            "print(pool.map(square, range(4), 1))",
            "print(list(pool.imap(square, range(4))))",
        )
        == ["[0, 1, 4, 9]"] * 2
    )


@pytest.mark.parametrize("method", ["fork"])
def test_a_notebooks_initializer_sets_what_tasks_read(notebook: Callable[..., list[str]]) -> None:
    assert notebook(
        "def start(value):\n    global shared\n    shared = value",
        "def use(x):\n    return x + shared",
        "pool = cw.Pool(2, start, (100,), context=method)",
        "print(pool.map(use, range(3), 1))",
    ) == ["[100, 101, 102]"]


@pytest.mark.xfail(strict=True, reason=BY_NAME)
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


@pytest.mark.xfail(strict=True, reason=BY_NAME)
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


@pytest.mark.xfail(strict=True, reason=BY_NAME)
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
