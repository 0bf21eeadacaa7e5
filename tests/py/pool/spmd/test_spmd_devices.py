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
        def hold(a, flags):
            while not flags.numpy()[0]: time.sleep(0.001)
        def brief(a):
            return None
        if __name__ == "__main__" and GPUS > 1:
            flags, near = cw.zeros(1, "i8"), cw.zeros(1000, device="cuda:0")
            with cw.Pool(devices={"cuda": 2}) as pool:
                home = pool.spmd(where, n=GPUS)
                assert len(set(home)) == GPUS
                held = [pool.apply_async(hold, (near, flags)) for _ in range(2)]  # both workers of that GPU
                while len(pool._engine.dispatch.running()) < 2: time.sleep(0.001)
                said = []
                thread = threading.Thread(target=lambda: said.append(pool.spmd(where, n=GPUS)))
                thread.start()
                while not back and thread.is_alive():  # others take what is beyond the bound, the rank among them
                    pool.map_async(brief, [near] * 10, chunksize=1)
                    time.sleep(0.01)
                flags.numpy()[0] = 1
                thread.join()
                assert back and said == [home], (back, said)
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
