"""A group hands out a communicator of NCCL, and ends it when a member ends.

On the double CuPy's `nccl` is a test double, too: its communicators meet by files, and their calls wait until all have called them
or until they are aborted, as NCCL's do. On two real GPUs the last test takes CuPy's own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import types
from pathlib import Path
from typing import Any

import cuda_support
import pytest
from group_support import group, outcomes
from waiting import eventually

import cableway as cw

cuda_support.require()
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="NCCL itself is used there")
gpus = cuda_support.for_module(devices=4)


class NcclError(RuntimeError):
    """As CuPy's."""


class Communicator:
    """As CuPy's `NcclCommunicator`."""

    folder: Path
    refused = -1  # this rank is refused

    def __init__(self, ndev: int, commId: tuple[int, ...], rank: int) -> None:  # noqa: N803
        assert len(commId) == 128 and all(-128 <= b < 128 for b in commId)
        self.aborted, self.calls = False, 0
        self.size, self.rank = ndev, rank
        self.id = f"{commId[0]}.{commId[1]}"
        if rank == self.refused:
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR: as the test wants it")
        self.meet("join", by_abort=False)

    def meet(self, what: str, by_abort: bool = True) -> None:
        """Waits for all ranks."""
        (self.folder / f"{self.id}.{what}.{self.rank}").touch()
        while not all((self.folder / f"{self.id}.{what}.{i}").exists() for i in range(self.size)):
            if by_abort and self.aborted:
                raise NcclError("NCCL_ERROR_INVALID_USAGE: aborted")
            time.sleep(0.001)

    def allReduce(self) -> None:  # noqa: N802
        """As CuPy's, of nothing."""
        if self.aborted:
            raise NcclError("NCCL_ERROR_INVALID_ARGUMENT: no communicator")
        self.calls += 1
        self.meet(f"call {self.calls}")

    def abort(self) -> None:
        """As CuPy's."""
        self.aborted = True


class Device:
    """As CuPy's."""

    current = 0

    def __init__(self, number: int | None = None) -> None:
        self.id = self.current if number is None else number

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def install(folder: Path, device: int, refused: int = -1) -> None:
    """Puts a `cupy` where `import` finds it, on this current device."""
    Communicator.folder, Communicator.refused, Device.current = folder, refused, device
    found = types.ModuleType("cupy.cuda.nccl")
    found.available, found.NcclCommunicator = True, Communicator  # type: ignore[attr-defined]
    found.get_unique_id = lambda: tuple(b - 128 for b in os.urandom(128))  # type: ignore[attr-defined]
    top, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    top.cuda, cuda.nccl, cuda.Device = cuda, found, Device  # type: ignore[attr-defined]
    cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=0)  # type: ignore[attr-defined]
    sys.modules.update({"cupy": top, "cupy.cuda": cuda, "cupy.cuda.nccl": found})


@on_the_double
def test_members_get_a_communicator_with_their_ranks(tmp_path: Path) -> None:
    def joins(g: cw.Group, _pipe: Any) -> Any:
        install(tmp_path, g.rank)
        first, second = g.nccl(), g.nccl(f"cuda:{3 - g.rank}")
        assert isinstance(first, Communicator) and first.id != second.id
        for communicator in (first, second):
            assert (communicator.rank, communicator.size) == (g.rank, g.size)
            communicator.allReduce()
            assert not communicator.aborted
        g.barrier()
        g.close()
        return first.id, second.id, first.aborted, second.aborted

    found = outcomes("join", 3, joins)
    assert found[0] == found[1] == found[2] and found[0][2:] == (True, True)


@on_the_double
def test_it_is_aborted_when_a_member_dies(tmp_path: Path) -> None:
    def waits(g: cw.Group, pipe: Any) -> Any:
        install(tmp_path, g.rank)
        communicator = g.nccl()
        pipe.send("there")
        if g.rank == 1:
            pipe.recv()
        with pytest.raises(NcclError):
            communicator.allReduce()  # NCCL would wait for ever
        with pytest.raises(cw.GroupBroken) as told:
            g.barrier()
        g.reform()
        again = g.nccl()
        again.allReduce()
        assert not again.aborted
        g.barrier()
        return told.value.rank, again.size

    with group("dies", 3, waits, timeout=None) as (zero, one, two):
        assert [member.next() for member in (zero, one, two)] == ["there"] * 3
        one.kill()
        assert zero.returned() == two.returned() == (1, 2)


@on_the_double
def test_it_is_aborted_when_the_group_breaks_without_a_death(tmp_path: Path) -> None:
    def waits(g: cw.Group, pipe: Any) -> Any:
        install(tmp_path, g.rank)
        communicator = g.nccl()
        if g.rank == 1:
            with pytest.raises(NcclError):
                communicator.allReduce()
        else:
            g.timeout = 0.05
            with pytest.raises(cw.Timeout):
                g.barrier()
            assert eventually(lambda: communicator.aborted)
        return True

    assert outcomes("breaks", 2, waits, timeout=None) == [True] * 2


