"""Operations on buffers give what NumPy computes, wherever the elements lie."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from group_operations import everything, place, same
from group_support import group, outcomes

import cableway as cw
from cableway._group import elements, operations

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")

PLACES = ["private", "array", "part", "mixed"]


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_operations_are_numpys(size: int, where: str) -> None:
    found = outcomes("numpys", size, everything, where, timeout=60)
    assert len(set(found)) == 1


NUMBERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16"]
NUMPYS = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "land": np.logical_and,
    "lor": np.logical_or, "lxor": np.logical_xor, "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip


def allowed(op: str, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "c":
        return op in ("sum", "prod")
    return op in ("sum", "prod", "min", "max") or dtype.kind in "biu"


def random_of(dtype: np.dtype[Any], rank: int, count: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(rank)
    if dtype.kind in "fc":
        found = random.standard_normal(count).astype(dtype)
        found[random.integers(0, count, 3)] = np.nan
        return found
    return (
        np.frombuffer(random.bytes(count * dtype.itemsize), dtype)
        if dtype.kind != "b"
        else (random.integers(0, 2, count).astype("?"))
    )


def reductions(g: cw.Group, _pipe: Any) -> None:
    for count, kind, (op, numpys) in itertools.product((3, 5000), NUMBERS, NUMPYS.items()):
        dtype = np.dtype(kind)
        all_values = [random_of(dtype, rank, count) for rank in range(g.size)]
        if not allowed(op, dtype):
            with pytest.raises(ValueError, match="cannot be computed"):
                g.Allreduce(all_values[g.rank], op=op)
            continue
        with np.errstate(all="ignore"):
            expected = all_values[0]
            for other in all_values[1:]:
                expected = numpys(expected, other).astype(dtype)
        found = g.Allreduce(all_values[g.rank], op=op)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected, err_msg=f"{op} of {dtype}")


def test_reductions_are_numpys() -> None:
    outcomes("reductions", 3, reductions, timeout=60)


def narrow(g: cw.Group, _pipe: Any) -> None:
    for dtype in (np.dtype("f2"), np.dtype(ml_dtypes.bfloat16)):
        for count in (10, 65536):
            every = np.arange(count, dtype="u2") * (65536 // count)
            all_values = [np.roll(every, 7919 * rank).view(dtype) for rank in range(g.size)]
            for op in ("sum", "prod", "min", "max"):
                with np.errstate(all="ignore"):
                    expected = all_values[0].astype("f4")
                    for other in all_values[1:]:
                        expected = NUMPYS[op](expected, other.astype("f4"))
                    expected = expected.astype(dtype)
                found = g.Allreduce(all_values[g.rank], op=op)
                assert found.dtype == dtype
                there = np.isnan(expected.astype("f4"))
                np.testing.assert_array_equal(np.isnan(found.astype("f4")), there)
                np.testing.assert_array_equal(found.view("u2")[~there], expected.view("u2")[~there])


def test_narrow_floats_are_computed_in_float32_and_rounded_once() -> None:
    outcomes("narrow", 3, narrow, timeout=60)


def few_bytes(g: cw.Group, _pipe: Any) -> None:
    """What goes with the arrival, and what is larger, in turns: nothing is left over of the one before."""
    random = np.random.default_rng(7)
    for turn in range(600):
        count = int(random.integers(0, 40))
        values = random.integers(0, 256, (g.size, g.size * count), dtype="u1")
        mine, root = values[g.rank], turn % g.size
        same(g.Allreduce(mine[:count]), values[:, :count].sum(0, dtype="u1"))
        same(g.Allgather(mine[:count]), values[:, :count])
        same(g.Alltoall(mine), values[:, g.rank * count :][:, :count].ravel())
        same(g.Bcast(mine[:count].copy(), root), values[root, :count])


def test_a_few_bytes_of_any_number() -> None:
    outcomes("few", 3, few_bytes, timeout=60)


def test_ndarrays_are_read_without_numpy() -> None:
    assert elements.READS_NDARRAYS, "the arrays of this NumPy are laid out in another way"
    with cw.Group("read", 1, timeout=20) as g:
        end, kind, none = g._calls.end, operations.ALLREDUCE, operations.NO_ROOT

        def found(send: Any, out: Any) -> bool:
            return bool(end.move(kind, send, out, "sum", none))

        for dtype in ("f8", "f4", ">f8"):
            assert g.Allgather(np.ones(1, dtype)) == 1  # texts of dtypes are noted by Python
        whole, out = np.arange(6.0).reshape(2, 3), np.zeros((2, 3))
        assert found(whole, out)
        same(out, whole)
        number = np.array(0.0)
        assert found(np.array(7.0), number) and number == 7
        assert found(np.empty((0, 3)), np.empty((0, 3)))
        row = np.zeros(3)
        assert found(whole[1], row) and row.tolist() == [3, 4, 5]  # a view of little
        large = np.arange(1000.0)
        assert found(large, large.copy())
        assert not found(large[:500], large[500:].copy()), "a view may be one of an array of ours"
        frozen = np.zeros((2, 3))
        frozen.flags.writeable = False
        assert found(frozen, out)
        assert not found(whole, frozen)
        assert not found(whole.T, np.zeros((3, 2))) and not found(whole[:, ::2], np.zeros((2, 2)))
        assert not found(whole, np.zeros(5)), "fewer elements"
        assert not found(whole, np.zeros((2, 3), "f4")) and not found(whole.astype(">f8"), out)
        warns = np.broadcast_arrays(np.zeros(1), np.zeros((1, 1)))[0]
        assert not found(np.ones((1, 1)), warns), "NumPy warns who writes there"


def test_one_array_may_receive_for_all() -> None:
    shared = cw.put("result", np.zeros(100_000))

    def reduces(g: cw.Group, _pipe: Any) -> float:
        out = cw.get("result")
        mine = cw.full(100_000, float(g.rank + 1))
        assert g.Allreduce(mine, out) is out
        found = float(out.numpy().sum())
        g.barrier()
        return found

    assert outcomes("one", 3, reduces) == [600_000.0] * 3
    assert (shared.numpy() == 6).all()
    cw.remove("result")


def test_structured_and_text_elements_are_moved() -> None:
    dtype = np.dtype([("x", "f4"), ("name", "S3000")])

    def moves(g: cw.Group, _pipe: Any) -> bool:
        data = np.zeros(200, dtype)
        data["x"], data["name"] = g.rank, b"rank %d" % g.rank
        found = g.Allgather(data)
        return found.shape == (3, 200) and all(
            (found[i]["name"] == b"rank %d" % i).all() and (found[i]["x"] == i).all()
            for i in range(3)
        )

    assert outcomes("structured", 3, moves) == [True] * 3


def test_results_have_natural_shapes() -> None:
    def shapes(g: cw.Group, _pipe: Any) -> Any:
        a = np.ones((2, 3))
        return (
            g.Allreduce(a).shape, g.Allgather(a).shape, g.Reduce_scatter(a).shape, g.Alltoall(a).shape,
            np.shape(g.Allreduce(7)), g.Allreduce([1, 2]).tolist(),
        )  # fmt: skip

    assert outcomes("shapes", 2, shapes) == [((2, 3), (2, 2, 3), (3,), (2, 3), (), [2, 4])] * 2


def differ(g: cw.Group, _pipe: Any, call: Any) -> list[str]:
    said = []
    for _ in range(3):
        with pytest.raises(ValueError, match="all members call the same") as refused:
            call(g)
        said.append(str(refused.value))
        g.barrier()  # the group goes on
    return said


@pytest.mark.parametrize(
    "call",
    [
        lambda g: g.Allreduce(np.zeros(3 + g.rank)),
        lambda g: g.Allreduce(np.zeros(3000 + g.rank)),
        lambda g: g.Allreduce(np.zeros(1 + 3000 * g.rank)),
        lambda g: g.Allreduce(np.zeros(3, "f4" if g.rank else "i4")),
        lambda g: g.Allreduce(np.zeros(3), op="max" if g.rank else "min"),
        lambda g: g.Bcast(np.zeros(3), g.rank % 2),
        lambda g: g.Allreduce(np.zeros(3)) if g.rank else g.barrier(),
        lambda g: g.Allreduce(cw.zeros(30_000)) if g.rank else g.Allgather(np.zeros(30_000)),
    ],
)
def test_who_calls_something_else_is_told_and_so_are_all(call: Any) -> None:
    for said in outcomes("differ", 3, differ, call):
        assert len(said) == 3
        assert all("rank" in sentence for sentence in said)


def test_bad_buffers_are_refused_before_anybody_is_met() -> None:
    with cw.Group("bad", 1) as g:
        for call in (
            lambda: g.Allreduce(np.zeros((4, 4))[:, ::2]),
            lambda: g.Allreduce(np.zeros(3), np.zeros(4)),
            lambda: g.Allreduce(np.zeros(3), np.zeros(3, "f4")),
            lambda: g.Allreduce(np.zeros(3), op="mean"),
            lambda: g.Bcast(np.zeros(3), 1),
            lambda: g.Bcast(np.zeros(3), -1),
        ):
            with pytest.raises(ValueError):
                call()
        with pytest.raises(TypeError, match="not list"):
            g.Allreduce(np.zeros(2), [0, 0])
        frozen = np.zeros(3)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            g.Allreduce(np.zeros(3), frozen)
        with pytest.raises((TypeError, ValueError)):
            g.Allreduce([object()])
        assert g.completed == 0


def test_a_read_only_array_may_be_sent() -> None:
    cw.put("fixed", np.arange(50_000.0))

    def sends(g: cw.Group, _pipe: Any) -> bool:
        a = cw.get("fixed", readonly=True)
        return bool((g.Allreduce(a) == 2 * np.arange(50_000.0)).all())

    assert outcomes("readonly", 2, sends) == [True] * 2
    cw.remove("fixed")


def test_a_death_in_an_operation_breaks_it() -> None:
    def reduces(g: cw.Group, pipe: Any, where: str) -> None:
        a = place(np.ones(300_000), where, g.rank)
        pipe.send("begins")
        while True:
            g.Allreduce(a)

    for where in ("private", "array", "mixed"):
        with group("dies", 3, reduces, where, timeout=None) as started:
            for member in started:
                assert member.next() == "begins"
            started[1].kill()
            for member in (started[0], started[2]):
                facts = member.raised()
                assert (facts["kind"], facts["rank"]) == ("GroupBroken", 1), facts["trace"]


def test_each_member_makes_an_array_that_all_have() -> None:
    def shares(g: cw.Group, _pipe: Any) -> Any:
        arrays = g.empty((g.rank + 1, 1000), "i4")
        assert [a.shape for a in arrays] == [(i + 1, 1000) for i in range(g.size)]
        arrays[g.rank][...] = g.rank
        g.barrier()
        found = [int(a.numpy()[i, 7]) for i, a in enumerate(arrays)]
        g.barrier()
        return found

    assert outcomes("empty", 3, shares) == [[0, 1, 2]] * 3


def test_what_is_sent_may_overlap_what_is_received() -> None:
    def overlaps(g: cw.Group, _pipe: Any) -> bool:
        chosen = np.random.default_rng(7)
        for make in (np.empty, cw.empty):
            for _ in range(60):
                memory = make(4000, "i8")
                memory[...] = values = np.arange(4000) * (g.rank + 1)
                count = int(chosen.integers(1, 600)) * 2
                send, out = (int(at) for at in chosen.integers(0, 1200, 2))
                everybody = [np.arange(4000) * (rank + 1) for rank in range(g.size)]
                g.Allreduce(memory[send : send + count], out=memory[out : out + count])
                expected = sum(one[send : send + count] for one in everybody)
                assert (np.asarray(memory[out : out + count]) == expected).all()
                memory[...] = values
                g.Allgather(memory[send : send + count], out=memory[out : out + count * g.size])
                expected = np.concatenate([one[send : send + count] for one in everybody])
                assert (np.asarray(memory[out : out + count * g.size]) == expected).all()
                memory[...] = values
                g.Alltoall(memory[send : send + count], out=memory[out : out + count])
                half = count // 2
                mine = slice(send + g.rank * half, send + (g.rank + 1) * half)
                expected = np.concatenate([one[mine] for one in everybody])
                assert (np.asarray(memory[out : out + count]) == expected).all()
                g.barrier()
        return True

    assert outcomes("overlaps", 2, overlaps) == [True, True]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("count", [100, 5000, 300_000])
def test_a_member_may_receive_over_what_another_one_sends(size: int, count: int) -> None:
    def over(g: cw.Group, _pipe: Any) -> None:
        every = g.empty(count)
        values = [np.arange(count) * (i + 1.0) for i in range(g.size)]
        for first in range(20):
            every[g.rank][...] = values[g.rank]
            out = cw.empty(count) if g.rank == first % g.size else every[first % g.size]
            g.barrier()
            g.Allreduce(every[g.rank], out)
            same(out, sum(values))
            g.barrier()

    outcomes(f"over/{size}/{count}", size, over)


def test_what_cannot_be_computed_or_received_says_why_and_what_to_do() -> None:
    with cw.Group("texts", 1) as g:
        g.Send(np.zeros(3, "i4"), 0)
        for call, kind, text in (
            (lambda: g.Allreduce(np.array(["a"])), ValueError, "op 'sum' of <U1 cannot be computed: it is for bools"),
            (lambda: g.Allreduce(np.zeros(3, ">f8")), ValueError, r"byte order .* \.astype\('float64'\)"),
            (lambda: g.Reduce(np.zeros(3, "c16"), op="max"), ValueError, "of complex128 there are 'sum', 'prod'"),
            (lambda: g.Reduce_scatter(np.zeros(3), op="band"), ValueError, "op 'band' of float64 cannot be computed"),
            (lambda: g.Allreduce(np.zeros(3), np.zeros(3, "f4")), ValueError, r"convert what is sent with .astype\('float32'\)"),
            (lambda: g.Allreduce([np.zeros(3), "d"]), ValueError, r"in place of mpi4py's \[array, type\] pass the array"),
            (lambda: g.Scatter(np.zeros(3), None), TypeError, "out: an array to receive into is needed"),
            (lambda: g.Recv(np.zeros(3)), ValueError, "12 bytes of another dtype than out, which is float64"),
            (lambda: g.Recv(np.zeros(4, "i4")), ValueError, "has 3 elements, and out has 4"),
            (lambda: g.Bcast(np.zeros(3), "a"), TypeError, "root a: a rank is an integer"),
            (lambda: g.bcast(3, None), TypeError, "root None: a rank is an integer"),
            (lambda: g.gather(3, 1.0), TypeError, "root 1.0: a rank is an integer"),
            (lambda: g.alltoall(3), TypeError, "a list with one object for each of the 1 members"),
            (lambda: cw.Group(3, 2), TypeError, "the name of a group is a str, not int"),
        ):  # fmt: skip
            with pytest.raises(kind, match=text):
                call()
        assert g.completed == 0, "all of them said so before anything was done"
        assert g.Recv(np.ones(3, "i4")).sum() == 0
