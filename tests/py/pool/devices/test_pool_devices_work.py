"""Pools and Executors on GPUs: where tasks run, what workers see, which bytes move.

Each test is a program of its own, on four GPUs of the test double or on those of the machine.
"""

from __future__ import annotations

import subprocess

import cuda_support
import device_pools
import pytest

cuda_support.require()
several = cuda_support.second_gpu
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")


gpus = cuda_support.for_module(devices=4)


program = device_pools.program


@several
def test_tasks_go_where_their_arrays_lie_and_no_byte_moves(program):
    program("""
        def look(w):
            assert w.device == "cuda:0", w.device
            return own(), w.device_uuid
        def nested(x, more=0):
            while not isinstance(x, cw.Array):
                x = x["a"] if isinstance(x, dict) else x[0]
            assert x.device == "cuda:0"
            return x.device_uuid
        if __name__ == "__main__":
            given = [cw.full(100_000, i, device=f"cuda:{i % GPUS}") for i in range(2 * GPUS)]
            where = [w.device_uuid for w in given]
            with Moved() as moved, pool_on("cuda") as pool:
                assert pool.map(look, given) == [(w, w) for w in where], "it ran where the array lies"
                # In every kind of call, and deep in the arguments.
                assert pool.apply(nested, ({"a": [given[-1]]}, 3)) == where[-1]
                assert pool.apply_async(nested, (given[1],), {"more": 1}).get() == where[1]
                assert pool.starmap(nested, [(w, 1) for w in given]) == where
                assert list(pool.imap(nested, given)) == where
                assert pool.map(lambda w: w.device_uuid, given) == where
            assert not any(moved.routes.values()), moved.routes
    """)


@several
def test_the_most_bytes_decide_and_the_rest_is_copied(program):
    program("""
        def add(a, b):
            assert a.device == b.device == "cuda:0"
            return own(), float(a.to("cpu").numpy().sum() + b.to("cpu").numpy().sum())
        if __name__ == "__main__":
            small, large = cw.full(1000, 1.0, device="cuda:0"), cw.full(9000, 2.0, device="cuda:1")
            for args in ((small, large), (large, small)):
                with Moved() as moved, pool_on("cuda") as pool:
                    assert pool.apply(add, args) == (large.device_uuid, 19000.0)
                assert moved.routes["peer"] + moved.routes["staged"] == 8000, moved.routes
            assert (small.to("cpu").numpy() == 1).all()
    """)


@several
def test_a_copy_of_a_peers_array_is_the_tasks_own_and_a_view_is_not(program):
    program("""
        def put(w, value):
            was = w.device
            w[...] = value
            return was, own()
        if __name__ == "__main__":
            w = cw.full(5000, 1.0, device="cuda:1")
            with Moved() as moved, pool_on("cuda:0") as pool:
                assert pool.apply(put, (w, 5))[0] == "cuda:0"
            assert moved.routes["peer"] + moved.routes["staged"] == 40_000
            assert (w.to("cpu").numpy() == 1).all()
            with Moved() as moved, pool_on("cuda:0", peer=True) as pool:
                assert pool.apply(put, (w, 5))[0] == "cuda:1"
            assert moved.routes["peer"] == moved.routes["staged"] == 0
            assert (w.to("cpu").numpy() == 5).all()
    """)


def test_arrays_on_the_host_stay_there(program):
    program("""
        def look(w, x):
            return w.device, float(w.numpy().sum()), float(x.sum())
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:0") as pool:
                assert pool.apply(look, (cw.full(50_000, 2.0), np.ones(50_000))) == ("cpu", 100_000.0, 50_000.0)
    """)


def test_results_come_back_by_handle(program):
    program("""
        def make(i):
            return cw.full(1000, i, device="cuda")
        if __name__ == "__main__":
            with cw.Pool(devices="cuda") as pool:
                made = pool.map(make, range(2 * GPUS))
            assert len({w.device for w in made}) == GPUS, made
            assert all((w.to("cpu").numpy() == i).all() for i, w in enumerate(made)), "they outlive the workers"
    """)


def test_a_workers_own_gpu_is_its_first_one_and_the_others_come_behind(program):
    program("""
        def look(_):
            time.sleep(0.2)
            return [cw.empty(1, device=name).device_uuid for name in cw.devices()[1:]], os.environ["CUDA_VISIBLE_DEVICES"]
        if __name__ == "__main__":
            mine = [cw.empty(1, device=f"cuda:{i}").device_uuid for i in range(GPUS)]
            with cw.Pool(devices="cuda") as pool:
                seen = pool.map(look, range(4 * GPUS))
            firsts = collections.Counter(uuids[0] for uuids, _ in seen)
            assert sorted(firsts) == sorted(mine) and max(firsts.values()) <= 8, firsts
            for uuids, mask in seen:
                assert uuids == [uuids[0], *(uuid for uuid in mine if uuid != uuids[0])]
                assert mask == ",".join(uuids) and "CUDA_DEVICE_ORDER" not in os.environ
    """)


