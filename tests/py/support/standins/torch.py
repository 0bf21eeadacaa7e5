"""A stand-in for PyTorch in programs on the test double: tensors on cuda:0 and on the host that can be passed on."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
from gpu_standins import DriverMemory, look, read, write

from cableway import _dlpack

strided = "strided"


class dtype:
    """`torch.dtype`."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __str__(self) -> str:
        return f"torch.{self.name}"


# By name: as what NumPy sees the bytes, and DLPack's code, bits and lanes. Of int4 PyTorch tells bytes, and takes nothing.
_KINDS = {
    "float32": ("f4", 2, 32, 1), "int16": ("i2", 0, 16, 1), "int32": ("i4", 0, 32, 1), "uint8": ("u1", 1, 8, 1),
    "bfloat16": ("i2", 4, 16, 1), "float8_e4m3fn": ("u1", 10, 8, 1), "float8_e4m3fnuz": ("u1", 11, 8, 1),
    "float8_e5m2": ("u1", 12, 8, 1), "float8_e5m2fnuz": ("u1", 13, 8, 1), "float8_e8m0fnu": ("u1", 14, 8, 1),
    "float4_e2m1fn_x2": ("u1", 17, 4, 2), "int4": ("u1", 0, 8, 1), "uint4": ("u1", 1, 8, 1), "complex32": ("i4", 5, 32, 1),
}  # fmt: skip
_DTYPES = {name: dtype(name, int(kind[1])) for name, (kind, *_) in _KINDS.items()}
globals().update(_DTYPES)
float32, uint8 = _DTYPES["float32"], _DTYPES["uint8"]
_NUMPY = {name: kind for name, (kind, *_) in _KINDS.items()}
_OF_DLPACK = {tuple(told): _DTYPES[name] for name, (_, *told) in reversed(_KINDS.items())}
_WITH_TYPESTR = ("float32", "int16", "int32", "uint8")


class Tensor:
    """`torch.Tensor`: elements in C order unless it is a part."""

    layout = strided

    def __init__(
        self, owner: Any, address: int, shape: tuple[int, ...], kind: dtype, steps: Any = None
    ) -> None:
        self.owner, self.address, self.shape, self.dtype = owner, address, shape, kind
        self.requires_grad = False
        self.device = types.SimpleNamespace(
            type="cuda" if address else "cpu", index=0 if address else None
        )
        whole = np.empty(shape, f"V{kind.itemsize}").strides
        self.steps = steps or tuple(step // kind.itemsize for step in whole)

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.address or int(self.owner.__array_interface__["data"][0])

    def get_device(self) -> int:
        """The GPU's number."""
        return int(self.device.index)

    def stride(self) -> tuple[int, ...]:
        """Steps in elements."""
        return self.steps

    def element_size(self) -> int:
        """Bytes of one."""
        return self.dtype.itemsize

    def numel(self) -> int:
        """How many elements."""
        return int(np.prod(self.shape))

    def is_conj(self) -> bool:
        """Never."""
        return False

    is_neg = is_conj

    def detach(self) -> Tensor:
        """The same memory."""
        return Tensor(self.owner, self.address, self.shape, self.dtype, self.steps)

    def requires_grad_(self) -> Tensor:
        """Says so."""
        self.requires_grad = True
        return self

    def view(self, kind: dtype) -> Tensor:
        """The same bytes."""
        old, new = self.dtype.itemsize, kind.itemsize
        owner = self.owner if self.address else self.owner.view(_NUMPY[kind.name])
        if old == new:
            return Tensor(owner, self.address, self.shape, kind, self.steps)
        assert self.steps == (1,)
        return Tensor(owner, self.address, (self.shape[0] * old // new,), kind)

    def contiguous(self) -> Tensor:
        """A copy in C order."""
        return tensor(self.cpu(), self.dtype)

    def __getitem__(self, key: slice) -> Tensor:
        begin, end, step = key.indices(self.shape[0])
        return Tensor(
            self.owner,
            self.address + begin * self.steps[0] * self.dtype.itemsize,
            (len(range(begin, end, step)), *self.shape[1:]),
            self.dtype,
            (self.steps[0] * step, *self.steps[1:]),
        )

    def cpu(self) -> np.ndarray:
        """Its values."""
        if not self.address:
            return self.owner
        span = sum((n - 1) * step for n, step in zip(self.shape, self.steps, strict=True)) + 1
        raw = read(self.address, (span,), _NUMPY[self.dtype.name])
        return np.lib.stride_tricks.as_strided(
            raw, self.shape, [s * self.dtype.itemsize for s in self.steps]
        ).copy()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.name == "bfloat16":
            return {
                "version": 2,
                "shape": self.shape,
                "typestr": "<V2",
                "data": (self.address, False),
                "strides": None,
            }
        if self.dtype.name not in _WITH_TYPESTR:
            raise KeyError(self.dtype)
        strides = tuple(step * self.dtype.itemsize for step in self.steps)
        typestr = np.dtype(_NUMPY[self.dtype.name]).str
        return {
            "version": 2,
            "shape": self.shape,
            "typestr": typestr,
            "data": (self.address, False),
            "strides": strides,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0) if self.address else (1, 0)

    def __dlpack__(self, stream: int | None = None, **_: Any) -> object:
        assert stream in (None, -1) or self.address
        told = _KINDS[self.dtype.name][1:]
        return _dlpack.capsule(
            self, self.data_ptr(), self.__dlpack_device__(), self.shape, self.steps, *told, 0, False
        )


def tensor(values: Any, kind: dtype = float32, device: str = "cuda") -> Tensor:
    """A new tensor."""
    values = np.array(values, _NUMPY[kind.name], order="C")
    if device == "cpu":
        return Tensor(values, 0, values.shape, kind)
    memory = DriverMemory(values.nbytes)
    write(memory.ptr, values)
    return Tensor(memory, memory.ptr, values.shape, kind)


def from_dlpack(array: Any) -> Tensor:
    """A tensor on memory of ours: of an array, or of a capsule. The capsule goes with the tensor."""
    capsule = array
    if type(array).__name__ != "PyCapsule":
        on_gpu = array.__dlpack_device__()[0] == 2
        options = {"stream": _current[0] or 1} if on_gpu else {}
        capsule = array.__dlpack__(max_version=(1, 0), **options)
    seen = look(capsule)
    kind = _OF_DLPACK.get(seen.dtype)
    if kind is None:
        raise RuntimeError(f"unsupported dtype of DLPack: {seen.dtype}")
    if seen.device[0] == 2:
        return Tensor(capsule, seen.address, seen.shape, kind, seen.strides)
    lies = {
        "version": 3,
        "shape": seen.shape,
        "typestr": np.dtype(_NUMPY[kind.name]).str,
        "data": (seen.address, False),
    }
    owner = types.SimpleNamespace(__array_interface__=lies, capsule=capsule)
    return Tensor(np.asarray(owner), 0, seen.shape, kind)


_current = [0]  # the current stream


def set_stream(number: int) -> None:
    """Makes a stream the current one."""
    _current[0] = number


cuda = types.SimpleNamespace(
    current_stream=lambda device: types.SimpleNamespace(cuda_stream=_current[0]),
    is_available=lambda: False,
)
_C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda gpu: _current[0])
