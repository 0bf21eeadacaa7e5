"""Arrays that PyTorch or CuPy allocated by itself, as arguments of tasks: lent by the driver's legacy handles.

On the double stand-ins of the libraries (standins/), on real GPUs the libraries.

Runs in `make test-more`.
"""

from __future__ import annotations

import borrowed_support
import cuda_support
import pytest

cuda_support.require()
on_the_double = pytest.mark.skipif(
    cuda_support.REAL, reason="the double alone: faults on demand, or an allocator without a cache"
)


gpus, program = borrowed_support.gpus, borrowed_support.program


def test_a_tensor_is_not_copied_and_a_task_writes_into_the_callers(program):
    program(
        "torch",
        """
if __name__ == "__main__":
    t = new(np.ones(100_000, "f4"))
    with Pool(devices="cuda:0") as pool:
        assert pool.map(total, [t] * 4) == [100_000] * 4
        pool.apply(mark, (t,))
        assert pool.apply(total, (t,)) == 100_006 == host(t).sum()
        assert pool.apply(total, kwds={"x": t}) == 100_006             # not alone: by a message
        assert pool.lent() == (7, 0), pool.lent()
""",
    )


def test_borrow_false_copies_and_nothing_is_seen(program):
    program(
        "torch",
        """
if __name__ == "__main__":
    t = new(np.ones(1000, "f4"))
    with Pool(devices="cuda:0", borrow=False) as pool:
        pool.apply(mark, (t,))
        assert pool.map(total, [t] * 2) == [1000] * 2 and host(t)[0] == 1
        assert pool.lent() == (0, 3), pool.lent()
    with Pool(devices="cuda:0") as sharing, Pool(devices="cuda:0", borrow=False) as copying:
        assert sharing.map(total, [t]) == [1000]
        copying.apply(mark, (t,))                                      # also what another Pool has borrowed
        copy = cw.asarray(t)
        mark(copy)
        assert host(t)[0] == 1 and copying.lent() == (0, 1)
        sharing.apply(mark, (t,))
        assert host(t)[0] == 7 and sharing.lent() == (2, 0)
""",
    )


def test_an_array_of_cupy_is_copied_unless_asked_for(program):
    program(
        "cupy",
        """
if __name__ == "__main__":
    a = new(np.ones(1000, "f4"))
    with Pool(devices="cuda:0") as pool:
        pool.apply(mark, (a,))
        assert pool.apply(total, (a,)) == 1000 and pool.lent() == (0, 2)
    with Pool(devices="cuda:0", borrow=True) as pool:
        pool.apply(mark, (a,))
        assert pool.map(total, [a, a]) == [1006] * 2 and host(a)[0] == 7
        assert pool.lent() == (3, 0), pool.lent()
""",
    )


def test_borrow_is_for_pools_on_gpus(program):
    program(
        "torch",
        """
if __name__ == "__main__":
    try: cw.Pool(1, borrow=True)
    except ValueError as error: assert "borrow= is for a Pool with devices=" in str(error)
    else: raise AssertionError
""",
    )


@on_the_double
def test_memory_of_which_the_driver_gives_no_handle_is_copied(program):
    program(
        "torch",
        """
if __name__ == "__main__":
    t = new(np.ones(1000, "f4"))
    with Pool(devices="cuda:0", borrow=True) as pool:
        assert pool.map(total, [t] * 3) == [1000] * 3
        assert pool.lent() == (0, 3), pool.lent()
""",
        CABLEWAY_FAKECUDA_FAULTS="cuIpcGetMemHandle@1+=INVALID_VALUE",
    )