def test_a_worker_runs_on_its_share_of_the_cores_near_its_gpu(program):
    program("""
        from cableway._pool.launch import environment
        from cableway._core.library import lib
        def look(_):
            time.sleep(0.2)
            mode = ctypes.c_int(-1)
            asked = ctypes.CDLL(None).syscall(239, ctypes.byref(mode), None, 0, None, 0)      # get_mempolicy
            allowed = asked == 0 and lib.cwpy_prefer_node(0) == 0
            return os.getpid(), tuple(sorted(os.sched_getaffinity(0))), mode.value if allowed else None
        if __name__ == "__main__":
            mine = sorted(os.sched_getaffinity(0))
            environment.cores_near = lambda bus, usable, sys: [[cpu] for cpu in mine[:4]]
            environment.node_near = lambda bus, sys: 0
            with cw.Pool(devices={"cuda:0": 2}) as pool:
                everyone(pool, 2)
                seen = {}
                while len(seen) < 2:  # one may have done all
                    for pid, cpus, mode in pool.map(look, range(8)): seen.setdefault(pid, (cpus, mode))
            shares = sorted(cpus for cpus, _ in seen.values())
            assert len(seen) == 2
            if len(mine) > 1:
                assert sorted(shares[0] + shares[1]) == mine[:4] and abs(len(shares[0]) - len(shares[1])) <= 1, shares
            assert {mode for _, mode in seen.values()} <= {1, None}, "MPOL_PREFERRED, where the container lets it"
            assert sorted(os.sched_getaffinity(0)) == mine
    """)


@several
def test_numbers_are_by_the_callers_mask(program):
    program(
        """
        if __name__ == "__main__":
            w = cw.full(10, 1.0, device="cuda:0")
            with cw.Pool(devices="cuda:0") as pool:
                assert pool.apply(own) == w.device_uuid == os.environ["WANTED"]
            with cw.Pool(devices=[w.device_uuid]) as pool:
                assert pool.apply(own) == w.device_uuid
            try: cw.Pool(devices="cuda:1")
            except cw.DeviceError as error: assert "no cuda:1" in str(error) and "CUDA_VISIBLE_DEVICES" in str(error)
            else: raise AssertionError
        """,
        env={"CUDA_VISIBLE_DEVICES": "1", "WANTED": _uuid(1)},
    )


def _uuid(index: int) -> str:
    """The UUID of one of the machine's GPUs, or of the double's."""
    if not cuda_support.REAL:
        return f"GPU-66616b65-6375-6461-0000-{index:012x}"
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return told.stdout.split()[index]


