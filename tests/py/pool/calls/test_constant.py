"""What `cableway.constant` promises: put once, unpickled once a process, the object itself for each task.

Runs in `make test-more`: models are fitted in new processes.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shared_tasks as tasks
from conftest import Script, disconnect, eventually
from pool_support import workers_of
from test_pool_arrays import gauges

import cableway as cw
from cableway.constant import _cache, resolve, sweep

MIB = 1 << 20


@pytest.fixture
def table() -> Iterator[Any]:
    """A constant of two arrays."""
    with cw.constant({"a": np.arange(float(MIB)), "b": np.arange(3), "name": "table"}) as made:
        yield made


@pytest.fixture
def model() -> Iterator[Any]:
    """A constant object with an array."""
    with cw.constant(tasks.Model(np.arange(float(MIB)), "m")) as made:
        yield made


def test_a_task_gets_the_object_wherever_it_is_an_argument(pool: cw.Pool, model: Any) -> None:
    expected = [float(i) for i in range(6)]
    assert pool.map(functools.partial(tasks.score, model), range(6)) == expected
    assert pool.starmap(tasks.score, [(model, i) for i in range(6)], 2) == expected
    assert list(pool.imap(functools.partial(tasks.score, model), range(6))) == expected
    assert pool.apply(tasks.score, (model, 3)) == 3.0
    assert pool.apply(tasks.score, (), {"i": 4, "model": model}) == 4.0
    assert pool.map(tasks.is_a_model, [model, model, 3]) == [True, True, False]
    nested = functools.partial(functools.partial(tasks.score, model=model))
    assert [pool.apply(nested, (), {"i": i}) for i in range(6)] == expected


def test_elsewhere_it_stays_a_constant(pool: cw.Pool, table: Any) -> None:
    total = float(np.arange(float(MIB)).sum())
    assert pool.map(tasks.value_of_first, [[table], [table]]) == [total] * 2
    assert pool.map(lambda i: float(table.value["a"][i]), range(3)) == [0.0, 1.0, 2.0]
    assert pool.apply(tasks.value_of_first, ([table],)) == total
    (back,) = pool.apply(tasks.listed, ([table],))
    assert type(back) is cw.Constant and back.value is table.value


def test_an_executor_and_an_initializer_get_the_object(method: str, model: Any) -> None:
    with cw.Executor(2, method) as executor:
        assert executor.submit(tasks.score, model, 5).result(60) == 5.0
        assert list(executor.map(tasks.score, [model] * 3, range(3))) == [0.0, 1.0, 2.0]
        work = functools.partial(tasks.score, model)
        assert list(executor.map(work, range(3), buffersize=2)) == [0.0, 1.0, 2.0]
    with cw.Pool(1, tasks.set_kept, (model,), context=method) as pool:
        assert pool.apply(tasks.kept_score, (7,)) == 7.0


def test_it_is_unpickled_once_in_a_process(pool: cw.Pool, model: Any) -> None:
    found: set[Any] = set()
    for _ in range(3):
        found |= set(pool.map(functools.partial(tasks.loads_of, model), range(10), 1))
    assert found and {loads for _, loads in found} == {1}
    before = gauges()["bytes"]
    pool.map(functools.partial(tasks.score, model), range(10), 1)
    assert gauges()["bytes"] <= before + MIB


def test_its_arrays_are_read_only_everywhere(pool: cw.Pool, table: Any) -> None:
    assert pool.map(functools.partial(tasks.is_writeable, table), range(4)) == [(False, False)] * 4
    with pytest.raises(ValueError, match="read-only"):
        pool.map(functools.partial(tasks.write_into, table), range(4))
    with pytest.raises(ValueError, match="read-only"):
        table.value["a"][0] = 3
    with pytest.raises(ValueError, match="WRITEABLE|writeable"):
        table.value["a"].flags.writeable = True


def test_it_does_not_see_what_the_original_becomes() -> None:
    original = {"a": np.zeros(100_000), "b": [1]}
    with cw.constant(original) as made:
        original["a"][:] = 5
        original["b"] = 7
        assert (made.value["a"] == 0).all() and made.value["b"] == [1]
        assert made.value is made.value


def test_every_kind_of_object_comes_back(forked: cw.Pool) -> None:
    cube = np.arange(4000.0).reshape(10, 20, 20)
    records = np.zeros(9, [("a", "i8"), ("b", "S3")])
    inner = cw.full(1000, 2.0)
    given: dict[str, Any] = {
        "C": cube, "F": np.asfortranarray(cube), "part": cube[:, ::2], "turned": cube.transpose(1, 0, 2),
        "empty": np.zeros((0, 5)), "scalar": np.float32(2), "point": np.array(7), "records": records,
        "objects": np.array(["a", None, 3], object), "text": "x" * 100_000, "bytes": b"y" * 300_000,
        "masked": np.ma.masked_greater(np.arange(50_000), 40_000), "fields": records.view(np.recarray),
        "list": [cube, cube], "function": len, "lambda": lambda x: x + 1,
        "buffer": pickle.PickleBuffer(b"z" * 1000), "array": inner,
    }  # fmt: skip
    with cw.constant(given) as made, cw.constant([made, 5]) as outer:
        found = made.value
        for name in ("C", "F", "part", "turned", "empty", "point", "records", "fields"):
            assert type(found[name]) is type(given[name]), name
            assert found[name].dtype == given[name].dtype and found[name].shape == given[name].shape
            assert found[name].tobytes() == given[name].tobytes()
            assert not found[name].flags.writeable
        assert found["F"].flags.f_contiguous
        assert found["scalar"] == 2 and found["objects"].tolist() == ["a", None, 3]
        assert found["text"] == given["text"] and found["bytes"] == given["bytes"]
        assert found["masked"].sum() == given["masked"].sum()
        assert found["list"][0] is found["list"][1] is found["C"]
        assert found["function"] is len and found["lambda"](1) == 2
        assert bytes(found["buffer"]) == b"z" * 1000
        assert forked.apply(tasks.sum_of_array, (made,)) == 2000.0
        assert outer.value[0].value is found
        assert forked.apply(tasks.inner_name, (outer,)) == "x" * 100_000
    for whole in (None, 3, [], np.zeros(3), np.zeros(1 << 20), tasks.Model(1)):
        with cw.constant(whole) as made:
            assert type(forked.apply(tasks.same, (made,))) is type(whole)


def test_a_fitted_estimator_predicts(pool: cw.Pool) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    datasets = pytest.importorskip("sklearn.datasets")
    data, labels = datasets.load_digits(return_X_y=True)
    fitted = ensemble.RandomForestClassifier(20, random_state=0).fit(data, labels)
    with cw.constant(fitted) as made, cw.constant(data) as rows:
        parts = pool.starmap(tasks.predict, [(made, rows, i, i + 400) for i in range(0, 1600, 400)])
    assert (np.concatenate(parts) == fitted.predict(data[:1600])).all()


def test_a_closed_constant_is_stale_for_all(pool: cw.Pool) -> None:
    made = cw.constant(tasks.Model(np.zeros(1000)))
    other = pickle.loads(pickle.dumps(made))
    handle = pickle.dumps(made)
    assert pool.apply(tasks.score, (made, 1)) == 0.0
    value = made.value
    assert not made.closed and "nbytes" in repr(made)
    made.close()
    made.close()
    assert made.closed and other.closed and "closed" in repr(made)
    assert value.score(3) == 0.0  # what was got stays valid
    for use in (
        lambda: made.value,
        lambda: other.value,
        lambda: made.__enter__(),
        lambda: pickle.dumps(made),
        lambda: pickle.loads(handle),
        lambda: pool.apply(tasks.score, (made, 1)),
        lambda: pool.map(functools.partial(tasks.score, made), [1, 2]),
    ):
        with pytest.raises(cw.Stale):
            use()


def test_a_worker_lets_go_of_what_was_closed_or_dropped(forked: cw.Pool) -> None:
    workers_of(forked, 2)
    before = gauges()["bytes"]
    for i in range(12):
        made = cw.constant({"a": np.full(MIB, float(i)), "b": np.zeros(1)})
        assert forked.map(functools.partial(tasks.first_of, made), range(4), 1) == [float(i)] * 4
        if i % 2:
            made.close()
        del made
    gc.collect()
    forked.map(tasks.forget, range(8), 1)  # each worker looks before a task
    cw.empty(10)
    assert eventually(lambda: gauges()["bytes"] <= before + 40 * MIB), (before, gauges())


def test_closing_ends_what_a_worker_keeps_a_handle_on(forked: cw.Pool) -> None:
    workers_of(forked, 2)
    made = cw.constant({"a": np.zeros(MIB), "b": np.zeros(1)})
    forked.map(tasks.keep_handle, [[made]] * 8, 1)
    cw.empty(10)
    before = gauges()["bytes"]
    assert before >= made.nbytes
    made.close()
    assert set(forked.map(tasks.kept_handle_is_closed, range(8), 1)) <= {True}
    again = cw.constant({"a": np.ones(MIB), "b": np.zeros(1)})
    assert eventually(lambda: gauges()["bytes"] <= before + MIB)  # the same memory
    assert forked.map(functools.partial(tasks.first_of, again), range(4)) == [1.0] * 4
    again.close()


def test_a_process_keeps_few_and_opens_the_others_anew(forked: cw.Pool) -> None:
    made = [cw.constant({"a": np.full(1000, float(i)), "b": np.zeros(1)}) for i in range(40)]
    for _ in range(2):
        for i, one in enumerate(made):
            assert forked.apply(tasks.first_of, (one, 0)) == float(i)
    assert max(forked.map(tasks.cached, range(8), 1)) <= 16
    for one in made:
        one.close()


def test_a_handle_under_way_outlives_its_maker(script: Script, tmp_path: Path) -> None:
    file = tmp_path / "handle"
    text = """
        import os, pickle, sys
        import numpy as np
        import cableway as cw
        made = cw.constant({"a": np.full(1000, 5.0)})
        open(sys.argv[1], "wb").write(pickle.dumps(made))
        if sys.argv[2] == "kill":
            os.kill(os.getpid(), 9)
        if sys.argv[2] == "drop":
            del made
    """
    for how in ("kill", "drop", "exit"):
        script(text, str(file), how, check=False)
        found = pickle.loads(file.read_bytes())
        assert (found.value["a"] == 5).all() and len(found.value["a"]) == 1000
        del found
        gc.collect()
        # Whoever let it go last: nothing is left of it.
        assert eventually(lambda: _no_more(file.read_bytes()))


def _no_more(handle: bytes) -> bool:
    sweep()
    gc.collect()
    try:
        pickle.loads(handle)
    except cw.Stale:
        return True
    return False


def test_what_a_killed_maker_made_is_let_go_of(script: Script, tmp_path: Path) -> None:
    file = tmp_path / "handle"
    text = """
        import pickle, sys, time
        import numpy as np
        import cableway as cw
        made = cw.constant({"a": np.full(1000, 5.0)})
        data = pickle.dumps(made)
        open(sys.argv[1] + ".new", "wb").write(data)
        import os
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        print(os.getpid(), flush=True)
        time.sleep(60)
    """
    faults: list[Any] = []

    def run() -> None:
        try:
            script(text, str(file), check=False)
        except Exception as error:
            faults.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    assert eventually(file.exists)
    found = pickle.loads(file.read_bytes())
    value = found.value
    maker = found._opened.maker[0]
    assert found._opened.ident in _cache
    ident = found._opened.ident
    del found
    sweep()
    assert ident in _cache
    os.kill(maker, signal.SIGKILL)
    runner.join()
    assert eventually(lambda: (sweep(), ident not in _cache)[1])
    assert (value["a"] == 5).all()
    assert not faults


def test_a_child_by_fork_uses_it_and_cannot_end_it(table: Any) -> None:
    value = table.value
    context = multiprocessing.get_context("fork")
    process = context.Process(target=tasks.use_and_close, args=(table,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert not table.closed and table.value is value


def test_threads_unpickle_it_once() -> None:
    with cw.constant(tasks.Model(np.zeros(10))) as made:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(made.value)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8 and all(value is found[0] for value in found)


def test_bad_use_is_refused(table: Any) -> None:
    with pytest.raises(TypeError, match=r"cableway\.constant"):
        cw.Constant()
    with pytest.raises(TypeError):
        cw.constant()  # type: ignore[call-arg]
    with pytest.raises(RuntimeError, match="not to be pickled"):
        cw.constant(tasks.CannotBePickled())
    with pytest.raises(TypeError, match="lock"):
        cw.constant(threading.Lock())
    assert resolve(3) == 3 and resolve(table) is table.value
    plain = functools.partial(tasks.score, 3)
    assert resolve(plain) is plain


def test_with_a_lost_broker_what_is_open_stays(broker_folder: Path) -> None:
    from conftest import stop_broker

    made = cw.constant(np.arange(1000.0))
    stop_broker(broker_folder)
    assert made.value.sum() == 499_500.0
    disconnect()
    again = cw.constant(np.arange(10.0))
    assert pickle.loads(pickle.dumps(again)).value.sum() == 45.0
    made.close()
    again.close()
