"""Pools on GPUs whose number of workers changes: how many each GPU has, and the cores that they run on.

Each test is a program of its own, on four GPUs of the test double or on those of the machine.
"""

from __future__ import annotations

import os

import cuda_support
import device_pools
import pytest

cuda_support.require()
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")


gpus = cuda_support.for_module(devices=4)


program = device_pools.program


def test_the_number_of_workers_changes_evenly(program):
    program("""
        def seen(pool, n):
            return sorted(collections.Counter(uuid for uuid, _ in everyone(pool, n)).values(), reverse=True)
        if __name__ == "__main__":
            with cw.Pool(devices="cuda") as pool:
                assert seen(pool, GPUS) == [1] * GPUS
                pool.resize(2 * GPUS + 1)
                assert seen(pool, 2 * GPUS + 1) == [3] + [2] * (GPUS - 1)
                pool.resize(GPUS)
                assert seen(pool, GPUS) == [1] * GPUS
                try: pool.resize(GPUS - 1)
                except ValueError as error: assert "at least one worker on each" in str(error) or GPUS == 1
                assert set(pool.stats()["devices"]) == {f"cuda:{i}" for i in range(GPUS)}
    """)


@on_the_double
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_cores_are_shared_out_anew_when_the_number_of_workers_changes(program):
    program("""
        from cableway._pool.launch import environment
        def cpus(_=None):
            wait()
            threads = {frozenset(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")}
            return os.getpid(), tuple(sorted(map(sorted, threads)))
        def shares(pool, count):
            return sorted(dict(pool.map(cpus, range(8 * count))).values())
        def become(pool, count, wanted):
            end = time.monotonic() + 60
            while shares(pool, count) != wanted:
                assert time.monotonic() < end, shares(pool, count)
        if __name__ == "__main__":
            a, b = sorted(os.sched_getaffinity(0))[:2]
            environment.cores_near = lambda *_: [[a], [b]]   # no GPU of the double is near to any core
            with cw.Pool(devices="cuda:0") as pool:
                assert shares(pool, 1) == [([a, b],)]
                pool.resize(2)
                become(pool, 2, [([a],), ([b],)])
                pool.resize(1)
                become(pool, 1, [([a, b],)])
    """)
