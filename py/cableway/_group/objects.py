"""Operations of a group on objects, which travel as pickles, and messages of objects and elements.

Every operation ends with a barrier: until then each member keeps what it sent. So an array of cableway in an object is still there when
the others open it, though the first of them ends its transit.
"""

from __future__ import annotations

import functools
import operator
import pickle
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from cableway._group import gpu
from cableway._group.elements import Elements
from cableway._group.operations import REDUCTIONS

__all__ = [
    "exchange",
    "fold",
    "function_of",
    "number_of",
    "receive",
    "receive_object",
    "send",
    "send_object",
]

ALL = -1
BCAST, SCATTER, GATHER, ALLGATHER, REDUCE, ALLREDUCE, REDUCE_SCATTER, ALLTOALL, EMPTY, NCCL = range(
    10
)
OBJECT = 1  # kind of a message
_INT_MAX = 0x7FFFFFFF
_A_FUNCTION = 0xFF00
_COMPLETED = 2  # in what GroupEnd.numbers() says

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
    found = list(objects)
    if len(found) != size:
        raise ValueError(f"{name}: {len(found)} objects for {size} members: give one for each")
    return found


def exchange(
    end: Any, obj: Any, source: int, to: int, label: int, rank: int, part: bool = False
) -> list[Any]:
    """What each member sent, by rank; None where that is nothing, or not for us.

    Args:
        end: the member.
        obj: what this member sends, if it does.
        source: the rank that sends, or ALL.
        to: the rank that receives, or ALL.
        label: which operation it is.
        rank: our own.
        part: obj is a list with an object for each member, and of those of the others we get ours.
    """
    for root in (source, to):
        if root != ALL and not 0 <= root <= _INT_MAX:
            raise ValueError(f"root {root}: a rank is 0 or more")
    data = b""
    if source in (ALL, rank):
        # Each by itself, so that nobody unpickles what is another's.
        data = pickle.dumps([pickle.dumps(item, 5) for item in obj] if part else obj, 5)
    before = end.numbers()[_COMPLETED]
    try:
        found: list[Any] = end.exchange(data, source, to, label)
        for i, item in enumerate(found):
            if item is not None and not (i == rank == source and not part):  # bcast: root has it
                found[i] = pickle.loads(pickle.loads(item)[rank]) if part else pickle.loads(item)
        end.barrier()
    except BaseException:
        # What a pickle, or a signal's handler, raises between the two meetings must not keep the others at the second one.
        if end.numbers()[_COMPLETED] == before + 1:
            end.barrier()
        raise
    return found


# ---- messages


def _kind_of(what: Elements) -> int:
    return 0x80000000 | zlib.crc32(what.text) >> 1


def check_rank(rank: int, name: str) -> int:
    """The rank, if it may be one."""
    number = operator.index(rank)
    if not 0 <= number <= _INT_MAX:
        raise ValueError(f"{name} {number}: a rank is 0 or more")
    return number


def check_tag(tag: int) -> int:
    """The tag, if it may be one."""
    number = operator.index(tag)
    if not 0 <= number <= _INT_MAX:
        raise ValueError(f"tag {number}: a tag is from 0 to {_INT_MAX}")
    return number


def _any(number: int | None, check: Callable[[int], int]) -> int:
    return -1 if number is None else check(number)


def send_object(end: Any, obj: Any, dest: int, tag: int) -> None:
    """Sends a pickle."""
    end.send_bytes(pickle.dumps(obj, 5), OBJECT, check_rank(dest, "dest"), check_tag(tag))


def receive_object(end: Any, source: int | None, tag: int | None) -> Any:
    """Receives one."""
    from_rank = _any(source, lambda rank: check_rank(rank, "source"))
    came_from, its_tag, kind, _, data = end.receive(from_rank, _any(tag, check_tag), OBJECT, 0, 0)
    if kind != OBJECT:
        raise ValueError(
            f"the message from rank {came_from} with tag {its_tag} has elements: receive it with Recv()"
        )
    return pickle.loads(data)


def send(end: Any, what: Any, dest: int, tag: int) -> None:
    """Sends elements."""
    sent = gpu.host_values(gpu.send(what))
    nbytes = sent.size * sent.dtype.itemsize
    end.send(sent.address, nbytes, _kind_of(sent), check_rank(dest, "dest"), check_tag(tag))


def receive(end: Any, out: Any, source: int | None, tag: int | None) -> Any:
    """Receives elements."""
    asked = gpu.receive(out)
    got = gpu.host_room(asked)
    nbytes, kind = got.size * got.dtype.itemsize, _kind_of(got)
    from_rank = _any(source, lambda rank: check_rank(rank, "source"))
    came_from, its_tag, its_kind, its_nbytes, _ = end.receive(
        from_rank, _any(tag, check_tag), kind, got.address or 1, nbytes
    )
    if (its_kind, its_nbytes) != (kind, nbytes):
        what = "is an object: receive it with recv()"
        if its_kind != OBJECT:
            what = f"has {its_nbytes} bytes of elements, and out has {nbytes} of {got.text.decode()}: both have to be the same"
        raise ValueError(
            f"the message from rank {came_from} with tag {its_tag} {what}. It waits for the next call"
        )
    if got is not asked:
        gpu.put_values(asked, got)
    return out
