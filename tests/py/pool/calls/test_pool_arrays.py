"""What the Pool promises of arrays: one copy, the same array at the other end, memory that comes back."""

from __future__ import annotations

import array
import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from conftest import PATH, Script, disconnect, eventually, stop_broker
from pool_support import LONG

import cableway as cw
from cableway._core import programs
from cableway._transport import blocks as buffers
from cableway._transport import message as wire

MIB = 1 << 20


def gauges() -> dict[str, int]:
    """What the broker tells about itself."""
    cw.names()  # so that one runs
    program = [programs.path("cableway"), "status", "--json"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)["gauges"]
    return found


def kinds() -> list[np.ndarray[Any, Any]]:
    """Arrays of all sorts, each of more than 64 KiB."""
    structured = np.zeros(9000, [("a", "i4"), ("b", "f8", (3,)), ("c", "S5")])
    structured["a"] = np.arange(9000)
    structured["c"] = b"xyz"
    cube = np.arange(40 * 50 * 60, dtype="f8").reshape(40, 50, 60)
    readonly = np.arange(30_000.0)
    readonly.setflags(write=False)
    return [
        np.arange(100_000),
        cube,
        np.asfortranarray(cube),
        cube.transpose(1, 0, 2),
        cube.T,
        cube[:, ::2, 1:],
        cube[::-1],
        np.broadcast_to(np.arange(5.0), (30_000, 5)),
        np.arange(200_000, dtype="u1")[::2],
        structured,
        structured[::2],
        np.ones(50_000, "c16"),
        np.full(30_000, np.datetime64("2024-05-06T07:08:09", "s")),
        np.full(30_000, np.timedelta64(5, "D")),
        np.full(20_000, "text", "U7"),
        np.ones(70_000, "?"),
        np.ones(60_000, "f2"),
        readonly,
        np.zeros((9000, 0, 9000)),
        np.arange(20_000.0).reshape(1, 20_000),
    ]


def test_every_array_arrives_as_with_the_standard_pool(pool: cw.Pool) -> None:
    arrays = kinds()
    with multiprocessing.get_context("fork").Pool(1) as standard:
        # As it is before Python 3.14, whose standard pool keeps the axes of a transposed array turned in memory, too.
        arrived = [pickle.loads(pickle.dumps(array, 4)) for array in arrays]
        expected = standard.map(tasks.describe, arrived)
    assert pool.map(tasks.describe, arrays, chunksize=3) == expected
    arrays.append(
        np.arange(40_000, dtype=">i4")
    )  # the standard pool turns it into the native order
    for given, got in zip(arrays, pool.map(tasks.same, arrays, chunksize=1), strict=True):
        assert got.dtype == given.dtype and got.shape == given.shape
        assert got.tobytes() == given.tobytes()
        assert got.flags.writeable


def test_small_arrays_and_objects_travel_inside_the_message(pool: cw.Pool) -> None:
    for value in (
        np.arange(10), np.float64(3), np.array(5), np.array(["a", None], object), np.zeros(0),
        np.full(20_000, None), [np.arange(3)] * 3, {"a": (1, 2.5, "x", b"y", None, {1})},
        np.ma.masked_array([1, 2], [True, False]), np.dtype("f4"), np.add, complex(1, 2),
    ):  # fmt: skip
        found = pool.apply(tasks.same, (value,))
        assert type(found) is type(value) and repr(found) == repr(value)


@pytest.mark.parametrize("nbytes", [0, 1, 60_000, 65_535, 65_536, 70_000, 262_144, 5 * MIB])
def test_messages_of_every_size_arrive(forked: cw.Pool, nbytes: int) -> None:
    text = os.urandom(nbytes)
    for value in (
        text,
        bytearray(text),
        array.array("B", text),
        np.frombuffer(text, "u1"),
        [text, text[::-1]],
    ):
        assert (
            forked.apply(tasks.same, (value,)) == value
            if not isinstance(value, np.ndarray)
            else True
        )
    found = forked.apply(tasks.same, (np.frombuffer(text, "u1"),))
    assert found.tobytes() == text


