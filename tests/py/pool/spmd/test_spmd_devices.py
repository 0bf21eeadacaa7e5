"""`Pool.spmd` on GPUs: the ranks are spread over them, also when idle workers take what belongs to others.

Each test is a program of its own, on four GPUs of the test double or on those of the machine.
"""

from __future__ import annotations

import cuda_support
import device_pools

cuda_support.require()


gpus = cuda_support.for_module(devices=4)


program = device_pools.program


def test_each_gpu_has_its_rank(program):
    program("""
        def where(g):
            g.barrier()
            return own(), g.allgather(own())
        if __name__ == "__main__":
            with cw.Pool(devices="cuda") as pool:
                found = pool.spmd(where)
                assert len({uuid for uuid, _ in found}) == GPUS
                assert all(everybodys == [uuid for uuid, _ in found] for _, everybodys in found)
                pool.resize(2 * GPUS + 1)
                uuids = [uuid for uuid, _ in pool.spmd(where)]
                assert sorted(collections.Counter(uuids).values()) == [2] * (GPUS - 1) + [3]
                assert len({uuid for uuid, _ in pool.spmd(where, n=GPUS)}) == GPUS
    """)


def test_ranks_that_idle_workers_of_other_gpus_take_come_back(program):
    program("""
        from cableway._pool.gang import Gang
        back = []
        send_again = Gang._send_again
        def noted(self, rank, attempt):
            back.append(rank)
            send_again(self, rank, attempt)
        Gang._send_again = noted
        def where(g):
            g.barrier()
            return own()
        def brief(a):
            time.sleep(0.002)
        if __name__ == "__main__":
            with cw.Pool(devices={"cuda": 2}) as pool:
                home = pool.spmd(where, n=GPUS)
                assert len(set(home)) == GPUS
                near = cw.zeros(1000, device="cuda:0")
                for _ in range(100):  # a worker of another GPU, of which a rank needs one alone, takes some of these tasks
                    beside = pool.map_async(brief, [near] * 60, chunksize=1)
                    assert pool.spmd(where, n=GPUS) == home
                    beside.get(60)
                    if back or GPUS == 1: break
                assert back or GPUS == 1, "no rank was taken by another GPU's worker"
    """)


def test_ranks_return_arrays_of_their_gpus(program):
    program("""
        def returns(g):
            return cw.full(4, float(g.rank), device="cuda:0")
        if __name__ == "__main__":
            with cw.Pool(devices="cuda") as pool:
                found = pool.spmd(returns)
                assert [a.to("cpu").numpy().tolist() for a in found] == [[float(rank)] * 4 for rank in range(GPUS)]
    """)
