"""What cableway.ray promises while nobody dies. Runs in the environment of Ray."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import numpy as np
import pandas
import pytest
import ray
import ray_cluster
from ray_cluster import MIB, SECONDS, Maker, Reader, eventually, stored, used, warnings_here

import cableway as cw
import cableway.ray
from cableway._ray import blocks, metadata
from cableway.ray import shared_bytes


def get(reference: Any) -> Any:
    return ray.get(reference, timeout=SECONDS)


def readers(count: int) -> list[Any]:
    return [Reader.remote() for _ in range(count)]


def sharing() -> None:
    """One copy for all readers, each with a view that it may write to."""
    maker, some = Maker.remote(), readers(3)
    before = 0
    x = maker.ones.remote(32)
    assert get([each.keep.remote(x) for each in some]) == [32 * MIB] * 3
    assert 32 * MIB <= used() - before < 64 * MIB, used()
    assert get(some[0].spoil.remote(x)) == 7 * 4 * MIB
    mine = get(x)
    mine[:] = 9
    assert get([each.total.remote(x) for each in some]) == [4 * MIB] * 3
    assert get([each.kept_total.remote() for each in some]) == [4 * MIB] * 3
    assert get(maker.plainly.remote(stored)) == 1
    del x
    assert eventually(lambda: get(maker.objects.remote()) == 0)
    assert get([each.kept_total.remote() for each in some]) == [4 * MIB] * 3  # readers keep theirs
    assert mine.sum() == 9 * 4 * MIB
    del mine
    get([each.drop.remote() for each in some])
    assert eventually(lambda: used() <= before), used()


VALUES: list[Any] = [
    np.arange(MIB, dtype="i4").reshape(64, -1),
    np.asfortranarray(np.arange(MIB, dtype="f4").reshape(64, -1)),
    np.arange(MIB, dtype="u2")[::3],
    np.arange(MIB).reshape(128, -1).T[5:, ::2],
    np.full(MIB, 1 + 2j),
    np.array("2026-11-28", "M8[s]") + np.arange(MIB),
    np.zeros(MIB, [("a", "u1"), ("b", ">f8")]),
    np.array(["ab", "cde"] * MIB),
    np.ones((MIB, 0)),
    np.empty((0, 3), "i2"),
    np.array(5.0),
    np.array([True, False]),
    np.array([""]),
    np.broadcast_to(np.float32(3), (512, 512)),
]


def values() -> None:
    """All kinds of arrays arrive as they were, also several in one object, and beside other things."""
    maker, reader = Maker.remote(), Reader.remote()
    for value in [*VALUES, VALUES, {"x": VALUES[0], "y": (1, "two", VALUES[10])}, "none", []]:
        sent = maker.call.remote(lambda v: v, value)
        for found in (get(reader.call.remote(lambda v: v, sent)), get(sent)):
            same(found, value)
        by_put = ray.put(value, _tensor_transport="cableway_numpy")
        same(get(by_put), value)
        same(get(reader.call.remote(lambda v: v, by_put)), value)


def subclasses() -> None:
    """What has no plain arrays goes as always, also if it was put."""
    maker, reader = Maker.remote(), Reader.remote()
    masked = np.ma.masked_less(np.arange(9), 4)
    for value in (
        {"loss": np.float32(1)},
        np.float64(5),
        [np.float32(1), np.int8(2)],
        np.matrix([[1, 2], [3, 4]]),
        np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
        masked,
        [masked, np.ones(3)],
        5,
        "s",
        {"a": 1},
    ):
        put = ray.put(value, _tensor_transport="cableway_numpy")
        sent = maker.call.remote(lambda v: v, value)
        for found in (
            get(put),
            get(reader.call.remote(lambda v: v, put)),
            get(sent),
            get(reader.call.remote(lambda v: v, sent)),
        ):
            assert type(found) is type(value) and str(found) == str(value), (found, value)


def objects() -> None:
    """Arrays of Python objects go as always, in each session from the first one on; the other arrays beside and within them are shared."""
    within = np.array([None, {"x": np.ones(MIB)}, "text"], dtype=object)
    record = np.array([(1, "a")], dtype=[("n", "i4"), ("o", "O")])
    frame = pandas.DataFrame(
        {"x": np.ones(MIB), "y": np.arange(float(MIB)), "n": range(MIB), "name": ["a"] * MIB}
    )
    frame["day"], frame["good"] = np.arange(MIB).astype("M8[s]"), np.arange(MIB) % 3 == 0
    frame["any"] = np.array([None, "b"] * (MIB // 2), dtype=object)
    for _ in range(2):
        ray.put(within, _tensor_transport="cableway_numpy")
        maker, reader = Maker.remote(), Reader.remote()
        for value in (within[[0, 2]], record, [record, np.ones(3)]):
            for x in by_both_ways(maker, value):
                same(get(x), value)
                same(get(reader.call.remote(lambda v: v, x)), value)
        for x in by_both_ways(maker, within):
            assert get(reader.call.remote(lambda v: shared_bytes(v[1]["x"]), x)) == 8 * MIB
            assert get(x)[1]["x"].sum() == MIB
        for x in by_both_ways(maker, frame):
            assert get(x).equals(frame)
            assert get(reader.call.remote(lambda v, frame: v.equals(frame), x, frame))
            for column, size in (("x", 8), ("y", 8), ("n", 8), ("day", 8), ("good", 1)):
                assert get(reader.call.remote(column_shared, x, column)) == size * MIB
        del x
        assert eventually(lambda: get(maker.objects.remote()) == 0)  # noqa: B023
        ray.shutdown()
        ray_cluster.start()


def by_both_ways(maker: Any, value: Any) -> list[Any]:
    return [
        ray.put(value, _tensor_transport="cableway_numpy"),
        maker.call.remote(lambda v: v, value),
    ]


def column_shared(frame: Any, column: str) -> int:
    return shared_bytes(frame[column].to_numpy())


def one_store() -> None:
    """An actor's store of tensors is there before the first transfer: Ray lets two threads make one each."""
    reader = Reader.remote()
    assert get(reader.call.remote(store_is_made))
    assert get(reader.total.remote(ray.put(np.ones(MIB), _tensor_transport="cableway_numpy")))


