"""multiprocessing.shared_memory: what lies there is put without a copy."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

import cableway as cw


@pytest.fixture
def shm() -> Iterator[SharedMemory]:
    """A block of 800 bytes."""
    block = SharedMemory(create=True, size=800)
    yield block
    try:
        block.close()
    except BufferError:
        gc.collect()
        block.close()
    try:
        block.unlink()
    except FileNotFoundError:
        pass


def test_put_without_a_copy(shm):
    shm.buf[3] = 7
    w = cw.put("shm", shm)
    assert w.dtype == np.uint8 and w.shape == (shm.size,) and w.numpy()[3] == 7
    shm.buf[4] = 8
    assert cw.get("shm").numpy()[4] == 8
    cw.get("shm")[5] = 9
    assert shm.buf[5] == 9


def test_asarray_with_dtype_and_shape(shm):
    x = np.ndarray((10, 10), "f8", shm.buf)
    x[...] = np.arange(100).reshape(10, 10)
    w = cw.asarray(shm, "f8", shape=(10, 10))
    assert np.array_equal(w, x)
    w[0, 0] = -1
    assert x[0, 0] == -1
    assert cw.asarray(shm, "f8").shape == (100,)
    assert cw.asarray(shm, "f8", shape=5).shape == (5,)
    assert cw.asarray(shm, "f8", shape=(2, 5), order="F").strides == (8, 16)
    assert cw.asarray(shm, "f8", shape=(0, 3)).shape == (0, 3)
    copied = cw.asarray(shm, "f8", shape=(10, 10), copy=True)
    w[0, 0] = -2
    assert copied.numpy()[0, 0] == -1
    del x


def test_arrays_over_shared_memory(shm):
    x = np.ndarray((100,), "f8", shm.buf)
    x[...] = np.arange(100)
    w = cw.put("part", x[10:20], copy=False)
    x[10] = 1000
    assert w.numpy()[0] == 1000 and cw.get("part").shape == (10,)
    back = cw.put("back", x[::-2], copy=False)
    x[99] = 2000
    assert back.numpy()[0] == 2000 and np.array_equal(cw.get("back"), x[::-2])
    copied = cw.put("copied", x[10:20])
    x[10] = 0
    assert copied.numpy()[0] == 1000
    del x


def test_another_process_sees_it(shm, script):
    cw.put("shm", shm)
    script("import cableway as cw; w = cw.get('shm'); w[0] = 200; w[799] = 100")
    assert shm.buf[0] == 200 and shm.buf[799] == 100


def test_it_outlives_the_file(shm):
    shm.buf[0] = 42
    cw.put("shm", shm)
    shm.unlink()
    shm.close()
    assert cw.get("shm").numpy()[0] == 42


def test_attached_blocks(shm):
    other = SharedMemory(shm.name)
    try:
        cw.put("other", other)
        shm.buf[1] = 11
        assert cw.get("other").numpy()[1] == 11
    finally:
        other.close()


def test_clear_errors(shm):
    with pytest.raises(ValueError, match="800 bytes"):
        cw.asarray(shm, "f8", shape=101)
    with pytest.raises(ValueError, match="shape="):
        cw.asarray(shm, "V7")
    with pytest.raises(TypeError, match="objects"):
        cw.asarray(shm, "O")
    with pytest.raises(ValueError, match="only for a SharedMemory"):
        cw.asarray(np.zeros(4), shape=(2, 2))
    closed = SharedMemory(shm.name)
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        cw.put("x", closed)


def test_unlinked_memory_cannot_be_found_by_its_address(shm):
    x = np.ndarray((100,), "f8", shm.buf)
    shm.unlink()
    with pytest.raises(ValueError, match="copy=False"):
        cw.put("x", x, copy=False)
    assert cw.put("x", x).shape == (100,)
    del x
