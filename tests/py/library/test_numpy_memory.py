"""NumPy's arrays in memory of ours (_core/numpy_memory.py): they are ordinary arrays in every respect."""

from __future__ import annotations

import os

import pytest
from conftest import stop_broker

BEGIN = """
import contextvars, os, signal, sys, threading, time
import numpy as np, cableway as cw
from cableway import client
from cableway._core import numpy_memory
MIB = 1 << 20
connection = client.current()
def ours(x):
    return numpy_memory.handle(connection, x) is not None
def in_context(function):
    return contextvars.copy_context().run(function)
def use():
    numpy_memory.use(connection, MIB, False)
"""


def test_large_arrays_are_ours_and_small_ones_are_not(script):
    script(
        BEGIN
        + """
def run():
    use()
    for _ in range(3):
        for make in (np.empty, np.ones, np.zeros, lambda n: np.arange(n, dtype="f8"), lambda n: np.full(n, 2.5)):
            large, small, under = make(MIB // 8), make(10), make(MIB // 8 - 1)
            assert ours(large) and not ours(small) and not ours(under), make
            assert not ours(large[1:]) and not ours(large[:-1])
            large[:] = 7
            assert large.sum() == 7 * MIB // 8
            del large
    assert numpy_memory.used_bytes() == 0
    x = np.ones((1024, 1024))
    y = x + x.T
    assert ours(y) and (y == 2).all() and ours(x * 2) and ours(x.astype("f4")) and ours(x.copy())
    assert ours(np.concatenate([x, y])) and ours(np.sort(y, axis=0)) and ours(x @ y)
    assert numpy_memory.used_bytes() == 2 * x.nbytes
in_context(run)
assert numpy_memory.used_bytes() == 0
assert not ours(np.ones(MIB))  # another context
"""
    )


def test_zeros_are_zeros_on_used_memory(script):
    script(
        BEGIN
        + """
def run():
    use()
    for size in (MIB, 3 * MIB + 17, 64 * MIB):
        for _ in range(4):
            x = np.zeros(size, "u1")
            assert ours(x) and not x.any()
            x[:] = 255
            del x
    x = np.zeros(64 * MIB + 1, "u1")  # to clear so much would hold up all threads of Python
    assert not ours(x) and not x.any()
in_context(run)
"""
    )


def test_an_array_grows_and_shrinks(script):
    script(
        BEGIN
        + """
def run():
    use()
    for begin, end in ((MIB, 4 * MIB), (4 * MIB, MIB), (4 * MIB, 100), (100, 4 * MIB), (MIB, 0), (MIB, MIB + 1)):
        values = np.random.default_rng(begin).integers(0, 255, max(begin, end), dtype="u1")
        x = np.empty(begin, "u1")
        x[:] = values[:begin]
        x.resize(end, refcheck=False)
        assert (x[: min(begin, end)] == values[: min(begin, end)]).all() and not x[begin:].any()
        x[:] = 1
        del x, values
    assert numpy_memory.used_bytes() == 0
in_context(run)
"""
    )


def test_only_used_memory_is_reused(script):
    script(
        BEGIN
        + """
def run():
    numpy_memory.use(connection, MIB, True)
    assert not ours(np.ones(MIB)) and not ours(np.zeros(MIB))
    cw.zeros(MIB)  # and it goes
    for _ in range(20):
        x = np.ones(MIB)
        assert numpy_memory.used_bytes() == x.nbytes and x.sum() == MIB
        x[:] = 5
        del x
        x = np.zeros(MIB)
        assert numpy_memory.used_bytes() == x.nbytes and not x.any()
        del x
in_context(run)
assert numpy_memory.used_bytes() == 0
"""
    )


def test_any_thread_may_free(script):
    script(
        BEGIN
        + """
import queue
def run():
    use()
    given = queue.Queue(4)
    def taker():
        while (x := given.get()) is not None:
            assert (x == x[0]).all()
    threads = [threading.Thread(target=taker) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(300):
        given.put(np.full(MIB // 8 + i % 7 * 1000, float(i)))
    for _ in threads:
        given.put(None)
    for thread in threads:
        thread.join()
in_context(run)
assert numpy_memory.used_bytes() == 0
"""
    )


def test_a_thread_has_what_numpy_gives(script):
    """Nothing changes for who did not ask."""
    script(
        BEGIN
        + """
def run():
    use()
    found = []
    thread = threading.Thread(target=lambda: found.append(ours(np.ones(MIB))), daemon=True)
    thread.start()
    thread.join()
    assert ours(np.ones(MIB)) and (found == [False] or sys.flags.__dict__.get("thread_inherit_context"))
in_context(run)
"""
    )


