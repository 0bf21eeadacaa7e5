"""Functions and classes by value: cloudpickle, used if standard pickle refuses or a name would mean something else.

Functions of a notebook (_transport.main_module) may use names that the parent does not have, since an initializer may have set them. They
get these names from the worker: from its `__main__` if it was forked, else from what its initializer left. Each pickle gets its own
copy, so that an older version of a name that was sent with one function reaches no other function.

In what a worker sends back, things that `__main__` defines are named as in `__main__`, whatever standard pickle calls the worker's
own copy.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import types
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle

from cableway._transport.main_module import Main, find, of_main

__all__ = ["ByValue", "Pickler", "ReturnPickler", "dumps"]

_FORKED, _COPIED, _INITIAL = range(3)
# In a worker that did not come by fork: what its initializer reads and sets.
_initial: dict[str, Any] = {}


class _Globals(dict[str, Any]):
    """Stands for the globals of a notebook's functions."""


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, with a notebook's rule.

    Args:
        file: where to.
        table: reducers besides cloudpickle's.
        main: the notebook, if there is one.
        buffer_callback: of pickle protocol 5.
        initial: what is pickled runs once in a worker, before its tasks.
    """

    def __init__(
        self,
        file: Any,
        table: Mapping[Any, Any],
        main: Main | None,
        buffer_callback: Any = None,
        initial: bool = False,
    ) -> None:
        # cloudpickle's class has one, which a pickler reads when it is made, and then no more.
        self.dispatch_table = {**cloudpickle.Pickler.dispatch_table, **table}
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._main = main
        self._kind = _INITIAL if initial else _COPIED
        if main is not None:
            if main.forked:
                self._kind = _FORKED
            self.globals_ref[id(main.globals)] = _Globals(there=True)  # empty, it would be filled

    def reducer_override(self, thing: Any) -> Any:
        """By name what is the same in the workers."""
        if self._main is not None:
            if type(thing) is _Globals:
                return _globals, (self._kind,)
            if of_main(thing):
                if self._main.has(thing):
                    return NotImplemented
                if not isinstance(thing, (types.FunctionType, type)):
                    return _cached, (thing.__wrapped__, *thing.cache_parameters().values())
        return super().reducer_override(thing)


def _cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _globals(kind: int) -> dict[str, Any]:
    """In a worker: the globals for functions of a notebook."""
    if kind == _INITIAL:
        return _initial
    return dict(vars(sys.modules["__main__"]) if kind == _FORKED else _initial)


def dumps(value: Any, main: Main | None, table: Mapping[Any, Any], initial: bool = False) -> bytes:
    """A pickle of its own. Raises whatever pickling raises."""
    out = io.BytesIO()
    Pickler(out, table, main, initial=initial).dump(value)
    return out.getvalue()


class ByValue:
    """What goes to a worker with its start, by value. There it is the value itself."""

    def __init__(self, value: Any, main: Main | None) -> None:
        self._value = value
        self._main = main

    def __reduce__(self) -> Any:
        extra: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        return pickle.loads, (dumps(self._value, self._main, extra, initial=True),)


class ReturnPickler(pickle.Pickler):
    """A worker's, for what came to it by value: it goes back as its name."""

    def reducer_override(self, thing: Any) -> Any:
        """By name what the parent's `__main__` defines."""
        if of_main(thing) and "<" not in thing.__qualname__:
            return find, (thing.__qualname__,)
        return NotImplemented