def store_is_made() -> bool:
    return ray._private.worker.global_worker._rdt_manager is not None


def starts_again() -> None:
    """Ray is started again where its process for the node has ended before it was ready, which takes Ray 30 s to see."""
    ray.shutdown()
    services, killed = ray._private.services, []
    real = services.start_raylet

    def start_raylet(*arguments: Any, **options: Any) -> Any:
        started = real(*arguments, **options)
        if not killed:
            started.process.kill()
            killed.append(started)
        return started

    services.start_raylet = start_raylet
    ray_cluster.start()
    services.start_raylet = real
    assert killed
    assert get(Reader.remote().total.remote(Maker.remote().ones.remote(1))) == MIB / 8


def priority() -> None:
    """Actors have the priority of this process (`ray_runs`): a busy machine does not starve them, while we wait for them."""
    assert get(Reader.remote().call.remote(os.nice, 0)) == os.nice(0)


def sessions() -> None:
    """What a session has put is free when it has ended, though references are there; the next one has values of its own."""
    references = []
    for fill in range(3):
        references.append(
            ray.put(np.full(4 * MIB, float(fill)), _tensor_transport="cableway_numpy")
        )
        maker, reader = Maker.remote(), Reader.remote()
        references.append(maker.ones.remote(8, float(fill)))
        assert get(reader.total.remote(references[-2])) == 4 * MIB * fill
        assert get(references[-1]).sum() == MIB * fill
        ray.shutdown()
        assert eventually(lambda: used() == 0), used()
        assert stored() == 0
        ray_cluster.start()


def same(found: Any, value: Any) -> None:
    assert type(found) is type(value)
    if isinstance(value, dict):
        assert found.keys() == value.keys()
        same([*found.values()], [*value.values()])
    elif isinstance(value, (list, tuple)):
        assert len(found) == len(value)
        for a, b in zip(found, value, strict=True):
            same(a, b)
    elif isinstance(value, np.ndarray):
        assert found.dtype == value.dtype and found.shape == value.shape
        assert (found == value).all()
        if found.flags.f_contiguous or found.flags.c_contiguous:
            order = value.flags.f_contiguous and not value.flags.c_contiguous
            assert (found.flags.f_contiguous and not found.flags.c_contiguous) == order
    else:
        assert found == value


