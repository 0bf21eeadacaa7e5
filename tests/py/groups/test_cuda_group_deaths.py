"""Operations of a group on memory of GPUs come after the work that was submitted before; deaths in them are told to all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import cuda_programs
import cuda_support
import group_storm
import pytest
from group_operations import host
from group_support import Member, group, has_arrived, has_reached
from waiting import eventually

import cableway as cw

cuda_support.require()
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")
LOADED = 62  # kernels that are started once to be loaded
gpus = cuda_support.for_module(devices=2)


def streams() -> Any:
    """What programs of tests have of streams."""
    found: dict[str, Any] = {}
    exec(cuda_programs.LIBRARY, found)
    return types.SimpleNamespace(**found)


def held(array: cw.Array, file: str, value: int) -> Any:
    """Gives a stream work on an array of 1000 bytes that ends when the file is there, and says which stream."""
    at = streams()
    stream = at.Stream()
    with array.writing(stream):
        stream.hold(file)
        stream.fill(at.low(array), value)
    return stream


def check_told(facts: dict[str, Any], rank: int, pid: int, reason: str) -> None:
    assert facts["kind"] == "GroupBroken", facts["trace"]
    assert (facts["rank"], facts["pid"], facts["reason"]) == (rank, pid, reason), facts["text"]


def waits(g: cw.Group, pipe: Any, file: str) -> Any:
    """An Allgather; rank 0's elements come from work that is held up."""
    x = cw.full(1000, g.rank, "u1", device="cuda:0")
    stream = held(x, file, 7) if g.rank == 0 else None
    pipe.send("there")
    try:
        return host(g.Allgather(x))[:, -1].tolist()
    finally:
        if stream is not None:
            pipe.send("ended")
            pipe.recv()
            stream.finish()


def test_an_operation_comes_after_the_work_that_was_submitted_before(tmp_path: Path) -> None:
    file = tmp_path / "go"
    with group("after", 2, waits, str(file)) as (zero, one):
        assert (zero.next(), one.next()) == ("there", "there")
        assert eventually(lambda: has_arrived("after", 1, 1))
        assert not has_arrived("after", 0, 1) and not zero.pipe.poll(0.1)
        file.touch()
        assert zero.next() == "ended"
        zero.pipe.send("on")
        assert zero.returned() == one.returned() == [7, 1]


def test_who_waits_for_its_own_gpu_is_told_of_a_death(tmp_path: Path) -> None:
    file = tmp_path / "go"
    with group("own", 3, waits, str(file), timeout=None) as (zero, one, two):
        assert [member.next() for member in (zero, one, two)] == ["there"] * 3
        assert eventually(lambda: has_arrived("own", 1, 1) and has_arrived("own", 2, 1))
        one.kill()
        assert zero.next() == "ended"  # though its GPU is at work still
        check_told(two.raised(), 1, one.pid, "died")
        file.touch()
        zero.pipe.send("on")
        check_told(zero.raised(), 1, one.pid, "died")


def test_work_that_does_not_end_is_a_timeout(tmp_path: Path) -> None:
    file = tmp_path / "go"
    with group("stuck", 2, waits, str(file), timeout=0.5) as (zero, one):
        assert zero.next() == "there" and zero.next() == "ended"
        file.touch()
        zero.pipe.send("on")
        assert one.next() == "there"
        facts = [zero.raised(), one.raised()]
        assert {f["kind"] for f in facts} <= {"Timeout", "GroupBroken"}, facts
        assert "Timeout" in {f["kind"] for f in facts}
        if facts[0]["kind"] == "Timeout":
            assert "the work on the GPU that rank 0 gave" in facts[0]["text"]


def test_ctrl_c_while_the_own_gpu_is_at_work(tmp_path: Path) -> None:
    file = tmp_path / "go"

    def tells_where(g: cw.Group, pipe: Any) -> Any:
        if g.rank == 0:
            signal.signal(signal.SIGUSR1, lambda _, frame: pipe.send(frame.f_code.co_name))
        return waits(g, pipe, str(file))

    with group("interrupt", 2, tells_where, timeout=None) as (zero, one):
        assert (zero.next(), one.next()) == ("there", "there")
        inside = 0
        while inside < 3:  # what the library's wait calls has the frame that has called the library
            os.kill(zero.pid, signal.SIGUSR1)
            inside += zero.next() == "run"
        os.kill(zero.pid, signal.SIGINT)
        assert zero.next() == "ended"
        file.touch()
        zero.pipe.send("on")
        assert zero.raised()["kind"] == "KeyboardInterrupt"
        check_told(one.raised(), 0, zero.pid, "interrupted")


PRODUCER = """
w = cw.get("product"); s = Stream()
with w.writing(s):
    s.hold("never")
    s.fill(low(w), 7)
say()
sys.stdin.read()
"""


