"""A model's files: open, checked, and read into memory of ours by threads of the library."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from cableway import array as arrays
from cableway._core import dtypes
from cableway._core.deadlines import slice_ns
from cableway._core.layouts import Layout
from cableway._core.leases import Lease, usable
from cableway._core.library import failure, ffi, lib
from cableway.array import Array
from cableway.device import resolve
from cableway.errors import Error

__all__ = ["Checkpoint", "Read", "Tensor", "file_failure", "path_of", "place_of"]

_PIECE_BYTES = 64 << 30  # of memory that is allocated at once, unless one tensor is larger
_OF_FILES = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO,
}  # fmt: skip


def path_of(path: str | os.PathLike[str]) -> bytes:
    """A path as the library takes it.

    Raises:
        TypeError: it is none.
        ValueError: it is empty, or has a zero byte in it.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"path must be a str or os.PathLike, not {type(path).__name__}")
    encoded = os.fsencode(path)
    if not encoded or b"\0" in encoded:
        raise ValueError(
            f"a path is a str or os.PathLike that is not empty and has no zero byte, not {path!r}"
        )
    return encoded


def place_of(device: Any) -> str:
    """The full name of a device, which may be one of PyTorch or the number of a GPU.

    Raises:
        ValueError: no name of a device.
        DeviceError: there is no such device for this process; the text says why.
    """
    return resolve(f"cuda:{device}" if isinstance(device, int) else str(device))


def file_failure(status: int) -> Exception:
    """failure() of a call that opens or reads files: what the system says of one is an OSError."""
    if -status in _OF_FILES:
        return OSError(-status, ffi.string(lib.cw_error()).decode("utf-8", "replace"))
    return failure(status)


class Tensor(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
        number: of the tensor.
        layout: how its bytes are seen, in C order.
        nbytes: of its data.
    """

    number: int
    layout: Layout
    nbytes: int


class Read(NamedTuple):
    """What is read of a tensor.

    Attributes:
        tensor: of which.
        lease: on the memory into which; None: it is hashed, and goes nowhere.
        offset: there.
        skip: bytes of the tensor that are left out.
        nbytes: behind these.
    """

    tensor: Tensor
    lease: Lease | None
    offset: int
    skip: int
    nbytes: int


class Checkpoint:
    """Files that are open until it goes.

    Another thread may close it in the midst of a call: who uses the cell takes it before, and the last one ends it.

    Args:
        path: of a .safetensors file, a folder of such, or their index.

    Raises:
        OSError: what the system says.
        Error: a file is damaged, cut off, or none; or index and files disagree.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        cell = self._cell = ffi.gc(ffi.new("cw_checkpoint **"), lib.cwpy_checkpoint_end)
        status = lib.cw_checkpoint_open(path_of(path), cell)
        if status < 0:
            raise file_failure(status)
        self.tensors: dict[str, Tensor] = {}
        told = ffi.new("cw_tensor *")
        known: dict[Any, Layout] = {}
        for number in range(lib.cw_checkpoint_count(cell[0])):
            lib.cw_checkpoint_tensor(cell[0], number, told)
            layout = told.layout
            shape = tuple(ffi.unpack(layout.shape, layout.ndim)) if layout.ndim else ()
            key = shape, layout.dtype
            seen = known.get(key)
            if seen is None:
                dtype = dtypes.decode(ffi.string(layout.dtype).decode())
                seen = known[key] = Layout(shape, dtype)
            name = ffi.string(told.name).decode()
            self.tensors[name] = Tensor(number, seen, int(told.size_bytes))

    def close(self) -> None:
        """Closes the files, once no call uses them. May be repeated."""
        self._cell = None

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._cell is None

    def _open_cell(self) -> Any:
        """To be dropped after its use, also where that raises: an exception's traceback would keep the files open."""
        cell = self._cell
        if cell is None:
            raise Error("this file is closed")
        return cell

    def metadata(self) -> dict[str, str]:
        """The `__metadata__` of the first file."""
        key, value = ffi.new("char const **"), ffi.new("char const **")
        found: dict[str, str] = {}
        files = self._open_cell()
        while lib.cw_checkpoint_note(files[0], len(found), key, value) == 0:
            found[ffi.string(key[0]).decode()] = ffi.string(value[0]).decode()
        return found

    def read(self, wanted: Sequence[Read]) -> list[int]:
        """Reads tensors, and waits for it. Returns the hash of each.

        Raises:
            OSError: what the system says.
            Error: a file was written to, or cut off; or it is closed.
        """
        # First, so that it goes before what it uses.
        cell = ffi.gc(ffi.new("cw_reading **"), lib.cwpy_reading_end)
        reads = ffi.new("cw_read[]", max(len(wanted), 1))
        for one, read in zip(reads, wanted, strict=False):
            one.tensor = read.tensor.number
            one.array = ffi.NULL if read.lease is None else usable(read.lease)
            one.offset_bytes, one.skip_bytes, one.size_bytes = read.offset, read.skip, read.nbytes
        files = self._open_cell()
        try:
            status = lib.cw_reading_begin(files[0], reads, len(wanted), cell)
            slice_, _ = slice_ns(math.inf)  # signals are served between the calls
            while status == 0:
                status = lib.cw_reading_wait(cell[0], slice_)
                if status == 0:
                    break
                if status in (-errno.EINTR, -errno.ETIMEDOUT):
                    status = 0
            if status < 0:
                raise file_failure(status)
        finally:
            lib.cwpy_reading_end(cell)  # before the arrays and the files may go
            del files
        return [int(reads[number].hash) for number in range(len(wanted))]

    def read_small(self, tensor: Tensor, skip: int, address: int, nbytes: int) -> None:
        """Reads bytes of a tensor into any memory, without a hash and a thread.

        Raises:
            OSError: what the system says.
            Error: a file was written to, or cut off.
        """
        place = ffi.cast("void *", address)
        files = self._open_cell()
        try:
            status = lib.cw_checkpoint_read(files[0], tensor.number, skip, place, nbytes)
        finally:
            del files
        if status < 0:
            raise file_failure(status)

    def load(self, device: str) -> dict[str, Array]:
        """All tensors, in memory of ours on a device, which nobody else knows of yet."""
        wanted: list[Read] = []
        pieces: list[list[tuple[str, Tensor, int]]] = []
        end = 0
        for name, tensor in self.tensors.items():
            begin = -(-end // lib.CW_LEAF_ALIGN) * lib.CW_LEAF_ALIGN
            if not pieces or (begin and begin + tensor.nbytes > _PIECE_BYTES):
                pieces.append([])
                begin = 0
            pieces[-1].append((name, tensor, begin))
            end = begin + tensor.nbytes
        found: dict[str, Array] = {}
        for piece in pieces:
            _, last, begin = piece[-1]
            raw = Layout((max(begin + last.nbytes, 1),), dtypes.decode("|u1"))
            lease = arrays.new(raw, device=device)._open_lease()
            for name, tensor, begin in piece:
                wanted.append(Read(tensor, lease, begin, 0, tensor.nbytes))
                found[name] = arrays.make(lease, tensor.layout, begin)
        self.read(wanted)
        return found
