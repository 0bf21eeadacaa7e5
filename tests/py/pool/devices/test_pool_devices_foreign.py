"""GPU arrays of PyTorch and CuPy as arguments and results of tasks: handles travel, not values.

On the double stand-ins of the libraries (standins/), on real GPUs the libraries.
"""

from __future__ import annotations

from pathlib import Path

import cuda_support
import device_pools
import pytest

cuda_support.require()
HERE = Path(__file__).parent


gpus = cuda_support.for_module(devices=2)


@pytest.fixture
def program(script):
    """Runs a text after what device_pools has, with the libraries named."""

    def run(library: str, text: str) -> None:
        device_pools.run(script, text, env=device_pools.environment_for(library))

    return run


TORCH = """
import torch
def new(values, kind=torch.float32):
    return torch.tensor(values, dtype=kind, device="cuda") if hasattr(torch, "nn") else torch.tensor(values, kind)
def host(t):
    return np.asarray(t.cpu())
"""


def test_a_tensor_goes_by_handle_and_comes_as_a_tensor_on_the_own_gpu(program):
    program(
        "torch",
        TORCH
        + """
def look(t):
    assert type(t) is torch.Tensor and t.device.type == "cuda" and t.device.index == 0
    return host(t) * 2, cw.asarray(t).device_uuid
def nested(d):
    return d["x"][0][:3], new([1.0, 2.0])
if __name__ == "__main__":
    x = np.arange(100_000, dtype="f4").reshape(200, 500)
    t = new(x)
    with Moved() as moved, pool_on("cuda:0") as pool:
        for values, uuid in pool.map(look, [t] * 4):
            assert (values == 2 * x).all() and uuid == cw.empty(1, device="cuda:0").device_uuid
        part, fresh = pool.apply(nested, ({"x": [t]},))
    assert type(part) is type(fresh) is torch.Tensor
    assert (host(part) == x[:3]).all() and host(fresh).tolist() == [1.0, 2.0]
    assert moved.routes["peer"] == moved.routes["staged"] == 0, moved.routes
""",
    )


def test_tensors_of_all_kinds(program):
    program(
        "torch",
        TORCH
        + """
def same(t):
    return t
def step(t):
    return t[::2]
def dtype(t):
    return str(t.dtype), t.requires_grad
if __name__ == "__main__":
    x = np.arange(60, dtype="f4").reshape(12, 5)
    with cw.Pool(devices="cuda:0") as pool:
        t = new(x)
        assert (host(pool.apply(same, (t[::3],))) == x[::3]).all()           # with gaps: made contiguous
        assert (host(pool.apply(step, (t,))) == x[::2]).all()
        assert pool.apply(dtype, (t.requires_grad_(),)) == ("torch.float32", True)
        half = new(np.arange(8), torch.bfloat16)
        assert pool.apply(dtype, (half,)) == ("torch.bfloat16", False)
""",
    )


def test_what_lies_on_the_host_goes_as_its_library_has_it(program):
    program(
        "torch",
        TORCH
        + """
def look(t):
    return t.device.type, host(t).tolist()
if __name__ == "__main__":
    t = torch.tensor([1.0, 2.0], device="cpu")
    with cw.Pool(devices="cuda:0") as pool:
        assert pool.apply(look, (t,)) == ("cpu", [1.0, 2.0])
""",
    )


def test_an_array_of_cupy_goes_by_handle(program):
    program(
        "cupy",
        """
import cupy
def look(a):
    assert type(a) is cupy.ndarray and a.strides == (4, 1200)
    return cw.asarray(a).to("cpu").numpy() * 2, a, cupy.array([3.0])
if __name__ == "__main__":
    x = np.asfortranarray(np.arange(60_000, dtype="f4").reshape(300, 200))
    with Moved() as moved, pool_on("cuda:0") as pool:
        values, back, fresh = pool.apply(look, (cupy.array(x, order="F") if hasattr(cupy, "ndim") else cupy.array(x),))
    assert (values == 2 * x).all(), values[:3, :3]
    assert type(back) is type(fresh) is cupy.ndarray, (type(back), type(fresh))
    assert (cw.asarray(back).to("cpu").numpy() == x).all() and cw.asarray(fresh).to("cpu").numpy().tolist() == [3.0]
    assert moved.routes["peer"] == moved.routes["staged"] == 0, moved.routes
""",
    )