def idioms() -> None:
    """What Ray's documentation of its own transports does."""
    maker, (first, second) = Maker.remote(), readers(2)
    # from actor to actor to actor
    assert get(second.total.remote(first.twice.remote(maker.ones.remote(4)))) == MIB
    # to the actor that made it: its own array
    x = maker.kept.remote(4)
    assert get(maker.plainly.remote(lambda v: cableway.ray.shared_bytes(v), x)) == 0
    assert get(maker.plainly.remote(np.sum, x)) == MIB / 2
    # several at once, beside plain arguments
    two = [maker.ones.remote(2), maker.ones.remote(2, 3.0)]
    assert (
        get(first.call.remote(lambda a, b, c: float(a.sum() + b.sum() + c), *two, 0.5)) == MIB + 0.5
    )
    # options instead of a decorator
    y = first.call.options(tensor_transport="cableway_numpy").remote(np.ones, MIB)
    assert get(second.keep.remote(y)) == 8 * MIB
    # a reference within a list is fetched by whom it reaches
    put = ray.put(np.ones(MIB), _tensor_transport="cableway_numpy")
    assert get(first.call.remote(lambda refs: float(ray.get(refs[0]).sum()), [put])) == MIB
    # put by an actor, read by another
    inner = get(
        first.call.remote(lambda: [ray.put(np.ones(MIB), _tensor_transport="cableway_numpy")])
    )
    assert get(inner[0]).sum() == MIB
    # through the object store
    assert ray.get(x, _use_object_store=True, timeout=SECONDS).sum() == MIB / 2
    # an actor that wants to write again waits until Ray has let go
    with pytest.raises(TimeoutError):
        get(maker.wait_freed.remote(0.1))
    del x
    get(maker.wait_freed.remote(SECONDS))
    # an actor with coroutines, of which several run at once
    several = Coroutines.remote()
    some = [several.ones.remote(2, float(fill)) for fill in range(8)]
    assert get(several.totals.remote(*some)) == [MIB / 4 * fill for fill in range(8)]


