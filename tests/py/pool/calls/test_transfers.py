"""What `In`, `Out` and `InOut` promise, on a Pool without devices. On GPUs: test_transfers_gpu."""

from __future__ import annotations

import contextlib
import gc
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transfer_tasks as tasks
from conftest import eventually
from pool_support import LONG

import cableway as cw
from cableway._pool import write_back as landing


def kinds() -> list[np.ndarray[Any, Any]]:
    """Arrays of all sorts that a result can be written into."""
    cube = np.arange(4 * 5 * 6.0).reshape(4, 5, 6)
    return [
        np.arange(5),
        np.arange(100_000, dtype="f4"),
        np.array(3.5),
        np.zeros((3, 0, 2)),
        cube.copy(),
        np.asfortranarray(cube),
        cube.copy().transpose(1, 0, 2),
        cube.copy()[::2, ::-1, 1:],
        np.ones(6, "c16"),
        np.arange(9, dtype=">i4"),
    ]


@pytest.fixture(autouse=True)
def nothing_under_way() -> Any:
    """No test leaves an array behind as somebody's Out."""
    yield
    gc.collect()
    assert landing._spans == []


def test_in_arrives_as_an_array_of_its_own(pool: cw.Pool) -> None:
    for values in kinds():
        before = values.copy()
        assert pool.apply(tasks.told, (cw.In(values),)) == (
            "Array", values.shape, values.dtype.str, "cpu", before.tobytes(),
        )  # fmt: skip
        pool.apply(tasks.bump, (cw.In(values),))
        np.testing.assert_array_equal(values, before)


def test_inout_and_out_come_back_into_the_callers_array(pool: cw.Pool) -> None:
    for values in kinds():
        before = values.copy()
        pool.apply(tasks.bump, (cw.InOut(values),))
        np.testing.assert_array_equal(values, before + 1)
        pool.apply(tasks.add, (cw.In(before), cw.In(before), cw.Out(values)))
        np.testing.assert_array_equal(values, before + before)


def test_structured_results_and_lists_as_in(forked: cw.Pool) -> None:
    x = np.zeros(3, [("a", "i4"), ("b", "f8", (2,))])
    y = np.zeros(3, x.dtype)
    x["b"] = 2.5
    forked.apply(cw.Array.copy_from, (cw.Out(y), cw.In(x)))
    assert (x == y).all()
    assert forked.apply(tasks.told, (cw.In([1.0, 2.0]),))[4] == np.array([1.0, 2.0]).tobytes()


def test_arrays_of_ours_serve_too(pool: cw.Pool) -> None:
    x, y = cw.asarray(np.arange(1000.0)), cw.zeros(1000)
    pool.apply(tasks.add, (cw.In(x), cw.In(x), cw.Out(y)))
    np.testing.assert_array_equal(y, 2 * np.arange(1000.0))
    pool.apply(tasks.bump, (cw.In(x),))  # a copy of its own
    np.testing.assert_array_equal(x, np.arange(1000.0))
    pool.apply(tasks.bump, (cw.InOut(x[10:20]),))
    assert x.numpy()[9:21].tolist() == [9, *range(11, 21), 20]


def test_every_way_to_call(pool: cw.Pool, tmp_path: Path) -> None:
    xs = [np.full(30_000, i, "i4") for i in range(12)]
    pool.map(tasks.bump, map(cw.InOut, xs), chunksize=5)
    pool.starmap(tasks.bump, [(cw.InOut(x), 10) for x in xs], chunksize=1)
    list(pool.imap(tasks.bump, map(cw.InOut, xs)))
    list(pool.imap_unordered(tasks.bump, map(cw.InOut, xs), chunksize=3))
    pool.apply_async(tasks.bump, (cw.InOut(xs[0]),), {"by": 5}).get(LONG)
    assert pool.apply(tasks.bump_part, ({"x": [cw.InOut(xs[1])], "text": "t"},)) == "t"
    for i, x in enumerate(xs):
        assert (x == i + 13 + (5 if i < 2 else 0)).all()
    with cw.Executor(2) as executor:
        executor.submit(tasks.bump, cw.InOut(xs[0])).result(LONG)
        list(executor.map(tasks.bump, map(cw.InOut, xs)))
    assert (xs[0] == 20).all() and (xs[1] == 20).all() and (xs[2] == 16).all()


