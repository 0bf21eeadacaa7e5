"""Ours in the place of multiprocessing's, for CPython's own tests.

With CABLEWAY_SUITE=theirs nothing is replaced and nothing left out: what becomes of a test there is what ours is held to.
"""

from __future__ import annotations

import importlib
import multiprocessing.pool
import multiprocessing.queues
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import cableway as cw

THEIRS = os.environ.get("CABLEWAY_SUITE") == "theirs"


@contextmanager
def ours(package: ModuleType = multiprocessing) -> Iterator[None]:
    """multiprocessing and its contexts make our Pool and queues: they look these classes up at each call."""
    pool, queues = package.pool, package.queues
    if THEIRS:
        yield
        return
    with (
        mock.patch.object(pool, "Pool", cw.Pool),
        mock.patch.object(queues, "Queue", cw.Queue),
        mock.patch.object(queues, "JoinableQueue", cw.JoinableQueue),
        mock.patch.object(queues, "SimpleQueue", cw.SimpleQueue),
    ):
        yield


class Ours:
    """Mixed into a class of tests: ours are in place for all of it."""

    package: ModuleType = multiprocessing

    @classmethod
    def setUpClass(cls) -> None:
        """Puts them there."""
        place = ours(cls.package)
        place.__enter__()
        cls.addClassCleanup(place.__exit__, None, None, None)  # type: ignore[attr-defined]
        super().setUpClass()  # type: ignore[misc]


class Child:
    """What a child process calls, there too with ours in place."""

    def __init__(self, target: Callable[[], object], package: str) -> None:
        self.target = target
        self.package = package

    def __call__(self) -> None:
        """Calls it."""
        with ours(importlib.import_module(self.package)):
            self.target()


def check_child(target: Callable[[], object], package: Any = multiprocessing) -> None:
    """Runs target in a process, with ours in place; it must end well."""
    process = package.Process(target=Child(target, package.__name__))
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
        if THEIRS:
            return self.real(*words, **settings)
        text = words[-1].replace(self.old, self.new)
        assert text != words[-1], f"{self.old} is not in the script"
        return self.real(*words[:-1], text, **settings)


def hide(tests: type, names: Iterable[str]) -> type:
    """Takes those of a class's tests away that have these names."""
    for name in names:
        setattr(tests, name, None)
    return tests


def without(left_out: dict[str, str]) -> Callable[[type], type]:
    """Leaves tests of a class out, by name, that the standard library has all the same."""

    def decorate(tests: type) -> type:
        here = [name for name in left_out if getattr(tests, name, None)]
        if not THEIRS:
            hide(tests, here)
        tests.left_out = here  # type: ignore[attr-defined]
        return tests

    return decorate


def only(*names: str) -> Callable[[type], type]:
    """Hides all of a class's tests but those named."""

    def decorate(tests: type) -> type:
        others = (name for name in dir(tests) if name.startswith("test_") and name not in names)
        return hide(tests, list(others))

    return decorate
