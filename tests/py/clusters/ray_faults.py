"""What cableway.ray promises when processes end. Runs in the environment of Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray_cluster
from ray_cluster import MIB, SECONDS, Maker, Reader, eventually, kill, used

from cableway import client

ROUNDS = int(os.environ.get("CABLEWAY_TEST_RAY_ROUNDS", "5"))


def get(reference: Any) -> Any:
    return ray.get(reference, timeout=SECONDS)


def maker_killed() -> None:
    """Whoever has the reference goes on without the actor that made the arrays: at once, and for new readers."""
    reader = Reader.remote()
    assert get(reader.pid.remote())
    before = used()
    for fill in range(ROUNDS):
        maker = Maker.remote()
        some = [maker.ones.remote(16, float(fill)), maker.call.remote(lambda: [np.ones(MIB)] * 2)]
        ray.wait(some, num_returns=2, timeout=SECONDS)
        kill(maker)
        assert get(reader.total.remote(some[0])) == 2 * MIB * fill
        assert get(some[0]).sum() == 2 * MIB * fill
        late = Reader.remote()
        assert (
            get(late.call.remote(lambda two: float(two[0].sum() + two[1].sum()), some[1]))
            == 2 * MIB
        )
        kill(late)
        del some
        assert eventually(lambda: used() <= before), used()


class Again:
    """An actor that Ray restarts, and that knows of cableway by its name alone."""

    @ray.method(tensor_transport="cableway_numpy")
    def ones(self, count: int) -> Any:
        return np.ones(count)

    def totals(self, *some: Any) -> list[float]:
        return [float(x.sum()) for x in some]

    def pid(self) -> int:
        return os.getpid()


def maker_restarted() -> None:
    """It gets back what it made before, like any reader; and makes and reads anew."""
    reader, other = Reader.remote(), Maker.remote()
    before = used()
    again = ray.remote(num_cpus=0, max_restarts=-1)(Again).remote()
    for _ in range(ROUNDS):
        x, y = again.ones.remote(2 * MIB), other.ones.remote(8)
        assert get(again.totals.remote(x, y, x)) == [2 * MIB, MIB, 2 * MIB]
        pid = get(again.pid.remote())
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda pid=pid: new_pid(again) not in (None, pid))
        start = time.monotonic()
        calls = [again.totals.remote(x), again.totals.remote(y, x), again.totals.remote(x, x)]
        assert get(calls) == [[2 * MIB], [MIB, 2 * MIB], [2 * MIB] * 2]
        z = again.ones.remote(MIB)
        assert get(again.totals.remote(z)) == [MIB] == get(again.totals.remote(z))
        assert get(reader.total.remote(x)) == 2 * MIB and get(reader.total.remote(z)) == MIB
        assert time.monotonic() - start < SECONDS / 2
        del x, y, z, calls
        assert eventually(lambda: used() <= before), used()


def new_pid(actor: Any) -> int | None:
    """None: it is on its way."""
    try:
        return int(ray.get(actor.pid.remote(), timeout=SECONDS))
    except ray.exceptions.RayActorError:
        return None


def reader_killed() -> None:
    """Nothing is lost for others, and nothing leaks."""
    maker = Maker.remote()
    get(maker.pid.remote())
    before = used()
    for fill in range(ROUNDS):
        x = maker.ones.remote(16, float(fill))
        dying, other = Reader.remote(), Reader.remote()
        assert get(dying.keep.remote(x)) == 16 * MIB
        kill(dying)
        assert get(other.total.remote(x)) == 2 * MIB * fill
        del x
        assert eventually(lambda: used() <= before), used()
        kill(other)


def transfers_failed() -> None:
    """Ray goes on after transfers to a dead reader: an actor of a later transfer ends when nobody has a handle of it, without PyTorch, too."""
    maker, dies = Maker.remote(), Reader.remote()
    pid = get(dies.pid.remote())
    assert get(dies.total.remote(maker.ones.remote(1))) == MIB / 8  # it has learnt of transports
    os.kill(pid, signal.SIGSTOP)  # so that it receives nothing before it dies
    calls = [dies.total.remote(maker.ones.remote(1)) for _ in range(ROUNDS)]
    get(maker.pid.remote())
    os.kill(pid, signal.SIGKILL)
    for call in calls:
        try:
            get(call)
            raise AssertionError("nobody could answer")
        except ray.exceptions.RayActorError:
            pass
    ended: list[int] = []
    for _ in range(4):
        later, reader = Maker.remote(), Reader.remote()
        pids = get([later.pid.remote(), reader.pid.remote()])
        assert get(reader.total.remote(later.ones.remote(1))) == MIB / 8
        del later, reader
        # Ray keeps the handles of the latest transfer until the next one
        assert eventually(lambda pids=tuple(ended): not any(map(running, pids))), ended
        ended += pids


def running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def owner_killed() -> None:
    """An actor that called another's method and dies: what it had called for is free."""
    maker = Maker.remote()
    get(maker.pid.remote())
    before = used()
    for _ in range(ROUNDS):
        owner = Reader.remote()

        def calls(maker: Any) -> float:
            import builtins

            builtins.x = maker.ones.remote(16)  # type: ignore[attr-defined]
            return float(ray.get(builtins.x).sum())  # type: ignore[attr-defined]

        assert get(owner.call.remote(calls, maker)) == 2 * MIB
        assert used() - before >= 16 * MIB
        kill(owner)
        reader = Reader.remote()
        assert get(reader.total.remote(maker.ones.remote(8))) == MIB


SECOND = """
import sys
import ray
from ray_cluster import MIB, Maker
ray.init(address=sys.argv[1], namespace="second", log_to_driver=False)
maker = Maker.options(name="stays", lifetime="detached").remote()
some = [maker.ones.remote(16), maker.ones.remote(16)]
assert ray.get(some[1]).sum() == 2 * MIB
ray.shutdown()
"""