def test_many_arrays_in_one_task(forked: cw.Pool) -> None:
    xs = [np.full(i, 1.0) for i in range(150)]  # their table alone is longer than a message
    forked.map(tasks.bump, [cw.InOut(x) for x in xs], chunksize=150)
    assert all((x == 2).all() for x in xs)


def test_a_task_that_raises_leaves_out_as_it_was(pool: cw.Pool) -> None:
    x, y = np.zeros(20_000), np.zeros(20_000)
    with pytest.raises(RuntimeError, match="after it wrote"):
        pool.apply(tasks.bump_and_raise, (cw.InOut(x),))
    assert not x.any()
    pool.apply(tasks.bump, (cw.InOut(x),))
    results = [
        pool.apply_async(f, (cw.InOut(a),)) for f, a in ((tasks.bump, y), (tasks.bump_and_raise, x))
    ]
    results[0].get(LONG)
    results[1].wait(LONG)
    assert (x == 1).all() and (y == 1).all()


def test_a_death_leaves_out_as_it_was(pool: cw.Pool, tmp_path: Path) -> None:
    x = np.zeros(20_000)
    with pytest.raises(cw.WorkerDied):
        pool.apply(tasks.bump_and_die, (cw.InOut(x), str(tmp_path / "died")))
    assert not x.any()
    pool.apply(tasks.bump_and_die, (cw.InOut(x), str(tmp_path / "died")))
    assert (x == 1).all()


def test_a_task_that_is_run_again_begins_anew(method: str, tmp_path: Path) -> None:
    x = np.zeros(20_000)
    with cw.Pool(2, context=method, retries=2) as pool:
        pool.map(tasks.bump, [cw.InOut(x)])
        pool.apply(tasks.bump_and_die, (cw.InOut(x), str(tmp_path / "died")))
        assert (x == 2).all()


def test_out_of_two_tasks_at_a_time_is_refused(forked: cw.Pool, tmp_path: Path) -> None:
    x = np.zeros(100)
    begun, go = str(tmp_path / "begun"), str(tmp_path / "go")
    for items in ([x, x], [x[:60], x[50:]], [x, x[7:8]], [x[::2], x[::3]]):
        with pytest.raises(ValueError, match="Out of two items"):
            forked.map(tasks.bump, [cw.InOut(a) for a in items])
        with pytest.raises(ValueError, match="Out of two items"):
            forked.starmap(tasks.add, [(cw.In(x), cw.In(x), cw.Out(a)) for a in items], 2)
    with pytest.raises(ValueError, match="has not ended"):
        forked.apply(tasks.add, (cw.In(x), cw.InOut(x), cw.Out(x)))
    first = forked.apply_async(tasks.bump_and_wait, (cw.InOut(x), begun, go))
    assert eventually(Path(begun).exists, LONG)
    for part in (x, x[3:4], x[::-2], x.reshape(10, 10)[3]):
        with pytest.raises(ValueError, match="has not ended"):
            forked.apply(tasks.bump, (cw.InOut(part),))
    assert forked.apply(tasks.told, (cw.In(x),))[4] == bytes(800)  # reading is no harm
    Path(go).touch()
    first.get(LONG)
    forked.map(tasks.bump, [cw.InOut(x[::2]), cw.InOut(x[1::2])])  # no element in common
    assert (x == 2).all()


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    readonly = np.zeros(3)
    readonly.setflags(write=False)
    shared = cw.put("shared", np.zeros(3))
    for kind in (cw.Out, cw.InOut):
        with pytest.raises(ValueError, match="read-only"):
            kind(readonly)
        with pytest.raises(ValueError, match="read-only"):
            kind(cw.get("shared", readonly=True))
        with pytest.raises(TypeError, match="objects"):
            kind(np.array([None]))
        with pytest.raises(TypeError, match="not list"):
            kind([1, 2])
        with pytest.raises(TypeError, match="not MaskedArray"):
            kind(np.ma.masked_array([1.0]))
    with pytest.raises(TypeError, match="objects"):
        cw.In([None])
    with pytest.raises(TypeError, match="mask"):
        cw.In(np.ma.masked_array([1.0]))
    cw.In(readonly), cw.In(shared)
    with pytest.raises(TypeError, match="Pool or Executor"):
        pickle.dumps(cw.In([1.0]))
    assert "InOut" in repr(cw.InOut(np.zeros(3)))