def test_what_a_stranger_did_not_complete_is_refused_and_the_group_goes_on() -> None:
    def uses(g: cw.Group, pipe: Any) -> float:
        if g.rank == 0:
            product = cw.get("product")
            pipe.send("there")
            pipe.recv()
            with pytest.raises(cw.ProducerDied) as told:
                g.Allreduce(product)
            assert type(told.value) is cw.ProducerDied, told.value
            with pytest.raises(cw.ProducerDied):
                g.Allreduce(cw.zeros(1000, "u1", device="cuda:0"), product)
            at = streams()
            stream = at.Stream()
            with product.writing(stream, whole=True):
                stream.fill(at.low(product), 1)
        else:
            product = cw.full(1000, 2, "u1", device="cuda:0")
            for _ in range(2):
                with pytest.raises(ValueError, match="rank 0 could not take part .* ProducerDied"):
                    g.Allreduce(product)
        return float(host(g.Allreduce(product))[-1])

    def makes(pipe: Any) -> None:
        cw.put("product", cw.zeros(1000, "u1", device="cuda:0"), keep=True)

    maker = Member(makes)
    maker.returned()
    child = subprocess.Popen(
        [sys.executable, "-c", cuda_programs.LIBRARY + PRODUCER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    with group("stranger", 2, uses) as (zero, one):
        assert zero.next() == "there"
        child.kill()
        child.communicate()
        zero.pipe.send("on")
        assert zero.returned() == one.returned() == 3
    maker.end()
    cw.remove("product")


def test_what_a_member_did_not_complete_is_told_as_its_death(tmp_path: Path) -> None:
    def uses(g: cw.Group, pipe: Any) -> None:
        arrays = g.empty(1000, "u1", device="cuda:0")
        stream = held(arrays[0], str(tmp_path / "never"), 7) if g.rank == 1 else None
        pipe.send("there")
        pipe.recv()
        g.Allreduce(arrays[0])
        del stream

    with group("member", 2, uses, timeout=None) as (zero, one):
        assert (zero.next(), one.next()) == ("there", "there")
        zero.pipe.send("on")
        one.kill()
        check_told(zero.raised(), 1, one.pid, "died")


@on_the_double
@pytest.mark.parametrize(
    ("operation", "work"),
    [("Allgather", "copy@3+"), ("Allreduce", f"kernel@{LOADED + 3}+"), ("Allreduce", "copy@3+")],
)
def test_work_that_fails_breaks_the_group_and_says_whose_it_was(operation: str, work: str) -> None:
    def fails(g: cw.Group, pipe: Any) -> None:
        if g.rank == 1:
            os.environ["CABLEWAY_FAKECUDA_FAULTS"] = f"{work}=ILLEGAL_ADDRESS"
        x = cw.full(50_000, 1.0, device="cuda:0")  # so large that an Allreduce copies slices
        for _ in range(5):
            getattr(g, operation)(x)

    with group("fault", 3, fails, timeout=None) as (zero, one, two):
        assert one.raised()["kind"] == "DeviceError"
        for member in (zero, two):
            check_told(member.raised(), 1, one.pid, "failed")


@on_the_double
@pytest.mark.parametrize(
    ("operation", "work"),
    [
        ("Allgather", "copy@4+"),
        ("Allreduce", f"kernel@{LOADED + 4}+"),
        ("Allreduce", "copy@4+"),
        ("Reduce_scatter", f"kernel@{LOADED + 4}+"),
        ("Alltoall", "copy@4+"),
        ("Bcast", "copy@4+"),
    ],
)
def test_who_is_killed_in_its_work_is_named_and_the_others_go_on(operation: str, work: str) -> None:
    name = f"copy/{operation}"

    def copies(g: cw.Group, pipe: Any) -> float:
        if g.rank == 1:
            os.environ["CABLEWAY_FAKECUDA_FAULTS"] = f"{work}=until:/nowhere"
        x = cw.full(60_000, 1.0, device="cuda:0")
        pipe.send("there")
        for _ in range(5):
            try:
                getattr(g, operation)(x)
            except cw.GroupBroken as error:
                assert (error.rank, error.reason) == (1, "died")
                break
        g.reform()
        return float(host(g.Allreduce(x))[-1])

    with group(name, 3, copies, timeout=None) as (zero, one, two):
        assert [member.next() for member in (zero, one, two)] == ["there"] * 3
        assert eventually(lambda: has_reached(name, 1, 2))
        one.kill()
        assert zero.returned() == two.returned() == 2


def test_members_killed_at_random_points() -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    told, _ = group_storm.storm(16, seed, group_storm.ON_GPUS)
    assert len(told) == 16, "all were told of each death, and the last two members went on"
