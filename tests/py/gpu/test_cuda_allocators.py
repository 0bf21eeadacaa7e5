"""GPU libraries that allocate from cableway: what they make is shared without a copy, and stays while anyone has it.

On the double stand-ins (gpu_standins) have the libraries' allocator interfaces; on real GPUs the libraries themselves
are used, where they are there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import cuda_support
import pytest
from conftest import PATH, stop_broker

cuda_support.require()
on_the_double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")
LIBRARIES = ("cupy", "torch", "numba")


gpus = cuda_support.for_module(memory_mib=512)


# For each library: make(host values), host(array), free() of what its allocator keeps.
WAYS = {
    "cupy": """
        import cupy, cableway.cupy as hook
        make, host = cupy.asarray, (lambda a: a.host()) if STANDIN else cupy.asnumpy
        full = cupy.cuda.memory.OutOfMemoryError
        """,
    "torch": """
        import torch, cableway.torch as hook
        make, host = lambda x: torch.as_tensor(x, device="cuda"), lambda a: a.host() if STANDIN else a.cpu().numpy()
        full = torch.OutOfMemoryError
        """,
    "numba": """
        from numba import cuda
        from numba.cuda.cudadrv import driver
        import cableway.numba as hook
        make, host = cuda.to_device, lambda a: a.host() if STANDIN else a.copy_to_host()
        full = driver.CudaAPIError
        """,
}
OTHER = """
def other(text):
    "Runs a text in another process that knows nothing of the library."
    subprocess.run([sys.executable, "-c", "import numpy as np, cableway as cw\\n" + text], check=True)
def at(a):
    return a.__cuda_array_interface__["data"][0]