def lives_on() -> None:
    """When a program has ended its session, what it had called for is free, also where the actor that made it lives on."""
    before = used()
    address = ray.get_runtime_context().gcs_address
    for _ in range(2):
        subprocess.run([sys.executable, "-c", SECOND, address], check=True, timeout=2 * SECONDS)
        stays = ray.get_actor("stays", namespace="second")
        assert get(stays.objects.remote()) == 0
        assert eventually(lambda: used() <= before), used()
        kill(stays)


def broker_killed() -> None:
    """Results are right, nobody hangs, and the next broker shares again."""
    for fill in range(1, ROUNDS + 1):
        maker, (first, second) = Maker.remote(), (Reader.remote(), Reader.remote())
        x = maker.ones.remote(16, float(fill))
        assert get(first.keep.remote(x)) == 16 * MIB
        os.kill(client.current().broker_pid, signal.SIGKILL)
        assert get(first.kept_total.remote()) == 2 * MIB * fill
        assert get(second.total.remote(x)) == 2 * MIB * fill
        assert get(x).sum() == 2 * MIB * fill
        assert get(second.total.remote(first.twice.remote(x))) == 4 * MIB * fill

        def shares(maker: Any = maker, second: Any = second) -> bool:
            return bool(get(second.keep.remote(maker.ones.remote(8))) == 8 * MIB)

        assert eventually(shares)
        y = maker.ones.remote(8)
        os.kill(client.current().broker_pid, signal.SIGKILL)
        assert get(second.total.remote(y)) == MIB
        # without a broker whose arrays these are, and without their actor: an error, and at once
        kill(maker)
        start = time.monotonic()
        try:
            get(second.total.remote(x))
            raise AssertionError("the arrays are gone")
        except ray.exceptions.RayTaskError as error:
            assert "the actor that made them did not send them" in str(error), error
        assert time.monotonic() - start < SECONDS / 2
        assert get(second.pid.remote())
        for actor in (first, second):
            kill(actor)


def broker_killed_after_put() -> None:
    """What a driver has put is there for the driver and for actors as long as the driver is."""
    for fill in range(1, ROUNDS + 1):
        early, late = Reader.remote(), Reader.remote()
        some = [
            ray.put(np.full(MIB, float(fill)), _tensor_transport="cableway_numpy") for _ in "ab"
        ]
        assert get(early.keep.remote(some[0])) == 8 * MIB
        known = client.current()
        os.kill(known.broker_pid, signal.SIGKILL)
        assert eventually(lambda known=known: known.lost)
        for x in some:
            for reader in (early, late):
                assert get(reader.total.remote(x)) == MIB * fill
            assert get(x).sum() == MIB * fill
        assert get(early.keep.remote(some[0])) == 0
        shared = ray.put(np.ones(MIB), _tensor_transport="cableway_numpy")
        assert eventually(lambda r=late, x=shared: get(r.keep.remote(x)) == 8 * MIB)
        for actor in (early, late):
            kill(actor)


def broker_killed_amid_reads() -> None:
    """A reader that was told where the arrays lie, and comes after the broker's death, has them from whoever made them."""
    reader, maker = Reader.remote(), Maker.remote()
    pid = get(reader.pid.remote())
    for fill in range(1, ROUNDS + 1):
        put = ray.put(np.full(4 * MIB, float(fill)), _tensor_transport="cableway_numpy")
        two = ray.put(
            [np.full(MIB, 2.0), np.arange(6).reshape(2, 3).T], _tensor_transport="cableway_numpy"
        )
        made = maker.ones.remote(16, float(fill))
        assert eventually(lambda x=put: get(reader.keep.remote(x)) == 32 * MIB)
        assert get(reader.keep.remote(made)) == 16 * MIB
        known = client.current()
        os.kill(pid, signal.SIGSTOP)
        try:
            told = [
                reader.total.remote(put),
                reader.total.remote(made),
                reader.call.remote(same, two),
            ]
            assert not known.lost  # they name blocks
            os.kill(known.broker_pid, signal.SIGKILL)
            assert eventually(lambda known=known: known.lost)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert get(told) == [4 * MIB * fill, 2 * MIB * fill, True]


def same(two: Any) -> bool:
    return bool(
        (two[0] == 2).all()
        and (two[1] == np.arange(6).reshape(2, 3).T).all()
        and two[1].flags.f_contiguous
    )


def no_broker() -> None:
    """A setting with which none can be reached: all goes through Ray's object store."""
    maker, reader = Maker.remote(), Reader.remote()
    x = maker.ones.remote(16)
    assert get(reader.keep.remote(x)) == 0
    assert get(reader.spoil.remote(x)) == 14 * MIB
    assert get(x).sum() == 2 * MIB
    put = ray.put(np.ones(MIB), _tensor_transport="cableway_numpy")
    assert get(reader.total.remote(put)) == MIB == get(put).sum()
    kill(maker)  # then the error names what only the actor had met
    try:
        get(reader.total.remote(x))
        raise AssertionError("the arrays are gone")
    except ray.exceptions.RayTaskError as error:
        assert "they are not in shared memory: " in str(error), error
        assert os.environ["CABLEWAY_DIR"] in str(error), error


if __name__ == "__main__":
    ray_cluster.main(
        {
            f.__name__: f
            for f in (
                maker_killed,
                maker_restarted,
                reader_killed,
                transfers_failed,
                owner_killed,
                lives_on,
                broker_killed,
                broker_killed_after_put,
                broker_killed_amid_reads,
                no_broker,
            )
        }
    )
