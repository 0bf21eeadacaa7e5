"""A `cableway.Array` as an item of a queue: it takes a short way, which remembers layouts at both ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue as standard
import signal

import numpy as np
import pytest
from cli_support import run_json
from conftest import eventually

import cableway as cw
from cableway._queue import items


def transits():
    """How many the broker keeps; those of queues that are garbage go."""
    gc.collect()
    return run_json("status")["gauges"]["transits"]


def through(q, w):
    q.put(w)
    return q.get(timeout=10)


def test_the_memory_is_the_same_and_the_layout_comes_along():
    q, values = cw.Queue(), np.arange(24, dtype="i4").reshape(2, 3, 4)
    w = cw.asarray(values)
    parts = [w, w[0], w[1:, ::2], w[:, :, 1], w.T, w[1, 2, 3, ...], w[:, :0], w[::-1]]
    for _ in range(3):  # the same layout with other offsets, and the other way
        for part, seen in zip(
            parts,
            [values, values[0], values[1:, ::2], values[:, :, 1], values.T, values[1, 2, 3]]
            + [values[:, :0], values[::-1]],
            strict=True,
        ):
            got = through(q, part)
            assert np.array_equal(got.numpy(), seen)
            assert (got.shape, got.strides, got.dtype, got.name) == (
                part.shape,
                part.strides,
                part.dtype,
                None,
            )
    through(q, w)[1, 2, 3] = 99
    assert w.numpy()[1, 2, 3] == 99


def test_names_readonly_and_unusual_dtypes_come_along():
    q = cw.Queue()
    first, second = cw.put("alone/a", np.ones(3)), cw.put("alone/b", np.zeros(3))
    for _ in range(2):
        for w in (first, second):  # of one layout
            got = through(q, w)
            assert got.name == w.name and np.array_equal(got.numpy(), w.numpy())
    seen = through(q, cw.get("alone/a", readonly=True))
    assert seen.readonly and not through(q, first).readonly
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 3
    record = np.zeros(4, [("x", "<f8"), ("y", "S3")])
    record["y"] = b"abc"
    assert through(q, cw.asarray(record)).numpy()["y"].tolist() == [b"abc"] * 4
    wide = np.zeros(2, [(f"field_{i}", "u1") for i in range(60)])
    assert through(q, cw.asarray(wide)).dtype == wide.dtype
    many = [through(q, cw.zeros(n)) for n in range(1, items._LAYOUTS_MAX + 50)]
    assert [w.shape[0] for w in many] == list(range(1, items._LAYOUTS_MAX + 50))
    assert len(items._layouts) <= items._LAYOUTS_MAX
    cw.remove("alone/a")
    cw.remove("alone/b")


def test_a_refused_array_leaves_nothing_behind():
    q = cw.Queue(maxsize=1)
    w = cw.zeros(1000)
    q.put(w)
    with pytest.raises(standard.Full):
        q.put(w, timeout=0.01)
    small = cw.Queue(maxbytes=100)
    with pytest.raises(ValueError):
        small.put(w)
    w.close()
    with pytest.raises(ValueError, match="closed"):
        q.put(w)
    assert q.get().shape == (1000,)


def _echo(there, back):
    while (w := there.get()) is not None:
        w[...] = w.numpy() + 1
        back.put(w)


def test_what_is_under_way_outlives_its_sender():
    context = multiprocessing.get_context("spawn")
    there, back = cw.Queue(), cw.Queue()
    child = context.Process(target=_echo, args=(there, back))
    child.start()
    for i in range(50):
        there.put(cw.full(100, i, "i8"))  # nobody here has it now
    there.put(None)
    child.join(60)
    assert child.exitcode == 0
    assert [back.get(timeout=10).numpy()[0] for _ in range(50)] == list(range(1, 51))


def _permissions(array: cw.Array) -> str:
    """Of the page where an array begins."""
    address = array.numpy().ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, permissions, *_ = line.split()
            begin, end = (int(part, 16) for part in span.split("-"))
            if begin <= address < end:
                return permissions
    raise AssertionError(hex(address))


@pytest.mark.parametrize("pack", [lambda w: w, lambda w: {"w": w, "n": 1}])
def test_a_readonly_array_comes_out_of_a_queue_guarded(pack):
    q = cw.Queue()
    cw.put("guarded", np.arange(5.0)).close()
    q.put(pack(cw.get("guarded", readonly=True)))
    got = q.get()
    got = got if isinstance(got, cw.Array) else got["w"]
    assert got.readonly and got.tolist() == [0, 1, 2, 3, 4]
    assert _permissions(got) == "r--s"
    with cw.get("guarded") as w:
        w[0] = 7
        assert got[0] == 7 and _permissions(got) == "rw-s"
    assert _permissions(got) == "r--s"


def test_what_waits_in_a_queue_that_nobody_has_any_more_is_nobodys():
    """Also where no other process ever knew of the queue; not only when `transit_seconds` are over."""
    before = transits()
    for close in (True, False):
        q = cw.Queue()
        for _ in range(4):
            q.put(np.zeros(items.THRESHOLD_BYTES, "u1"))
            q.put(cw.zeros(100))
        assert transits() > before
        if close:
            q.close()
        del q
        gc.collect()
        assert eventually(lambda: transits() <= before)


def _put_and_be_killed(q):
    for _ in range(4):
        q.put(np.zeros(items.THRESHOLD_BYTES, "u1"))
    os.kill(os.getpid(), signal.SIGKILL)


def test_items_live_as_long_as_somebody_has_their_queue():
    before = transits()
    q = cw.Queue()
    child = multiprocessing.get_context("spawn").Process(target=_put_and_be_killed, args=(q,))
    child.start()
    child.join(60)
    assert [q.get(timeout=10).nbytes for _ in range(2)] == [items.THRESHOLD_BYTES] * 2
    assert transits() > before
    del q
    gc.collect()
    assert eventually(lambda: transits() <= before)


def test_a_timeout_may_be_infinite():
    q = cw.Queue()
    q.put(1, timeout=float("inf"))
    assert q.get(timeout=float("inf")) == 1
