"""Ours in the place of multiprocessing's, for CPython's own tests."""

from __future__ import annotations

import multiprocessing.pool
import multiprocessing.queues
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import cableway as cw


@contextmanager
def ours() -> Iterator[None]:
    """multiprocessing and its contexts make our Pool and queues: they look these classes up at each call."""
    pool, queues = multiprocessing.pool, multiprocessing.queues
    with (
        mock.patch.object(pool, "Pool", cw.Pool),
        mock.patch.object(queues, "Queue", cw.Queue),
        mock.patch.object(queues, "JoinableQueue", cw.JoinableQueue),
        mock.patch.object(queues, "SimpleQueue", cw.SimpleQueue),
    ):
        yield


class Ours:
    """Mixed into a class of tests: ours are in place for all of it."""

    @classmethod
    def setUpClass(cls) -> None:
        """Puts them there."""
        place = ours()
        place.__enter__()
        cls.addClassCleanup(place.__exit__, None, None, None)  # type: ignore[attr-defined]
        super().setUpClass()  # type: ignore[misc]


class Child:
    """What a child process calls, there too with ours in place."""

    def __init__(self, target: Callable[[], object]) -> None:
        self.target = target

    def __call__(self) -> None:
        """Calls it."""
        with ours():
            self.target()


def check_child(target: Callable[[], object]) -> None:
    """Runs target in a process, with ours in place; it must end well."""
    process = multiprocessing.Process(target=Child(target))
    process.start()
    process.join()
    assert process.exitcode == 0, f"the child ended with {process.exitcode}"


class Script:
    """Instead of test.support.script_helper.assert_python_ok: in the texts it is given, `new` takes the place of `old`.

    Such a text runs without PYTHONPATH, and finds CPython's tests all the same.
    """

    def __init__(self, real: Callable[..., Any], old: str, new: str) -> None:
        self.real = real
        self.old = old
        self.new = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); {new}"

    def __call__(self, *words: str, **settings: Any) -> Any:
        """Runs the text after -c."""
        text = words[-1].replace(self.old, self.new)
        assert text != words[-1], f"{self.old} is not in the script"
        return self.real(*words[:-1], text, **settings)


def without(left_out: dict[str, str]) -> Callable[[type], type]:
    """Hides those of a class's tests that are left out, by name."""

    def decorate(tests: type) -> type:
        for name in left_out:
            if hasattr(tests, name):
                setattr(tests, name, None)
        return tests

    return decorate


def only(*names: str) -> Callable[[type], type]:
    """Hides all of a class's tests but those named."""

    def decorate(tests: type) -> type:
        return without(
            {name: "" for name in dir(tests) if name.startswith("test_") and name not in names}
        )(tests)

    return decorate
