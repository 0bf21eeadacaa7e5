"""Pools on GPUs in trouble: broken contexts, full memory, deaths, GPUs that are not there. Nobody hangs, others go on.

Runs in `make test-more`.
"""

from __future__ import annotations

import textwrap

import cuda_programs
import cuda_support
import device_pools
import pytest

cuda_support.require()
several = cuda_support.second_gpu
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")


gpus = cuda_support.for_module(devices=4, memory_mib=1024)


program = device_pools.program


# A kernel that writes where nothing is, and what its caller hears.
BROKEN = """
def break_it(how="return"):
    driver = Driver()
    driver.launch(b"poke", 8, 1)
    if how == "raise":                      # a library that looks for itself
        driver.synchronize()
    return "submitted"
def told(error):
    text = str(error)
    assert isinstance(error, cw.DeviceError), repr(error)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in text and "replaced" in text and "GPU-" in text, text
    return True
"""


@pytest.mark.parametrize("how", ["return", "raise"])
def test_a_kernel_that_breaks_the_context_fails_its_own_task_and_its_worker_is_replaced(
    program, how
):
    program(
        BROKEN
        + f"""
HOW = {how!r}
"""
        + """
if __name__ == "__main__":
    w = cw.full(1000, 3.0, device="cuda:0")
    broker = status()["pid"] if "pid" in status() else None
    with cw.Pool(devices={"cuda": 2}) as pool:
        before = everyone(pool, 2 * GPUS)
        kept = w.copy()
        try: pool.apply(break_it, (HOW,))
        except cw.DeviceError as error:
            assert told(error)
            assert HOW == "return" or "RuntimeError: cuCtxSynchronize: 700" in str(error.__cause__), error.__cause__
        else: raise AssertionError
        after = everyone(pool, 2 * GPUS)
        assert len(after & before) == 2 * GPUS - 1, (before, after)
        gone, came = (before - after).pop(), (after - before).pop()
        assert gone[0] == came[0], "the successor is on the same GPU"
    assert (w.to("cpu").numpy() == 3).all() and (kept.to("cpu").numpy() == 3).all()
    assert (status()["pid"] if "pid" in status() else None) == broker, "the broker has noticed nothing"
"""
    )


def test_it_does_so_in_every_kind_of_call(program):
    program(
        BROKEN
        + """
def item(i):
    return break_it() if i == 5 else i
def with_array(w):
    return break_it()
def local_function(kept):
    def local(w):                                            # goes by cloudpickle, with its task
        return break_it() if kept else None
    return local
if __name__ == "__main__":
    w = cw.full(100, 1.0, device="cuda:0")
    local = local_function([1])
    with cw.Pool(devices="cuda:0") as pool:
        results = [pool.apply_async(item, (i,)) for i in range(8)]
        for i, result in enumerate(results):
            try: assert result.get() == i and i != 5
            except cw.DeviceError as error: assert i == 5 and told(error)
        for chunk in (1, 4):
            try: pool.map(item, range(8), chunksize=chunk)
            except cw.DeviceError as error: assert told(error)
            else: raise AssertionError
        for function in (with_array, local, with_array):
            try: pool.apply(function, (w,))
            except cw.DeviceError as error: assert told(error)
            else: raise AssertionError
        assert pool.map(item, range(5)) == list(range(5))
    with cw.Executor(devices="cuda:0") as executor:
        futures = [executor.submit(item, i) for i in range(8)]
        assert [f.exception() is None for f in futures] == [i != 5 for i in range(8)]
        assert told(futures[5].exception())
"""
    )


def test_an_initializer_that_breaks_the_context_ends_the_pool_with_the_reason(program):
    program(
        BROKEN
        + """
if __name__ == "__main__":
    try:
        with cw.Pool(devices="cuda:0", initializer=break_it) as pool: pool.map(wait, range(3))
    except cw.DeviceError as error: assert told(error)
    else: raise AssertionError
"""
    )


def test_a_device_error_of_the_tasks_own_costs_no_worker(program):
    program("""
        def wrong(_):
            cw.empty(3, device="cuda:77")
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:0") as pool:
                before = pool.apply(wait)
                try: pool.apply(wrong, (0,))
                except cw.DeviceError as error: assert "no cuda:77" in str(error), error
                else: raise AssertionError
                assert pool.apply(wait) == before
    """)


@on_the_double
def test_full_memory_is_an_exception_and_the_worker_lives(program):
    program("""
        def fill(size):
            kept = []
            while True:
                kept.append(cw.empty(size, "u1", device="cuda"))
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:0") as pool:
                before = pool.apply(wait)
                for size in (64 << 20, 1 << 20, 1000 << 10):
                    try: pool.apply(fill, (size,))
                    except MemoryError as error: assert isinstance(error, cw.LimitExceeded) and "cuda:0 is full" in str(error)
                    else: raise AssertionError
                assert pool.apply(wait) == before
    """)


