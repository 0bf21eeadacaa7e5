"""Operations of a group on buffers: arguments are checked here, the library does the rest (`cw_group_allreduce` and its like)."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from cableway._core import words
from cableway._core.library import lib
from cableway._group import elements, gpu
from cableway._group.calls import Calls
from cableway._group.elements import Elements
from cableway.array import Array

__all__ = ["REDUCTIONS", "checked_root", "reduction_of"]

REDUCTIONS = {
    "sum": lib.CW_SUM, "prod": lib.CW_PROD, "min": lib.CW_MIN, "max": lib.CW_MAX, "land": lib.CW_LAND, "lor": lib.CW_LOR,
    "lxor": lib.CW_LXOR, "band": lib.CW_BAND, "bor": lib.CW_BOR, "bxor": lib.CW_BXOR,
}  # fmt: skip
BCAST, SCATTER, GATHER, ALLGATHER, REDUCE, ALLREDUCE, REDUCE_SCATTER, ALLTOALL = range(2, 10)
NO_ROOT = 0xFFFF
_NOTHING = (0, 0)
_INT_MAX = 0x7FFFFFFF


def checked_root(root: Any) -> int:
    """The rank that is root.

    Raises:
        TypeError: it is no integer.
        ValueError: it is none that any group has.
    """
    try:
        number = operator.index(root)
    except TypeError:
        raise TypeError(f"root {root}: a rank is an integer") from None
    if not 0 <= number <= _INT_MAX:
        raise ValueError(f"root {number}: a rank is 0 or more")
    return number


def reduction_of(op: str) -> int:
    """The number of a reduction.

    Raises:
        ValueError: there is none of that name.
    """
    found = REDUCTIONS.get(op) if isinstance(op, str) else None
    if found is None:
        raise ValueError(
            f"op is one of {', '.join(map(repr, REDUCTIONS))}, not {op!r}; functions of one's own are for objects (allreduce)"
        )
    return int(found)


_OF_NUMBERS = ("sum", "prod", "min", "max")
# What can be computed of a dtype, by its text; of others nothing (ipc/group/reduce.c).
_COMPUTED: dict[bytes, tuple[str, ...]] = {
    **dict.fromkeys((b"|b1", b"|i1", b"<i2", b"<i4", b"<i8", b"|u1", b"<u2", b"<u4", b"<u8"), tuple(REDUCTIONS)),
    **dict.fromkeys((b"<f2", b"bfloat16", b"<f4", b"<f8"), _OF_NUMBERS),
    **dict.fromkeys((b"<c8", b"<c16"), ("sum", "prod")),
}  # fmt: skip


def check_computed(op: str, sent: Elements) -> None:
    """Raises ValueError where elements of this dtype cannot be reduced so."""
    ops = _COMPUTED.get(sent.text, ())
    if op in ops:
        return
    name = words.name(sent.dtype)
    native = sent.dtype.newbyteorder("=")
    if ops:
        why = f"of {name} there are {', '.join(map(repr, ops))}; convert the elements with .astype() for others"
    elif native != sent.dtype:
        why = f"their byte order is not this machine's; convert them with .astype({native.name!r})"
    else:
        why = (
            "it is for bools, integers, float16, bfloat16, float32, float64, complex64 and complex128; convert them with .astype(), "
            "or give the array to allreduce() or reduce(), which call a function of yours"
        )
    raise ValueError(f"op {op!r} of {name} cannot be computed: {why}")


def shape_of(what: Any) -> tuple[int, ...]:
    """The shape of what is sent."""
    shape = getattr(what, "shape", None)
    return np.shape(what) if shape is None else tuple(shape)


def check_alike(sent: Elements, got: Elements, size: int, name: str) -> None:
    """Raises ValueError unless `got` has the dtype of `sent` and so many elements."""
    if got.text != sent.text:
        raise ValueError(
            f"{name}: the dtypes of what is sent ({words.name(sent.dtype)}) and of {name} ({words.name(got.dtype)}) differ: make {name} "
            f"with the dtype that is sent, or convert what is sent with .astype({words.name(got.dtype)!r})"
        )
    if got.size != size:
        raise ValueError(
            f"{name}: {size} elements are received into an array of {got.size}: make {name} as large as what comes"
        )


def blocks_of(whole: Elements, size: int, name: str) -> int:
    """Elements of each of `size` equal blocks.

    Raises:
        ValueError: they do not divide; or there are no members: the group is closed.
    """
    if not size:
        raise ValueError("the group is closed: join it again")
    if whole.size % size:
        raise ValueError(
            f"{name}: {whole.size} elements do not divide into equal blocks for {size} members"
        )
    return whole.size // size


def run(
    calls: Calls,
    kind: int,
    sent: Elements | None,
    got: Elements | None,
    count: int,
    reduction: int = 0,
    root: int = NO_ROOT,
) -> None:
    """Calls the library. What was received is where it was asked for then."""
    known = sent or got
    assert known is not None
    root = checked_root(root)
    if sent is not None and got is not None and sent is not got and elements.overlap(sent, got):
        in_place = kind in (REDUCE, ALLREDUCE) and sent.address == got.address
        sent = sent if in_place else gpu.apart(sent)
    from_address, from_array = _NOTHING if sent is None else (sent.address, sent.array)
    to_address, to_array = _NOTHING if got is None else (got.address, got.array)
    calls.collect[
        kind, from_address, from_array, to_address, to_array, count, known.text, reduction, root
    ]
    # No call from here on where all is in its place: what a signal's handler raises comes behind the operation.
    if got is not sent and got is not None and got.told is not None:
        gpu.finish(got)  # else a Bcast, in which root does not receive


def _note(calls: Calls, *pairs: tuple[Any, Elements | None]) -> None:
    """What they have of arrays: the next time Python is not needed (`Calls.move`)."""
    for array, found in pairs:
        if isinstance(array, Array) and found is not None:
            calls.end.know(array._layout_now(), found.text, found.size)


def reduce(calls: Calls, kind: int, send: Any, out: Any, op: str, root: int, receives: bool) -> Any:
    """Reduce and Allreduce."""
    reduction, sent, got = reduction_of(op), gpu.send(send), None
    check_computed(op, sent)
    if receives:
        if out is None:
            out = gpu.like(sent, shape_of(send))
        got = gpu.receive(out)
        check_alike(sent, got, sent.size, "out")
    _note(calls, (send, sent), (out, got))
    run(calls, kind, sent, got, sent.size, reduction, root)
    return out if receives else None


def gather(
    calls: Calls, kind: int, send: Any, out: Any, root: int, receives: bool, size: int
) -> Any:
    """Gather and Allgather."""
    sent, got = gpu.send(send), None
    if receives:
        if out is None:
            out = gpu.like(sent, (size, *shape_of(send)))
        got = gpu.receive(out)
        check_alike(sent, got, sent.size * size, "out")
    _note(calls, (send, sent), (out, got))
    run(calls, kind, sent, got, sent.size, 0, root)
    return out if receives else None


def split(calls: Calls, kind: int, send: Any, out: Any, op: str | None, size: int) -> Any:
    """Reduce_scatter and Alltoall: what is sent has a block for each member."""
    reduction = 0 if op is None else reduction_of(op)
    sent = gpu.send(send)
    if op is not None:
        check_computed(op, sent)
    count = blocks_of(sent, size, "send")
    if out is None:
        shape = shape_of(send)
        block = shape[1:] if shape and shape[0] == size else (count,)
        out = gpu.like(sent, block if reduction else shape)
    got = gpu.receive(out)
    check_alike(sent, got, count if reduction else sent.size, "out")
    _note(calls, (send, sent), (out, got))
    run(calls, kind, sent, got, count, reduction)
    return out


def scatter(calls: Calls, send: Any, out: Any, root: int, rank: int, size: int) -> Any:
    """Scatter."""
    got = gpu.receive(out)
    sent = None
    if rank == root:
        sent = gpu.send(send)
        check_alike(sent, got, blocks_of(sent, size, "send"), "out")
    run(calls, SCATTER, sent, got, got.size, 0, root)
    return out


def bcast(calls: Calls, data: Any, root: int, rank: int) -> Any:
    """Bcast."""
    what = gpu.send(data, "data") if rank == root else gpu.receive(data, "data")
    _note(calls, (data, what))
    run(calls, BCAST, what, what, what.size, 0, root)
    if rank != root and what.told is not None:
        gpu.finish(what)
    return data