"""

Run = Callable[..., object]


@pytest.fixture
def program(script: Callable[..., object]) -> Run:
    """Runs a text with one library, or its stand-in."""

    def run(name: str, text: str, **options: object) -> object:
        if cuda_support.REAL:
            pytest.importorskip("numba.cuda" if name == "numba" else name)
        begin = f"STANDIN = {not cuda_support.REAL}\nimport gc, subprocess, sys, numpy as np, cableway as cw\n"
        begin += (
            "from cableway._cuda import suballocation\nfrom cableway._core.library import lib\n"
        )
        if not cuda_support.REAL:
            begin += f"import gpu_standins; gpu_standins.install({name!r})\n"
        path = ":".join([*PATH, os.environ.get("PYTHONPATH", "")])
        body = textwrap.dedent(WAYS[name]) + OTHER + textwrap.dedent(text)
        return script(begin + body, env={**os.environ, "PYTHONPATH": path, **options})

    return run


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_a_library_makes_is_shared_without_a_copy(program, name):
    program(
        name,
        """
        use = hook.use()
        for i in range(40):
            x = np.random.default_rng(i).random((30, 50)).astype("f4")
            mine = make(x)
            shared = cw.put("x", mine, copy=False)
            assert at(shared) == at(mine) and shared.device == "cuda:0"
            other(f"w = cw.get('x'); x = np.random.default_rng({i}).random((30, 50)).astype('f4');"
                  f"assert (w.to('cpu').numpy() == x).all(); w[0] = {i}") if i % 20 == 0 else shared.__setitem__(0, i)
            x[0] = i
            assert (host(mine) == x).all()
            del mine
            assert (cw.get("x").to("cpu").numpy() == x).all()
        use.end()
        """,
    )


@pytest.mark.parametrize("name", LIBRARIES)
def test_memory_is_not_used_again_while_others_have_it(program, name):
    program(
        name,
        """
        import time
        use = hook.use()
        x = np.arange(100_000, dtype="i4")
        mine = make(x)
        place = at(mine)
        cw.put("kept", mine)
        holder = subprocess.Popen(
            [sys.executable, "-c", "import sys, cableway as cw; w = cw.get('kept'); print(1, flush=True); sys.stdin.read();"
             "assert (w.to('cpu').numpy() == range(100_000)).all()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holder.stdout.readline()
        cw.remove("kept")
        del mine
        gc.collect()
        others = [make(-x) for _ in range(10)]
        assert place not in [at(a) for a in others]
        assert suballocation._kept
        holder.communicate()
        assert holder.returncode == 0
        del others
        end = time.monotonic() + 40
        while suballocation._kept:  # the broker hears of the holder's end, and the library has its array back
            suballocation.collect()
            time.sleep(0.01)
            assert time.monotonic() < end
        """,
    )


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_part_that_was_shared_outlives_the_process(program, name):
    program(
        name,
        """
        if sys.argv[1:] == ["make"]:
            import os, signal
            hook.use()
            kept = [make(np.full(5000, i, "f8")) for i in range(5)]
            cw.put("left", kept[3]).wait()  # else it could die before its work is complete
            os.kill(os.getpid(), signal.SIGKILL)
        made = subprocess.run([sys.executable, __file__, "make"])
        assert made.returncode == -9
        assert (cw.get("left").to("cpu").numpy() == 3).all()
        mine = [cw.full(5000, 9, "f8", device="cuda:0") for _ in range(20)]
        assert (cw.get("left").to("cpu").numpy() == 3).all()
        """,
    )


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_pool_gets_what_a_library_made_as_a_handle(program, name):
    program(
        name,
        """
        def double(w):
            x = w.to("cpu").numpy()
            w[...] = 2 * x
            return int(x.sum())
        if __name__ == "__main__":
            hook.use()
            given = [make(np.full((100, 10), i, "i4")) for i in range(4)]
            with cw.Pool(2, context="spawn") as pool:
                assert pool.map(double, [cw.asarray(a, copy=False) for a in given]) == [0, 1000, 2000, 3000]
            for i, a in enumerate(given):
                assert (host(a) == 2 * i).all(), i
        """,
    )


@pytest.mark.parametrize("name", LIBRARIES)
def test_after_its_end_the_library_allocates_as_before(program, name):
    program(
        name,
        """
        with hook.use() as use:
            inside = make(np.ones(1000))
            assert lib.cwpy_hook_bytes() > 0
        use.end()  # once more does nothing
        before = lib.cwpy_hook_bytes()
        outside = make(np.full(1000, 2.0))
        assert lib.cwpy_hook_bytes() == before
        assert (host(inside) == 1).all() and (host(outside) == 2).all()
        copied = cw.put("o", outside)
        assert at(copied) != at(outside) and (copied.to("cpu").numpy() == 2).all()
        with hook.use():
            assert at(cw.asarray(inside, copy=False)) == at(inside)
        """,
    )


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_full_memory_is_the_librarys_own_error(program, name):
    program(
        name,
        """
        hook.use()
        small = make(np.ones(1000))
        if STANDIN:
            large = np.zeros(600 << 20, "u1")
            tries = [lambda: make(large)]
        elif hook.__name__ == "cableway.cupy":
            tries = [lambda: cupy.empty(1 << 40, "u1")]
        elif hook.__name__ == "cableway.torch":
            tries = [lambda: torch.empty(1 << 40, dtype=torch.uint8, device="cuda")]
        else:
            tries = [lambda: cuda.device_array(1 << 40, "u1")]
        for use in tries:
            try: use()
            except full as error: pass
            else: raise AssertionError
        assert (host(small) == 1).all()
        assert (cw.put("small", make(np.full(10, 3.0)), copy=False).to("cpu").numpy() == 3).all()
        """,
    )


@pytest.fixture
def own_broker() -> Iterator[str]:
    """A folder for a broker with limits of its own."""
    folder = tempfile.mkdtemp(prefix="cwgpu-")
    yield folder
    stop_broker(Path(folder))
    shutil.rmtree(folder)


@on_the_double
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_limit_of_the_broker_is_the_librarys_own_error_too(program, name, own_broker):
    program(
        name,
        """
        hook.use()
        small = make(np.ones(1000))
        try:
            kept = [make(np.zeros(40 << 20, "u1")) for _ in range(20)]
        except full: pass
        else: raise AssertionError
        kept = None
        gc.collect()
        assert (host(make(np.ones(1000))) == 1).all()
        """,
        CABLEWAY_DIR=own_broker,
        CABLEWAY_MAX_GPU_BYTES=str(200 << 20),
    )


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_a_library_allocated_itself_can_be_borrowed(program, name):
    program(
        name,
        """
        x = np.random.default_rng(5).random(5000)
        mine, beside = make(x), make(-x)
        shared = cw.put("lent", mine, copy=False)
        assert at(shared) == at(mine)
        other("w = cw.get('lent'); assert (w.to('cpu').numpy() == np.random.default_rng(5).random(5000)).all(); w[0] = 3")
        assert host(mine)[0] == 3 and (host(beside) == -x).all()
        del mine, shared
        gc.collect()
        others = [make(np.zeros(5000)) for _ in range(10)]
        assert cw.get("lent")[0].to("cpu").item() == 3
        """,
    )


@pytest.mark.parametrize("name", ("cupy", "numba"))
def test_a_new_broker_serves_after_the_old_one_is_gone(program, name, own_broker):
    program(
        name,
        """
        import time
        hook.use()
        before = make(np.ones(100_000))
        cw.put("before", before)
        lib.cw_broker_stop(cw.client.current().pointer)
        while not cw.client.current().lost:
            time.sleep(0.01)
        kept = [make(np.full(10 << 20, i, "u1")) for i in range(4)]
        assert (host(before) == 1).all()
        assert (cw.put("after", kept[3], copy=False).to("cpu").numpy() == 3).all()
        other("assert (cw.get('after').to('cpu').numpy() == 3).all()")
        """,
        CABLEWAY_DIR=own_broker,
    )


@on_the_double
@pytest.mark.parametrize("name", LIBRARIES)
def test_without_its_broker_a_library_gets_back_what_was_lent(program, name, own_broker):
    program(
        name,
        """
        import time
        from cableway._cuda import suballocation
        hook.use()
        mine, held = make(np.ones(100_000)), make(np.full(1000, 2.0))
        cw.put("mine", mine, copy=False)
        kept = cw.put("held", held, copy=False)
        del mine, held
        gc.collect()
        suballocation.collect()
        assert len(suballocation._kept) == 2
        connection = cw.client.current()
        lib.cw_broker_stop(connection.pointer)
        while not connection.lost:
            time.sleep(0.01)
        suballocation.collect()
        assert len(suballocation._kept) == 1 and kept.shape == (1000,)
        kept.close()
        suballocation.collect()
        assert not suballocation._kept
        """,
        CABLEWAY_DIR=own_broker,
    )


def test_a_forked_child_is_told_to_be_spawned(program):
    program(
        "cupy",
        """
        import os
        hook.use()
        mine = make(np.ones(1000))
        child = os.fork()
        if child == 0:
            try: hook.use()
            except cw.DeviceError as error: os._exit(7 if "spawn" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert (host(mine) == 1).all()
        """,
    )
