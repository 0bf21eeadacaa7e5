"""GPU libraries in a Pool's workers: each finds its own GPU as its default one, and arrays as they are.

On real GPUs, with each library that is there. What they compute is compared with NumPy.
"""

from __future__ import annotations

from functools import partial

import cuda_support
import device_pools
import pytest

cuda_support.require()
pytestmark = pytest.mark.skipif(not cuda_support.REAL, reason="no GPU")
several = cuda_support.second_gpu


gpus = cuda_support.for_module()


# What each library does with an array of ours, and one that it made itself on its default device; then, how it is told a
# stream, where it can be.
LIBRARIES = {
    "cupy": """
def double(w):
    import cupy
    assert cupy.cuda.Device().id == 0
    return cupy.asarray(w) * 2, cupy.ones(10)
def break_it():
    import cupy
    kernel = cupy.RawKernel('extern "C" __global__ void bad(int *p) { *p = 1; }', "bad")
    kernel((1,), (1,), (8,))
def fill_it():
    import cupy
    kept = []
    while True: kept.append(cupy.zeros(1 << 33, "u1"))
def on_part(stream):
    import cupy
    with cupy.cuda.ExternalStream(stream.ptr): return float((cupy.arange(1000.0) * 2).sum())
""",
    "torch": """
def double(w):
    import torch
    assert torch.cuda.current_device() == 0
    return torch.as_tensor(w, device="cuda") * 2, torch.ones(10, device="cuda")
def break_it():
    import torch
    torch.ones(4, device="cuda")[torch.tensor([10 ** 6], device="cuda")]      # an assertion in a kernel
def fill_it():
    import torch
    kept = []
    while True: kept.append(torch.empty(1 << 33, dtype=torch.uint8, device="cuda"))
def on_part(stream):
    import torch
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)): return float((torch.arange(1000.0, device="cuda") * 2).sum())
""",
    "numba": """
def double(w):
    from numba import cuda
    import numpy
    assert cuda.get_current_device().id == 0
    @cuda.jit("void(float32[::1], float32[::1])")
    def kernel(out, x):
        i = cuda.grid(1)
        if i < x.size: out[i] = 2 * x[i]
    out = cuda.device_array(w.shape, "f4")
    kernel[(w.size + 255) // 256, 256](out, cuda.as_cuda_array(w))
    return out, cuda.to_device(numpy.ones(10))
def break_it():
    from numba import cuda
    import numpy
    @cuda.jit("void(float32[::1])")
    def kernel(x): x[1 << 40] = 1
    kernel[1, 1](cuda.to_device(numpy.ones(4, "f4")))
def fill_it():
    from numba import cuda
    kept = []
    while True: kept.append(cuda.device_array(1 << 33, "u1"))
def on_part(stream):
    from numba import cuda
    import numpy
    x = cuda.to_device(numpy.arange(1000.0) * 2, stream=cuda.external_stream(stream.ptr))
    return float(x.copy_to_host().sum())
""",
    "jax": """
def double(w):
    import jax, jax.numpy as jnp
    device, = jnp.ones(3).devices()
    assert device == jax.devices()[0] and device.platform == "gpu"
    return jnp.from_dlpack(w) * 2, jnp.ones(10)
def fill_it():
    import jax.numpy as jnp
    kept = []
    while True: kept.append(jnp.zeros(1 << 33, "u1").block_until_ready())
""",
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    """The name of one that is there."""
    name = str(request.param)
    pytest.importorskip(name if name != "numba" else "numba.cuda")
    return name


@pytest.fixture
def program(script, library):
    """Runs a text after what device_pools has, and what this library does."""
    return lambda text: partial(device_pools.run, script)(LIBRARIES[library] + text)


def test_the_default_device_is_the_workers_own(program):
    program("""
def look(w):
    doubled, made = double(w)
    made = cw.asarray(made)
    return cw.asarray(doubled), own(), made.device_uuid, made.device
if __name__ == "__main__":
    given = [cw.full(1000, i, "f4", device=f"cuda:{i % GPUS}") for i in range(2 * GPUS)]
    with cw.Pool(devices="cuda") as pool:
        done = pool.map(look, given)
    for i, (w, (back, mine, its, name)) in enumerate(zip(given, done, strict=True)):
        assert (back.to("cpu").numpy() == 2 * i).all() and name == "cuda:0"
        assert mine == its == back.device_uuid == w.device_uuid, (i, mine, its, back.device_uuid)
""")


@several
def test_an_array_of_a_peer_is_on_the_own_gpu_when_the_library_sees_it(program):
    program("""
def look(w):
    back = cw.asarray(double(w)[0])
    return back.device, back.to("cpu").numpy()
if __name__ == "__main__":
    w = cw.asarray(np.arange(1000, dtype="f4"), device="cuda:1")
    with cw.Pool(devices="cuda:0") as pool:
        device, values = pool.apply(look, (w,))
    assert device == "cuda:0" and (values == 2 * np.arange(1000)).all()
""")


def test_full_memory_is_the_librarys_exception(program):
    program("""
def fill():
    try: fill_it()
    except MemoryError: return "full"                       # CuPy's
    except Exception as error: return type(error).__name__
if __name__ == "__main__":
    with cw.Pool(devices="cuda:0") as pool:
        before = pool.apply(wait)
        assert pool.apply(fill) in ("full", "OutOfMemoryError", "CudaAPIError", "XlaRuntimeError", "JaxRuntimeError")
        assert pool.apply(wait) == before
""")


def test_a_bad_kernel_costs_its_own_task(program, library):
    if library == "jax":
        pytest.skip("JAX has no bad kernel to offer")
    program("""
if __name__ == "__main__":
    w = cw.full(1000, 3.0, "f4", device="cuda:0")
    with cw.Pool(devices="cuda:0") as pool:
        before = pool.apply(wait)
        try: pool.apply(break_it)
        except cw.DeviceError as error: assert "CUDA_ERROR_" in str(error) and "replaced" in str(error), error
        else: raise AssertionError
        after = pool.apply(wait)
        assert after[0] == before[0] and after[1] != before[1]
        assert (w.to("cpu").numpy() == 3).all()
""")


def test_work_on_a_part_of_the_gpu(program, library):
    if library == "jax":
        pytest.skip("JAX takes no stream of others")
    program("""
def part(_):
    stream = cw.current_stream()
    return on_part(stream), stream.multiprocessors
if __name__ == "__main__":
    with cw.Pool(devices={"cuda:0": 2}, sms=16) as pool:
        for value, multiprocessors in pool.map(part, range(4)):
            assert value == 999000.0 and 16 <= multiprocessors <= 64, (value, multiprocessors)
""")