@pytest.mark.parametrize("child_first", [True, False])
def test_neither_side_of_a_fork_sees_the_other_write(script, child_first):
    script(
        BEGIN
        + f"child_first = {child_first}\n"
        + """
def run():
    use()
    x = np.arange(MIB, dtype="f8")
    y = x[5:]
    told, tell = os.pipe()
    heard, hear = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if child_first:
                x[:] = -1
                os.write(hear, b"x")
                os.read(told, 1)
                assert (x == -1).all()
            else:
                os.read(told, 1)
                assert (x == np.arange(MIB)).all()
                y[:] = -1
                os.write(hear, b"x")
            z = np.zeros(MIB)  # NumPy's own memory
            assert not ours(x) and not ours(z) and not z.any()
            del x, y, z
            os._exit(0)
        finally:
            os._exit(1)
    if child_first:
        os.read(heard, 1)
        assert (x == np.arange(MIB)).all()
        x[:] = 3
        os.write(tell, b"x")
    else:
        x[:] = 3
        os.write(tell, b"x")
        os.read(heard, 1)
        assert (x == 3).all()
    assert os.waitpid(child, 0)[1] == 0
    assert not ours(x)  # its block has what it held before the fork
    del x, y
    again = np.zeros(MIB)
    assert ours(again) and not again.any()
in_context(run)
assert numpy_memory.used_bytes() == 0
"""
    )


def test_forks_in_the_midst_of_all(script):
    script(
        BEGIN
        + """
def run():
    use()
    stop = threading.Event()
    def work(i):
        use()
        while not stop.is_set():
            x = np.full(MIB // 8 + i * 512, float(i))
            x += 1
            assert (x == i + 1).all()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    kept = np.arange(MIB, dtype="f8")
    for i in range(60):
        child = os.fork()
        if child == 0:
            fine = (kept[1:] == np.arange(1, MIB)).all()
            kept[1:] = 0
            del kept
            os._exit(0 if fine and np.ones(MIB).sum() == MIB else 1)
        assert os.waitpid(child, 0)[1] == 0
        kept[0] = i
    stop.set()
    for thread in threads:
        thread.join()
    assert (kept[1:] == np.arange(1, MIB)).all()
in_context(run)
assert numpy_memory.used_bytes() == 0
"""
    )


def test_beyond_the_limit_numpy_has_its_own(script, tmp_path):
    folder = tmp_path / "broker"
    folder.mkdir(mode=0o700)
    limited = {**os.environ, "CABLEWAY_DIR": str(folder), "CABLEWAY_MAX_BYTES": "48 MiB"}
    script(
        BEGIN
        + """
def run():
    use()
    kept = [np.full(4 * MIB // 8, float(i)) for i in range(20)]
    mine = [ours(x) for x in kept]
    assert any(mine) and not all(mine), mine
    assert all((x == i).all() for i, x in enumerate(kept))
    del kept
    time.sleep(1.1)  # after a refusal nothing is asked for during 1 s
    assert ours(np.ones(MIB))
in_context(run)
assert numpy_memory.used_bytes() == 0
""",
        env=limited,
    )
    stop_broker(folder)


def test_a_broker_that_dies_takes_nothing(script):
    script(
        BEGIN
        + """
def run():
    use()
    x = np.arange(MIB, dtype="f8")
    from cableway._core.library import lib
    os.kill(lib.cw_client_broker_pid(connection.pointer), signal.SIGKILL)
    while not connection.lost:
        time.sleep(0.01)
    assert (x == np.arange(MIB)).all()
    x[:] = 2
    y = np.ones(MIB)
    assert y.sum() == MIB and x.sum() == 2 * MIB
    child = os.fork()
    if child == 0:
        x[:] = 5
        os._exit(0)
    os.waitpid(child, 0)
    assert (x == 2).all()
in_context(run)
"""
    )


def test_a_block_outlives_its_array(script):
    """What Dask does with a result: the block is opened, the array goes, and the block has its values."""
    script(
        BEGIN
        + """
from cableway._dask import blocks
def run():
    use()
    for i in range(50):
        x = np.full(MIB // 4, float(i))
        block = blocks.opened(connection, numpy_memory.handle(connection, x), x.nbytes)
        del x
        y = np.zeros(MIB // 4)  # takes other memory
        y[:] = -1
        assert (np.frombuffer(block.memory(), "f8") == i).all()
in_context(run)
""".replace("from cableway._dask import blocks\n", "")
        .replace(
            "blocks.opened(connection, numpy_memory.handle(connection, x), x.nbytes)", "opened(x)"
        )
        .replace(
            '(np.frombuffer(block.memory(), "f8") == i).all()',
            '(np.frombuffer(np.asarray(block), "f8") == i).all()',
        )
        .replace(
            "def run():",
            """from cableway._core import byte_blocks
from cableway._core.leases import lease_of_handle
from cableway._core.library import lib
def opened(x):
    handle = numpy_memory.handle(connection, x)
    return lease_of_handle(connection, handle, byte_blocks.bytes_layout(x.nbytes), lib.CW_READONLY)
def run():""",
        )
    )
