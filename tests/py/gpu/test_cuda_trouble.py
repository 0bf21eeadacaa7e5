"""GPUs that are not there, full, masked out, or otherwise no good: each is told, and nothing is lost.

What no machine can be brought to show runs on the test double alone.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import cuda_support
import pytest

cuda_support.require()
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")


gpus = cuda_support.for_module(memory_mib=256)


@pytest.fixture
def refusal(script: Callable[..., object], tmp_path: Path) -> Callable[..., str]:
    """Makes an array on cuda:0 in a program with these settings, and returns the error that it says."""

    def told(error: str = "DeviceError", device: str = "cuda:0", **environment: object) -> str:
        env = {**os.environ, **{name: str(value) for name, value in environment.items()}}
        if not cuda_support.REAL:
            env.setdefault("CABLEWAY_FAKECUDA_DIR", str(tmp_path))
        text = f"""
            import cableway as cw
            try: cw.zeros(3, device={device!r})
            except cw.{error} as error: print(error)
            w = cw.zeros(3)
            w[...] = 5
            assert w.numpy().sum() == 15
        """
        if error == "ValueError":
            text = text.replace("cw.ValueError", "ValueError")
        done = script(text, env=env)
        assert done.stdout, done  # type: ignore[attr-defined]
        return str(done.stdout)  # type: ignore[attr-defined]

    return told


def test_no_driver(refusal):
    told = refusal(CABLEWAY_CUDA_DRIVER="/nowhere/libcuda.so.1")
    assert "no CUDA driver" in told and 'device="cpu"' in told and "CABLEWAY_CUDA_DRIVER" in told


@on_the_double
def test_more_gpus_than_a_process_can_work_with(refusal, script, tmp_path):
    env = {"CABLEWAY_FAKECUDA_DEVICES": "65", "CABLEWAY_FAKECUDA_DIR": str(tmp_path / "many")}
    (tmp_path / "many").mkdir()
    told = refusal("LimitExceeded", **env)
    assert "65 GPUs" in told and "64 (CW_GPUS_MAX)" in told and "CUDA_VISIBLE_DEVICES" in told
    text = """
        import cableway as cw
        try: print(len(cw.devices()))
        except cw.LimitExceeded as error: assert "CW_GPUS_MAX" in str(error), error
    """
    assert script(text, env={**os.environ, **env}).stdout == ""
    some = {**env, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(64)))}
    assert script(text, env={**os.environ, **some}).stdout.strip() == "65"


def test_a_library_that_is_no_driver(refusal):
    assert "has no cuInit" in refusal(CABLEWAY_CUDA_DRIVER="libm.so.6")


@on_the_double
def test_a_driver_that_is_too_old(refusal, tmp_path):
    told = refusal(**cuda_support.double(tmp_path, driver=11040))
    assert "11.4" in told and "12.0" in told and "525" in told


def test_no_gpu_visible(refusal):
    told = refusal(CUDA_VISIBLE_DEVICES="")
    assert "sees no GPU" in told and "CUDA_VISIBLE_DEVICES" in told


def test_no_such_gpu(refusal):
    told = refusal(device="cuda:77")
    assert "no cuda:77" in told and "CUDA_VISIBLE_DEVICES" in told
    for name in ("gpu", "cuda:", "cuda:-1", "cuda0", "CUDA:0", "cuda:0 "):
        assert repr(name) in refusal("ValueError", name)


@on_the_double
def test_devices_that_share_nothing(refusal, tmp_path):
    told = refusal(**cuda_support.double(tmp_path, no_export=1))
    assert "descriptors" in told and 'device="cpu"' in told
    told = refusal(**cuda_support.double(tmp_path, mode="prohibited"))
    assert "compute mode" in told


@on_the_double
def test_an_instance_of_mig_is_a_device(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "mig", mig=1, devices=2)}
    script(
        """
        import cableway as cw
        w = cw.full(10, 4.0, device="cuda:0")
        assert cw.devices() == ["cpu", "cuda:0"] and (w.to("cpu").numpy() == 4).all()
        """,
        env=env,
    )


@on_the_double
def test_gpus_that_are_no_peers_copy_through_the_host(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "apart", no_peer="all")}
    script(
        """
        import numpy as np, cableway as cw
        x = np.random.default_rng(4).random(3_000_001)
        a = cw.asarray(x, device="cuda:0")
        b = a.to("cuda:1")
        assert b.device == "cuda:1" and (b.to("cpu").numpy() == x).all()
        c = cw.zeros(x.shape, device="cuda:0").copy_from(b[::-1].copy())
        assert (c.to("cpu").numpy() == x[::-1]).all()
        """,
        env=env,
    )


def test_full_gpu_memory_is_told_and_nothing_is_lost(script):
    script("""
        import time
        import cableway as cw
        from cableway._core.library import ffi, lib, check
        kept = cw.full(1000, 3.0, device="cuda:0")
        info = ffi.new("cw_device_info *")
        check(lib.cw_device_stat(b"cuda:0", info))
        for _ in range(3):
            try: cw.empty(info.memory_bytes, "u1", device="cuda:0")
            except cw.LimitExceeded as error:
                assert "cuda:0 is full" in str(error) and "CUDA_ERROR_OUT_OF_MEMORY" in str(error), error
            else: raise AssertionError
        assert isinstance(error if 0 else cw.LimitExceeded(""), MemoryError)
        more = cw.full(1000, 4.0, device="cuda:0")
        assert (kept.to("cpu").numpy() == 3).all() and (more.to("cpu").numpy() == 4).all()
        free = info.free_bytes
        for _ in range(600):  # programs beside this one have contexts there, for a while
            check(lib.cw_device_stat(b"cuda:0", info))
            if info.free_bytes >= free - (64 << 20): break
            time.sleep(0.1)
        else: raise AssertionError((free, info.free_bytes))
    """)


@on_the_double
def test_a_full_gpu_is_filled_to_the_last_slab(script):
    script("""
        import cableway as cw
        kept = []
        while True:
            try: kept.append(cw.full(1 << 20, len(kept), "u1", device="cuda:1"))
            except cw.LimitExceeded: break
        assert len(kept) > 200, len(kept)
        for i, w in enumerate(kept):
            assert (w.to("cpu").numpy() == i % 256).all()
        del w, kept[::2]
        again = [cw.full(1 << 20, 9, "u1", device="cuda:1") for _ in range(90)]
        assert all((w.to("cpu").numpy() == 9).all() for w in again)
    """)


FULL = """
import os, pickle, subprocess, sys, time
import cableway as cw
HOLD = "import pickle, sys, cableway as cw; w = pickle.loads(bytes.fromhex(input())); print(w.nbytes, flush=True); input(); w.close(); input()"
def lent():
    x = cw.zeros(80 << 20, "u1", device="cuda:0")
    other = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(pickle.dumps(x).hex(), file=other.stdin, flush=True)
    assert int(other.stdout.readline()) == x.nbytes
    return other
