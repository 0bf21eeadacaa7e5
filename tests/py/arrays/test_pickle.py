"""Pickling: an Array travels as a handle, by whatever carries pickles, in every start method."""

from __future__ import annotations

import concurrent.futures
import copyreg
import io
import multiprocessing
import pickle
import subprocess
import sys
import threading
import time

import cloudpickle
import numpy as np
import pytest
from cli_support import run_json
from conftest import stop_broker
from waiting import eventually

import cableway as cw

METHODS = ["fork", "spawn", "forkserver"]


def double(w: cw.Array) -> cw.Array:
    """In a child: writes into its argument and returns a new array."""
    w[...] = w.numpy() + 1
    return cw.asarray(w.numpy() * 2)


def total(w: cw.Array) -> float:
    """In a child: sums."""
    return float(w.numpy().sum())


def echo(connection) -> None:
    """In a child: sends back what it gets, until None comes."""
    while (w := connection.recv()) is not None:
        w[0] = w.numpy()[0] + 1
        connection.send(w)


def produce(queue, count: int) -> None:
    """In a child: puts arrays into a queue and lets them go at once."""
    for i in range(count):
        queue.put(cw.full(1000, i))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_it_is_a_handle(protocol, dumps):
    w = cw.zeros((1000, 1000))
    data = dumps(w, protocol)
    assert len(data) < 600
    found = pickle.loads(data)
    w[3, 4] = 5
    assert found.numpy()[3, 4] == 5 and found.strides == w.strides and found.dtype == w.dtype


@pytest.mark.parametrize(
    "key", [np.s_[2:5], np.s_[::-1], np.s_[1:, ::-2], np.s_[..., None], np.s_[3, 2], np.s_[4:2]]
)
def test_parts_travel(key):
    x = np.arange(60).reshape(6, 10)
    w = cw.asarray(x)
    found = pickle.loads(pickle.dumps(w[key]))
    assert np.array_equal(found, x[key])
    assert np.array_equal(pickle.loads(pickle.dumps(found[...])), x[key])


def test_structured_fortran_zero_size_0d_readonly():
    for x in (
        np.zeros(3, [("a", "i4"), ("b", "f8", 2)]),
        np.asfortranarray(np.ones((3, 4))),
        np.zeros((0, 3)),
        np.array(5),
    ):
        found = pickle.loads(pickle.dumps(cw.asarray(x)))
        assert (
            found.dtype == x.dtype
            and (found.strides == x.strides or not x.size)
            and np.array_equal(found.numpy(), x)
        )
    cw.put("r", [1])
    found = pickle.loads(pickle.dumps(cw.get("r", readonly=True)))
    assert found.readonly and found.name == "r"


def test_inside_other_objects():
    w = cw.asarray([1, 2, 3])
    found = pickle.loads(pickle.dumps({"a": [w, w], "b": (w[1:],)}))
    assert found["a"][0] is found["a"][1]
    assert found["b"][0].tolist() == [2, 3]


def test_a_pickle_outlives_the_array_that_it_was_made_of():
    w = cw.asarray(np.arange(100))
    data = pickle.dumps(w)
    w.close()
    del w
    for _ in range(20):
        cw.full(100, -1)
    assert pickle.loads(data).numpy().sum() == 4950


def test_a_pickle_opened_again_when_all_is_gone_is_stale(script, tmp_path, monkeypatch):
    """Others may open the same pickle for pickle_seconds after its first opening by another process, and no longer."""
    monkeypatch.setenv("CABLEWAY_PICKLE_SECONDS", "3")
    with cw.connect(tmp_path / "broker"):
        try:
            _pickle_ends(script)
        finally:
            stop_broker(tmp_path / "broker")


def test_a_pickle_that_its_maker_alone_has_opened_does_not_outlive_it_for_long(
    script, tmp_path, monkeypatch
):
    """By pickle_seconds after its end, not by transit_seconds: `copy.deepcopy()` pickles and opens. One that nobody has opened may
    lie in a pipe.
    """
    monkeypatch.setenv("CABLEWAY_PICKLE_SECONDS", "0")
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path / "broker"))

    def transits() -> int:
        return run_json("status")["gauges"]["transits"]

    begin = "import cableway as cw, pickle; data = pickle.dumps(cw.zeros(9))"
    with cw.connect(tmp_path / "broker"):
        try:
            script(f"{begin}; pickle.loads(data)")
            assert eventually(lambda: transits() == 0)
            script(begin)
            assert transits() == 1
        finally:
            stop_broker(tmp_path / "broker")


def _pickle_ends(script):
    w = cw.asarray(np.arange(100))
    data = pickle.dumps(w)
    del w
    found = pickle.loads(data)
    again = pickle.loads(data)
    assert again.tolist() == found.tolist()
    del found, again
    opened = script(
        f"""
        import pickle
        for _ in range(3):
            print(pickle.loads({data!r}).numpy().sum())
        """
    )
    assert opened.stdout == "4950\n" * 3
    limit = time.monotonic() + 60
    with pytest.raises(
        cw.Stale, match="is gone.*until the receiver has opened it; then send it again"
    ):
        while time.monotonic() < limit:
            pickle.loads(data)
            time.sleep(0.01)


def test_bad_pickles_are_errors():
    opener, state = cw.asarray([1]).__reduce__()
    with pytest.raises(ValueError):
        opener(b"short", *state[1:])
    with pytest.raises(cw.Error):
        opener(state[0], "|O", *state[2:])
    with pytest.raises((ValueError, cw.Error)):
        opener(state[0], state[1], (1000,), *state[3:]).numpy()


