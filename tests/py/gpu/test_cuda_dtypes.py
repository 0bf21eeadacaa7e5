"""The dtypes of machine learning in GPU memory: PyTorch's and CuPy's arrays come in and go out with their own dtype.

On the double stand-ins of the libraries (standins/), on real GPUs the libraries.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable

import cuda_support
import device_pools
import pytest

cuda_support.require()
gpus = cuda_support.for_module()
pool_program = device_pools.program

WORDS = {
    "bfloat16": "bfloat16", "float8_e4m3fn": "float8_e4m3fn", "float8_e4m3fnuz": "float8_e4m3fnuz",
    "float8_e5m2": "float8_e5m2", "float8_e5m2fnuz": "float8_e5m2fnuz", "float8_e8m0fnu": "float8_e8m0fnu",
    "float4_e2m1fn_x2": "float4_e2m1fn_x2", "int4": "int4_x2", "uint4": "uint4_x2", "complex32": "complex32",
}  # fmt: skip

TORCH = f"""
import subprocess, sys, numpy as np, cableway as cw, torch
WORDS = {WORDS!r}
RAW = np.arange(240, dtype="u1")
def new(name, values=RAW, device="cuda"):
    real = hasattr(torch, "nn")
    bytes_ = torch.tensor(values, dtype=torch.uint8, device=device) if real else torch.tensor(values, torch.uint8, device)
    return bytes_.view(getattr(torch, name))
def raw(t):
    return np.asarray(t.view(torch.uint8).cpu()).tobytes()
"""


@pytest.fixture
def program(script: Callable[..., object]) -> Callable[[str], object]:
    """Runs a text that has PyTorch, or its stand-in."""

    def run(text: str) -> object:
        environment = {**os.environ, **device_pools.environment_for("torch")}
        return script(TORCH + textwrap.dedent(text), env=environment)

    return run


def test_a_tensor_comes_in_and_goes_out_with_its_dtype(program):
    program("""
        for name, word in WORDS.items():
            t = new(name)
            w = cw.put("t", t)
            assert w.device == "cuda:0" and f" dtype={word} " in repr(w) and w.shape == tuple(t.shape), w
            assert w.to("cpu").tobytes() == RAW.tobytes()
            for found in (cw.get("t"), cw.asarray(t), cw.asarray(t, word), cw.asarray(t, t.dtype), w.copy(), w.to("cpu").to("cuda:0"),
                          cw.zeros(w.shape, word, device="cuda:0").copy_from(t)):
                assert f" dtype={word} " in repr(found) and found.device == "cuda:0"
                assert found.to("cpu").tobytes() == RAW.tobytes(), name
            part = w[2:5]
            assert f" dtype={word} " in repr(part) and part.to("cpu").tobytes() == RAW[2 * w.itemsize:5 * w.itemsize].tobytes()
            z = cw.zeros(w.shape, word, device="cuda:0")
            z[...] = t
            z[0] = w[1]
            assert z.to("cpu").tobytes()[w.itemsize:] == RAW.tobytes()[w.itemsize:]
            h = cw.zeros(w.shape, word)
            h[...] = t
            assert h.tobytes() == RAW.tobytes() and cw.asarray(t, device="cpu").tobytes() == RAW.tobytes()
            h = cw.put("h", new(name, device="cpu"))
            assert f" dtype={word} " in repr(h) and h.device == "cpu" and h.tobytes() == RAW.tobytes()
            for array in (w, cw.get("t"), h):
                if word in ("int4_x2", "uint4_x2"):  # PyTorch takes none by DLPack
                    try: torch.from_dlpack(array)
                    except (BufferError, RuntimeError): pass
                    else: raise AssertionError(name)
                    back = torch.from_dlpack(cw.asarray(array, "u1")).view(t.dtype)
                else:
                    back = torch.from_dlpack(array)
                assert back.dtype is t.dtype and raw(back) == RAW.tobytes(), name
                again = cw.asarray(back)  # memory of ours: it is found again
                assert f" dtype={word} " in repr(again)
                assert torch.from_dlpack(cw.asarray(again, "u1") if "int4" in word else again).data_ptr() == back.data_ptr()
            for bad in (lambda: cw.asarray(t, "f4"), lambda: cw.zeros(w.shape, "f4", device="cuda:0").copy_from(t)):
                try: bad()
                except TypeError as error: assert word in str(error), error
                else: raise AssertionError(name)
        """)


def test_another_process_finds_the_dtype(program):
    program("""
        for name, word in WORDS.items():
            cw.put(f"x/{name}", new(name))
        other = '''
        import sys, cableway as cw
        for name, word in %r.items():
            w = cw.get(f"x/{name}")
            assert f" dtype={word} " in repr(w) and w.device == "cuda:0"
            assert w.to("cpu").tobytes() == bytes(range(240))
        ''' % WORDS
        import textwrap
        subprocess.run([sys.executable, "-c", textwrap.dedent(other)], check=True)
        """)


def test_an_interface_without_the_dtype_is_not_there(program):
    program("""
        w = cw.put("t", new("bfloat16"))
        assert not hasattr(w, "__cuda_array_interface__") and not hasattr(w, "__array_interface__")
        try: w.__cuda_array_interface__
        except AttributeError as error: assert "bfloat16" in str(error) and "from_dlpack" in str(error)
        class View:
            __cuda_array_interface__ = {"shape": (3,), "typestr": "<V2", "data": (new("bfloat16").data_ptr(), False), "version": 3}
        for use in (lambda: cw.put("v", View()), lambda: w.__setitem__(slice(3), View())):
            try: use()
            except TypeError as error: assert "may be anything" in str(error) and "View" in str(error)
            else: raise AssertionError("a void was taken")
        """)


def test_cupy_takes_and_gives_bfloat16(script):
    environment = {**os.environ, **device_pools.environment_for("cupy")}
    script(
        """
        import cupy, ml_dtypes, numpy as np, cableway as cw
        values = np.arange(24).reshape(4, 6).astype(ml_dtypes.bfloat16)
        a = cupy.array(values)
        w = cw.put("a", a)
        assert " dtype=bfloat16 " in repr(w) and w.device == "cuda:0", w
        assert (w.to("cpu").numpy() == values).all() and w.to("cpu").numpy().dtype == ml_dtypes.bfloat16
        for back in (cupy.asarray(w), cupy.from_dlpack(w)):
            assert back.dtype == ml_dtypes.bfloat16 and back.shape == (4, 6)
            again = cw.asarray(back)
            assert " dtype=bfloat16 " in repr(again) and (again.to("cpu").numpy() == values).all()
            again[0] = cw.full(6, 7, "bfloat16").to("cuda:0")
            assert (w[0].to("cpu").numpy() == 7).all()  # the same memory
            again[0] = cw.asarray(values[0]).to("cuda:0")
        try: cupy.asarray(cw.zeros(3, "float8_e4m3fn", device="cuda:0"))
        except TypeError as error: assert "CuPy takes no float8_e4m3fn" in str(error) and "torch.from_dlpack" in str(error)
        else: raise AssertionError("CuPy took float8")
        """,
        env=environment,
    )


@pytest.mark.skipif(not cuda_support.REAL, reason="no GPU")
def test_jax_gives_and_takes_what_its_interface_cannot_tell(script):
    """JAX has no `__cuda_array_interface__` for these: they come in by DLPack, on the host and on the GPU."""
    pytest.importorskip("jax")
    script(
        """
        import jax, jax.numpy as jnp, numpy as np, cableway as cw
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            x = jnp.arange(8).astype(getattr(jnp, name))
            w = cw.put("x", x)
            assert w.device == "cuda:0" and f" dtype={name} " in repr(w), w
            back = jnp.from_dlpack(w)
            assert back.dtype == name and (np.asarray(back).astype("f4") == np.arange(8)).all()
            w = cw.put("x", jax.device_put(x, jax.devices("cpu")[0]))
            assert w.device == "cpu" and f" dtype={name} " in repr(w) and (w.numpy().astype("f4") == np.arange(8)).all()
        """,
        env={**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )


@pytest.mark.skipif(not cuda_support.REAL, reason="no GPU")
def test_work_in_pytorchs_current_stream_comes_before_the_copy(program):
    program("""
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.zeros(1 << 26, dtype=torch.bfloat16, device="cuda")
            for _ in range(50):
                x += 1
            w = cw.put("x", x)
        assert (raw(torch.from_dlpack(w.to("cpu"))) == raw(torch.full((1 << 26,), 50, dtype=torch.bfloat16)))
        """)


def test_tensors_of_all_dtypes_go_to_tasks_and_back(pool_program):
    pool_program(
        TORCH
        + """
