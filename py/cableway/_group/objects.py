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
from cableway._group.calls import Calls
from cableway._group.operations import REDUCTIONS, checked_root

__all__ = ["call", "exchange", "given"]

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

    def made() -> Any:
        values = _loaded(found, own, rank, part)
        return values if finish is None else finish(values)

    # The others wait at the barrier, whatever is raised here: they go on if an object cannot be unpickled, or finish() fails; a
    # signal's handler ends the operation, which is not complete.
    try:
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
    function = function_of(op)

    def finish(found: list[Any]) -> Any:
        return fold(function, found) if folds else None

    return exchange(calls, obj, source, to, label | number_of(op), rank, part, finish)


def _loaded(found: list[bytes | None], own: int, rank: int, part: bool) -> list[Any]:
    values: list[Any] = list(found)
    for i, item in enumerate(found):
        if item is not None and i != own:
            values[i] = pickles.loads(pickles.loads(item)[rank]) if part else pickles.loads(item)
    return values