def test_libraries_are_told_not_to_take_all_memory_of_every_gpu(program, monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    program(
        """
        def look():
            return os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"], os.environ["TF_FORCE_GPU_ALLOW_GROWTH"]
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:0") as pool:
                assert pool.apply(look) == ("false", "whatever the user wants")
            assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ
        """,
        env={"TF_FORCE_GPU_ALLOW_GROWTH": "whatever the user wants"},
    )


def test_a_script_that_sets_its_own_mask_does_not_take_it_from_the_workers(script):
    script("""
        import os
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        import threading
        threading.Thread(target=lambda: None).start()
        import cableway as cw
        def own(_):
            return cw.empty(1, device="cuda").device_uuid, len(cw.devices())
        if __name__ == "__main__":
            for context in ("spawn", "forkserver"):
                with cw.Pool(devices="cuda", context=context) as pool:
                    mine = cw.empty(1, device="cuda:0").device_uuid
                    assert pool.map(own, range(3)) == [(mine, len(cw.devices()))] * 3
    """)


def test_cuda_that_the_main_module_uses_when_it_is_imported(script):
    """Then no server serves, and the mask is set before the import all the same."""
    script("""
        import os
        import cableway as cw
        last = cw.devices()[-1]
        if "FULL" in os.environ: w = cw.full(10, 2.0, device="cuda:0")
        def own(_):
            return cw.empty(1, device="cuda").device_uuid, os.getppid()
        if __name__ == "__main__":
            for _ in range(2):
                with cw.Pool(devices=last) as pool:
                    assert pool.map(own, range(2)) == [(cw.empty(1, device=last).device_uuid, os.getpid())] * 2
                os.environ["FULL"] = "1"
    """)


def test_the_caller_is_never_forked(program):
    program("""
        def parents(_):
            time.sleep(0.1)
            with open(f"/proc/{os.getppid()}/cmdline", "rb") as file:
                return os.getppid(), file.read().split(b"\\0")
        if __name__ == "__main__":
            held = cw.full(10, 1.0, device="cuda:0")        # CUDA is in use here
            for context in (None, "spawn", "forkserver", mp.get_context("spawn")):
                with cw.Pool(devices={"cuda:0": 2}, context=context) as pool:
                    for parent, command in pool.map(parents, range(4)):
                        if parent == os.getpid():           # plain spawn: it was exec'ed
                            raise AssertionError("there is a server for this program")
                        assert b"_pool.launch.forker" in b" ".join(command), command
            assert (held.to("cpu").numpy() == 1).all()
            for context in ("fork", mp.get_context("fork")):
                try: cw.Pool(devices="cuda", context=context)
                except ValueError as error: assert "fork" in str(error) and "spawn" in str(error)
                else: raise AssertionError
    """)


def test_several_workers_share_a_gpu(program):
    program("""
        if __name__ == "__main__":
            devices = {"cuda:0": 3}
            if GPUS > 1: devices[f"cuda:{GPUS - 1}"] = 1
            with cw.Pool(devices=devices) as pool:
                assert len(pool.stats()["workers"]) == sum(devices.values())
                seen = everyone(pool, sum(devices.values()))
            counted = collections.Counter(uuid for uuid, _ in seen)
            wanted = {cw.empty(1, device=name).device_uuid: count for name, count in devices.items()}
            assert counted == wanted, (counted, wanted)
    """)


@several
def test_work_without_arrays_is_spread_over_the_gpus(program):
    program("""
        def count(n):
            time.sleep(0.02)
            return own()
        if __name__ == "__main__":
            with cw.Pool(devices="cuda") as pool:
                pool.map(wait, range(GPUS))
                for results in (pool.map(count, range(8 * GPUS)), [r.get() for r in [pool.apply_async(count, (i,)) for i in range(8 * GPUS)]]):
                    counted = collections.Counter(results)
                    # Each has as many at first. What one is slow with others take, but for its last two.
                    assert len(counted) == GPUS and min(counted.values()) >= 2, counted
                at_once = [pool.apply_async(wait) for _ in range(GPUS)]   # one each, though all queues are empty
                assert len({r.get() for r in at_once}) == GPUS
    """)


@several
def test_a_gpu_with_too_much_to_do_has_tasks_taken_from_it(program):
    program("""
        def work(w):
            folder, me = sys.argv[0] + ".came", own()
            open(os.path.join(folder, me), "w").close()
            while len(os.listdir(folder)) < GPUS: time.sleep(0.005)  # each has taken one
            time.sleep(0.05)
            return me, w.device
        if __name__ == "__main__":
            os.mkdir(sys.argv[0] + ".came")
            given = [cw.full(1000, i, device="cuda:0") for i in range(16 * GPUS)]
            with Moved() as moved, pool_on("cuda") as pool:
                done = pool.map(work, given)
            assert {device for _, device in done} == {"cuda:0"}
            elsewhere = sum(uuid != given[0].device_uuid for uuid, _ in done)
            assert len({uuid for uuid, _ in done}) == GPUS and elsewhere > GPUS, done
            assert moved.routes["peer"] + moved.routes["staged"] == 8000 * elsewhere, "what was taken was copied"
    """)


@several
def test_the_first_tasks_wait_until_each_gpu_has_a_worker(program):
    program("""
        def start(last, file):
            if own() == last:
                time.sleep(1)
                with open(file, "w") as out: out.write(str(time.monotonic()))
        def look(w):
            return time.monotonic()
        if __name__ == "__main__":
            given = [cw.full(1000, i, device=f"cuda:{i % GPUS}") for i in range(2 * GPUS)]
            file = sys.argv[0] + ".started"
            with cw.Pool(devices="cuda", initializer=start, initargs=(given[-1].device_uuid, file)) as pool:
                begun = pool.map(look, given) + [pool.apply(time.monotonic)]
            with open(file) as told: assert min(begun) > float(told.read()), "else a GPU's tasks went to others"
    """)


def test_a_pool_that_is_closed_or_ended_before_its_workers_have_started(program):
    program("""
        if __name__ == "__main__":
            pool = cw.Pool(devices="cuda")
            result = pool.map_async(abs, range(-50, 0))
            pool.close()
            pool.join()
            assert result.get() == list(range(50, 0, -1))
            pool = cw.Pool(devices="cuda")
            result = pool.map_async(abs, range(-50, 0))
            pool.terminate()
            pool.join()
            try: result.get(timeout=60)
            except cw.Error as error: assert "terminated" in str(error)
            else: assert result.successful()
            with cw.Executor(devices="cuda") as executor:
                futures = [executor.submit(time.sleep, 0.01) for _ in range(50)]
                assert all(f.cancel() or f.result() is None for f in futures)
    """)


def test_an_executor_does_the_same(program):
    program("""
        def look(w, named=0):
            return own(), w.device
        def nested():
            '''Workers of an Executor may have workers: theirs is the GPU that is first here.'''
            with cw.Executor(devices="cuda:0") as inner:
                return own(), inner.submit(own).result()
        if __name__ == "__main__":
            w = cw.full(1000, 1.0, device=f"cuda:{GPUS - 1}")
            with cw.Executor(devices="cuda") as executor:
                assert executor.submit(look, w, named=3).result() == (w.device_uuid, "cuda:0")
                assert list(executor.map(look, [w, w])) == [(w.device_uuid, "cuda:0")] * 2
                first, second = executor.submit(nested).result()
                assert first == second
                assert set(executor.stats()["devices"]) == {f"cuda:{i}" for i in range(GPUS)}
            try: cw.Executor(3, devices={"cuda:0": 2})
            except ValueError as error: assert "2 workers" in str(error)
            else: raise AssertionError
    """)


def test_a_worker_of_a_pool_may_have_no_pool_and_says_so(program):
    program("""
        def nested(_):
            try: cw.Pool(devices="cuda").map(wait, [1])
            except AssertionError as error: return str(error)
        if __name__ == "__main__":
            with cw.Pool(devices="cuda:0") as pool:
                assert "daemonic" in pool.apply(nested, (0,))
    """)


def test_stats_are_told_by_device(program):
    told = program("""
        def work(i):
            time.sleep(0.01)
        if __name__ == "__main__":
            with cw.Pool(devices={"cuda": 2}) as pool:
                pool.map(work, range(12 * GPUS))
                stats = pool.stats()
                assert list(stats["devices"]) == [f"cuda:{i}" for i in range(GPUS)]
                assert sum(told["tasks"] for told in stats["devices"].values()) == stats["tasks"] == 12 * GPUS
                assert [w["device"] for w in stats["workers"]] == [f"cuda:{i // 2}" for i in range(2 * GPUS)]
                pool.print_stats()
    """)
    assert "on    cuda:0" in told, told


def test_workers_that_end_after_some_tasks_are_replaced_on_their_gpu(program):
    program("""
        def look(w):
            return own(), os.getpid()
        if __name__ == "__main__":
            w = cw.full(10, 1.0, device=f"cuda:{GPUS - 1}")
            with cw.Pool(devices=[f"cuda:{GPUS - 1}"], maxtasksperchild=2) as pool:
                seen = [pool.apply(look, (w,)) for _ in range(6)]
            assert {uuid for uuid, _ in seen} == {w.device_uuid} and len({pid for _, pid in seen}) >= 3, seen
    """)


@on_the_double
def test_a_pool_on_instances_of_mig(program, tmp_path):
    masks = ",".join(f"MIG-66616b65-6375-6461-0000-{i:012x}" for i in (1, 0))
    env = {**cuda_support.double(tmp_path / "mig", mig=1, devices=2), "CUDA_VISIBLE_DEVICES": masks}
    program(
        """
        def look(_):
            time.sleep(0.2)
            return os.environ["CUDA_VISIBLE_DEVICES"], own(), cw.devices()
        if __name__ == "__main__":
            masks = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
            assert cw.devices() == ["cpu", "cuda:0"]
            with cw.Pool(devices="cuda") as pool:
                seen = pool.map(look, range(8))
            assert {mask for mask, *_ in seen} == set(masks), seen
            assert all(uuid[4:] == mask[4:] and names == ["cpu", "cuda:0"] for mask, uuid, names in seen), seen
            with cw.Pool(devices=masks[1]) as pool:
                assert pool.apply(look, (0,))[0] == masks[1]
        """,
        env=env,
    )


@on_the_double
def test_parts_of_a_gpu_by_green_contexts(program):
    program("""
        def look(_):
            time.sleep(0.2)
            stream = cw.current_stream()
            w = cw.empty(1000, device="cuda")
            with w.writing(stream):
                pass
            return os.getpid(), stream.multiprocessors, stream.__cuda_stream__() == (0, stream.ptr) and stream.ptr > 2
        if __name__ == "__main__":
            assert cw.current_stream() is None
            with cw.Pool(devices={"cuda:0": 3}, sms=20) as pool:
                seen = set()
                while len(seen) < 3: seen |= set(pool.map(look, range(9)))
            assert len(seen) == 3 and {tuple(rest) for _, *rest in seen} == {(24, True)}, seen
            try: cw.Pool(devices={"cuda:0": 3}, sms=45)
            except ValueError as error: assert "which has 132" in str(error)
            else: raise AssertionError
    """)