def test_work_that_the_caller_has_begun_comes_first(program):
    program(
        "torch",
        """
def fill(driver, t, value):
    driver.call("cuMemsetD8Async", ctypes.c_uint64(t.data_ptr()), value, ctypes.c_size_t(400_000), ctypes.c_void_p(0))
def all_are(t, value):
    return bool((host(t).view("u1") == value).all())
if __name__ == "__main__":
    t, driver = new(np.ones(100_000, "f4")), Driver()
    with Pool(devices="cuda:0") as pool:
        assert pool.apply(total, (t,)) == 100_000
        if not os.environ.get("CABLEWAY_CUDA_DRIVER", "").endswith("double.so"): faults = lambda text: None
        else: faults = ctypes.CDLL(os.environ["CABLEWAY_CUDA_DRIVER"]).fakecuda_faults
        faults(b"fill=delay:200000")
        for value in (3, 5):
            fill(driver, t, value)
            assert pool.starmap(all_are, [(t, value)] * 2) == [True] * 2
            fill(driver, t, value + 1)
            assert pool.map(total, [t]) == [float(np.full(400_000, value + 1, "u1").view("f4").sum())]
        faults(b"")
""",
    )


def test_what_a_worker_still_has_keeps_its_memory_when_the_caller_drops_it(program):
    program(
        "torch",
        """
kept = []
def keep(t):
    kept.append(t)
def look():
    return [total(t) for t in kept]
if __name__ == "__main__":
    t = new(np.full(100_000, 2.0, "f4"))
    with Pool(devices="cuda:0") as pool:
        pool.map(keep, [t])
        del t
        others = [new(np.zeros(100_000, "f4")) for _ in range(8)]
        assert pool.apply(look) == [200_000]
        assert len(suballocation._kept) == 1
        pool.apply(kept.clear)                      # a copy of the list, of this process
        pool.apply(exec, ("import __main__, __mp_main__; __mp_main__.kept.clear()",))
        gone()
""",
    )


def test_memory_comes_back_when_the_last_one_drops_it(program):
    program(
        "torch",
        """
if __name__ == "__main__":
    with Pool(devices="cuda:0") as pool:
        for i in range(5):
            ts = [new(np.full(100_000, i + j, "f4")) for j in range(3)]
            assert pool.map(total, ts) == [100_000 * (i + j) for j in range(3)]
            del ts
            gone()
        assert pool.lent() == (15, 0)
""",
    )


@on_the_double
def test_another_allocation_at_the_same_address_is_another_one(program):
    """Without a cache between, as after torch.cuda.empty_cache()."""
    program(
        "torch",
        """
if __name__ == "__main__":
    seen = set()
    with Pool(devices="cuda:0") as pool:
        for i in range(20):
            t = new(np.full(100_000, i, "f4"))
            seen.add(t.data_ptr())
            assert pool.map(total, [t]) == [100_000 * i]
            memory = weakref.ref(t.owner)
            del t
            gone(memory)
    assert len(seen) == 1, seen  # the double gives the address that was freed last
""",
    )


@on_the_double
def test_memory_that_was_given_back_under_a_tensor_is_not_lent_again(program):
    """As storage.resize_() does it: the tensor lives on, at the same address by chance."""
    program(
        "torch",
        """
if __name__ == "__main__":
    t = new(np.ones(600_000, "f4"))
    memory, address = t.owner, t.data_ptr()
    with Pool(devices="cuda:0") as pool:
        assert pool.map(total, [t]) == [600_000]
        driver = Driver()
        driver.call("cuMemFree_v2", ctypes.c_uint64(address))
        found, spare = ctypes.c_uint64(), []
        while found.value != address:
            driver.call("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(2_400_000))
            spare.append(found.value)
            assert len(spare) < 50
        from gpu_standins import write
        write(address, np.full(600_000, 2, "f4"))
        assert pool.map(total, [t]) == [1_200_000]
        assert pool.apply(total, kwds={"x": t}) == 1_200_000
""",
    )


def test_more_allocations_than_are_kept(program):
    program(
        "torch",
        """
if __name__ == "__main__":
    ts = [new(np.full(600_000, i, "f4")) for i in range(80)]
    with Pool(devices="cuda:0") as pool:
        for _ in range(2):
            assert pool.map(total, ts) == [600_000 * i for i in range(80)]
        assert pool.lent() == (160, 0), pool.lent()
        del ts
        gone()
        t = new(np.ones(10, "f4"))
        assert pool.map(total, [t]) == [10]
""",
    )


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_beside_arguments_of_other_kinds_an_array_is_lent_or_copied_once(program, name):
    program(
        name,
        """
def plus(x, more):
    return total(x) + more
if __name__ == "__main__":
    t = new(np.ones(1000, "f4"))
    with Pool(devices="cuda:0") as pool:
        assert pool.apply(plus, (t, 1)) == 1001
        assert pool.starmap(plus, [(t, 2)]) == [1002]
        assert pool.lent() == ((2, 0) if LIBRARY == "torch" else (0, 2)), pool.lent()
""",
    )