def same(t):
    return t, str(t.dtype), raw(t)
def ours(w):
    return repr(w), w, w.to("cpu").tobytes()
if __name__ == "__main__":
    with cw.Pool(devices="cuda:0") as pool:
        for name, word in WORDS.items():
            t = new(name)
            back, dtype, values = pool.apply(same, (t,))
            assert back.dtype is t.dtype and dtype == f"torch.{name}" and values == raw(back) == RAW.tobytes(), name
            for args in ((cw.asarray(t),), (cw.In(cw.asarray(t, device="cpu")),), (cw.InOut(cw.asarray(t, device="cpu")),)):
                text, w, values = pool.apply(ours, args)
                assert f" dtype={word} " in text and f" dtype={word} " in repr(w) and values == RAW.tobytes(), (text, w)
            out = cw.zeros(240 // cw.asarray(t).itemsize, word)
            text, w, _ = pool.apply(ours, (cw.Out(out),))
            assert f" dtype={word} " in text, text
""",
        env=device_pools.environment_for("torch"),
    )


def test_an_array_of_cupy_of_bfloat16_goes_to_tasks_and_back(pool_program):
    pool_program(
        """
import cupy, ml_dtypes
def same(a):
    return a, str(a.dtype), cw.asarray(a).to("cpu").numpy()
if __name__ == "__main__":
    values = np.arange(24).reshape(4, 6).astype(ml_dtypes.bfloat16)
    with cw.Pool(devices="cuda:0") as pool:
        back, dtype, seen = pool.apply(same, (cupy.array(values),))
        assert dtype == "bfloat16" and back.dtype == ml_dtypes.bfloat16 and (seen == values).all()
        assert (cw.asarray(back).to("cpu").numpy() == values).all()
""",
        env=device_pools.environment_for("cupy"),
    )
