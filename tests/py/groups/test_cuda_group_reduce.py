"""Reductions that GPUs compute: the bits of those in host memory, wherever the elements lie, and who dies meanwhile.

Runs in `make test-more`: millions of elements are compared bit by bit.
"""

from __future__ import annotations

import itertools
from typing import Any

import cuda_support
import ml_dtypes
import numpy as np
import pytest
from group_operations import host, same
from group_support import outcomes

import cableway as cw

cuda_support.require()
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
gpus = cuda_support.for_module(devices=2)

NUMBERS = ("sum", "prod", "min", "max")
BITS = ("band", "bor", "bxor")
LOGICAL = ("land", "lor", "lxor")
OPERATIONS = {
    "?": (*NUMBERS, *LOGICAL, *BITS),
    **dict.fromkeys(("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"), (*NUMBERS, *LOGICAL, *BITS)),
    **dict.fromkeys(("f2", "f4", "f8", "bfloat16"), NUMBERS),
    **dict.fromkeys(("c8", "c16"), ("sum", "prod")),
}


def bits_of(dtype: str, rank: int, count: int) -> Any:
    """Any elements, also infinite, subnormal and negative zero; no NaNs, of whose bits nothing is promised."""
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    random = np.random.default_rng([rank, count])
    if dtype == "?":
        return random.integers(0, 2, count, "u1").view(kind)
    found = random.integers(0, 256, count * kind.itemsize, "u1").view(kind)
    if kind.kind in "fcV":
        with np.errstate(all="ignore"):
            found = np.where(np.isnan(found), np.asarray(1.5, kind), found)
    return found


def reduces(g: cw.Group, _pipe: Any, dtype: str, where: str) -> int:
    """All operations on elements of a dtype; in host memory and on GPUs."""
    device = f"cuda:{g.rank % cuda_support.gpus_here()}" if where == "gpus" else "cuda:0"
    for count, op in itertools.product((200, 5003, 70_001), OPERATIONS[dtype]):
        mine = bits_of(dtype, g.rank, count)
        with np.errstate(all="ignore"):
            expected = g.Allreduce(mine, op=op)
        x = cw.asarray(mine, device=device)
        found = host(g.Allreduce(x, op=op))
        np.testing.assert_array_equal(_words(found), _words(expected), f"{op} of {dtype}")
        assert g.Allreduce(x, x, op) is x  # in place
        np.testing.assert_array_equal(_words(host(x)), _words(expected))
        x.copy_from(mine)
        found = g.Reduce(x, op=op, root=g.size - 1)
        if g.rank == g.size - 1:
            np.testing.assert_array_equal(_words(host(found)), _words(expected))
    return g.completed


def _words(found: Any) -> Any:
    """Bits; of NaNs (infinity less infinity) only that it is one."""
    found = np.ascontiguousarray(found)
    parts = found.view(f"f{found.itemsize // 2}") if found.dtype.kind == "c" else found
    words = parts.view(f"u{parts.itemsize}").copy()
    if parts.dtype.kind in "fV":
        words[np.isnan(parts)] = 0x7E00
    return words


@pytest.mark.parametrize("dtype", OPERATIONS)
def test_they_have_the_bits_of_those_in_host_memory(dtype: str) -> None:
    outcomes(f"bits/{dtype.replace('?', 'b')}", 2, reduces, dtype, "gpus", timeout=120)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_of_any_number_of_members(size: int) -> None:
    outcomes(f"members/{size}", size, reduces, "f4", "gpu", timeout=120)


def test_of_parts_of_arrays_aligned_or_not() -> None:
    def parts(g: cw.Group, _pipe: Any) -> None:
        for dtype, begin in itertools.product(("f2", "f4", "f8", "u1"), (0, 1, 3)):
            for count in (1000, 90_001):
                values = [np.arange(count + 5).astype(dtype) % 50 + i for i in range(g.size)]
                x = cw.asarray(values[g.rank], device="cuda:0")
                out = cw.full(count + 5, 77, dtype, device="cuda:0")
                # Each member's begins elsewhere.
                mine = x[begin + g.rank : begin + g.rank + count]
                expected = sum(
                    values[i][begin + i : begin + i + count].astype("f8") for i in range(g.size)
                )
                g.Allreduce(mine, out[2 : 2 + count])
                same(out[2 : 2 + count], expected.astype(dtype))
                same(out[:2], [77, 77])  # nothing beside it
                same(out[2 + count :], [77, 77, 77])

    outcomes("parts", 2, parts, timeout=60)