def test_subclasses_and_buffers_of_others_arrive(forked: cw.Pool) -> None:
    masked = np.ma.masked_greater(np.arange(50_000), 40_000)
    found = forked.apply(tasks.same, (masked,))
    assert (
        type(found) is type(masked)
        and (found.mask == masked.mask).all()
        and found.sum() == masked.sum()
    )
    records = np.zeros(9000, [("a", "i8"), ("b", "f8")]).view(np.recarray)
    assert type(forked.apply(tasks.same, (records,))) is np.recarray
    wrapped = pickle.PickleBuffer(bytearray(b"x" * 200_000))
    assert forked.apply(bytes, (wrapped,)) == b"x" * 200_000
    assert forked.apply(len, (pickle.PickleBuffer(b"x" * 100),)) == 100


def test_a_workers_view_is_its_own_to_write(pool: cw.Pool) -> None:
    given = np.arange(100_000.0)
    given.setflags(write=False)
    assert pool.map(tasks.overwrite, [given] * 6, chunksize=2) == [0.0] * 6
    assert (given == np.arange(100_000.0)).all()


def test_a_result_is_the_callers_own_to_write_and_to_keep(pool: cw.Pool) -> None:
    kept = []
    for i in range(30):
        found = pool.apply(tasks.same, (np.full(20_000, i),))
        found += 1
        kept.append(found)
    assert all((found == i + 1).all() for i, found in enumerate(kept))
    pool.close()
    pool.join()
    assert all((found == i + 1).all() for i, found in enumerate(kept))


def test_an_argument_that_a_worker_keeps_is_never_written_over() -> None:
    with cw.Pool(1, context="fork") as pool:
        for i in range(40):
            assert pool.apply(tasks.kept, (np.full(30_000, i),)) == i + 1
            pool.apply(tasks.same, (np.full(30_000, -1),))
        assert pool.apply(tasks.kept_are_whole, (None,))