LIES = [
    {"shape": (-1,)},
    {"shape": (-1,), "strides": (0,)},
    {"shape": (0, -1), "strides": (8, 8)},
    {"shape": (1001,)},
    {"shape": (2**62,)},
    {"shape": (2**64,)},
    {"shape": (1000, 2)},
    {"shape": (1.5,)},
    {"shape": None},
    {"strides": (-8,)},
    {"strides": (16,)},
    {"strides": (2**70,)},
    {"strides": (-(2**63),)},
    {"offset": -8},
    {"offset": 8},
    {"offset": 2**63 - 1},
    {"offset": None},
    {"dtype": "<c16"},
    {"dtype": None},
    {"shape": (1,) * 100, "strides": (8,) * 100},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_pickle_that_lies_about_the_layout_is_an_error(lie):
    """No element outside of the array's memory is ever looked at."""
    opener, (handle, dtype, shape, strides, offset, *rest) = cw.asarray(
        np.arange(1000)
    ).__reduce__()
    told = {"dtype": dtype, "shape": shape, "strides": strides, "offset": offset, **lie}
    with pytest.raises(cw.Error):
        opener(handle, told["dtype"], told["shape"], told["strides"], told["offset"], *rest)


def test_an_item_of_a_queue_that_lies_about_the_layout_is_an_error(monkeypatch):
    w = cw.asarray(np.arange(1000))
    layout = w._layout_now()
    queue = cw.Queue()
    for item in (w, [w, w]):
        with monkeypatch.context() as patch:
            patch.setattr(layout, "shape", (1001,))
            patch.setattr(layout, "_span", None)
            patch.setattr(layout, "encoded", None)
            queue.put(item)
            with pytest.raises(cw.Error):
                queue.get(timeout=60)
    queue.put(w)
    assert queue.get(timeout=60).tolist() == list(range(1000))
    queue.close()


def test_a_handle_of_more_bytes_than_there_are_is_an_error():
    opener, (handle, *state) = cw.asarray(np.arange(10)).__reduce__()
    for size in (2**63, 2**64 - 1):
        with pytest.raises(cw.Error):
            opener(handle[:40] + size.to_bytes(8, sys.byteorder), *state)


def test_other_picklers():
    class Own(pickle.Pickler):
        dispatch_table = copyreg.dispatch_table.copy()

    out = io.BytesIO()
    Own(out).dump(cw.asarray([4]))
    assert pickle.loads(out.getvalue()).tolist() == [4]
    assert pickle.loads(pickle._dumps(cw.asarray([4]))).tolist() == [4]  # type: ignore[attr-defined]
    assert pickle._loads(pickle.dumps(cw.asarray([4]))).tolist() == [4]  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_pool(method):
    context = multiprocessing.get_context(method)
    w = cw.zeros(1000)
    with context.Pool(2) as pool:
        back = pool.apply(double, (w,))
        assert back.numpy()[0] == 2 and w.numpy()[0] == 1
        assert pool.map(total, [cw.full(10, i) for i in range(20)]) == [10.0 * i for i in range(20)]
        pool.close()
        pool.join()
    assert back.numpy().sum() == 2000


@pytest.mark.parametrize("method", METHODS)
def test_pipe(method):
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=echo, args=(theirs,))
    child.start()
    w = cw.zeros(5)
    for _ in range(10):
        ours.send(w)
        w = ours.recv()
    ours.send(None)
    child.join()
    assert w.numpy()[0] == 10 and child.exitcode == 0


@pytest.mark.parametrize("method", METHODS)
def test_queue_whose_sender_lets_go_at_once(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=produce, args=(queue, 50))
    child.start()
    child_found = [queue.get(timeout=30) for _ in range(50)]
    child.join()
    assert [w.numpy().sum() for w in child_found] == [1000 * i for i in range(50)]


@pytest.mark.parametrize("method", METHODS)
def test_process_arguments(method):
    context = multiprocessing.get_context(method)
    w = cw.zeros(10)
    child = context.Process(target=double, args=(w,))
    child.start()
    child.join()
    assert child.exitcode == 0 and w.numpy()[0] == 1


def test_executor():
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        assert executor.submit(total, cw.full(10, 2.0)).result(timeout=60) == 20.0


def test_by_hand_over_a_pipe_to_an_unrelated_program():
    w = cw.asarray(np.arange(10))
    code = (
        "import pickle, sys; w = pickle.load(sys.stdin.buffer); w[0] = 100; print(w.numpy().sum())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(w),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == b"145\n" and w.numpy()[0] == 100


def test_threads_pickle_at_once():
    w = cw.asarray(np.arange(100))
    sums = []

    def work() -> None:
        for _ in range(100):
            sums.append(int(pickle.loads(pickle.dumps(w)).numpy().sum()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [4950] * 400


def test_a_handle_finds_its_broker_where_the_receiver_has_another(script, tmp_path):
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    cw.put("here", 1)
    done = script(f"""
        import multiprocessing, os, signal, cableway as cw

        def work(w):
            w[0] = 7
            assert cw.names() == ["here"], cw.names()

        if __name__ == "__main__":
            with cw.connect({str(other / "its.sock")!r}) as connection:
                pid = connection.broker_pid
                w = cw.put("there", [1, 2])
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    cw.connect().close()
                    pool.apply(work, (w,))
                print(w.tolist(), cw.names())
            os.kill(pid, signal.SIGTERM)
    """)
    assert done.stdout == "[7, 2] ['there']\n"