def test_many_threads_borrow_from_more_allocations_than_are_kept(program):
    program(
        "torch",
        """
if __name__ == "__main__":
    # Pieces of 32 MiB each: by itself PyTorch puts several smaller ones into one allocation.
    ts = [new(np.full(100 if not hasattr(library, "nn") else 6_000_000, i, "f4")) for i in range(100)]
    part, start = len(ts) // 5, threading.Barrier(5)
    def take(which):
        start.wait()
        return [suballocation.borrow(interop.ExternalArray(t, t.__cuda_array_interface__)) for t in which]
    from concurrent.futures import ThreadPoolExecutor
    from cableway._cuda import interop
    with ThreadPoolExecutor(5) as threads:
        for _ in range(2):
            leases = list(threads.map(take, [ts[i * part:(i + 1) * part] for i in range(5)]))
            del leases
            # one allocation by all of them at once: one loan
            same = list(threads.map(take, [ts[:1]] * 5))
            assert len({suballocation.number_of(lease) for found in same for lease in found}) == 1
            del same
    del ts
    while suballocation._kept:
        suballocation.collect()
        time.sleep(0.002)
""",
    )


def test_who_drops_what_was_lent_starts_no_thread_and_a_fork_may_come_at_any_time(program):
    program(
        "torch",
        """
def refuse(self):
    raise AssertionError("a finaliser starts a thread")
if __name__ == "__main__":
    t = new(np.ones(1000, "f4"))
    with Pool(devices="cuda:0") as pool:
        assert pool.map(total, [t]) == [1000]
        held, go = threading.Event(), threading.Event()
        def hold():
            with suballocation._lock:
                held.set()
                go.wait()
        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            suballocation.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        go.set()
        holder.join()
        start, threading.Thread.start = threading.Thread.start, refuse
        memory = weakref.ref(t.owner) if hasattr(t, "owner") else lambda: None
        del t
        gone(memory)
        threading.Thread.start = start
""",
    )


def test_a_tensor_that_changes_is_looked_at_anew(program):
    program(
        "torch",
        """
def about(t):
    return t.requires_grad, tuple(t.shape), total(t.detach())
if __name__ == "__main__":
    t = new(np.ones(100, "f4"))
    with Pool(devices="cuda:0") as pool:
        assert pool.map(about, [t]) == [(False, (100,), 100)]
        t.requires_grad_()
        assert pool.map(about, [t, t[:50]]) == [(True, (100,), 100), (True if hasattr(library, "nn") else False, (50,), 50)]
""",
    )


def test_a_worker_that_is_killed_leaves_what_it_was_lent(program):
    program(
        "torch",
        """
def die(t):
    os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    t = new(np.ones(100_000, "f4"))
    with Pool(devices="cuda:0") as pool:
        assert pool.map(total, [t]) == [100_000]
        try: pool.map(die, [t])
        except cw.WorkerDied: pass
        else: raise AssertionError
        assert pool.map(total, [t]) == [100_000] and host(t).sum() == 100_000
        del t
        gone()
""",
    )


def test_a_result_that_is_what_was_given_is_the_callers_own(program):
    program(
        "torch",
        """
def itself(t):
    return t, t[:10], new([5.0])
if __name__ == "__main__":
    t = new(np.arange(100_000, dtype="f4"))
    with Pool(devices="cuda:0") as pool:
        whole, part, fresh = pool.apply(itself, (t,))
        pool.close()
        pool.join()
    assert cw.asarray(whole).to("cpu").numpy().sum() == host(t).sum() and host(part).tolist() == list(range(10))
    cw.asarray(t, copy=False)[:1] = np.full(1, 9, "f4")
    assert host(part)[0] == host(whole)[0] == 9 and host(fresh).tolist() == [5.0]
    del whole, part, t
    gone()
""",
    )
