"""`.safetensors` files with the interface of the `safetensors` package, read by cableway's threads into memory that is shared.

For example::

    from cableway.safetensors import load_file, safe_open

    weights = load_file("model.safetensors", device="cuda:0")        # a dict of tensors of PyTorch
    with safe_open("model.safetensors", framework="np") as file:
        for name in file.keys():
            part = file.get_slice(name)[:10]

What it returns lies in memory of cableway's, so that it goes to other processes without a copy; what safe_open reads of up to 64 KiB does
not. A path may also be that of a folder, or of
an index. To load a model once for several processes, use `cableway.load`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from cableway import array as arrays
from cableway._array import dlpack
from cableway._core import words
from cableway._core.layouts import Layout
from cableway._core.leases import usable
from cableway._cuda import interop
from cableway._load.checkpoint import Checkpoint, Read, Tensor, place_of
from cableway.array import Array
from cableway.errors import Error

__all__ = ["SafetensorError", "load_file", "safe_open"]

_TORCH = {"pt", "torch", "pytorch"}
_NUMPY = {"np", "numpy"}
_SMALL = 64 << 10  # bytes that safe_open reads into memory of this process alone


try:
    from safetensors import SafetensorError as _Theirs
except ImportError:

    class _Theirs(Exception):  # type: ignore[no-redef]
        """Nobody's: the package is not here."""


class SafetensorError(Error, _Theirs):
    """A file is damaged, or has no such tensor. Where the package `safetensors` is installed it is one of its errors, too."""


class _BeyondError(SafetensorError, IndexError):
    """A part of a tensor that is not there."""


class _StepError(SafetensorError, ValueError):
    """A step that cannot be."""


@contextlib.contextmanager
def _as_theirs() -> Iterator[None]:
    """What is wrong with a file is a SafetensorError."""
    try:
        yield
    except Error as error:
        if type(error) is Error:
            raise SafetensorError(str(error)) from None
        raise


def _open(path: str | os.PathLike[str]) -> Checkpoint:
    with _as_theirs():
        return Checkpoint(path)


def _framework(framework: str, device: str) -> bool:
    """Whether it is PyTorch.

    Raises:
        ValueError: it is neither PyTorch nor NumPy, or NumPy on a GPU.
    """
    if framework not in _TORCH | _NUMPY:
        raise ValueError(f'framework is "pt" or "np", not {framework!r}')
    if framework in _NUMPY and device != "cpu":
        raise ValueError(f"NumPy has no arrays on {device}; use framework='pt'")
    return framework in _TORCH


def _shown(array: Array, torch: bool) -> Any:
    """The array as a tensor of PyTorch, or as an ndarray; it may be written to."""
    if not torch:
        return array.numpy()
    from torch.utils.dlpack import from_dlpack

    lease, layout = array._open_lease(), array._layout_now()
    kind = words.raw(layout.dtype) if words.is_packed(layout.dtype) else layout.dtype
    told = dlpack.form(kind, layout.shape, layout.strides)
    usable(lease)
    address = lease.address + array._offset
    tensor = from_dlpack(dlpack.on(lease, address, dlpack.device_of(lease), told))
    return interop.packed(tensor, layout.dtype)


def load_file(
    filename: str | os.PathLike[str], device: Any = "cpu", *, framework: str = "pt"
) -> dict[str, Any]:
    """All tensors of a file, as `safetensors.torch.load_file` (or `safetensors.numpy.load_file`) has them.

    Args:
        filename: a .safetensors file, a folder of such, or an index.
        device: "cpu", "cuda:N", the number of a GPU, or a device of PyTorch.
        framework: "pt" for tensors of PyTorch, "np" for ndarrays.

    Returns:
        dict[str, Any]: by name, in the order in which they lie in the files.

    Raises:
        SafetensorError: a file is damaged, was cut off, or was written to while it was read.
        OSError: a file is missing or cannot be read.
        LimitExceeded: there is no memory for it.
    """
    place = place_of(device)
    torch = _framework(framework, place)
    checkpoint = _open(filename)
    try:
        with _as_theirs():
            found = checkpoint.load(place)
    finally:
        checkpoint.close()
    return {name: _shown(array, torch) for name, array in found.items()}


