"""GPU arrays in and out of other libraries, by their interfaces.

On the double a class of ours stands for the library; on real GPUs each library that is there is used itself.
"""

from __future__ import annotations

import textwrap

import cuda_support
import pytest

cuda_support.require()
on_real_gpus = pytest.mark.skipif(not cuda_support.REAL, reason="no GPU")


gpus = cuda_support.for_module()


# Memory of cuMemAlloc, as a library has it.
LIBRARY = """
import ctypes, os, numpy as np, cableway as cw
cuda = ctypes.CDLL(os.environ.get("CABLEWAY_CUDA_DRIVER", "libcuda.so.1"))
def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)
class Foreign:
    def __init__(self, values, gpu=0, version=3, **told):
        context, self.address = ctypes.c_void_p(), ctypes.c_uint64()
        call("cuInit", 0)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
        call("cuCtxPushCurrent_v2", context)
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(values.nbytes, 1)))
        flat = values.copy(order="K")
        call("cuMemcpyHtoDAsync_v2", self.address, ctypes.c_void_p(flat.ctypes.data), ctypes.c_size_t(values.nbytes), None)
        call("cuCtxSynchronize")
        call("cuCtxPopCurrent_v2", ctypes.byref(context))
        self.__cuda_array_interface__ = {
            "shape": values.shape, "typestr": values.dtype.str, "strides": flat.strides,
            "data": (self.address.value, False), "version": version, **told}
class View:
    def __init__(self, array):
        self.owner = array
        self.__cuda_array_interface__ = array.__cuda_array_interface__
"""


def library(text: str) -> str:
    """A program that has LIBRARY before it."""
    return LIBRARY + textwrap.dedent(text)


def test_arrays_of_a_library_come_in_with_one_copy(script):
    script(
        library("""
        x = np.random.default_rng(5).random((40, 30))
        for values in (x, x.T, x.astype("f4"), np.asfortranarray(x), np.array(3.0), np.zeros((0, 3))):
            for told in ({}, {"stream": None}, {"stream": 1}, {"stream": 2}, {"version": 2}):
                w = cw.asarray(Foreign(values, **told))
                assert w.device == "cuda:0" or not values.size, w
                assert w.dtype == values.dtype and w.shape == values.shape
                assert (w.to("cpu").numpy() == values).all()
        w = cw.put("in", Foreign(x))
        assert (cw.get("in", device="cpu").numpy() == x).all()
        w.copy_from(Foreign(x + 1))
        assert (w.to("cpu").numpy() == x + 1).all()
        w[3] = Foreign(x[4])
        assert (w[3].to("cpu").numpy() == x[4]).all()
        h = cw.zeros(x.shape)
        h[...] = Foreign(x)
        assert (h.numpy() == x).all() and (cw.asarray(Foreign(x), device="cpu").numpy() == x).all()
        """)
    )


def test_who_names_no_stream_is_followed_all_the_same(script):
    """Numba names none for its default stream, and a copy from host memory goes on there when its call has returned."""
    script(
        library("""
        import time
        late = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.2))
        def later(foreign, values):
            "In the default stream, behind something that takes a while."
            context = ctypes.c_void_p()
            call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            call("cuCtxPushCurrent_v2", context)
            call("cuLaunchHostFunc", None, late, None)
            call("cuMemcpyHtoDAsync_v2", foreign.address, ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes), None)
            call("cuCtxPopCurrent_v2", ctypes.byref(context))
        old, new = np.zeros((4, 5)), np.arange(20.0).reshape(4, 5)
        for told in ({"stream": None}, {}, {"stream": 1}):
            foreign = Foreign(old, **told)
            later(foreign, new)
            got = cw.asarray(foreign).to("cpu").numpy()
            time.sleep(0.4)  # what is late has come, before anything ends
            assert (got == new).all(), told
            later(foreign, new + 1)
            w = cw.zeros(new.shape, device="cuda:0")
            w[...] = foreign
            time.sleep(0.4)
            assert (w.to("cpu").numpy() == new + 1).all(), told
            later(foreign, new + 2)
            same = cw.asarray(foreign, copy=False)
            same[0] = 7
            time.sleep(0.4)
            expected = new + 2
            expected[0] = 7
            assert (same.to("cpu").numpy() == expected).all(), told
        """)
    )


def test_what_cannot_come_in_is_refused_with_the_reason(script):
    script(
        library("""
        x = np.ones((4, 6))
        told = Foreign(x)
        def refused(error, words, **changes):
            odd = Foreign(x)
            odd.__cuda_array_interface__.update(changes)
            try: cw.asarray(odd)
            except error as said: assert words in str(said), said
            else: raise AssertionError(changes)
        refused(ValueError, "contiguous", shape=(4, 3), strides=(48, 16))
        refused(ValueError, "contiguous", strides=(0, 8))
        refused(ValueError, "mask", mask=told)
        refused(ValueError, "stream 0", stream=0)
        refused(ValueError, "not GPU memory", data=(x.ctypes.data, False))
        refused(TypeError, "objects", typestr="|O")
        for words, use in {"convert": lambda: cw.asarray(told, dtype="f4")}.items():
            try: use()
            except (TypeError, ValueError) as said: assert words in str(said), said
            else: raise AssertionError(words)
        refused(TypeError, "may be anything", typestr="<V2")
        from cableway import _dlpack
        class Opaque:
            def __dlpack__(self, stream): return _dlpack.capsule(told, told.address.value, (2, 0), (6,), (1,), 8, 8, 1, 0, False)
            def __dlpack_device__(self): return (2, 0)
        try: cw.asarray(Opaque())
        except TypeError as said: assert "code 8, 8 bits, 1 lanes" in str(said), said
        else: raise AssertionError
        """)
    )


