"""One array, several handles in one process: an array has one address there, so that what overlaps is seen."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from multiprocessing import shared_memory

import numpy as np
import pytest

import cableway as cw

N = 100_000
SHIFTED = np.concatenate(([0.0], np.arange(N - 1.0)))


def both(order: str) -> tuple[cw.Array, cw.Array]:
    """A writable and a read-only handle on one array, opened in that order."""
    w = cw.put("both", np.arange(float(N)))
    if order == "writable first":
        return w, cw.get("both", readonly=True)
    w.close()
    r = cw.get("both", readonly=True)
    return cw.get("both"), r


def check_copies(w: cw.Array, r: cw.Array) -> None:
    assert r.readonly and not r.numpy().flags.writeable and not w.readonly
    with pytest.raises(ValueError):
        r.numpy().flags.writeable = True
    assert np.shares_memory(w.numpy(), r.numpy())
    w[1:] = r[:-1]
    assert np.array_equal(w.numpy(), SHIFTED)
    w[...] = np.arange(float(N))
    w[1:].copy_from(r[:-1])
    assert np.array_equal(w.numpy(), SHIFTED)
    w[...] = np.arange(float(N))
    w[...] = r[::-1]
    assert np.array_equal(w.numpy(), np.arange(float(N))[::-1])
    np.add(r.numpy(), r.numpy()[::-1], out=w.numpy())
    assert (w.numpy() == N - 1).all()
    with pytest.raises(ValueError, match="overlap|different clients"):
        cw.copy([(w[1:], r[:-1])])


@pytest.mark.parametrize("order", ["writable first", "read-only first"])
def test_a_copy_over_itself_is_right_by_a_writable_and_a_readonly_handle(order):
    check_copies(*both(order))


def test_a_copy_over_itself_is_right_over_two_connections():
    w = cw.put("both", np.arange(float(N)))
    handle = pickle.dumps(cw.get("both", readonly=True))
    with cw.connect(namespace="other"):
        check_copies(w, cw.asarray(pickle.loads(handle)))


def _in_a_fork(w: cw.Array) -> None:
    check_copies(w, cw.get("both", readonly=True))


def test_a_copy_over_itself_is_right_in_a_forked_child():
    w = cw.put("both", np.arange(float(N)))
    child = multiprocessing.get_context("fork").Process(target=_in_a_fork, args=(w,))
    child.start()
    child.join()
    assert child.exitcode == 0


def _write_by_force(order: str, queue: multiprocessing.queues.Queue[bool]) -> None:
    import ctypes

    if order == "read-only first":
        r = cw.get("guarded", readonly=True)
        cw.get("guarded").close()
    else:
        cw.get("guarded").close()
        r = cw.get("guarded", readonly=True)
    queue.put(r.numpy().flags.writeable)
    queue.close()
    queue.join_thread()
    ctypes.memset(r.numpy().ctypes.data, 1, 1)


@pytest.mark.parametrize("order", ["writable first", "read-only first"])
def test_a_readonly_array_is_guarded_once_its_writable_handles_are_closed(order):
    context = multiprocessing.get_context("spawn")
    cw.put("guarded", np.zeros(N)).close()
    queue = context.Queue()
    child = context.Process(target=_write_by_force, args=(order, queue))
    child.start()
    assert queue.get() is False
    child.join()
    assert child.exitcode == -11
    assert not cw.get("guarded").numpy().any()


def test_a_copy_of_memory_that_was_taken_over_is_right_by_either_address():
    memory = shared_memory.SharedMemory(create=True, size=8 * N)
    try:
        x = cw.put("shm", memory)
        assert isinstance(x, cw.Array)
        x = cw.asarray(memory, float)
        theirs = np.ndarray(N, float, memory.buf)
        theirs[:] = np.arange(float(N))
        x[1:] = theirs[:-1]
        assert np.array_equal(theirs, SHIFTED)
        theirs[:] = np.arange(float(N))
        x[1:].copy_from(theirs[:-1])
        assert np.array_equal(theirs, SHIFTED)
        del theirs
    finally:
        memory.close()
        memory.unlink()


def test_a_read_only_array_is_guarded_again_once_all_of_its_process_were_closed(script):
    """Beside a writable one it lies where that lies; who opens the array next decides anew."""
    done = script(
        """
        import ctypes, resource, cableway as cw
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        w = cw.put("guarded", [1, 2, 3])
        r = cw.get("guarded", readonly=True)
        assert r.numpy().ctypes.data == w.numpy().ctypes.data and not r.flags.writeable
        w.close()
        assert r.readonly and r.tolist() == [1, 2, 3]
        r.close()
        r = cw.get("guarded", readonly=True)
        print(r.numpy().sum(), flush=True)
        ctypes.memset(r.numpy().ctypes.data, 0, 1)
        """,
        check=False,
    )
    assert done.stdout == "6\n", done
    assert done.returncode == -signal.SIGSEGV or "SEGV" in done.stderr
    assert cw.get("guarded").tolist() == [1, 2, 3]