def test_they_are_for_arguments_alone(forked: cw.Pool) -> None:
    from multiprocessing.pool import MaybeEncodingError

    with pytest.raises(MaybeEncodingError, match="Pool or Executor"):
        forked.apply(tasks.give_in, (3,))


def test_an_array_that_became_read_only_fails_its_task_alone(
    forked: cw.Pool, tmp_path: Path
) -> None:
    x, y = np.zeros(5), np.zeros(5)
    begun, go = str(tmp_path / "begun"), str(tmp_path / "go")
    result = forked.apply_async(tasks.bump_and_wait, (cw.InOut(x), begun, go))
    assert eventually(Path(begun).exists, LONG)
    x.setflags(write=False)
    Path(go).touch()
    with pytest.raises(ValueError, match="read-only"):
        result.get(LONG)
    forked.apply(tasks.bump, (cw.InOut(y),))
    assert (y == 1).all() and not x.any()


@pytest.mark.parametrize("keep", [tasks.bump_and_keep, tasks.bump_and_give])
def test_who_keeps_an_argument_keeps_its_memory(keep: Any) -> None:
    with cw.Pool(1, context="fork") as pool:
        x = np.zeros(20_000)
        found = pool.apply(keep, (cw.InOut(x),))
        for _ in range(4):  # blocks of the same size, some of which are used again
            pool.apply(tasks.bump, (cw.InOut(np.full(20_000, 100.0)),))
        if found is None:
            assert pool.apply(tasks.total_of_kept) == 20_000
        else:
            assert (found.numpy() == 1).all()
        assert (x == 1).all()


def test_blocks_are_used_again(forked: cw.Pool) -> None:
    x = np.zeros(200_000)
    for i in range(50):
        forked.apply(tasks.bump, (cw.InOut(x),))
        assert (x == i + 1).all()
    store = forked._engine._store
    assert len(store._free) + len(store._lent) <= 3


def test_an_unencodable_task_lets_go_of_out(forked: cw.Pool) -> None:
    x = np.zeros(5)
    for _ in range(2):
        with pytest.raises(TypeError):
            forked.apply(tasks.bump, (cw.InOut(x), (i for i in range(3))))
    forked.apply(tasks.bump, (cw.InOut(x),))
    assert (x == 1).all()


def test_terminate_leaves_out_as_it_was(tmp_path: Path) -> None:
    x = np.zeros(5)
    begun, go = str(tmp_path / "begun"), str(tmp_path / "go")
    with cw.Pool(1, context="fork") as pool:
        result = pool.apply_async(tasks.bump_and_wait, (cw.InOut(x), begun, go))
        behind = pool.apply_async(tasks.bump, (cw.InOut(np.zeros(5)),))
        assert eventually(Path(begun).exists, LONG)
    for one in (result, behind):
        with pytest.raises(cw.Error):
            one.get(LONG)
    assert not x.any()
    del result, behind, pool


def test_a_ctrl_c_at_any_moment_leaves_no_array_behind(forked: cw.Pool) -> None:
    choice = random.Random(5)
    for _ in range(15):
        xs = [np.zeros(30_000) for _ in range(40)]
        timer = threading.Timer(
            choice.random() * 0.03,
            signal.pthread_kill,
            (threading.main_thread().ident, signal.SIGINT),
        )
        with contextlib.suppress(KeyboardInterrupt):
            timer.start()
            forked.map(tasks.bump, map(cw.InOut, xs), chunksize=1)
            timer.join()
            time.sleep(0.01)
        timer.join()
        forked.map(tasks.bump, [cw.InOut(np.zeros(30_000)) for _ in range(4)])
        del xs
    assert eventually(lambda: gc.collect() >= 0 and landing._spans == [], LONG)


def test_a_worker_that_cannot_answer_ends_and_says_why() -> None:
    # Else its task, and whoever waits for room behind it, would wait for ever.
    done = subprocess.run(
        [sys.executable, "-c", CANNOT_ANSWER],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and "no way to answer" in done.stderr, done


CANNOT_ANSWER = """
from cableway._pool.worker.write_back import WriteBackThread
def answer(token, value): raise RuntimeError("no way to answer")
leaving = WriteBackThread(answer, lambda error: None)
leaving.put([], 1, None)
leaving.wait()
"""