def test_a_member_may_receive_over_what_another_one_sends() -> None:
    def over(g: cw.Group, _pipe: Any) -> None:
        for count in (1000, 300_000):
            every = g.empty(count, device="cuda:0")
            values = [np.arange(count) * (i + 1.0) for i in range(g.size)]
            every[g.rank].copy_from(values[g.rank])
            out = every[0] if g.rank else cw.empty(count, device="cuda:0")
            g.barrier()
            g.Allreduce(every[g.rank], out)
            g.barrier()
            same(out, sum(values))
            g.barrier()
            every[g.rank].copy_from(values[g.rank])
            g.barrier()
            g.Allreduce(every[g.rank], every[0])  # one result for all
            g.barrier()
            same(every[0], sum(values))
            g.barrier()

    outcomes("over", 3, over, timeout=60)


def test_blocks_are_scattered_in_place_too() -> None:
    def scatters(g: cw.Group, _pipe: Any) -> None:
        for count in (30, 50_001):
            values = [np.arange(g.size * count) % 91 + i for i in range(g.size)]
            expected = sum(values)[g.rank * count : (g.rank + 1) * count]
            for where in ("own block", "first block", "elsewhere"):
                x = cw.asarray(values[g.rank].astype("i4"), device="cuda:0")
                first = {"own block": g.rank * count, "first block": 0}.get(where)
                out = cw.empty(count, "i4", device="cuda:0")
                if first is not None:
                    out = x[first : first + count]
                g.Reduce_scatter(x, out)
                same(out, expected)

    outcomes("scattered", 3, scatters, timeout=60)


@pytest.mark.parametrize("count", [2_100_000, 5_000_001])
def test_many_elements_of_two_members(count: int) -> None:
    def many(g: cw.Group, _pipe: Any) -> None:
        device = f"cuda:{g.rank % cuda_support.gpus_here()}"
        values = [np.random.default_rng(i).random(count) for i in range(g.size)]
        x = cw.asarray(values[g.rank], device=device)
        out = cw.full(count, -1.0, device=device)
        for _ in range(3):
            same(g.Allreduce(x, out), values[0] + values[1])
            out.copy_from(np.full(count, -1.0))
            found = g.Reduce(x, out, "max", 1)
            if g.rank == 1:
                same(found, np.maximum(*values))
            half = g.Reduce_scatter(x[: count // 2 * 2])
            same(half, (values[0] + values[1])[: count // 2 * 2].reshape(2, -1)[g.rank])
        same(x, values[g.rank])

    outcomes("many", 2, many, timeout=60)


def test_within_a_section_of_its_own_it_is_refused_the_second_time_too() -> None:
    def refuses(g: cw.Group, _pipe: Any) -> None:
        x, out = (cw.full(1000, 1.0, device="cuda:0") for _ in range(2))
        for _ in range(3):
            same(g.Allreduce(x, out), np.full(1000, float(g.size)))
            for section in (x.reading(), x.writing()):
                with section, pytest.raises(ValueError, match="call it behind that"):
                    g.Allreduce(x, out)
                with section, pytest.raises(ValueError, match="call it behind that"):
                    g.Allreduce(out, x)

    outcomes("refused", 2, refuses)


def test_an_array_in_place_is_in_order_with_work_before_and_after() -> None:
    def turns(g: cw.Group, _pipe: Any) -> None:
        x = cw.zeros(100_000, device="cuda:0")
        expected = np.zeros(100_000)
        for turn in range(30):
            x.copy_from(np.full(100_000, float(g.rank + turn)))
            g.Allreduce(x, x)
            expected[:] = sum(range(g.size)) + g.size * turn
            same(x, expected)

    outcomes("turns", 3, turns, timeout=60)
