"""Arguments that several tasks of one call have in common: large arrays are put into shared memory once for all of them.

A `Shared` belongs to one call whose items were all there when it began. Before the first task is sent, it searches the items and the
function's state for arrays that occur more than once: by identity, in tuples, lists, dictionaries, partials, closures, and objects
without pickling code of their own. The search runs no code of the user, so an array that such code fills anew for each pickle is
never taken for the same. The search is bounded; an array that it does not find is copied for each task, as usual.

The first task with a recurring array copies it into a block. All tasks name that block, and workers open it copy-on-write: each task
may write to its own copy, which nobody else sees. (Items that a worker takes at a time are one task and share one array, as with
`multiprocessing.Pool`.)

Invariant: nobody writes to such a block after its first task was sent. It has many receivers, none of which can know that it is the
last. So, unlike other blocks, its sender never uses it again: the sender's lease ends with the call, and the memory comes back when
the last view is gone. If a worker dies, its lease ends; if the sender dies, each worker keeps what it has opened.
"""

from __future__ import annotations

import copyreg
import functools
import types
from collections.abc import Callable, Iterable
from itertools import chain, islice
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from cableway._core import locks
from cableway._transport.blocks import THRESHOLD_BYTES, Block, BlockStore
from cableway.transfers import In

__all__ = ["Shared", "large_in", "recurring"]

_LOOK_AT = 4096  # objects at each depth that the search looks at
_DEPTH = 4  # items, their elements, those of the elements, ...
_PLAIN = frozenset({bool, bytes, complex, float, int, range, str, type(None), *np.sctypeDict.values()})  # fmt: skip


class Shared:
    """The recurring arrays of one call, each in one block once a task has it. Any thread may use it.

    Args:
        store: where blocks come from.
        arrays: what recurs; held until close(), so that no other object gets their identity.
    """

    __slots__ = ("_arrays", "_blocks", "_lock", "_store")

    def __init__(self, store: BlockStore, arrays: Iterable[np.ndarray[Any, Any]]) -> None:
        self._store = store
        self._lock = locks.RLock()  # a finaliser may come to take it on a thread that has it
        self._arrays = {id(values): values for values in arrays}
        self._blocks: dict[int, Block] = {}

    def block_of(
        self, values: np.ndarray[Any, Any], fill: Callable[[Block, np.ndarray[Any, Any]], None]
    ) -> Block | None:
        """The block of a recurring array; fill is called with it if it is new. None: values does not recur.

        Raises:
            LimitExceeded, BrokerLost: there is no memory for it.
        """
        ident = id(values)
        with self._lock:
            if self._arrays.get(ident) is not values:
                return None
            found = self._blocks.get(ident)
            if found is None or found.connection.lost:  # then nobody can open it any more
                found = self._store.take(values.nbytes)
                try:
                    fill(found, values)
                except BaseException:
                    self._store.untake([found])
                    raise
                self._blocks[ident] = found
            return found

    def close(self) -> None:
        """The call has ended: the sender's leases end. May be repeated."""
        with self._lock:
            blocks = list(self._blocks.values())
            self._blocks.clear()
            self._arrays.clear()
        for block in blocks:
            block.close()


def recurring(
    function: Any, items: tuple[Any, ...], chunksize: int, *, with_function: bool
) -> list[np.ndarray[Any, Any]]:
    """The arrays of at least THRESHOLD_BYTES that go with more than one task.

    Args:
        function: what is called with each item.
        items: all of the call.
        chunksize: items a task.
        with_function: whether the function travels with each task.

    >>> import functools, numpy as np
    >>> big = np.zeros(100_000)
    >>> len(recurring(abs, ((big, 1), (big, 2)), 1, with_function=False))
    1
    >>> len(recurring(functools.partial(np.dot, big), (1, 2), 1, with_function=True))
    1
    >>> recurring(abs, (big, big.copy()), 1, with_function=False)
    []
    """
    if len(items) <= chunksize:
        return []
    counts: dict[int, int] = {}
    found: dict[int, np.ndarray[Any, Any]] = {}
    for values in _large_arrays(list(items[:_LOOK_AT])):
        ident = id(values)
        found[ident] = values
        counts[ident] = counts.get(ident, 0) + 1
    many = {ident: values for ident, values in found.items() if counts[ident] > 1}
    if with_function:
        many.update((id(values), values) for values in large_in(function))
    return list(many.values())


def large_in(function: Any) -> list[np.ndarray[Any, Any]]:
    """The large arrays that a function takes along when it is pickled, in a partial or a closure."""
    return _large_arrays([function])


def _large_arrays(level: list[Any]) -> list[np.ndarray[Any, Any]]:
    """The large arrays in level and below, as often as they are met there."""
    found: list[np.ndarray[Any, Any]] = []
    for _ in range(_DEPTH):
        kinds = set(map(type, level)) - _PLAIN
        if np.ndarray in kinds:
            found.extend(
                values
                for values in level
                if type(values) is np.ndarray
                and values.nbytes >= THRESHOLD_BYTES
                and not values.dtype.hasobject
            )
            kinds.remove(np.ndarray)
        parts = {kind: _parts_of(kind) for kind in kinds}
        open_kinds = {kind: parts_of for kind, parts_of in parts.items() if parts_of is not None}
        if not open_kinds:
            break
        level = list(
            islice(
                chain.from_iterable(
                    open_kinds[type(value)](value) for value in level if type(value) in open_kinds
                ),
                _LOOK_AT,
            )
        )
    return found


def _itself(value: Any) -> Iterable[Any]:
    return value  # type: ignore[no-any-return]


def _of_partial(value: Any) -> Iterable[Any]:
    return (value.func, *value.args, *value.keywords.values())


def _of_method(value: Any) -> Iterable[Any]:
    return (value.__self__,)


def _of_function(value: Any) -> Iterable[Any]:
    """What cloudpickle takes along with a function that has no name in a module: a lambda, a local one."""
    if "<" not in value.__qualname__:
        return
    for cell in value.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not bound yet
            pass
    yield from value.__defaults__ or ()
    for name in _names_in(value.__code__):
        if name in value.__globals__:
            yield value.__globals__[name]


def _names_in(code: types.CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _of_in(value: Any) -> Iterable[Any]:
    return (value.array,)


def _of_object(value: Any) -> Iterable[Any]:
    return list(vars(value).values())


_CONTAINERS: dict[type, Callable[[Any], Iterable[Any]]] = {
    tuple: _itself,
    list: _itself,
    dict: dict.values,
    In: _of_in,
    functools.partial: _of_partial,
    types.MethodType: _of_method,
    types.FunctionType: _of_function,
}


def _parts_of(kind: Any) -> Callable[[Any], Iterable[Any]] | None:
    """How to get at what objects of a type hold; None: what is pickled of them is decided by code of their own."""
    known = _CONTAINERS.get(kind)
    if known is not None:
        return known
    if (
        kind.__reduce_ex__ is not object.__reduce_ex__
        or kind.__reduce__ is not object.__reduce__
        or getattr(kind, "__getstate__", None) is not getattr(object, "__getstate__", None)
        or kind.__getattribute__ not in (object.__getattribute__, tuple.__getattribute__)
        or kind in copyreg.dispatch_table
        or kind in ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    ):
        return None
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):  # a namedtuple
        return tuple.__iter__
    if kind.__dictoffset__ and not issubclass(kind, (type, types.ModuleType)):
        return _of_object
    return None