@on_the_double
def test_a_gpu_that_is_full_before_ours_is_opened_there_costs_no_worker(program):
    program(
        """
        def use(_):                                     # a library's own context, and no memory for streams of ours
            Driver().synchronize()
            return os.getpid()
        if __name__ == "__main__":
            with pool_on("cuda:0") as pool:
                assert len(set(pool.map(use, range(5)))) == 1
        """,
        env={"CABLEWAY_FAKECUDA_FAULTS": "cuStreamCreate=OUT_OF_MEMORY"},
    )


@several
@on_the_double
def test_no_memory_for_a_copy_of_a_peers_array(program):
    program("""
        def look(w):
            return w.device
        if __name__ == "__main__":
            far = cw.full(600 << 20, 1, "u1", device="cuda:1")
            near = cw.full(600 << 20, 2, "u1", device="cuda:0")
            with cw.Pool(devices="cuda:0") as pool:
                before = pool.apply(wait)
                try: pool.apply(look, (far,))
                except cw.LimitExceeded as error: assert "is full" in str(error), error
                else: raise AssertionError
                assert pool.apply(look, (near,)) == "cuda:0" and pool.apply(wait) == before
    """)


def test_a_killed_worker_has_a_successor_on_its_gpu(program):
    program("""
        def die(w):
            os.kill(os.getpid(), signal.SIGKILL)
        def die_once(w, file):
            if not os.path.exists(file):
                open(file, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return own()
        if __name__ == "__main__":
            last = f"cuda:{GPUS - 1}"
            w = cw.full(1000, 1.0, device=last)
            with cw.Pool(devices="cuda") as pool:
                before = everyone(pool, GPUS)
                try: pool.apply(die, (w,))
                except cw.WorkerDied as error: assert error.signal == signal.SIGKILL and (w.device_uuid, error.pid) in before
                else: raise AssertionError
                after = everyone(pool, GPUS)
                assert len(after & before) == GPUS - 1 and {uuid for uuid, _ in after} == {uuid for uuid, _ in before}
            with cw.Pool(devices="cuda", retries=1) as pool:
                assert pool.apply(die_once, (w, sys.argv[0] + ".died")) in {uuid for uuid, _ in before}
            assert (w.to("cpu").numpy() == 1).all()
    """)


@on_the_double
def test_a_kernel_that_never_ends_is_ended_with_its_worker_by_the_time_limit(program):
    program("""
        def spin(_):
            flag = cw.zeros(1, "u4", device="cuda")
            Driver().launch(b"spin", flag._open_lease().address, 1)
            keep.append(flag)
        keep = []
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:0", task_timeout=4.0) as pool:
                try: pool.apply(spin, (0,))
                except cw.TaskTimeout: pass
                else: raise AssertionError
                assert pool.apply(wait)[0].startswith("GPU-")
    """)


def test_work_that_was_only_submitted_is_done_when_the_answer_comes(program):
    program("""
        def later(w):
            driver = Driver()
            for i in range(100):
                driver.launch(b"poke", w._open_lease().address + 4 * i, i)
        if __name__ == "__main__":
            w = cw.zeros(100, "u4", device="cuda:0")
            with cw.Pool(devices="cuda:0") as pool:
                for _ in range(20):
                    w[...] = 0
                    pool.apply(later, (w,))
                    assert (w.to("cpu").numpy() == np.arange(100)).all()
    """)


def test_a_task_whose_producer_is_killed_behind_its_section_is_told_and_no_other_is(
    program, tmp_path
):
    program(
        cuda_programs.LIBRARY
        + textwrap.dedent("""
        WRITES = LIBRARY + '''if True:
            w, s = cw.get("behind/w"), Stream()
            with w.writing(s, whole=True): s.hold("never"); s.fill(low(w), 7)
            say(); sys.stdin.read()
        '''
        streams = []
        def read(w, file):
            if not streams: streams.append(Stream())
            s = streams[0]
            with w.reading(s):
                got = s.fetch(low(w))
            if file: touch(file)                # the section has ended, and nobody has died yet
            return os.getpid()
        def raises(w, file):
            read(w, file)
            raise KeyError("its own")
        if __name__ == "__main__":
            w = cw.put("behind/w", cw.zeros(1000, "u1", device="cuda:0"))
            z = cw.zeros(1000, "u1", device="cuda:0")
            with cw.Pool(devices="cuda:0") as pool:
                pid = pool.apply(read, (z, None))
                for task, error in ((read, cw.ProducerDied), (raises, KeyError)):
                    with w.writing(whole=True): pass
                    w.wait(timeout=30)
                    writer = subprocess.Popen([sys.executable, "-c", WRITES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                    heard(writer)
                    result = pool.apply_async(task, (w, task.__name__))
                    while not os.path.exists(task.__name__): assert not result.ready()
                    assert not result.ready()   # its work waits for the writer's
                    writer.kill(); writer.wait()
                    try: result.get(30)
                    except error: pass
                    else: raise AssertionError(error)
                    assert pool.apply(read, (z, None)) == pid
        """).replace("LIBRARY +", f"{cuda_programs.LIBRARY!r} +", 1),
        cwd=tmp_path,
    )