@on_the_double
def test_what_is_missing_on_one_member_is_told_to_all(tmp_path: Path) -> None:
    def misses(g: cw.Group, _pipe: Any) -> list[str]:
        said = []
        for what in ("cupy", "nccl", "device", "same"):
            install(tmp_path, 0 if what == "same" else g.rank)
            if g.rank == 2 and what == "cupy":
                sys.modules["cupy"] = None  # type: ignore[assignment]
            if g.rank == 2 and what == "nccl":
                sys.modules["cupy.cuda.nccl"].available = False  # type: ignore[attr-defined]
            if g.rank == 2 and what == "device":
                Device.current = 7
            with pytest.raises(cw.DeviceError) as told:
                g.nccl()
            said.append(str(told.value))
            g.barrier()  # the group goes on
        install(tmp_path, g.rank)
        g.nccl().allReduce()
        return said

    found = outcomes("missing", 3, misses)
    assert found[0] == found[1] == found[2]
    no_cupy, no_nccl, no_device, same = found[0]
    assert (
        "rank 2: it cannot import CuPy" in no_cupy and "rank 2: its CuPy finds no NCCL" in no_nccl
    )
    assert "rank 2: " in no_device and "cuda:7" in no_device
    assert "ranks 0 and 1 are both on the GPU GPU-" in same


@on_the_double
def test_who_is_refused_by_nccl_is_named_to_all(tmp_path: Path) -> None:
    def refused(g: cw.Group, _pipe: Any) -> str:
        install(tmp_path, g.rank, refused=0)
        Communicator.meet = lambda self, what, by_abort=True: None  # type: ignore[method-assign]
        with pytest.raises(cw.DeviceError) as told:
            g.nccl()
        g.barrier()
        return str(told.value)

    for said in outcomes("refused", 2, refused):
        assert "rank 0: NCCL did not join it: NCCL_ERROR_SYSTEM_ERROR" in said


@on_the_double
def test_a_death_while_nccl_joins_is_told(tmp_path: Path) -> None:
    def joins(g: cw.Group, pipe: Any) -> Any:
        install(tmp_path, g.rank)
        if g.rank == 1:  # comes to the group's operation, and never to NCCL's

            def stays(self: Any, *_: Any) -> None:
                pipe.send("there")
                time.sleep(600)

            Communicator.__init__ = stays  # type: ignore[method-assign,assignment]
        with pytest.raises(cw.GroupBroken) as told:
            g.nccl()
        return told.value.rank, told.value.reason

    with group("joining", 3, joins, timeout=None) as (zero, one, two):
        assert one.next() == "there"
        one.kill()
        assert zero.returned() == two.returned() == (1, "died")


@on_the_double
def test_nccl_that_does_not_join_in_time_is_a_timeout(tmp_path: Path) -> None:
    def joins(g: cw.Group, pipe: Any) -> str:
        install(tmp_path, g.rank)
        g.timeout = 0.2
        Communicator.meet = lambda self, what, by_abort=True: time.sleep(600)  # type: ignore[method-assign]
        try:
            g.nccl()
        except (cw.Timeout, cw.GroupBroken) as error:
            return type(error).__name__
        return "made"

    found = outcomes("late", 2, joins)
    assert "Timeout" in found and set(found) <= {"Timeout", "GroupBroken"}


@on_the_double
def test_a_forked_child_ends_no_communicator(tmp_path: Path) -> None:
    def forks(g: cw.Group, _pipe: Any) -> bool:
        install(tmp_path, g.rank)
        communicator = g.nccl()
        child = os.fork()
        if child == 0:
            g._revoke()
            os._exit(int(communicator.aborted))
        _, status = os.waitpid(child, 0)
        communicator.allReduce()
        return os.waitstatus_to_exitcode(status) == 0 and not communicator.aborted

    assert outcomes("fork", 2, forks) == [True] * 2


@cuda_support.second_gpu
@pytest.mark.skipif(not cuda_support.REAL, reason="no GPU")
@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="no CuPy")
def test_nccl_itself_computes_and_ends_when_a_member_is_killed() -> None:
    def reduces(g: cw.Group, pipe: Any) -> Any:
        import cupy
        from cupy.cuda import nccl

        cupy.cuda.Device(g.rank).use()
        communicator = g.nccl()
        x = cupy.full(1000, g.rank + 1, "f4")
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        given = (x.data.ptr, x.data.ptr, 1000, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        communicator.allReduce(*given)
        stream.synchronize()
        total = float(x[-1])
        g.barrier()
        pipe.send("there")
        if g.rank == 1:
            pipe.recv()
        communicator.allReduce(*given)
        stream.synchronize()  # comes back since the communicator is aborted
        with pytest.raises(cw.GroupBroken) as told:
            g.barrier()
        return total, told.value.rank

    with group("nccl", 2, reduces, timeout=None) as (zero, one):
        assert zero.next() == one.next() == "there"
        one.kill()
        assert zero.returned() == (3.0, 1)
