"""The functions of a Pool's tasks: each is sent once, and then named by a number.

This holds for a function that standard pickle names (by module and qualified name), and for a lambda or local function that captures
only small plain values. It is put into one of the task queue's slots, and each worker unpickles it when it first meets its number. A
number is never used for another function. In a notebook, the name must mean the same to the workers (_transport.main_module); this
is checked with each call. Other callables have state of their own (partials, bound methods, closures over arrays), and are sent with
each task.

A slot is used again when no job with its function is under way. Any thread may call this; no code of the user runs under the lock.
"""

from __future__ import annotations

import itertools
import pickle
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cableway import _dispatch
from cableway._core import locks
from cableway._core.handler_errors import is_handlers
from cableway._transport.main_module import Main, names_in, of_main

if TYPE_CHECKING:
    from cableway._pool.jobs import Job

__all__ = ["Function", "Functions"]

_KINDS = (types.FunctionType, types.BuiltinFunctionType, type)
_PLAIN = frozenset(
    {
        bool,
        bytes,
        complex,
        float,
        int,
        str,
        type(None),
        type,
        types.ModuleType,
        types.BuiltinFunctionType,
    }
)
_DEPTH_MAX, _ELEMENTS_MAX = 4, 64
_PINNED_MAX = _dispatch.FUNCTION_SLOTS // 2


class Function:
    """A function in its slot."""

    __slots__ = ("described", "pinned", "users")

    def __init__(self, number: int, slot: int, nbytes: int) -> None:
        self.described = (number, slot, nbytes)  # what the dispatch wants to know
        self.users = 0
        self.pinned = False  # it keeps its slot


class Functions:
    """The slots of one Pool.

    Args:
        put: writes a pickle into a slot.
        main: the notebook's `__main__`; None where there is none.

    Attributes:
        pinned: functions found by name: they keep their slots. Never one that has a state of its own.
        kinds: the types of functions that can be there.
    """

    kinds = _KINDS

    def __init__(self, put: Callable[[int, bytes], None], main: Main | None) -> None:
        self._put = put
        self._main = main
        self._lock = locks.RLock()  # a finaliser may come to take it on a thread that has it
        self._numbers = itertools.count(1)
        self._free = list(range(_dispatch.FUNCTION_SLOTS))
        self._by_pickle: dict[bytes, Function] = {}
        self.pinned: dict[Any, Function] = {}

    def find(self, function: Callable[..., Any]) -> Function | None:
        """The function in its slot, for one more user; None when it goes along with each task."""
        if type(function) not in _KINDS or _has_state(function):
            return None
        found = self.pinned.get(function)
        if found is not None:
            return found
        main = self._main if of_main(function) else None
        pickled = b"" if main is not None and not main.has(function) else _by_name(function)
        pin = bool(pickled) and main is None
        if not pickled and takes_little(function):
            pickled = _by_value(function, self._main)
        if not pickled or len(pickled) > _dispatch.FUNCTION_MAX:
            return None
        with self._lock:
            found = self._by_pickle.get(pickled)
            if found is None:
                slot = self._take_slot()
                if slot is None:
                    return None
                self._put(slot, pickled)
                found = self._by_pickle[pickled] = Function(next(self._numbers), slot, len(pickled))
            if pin and len(self.pinned) < _PINNED_MAX:
                self.pinned[function] = found
                found.pinned = True
            found.users += 1
        return found

    def unuse(self, function: Function) -> None:
        """One user less."""
        if not function.pinned:
            with self._lock:
                function.users -= 1

    def leave(self, job: Job) -> None:
        """A job has ended, and uses its function no more. May be repeated."""
        if job.found is not None and job.found.pinned:
            job.found = None
        elif job.found is not None:
            with self._lock:
                found, job.found = job.found, None
                if found is not None and not found.pinned:
                    found.users -= 1

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        for pickled, function in self._by_pickle.items():  # the oldest first
            if function.users == 0 and not function.pinned:
                del self._by_pickle[pickled]
                return function.described[1]
        return None


def _has_state(function: Any) -> bool:
    """Whether it is a method of an object in C: what that holds may be another thing at the next call."""
    if type(function) is not types.BuiltinFunctionType:
        return False
    return not isinstance(function.__self__, (types.ModuleType, type, type(None)))


def takes_little(value: Any, depth: int = 0) -> bool:
    """Whether a value, and with functions all that they take along, is small and plain. Runs no code of the user's.

    >>> takes_little(lambda x: x + 1), takes_little(lambda x, y=[object()]: x)
    (True, False)
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind not in (str, bytes) or len(value) <= _dispatch.FUNCTION_MAX
    if depth >= _DEPTH_MAX:
        return False
    if kind in (tuple, list):
        return len(value) <= _ELEMENTS_MAX and all(takes_little(item, depth + 1) for item in value)
    if kind is dict:
        return len(value) <= _ELEMENTS_MAX and all(
            takes_little(item, depth + 1) for pair in value.items() for item in pair
        )
    if kind is not types.FunctionType:
        return False
    try:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:  # one of them is not set yet
        return False
    names = names_in(value.__code__)
    found = [value.__globals__[name] for name in names if name in value.__globals__]
    return all(
        takes_little(item, depth + 1)
        for item in (*cells, *found, value.__defaults__, value.__kwdefaults__, value.__dict__)
    )


def _by_name(function: Any) -> bytes:
    try:
        return pickle.dumps(function, protocol=5)
    except Exception as error:
        if is_handlers(error, lambda: pickle.dumps(function, protocol=5)):
            raise
        return b""


def _by_value(function: Any, main: Main | None) -> bytes:
    from cableway._transport import by_value

    try:
        return by_value.dumps(function, main, {})
    except Exception as error:
        if is_handlers(error, lambda: by_value.dumps(function, main, {})):
            raise
        return b""
