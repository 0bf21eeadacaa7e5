"""Operations of a group on memory of GPUs: the same results as in host memory, in order with other work, whoever dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cuda_support
import ml_dtypes
import numpy as np
import pytest
from group_operations import everything, host, place, same, values
from group_support import Member, outcomes

import cableway as cw

cuda_support.require()
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the stand-in")
gpus = cuda_support.for_module(devices=2)

# Elements of float64: in the call, in one piece of the detour, in two where there are blocks for three members.
COUNTS = [0, 1, 20, 21, 5000, 360_001]


@pytest.mark.parametrize("where", ["gpu", "gpu part", "beside", "library"])
@pytest.mark.parametrize("size", [1, 3])
def test_operations_are_numpys(size: int, where: str) -> None:
    found = outcomes("numpys", size, everything, where, COUNTS, timeout=60)
    assert len(set(found)) == 1


@cuda_support.second_gpu
def test_operations_between_gpus_are_numpys() -> None:
    found = outcomes("two", 3, everything, "gpus", COUNTS, timeout=60)
    assert len(set(found)) == 1


@cuda_support.second_gpu
def test_members_that_do_not_see_each_others_gpus_go_by_the_host() -> None:
    def masked(pipe: Any, rank: int) -> Any:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        with cw.Group("masked", 2, rank, timeout=60) as g:
            with pytest.raises(cw.DeviceError):
                cw.empty(1, device="cuda:1")
            return everything(g, pipe, "gpu", COUNTS)

    started = [Member(masked, rank) for rank in range(2)]
    assert len({member.returned() for member in started}) == 1
    for member in started:
        member.end()


@on_the_double
@pytest.mark.parametrize("setting", ["NO_PEER=all", "NO_BATCH=1", "MIG=1"])
def test_gpus_that_do_not_reach_each_other_give_the_same(setting: str) -> None:
    def limited(pipe: Any, rank: int) -> Any:
        name, _, value = setting.partition("=")
        os.environ[f"CABLEWAY_FAKECUDA_{name}"] = value
        if name == "MIG":
            os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
        with cw.Group(f"limited/{name}", 2, rank, timeout=60) as g:
            return everything(g, pipe, "gpu" if name == "MIG" else "gpus", [21, 5000])

    started = [Member(limited, rank) for rank in range(2)]
    assert len({member.returned() for member in started}) == 1
    for member in started:
        member.end()


def counters(g: cw.Group) -> dict[str, int]:
    """The broker's figures of copied bytes; it reads a client's when it hears of it."""
    cw.put(f"look/{g.rank}", 1)
    g.barrier()
    told = subprocess.run(
        [cuda_support.COMMAND, "status", "--json"], capture_output=True, check=True
    )
    g.barrier()
    return {k: v for k, v in json.loads(told.stdout)["counters"].items() if k.startswith("bytes_")}


def test_all_stays_on_the_gpu_but_reductions_that_no_kernel_computes() -> None:
    def moves(g: cw.Group, _pipe: Any) -> list[Any]:
        x = cw.full(1 << 20, float(g.rank), device="cuda:0")
        whole = cw.full(1 << 20, g.rank, "i8", device="cuda:0")
        found = []
        for operation, arguments in (
            (g.Allgather, (x,)),
            (g.Allreduce, (x,)),
            (g.Allreduce, (whole, None, "land")),
        ):
            before = counters(g)
            operation(*arguments)
            found.append({k: v - before[k] for k, v in counters(g).items()})
        cw.remove(f"look/{g.rank}")
        return found

    moved, computed, by_host = outcomes("routes", 2, moves)[0]
    for found, arrays in ((moved, 4), (computed, 2)):
        assert found["bytes_same_gpu"] == arrays * (8 << 20), found
        assert not found["bytes_from_gpu"] and not found["bytes_to_gpu"], found
    assert by_host["bytes_from_gpu"] == by_host["bytes_to_gpu"] == 2 * (8 << 20), by_host


def test_a_reduction_of_more_than_a_piece_is_right() -> None:
    def reduces(g: cw.Group, _pipe: Any) -> None:
        count = 2_100_001  # 8 MiB are a piece
        all_values = [values(rank, count) for rank in range(g.size)]
        mine = place(all_values[g.rank], "gpu", g.rank)
        same(g.Allreduce(mine), sum(all_values))
        found = g.Reduce(mine, mine, "max", 1)
        if g.rank == 1:
            same(found, np.max(all_values, axis=0))
        signs = [(one % 3).astype("i8") for one in all_values]
        found = g.Allreduce(place(signs[g.rank], "gpu", g.rank), op="land")
        same(found, np.logical_and.reduce(signs))

    outcomes("pieces", 2, reduces)


def narrow(g: cw.Group, _pipe: Any) -> None:
    for dtype in (np.dtype("f2"), np.dtype(ml_dtypes.bfloat16)):
        for count in (10, 65536):
            every = np.arange(count, dtype="u2") * (65536 // count)
            mine = np.roll(every, 7919 * g.rank).view(dtype)
            for op in ("sum", "prod", "min", "max"):
                expected = g.Allreduce(mine, op=op)
                found = g.Allreduce(cw.asarray(mine, device="cuda:0"), op=op)
                assert found.device == "cuda:0" and found.dtype == dtype
                bits, wanted = host(found).view("u2").copy(), expected.view("u2").copy()
                gone = np.isnan(host(found)) & np.isnan(expected)  # GPUs make one NaN of all
                np.testing.assert_array_equal(bits[~gone], wanted[~gone])


def test_reductions_have_the_bits_of_those_in_host_memory() -> None:
    outcomes("narrow", 3, narrow, timeout=60)


def test_each_member_makes_an_array_on_its_gpu_that_all_have() -> None:
    def shares(g: cw.Group, _pipe: Any) -> Any:
        arrays = g.empty((2, 1000), "i4", device=f"cuda:{g.rank % cuda_support.gpus_here()}")
        assert arrays[g.rank].device == f"cuda:{g.rank % cuda_support.gpus_here()}"
        arrays[g.rank].copy_from(np.full((2, 1000), g.rank, "i4"))
        g.barrier()
        found = [int(host(a)[1, 7]) for a in arrays]
        same(g.Allgather(arrays[g.rank]), np.repeat(np.arange(g.size), 2000))
        g.barrier()
        return found

    assert outcomes("empty", 3, shares) == [[0, 1, 2]] * 3


def test_one_array_may_receive_for_all() -> None:
    def gathers(g: cw.Group, _pipe: Any) -> float:
        if g.rank == 0:
            cw.put("gathered", cw.empty((3, 50_000), device="cuda:0"))
        g.barrier()
        out = cw.get("gathered")
        assert g.Allgather(cw.full(50_000, float(g.rank), device="cuda:0"), out) is out
        found = float(host(out).sum())
        g.Allreduce(out[g.rank], out[g.rank])  # each its own row, in place
        g.barrier()
        assert (host(out) == 3).all()
        g.barrier()
        return found

    assert outcomes("shared", 3, gathers) == [150_000.0] * 3
    cw.remove("gathered")


def test_messages_go_from_and_to_gpus() -> None:
    def sends(g: cw.Group, _pipe: Any) -> None:
        for count in (0, 3, 200_000):
            for where in ("gpu", "library", "private"):
                g.Send(place(values(g.rank, count), where, g.rank), 1 - g.rank, 5)
                for out in ("private", "gpu"):
                    if out == "gpu":
                        g.Send(place(values(g.rank, count), where, g.rank), 1 - g.rank, 5)
                    room = place(np.full(count, -1.0), out, g.rank)
                    assert g.Recv(room, 1 - g.rank) is room
                    same(room, values(1 - g.rank, count))
        g.Send(cw.zeros(4, device="cuda:0"), 1 - g.rank)
        with pytest.raises(ValueError, match="waits for the next call"):
            g.Recv(cw.zeros(5, device="cuda:0"))
        g.Recv(np.zeros(4))

    outcomes("messages", 2, sends)


def test_a_librarys_array_receives_where_it_is() -> None:
    def receives(g: cw.Group, _pipe: Any) -> Any:
        import gpu_standins

        x = gpu_standins.make(gpu_standins.CupyArray, np.full(1000, g.rank + 1.0))
        out = gpu_standins.make(gpu_standins.CupyArray, np.zeros(1000))
        assert g.Allreduce(x, out) is out
        found = out.host().sum()
        assert g.Bcast(x, 1) is x
        made = g.Allreduce(x)
        assert isinstance(made, cw.Array) and made.device == "cuda:0"
        # What lies in our memory is used there.
        mine = cw.full(1000, 5.0, device="cuda:0")
        view = gpu_standins.CupyArray.__new__(gpu_standins.CupyArray)
        view.shape, view.dtype, view.strides = (1000,), np.dtype("f8"), (8,)
        view.memory, view.address = mine, mine.__cuda_array_interface__["data"][0]
        g.Allreduce(x, view)
        return found, x.host()[-1], host(made)[-1], host(mine)[-1]

    assert outcomes("library", 2, receives) == [(3000.0, 2.0, 4.0, 4.0)] * 2


@on_the_double
@pytest.mark.parametrize("name", ["float32", "bfloat16", "uint8"])
def test_tensors_of_pytorch_are_sent_and_receive(name: str) -> None:
    """With a stand-in, also of a dtype that only DLPack can tell."""
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)

    def sends(g: cw.Group, _pipe: Any) -> None:
        sys.path.insert(0, str(Path(cuda_support.__file__).parent / "standins"))
        import torch

        def tensor(found: Any) -> Any:
            bits = found.astype(dtype).view(dtype if name != "bfloat16" else "i2")
            return torch.tensor(bits, getattr(torch, name))

        for count in (10, 5000):
            x = tensor(np.arange(count) % 50 + g.rank)
            out, wide = tensor(np.zeros(count)), tensor(np.zeros((2, count)))
            expected = [(np.arange(count) % 50 + rank).astype(dtype) for rank in range(2)]
            assert g.Allreduce(x, out) is out
            same(cw.asarray(out), sum(expected))
            made = g.Allreduce(x)
            assert (made.dtype, made.device) == (dtype, "cuda:0")
            same(made, sum(expected))
            g.Allgather(x, wide)
            same(cw.asarray(wide), expected)
            g.Send(x, 1 - g.rank)
            g.Recv(out)
            same(cw.asarray(out), expected[1 - g.rank])
            g.Bcast(x, 1)
            same(cw.asarray(x), expected[1])

    outcomes("torch", 2, sends)


def test_bad_buffers_are_refused_before_anybody_is_met() -> None:
    def refuses(g: cw.Group, _pipe: Any) -> int:
        x = cw.zeros((4, 4), device="cuda:0")
        for call in (
            lambda: g.Allreduce(x.T),
            lambda: g.Allreduce(x, cw.zeros((4, 5), device="cuda:0")),
            lambda: g.Allreduce(x, cw.zeros((4, 4), "f4", device="cuda:0")),
            lambda: g.Allreduce(x, op="mean"),
            lambda: g.Bcast(x, 1),
        ):
            with pytest.raises(ValueError):
                call()
        cw.put("fixed", x)
        with pytest.raises(ValueError, match="read-only"):
            g.Allreduce(x, cw.get("fixed", readonly=True))
        with x.writing(), pytest.raises(ValueError, match="call it behind that"):
            g.Allreduce(x)
        same(g.Allreduce(cw.get("fixed", readonly=True)), np.zeros(16))  # may be sent
        cw.remove("fixed")
        return g.completed

    assert outcomes("bad", 1, refuses) == [1]


@pytest.mark.parametrize(
    "call",
    [
        lambda g: g.Allreduce(cw.zeros(3 + g.rank, device="cuda:0")),
        lambda g: g.Allgather(cw.zeros(3000 + g.rank, device="cuda:0")),
        lambda g: g.Allreduce(cw.zeros(3000, "f4" if g.rank else "i4", device="cuda:0")),
        lambda g: g.Bcast(cw.zeros(3000, device="cuda:0"), g.rank % 2),
        lambda g: g.Allreduce(cw.zeros(3000, device="cuda:0")) if g.rank else g.barrier(),
        lambda g: g.Allreduce(cw.zeros(3000 + g.rank, device="cuda:0" if g.rank else "cpu")),
    ],
)
def test_who_calls_something_else_is_told_and_so_are_all(call: Any) -> None:
    def differ(g: cw.Group, _pipe: Any) -> bool:
        for _ in range(3):
            with pytest.raises(ValueError, match="all members call the same"):
                call(g)
            g.barrier()  # the group goes on
        return True

    assert outcomes("differ", 3, differ) == [True] * 3