# ---- GPUs that are not there


def test_no_gpu(program):
    program(
        """
        if __name__ == "__main__":
            for make in (cw.Pool, cw.Executor):
                for devices in ("cuda", "cuda:0", ["cuda:0"], {"cuda": 2}):
                    try: make(devices=devices)
                    except cw.DeviceError as error: assert "CUDA_VISIBLE_DEVICES" in str(error), error
                    else: raise AssertionError
            with cw.Pool(2, devices="auto", sms=8, peer=True) as pool:
                assert pool.map(abs, [-1, 2]) == [1, 2] and "devices" not in pool.stats()
            with cw.Executor(devices="auto") as executor:
                assert executor.submit(abs, -1).result() == 1
            with cw.Pool(2, context="fork", devices="auto") as pool:
                assert pool.apply(abs, (-3,)) == 3
        """,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )


def test_no_driver(program):
    program(
        """
        if __name__ == "__main__":
            try: cw.Pool(devices="cuda")
            except cw.DeviceError as error: assert "no CUDA driver" in str(error), error
            else: raise AssertionError
            with cw.Pool(1, devices="auto") as pool:
                assert pool.apply(abs, (-3,)) == 3
        """,
        env={"CABLEWAY_CUDA_DRIVER": "/nowhere/libcuda.so.1"},
    )


def test_a_child_of_a_process_that_has_opened_cuda_is_told_so(program):
    program("""
        if __name__ == "__main__":
            held = cw.full(10, 1.0, device="cuda:0")
            child = os.fork()
            if child == 0:
                code = 1
                try: cw.Pool(devices="cuda")
                except cw.DeviceError as error: code = 0 if "spawn" in str(error) else 2
                os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
    """)


@several
def test_a_main_module_that_takes_the_mask_and_cuda_for_itself(script):
    """It does both when it is imported, in each worker too: the wrong GPU is not used silently."""
    done = script(
        """
        import os
        os.environ["CUDA_VISIBLE_DEVICES"] = MASK = "1,0"
        import cableway as cw
        cw.empty(1, device="cuda:0")
        def own(_):
            return cw.empty(1, device="cuda:0").device_uuid
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:1") as pool:
                try: print(pool.map(own, [0]))
                except cw.DeviceError as error: print(error)
        """
    )
    assert "CUDA_VISIBLE_DEVICES" in done.stdout and "__main__" in done.stdout, done.stdout


@on_the_double
def test_a_gpu_that_falls_off_the_bus(program, tmp_path):
    program(
        """
        def lose():
            driver = ctypes.CDLL(os.environ["CABLEWAY_CUDA_DRIVER"])
            driver.fakecuda_faults(b"copy=lose")
            w = cw.zeros(1000, device="cuda:0")
            w.copy()
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:0") as pool:
                for _ in range(3):
                    try: pool.apply(lose)
                    except cw.DeviceError as error: assert "cuda:0" in str(error), error
                    else: raise AssertionError
        """,
        env=cuda_support.double(tmp_path / "lost", devices=2),
    )


@several
@on_the_double
def test_gpus_that_are_no_peers_copy_through_the_host(program, tmp_path):
    program(
        """
        def look(w):
            return w.device, float(w.to("cpu").numpy().sum())
        if __name__ == "__main__":
            w = cw.full(100_000, 2.0, device="cuda:1")
            with Moved() as moved, pool_on("cuda:0") as pool:
                assert pool.apply(look, (w,)) == ("cuda:0", 200_000.0)
            assert moved.routes["staged"] == w.nbytes and moved.routes["peer"] == 0, moved.routes
        """,
        env=cuda_support.double(tmp_path / "apart", devices=2, no_peer="all"),
    )


# ---- parts of a GPU


@on_the_double
def test_parts_that_the_driver_cannot_make(program, tmp_path):
    program(
        """
        if __name__ == "__main__":
            try:
                with cw.Pool(devices="cuda:0", sms=8) as pool: pool.apply(wait)
            except cw.DeviceError as error: assert "CUDA_ERROR_NOT_SUPPORTED" in str(error) and "part" in str(error), error
            else: raise AssertionError
        """,
        env={"CABLEWAY_FAKECUDA_FAULTS": "cuGreenCtxCreate=NOT_SUPPORTED"},
    )
    program("""
        if __name__ == "__main__":
            try:                                        # 119 of 132, but the driver makes 24 of 17
                with cw.Pool(devices={"cuda:0": 7}, sms=17) as pool: pool.map(wait, range(9))
            except cw.LimitExceeded as error: assert "5 parts" in str(error) and "rounds up" in str(error), error
            else: raise AssertionError
    """)
