"""cableway-mover: what a process cannot copy itself; and copies through host memory."""

from __future__ import annotations

import cuda_support
from mover_support import movers, world

cuda_support.require()
two = cuda_support.second_gpu
pytestmark = two

# Two GPUs that cannot reach each other; on real ones the way is forced.
APART = {"no_peer": "all", "CABLEWAY_ROUTE": "staged" if cuda_support.REAL else ""}


def test_gpus_without_a_way_to_each_other_copy_through_the_host(tmp_path):
    with world(tmp_path / "b", **APART) as run:
        run("""
            for size in (1, 1000, (4 << 20) // 8, (4 << 20) // 8 + 1, 3_000_001):
                x = random(size)
                a = cw.asarray(x, device="cuda:0")
                before = staged()
                b = a.to("cuda:1")
                assert b.device == "cuda:1" and (b.to("cpu").numpy() == x).all(), size
                assert staged() - before == x.nbytes
                c = b.to("cuda:0")
                assert (c.to("cpu").numpy() == x).all()
            assert figure("mover_starts") == 0  # this process sees both
        """)
        assert not movers(tmp_path / "b")


def test_the_mover_copies_between_gpus(tmp_path):
    with world(tmp_path / "b", no_peer="all", CABLEWAY_ROUTE="mover") as run:
        run("""
            for size in (1, 1000, 3_000_001):
                x = random(size)
                a = cw.asarray(x, device="cuda:0")
                b = a.to("cuda:1")
                assert (b.to("cpu").numpy() == x).all()
                b[...] = x + 1
                a.copy_from(b)
                assert (a.to("cpu").numpy() == x + 1).all()
            assert figure("mover_starts") == 1 and figure("jobs_done") == 6
            assert staged() == 2 * 8 * (1 + 1000 + 3_000_001)
        """)
        assert len(movers(tmp_path / "b")) == 1


def test_an_array_on_a_hidden_gpu_comes_by_the_mover(tmp_path):
    with world(tmp_path / "b", no_peer="all") as run:
        run("""
            x = random((50, 7))
            w = cw.put("far", cw.asarray(x, device="cuda:1"))
            part = cw.put("part", w[10:20])
            other = '''if True:
                import numpy as np, cableway as cw
                x = np.random.default_rng(1).random((50, 7))
                for device in ("cpu", "cuda:0"):
                    here = cw.get("far", device=device)
                    assert here.device == device and (here.to("cpu").numpy() == x).all()
                    here[...] = 0  # a copy
                    assert (cw.get("part", device=device).to("cpu").numpy() == x[10:20]).all()
            '''
            subprocess.run([sys.executable, "-c", other], check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
            assert (w.to("cpu").numpy() == x).all()
            assert figure("jobs_done") == 4 and figure("mover_starts") == 1
        """)


def test_a_forked_child_copies_gpu_arrays_by_the_mover(tmp_path):
    with world(tmp_path / "b") as run:
        run("""
            x = random(1000)
            w = cw.put("far", cw.asarray(x, device="cuda:0"))
            pid = os.fork()
            if pid == 0:
                try:
                    os._exit(not (cw.get("far", device="cpu").numpy() == x).all())
                finally:
                    os._exit(2)
            assert os.waitpid(pid, 0)[1] == 0
        """)


def test_a_staged_copy_is_given_to_a_stream(tmp_path):
    with world(tmp_path / "b", **APART, faults="copy=delay:30000") as run:
        run("""
            import ctypes
            cuda = ctypes.CDLL(os.environ.get("CABLEWAY_CUDA_DRIVER", "libcuda.so.1"))
            a = cw.asarray(random(4_000_001), device="cuda:0")
            b = cw.empty(a.shape, a.dtype, device="cuda:1")
            context, stream = ctypes.c_void_p(), ctypes.c_void_p()
            assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert cuda.cuCtxSetCurrent(context) == 0
            assert cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
            for seed in range(3):
                x = random(4_000_001, seed)
                a.copy_from(x)  # after the copy before, which reads it
                b.copy_from(a, stream=stream.value)
                if cuda.cuStreamQuery(stream) != 0:
                    print("under way")
                b.wait()
                assert (b.to("cpu").numpy() == x).all(), seed
            begun = staged()
            b.copy_from(a, stream=stream.value)
            with a.writing(stream.value):
                pass  # the stream itself comes after the copy
            assert cuda.cuStreamSynchronize(stream) == 0
            assert (b.to("cpu").numpy() == x).all() and staged() - begun == x.nbytes
        """)


def test_an_unknown_route_is_refused(tmp_path):
    with world(tmp_path / "b", CABLEWAY_ROUTE="teleport") as run:
        run("""
            a = cw.zeros(3, device="cuda:0")
            try: a.to("cuda:1")
            except ValueError as error: assert "teleport" in str(error) and "staged" in str(error)
            else: raise AssertionError
        """)


def test_routes_are_measured_once_and_kept_by_the_broker(tmp_path):
    forced = {"no_peer": "0-1", "devices": 3} if not cuda_support.REAL else {}
    with world(tmp_path / "b", **forced) as run:
        run("""
            def topo():
                return json.loads(subprocess.run([os.environ["CABLEWAY_COMMAND"], "topo", "--json"], check=True, capture_output=True).stdout)
            cw.put("here", 1)  # a broker runs
            told, again = topo(), topo()
            assert [link["bytes_per_second"] for link in told["links"]] == [link["bytes_per_second"] for link in again["links"]]
            ways = {(link["from"], link["to"]): link for link in told["links"]}
            assert all(link["bytes_per_second"] > 0 for link in told["links"])
            if "CABLEWAY_CUDA_DRIVER" in os.environ:
                assert {pair: link["route"] for pair, link in ways.items()} == {
                    (i, j): "same" if i == j else "staged" if {i, j} == {0, 1} else "peer" for i in range(3) for j in range(3)
                }
            # Another mask has other numbers, and the same ways.
            os.environ["CUDA_VISIBLE_DEVICES"] = "1,0"
            other = {(link["from"], link["to"]): link for link in topo()["links"]}
            assert other[0, 1]["bytes_per_second"] == ways[1, 0]["bytes_per_second"] and len(other) == 4
        """)
