"""Arrays in GPU memory: made, named, passed on, copied; and what outlives their makers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import cuda_support

import cableway as cw

cuda_support.require()
two = cuda_support.second_gpu


gpus = cuda_support.for_module()


def test_an_array_is_made_filled_and_copied_back(script):
    script("""
        import numpy as np, cableway as cw
        for dtype in ("u1", "i2", "f4", "f8", "c16", "?", [("a", "i4"), ("b", "f8")]):
            for shape in ((), (0,), (7,), (3, 5), (2, 3, 4)):
                for order in "CF":
                    w = cw.zeros(shape, dtype, device="cuda:0", order=order)
                    assert w.device == "cuda:0" and w.device_uuid.startswith(("GPU-", "MIG-"))
                    assert w.to("cpu").device == "cpu" and w.to("cuda:0") is w
                    zeros = w.to("cpu").numpy()
                    assert zeros.shape == shape and zeros.dtype == np.dtype(dtype) and not zeros.tobytes().strip(b"\\0")
                    x = np.frombuffer(np.random.default_rng(1).bytes(zeros.nbytes), zeros.dtype).reshape(shape)
                    w.copy_from(x)
                    back = w.to("cpu").numpy()
                    assert back.tobytes() == x.tobytes(), (dtype, shape, order)
                    assert w.copy().to("cpu").numpy().tobytes() == x.tobytes()
        assert cw.full((3, 2), 2.5, "f4", device="cuda").to("cpu").numpy().tolist() == [[2.5, 2.5]] * 3
        assert cw.asarray([[1, 2], [3, 4]], "i2", device="cuda:0").to("cpu").numpy().tolist() == [[1, 2], [3, 4]]
        assert cw.devices()[:2] == ["cpu", "cuda:0"]
    """)


def test_a_handle_leads_to_it_though_its_maker_let_go(script):
    maker = """
        import base64, cableway as cw
        w = cw.asarray([[1, 2], [3, 4]], "i2", device="cuda:0")
        print(base64.b64encode(cw.to_handle(w[:, 1], openers=2)).decode())
    """
    opener = """
        import base64, sys, cableway as cw
        w = cw.from_handle(base64.b64decode(sys.argv[1]))
        print(w.device, w.shape, w.strides, w.to("cpu").numpy().tolist())
    """
    handle = script(maker).stdout.strip()
    for _ in range(2):
        done = script(opener, handle)
        assert done.stdout == "cuda:0 (2,) (4,) [2, 4]\n"


def test_it_never_becomes_a_numpy_array_by_itself(script):
    script("""
        import numpy as np, cableway as cw
        w = cw.full(3, 1.5, device="cuda:0")
        for use in (np.asarray, np.array, lambda w: w.numpy(), lambda w: w.tolist(), float, memoryview,
                    lambda w: np.add(w, 1), lambda w: w.item()):
            try: use(w)
            except (TypeError, BufferError, ValueError) as error: assert "cuda:0" in str(error) or "memoryview" in str(error), error
            else: raise AssertionError(use)
        try: w.numpy()
        except TypeError as error: assert '.to("cpu").numpy()' in str(error)
        assert not hasattr(w, "__array_interface__") and hasattr(w, "__cuda_array_interface__")
        assert not hasattr(cw.zeros(3), "__cuda_array_interface__")
        assert "cuda:0" in repr(w) and w.flags.c_contiguous
    """)


def test_another_process_finds_it_by_name_and_writes_into_it(script):
    script("""
        import subprocess, sys, numpy as np, cableway as cw
        x = np.random.default_rng(2).random((300, 40))
        w = cw.put("gpu/x", cw.asarray(x, device="cuda:0"))
        other = '''if True:
            import numpy as np, cableway as cw
            w = cw.get("gpu/x")
            x = np.random.default_rng(2).random((300, 40))
            assert w.device == "cuda:0" and (w.to("cpu").numpy() == x).all()
            w[10:20] = 7
            cw.put("gpu/y", w[5])
        '''
        subprocess.run([sys.executable, "-c", other], check=True)
        x[10:20] = 7
        assert (w.to("cpu").numpy() == x).all()
        assert (cw.get("gpu/y", device="cpu").numpy() == x[5]).all()
        assert cw.get("gpu/y").device_uuid == w.device_uuid
    """)


def test_handles_travel_through_a_pool(script):
    script("""
        import numpy as np, cableway as cw
        def double(w):
            x = w.to("cpu").numpy()
            w[...] = 2 * x
            return cw.asarray(x + 1, device=w.device)
        if __name__ == "__main__":
            with cw.Pool(2, context="spawn") as pool:
                given = [cw.full((100, 10), i, "f4", device="cuda:0") for i in range(4)]
                back = pool.map(double, given)
            for i, (w, b) in enumerate(zip(given, back)):
                assert (w.to("cpu").numpy() == 2 * i).all() and b.device == "cuda:0", i
                assert (b.to("cpu").numpy() == i + 1).all()
    """)


def test_parts_of_it_are_handles_on_the_same_memory(script):
    script("""
        import numpy as np, cableway as cw
        x = np.arange(24, dtype="i4").reshape(4, 6)
        w = cw.asarray(x, device="cuda:0")
        for key in (0, (1, 2), (slice(1, 3),), (slice(None), 2), (slice(None, None, -1), slice(1, None, 2)), Ellipsis):
            assert (w[key].to("cpu").numpy() == x[key]).all(), key
            assert (w[key].copy().to("cpu").numpy() == x[key]).all(), key
        assert (w.T.to("cpu").numpy() == x.T).all() and (w.T.copy().to("cpu").numpy() == x.T).all()
        w[2] = [9] * 6
        w[1] = w[2]
        x[1:3] = 9
        assert (w.to("cpu").numpy() == x).all()
        h = cw.asarray(np.zeros((4, 6), "i4"))
        h[...] = w
        assert (h.numpy() == x).all()
        try: w[:, 1] = 3
        except ValueError as error: assert "contiguous" in str(error)
        else: raise AssertionError
        try: w.copy_from(np.ones(5))
        except ValueError as error: assert "shape" in str(error)
        else: raise AssertionError
        try: w.copy_from(np.ones((4, 6)) * 1j)
        except TypeError as error: assert "same_kind" in str(error)
        else: raise AssertionError
    """)


@two
def test_copies_between_gpus_go_by_the_peer_route_and_are_counted(script):
    script(
        """
        import numpy as np, cableway as cw, json, subprocess, os
        def counters():
            cw.put("look", 1)  # the broker reads a client's figures when it hears of it
            told = subprocess.run([os.environ["CABLEWAY_COMMAND"], "status", "--json"], capture_output=True, check=True)
            return json.loads(told.stdout)["counters"]
        before = counters()
        x = np.random.default_rng(3).integers(0, 255, 5 << 20, "u1")
        a = cw.asarray(x, device="cuda:0")
        b = a.to("cuda:1")
        assert b.device == "cuda:1" and b.device_uuid != a.device_uuid and (b.to("cpu").numpy() == x).all()
        c = cw.zeros(x.shape, "u1", device="cuda:0").copy_from(b)
        assert (c.to("cpu").numpy() == x).all() and (a.copy().to("cpu").numpy() == x).all()
        counted = {name: now - before[name] for name, now in counters().items()}
        assert counted["bytes_peer"] == 2 * x.nbytes and counted["bytes_same_gpu"] == x.nbytes, counted
        assert counted["bytes_to_gpu"] == x.nbytes and counted["bytes_from_gpu"] == 3 * x.nbytes, counted
        assert counted["bytes_staged"] == 0
    """,
        env={**os.environ, "CABLEWAY_COMMAND": str(cuda_support.COMMAND)},
    )


@two
def test_processes_with_other_masks_mean_the_same_gpu(script):
    script("""
        import os, subprocess, sys, cableway as cw
        w = cw.put("w", cw.full(10, 3.0, device="cuda:1"))
        other = f'''if True:
            import cableway as cw
            w = cw.get("w")
            assert w.device == "cuda:0" and w.device_uuid == {w.device_uuid!r}, w
            w[...] = w.to("cpu").numpy() * 2
        '''
        subprocess.run([sys.executable, "-c", other], check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "1,0"})
        assert (w.to("cpu").numpy() == 6).all()
        masked = '''if True:
            import cableway as cw
            try: cw.get("w")
            except cw.DeviceError as error: print(error)
        '''
        told = subprocess.run([sys.executable, "-c", masked], check=True, capture_output=True, text=True,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"}).stdout
        assert w.device_uuid in told and "CUDA_VISIBLE_DEVICES" in told and '.to("cpu")' in told, told
    """)


MAKER = """if True:
    import sys, time, numpy as np, cableway as cw
    w = cw.put("orphan", cw.asarray(np.arange(3_000_000), device="cuda:0"))
    print("made", flush=True)
    time.sleep(100)
"""


def test_an_array_whose_maker_was_killed_is_whole(script):
    maker = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE)
    assert maker.stdout is not None and maker.stdout.readline() == b"made\n"
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    maker.stdout.close()
    script("""
        import numpy as np, cableway as cw
        w = cw.get("orphan")
        assert (w.to("cpu").numpy() == np.arange(3_000_000)).all()
        # Its slab is adopted by the next one that needs memory of that GPU.
        mine = [cw.zeros(1000, device="cuda:0") for _ in range(3)]
        cw.remove("orphan")
        assert (w.to("cpu").numpy() == np.arange(3_000_000)).all()
    """)


def test_the_broker_has_no_cuda_in_its_process(script):
    connection = cw.connect()
    script("import cableway as cw; cw.put('w', cw.zeros(5, device='cuda:0'))")
    lines = Path(f"/proc/{connection.broker_pid}/maps").read_text().splitlines()
    mapped = {Path(line.split(maxsplit=5)[5]).name for line in lines if len(line.split()) > 5}
    assert "cablewayd" in mapped
    assert not [name for name in mapped if "cuda" in name.lower() or "nvidia" in name.lower()]


def test_memory_that_is_let_go_is_used_again(script):
    script("""
        import time, cableway as cw
        from cableway._core.library import ffi, lib, check
        def free():
            info = ffi.new("cw_device_info *")
            check(lib.cw_device_stat(b"cuda:0", info))
            return info.free_bytes
        for size in (100, 1 << 20, 100 << 20):
            cw.zeros(size, "u1", device="cuda:0").close()
            before = free()
            for _ in range(20):
                w = cw.empty(size, "u1", device="cuda:0")
                w.close()
            for _ in range(3000):  # the broker's helper closes descriptors
                if free() >= before: break
                time.sleep(0.01)
            else: raise AssertionError((size, before, free()))
    """)


def test_another_client_gets_the_memory_of_who_left(script):
    script("""
        import os, subprocess, sys, time, cableway as cw
        from cableway._core.library import ffi, lib, check
        def free():
            info = ffi.new("cw_device_info *")
            check(lib.cw_device_stat(b"cuda:0", info))
            return info.free_bytes
        w = cw.zeros(1, device="cuda:0")
        before = free()
        for _ in range(4):
            subprocess.run([sys.executable, "-c",
                            "import cableway as cw; w = [cw.zeros(30 << 20, 'u1', device='cuda:0') for _ in range(8)]"],
                           check=True)
        for _ in range(2000):
            if free() >= before:
                break
            time.sleep(0.02)
        else:
            raise AssertionError((before, free()))
    """)


def test_the_command_line_shows_and_writes_gpu_arrays(script):
    script(
        """
        import json, os, subprocess, sys, time, numpy as np, cableway as cw
        x = np.arange(12, dtype="i4").reshape(3, 4)
        w = cw.put("gpu/x", cw.asarray(x, device="cuda:0"))
        cw.put("gpu/odd", w[::-1, 1::2])
        def run(*words):
            return subprocess.run([os.environ["CABLEWAY_COMMAND"], *words], capture_output=True, check=True).stdout
        listed = {row["name"]: row for row in json.loads(run("ls", "--json"))}
        assert listed["gpu/x"]["device"] == "cuda" and listed["gpu/x"]["device_uuid"] == w.device_uuid
        assert w.device_uuid[:12] in run("ls").decode() and w.device_uuid in run("stat", "gpu/x").decode()
        for name, wanted in {"gpu/x": x, "gpu/odd": x[::-1, 1::2]}.items():
            file = os.path.join(os.environ["CABLEWAY_DIR"], "out.npy")
            run("get", name, file)
            assert (np.load(file) == wanted).all()
            os.remove(file)
        for _ in range(3000):  # until the commands have left
            status = json.loads(run("status", "--json"))
            mine = [row for row in status["clients"] if row["pid"] == os.getpid()]
            if mine[0]["gpu_bytes"] == status["gauges"]["gpu_bytes"] - status["gauges"]["gpu_orphan_bytes"] > 0: break
            time.sleep(0.01)
        else: raise AssertionError(status)
        """,
        env={**os.environ, "CABLEWAY_COMMAND": str(cuda_support.COMMAND)},
    )


def test_the_command_line_shows_the_links(script):
    script(
        """
        import json, os, subprocess, cableway as cw
        def run(*words):
            return subprocess.run([os.environ["CABLEWAY_COMMAND"], *words], capture_output=True, check=True).stdout
        told = json.loads(run("topo", "--json"))
        count = len(cw.devices()) - 1
        assert len(told["gpus"]) == count and len(told["links"]) == count * count
        for link in told["links"]:
            assert link["route"] in ("same", "peer", "staged") and (link["route"] == "same") == (link["from"] == link["to"])
            assert link["bytes_per_second"] > 0
        assert told["gpus"][0]["uuid"] in run("topo").decode()
        """,
        env={**os.environ, "CABLEWAY_COMMAND": str(cuda_support.COMMAND)},
    )


@two
def test_an_array_on_a_hidden_gpu_can_be_copied(script):
    script("""
        import os, subprocess, sys, numpy as np, cableway as cw
        x = np.random.default_rng(8).random((50, 7))
        w = cw.put("far", cw.asarray(x, device="cuda:1"))
        masked = '''if True:
            import numpy as np, cableway as cw
            x = np.random.default_rng(8).random((50, 7))
            near = cw.get("far", device="cpu")
            assert near.device == "cpu" and (near.numpy() == x).all()
            here = cw.get("far", device="cuda:0")
            assert here.device == "cuda:0" and (here.to("cpu").numpy() == x).all()
            here[...] = 0  # a copy
        '''
        subprocess.run([sys.executable, "-c", masked], check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
        assert (w.to("cpu").numpy() == x).all()
    """)


@two
def test_an_array_is_copied_to_memory_that_its_own_gpu_alone_reaches(script):
    text = """
        import sys
        import numpy as np, cableway as cw
        from cableway._core.library import check, ffi, lib
        from cableway._cuda import allocator_hooks
        values = np.random.default_rng(3).random(1 << 20)
        source, target = map(int, sys.argv[1:])
        # As libraries map it, PyTorch's expandable segments for one: open to the GPUs that are in use by then, to no other.
        allocator_hooks.begin()
        address = allocator_hooks.allocate(values.nbytes, target)
        memory = ffi.cast("void *", address)
        x = cw.asarray(values, device=f"cuda:{source}")
        check(lib.cw_array_copy_out(x._open_lease().pointer, 0, memory, target, values.nbytes, ffi.NULL))
        y = cw.zeros(values.size, device=f"cuda:{source}")
        check(lib.cw_array_copy_in(y._open_lease().pointer, 0, memory, target, values.nbytes, ffi.NULL))
        assert (y.to("cpu").numpy() == values).all()
        allocator_hooks.free(address, target)
    """
    for gpus in (("0", "1"), ("1", "0"), ("1", "1")):
        script(text, *gpus)
