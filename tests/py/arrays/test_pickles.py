"""Pickles that nobody opens, and hashes, which are none: neither stands in the way of others."""

from __future__ import annotations

import hashlib
import io
import pickle
from typing import Any

import numpy as np
import pool_tasks as tasks
import pytest
from conftest import stop_broker
from waiting import eventually

import cableway as cw


@pytest.fixture
def few_transits(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """A broker at which a client may have 20 transits."""
    monkeypatch.setenv("CABLEWAY_MAX_CLIENT_TRANSITS", "20")
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path))
    try:
        with cw.connect(str(tmp_path)) as connection:
            yield connection
    finally:
        stop_broker(tmp_path)


def test_pickles_that_nobody_opens_refuse_nobody(few_transits):
    w = cw.put("w", np.arange(10.0))
    queue, early = cw.SimpleQueue(), cw.asarray([5.0])
    queue.put(early)
    del early
    for _ in range(500):
        last = pickle.dumps(w)
    assert pickle.loads(last).tolist() == w.tolist()
    queue.put(w)
    assert queue.get().tolist() == [5] and queue.get().shape == (
        10,
    )  # an item's transit is not ended
    with cw.constant({"a": 1}) as constant:
        for _ in range(100):
            pickle.dumps(constant)
        assert pickle.loads(pickle.dumps(constant)).value == {"a": 1}
    with cw.Pool(1) as pool:
        assert pool.apply(np.sum, (w,)) == 45
        assert pool.apply(np.sum, (np.ones(100_000),)) == 100_000


def is_stale(pickled: bytes) -> bool:
    try:
        pickle.loads(pickled)
    except cw.Stale:
        return True
    return False


def test_the_oldest_of_them_end_first(few_transits):
    pickles = [pickle.dumps(cw.asarray([float(i)])) for i in range(100)]
    assert [pickle.loads(one).item() for one in pickles[-10:]] == [float(i) for i in range(90, 100)]
    assert eventually(lambda: is_stale(pickles[0]))


def test_as_many_as_the_limit_allows_can_be_opened(few_transits):
    pickles = [pickle.dumps(cw.asarray([float(i)])) for i in range(20)]
    assert [pickle.loads(one).item() for one in pickles] == [float(i) for i in range(20)]


def test_a_process_keeps_its_latest_pickles(monkeypatch):
    import cableway._array.pickles

    monkeypatch.setattr(cableway._array.pickles, "MOST", 10)
    pickles = [pickle.dumps(cw.asarray([float(i)])) for i in range(30)]
    for one in pickles[:20]:
        assert eventually(lambda one=one: is_stale(one))
    assert [pickle.loads(one).item() for one in pickles[20:]] == [float(i) for i in range(20, 30)]


ARRAYS = [
    np.arange(6.0), np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3).T, np.arange(6)[::-2], np.zeros(0), np.array(5),
    np.zeros(3, [("a", "i4"), ("b", "f8")]), np.array(["a", "bc"]), np.array([True]), np.zeros((0, 3), "S1"),
]  # fmt: skip


@pytest.mark.parametrize("x", ARRAYS)
def test_joblibs_hash_and_dasks_token_repeat_for_equal_contents(x, script):
    joblib = pytest.importorskip("joblib")
    w, same = cw.put("hashed", x), cw.asarray(x, copy=True)
    hashes = {joblib.hash(one) for one in (w, same, cw.get("hashed", readonly=True))}
    tokens = {one.__dask_tokenize__() for one in (w, same)}
    assert len(hashes) == len(tokens) == 1
    assert joblib.hash([w, {"k": w}]) == joblib.hash([w, {"k": w}])
    done = script(
        "import joblib, cableway as cw; w = cw.get('hashed'); print(joblib.hash(w), w.__dask_tokenize__())"
    )
    assert done.stdout == f"{hashes.pop()} {tokens.pop()}\n"
    if w.nbytes and x.dtype.names is None:
        other = cw.asarray(x, copy=True)
        other[...] = "z" if x.dtype.kind in "US" else False if x.dtype.kind == "b" else 77
        assert joblib.hash(other) != joblib.hash(w)
        assert other.__dask_tokenize__() != w.__dask_tokenize__()


def test_hashes_of_a_constant_are_those_of_its_value_in_every_process():
    joblib = pytest.importorskip("joblib")
    value = {"weights": np.arange(6.0), "words": ["a", ("b", 1)], "none": None}
    changed = {**value, "weights": np.arange(1, 7.0)}
    with (
        cw.constant(value) as c,
        cw.constant(value) as same,
        cw.constant(changed) as other,
        cw.Pool(1, context="spawn") as pool,
    ):
        mine = joblib.hash(c), c.__dask_tokenize__()
        assert (joblib.hash(same), same.__dask_tokenize__()) == mine == (joblib.hash(c), mine[1])
        assert pool.apply(tasks.hashes_inside, ([c],)) == mine
        assert joblib.hash(other) != mine[0] and other.__dask_tokenize__() != mine[1]
        assert joblib.hash([c, {"k": c}]) == joblib.hash([same, {"k": same}])
        assert pickle.loads(pickle.dumps(c, 3)).value["none"] is None
    with pytest.raises(cw.Stale, match="closed"):
        joblib.hash(c)


def test_joblib_memory_finds_what_was_computed(tmp_path):
    joblib = pytest.importorskip("joblib")
    calls = []

    def total(x: Any) -> float:
        calls.append(1)
        return float(x.sum())

    remembered = joblib.Memory(tmp_path / "memory", verbose=0).cache(total)
    w = cw.put("memory", np.arange(4.0))
    assert [remembered(one) for one in (w, cw.get("memory"), cw.asarray(w, copy=True))] == [6.0] * 3
    assert len(calls) == 1
    w[0] = 1
    assert remembered(w) == 7.0 and len(calls) == 2


def test_hashes_begin_no_transit(few_transits):
    joblib = pytest.importorskip("joblib")
    first = pickle.dumps(cw.asarray([1.0]))
    w = cw.zeros(3)
    for _ in range(100):
        joblib.hash(w)
    assert pickle.loads(first).tolist() == [1]


def test_other_picklers_of_that_protocol_make_pickles():
    w = cw.zeros(3)
    for kind in (pickle._Pickler, pickle.Pickler):
        target = io.BytesIO()
        kind(target, 3).dump(w)
        assert np.shares_memory(pickle.loads(target.getvalue()).numpy(), w.numpy())
    assert hashlib.md5(pickle.dumps(w, 3)).digest() != hashlib.md5(pickle.dumps(w, 3)).digest()


def test_dask_tokenizes_it():
    dask = pytest.importorskip("dask.base")
    w = cw.asarray([1.0, 2.0])
    assert dask.tokenize(w) == dask.tokenize(w.copy()) != dask.tokenize(cw.asarray([1.0, 3.0]))