def told(call):
    try: call()
    except cw.LimitExceeded as error: return str(error)
    raise AssertionError
"""


@on_the_double
def test_who_finds_a_gpu_full_waits_for_what_is_on_its_way_back(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "full", memory_mib=128)}
    text = """
        other = lent()
        print(file=other.stdin, flush=True)             # it closes now, or soon
        y = cw.zeros(80 << 20, "u1", device="cuda:0")
        assert not y.to("cpu").numpy().any()
        other.stdin.close()
        other.wait()
    """
    script(FULL + textwrap.dedent(text), env={**env, "CABLEWAY_FULL_WAIT_MS": "60000"})


@on_the_double
def test_ctrl_c_ends_the_wait_for_memory_of_a_full_gpu(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "full", memory_mib=128)}
    text = """
        import signal, threading
        signal.signal(signal.SIGINT, signal.default_int_handler)
        served = []
        signal.signal(signal.SIGUSR1, lambda *_: served.append(1))
        other = lent()
        begun, over = threading.Event(), threading.Event()
        def interrupt():
            begun.wait()
            while not over.is_set():  # again: between two naps a signal is not seen
                time.sleep(0.3)
                if not over.is_set(): os.kill(os.getpid(), signal.SIGINT if len(served) > 2 else signal.SIGUSR1)
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            begun.set()
            cw.zeros(80 << 20, "u1", device="cuda:0")   # it comes back in an hour
        except KeyboardInterrupt:
            over.set()
        assert over.is_set() and len(served) > 2        # whose handler returns ends nothing
        thread.join()
        print(file=other.stdin, flush=True)
        assert not cw.zeros(80 << 20, "u1", device="cuda:0").to("cpu").numpy().any()
        other.stdin.close()
        other.wait()
    """
    script(FULL + textwrap.dedent(text), env={**env, "CABLEWAY_FULL_WAIT_MS": "3600000"})


@on_the_double
def test_memory_that_was_given_up_a_moment_ago_is_waited_for(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "full", memory_mib=128)}
    text = """
        for _ in range(20):
            x = cw.zeros(80 << 20, "u1", device="cuda:0")   # more than is kept
            x.handle(False)                                  # the broker has to see that nobody has it
            del x
            y = cw.zeros(100 << 20, "u1", device="cuda:0")
            del y
    """
    script(FULL + textwrap.dedent(text), env={**env, "CABLEWAY_FULL_WAIT_MS": "60000"})


@on_the_double
def test_what_others_give_up_meanwhile_is_not_taken_for_it(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "full", memory_mib=128)}
    text = """
        OTHER = "import os, sys, cableway as cw\\nprint(flush=True)\\nwhile os.getppid() == int(sys.argv[1]): x = [cw.zeros(3 << 20, 'u1') for _ in range(40)]; del x"
        other = subprocess.Popen([sys.executable, "-c", OTHER, str(os.getpid())], stdout=subprocess.PIPE)
        other.stdout.readline()
        for _ in range(60):
            x = cw.zeros(80 << 20, "u1", device="cuda:0")
            x.handle(False)
            del x
            y = cw.zeros(100 << 20, "u1", device="cuda:0")
            del y
        other.kill()
    """
    script(FULL + textwrap.dedent(text), env={**env, "CABLEWAY_FULL_WAIT_MS": "60000"})


@on_the_double
def test_who_finds_a_gpu_full_waits_no_longer_than_it_may(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "full", memory_mib=128)}
    text = """
        other = lent()
        text = told(lambda: cw.zeros(80 << 20, "u1", device="cuda:0"))
        assert "waited 30 ms (CABLEWAY_FULL_WAIT_MS) for the 1 arrays" in text, text
        small = cw.zeros(8 << 20, "u1", device="cuda:0")
        assert "waited" not in told(lambda: cw.zeros(900 << 20, "u1", device="cuda:0"))   # in vain
        other.stdin.close()
        other.wait()
        y = cw.zeros(80 << 20, "u1", device="cuda:0") if os.environ.update(CABLEWAY_FULL_WAIT_MS="60000") is None else 0
    """
    script(FULL + textwrap.dedent(text), env={**env, "CABLEWAY_FULL_WAIT_MS": "30"})


@on_the_double
def test_a_full_gpu_is_told_also_while_other_threads_give_up_slabs(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "full", memory_mib=256)}
    text = """
        import threading, time
        held, end = cw.zeros(100 << 20, "u1", device="cuda:0"), time.monotonic() + 20
        begun, over = threading.Event(), threading.Event()
        def give_up():
            while not over.is_set() and time.monotonic() < end:
                try: cw.empty(48 << 20, "u1", device="cuda:0").close()
                except cw.LimitExceeded: pass
                begun.set()
        thread = threading.Thread(target=give_up)
        thread.start()
        begun.wait()
        told(lambda: cw.zeros(200 << 20, "u1", device="cuda:0"))
        assert thread.is_alive()
        over.set()
        thread.join()
    """
    script(FULL + textwrap.dedent(text), env=env)


def test_the_limit_on_gpu_bytes(script, tmp_path):
    (tmp_path / "b").mkdir(mode=0o700)
    env = {
        **os.environ,
        "CABLEWAY_DIR": str(tmp_path / "b"),
        "CABLEWAY_MAX_GPU_BYTES": str(40 << 20),
    }
    script(
        """
        import cableway as cw
        w = cw.full(1000, 3.0, device="cuda:0")
        try: cw.zeros(33 << 20, "u1", device="cuda:0")
        except cw.LimitExceeded as error: assert "max_gpu_bytes" in str(error) and str(40 << 20) in str(error), error
        else: raise AssertionError
        assert (w.to("cpu").numpy() == 3).all() and cw.zeros(5, device="cuda:0").shape == (5,)
        cw._core.library.check(cw._core.library.lib.cw_broker_stop(cw.client.current().pointer))
        """,
        env=env,
    )


def test_a_fork_after_cuda_was_initialised(script):
    script("""
        import os, cableway as cw
        w = cw.full(3, 1.0, device="cuda:0")
        h = cw.full(3, 2.0)
        child = os.fork()
        if not child:
            code = 1
            try:
                assert (h.numpy() == 2).all()
                for use in (lambda: cw.zeros(3, device="cuda:0"), lambda: w.to("cpu"), lambda: w[0].copy()):
                    try: use()
                    except cw.DeviceError as error: assert "spawn" in str(error), error
                    else: raise AssertionError
                w.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert (w.to("cpu").numpy() == 1).all()
    """)


def test_a_fork_after_another_library_initialised_cuda(script):
    script("""
        import ctypes, os, cableway as cw
        cuda = ctypes.CDLL(os.environ.get("CABLEWAY_CUDA_DRIVER", "libcuda.so.1"))
        assert cuda.cuInit(0) == 0
        child = os.fork()
        if not child:
            try: cw.zeros(3, device="cuda:0")
            except cw.DeviceError as error: os._exit("spawn" not in str(error))
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert cw.zeros(3, device="cuda:0").device == "cuda:0"
    """)


@on_the_double
def test_a_second_process_on_an_exclusive_gpu(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "alone", mode="exclusive")}
    script(
        """
        import subprocess, sys, cableway as cw
        w = cw.put("mine", cw.zeros(3, device="cuda:0"))
        other = '''if True:
            import cableway as cw
            try: cw.get("mine")
            except cw.DeviceError as error: print(error)
        '''
        told = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=True).stdout
        assert "compute mode" in told, told
        assert (w.to("cpu").numpy() == 0).all()
        """,
        env=env,
    )


@on_the_double
def test_a_lost_gpu_is_told(script, tmp_path):
    env = {**os.environ, **cuda_support.double(tmp_path / "lost", faults="copy@2=lose")}
    script(
        """
        import cableway as cw
        w = cw.full(1000, 3.0, device="cuda:0")
        for _ in range(2):
            try: w.to("cpu")
            except cw.DeviceError as error: assert "CUDA_ERROR_" in str(error), error
            else: raise AssertionError
        assert cw.full(3, 1.0).numpy().sum() == 3
        """,
        env=env,
    )
