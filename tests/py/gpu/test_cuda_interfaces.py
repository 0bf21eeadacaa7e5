"""GPU arrays by the interfaces of each library: `__cuda_array_interface__` as each tells it, and `__dlpack__`.

Stand-ins (gpu_standins) tell what CuPy, PyTorch, Numba, JAX, PyCUDA and cuDF tell. They need only the driver, so that
the same tests run on the double and on real GPUs.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable

import cuda_support
import pytest
from conftest import PATH

cuda_support.require()

KINDS = ("CupyArray", "Tensor", "DeviceNDArray", "JaxArray", "GPUArray", "Column")
Run = Callable[[str], object]


gpus = cuda_support.for_module()


@pytest.fixture
def program(script: Callable[..., object]) -> Run:
    """Runs a text that has the stand-ins as `libs`."""

    def run(text: str) -> object:
        path = ":".join([*PATH, os.environ.get("PYTHONPATH", "")])
        begin = "import subprocess, sys, numpy as np, cableway as cw, gpu_standins as libs\nlibs.start()\nlibs.install('torch')\n"
        return script(begin + textwrap.dedent(text), env={**os.environ, "PYTHONPATH": path})

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_of_each_library_comes_in_and_goes_to_others(program, kind):
    program(f"""
        kind = libs.{kind}
        for dtype in ("u1", "i4", "f2", "f4", "f8", "c8", "?"):
            for shape in ((), (7,), (3, 5), (2, 3, 4)):
                x = np.frombuffer(np.random.default_rng(3).bytes(8 * 24 * 2), dtype)
                x = (x[:int(np.prod(shape))] if dtype != "?" else np.arange(int(np.prod(shape))) % 2 == 0).reshape(shape)
                w = cw.asarray(libs.make(kind, x))
                assert (w.shape, w.dtype, w.device) == (shape, np.dtype(dtype), "cuda:0")
                assert w.to("cpu").numpy().tobytes() == np.ascontiguousarray(x).tobytes(), (dtype, shape)
        x = np.random.default_rng(4).random((40, 30))
        foreign = libs.make(kind, x)
        cw.put("x", foreign)
        other = "import numpy as np, cableway as cw; x = cw.get('x', device='cpu').numpy();"
        other += "assert (x == np.random.default_rng(4).random((40, 30))).all()"
        subprocess.run([sys.executable, "-c", other], check=True)
        w = cw.get("x")
        assert w.copy_from(libs.make(kind, x + 1)) is w and (w.to("cpu").numpy() == x + 1).all()
        w[5] = libs.make(kind, x[6])
        assert (w[5].to("cpu").numpy() == x[6]).all()
        assert (foreign.host() == x).all()  # it was copied
        if kind is libs.JaxArray:
            assert foreign.waited
        """)


def test_missing_values_of_a_column_are_refused(program):
    program("""
        column = libs.make(libs.Column, np.arange(10.0))
        assert (cw.asarray(column).to("cpu").numpy() == range(10)).all()
        column.mask = libs.make(libs.Column, np.array([255, 1], "u1"))
        try: cw.asarray(column)
        except ValueError as error: assert "mask" in str(error)
        else: raise AssertionError
        """)


@pytest.mark.parametrize("kind", ("CupyArray", "GPUArray"))
def test_layouts_with_strides_come_in_as_they_are(program, kind):
    program(f"""
        x = np.arange(24.0).reshape(4, 6)
        foreign = libs.make(libs.{kind}, x)
        foreign.shape, foreign.strides = (6, 4), (8, 48)  # as x.T
        w = cw.asarray(foreign)
        assert w.strides == (8, 48) and (w.to("cpu").numpy() == x.T).all()
        foreign.shape, foreign.strides = (4, 3), (48, 16)  # as x[:, ::2]
        try: cw.asarray(foreign)
        except ValueError as error: assert "contiguous" in str(error)
        else: raise AssertionError
        """)


def test_what_we_tell_is_what_the_interface_asks_for(program):
    program("""
        x = np.arange(12, dtype="f4").reshape(3, 4)
        w = cw.asarray(x, device="cuda:0")
        told = w.__cuda_array_interface__
        assert set(told) >= {"shape", "typestr", "data", "version"} and told["version"] == 3
        assert told["shape"] == (3, 4) and told["typestr"] == "<f4" and told["strides"] is None and told["stream"] is None
        address, readonly = told["data"]
        assert not readonly and (libs.read(address, (3, 4), "f4") == x).all()
        column = w[:, 2].__cuda_array_interface__
        assert column["strides"] == (16,) and column["data"][0] == address + 8
        assert w.T.__cuda_array_interface__["strides"] == (4, 16)
        libs.write(address, -x)
        assert (w.to("cpu").numpy() == -x).all()
        cw.put("w", w)
        assert cw.get("w", readonly=True).__cuda_array_interface__["data"][1]
        for nothing in (cw.zeros(3), cw.zeros(2, [("a", "i4")], device="cuda:0")):
            assert not hasattr(nothing, "__cuda_array_interface__")
        """)


def test_dlpack_tells_the_memory_in_both_forms(program):
    program("""
        x = np.arange(24, dtype="f4").reshape(2, 3, 4)
        w = cw.asarray(x, device="cuda:0")
        address = w.__cuda_array_interface__["data"][0]
        assert w.__dlpack_device__() == (2, 0)
        for stream in (None, -1, 1, 2):
            for version in (None, (0, 8), (1, 0), (1, 1)):
                seen = libs.look(w.__dlpack__(stream=stream, max_version=version))
                assert (seen.version or (0,))[0] == (1 if version and version[0] else 0)
                assert seen.address == address and seen.device == (2, 0) and seen.dtype == (2, 32, 1) and seen.flags == 0
                assert seen.shape == (2, 3, 4) and seen.strides == (12, 4, 1)
        part = libs.look(w[1, :, ::2].__dlpack__(max_version=(1, 0)))
        assert part.address == address + 48 and part.shape == (3, 2) and part.strides == (4, 2)
        for dtype, told in {"i1": (0, 8), "u2": (1, 16), "f8": (2, 64), "c8": (5, 64), "?": (6, 8)}.items():
            assert libs.look(cw.zeros(3, dtype, device="cuda:0").__dlpack__()).dtype == (*told, 1)
        cw.put("w", w)
        only = cw.get("w", readonly=True)
        assert libs.look(only.__dlpack__(max_version=(1, 0))).flags == 1
        try: only.__dlpack__()
        except BufferError as error: assert "read-only" in str(error)
        else: raise AssertionError
        """)


def test_dlpack_copies_when_asked_to_and_to_the_host(program):
    program("""
        x = np.arange(6.0)
        w = cw.asarray(x, device="cuda:0")
        address = w.__cuda_array_interface__["data"][0]
        copied = libs.look(w.__dlpack__(copy=True, max_version=(1, 0)))
        assert copied.address != address and copied.flags == 2 and (libs.read(copied.address, (6,), "f8") == x).all()
        assert libs.look(w.__dlpack__(copy=False, dl_device=(2, 0))).address == address
        host = libs.look(w.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
        assert host.device == (1, 0) and host.flags == 2
        import ctypes
        assert list((ctypes.c_double * 6).from_address(host.address)) == x.tolist()
        for options, words in (({"copy": False, "dl_device": (1, 0)}, "not on (1, 0)"), ({"dl_device": (2, 5)}, "not on (2, 5)")):
            try: w.__dlpack__(**options)
            except BufferError as error: assert words in str(error), error
            else: raise AssertionError(options)
        """)


def test_a_capsule_keeps_the_memory(program):
    program("""
        w = cw.full(1000, 7.0, device="cuda:0")
        seen = libs.look(w.__dlpack__())
        w.close()
        del w
        others = [cw.full(1000, i, device="cuda:0") for i in range(30)]
        assert seen.address not in [o.__cuda_array_interface__["data"][0] for o in others]
        assert (libs.read(seen.address, (1000,), "f8") == 7).all()
        """)


def test_a_tensor_is_ordered_by_the_current_stream_of_its_library(program):
    program("""
        import ctypes, torch
        stream = ctypes.c_void_p()
        libs.call("cuStreamCreate", ctypes.byref(stream), 1)
        torch.cuda.current_stream = lambda device=None: type("Stream", (), {"cuda_stream": stream.value})
        x = libs.make(libs.Tensor, np.zeros(1000, "u1"))
        held = []
        import os, threading, time
        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def hold(_):
            while not held: time.sleep(0.001)
        libs.call("cuLaunchHostFunc", stream, hold, None)
        libs.call("cuMemsetD8Async", ctypes.c_uint64(x.address), ctypes.c_ubyte(5), ctypes.c_size_t(1000), stream)
        threading.Timer(0.2, held.append, [1]).start()
        w = cw.asarray(x)  # the copy follows the tensor's work, which waits for the timer
        assert (w.to("cpu").numpy() == 5).all()
        """)


def test_memory_of_a_librarys_own_is_borrowed_when_no_copy_may_be_made(program):
    program("""
        from cableway._cuda import suballocation
        import gc, time
        x = np.arange(300.0)
        foreign = libs.make(libs.CupyArray, x)
        w = cw.put("lent", foreign, copy=False)
        assert w.__cuda_array_interface__["data"][0] == foreign.address
        other = '''if True:
            import numpy as np, cableway as cw
            w = cw.get("lent")
            assert w.device == "cuda:0" and (w.to("cpu").numpy() == range(300)).all()
            w[:100] = np.full(100, 5.0)
            '''
        subprocess.run([sys.executable, "-c", other], check=True)
        assert (foreign.host()[:100] == 5).all() and (foreign.host()[100:] == x[100:]).all()
        again = cw.asarray(foreign, copy=False)
        again[0] = 8
        assert w[0].to("cpu").item() == 8
        del foreign, w, again
        gc.collect()
        assert suballocation._kept and cw.get("lent")[0].to("cpu").item() == 8  # its memory is not freed
        cw.remove("lent")
        gc.collect()
        end = time.monotonic() + 40
        while suballocation._kept:
            suballocation.collect()
            assert time.monotonic() < end
        second = libs.make(libs.CupyArray, -x)
        assert (cw.put("second", second, copy=False).to("cpu").numpy() == -x).all()
        """)


def test_borrowed_memory_dies_with_its_owner(program):
    program("""
        import os, signal
        if sys.argv[1:] == ["lend"]:
            cw.put("gone", libs.make(libs.CupyArray, np.ones(100)), copy=False).wait()
            os.kill(os.getpid(), signal.SIGKILL)
        assert subprocess.run([sys.executable, __file__, "lend"]).returncode == -9
        try: cw.get("gone")
        except cw.DeviceError as error: assert "dies with the process" in str(error), error
        else: raise AssertionError
        assert (cw.full(100, 3, device="cuda:0").to("cpu").numpy() == 3).all()
        """)


def test_what_has_no_legacy_handle_is_not_borrowed(program):
    program("""
        w = cw.full(100, 3.0, device="cuda:0")
        address = w.__cuda_array_interface__["data"][0]
        class Beyond:
            __cuda_array_interface__ = {"shape": (1 << 40,), "typestr": "|u1", "strides": None, "version": 3, "data": None}
        foreign = libs.make(libs.CupyArray, np.ones(100))
        Beyond.__cuda_array_interface__["data"] = (foreign.address, False)
        try: cw.asarray(Beyond(), copy=False)
        except ValueError as error: assert "beyond" in str(error), error
        else: raise AssertionError
        try: cw.asarray(foreign, device="cpu", copy=False)
        except ValueError as error: assert "needs a copy" in str(error)
        else: raise AssertionError
        assert cw.asarray(foreign, device="cuda:0", copy=False).__cuda_array_interface__["data"][0] == foreign.address
        """)


def test_what_looks_at_elements_raises_on_a_gpu_and_names_the_remedy(program):
    program("""
        w = cw.put("w", np.arange(4.0), device="cuda:0")
        rows = cw.zeros((2, 3), device="cuda:0")
        host = cw.zeros(4)
        uses = [
            lambda: w == 2, lambda: 2 == w, lambda: w != w, lambda: 2 in w, lambda: list(w), lambda: w + 1, lambda: 1 - w,
            lambda: host + w, lambda: w < 3, lambda: -w, lambda: w @ w, lambda: w.sum(), lambda: w.flatten(), lambda: w.real,
            lambda: np.add(w, 1), lambda: np.add(host, 1, out=w), lambda: np.sum(w), lambda: np.concatenate([host, w]),
            lambda: w[[0, 1]], lambda: w[w], lambda: float(w[1]), lambda: bool(w), lambda: w.tolist(), lambda: host[w],
        ]
        for number, use in enumerate(uses):
            try:
                use()
            except TypeError as error:
                assert "cupy.asarray(w)" in str(error) and "torch.from_dlpack(w)" in str(error), (number, error)
            else:
                raise AssertionError(number)
        assert isinstance(w[1], cw.Array) and w[1].shape == ()
        assert [row.shape for row in rows] == [(3,), (3,)]
        try:
            w += 1
        except TypeError:
            pass
        else:
            raise AssertionError
        assert w.to("cpu").tolist() == [0, 1, 2, 3]
    """)


def test_a_number_that_does_not_fit_is_an_error_on_a_gpu_too(program):
    program("""
        w = cw.zeros(2, "i1", device="cuda:0")
        for use in (
            lambda: w.__setitem__(0, 300), lambda: w.__setitem__(slice(None), [1, 300]), lambda: w.copy_from([300, 1]),
            lambda: cw.full(2, 300, "i1", device="cuda:0"), lambda: cw.asarray([300], "i1", device="cuda:0"),
        ):
            try:
                use()
            except OverflowError:
                continue
            raise AssertionError
        w[0], w[1:] = 5, [-6]
        assert w.to("cpu").tolist() == [5, -6]
        assert cw.full(2, 3, "i1", device="cuda:0").to("cpu").tolist() == [3, 3]
    """)


def test_a_shuffle_of_gpu_rows_keeps_every_row_once(program):
    program("""
        import random, warnings
        warnings.simplefilter("ignore", UserWarning)
        for x in np.arange(9), np.arange(18.0).reshape(9, 2):
            for shuffle in random.Random(3).shuffle, np.random.default_rng(3).shuffle:
                w = cw.asarray(x, device="cuda:0")
                shuffle(w)
                assert sorted(w.to("cpu").tolist()) == sorted(x.tolist()), w.to("cpu")
                assert w.to("cpu").tolist() != x.tolist()
    """)
