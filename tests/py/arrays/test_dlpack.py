"""DLPack: versioned and older capsules, read-only, lifetimes."""

from __future__ import annotations

import ctypes
import gc
import sys
import types
import warnings
from typing import Any

import numpy as np
import pytest

import cableway as cw

NUMPY = tuple(int(part) for part in np.__version__.split(".")[:2])


def name_of(capsule: object) -> str:
    """A capsule's name."""
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return get(capsule).decode()  # type: ignore[no-any-return]


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


def content(capsule: object) -> Any:
    """What a versioned capsule holds."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.cast(get(capsule, b"dltensor_versioned"), ctypes.POINTER(Versioned)).contents


class Only:
    """Shows nothing of an array but DLPack."""

    def __init__(self, w: cw.Array) -> None:
        self.w = w

    def __dlpack__(self, **kwargs: Any) -> object:
        return self.w.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.w.__dlpack_device__()


DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_takes_it_without_a_copy(dtype):
    if dtype == "?" and NUMPY < (1, 25):
        pytest.skip("this NumPy takes no bools by DLPack")
    x = np.arange(24).reshape(2, 3, 4).astype(dtype)
    w = cw.asarray(x)
    found = np.from_dlpack(w)
    assert found.dtype == x.dtype and np.array_equal(found, x)
    assert np.shares_memory(found, w.numpy())


@pytest.mark.parametrize(
    "key", [np.s_[::-1], np.s_[:, ::2], np.s_[1], np.s_[0, 0, ...], np.s_[0:0], np.s_[...]]
)
def test_strides(key):
    x = np.arange(24.0).reshape(4, 6)
    assert np.array_equal(np.from_dlpack(Only(cw.asarray(x)[key])), x[key])
    f = np.asfortranarray(x)
    assert np.array_equal(np.from_dlpack(cw.asarray(f)[key]), f[key])


def test_0d_and_zero_size():
    assert np.from_dlpack(cw.asarray(5.0)) == 5.0
    assert np.from_dlpack(cw.zeros((3, 0, 2))).shape == (3, 0, 2)


def test_capsule_forms():
    w = cw.asarray([1.0, 2.0])
    assert w.__dlpack_device__() == (1, 0)
    assert name_of(w.__dlpack__()) == "dltensor"
    assert name_of(w.__dlpack__(max_version=(0, 8))) == "dltensor"
    for version in ((1, 0), (1, 1), (2, 0)):
        assert name_of(w.__dlpack__(max_version=version)) == "dltensor_versioned"
    capsule = w.__dlpack__(max_version=(1, 0), dl_device=(1, 0))
    it = content(capsule)
    assert (it.major, it.minor, it.flags) == (1, 0, 0)
    assert (it.tensor.ndim, it.tensor.shape[0], it.tensor.strides[0], it.tensor.bits) == (
        1,
        2,
        1,
        64,
    )
    assert (it.tensor.device_type, it.tensor.device_id, it.tensor.lanes) == (1, 0, 1)


def test_readonly_is_told_or_refused():
    cw.put("r", [1.0, 2.0])
    w = cw.get("r", readonly=True)
    assert content(w.__dlpack__(max_version=(1, 0))).flags & 1
    with pytest.raises(BufferError, match="read-only"):
        w.__dlpack__()
    copied = w.__dlpack__(max_version=(1, 0), copy=True)
    assert content(copied).flags == 2
    if NUMPY >= (2, 1):
        found = np.from_dlpack(w)
        assert found.tolist() == [1, 2] and not found.flags.writeable


def test_copy():
    w = cw.asarray([1.0, 2.0])
    if NUMPY >= (2, 1):
        found = np.from_dlpack(w, copy=True)
        found[0] = 9
        assert w.numpy()[0] == 1
        assert np.shares_memory(np.from_dlpack(w, copy=False), w.numpy())
    assert content(w.__dlpack__(max_version=(1, 0), copy=False)).flags == 0


def test_what_dlpack_cannot_tell_is_refused():
    for w in (
        cw.zeros(2, ">f8"), cw.zeros(2, "M8[s]"), cw.zeros(2, "S4"), cw.zeros(2, [("x", "i4"), ("y", "i1")])["x"],
        cw.zeros(2, "g"), cw.zeros(2, "V4"),
    ):  # fmt: skip
        with pytest.raises(BufferError):
            w.__dlpack__(max_version=(1, 0))
    w = cw.zeros(2)
    with pytest.raises(BufferError, match="device"):
        w.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="stream"):
        w.__dlpack__(stream=1)


def test_the_memory_lives_as_long_as_the_consumer():
    w = cw.asarray(np.arange(1000))
    found = np.from_dlpack(Only(w))
    w.close()
    del w
    gc.collect()
    for _ in range(50):
        cw.full(1000, -1)
    assert found.sum() == 499500


def test_capsules_that_nobody_takes_let_go():
    found = set()
    for _ in range(200):
        w = cw.zeros(100_000)
        found.add(w.numpy().__array_interface__["data"][0])
        capsules = [w.__dlpack__(max_version=version) for version in (None, (1, 0))]
        w.close()
        assert len(capsules) == 2
        del capsules
    assert len(found) <= 10


def test_a_capsule_keeps_the_memory():
    w = cw.asarray(np.arange(1000))
    address = w.numpy().__array_interface__["data"][0]
    capsule = w.__dlpack__()
    w.close()
    others = [cw.zeros(1000, "i8") for _ in range(50)]
    assert address not in {other.numpy().__array_interface__["data"][0] for other in others}
    del capsule


def test_arrays_of_others_come_in():
    class Foreign:
        def __dlpack__(self, **kwargs: Any) -> object:
            return np.arange(3.0).__dlpack__(**kwargs)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    assert cw.asarray(Foreign()).tolist() == [0, 1, 2]


def test_a_readonly_array_warns_once_when_pytorch_takes_it(monkeypatch):
    import cableway._array.dlpack

    torch = types.ModuleType("torch")
    # As PyTorch's own: a function in Python, in a module of its package.
    namespace = {"__name__": "torch.utils.dlpack"}
    exec("def from_dlpack(x): return x.__dlpack__(max_version=(1, 0))", namespace)
    torch.from_dlpack = namespace["from_dlpack"]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(cableway._array.dlpack, "_warned", False)
    cw.put("taken", [1.0, 2.0])
    w = cw.get("taken", readonly=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.from_dlpack(cw.get("taken"))
        w.__dlpack__(max_version=(1, 0))
        if NUMPY >= (2, 1):
            np.from_dlpack(w)
    with pytest.warns(UserWarning, match=r"'taken' is read-only.*SIGSEGV.*clone\(\)") as seen:
        torch.from_dlpack(w)
    assert len(seen) == 1 and seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.from_dlpack(w)