@ray.remote(num_cpus=0)
class Coroutines:
    """An actor of asyncio."""

    @ray.method(tensor_transport="cableway_numpy")
    async def ones(self, mib: float, fill: float) -> Any:
        await asyncio.sleep(0.01)
        return np.full(int(mib * MIB) // 8, fill)

    async def totals(self, *some: Any) -> list[float]:
        return [float(x.sum()) for x in some]


def many() -> None:
    """Thousands of objects, more than a process may have private views, and all memory comes back."""
    maker, reader = Maker.remote(), Reader.remote()
    get(reader.call.remote(limit_views, 100))
    before = used()
    for _ in range(3):
        some = [maker.ones.remote(0.25, float(fill)) for fill in range(300)]
        seen = get(reader.collect.remote(*some))
        assert sum(1 for _, nbytes in seen if nbytes) == 100, seen
        assert [total for total, _ in seen] == [MIB / 32 * fill for fill in range(300)]
        one = maker.call.remote(lambda: [np.full(1000, float(fill)) for fill in range(1000)])
        assert get(reader.call.remote(lambda v: float(sum(x.sum() for x in v)), one)) == 499500e3
        del some, one
        get(reader.collect.remote())
        assert eventually(lambda: get(maker.objects.remote()) == 0)
    assert eventually(lambda: used() <= before), (used(), before)


def limit_views(most: int) -> None:
    """Of the process where it runs."""
    from cableway._ray import blocks

    blocks.PRIVATE_VIEWS_MAX = most


def writing() -> None:
    """What a maker writes later nobody sees; in memory of cableway readers may, and nothing is copied."""
    maker, reader = Maker.remote(), Reader.remote()
    x = maker.kept.remote(8)
    assert get(reader.keep.remote(x)) == 8 * MIB
    get(maker.write.remote(5.0))
    assert get(reader.kept_total.remote()) == MIB
    assert get(reader.total.remote(x)) == MIB

    def in_memory_of_cableway() -> Any:
        return cw.full(4 * MIB, 2.0).numpy()[MIB:]

    before = used()
    y = maker.call.remote(in_memory_of_cableway)
    assert get(reader.total.remote(y)) == 6 * MIB
    assert get(reader.spoil.remote(y)) == 21 * MIB
    assert get(y).sum() == 6 * MIB
    assert used() - before < 40 * MIB, used() - before


def mistakes() -> None:
    """A clear error, which loses nothing."""
    maker, reader = Maker.remote(), Reader.remote()
    with pytest.raises(ZeroDivisionError):
        get(reader.total.remote(maker.call.remote(lambda: 1 / 0)))
    with pytest.raises(TypeError, match="not list"):
        cableway.ray.shared_bytes([])
    cableway.ray.register()  # may be repeated
    lacks_it = ray.remote(num_cpus=0)(Plain).remote()
    x = maker.ones.remote(1)
    ray.wait(
        [x], timeout=SECONDS
    )  # the arrays are there before the call, so Ray does not make it wait
    said = warnings_here()
    for _ in range(2):
        assert get(lacks_it.total.remote(x)) == MIB / 8
    assert len(said) == 1 and "enable_tensor_transport=True" in said[0], said
    assert get(reader.total.remote(maker.ones.remote(1))) == MIB / 8


class Plain:
    """A reader that was made without tensor transport."""

    def total(self, x: Any) -> float:
        return float(x.sum())


def constructors() -> None:
    """A constructor may share; given arrays of the transport it is refused at once, as Ray would wait for a minute and end the actor."""
    made = ray.remote(num_cpus=0, enable_tensor_transport=True)(Putter).remote()
    inner = get(made.found.remote())
    assert get(inner[0]).sum() == 2 * MIB
    maker = Maker.remote()
    for x in (
        inner[0],
        maker.ones.remote(1),
        ray.put(np.float32(5), _tensor_transport="cableway_numpy"),
    ):
        for given in (
            lambda x=x: Reader.remote(x),
            lambda x=x: Reader.options(name="r").remote(x=x),
        ):
            with pytest.raises(TypeError, match="cableway_numpy.* give it to a method"):
                given()
    within = ray.remote(num_cpus=0, enable_tensor_transport=True)(Putter).remote(inner)
    assert get(get(within.found.remote())[0]).sum() == 4 * MIB


class Putter:
    """An actor that knows of cableway by its name alone, and shares before it has any method called."""

    def __init__(self, given: Any = None) -> None:
        array = np.ones(2 * MIB) if given is None else 2 * ray.get(given[0])
        self.references = [ray.put(array, _tensor_transport="cableway_numpy")]

    def found(self) -> Any:
        return self.references


def dropped() -> None:
    """Nothing is said of an object whose reference goes before its memory was opened for it."""
    maker = Maker.remote()
    get(maker.pid.remote())
    held, may_open = blocks.held, threading.Event()

    def held_late(*arguments: Any) -> Any:
        assert may_open.wait(SECONDS)
        return held(*arguments)

    blocks.held = held_late
    said = warnings_here()
    x = maker.ones.remote(1)
    ray.wait([x], timeout=SECONDS)
    del x
    assert eventually(lambda: get(maker.objects.remote()) == 0)
    opening = threading.Event()
    metadata._keeper.do(opening.set)
    may_open.set()
    assert opening.wait(SECONDS)
    assert said == []


def by_name() -> None:
    """Ray does not tell of an actor that was got by its name whether it has tensor transport: nothing is said of it."""
    named = Reader.options(name="named").remote()
    get(named.pid.remote())

    def total_by_name() -> tuple[float, list[str]]:
        said = warnings_here()
        x = ray.put(np.ones(MIB), _tensor_transport="cableway_numpy")
        found = ray.get_actor("named")
        assert not found._ray_enable_tensor_transport
        return ray.get(found.total.remote(x)), said

    assert get(Reader.remote().call.remote(total_by_name)) == (MIB, [])


def plain() -> None:
    """What goes without a transport goes as it did: NumPy arrays without a copy, read-only."""
    maker = Maker.remote()
    assert get(maker.ones.remote(1)).flags.writeable
    found = get(maker.plainly.remote(np.ones, 4 * MIB))
    assert found.sum() == 4 * MIB
    assert not found.flags.writeable and not found.flags.owndata


def full() -> None:
    """With a store of 64 MiB everything arrives: what finds no room goes through Ray's."""
    maker, (first, second) = Maker.remote(), readers(2)
    some = [maker.ones.remote(24, float(fill)) for fill in range(5)]
    expected = [3 * MIB * float(fill) for fill in range(5)]
    assert get([first.total.remote(x) for x in some]) == expected
    assert [get(x).sum() for x in some] == expected
    seen = get([second.keep.remote(x) for x in some])
    assert seen.count(24 * MIB) == 2 and seen.count(0) == 3, seen
    assert get(second.spoil.remote(some[-1])) == 21 * MIB
    put = [
        ray.put(np.full(3 * MIB, float(fill)), _tensor_transport="cableway_numpy")
        for fill in range(3)
    ]
    assert get([first.total.remote(x) for x in put]) == expected[:3]
    del some, put
    get(second.drop.remote())
    assert eventually(lambda: get(maker.objects.remote()) == 0)
    assert eventually(lambda: get(second.keep.remote(maker.ones.remote(24))) == 24 * MIB)


if __name__ == "__main__":
    ray_cluster.main(
        {
            f.__name__: f
            for f in (
                sharing,
                values,
                subclasses,
                objects,
                one_store,
                priority,
                starts_again,
                sessions,
                idioms,
                many,
                writing,
                mistakes,
                constructors,
                by_name,
                dropped,
                plain,
                full,
            )
        }
    )