def test_a_child_by_fork_keeps_seeing_a_result(forked: cw.Pool) -> None:
    found = forked.apply(tasks.same, (np.full(30_000, 7),))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0 if (found == 7).all() else 1)
    del found
    gc.collect()
    for _ in range(20):  # would use the block again if it could
        forked.apply(tasks.same, (np.full(30_000, 9),))
    os.write(write, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(read)
    os.close(write)


def test_the_same_array_twice_in_one_message_is_one_array(forked: cw.Pool) -> None:
    given = np.arange(20_000)
    first, second = forked.apply(tasks.same, ([given, given],))
    assert first is second


def test_many_arrays_in_one_message_arrive(forked: cw.Pool) -> None:
    given = [np.full(10_000, i) for i in range(300)]
    for got, sent in zip(forked.apply(tasks.same, (given,)), given, strict=True):
        assert (got == sent).all()


def test_large_arguments_of_local_functions_arrive(forked: cw.Pool) -> None:
    weights = np.arange(50_000.0)
    assert forked.map(lambda x: float(weights.sum()) + x, range(3)) == [
        weights.sum() + x for x in range(3)
    ]


# ---- cableway.Array


def test_an_array_of_ours_travels_as_a_handle(pool: cw.Pool) -> None:
    w = cw.zeros(100_000)
    assert pool.apply(tasks.fill, (w, 3.0)) is None
    assert (w.numpy() == 3).all()
    assert (
        pool.starmap(tasks.fill, [(w[i * 10 : i * 10 + 10], float(i)) for i in range(20)], 3)
        == [None] * 20
    )
    assert w.numpy()[:200].reshape(20, 10).tolist() == [[float(i)] * 10 for i in range(20)]
    named = cw.put("pool/named", np.arange(10.0))
    assert pool.map(tasks.sum_of, [named, named[2:4], named.T]) == [45.0, 5.0, 45.0]


def test_a_worker_returns_an_array_of_ours(pool: cw.Pool) -> None:
    made = pool.map(tasks.new_array, [10, 100_000, 1], chunksize=1)
    assert [float(a.numpy().sum()) for a in made] == [50.0, 500_000.0, 5.0]
    pool.close()
    pool.join()
    assert [float(a.numpy().sum()) for a in made] == [50.0, 500_000.0, 5.0]


def test_an_array_whose_sender_let_go_arrives(pool: cw.Pool) -> None:
    results = [pool.apply_async(tasks.sum_of, (cw.full(1000, float(i)),)) for i in range(40)]
    assert [r.get(LONG) for r in results] == [1000.0 * i for i in range(40)]


def test_nothing_stays_of_a_result_that_cannot_be_sent(forked: cw.Pool) -> None:
    before = gauges()["transits"]
    for _ in range(5):
        with pytest.raises(multiprocessing.pool.MaybeEncodingError):  # type: ignore[attr-defined]
            forked.apply(tasks.arrays_and_a_lambda, (20_000,))
    assert eventually(lambda: gauges()["transits"] == before)


# ---- memory


def test_memory_is_used_again(forked: cw.Pool) -> None:
    given = np.arange(1_000_000.0)
    before = gauges()["bytes"]
    for _ in range(50):  # 1.6 GB in all
        for found in forked.map(tasks.doubled, [given] * 2, chunksize=1):
            assert found[-1] == 2 * given[-1]
    assert gauges()["bytes"] - before <= 12 * given.nbytes * 1.25


def test_pools_leave_no_memory_behind() -> None:
    def use() -> None:
        with cw.Pool(2, context="fork") as pool:
            given = np.arange(300_000.0)
            for found in pool.map(tasks.doubled, [given] * 8, chunksize=1):
                assert found[1] == 2
            with pytest.raises(cw.WorkerDied):
                pool.map(tasks.killed, [given] * 3, chunksize=1)
            with pytest.raises(tasks.Fault):
                pool.apply(tasks.fail_holding, (given,))

    use()
    gc.collect()
    disconnect()
    cw.names()
    assert eventually(lambda: gauges()["clients"] == 1 and gauges()["orphan_slabs"] == 0), gauges()
    before = gauges()
    for _ in range(5):
        use()
    gc.collect()
    disconnect()
    cw.names()
    assert eventually(
        lambda: gauges()["bytes"] <= before["bytes"] and gauges()["slabs"] <= before["slabs"]
    ), (
        before,
        gauges(),
    )


def test_an_idle_pool_keeps_memory_up_to_its_limit() -> None:
    store = buffers.BlockStore(MIB)
    blocks = [store.take(200_000) for _ in range(20)]
    for block in blocks:
        block.lend()
    opened = [buffers.open_block(block.handle, 200_000) for block in blocks]
    store.lent(blocks, "receiver")
    assert store._lent_bytes <= MIB
    del opened
    gc.collect()
    for _ in range(3):
        store.untake([store.take(150_000)])
    assert store._lent_bytes + store._free_bytes <= 2 * MIB
    store.lost("receiver")
    assert store._lent_bytes == 0
    store.close()


def test_a_block_beyond_the_limit_is_not_kept() -> None:
    store = buffers.BlockStore(MIB)
    large = store.take(8 * MIB)
    store.untake([large])
    assert store._free_bytes == 0
    small = store.take(200_000)
    store.untake([small])
    assert store.take(200_000) is small
    store.close()


def test_a_block_comes_back_with_the_last_view(forked: cw.Pool) -> None:
    store = buffers.BlockStore(64 * MIB)
    encoder = wire.Encoder(store, 60_000, transit=False)
    parcel = encoder.encode(1, 0, b"lead", np.arange(50_000))
    message = wire.read(memoryview(parcel.data))
    found = wire.loads(message)
    store.lent(parcel.blocks, None)
    assert bytes(message.lead) == b"lead" and message.task == 1
    part = found[5:10]
    del found, message
    assert parcel.blocks[0].state == buffers.OPENED
    del part
    gc.collect()
    assert parcel.blocks[0].state == buffers.RETURNED
    assert store.take(400_000) is parcel.blocks[0]


def test_a_limit_is_told_to_the_caller_and_the_pool_goes_on(script: Script, tmp_path: Path) -> None:
    (folder := tmp_path / "small").mkdir(mode=0o700)
    limits = {"CABLEWAY_DIR": str(folder), "CABLEWAY_MAX_USER_BYTES": str(64 * MIB)}
    done = script(
        f"""
        import sys
        sys.path[:0] = {PATH!r}
        import numpy as np
        import cableway as cw
        import pool_tasks as tasks

        if __name__ == "__main__":
            with cw.Pool(2, context="fork") as pool:
                for call in (
                    lambda: pool.apply(tasks.large, (100 << 20,)),
                    lambda: pool.apply(tasks.sum_of, (np.ones(100 << 20, "u1"),)),
                ):
                    try:
                        call()
                    except cw.LimitExceeded as error:
                        print("max_user_bytes" in str(error))
                assert (pool.apply(tasks.same, (np.ones(1 << 20, "u1"),)) == 1).all()
                print(pool.map(tasks.square, [3]))
        """,
        env={**os.environ, **limits},
    )
    stop_broker(folder)
    assert done.stdout.split() == ["True", "True", "[9]"], (done.stdout, done.stderr)


def test_a_message_that_cannot_be_is_refused() -> None:
    encoder = wire.Encoder(buffers.BlockStore(MIB), 60_000, transit=False)
    data = bytearray(encoder.encode(1, 0, b"", [1, 2]).data)
    data[16] += 1
    with pytest.raises(ValueError, match="says that it has"):
        wire.read(memoryview(bytes(data)))


@pytest.fixture
def short_transits(broker_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broker that ends what nobody opens after five seconds instead of five minutes."""
    disconnect()
    stop_broker(broker_folder)
    monkeypatch.setenv("CABLEWAY_TRANSIT_SECONDS", "5")
    yield
    disconnect()
    stop_broker(broker_folder)


@pytest.mark.usefixtures("short_transits")
def test_the_dead_leave_nothing_in_the_broker(script: Script) -> None:
    """Results that a killed parent had not opened yet go when their transit leases end."""
    cw.names()
    before = gauges()
    done = script(
        f"""
        import os, sys, time
        sys.path[:0] = {PATH!r}
        import numpy as np
        import cableway as cw
        import pool_tasks as tasks

        if __name__ == "__main__":
            pool = cw.Pool(2, context="fork")
            big = np.ones(1 << 20)
            kept = pool.map(tasks.doubled, [big] * 4)
            arrays = pool.map(tasks.new_array, [100_000] * 4)
            pool.map_async(tasks.doubled, [big] * 20, chunksize=1)
            pool.map_async(tasks.new_array, [100_000] * 20, chunksize=1)
            time.sleep(0.1)
            os.kill(os.getpid(), 9)
    """,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    same: Callable[[], bool] = lambda: all(  # noqa: E731
        gauges()[name] <= before[name] for name in ("clients", "transits", "bytes", "slabs")
    )
    assert eventually(same), (before, gauges())


@pytest.mark.parametrize(
    "open_one", [buffers.open_block, buffers.open_lease, buffers.open_silently]
)
def test_what_went_with_its_broker_is_lost_with_it_and_not_a_handle_of_the_users(open_one):
    """Where another broker runs by the time when a message is opened."""
    store = buffers.BlockStore(MIB)
    block = store.take(200_000)
    assert open_one(block.handle, 16) is not None
    raw = buffers.ffi.new("cw_handle *")
    buffers.ffi.memmove(raw, block.handle, buffers.ffi.sizeof("cw_handle"))
    raw.instance += 1
    with pytest.raises(cw.BrokerLost, match="call again"):
        open_one(bytes(buffers.ffi.buffer(raw)), 16)
