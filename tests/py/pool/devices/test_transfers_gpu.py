"""What `In`, `Out` and `InOut` promise on a Pool with devices. On the host: test_transfers.

Runs in `make test-more`: each test has a Pool with devices of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cuda_support
import pytest
from transfer_support import program_of

cuda_support.require()
GPUS = cuda_support.real_gpus() if cuda_support.REAL else 2
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")


gpus = cuda_support.for_module()


@pytest.fixture
def program(script: Callable[..., object], tmp_path: Path) -> Callable[..., str]:
    """Runs a text in a folder of its own."""
    return program_of(script, tmp_path)


def test_arrays_of_all_sorts_are_on_the_gpu_and_come_back(program):
    program("""
        if __name__ == "__main__":
            cube = np.arange(4 * 5 * 6.0).reshape(4, 5, 6)
            kinds = [np.arange(5), np.arange(100_000, dtype="f4"), np.array(3.5), np.zeros((3, 0, 2)), cube.copy(),
                     np.asfortranarray(cube), cube.copy().transpose(1, 0, 2), cube.copy()[::2, ::-1, 1:], np.ones(6, "c16")]
            with pool_on() as pool:
                for x in kinds:
                    before = x.copy()
                    want = ("Array", x.shape, x.dtype.str, "cuda:", before.tobytes())
                    assert pool.apply(tasks.told, (cw.In(x),)) == want
                    pool.apply(tasks.bump, (cw.In(x),))
                    assert (x == before).all()
                    pool.apply(tasks.bump, (cw.InOut(x),))
                    np.testing.assert_array_equal(x, before + 1)
                    pool.apply(tasks.add, (cw.In(before), cw.In(before), cw.Out(x)))
                    np.testing.assert_array_equal(x, before + before)
    """)


def test_each_byte_goes_once_each_way(program):
    program("""
        if __name__ == "__main__":
            x, y, z = (np.full(10_000, i, "f8") for i in range(3))
            with Moved() as moved, pool_on() as pool:
                pool.apply(cw.Array.copy_from, (cw.Out(z), cw.In(x)))
                assert (z == 0).all()
            assert moved.routes == {"to_gpu": 80_000, "same_gpu": 80_000, "from_gpu": 80_000}, moved.routes
            with Moved() as moved, pool_on() as pool:
                assert pool.apply(cw.Array.close, (cw.In(x),)) is None
                pool.apply(cw.Array.close, (cw.Out(y),))
                pool.apply(cw.Array.close, (cw.InOut(z),))
            assert moved.routes == {"to_gpu": 160_000, "from_gpu": 160_000}, moved.routes
            assert (z == 0).all()
    """)


def test_arrays_of_ours_go_to_the_gpu_without_a_copy_on_the_host(program):
    program("""
        if __name__ == "__main__":
            x, y = cw.asarray(np.arange(100_000.0)), cw.zeros(100_000)
            with pool_on() as pool:
                pool.apply(tasks.add, (cw.In(x), cw.In(x[::-1]), cw.Out(y)))
                assert (y.numpy() == 99_999).all()
                kept = pool._engine._store
                assert sum(b.capacity for b in [*kept._free, *kept._lent]) < 1_000_000  # but for the reversed one
                pool.apply(tasks.bump, (cw.InOut(x[10:20]),))
            assert x.numpy()[9:21].tolist() == [9, *range(11, 21), 20]
    """)


def test_every_way_to_call_with_every_start_method(program):
    program("""
        if __name__ == "__main__":
            for method in ("spawn", "forkserver"):
                xs = [np.full(30_000, i, "i4") for i in range(12)]
                with pool_on("cuda", context=method) as pool:
                    pool.map(tasks.bump, map(cw.InOut, xs), chunksize=5)
                    pool.starmap(tasks.bump, [(cw.InOut(x), 10) for x in xs], chunksize=1)
                    list(pool.imap(tasks.bump, map(cw.InOut, xs)))
                    list(pool.imap_unordered(tasks.bump, map(cw.InOut, xs), chunksize=3))
                    pool.apply_async(tasks.bump, (cw.InOut(xs[0]),), {"by": 5}).get(60)
                    assert pool.apply(tasks.bump_part, ({"x": [cw.InOut(xs[1])], "text": "t"},)) == "t"
                for i, x in enumerate(xs):
                    assert (x == i + 13 + (5 if i < 2 else 0)).all(), (i, x)
            with cw.Executor(devices="cuda") as executor:
                executor.submit(tasks.bump, cw.InOut(xs[0])).result(60)
                list(executor.map(tasks.bump, map(cw.InOut, xs)))
            assert (xs[0] == 20).all() and (xs[1] == 20).all() and (xs[2] == 16).all()
    """)


def test_what_recurs_goes_to_the_host_memory_once(program):
    program("""
        if __name__ == "__main__":
            x, ys = np.arange(50_000.0), [np.zeros(50_000) for _ in range(8)]
            with pool_on() as pool:
                both = cw.In(x)
                pool.starmap(tasks.add, [(both, cw.In(x), cw.Out(y)) for y in ys], chunksize=1)
            assert all((y == 2 * x).all() for y in ys)
    """)


def test_a_task_that_raises_leaves_out_as_it_was(program):
    program("""
        if __name__ == "__main__":
            x = np.zeros(20_000)
            with pool_on() as pool:
                for _ in range(3):
                    try:
                        pool.apply(tasks.bump_and_raise, (cw.InOut(x),))
                        raise SystemExit("it did not raise")
                    except RuntimeError:
                        pass
                assert not x.any()
                pool.apply(tasks.bump, (cw.InOut(x),))
            assert (x == 1).all()
    """)


def test_a_death_leaves_out_as_it_was_and_a_task_that_is_run_again_begins_anew(program):
    program("""
        if __name__ == "__main__":
            x = np.zeros(20_000)
            with pool_on() as pool:
                try:
                    pool.apply(tasks.bump_and_die, (cw.InOut(x), "died"))
                    raise SystemExit("it did not raise")
                except cw.WorkerDied:
                    pass
                assert not x.any()
            os.remove("died")
            with pool_on(retries=2) as pool:
                pool.apply(tasks.bump_and_die, (cw.InOut(x), "died"))
            assert (x == 1).all()
    """)


@on_the_double
def test_a_death_with_results_on_their_way_loses_their_task_too(program):
    program("""
        def nothing(x):
            "Its result hangs in the copy out of the GPU, while the next task dies."
        def die():
            Path("second").touch()
            wait_for("now")
            os._exit(3)
        if __name__ == "__main__":
            x = np.zeros(20_000)
            with pool_on() as pool:
                first = pool.apply_async(nothing, (cw.InOut(x),))
                second = pool.apply_async(die)
                wait_for("second")
                assert not first.ready()
                Path("now").touch()
                for one in (first, second):
                    try:
                        one.get(60)
                        raise SystemExit("it did not raise")
                    except cw.WorkerDied as death:
                        assert death.exitcode == 3
                assert not x.any() and pool.apply(type, (cw.In(x),)) is cw.Array
    """, env={"CABLEWAY_FAKECUDA_FAULTS": "copy@2=hang"})  # fmt: skip


def test_the_gpus_work_is_complete_before_results_come(program):
    program("""
        def fill(x):
            kernel = Kernel("go")
            kernel.fill(x, 7)
            Path("returned").touch()
            tasks.kept.append(kernel)
        if __name__ == "__main__":
            x = np.zeros(1000, "u1")
            with pool_on() as pool:
                result = pool.apply_async(fill, (cw.Out(x),))
                wait_for("returned")
                time.sleep(0.05)
                assert not result.ready() and not x.any()
                Path("go").touch()
                result.get(60)
                assert (x == 7).all()
    """)


def test_who_keeps_an_argument_keeps_its_memory(program):
    program("""
        if __name__ == "__main__":
            x = np.zeros(20_000)
            with pool_on() as pool:
                pool.apply(tasks.bump_and_keep, (cw.InOut(x),))
                found = pool.apply(tasks.bump_and_give, (cw.InOut(x),))
                for _ in range(4):
                    pool.apply(tasks.bump, (cw.InOut(np.full(20_000, 100.0)),))
                assert pool.apply(tasks.total_of_kept) == 20_000
                assert found.device == "cuda:0" and (found.to("cpu").numpy() == 2).all()
                assert (x == 2).all()
    """)


def test_results_and_values_both_come(program):
    program("""
        def values(x, n):
            x[...] = np.full(5, n, "i8")
            return {"n": n, "big": np.full(50_000, n), "w": cw.full(3, n)}
        if __name__ == "__main__":
            xs = [np.zeros(5, "i8") for _ in range(20)]
            with pool_on() as pool:
                found = pool.starmap(values, [(cw.Out(x), n) for n, x in enumerate(xs)], chunksize=1)
            for n, (x, one) in enumerate(zip(xs, found)):
                assert (x == n).all() and one["n"] == n and (one["big"] == n).all() and (one["w"].numpy() == n).all()
    """)


def test_workers_that_leave_give_all_answers_first(program):
    program("""
        if __name__ == "__main__":
            xs = [np.zeros(5000) for _ in range(12)]
            with pool_on(maxtasksperchild=2) as pool:
                pids = pool.map(tasks.bump, map(cw.InOut, xs), chunksize=1)
            assert all((x == 1).all() for x in xs) and len(set(pids)) == 6, pids
    """)


@on_the_double
def test_no_memory_on_the_gpu_fails_the_task_alone(program):
    program("""
        if __name__ == "__main__":
            x, huge = np.zeros(5), np.zeros(600 << 20, "u1")
            with pool_on() as pool:
                for _ in range(2):
                    try:
                        pool.apply(tasks.add, (cw.In(huge), cw.In(huge), cw.Out(x)))
                        raise SystemExit("it did not raise")
                    except cw.LimitExceeded:
                        pass
                pid = pool.apply(tasks.bump, (cw.InOut(x),))
                assert pid == pool.apply(os.getpid) and (x == 1).all()
    """)


@on_the_double
@pytest.mark.parametrize("copy", ["copy@1=ILLEGAL_ADDRESS", "copy@2=ECC_UNCORRECTABLE"])
def test_a_copy_that_fails_fails_its_task_with_cudas_name(program, copy):
    program("""
        def nothing(x):
            pass
        if __name__ == "__main__":
            x, y = np.zeros(5), np.zeros(5)
            with pool_on() as pool:
                try:
                    pool.apply(nothing, (cw.InOut(x),))
                    raise SystemExit("it did not raise")
                except cw.DeviceError as error:
                    assert os.environ["CABLEWAY_FAKECUDA_FAULTS"].split("=")[1] in str(error), error
                assert not x.any()
    """, env={"CABLEWAY_FAKECUDA_FAULTS": copy})  # fmt: skip


def test_a_gpu_array_as_out_is_refused_and_as_in_goes_as_it_is(program):
    program("""
        if __name__ == "__main__":
            w = cw.zeros(5, device="cuda:0")
            for kind in (cw.Out, cw.InOut):
                try:
                    kind(w)
                    raise SystemExit("it did not raise")
                except TypeError as error:
                    assert "cuda:0" in str(error) and "writes into it" in str(error)
            with Moved() as moved, pool_on() as pool:
                assert pool.apply(type, (cw.In(w),)) is cw.Array
            assert moved.routes == {}, moved.routes
    """)
