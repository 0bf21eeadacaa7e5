"""What overlaps on a Pool with devices: while one task computes, the next one's inputs come and the last one's results leave.

Nothing is timed. A task's work on the GPU is held up until a file is there, and the test looks at what has happened
meanwhile: at the bytes that the broker counts by route, and at the caller's arrays.

Runs in `make test-more`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import cuda_support
import pytest
from transfer_support import program_of

cuda_support.require()
GPUS = cuda_support.real_gpus() if cuda_support.REAL else 2
several = cuda_support.second_gpu
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")


gpus = cuda_support.for_module()


@pytest.fixture
def program(script: Callable[..., object], tmp_path: Path) -> Callable[..., str]:
    """Runs a text in a folder of its own, after what tasks here have in common."""
    run = program_of(script, tmp_path)
    return lambda text, **options: run(COMMON + textwrap.dedent(text), **options)


COMMON = """
def brought():
    "In a worker: how many arrays are on the GPU already for tasks to come."
    import gc
    from cableway._pool.worker.prefetch import Prefetch
    found = [one for one in gc.get_objects() if isinstance(one, Prefetch)]
    return sum(len(task.leases) for one in found for task in list(one._kept.values()))

def compute(x, number, held, seen):
    "Adds 1 to x, by GPU work that waits for a file; tells what was brought for others meanwhile."
    Path(f"begun{number}").touch()
    if held:
        Kernel_of_this_task = Kernel("go")
        eventually(lambda: brought() >= seen)
        Path(f"seen{number}").touch()
        Kernel_of_this_task.call("cuStreamSynchronize", Kernel_of_this_task.stream)
    tasks.bump(x)
    return brought()