class safe_open:
    """A file whose tensors are read one by one, as `safetensors.safe_open` has it.

    Args:
        filename: a .safetensors file, a folder of such, or an index.
        framework: "pt" for tensors of PyTorch, "np" for ndarrays.
        device: as in `load_file`.
        backend: "mmap" or "pread", as the package has it; cableway reads in its own way with each.

    Raises:
        SafetensorError: a file is damaged.
        OSError: a file is missing or cannot be read.
        ValueError: another backend or framework.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: str,
        device: Any = "cpu",
        *,
        backend: str = "mmap",
    ) -> None:
        if backend not in ("mmap", "pread"):
            raise ValueError(f'backend is "mmap" or "pread", not {backend!r}')
        self._device = place_of(device)
        self._torch = _framework(framework, self._device)
        self._checkpoint = _open(filename)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._checkpoint.close()

    def keys(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._checkpoint.tensors)

    def offset_keys(self) -> list[str]:
        """All names, in the order in which the tensors lie in the files."""
        return list(self._checkpoint.tensors)

    def metadata(self) -> dict[str, str] | None:
        """The file's metadata; None if it has none."""
        with _as_theirs():
            return self._checkpoint.metadata() or None

    def get_tensor(self, name: str) -> Any:
        """One tensor.

        Raises:
            SafetensorError: there is no such tensor.
        """
        tensor = self._tensor(name)
        return self._read(tensor, tensor.layout, 0)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the order of `offset_keys`, read at once as by `load_file`.

        Raises:
            SafetensorError: the file was cut off or written to meanwhile, or is closed.
            LimitExceeded: there is no memory for it.
        """
        self._check_open()
        with _as_theirs():
            found = self._checkpoint.load(self._device)
        return {name: _shown(array, self._torch) for name, array in found.items()}

    def get_slice(self, name: str) -> Slice:
        """A tensor of which parts are read, by its `[...]`."""
        return Slice(self, self._tensor(name))

    def _check_open(self) -> None:
        if self._checkpoint.closed:
            raise SafetensorError("this file is closed")

    def _tensor(self, name: str) -> Tensor:
        self._check_open()
        found = self._checkpoint.tensors.get(name)
        if found is None:
            raise SafetensorError(f"File does not contain tensor {name}")
        return found

    def _read(self, tensor: Tensor, layout: Layout, skip: int) -> Any:
        """What has that layout, behind so many bytes of the tensor."""
        self._check_open()
        if layout.nbytes <= _SMALL and self._device == "cpu":
            return self._read_small(tensor, layout, skip)
        array = arrays.new(layout, device=self._device)
        if layout.nbytes:
            with _as_theirs():
                self._checkpoint.read([Read(tensor, array._open_lease(), 0, skip, layout.nbytes)])
        return _shown(array, self._torch)

    def _read_small(self, tensor: Tensor, layout: Layout, skip: int) -> Any:
        """The same in memory of this process alone: to share it would take longer than to read it."""
        made: Any
        if self._torch:
            import torch

            row = words.row(layout.dtype)
            assert row is not None  # else no file would have it
            made = torch.empty(layout.shape, dtype=getattr(torch, row.torch))
            address = made.data_ptr()
        else:
            made = np.empty(layout.shape, words.raw(layout.dtype))
            address = made.ctypes.data
        with _as_theirs():
            self._checkpoint.read_small(tensor, skip, address, layout.nbytes)
        return made


class Slice:
    """A tensor of an open file: `slice[2:4, :, 0]` reads the rows that it needs. `safe_open.get_slice` makes it."""

    def __init__(self, file: safe_open, tensor: Tensor) -> None:
        self._file = file
        self._of = tensor

    def get_shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self._of.layout.shape)

    def get_dtype(self) -> str:
        """The tensor's dtype, as the format calls it."""
        row = words.row(self._of.layout.dtype)
        assert row is not None  # else no file would have it
        return row.safetensors

    def __getitem__(self, index: Any) -> Any:
        """The part, as a tensor or an ndarray.

        Raises:
            SafetensorError: it is beyond the tensor (also an IndexError), or has a step below 1 (also a ValueError).
        """
        try:
            return self._part(index)
        except SafetensorError:
            raise
        except IndexError as error:
            raise _BeyondError(str(error)) from None
        except ValueError as error:
            raise _StepError(str(error)) from None

    def _part(self, index: Any) -> Any:
        shape = self._of.layout.shape
        wanted = index if isinstance(index, tuple) else (index,)
        if not shape or not wanted or not isinstance(wanted[0], (int, slice, np.integer)):
            return self._file._read(self._of, self._of.layout, 0)[index]
        if isinstance(wanted[0], slice):
            rows = range(*wanted[0].indices(shape[0]))
            if rows.step < 1:
                raise _StepError("a slice of a file has a step above 0")
            first, count = (rows[0], rows[-1] - rows[0] + 1) if rows else (0, 0)
            at: Any = slice(None, None, rows.step)
        else:
            first, count, at = range(shape[0])[int(wanted[0])], 1, 0
        layout = Layout((count, *shape[1:]), self._of.layout.dtype)
        row = self._of.nbytes // shape[0] if shape[0] else 0
        part = (at, *wanted[1:])
        return self._file._read(self._of, layout, first * row)[part]
