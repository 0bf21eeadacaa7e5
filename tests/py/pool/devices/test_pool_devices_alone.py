"""Tasks of a Pool on GPUs whose arguments are arrays of ours alone, which go a way of their own.

Each test is a program of its own, on two GPUs of the test double or on those of the machine.
"""

from __future__ import annotations

import cuda_support
import device_pools

cuda_support.require()
several = cuda_support.second_gpu


gpus = cuda_support.for_module(devices=4)


program = device_pools.program


def test_an_array_is_at_the_worker_what_it_is_here(program):
    program("""
        def look(w):
            return w.shape, w.dtype, w.strides, w.name, w.readonly, w.to("cpu").numpy().tolist()
        if __name__ == "__main__":
            values = np.arange(24, dtype="i2").reshape(2, 3, 4)
            w = cw.put("a/name", cw.asarray(values, device="cuda:0"))
            fields = np.dtype([("a", "i4"), ("b", "f8")])
            given = [w, w[1], w[:, ::-2], w.T, w[0, 0, 0:0], cw.get("a/name", readonly=True),
                     cw.asarray(np.zeros(3, fields), device="cuda:0"), cw.full((), 7, device="cuda:0")]
            with pool_on("cuda:0") as pool:
                for _ in range(2):  # as they are met, and as they are known
                    assert pool.map(look, given) == [look(x) for x in given]
                    assert [pool.apply(look, (x,)) for x in given] == [look(x) for x in given]
                    assert pool.map(look, given, chunksize=3) == [look(x) for x in given]
    """)


def test_several_arrays_of_one_call(program):
    program("""
        def add(*ws):
            return sum(int(w.to("cpu").numpy().sum()) for w in ws), len({id(w) for w in ws})
        if __name__ == "__main__":
            ws = [cw.full(10, i, "i8", device="cuda:0") for i in range(20)]
            with pool_on("cuda:0") as pool:
                for count in (1, 2, 8, 9, 20):
                    assert pool.apply(add, tuple(ws[:count])) == (10 * sum(range(count)), count)
                assert pool.apply(add, (ws[1], ws[2], ws[1])) == (40, 2), "one object twice is one there"
                assert pool.apply(add, (ws[1], cw.full(10, 5, "i8"))) == (60, 2), "one lies on the host"
                assert pool.apply(add) == (0, 0)
                assert pool.map(add, [ws[1], ws[2]]) == [(10, 1), (20, 1)]
    """)


def test_what_the_worker_writes_is_seen(program):
    program("""
        def double(w):
            w.copy_from(w.to("cpu").numpy() * 2)
        if __name__ == "__main__":
            w = cw.full(100, 3, device="cuda:0")
            with pool_on("cuda:0") as pool:
                assert pool.map(double, [w] * 3, chunksize=1) == [None] * 3
            assert (w.to("cpu").numpy() == 24).all()
    """)


def test_a_worker_keeps_no_lease_behind_its_task(program):
    program("""
        import weakref
        def look(w):
            global last
            last = weakref.ref(w._open_lease())
            return w.nbytes
        def is_gone():
            return last() is None
        if __name__ == "__main__":
            w = cw.zeros(1000, device="cuda:0")
            with pool_on("cuda:0") as pool:
                for _ in range(3):  # as it is met, and as it is known
                    assert pool.map(look, [w]) == [8000] and pool.apply(is_gone)
                w.close()
                try:
                    raise AssertionError(pool.map(look, [w]))
                except ValueError as error:
                    assert "closed" in str(error), error
    """)


def test_an_array_that_goes_while_its_task_waits_is_stale(program):
    program("""
        def look(w):
            return w.nbytes
        def wait_for(name):
            while not os.path.exists(name): time.sleep(0.005)
        if __name__ == "__main__":
            w, other = cw.zeros(1000, device="cuda:0"), cw.zeros(10, device="cuda:0")
            with pool_on("cuda:0") as pool:
                pool.map(look, [w, other])
                first = pool.apply_async(wait_for, (sys.argv[0] + ".go",))
                waiting = pool.apply_async(look, (w,)), pool.apply_async(look, (other,))
                def gone():
                    return status()["counters"]["blocks_reclaimed"]
                before = gone()
                w.close()
                while gone() == before: time.sleep(0.01)  # until the broker has heard of it
                open(sys.argv[0] + ".go", "w").close()
                first.get()
                try:
                    raise AssertionError(waiting[0].get())
                except cw.Stale:
                    pass
                assert waiting[1].get() == 80
    """)


def test_a_worker_that_dies_takes_its_task_along_and_a_retry_has_the_array(program):
    program("""
        def die_once(w):
            if int(w.to("cpu").numpy()[0]) == 0:
                w.copy_from(np.ones(10))
                os.kill(os.getpid(), signal.SIGKILL)
            return w.nbytes
        if __name__ == "__main__":
            w = cw.zeros(10, device="cuda:0")
            with pool_on("cuda:0") as pool:
                try:
                    raise AssertionError(pool.map(die_once, [w]))
                except cw.WorkerDied:
                    pass
                assert pool.map(die_once, [w] * 5) == [80] * 5
            w.copy_from(np.zeros(10))
            with pool_on("cuda:0", retries=1) as pool:
                assert pool.map(die_once, [w] * 5) == [80] * 5
    """)


@several
def test_an_array_of_another_gpu_is_copied(program):
    program("""
        def put(w):
            assert w.device == "cuda:0"
            before = w.to("cpu").numpy().tolist()
            w.copy_from(np.full(3, 9.0))
            return before
        if __name__ == "__main__":
            near, far = (cw.full(3, float(i), device=f"cuda:{i}") for i in range(2))
            with pool_on("cuda:0") as pool:
                for _ in range(3):  # one that looks ahead beside those that need nothing
                    assert pool.map(put, [near, far] * 4) == [[0.0] * 3, [1.0] * 3] + [[9.0] * 3, [1.0] * 3] * 3
                    near.copy_from(np.zeros(3))
            assert far.to("cpu").numpy().tolist() == [1.0] * 3
    """)


def test_a_new_array_or_connection_is_no_old_one(program):
    program("""
        def look(w):
            return w.to("cpu").numpy().tolist()
        if __name__ == "__main__":
            w = cw.full(3, 4, device="cuda:0")
            with pool_on("cuda:0") as pool:
                assert pool.map(look, [w]) == [[4.0] * 3]
                w.close()
                w = cw.full(3, 5, device="cuda:0")
                assert pool.map(look, [w]) == [[5.0] * 3]
                with cw.connect():  # the same broker, by another connection
                    assert pool.map(look, [w, cw.full(3, 6, device="cuda:0")]) == [[5.0] * 3, [6.0] * 3]
    """)