def test_a_view_of_ours_comes_back_without_a_copy(script):
    script(
        library("""
        w = cw.zeros((10, 10), "f4", device="cuda:0")
        v = cw.asarray(View(w))
        assert v.shape == (10, 10)
        v[2] = 5
        assert (w[2].to("cpu").numpy() == 5).all()
        part = cw.put("part", View(w[3:5]))
        part[...] = 8
        assert (w[3:5].to("cpu").numpy() == 8).all() and cw.asarray(View(w), copy=True)[2].to("cpu").numpy()[0] == 5
        assert w[:, 1].__cuda_array_interface__["strides"] == (40,)
        assert w.__cuda_array_interface__["version"] == 3
        empty = cw.zeros((0, 3), device="cuda:0").__cuda_array_interface__
        assert empty["data"][0] == 0 and empty["shape"] == (0, 3)
        cw.put("w", w)
        assert cw.get("w", readonly=True).__cuda_array_interface__["data"][1] is True
        """)
    )


def test_dlpack_says_where_it_lies(script):
    script(
        library("""
        w = cw.asarray(np.arange(6.0).reshape(2, 3), device="cuda:0")
        assert w.__dlpack_device__() == (2, 0)
        for stream in (None, -1, 1, 2):
            assert "dltensor" in repr(w.__dlpack__(stream=stream))
        assert "dltensor_versioned" in repr(w.__dlpack__(stream=1, max_version=(1, 0)))
        class Host:
            def __init__(self, array): self.array = array
            def __dlpack_device__(self): return (1, 0)
            def __dlpack__(self, **options): return self.array.__dlpack__(dl_device=(1, 0), max_version=(1, 0))
        assert np.from_dlpack(Host(w)).tolist() == [[0, 1, 2], [3, 4, 5]]
        for error, words, options in ((BufferError, "not on (2, 7)", {"dl_device": (2, 7)}), (ValueError, "stream 0", {"stream": 0}),
                                      (BufferError, "not on (1, 0)", {"dl_device": (1, 0), "copy": False})):
            try: w.__dlpack__(**options)
            except error as said: assert words in str(said), said
            else: raise AssertionError(options)
        try: np.from_dlpack(w)
        except (BufferError, RuntimeError, TypeError, ValueError): pass
        else: raise AssertionError
        """)
    )


@on_real_gpus
@pytest.mark.parametrize("name", ["cupy", "torch", "numba", "jax"])
def test_a_library_sees_our_memory_and_we_see_its(script, name):
    pytest.importorskip(name if name != "numba" else "numba.cuda")
    ways = {
        "cupy": """
            import cupy
            inside, out, fresh = cupy.asarray(w), lambda v: cupy.asnumpy(v), lambda x: cupy.asarray(x)
            inside[1] = 7
            assert cupy.from_dlpack(w).data.ptr == inside.data.ptr
            cupy.cuda.Device().synchronize()
            aliased = True
        """,
        "torch": """
            import torch
            inside, out, fresh = torch.as_tensor(w, device="cuda"), lambda v: v.cpu().numpy(), lambda x: torch.as_tensor(x, device="cuda")
            inside[1] = 7
            assert torch.from_dlpack(w).data_ptr() == inside.data_ptr()
            torch.cuda.synchronize()
            aliased = True
        """,
        "numba": """
            from numba import cuda
            inside, out, fresh = cuda.as_cuda_array(w), lambda v: v.copy_to_host(), lambda x: cuda.to_device(x)
            inside[1].copy_to_device(np.full(20, 7, "f4"))  # a kernel would need a NumPy that Numba knows
            cuda.synchronize()
            aliased = True
        """,
        "jax": """
            import jax, jax.numpy as jnp
            inside, out, fresh = jnp.from_dlpack(w), lambda v: np.asarray(v), lambda x: jax.device_put(x)
            w[1] = 7
            aliased = False
        """,
    }
    script(
        "import numpy as np, cableway as cw\n"
        "x = np.random.default_rng(6).random((50, 20)).astype('f4')\n"
        "w = cw.asarray(x, device='cuda:0')\n"
        + textwrap.dedent(ways[name])
        + textwrap.dedent("""
        x[1] = 7
        assert (out(inside) == x).all()
        assert (w.to("cpu").numpy() == x).all()
        came = cw.put("came", fresh(x + 1))
        assert came.device == "cuda:0" and (came.to("cpu").numpy() == x + 1).all()
        if aliased:
            back = cw.asarray(inside, copy=False)
            back[2] = 3
            assert (w[2].to("cpu").numpy() == 3).all()
        del inside
        """),
        env={**__import__("os").environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
    )