"""


def test_while_a_task_computes_the_next_ones_inputs_come_and_the_last_ones_results_leave(program):
    program("""
        if __name__ == "__main__":
            xs = [np.full(1000, i, "f8") for i in range(5)]
            with pool_on() as pool:
                results = [pool.apply_async(compute, (cw.InOut(x), i, i == 1, 2)) for i, x in enumerate(xs)]
                wait_for("seen1")                   # what tasks 2 and 3 need is on the GPU
                results[0].get(60)                  # what task 0 made is here
                assert (xs[0] == 1).all() and not Path("begun2").exists() and not results[1].ready()
                assert (xs[1] == 1).all()
                Path("go").touch()
                assert [one.get(60) for one in results[1:]][-1] == 0
            assert all((x == i + 1).all() for i, x in enumerate(xs))
    """)


def test_what_comes_ahead_is_not_copied_again(program):
    program("""
        if __name__ == "__main__":
            xs = [np.full(1000, i, "f8") for i in range(4)]
            with Moved() as moved, pool_on() as pool:
                results = [pool.apply_async(compute, (cw.InOut(x), i, i == 1, 2)) for i, x in enumerate(xs)]
                wait_for("seen1")
                Path("go").touch()
                for one in results:
                    one.get(60)
            # Each in and out once; and tasks.bump copies out and in.
            assert moved.routes == {"to_gpu": 64_000, "from_gpu": 64_000}, moved.routes
            assert all((x == i + 1).all() for i, x in enumerate(xs))
    """)


@several
def test_arrays_of_other_gpus_come_ahead_too(program):
    program("""
        def hold(y, x, number, held, seen):
            assert x.device == "cuda:0"
            return compute(x, number, held, seen), float(x.to("cpu").numpy()[0])
        if __name__ == "__main__":
            far = [cw.full(1000, i, device="cuda:1") for i in range(4)]
            near = cw.zeros(5000, device="cuda:0")
            with Moved() as moved, pool_on("cuda:0") as pool:
                results = [pool.apply_async(hold, (near, x, i, i == 1, 2)) for i, x in enumerate(far)]
                wait_for("seen1")
                Path("go").touch()
                assert [one.get(60)[1] for one in results] == [1, 2, 3, 4]
            assert moved.routes["peer"] == 32_000, moved.routes
            assert [float(x.to("cpu").numpy()[0]) for x in far] == [0, 1, 2, 3]
    """)


@on_the_double
def test_arrays_of_gpus_without_a_link_come_ahead_by_way_of_the_host(program):
    program("""
        def hold(x, number, held, seen):
            assert x.device == "cuda:0"
            return compute(x, number, held, seen), float(x.to("cpu").numpy()[0])
        if __name__ == "__main__":
            far = [cw.full(1000, i, device="cuda:1") for i in range(4)]
            with Moved() as moved, pool_on("cuda:0") as pool:
                results = [pool.apply_async(hold, (x, i, i == 1, 2)) for i, x in enumerate(far)]
                wait_for("seen1")
                Path("go").touch()
                assert [one.get(60)[1] for one in results] == [1, 2, 3, 4]
            assert moved.routes["staged"] == 32_000 and "peer" not in moved.routes, moved.routes
    """, env={"CABLEWAY_FAKECUDA_NO_PEER": "all"})  # fmt: skip


def test_arrays_of_ours_on_the_host_come_ahead_too(program):
    program("""
        if __name__ == "__main__":
            xs = [cw.full(1000, i) for i in range(4)]
            with pool_on() as pool:
                results = [pool.apply_async(compute, (cw.In(x), i, i == 1, 2)) for i, x in enumerate(xs)]
                wait_for("seen1")
                Path("go").touch()
                for one in results:
                    one.get(60)
            assert all((x.numpy() == i).all() for i, x in enumerate(xs))
    """)


def test_tasks_that_come_while_one_computes_are_seen(program):
    program("""
        if __name__ == "__main__":
            x, y = np.zeros(1000), np.zeros(1000)
            with pool_on() as pool:
                first = pool.apply_async(compute, (cw.InOut(x), 0, True, 1))
                wait_for("begun0")
                second = pool.apply_async(tasks.bump, (cw.InOut(y),))
                wait_for("seen0")
                Path("go").touch()
                first.get(60), second.get(60)
            assert (x == 1).all() and (y == 1).all()
    """)


def test_a_task_that_is_taken_back_leaves_nothing_on_the_gpu(program):
    program("""
        if __name__ == "__main__":
            x, y = np.zeros(1000), np.zeros(1000)
            with cw.Executor(devices="cuda:0") as executor:
                first = executor.submit(compute, cw.InOut(x), 0, True, 1)
                wait_for("begun0")
                second = executor.submit(tasks.bump, cw.InOut(y))
                wait_for("seen0")
                assert second.cancel()
                Path("go").touch()
                first.result(60)
                eventually(lambda: executor.submit(brought).result(60) == 0)
                executor.submit(tasks.bump, cw.InOut(y)).result(60)   # it is nobody's Out any more
            assert (x == 1).all() and (y == 1).all()
    """)


def test_a_worker_that_dies_takes_nothing_of_the_next_tasks_along(program):
    program("""
        def die(x, seen):
            eventually(lambda: brought() >= seen)
            os._exit(1)
        if __name__ == "__main__":
            xs = [np.full(1000, i, "f8") for i in range(4)]
            with pool_on() as pool:
                first = pool.apply_async(die, (cw.InOut(xs[0]), 2))
                rest = [pool.apply_async(tasks.bump, (cw.InOut(x),)) for x in xs[1:]]
                try:
                    first.get(60)
                    raise SystemExit("it did not raise")
                except cw.WorkerDied:
                    pass
                for one in rest:
                    one.get(60)
            assert (xs[0] == 0).all() and all((x == i + 1).all() for i, x in enumerate(xs) if i)
    """)


@on_the_double
def test_what_comes_ahead_is_bounded_by_a_share_of_the_gpu(program):
    program("""
        def look(x, seen):
            import gc
            from cableway._pool.worker.prefetch import SHARE, Prefetch
            (ahead,) = [one for one in gc.get_objects() if isinstance(one, Prefetch)]
            if seen:
                eventually(lambda: brought() >= seen)
                time.sleep(0.1)
            return ahead._bytes, ahead._limit, [len(one.leases) for one in ahead._kept.values()]
        if __name__ == "__main__":
            each = 90 << 20
            xs = [cw.zeros(each, "u1") for _ in range(2)]
            with pool_on() as pool:
                results = [pool.apply_async(look, (cw.In(xs[i % 2]), i == 1)) for i in range(4)]
                nbytes, limit, kept = [one.get(60) for one in results][1]
            assert nbytes == each and limit == 128 << 20 and kept == [1], (nbytes, limit, kept)
    """)


def test_a_pool_that_has_nothing_to_do_keeps_nothing(program):
    program("""
        if __name__ == "__main__":
            xs = [np.zeros(1000) for _ in range(30)]
            with pool_on("cuda") as pool:
                for _ in range(3):
                    pool.map(tasks.bump, map(cw.InOut, xs), chunksize=1)
                eventually(lambda: not any(pool.map(lambda _: brought(), range(8))))
            assert all((x == 3).all() for x in xs)
    """)


def test_many_tasks_over_few_workers_all_come_out_right(program):
    program("""
        import random
        def mix(a, b, out, n):
            tasks.add(a, b, out)
            if n % 7 == 3:
                raise ValueError(n)
            return np.full(20_000 if n % 5 == 0 else 1, n)
        if __name__ == "__main__":
            random.seed(7)
            for devices in ("cuda", {"cuda:0": 2}):
                jobs = []
                with pool_on(devices) as pool:
                    for n in range(120):
                        size = random.choice([1, 100, 5000, 40_000])
                        a, b, out = np.full(size, n), cw.full(size, 2 * n), np.full(size, -1)
                        if n % 3 == 0:
                            b = cw.full(size, 2 * n, device="cuda:0")
                        args = cw.In(a), b if n % 3 == 0 else cw.In(b), cw.Out(out), n
                        jobs.append((n, out, pool.apply_async(mix, args)))
                    for n, out, job in jobs:
                        try:
                            assert (job.get(60) == n).all() and n % 7 != 3 and (out == 3 * n).all()
                        except ValueError:
                            assert n % 7 == 3 and (out == -1).all()
    """)


@on_the_double
def test_a_context_that_breaks_while_results_leave_tells_each_task(program):
    program("""
        def nothing(x):
            pass
        def end(x):
            Path("second").touch()
            wait_for("now")
        if __name__ == "__main__":
            x = np.zeros(20_000)
            with pool_on() as pool:
                first = pool.apply_async(nothing, (cw.Out(x),))   # the copy out of the GPU breaks its context
                second = pool.apply_async(end, (3,))
                wait_for("second")
                try:
                    first.get(60)
                    raise SystemExit("it did not raise")
                except cw.DeviceError as error:
                    assert "ILLEGAL_ADDRESS" in str(error)
                Path("now").touch()
                try:
                    second.get(60)
                    raise SystemExit("it did not raise")
                except cw.DeviceError as error:
                    assert "ILLEGAL_ADDRESS" in str(error)
                assert pool.apply(abs, (-1,)) == 1   # by another worker
            assert not x.any()
    """, env={"CABLEWAY_FAKECUDA_FAULTS": "copy@1=ILLEGAL_ADDRESS"})  # fmt: skip


@on_the_double
@pytest.mark.parametrize("retries", [0, 1])
def test_the_task_beside_one_that_overran_is_not_run_again_without_retries(program, retries):
    program("""
        def stuck(x):
            cuda = ctypes.CDLL(os.environ["CABLEWAY_CUDA_DRIVER"])
            assert cuda.fakecuda_faults(b"copy=hang") == 0  # its results never leave
            time.sleep(1)  # the next one begins clearly later
        def count():
            with open("count", "a") as file:
                file.write(".")
            if RETRIES and Path("count").read_text() == "..":
                return "again"
            wait_for("never")
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:0", task_timeout=3.0, retries=RETRIES) as pool:
                pool.apply(abs, (1,))
                first = pool.apply_async(stuck, (cw.Out(np.zeros(20_000)),))
                time.sleep(1.5)  # the limit of the second is over so much later
                second = pool.apply_async(count)
                try:
                    first.get(60)
                    raise SystemExit("it did not raise")
                except cw.TaskTimeout as error:
                    assert "stuck" in str(error)
                if RETRIES:
                    assert second.get(60) == "again"
                else:
                    try:
                        second.get(60)
                        raise SystemExit("it did not raise")
                    except cw.WorkerDied as error:
                        assert type(error) is cw.WorkerDied and "another task" in str(error), error
                assert Path("count").read_text() == "." * (1 + RETRIES)
    """.replace("RETRIES", str(retries)))  # fmt: skip


@on_the_double
def test_a_call_beside_one_that_overran_did_not_overrun(program):
    program("""
        def stuck(x):
            cuda = ctypes.CDLL(os.environ["CABLEWAY_CUDA_DRIVER"])
            assert cuda.fakecuda_faults(b"copy=hang") == 0  # its results never leave
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:0", task_timeout=3.0) as pool:
                pool.apply(abs, (1,))
                first = pool.apply_async(stuck, (cw.Out(np.zeros(20_000)),))
                time.sleep(1.5)  # the limit of the call is over so much later
                try:
                    pool.apply(wait_for, ("never",))
                    raise SystemExit("it did not raise")
                except cw.WorkerDied as error:
                    assert type(error) is cw.WorkerDied and "another task" in str(error), error
                try:
                    first.get(60)
                    raise SystemExit("it did not raise")
                except cw.TaskTimeout as error:
                    assert "stuck" in str(error)
    """)  # fmt: skip
