"""Operations of a group on objects, which travel as pickles.

Every operation ends with a barrier: until then each member keeps what it sent. So an array of cableway in an object is still there when
the others open it, though the first of them ends its transit.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from cableway._core.handler_errors import is_handlers
from cableway._group import pickles
from cableway._group.calls import Calls, in_step
from cableway._group.operations import REDUCTIONS, checked_root

__all__ = ["exchange", "given", "operate"]

ALL = None  # in place of a rank
BCAST, SCATTER, GATHER, ALLGATHER, REDUCE, ALLREDUCE, REDUCE_SCATTER, ALLTOALL, EMPTY, NCCL = range(
    10
)
_NAMES = {SCATTER: "scatter", REDUCE_SCATTER: "reduce_scatter", ALLTOALL: "alltoall"}
_EVERYBODY = -1  # as the library has it
_A_FUNCTION = 0xFF00

_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": operator.add,
    "prod": operator.mul,
    "min": min,
    "max": max,
    "land": lambda a, b: bool(a and b),
    "lor": lambda a, b: bool(a or b),
    "lxor": lambda a, b: bool(a) != bool(b),
    "band": operator.and_,
    "bor": operator.or_,
    "bxor": operator.xor,
}


def given(root: Any) -> Any:
    """A root as it was given, for `call`, where None means all."""
    return "None" if root is None else root


def function_of(op: str | Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What makes one object of two.

    Raises:
        ValueError: there is no operation of that name.
    """
    if callable(op):
        return op
    found = _FUNCTIONS.get(op) if isinstance(op, str) else None
    if found is None:
        raise ValueError(
            f"op is a function of two objects or one of {', '.join(map(repr, _FUNCTIONS))}, not {op!r}"
        )
    return found


def number_of(op: str | Callable[[Any, Any], Any]) -> int:
    """What tells members whether they call the same operation: a name's number, one for all functions. In the label's second byte."""
    return REDUCTIONS[op] << 8 if isinstance(op, str) else _A_FUNCTION


def fold(function: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    """One object of many, from the first to the last."""
    return functools.reduce(function, parts)


def parts_of(objects: Any, size: int, name: str) -> list[Any]:
    """One object for each member.

    Raises:
        ValueError: these are more or fewer.
    """
    try:
        found = list(objects)
    except TypeError:
        raise TypeError(
            f"{name}: a list with one object for each of the {size} members is needed, and this is {type(objects).__name__}"
        ) from None
    if len(found) != size:
        raise ValueError(f"{name}: {len(found)} objects for {size} members: give one for each")
    return found


def exchange(
    calls: Calls,
    obj: Any,
    source: int | None,
    to: int | None,
    label: int,
    rank: int,
    part: bool = False,
    finish: Callable[[list[Any]], Any] | None = None,
) -> Any:
    """What each member sent, by rank; None where that is nothing, or not for us. Or what is made of that.

    Args:
        calls: of the member.
        obj: what this member sends, if it does.
        source: the rank that sends, or ALL.
        to: the rank that receives, or ALL.
        label: which operation it is.
        rank: our own.
        part: obj is a list with an object for each member, and of those of the others we get ours.
        finish: makes the result of the list, before the operation is complete; may be called again if it raises.
    """
    source, to = (root if root is None else checked_root(root) for root in (source, to))
    data = b""
    if source in (ALL, rank):
        # Each by itself, so that nobody unpickles what is another's.
        data = pickles.dumps([pickles.dumps(item) for item in obj] if part else obj)
    own = rank if rank == source and not part else -1  # bcast: root has it
    giver = _EVERYBODY if source is None else source
    receiver = _EVERYBODY if to is None else to
    found = calls.exchange[data, giver, receiver, label]
    begun: list[bool] = []
    try:
        return completed(calls, found, begun, own, rank, part, finish)
    except BaseException:
        if not begun:  # of a signal's handler
            calls.end.interrupt()
        raise


def completed(
    calls: Calls,
    found: list[bytes | None],
    begun: list[bool],
    own: int,
    rank: int,
    part: bool,
    finish: Callable[[list[Any]], Any] | None,
) -> Any:
    """What comes of bytes that were exchanged; ends with the barrier, or breaks the group. begun: has an element once that is sure."""

    def made() -> Any:
        values = _loaded(found, own, rank, part)
        return values if finish is None else finish(values)

    # The others wait at the barrier, whatever is raised here: they go on if an object cannot be unpickled, or finish() fails; a
    # signal's handler ends the operation, which is not complete.
    try:
        begun.append(True)
        result = made()
    except BaseException as error:
        try:
            handlers = is_handlers(error, made)
        except BaseException:
            calls.end.interrupt()
            raise
        if handlers:
            calls.end.interrupt()
        else:
            calls.end.barrier()
        raise
    calls.barrier[()]
    return result


def operate(
    calls: Calls,
    obj: Any,
    source: Any,
    to: Any,
    label: int,
    parts: int = 0,
    part: bool = False,
    op: str | Callable[[Any, Any], Any] | None = None,
    folds: bool = True,
) -> Any:
    """An operation on objects, as `exchange`; where all of them are small and plain, in one call.

    Args:
        parts: how many objects obj has to have; 0: it may be anything.
        op: what makes one object of those that came; None: all of them are returned.
        folds: this member gets that object; else None.
    """
    if not part:
        begun: list[bool] = []
        found = calls.objects[obj, source, to, label, op]
        if (
            found is not None
        ):  # no call from here on: it is complete, or goes on where a handler is seen
            if found[0]:
                return found[1]
            try:
                return _go_on(calls, found[1], begun, source, op, folds)
            except BaseException:
                if not begun:
                    calls.end.interrupt()
                raise
    rank = calls.end.numbers()[0]
    return in_step(
        calls.end, lambda: call(calls, obj, source, to, label, rank, parts, part, op, folds)
    )


def _go_on(
    calls: Calls,
    found: list[bytes | None],
    begun: list[bool],
    source: int | None,
    op: str | Callable[[Any, Any], Any] | None,
    folds: bool,
) -> Any:
    """The rest of an operation whose bytes were exchanged: others sent what is not small."""
    rank = calls.end.numbers()[0]
    return completed(
        calls, found, begun, rank if rank == source else -1, rank, False, _finish_of(op, folds)
    )


def _finish_of(
    op: str | Callable[[Any, Any], Any] | None, folds: bool
) -> Callable[[list[Any]], Any] | None:
    if op is None:
        return None
    function = function_of(op)
    return lambda found: fold(function, found) if folds else None


def call(
    calls: Calls,
    obj: Any,
    source: int | None,
    to: int | None,
    label: int,
    rank: int,
    parts: int,
    part: bool,
    op: str | Callable[[Any, Any], Any] | None,
    folds: bool,
) -> Any:
    """`exchange`, as operations on objects call it: with parts that are counted, and an op that is checked."""
    if parts:
        obj = parts_of(obj, parts, _NAMES[label])
    if op is None:
        return exchange(calls, obj, source, to, label, rank, part)
    finish = _finish_of(op, folds)
    return exchange(calls, obj, source, to, label | number_of(op), rank, part, finish)


def _loaded(found: list[bytes | None], own: int, rank: int, part: bool) -> list[Any]:
    values: list[Any] = list(found)
    for i, item in enumerate(found):
        if item is not None and i != own:
            values[i] = pickles.loads(pickles.loads(item)[rank]) if part else pickles.loads(item)
    return values
