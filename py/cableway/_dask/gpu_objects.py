"""The serialization family "cableway-gpu": objects with arrays in GPU memory, whose large frames are handles on copies there.

Dask's own family for GPUs ("cuda", which it uses over UCX) makes a header and frames of an object: frames in GPU memory become GPU
blocks (`gpus`), large ones in host memory become blocks as always. It is used for arrays of CuPy, its sparse matrices and Numba, also in
lists, tuples and dicts; for readers that see the GPU and have imported a library for it. All else goes as Dask sends it over tcp.

Promise: what a reader gets is its own, as in stock Dask: a copy, on its current GPU. A worker sends an object as it is at the first time;
the copy is kept for further readers (`KEEP_SECONDS` after the last, `cableway.gpu-keep` bytes a process), and later sendings are copies
of the object as it is then.

With `cableway.gpu-share` there is one copy on a GPU, and all workers use it: the sender's data become a view of the block (a plain array of
CuPy; it is the block itself where it lies in the broker's memory), and readers whose current GPU has it get views. A task that writes to
its argument then writes to everybody's; the user says that none does. Only workers get views, since they look every 2 s for those that
are gone. A record is then kept as long as its object.

Owner: the table of what was sent belongs to the process. An entry goes with its object, or by `trim`. Weak references' callbacks change
it, which may run at any place: so it has no lock, and each change is one operation on a dict.
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from collections.abc import Collection
from typing import Any, cast

import distributed
import msgpack
from distributed.protocol.cuda import cuda_dumps, cuda_loads
from distributed.protocol.serialize import (
    deserialize,
    msgpack_decode_default,
    msgpack_encode_default,
    register_serialization_family,
    serialize,
)
from distributed.protocol.utils import msgpack_opts
from distributed.utils import nbytes

from cableway._dask import blocks, family, gpus, node, settings
from cableway.errors import BrokerLost, Error, LimitExceeded

__all__ = [
    "KEEP_SECONDS",
    "GpuRecord",
    "Later",
    "known",
    "lies_on_gpu",
    "not_taken",
    "pack",
    "register",
    "trim",
    "view_of",
]

KEEP_SECONDS = 10.0  # for which what was sent is kept for further readers
_PARTS_MAX = 1000  # of a collection that are looked at
_DEPTH_MAX = 4


class GpuRecord:
    """An object as a message.

    Attributes:
        frames: the small ones; the first is the packed header of the family that wrote them.
        host: the large ones in host memory, each with its place among the frames and whether it was writeable.
        gpu: those in GPU memory, each with its place; None: it has no bytes.
        instance: of the broker that the handles are of.
        own: the blocks on GPUs are the object's own memory, and no copies of it.
    """

    __slots__ = ("__weakref__", "frames", "gpu", "host", "instance", "own")

    def __init__(
        self,
        frames: list[bytes],
        host: list[tuple[int, blocks.Block, bool]],
        gpu: list[tuple[int, gpus.GpuBlock | None]],
        instance: int,
        own: bool = False,
    ) -> None:
        self.frames = frames
        self.host = host
        self.gpu = gpu
        self.instance = instance
        self.own = own

    @property
    def uuids(self) -> set[str]:
        """Of the GPUs where it lies."""
        return {block.uuid for _, block in self.gpu if block is not None}

    @property
    def gpu_bytes(self) -> int:
        """GPU memory that it takes."""
        return sum(block.nbytes for _, block in self.gpu if block is not None)

    def header(self) -> dict[str, Any]:
        """A new header for a message; `_loads` reads it."""
        return {
            "serializer": "cableway-gpu",
            "instance": self.instance,
            "host": [
                (place, block.handle, block.nbytes, writeable)
                for place, block, writeable in self.host
            ],
            "gpu": [
                (
                    place,
                    b"" if block is None else block.handle,
                    0 if block is None else block.nbytes,
                )
                for place, block in self.gpu
            ],
        }


# ---- objects to messages


def lies_on_gpu(obj: object, depth: int = _DEPTH_MAX) -> bool:
    """Whether it is an array that goes by handle, or a collection in which one is found. Quick in processes that use no GPU."""
    if gpus.library() is None:
        return False
    kind = type(obj)
    if kind in (list, tuple, set, dict):
        parts: Any = obj.values() if kind is dict else obj  # type: ignore[attr-defined]
        return depth > 0 and any(
            lies_on_gpu(part, depth - 1) for part in itertools.islice(parts, _PARTS_MAX)
        )
    return kind.__module__.partition(".")[0] in gpus.LIBRARIES


def _dumps(obj: object) -> tuple[dict[str, Any], list[Any]]:
    """Dask's family "cuda", for the libraries of which it is known that it does."""
    if type(obj).__module__.partition(".")[0] not in gpus.LIBRARIES:
        raise NotImplementedError
    header, frames = cuda_dumps(obj)
    return header, frames


def pack(
    obj: object, key: str, context: dict[str, Any] | None, reader: Collection[str]
) -> GpuRecord | None:
    """Copies the object's large frames into blocks. None: it has none on a GPU that the reader sees, or there is no memory for them.
    Waits for the GPU.

    Args:
        key: its name (`records.name_of`).
        reader: the UUIDs of the GPUs that the reader sees.

    Raises:
        Exception: what the object's own family raises.
    """
    connection = node.established()
    if connection is None:
        return None
    families = ("cableway-cuda", *family.INNER)
    header, frames = serialize(obj, families, "raise", context, iterate_collection=True)
    on_gpu = [hasattr(frame, "__cuda_array_interface__") for frame in frames]
    least = settings.threshold_bytes()
    if any(header.get("compression") or ()) or (
        sum(nbytes(frame) for frame, there in zip(frames, on_gpu, strict=True) if there) < least
    ):
        return None
    try:
        try:
            record = _packed(connection, header, frames, on_gpu)
        except LimitExceeded:
            trim(everything=True)
            gpus.collect()
            record = _packed(connection, header, frames, on_gpu)
    except Error:
        return None  # full memory, no broker, or a GPU that cannot be shared: as Dask sends it
    if not record.uuids <= set(reader):
        return None
    _remember(obj, key, record)
    return record


def _packed(connection: Any, header: Any, frames: list[Any], on_gpu: list[bool]) -> GpuRecord:
    small = [msgpack.dumps(header, default=msgpack_encode_default, use_bin_type=True)]
    host: list[tuple[int, blocks.Block, bool]] = []
    gpu: list[tuple[int, gpus.GpuBlock | None]] = []
    least, one = settings.threshold_bytes(), settings.shares()
    own = one
    for place, frame in enumerate(frames):
        if on_gpu[place] and not nbytes(frame):
            gpu.append((place, None))
        elif on_gpu[place]:
            found = gpus.lent(frame) if one else None
            own = own and found is not None
            gpu.append((place, found or gpus.copied(connection, frame, readers=0 if one else 1)))
        elif nbytes(frame) < least:
            small.append(bytes(frame))
        else:
            writeable = not memoryview(frame).readonly
            host.append((place, blocks.copied(connection, frame), writeable))
    return GpuRecord(small, host, gpu, connection.instance, own and not host)


def view_of(obj: object, key: str, record: GpuRecord) -> Any | None:
    """The object that was sent, on its record's block, where the workers of a GPU use one copy: then the sender's own may go. None: it
    stays as it is.
    """
    cupy: Any = sys.modules.get("cupy")
    entry, old = _sent.get((id(obj), key)), cast("Any", obj)
    if record.own or not settings.shares() or cupy is None or type(old) is not cupy.ndarray:
        return None
    if entry is None or entry.record() is not record or len(record.gpu) != 1:
        return None
    (_, block), flags = record.gpu[0], old.flags
    if block is None or not (flags["C_CONTIGUOUS"] or flags["F_CONTIGUOUS"]):
        return None
    with cupy.cuda.Device(block.lease.gpu):
        memory = gpus.view(block.lease, block.nbytes)
        found = cupy.ndarray(old.shape, old.dtype, memory.data, old.strides)
    record.own = True
    del _sent[id(obj), key]
    _remember(found, key, record)
    return found


# ---- what was sent is kept for a while


class _Sent:
    """A record of an object: kept, or only there as long as a message with it is under way."""

    __slots__ = ("kept", "obj", "record", "used")

    def __init__(self, obj: weakref.ref[Any], record: GpuRecord) -> None:
        self.obj = obj
        self.record = weakref.ref(record)
        self.kept: GpuRecord | None = record
        self.used = time.monotonic()


_sent: dict[tuple[int, str], _Sent] = {}  # by an object's id and its key


def _remember(obj: object, key: str, record: GpuRecord) -> None:
    place = id(obj), key

    def forget(gone: weakref.ref[Any]) -> None:
        entry = _sent.get(place)
        if entry is not None and entry.obj is gone:
            _sent.pop(place, None)

    try:
        reference = weakref.ref(obj, forget)
    except TypeError:
        return  # a list, or the like: nobody tells when it goes, so it is copied each time
    _sent[place] = _Sent(reference, record)
    trim()


def known(obj: object, key: str, reader: Collection[str]) -> GpuRecord | None:
    """What was sent of the object under this key, if it is still there and the reader can open it."""
    entry, found = _sent.get((id(obj), key)), node.established()
    if entry is None or entry.obj() is not obj or found is None:
        return None
    record = entry.record()
    if record is None or record.instance != found.instance or not record.uuids <= set(reader):
        return None
    entry.used = time.monotonic()
    return record


def trim(everything: bool = False) -> None:
    """Lets go of what nobody asked for in the last seconds, and of the oldest above the limit; or of everything."""
    left, now = 0 if everything else settings.keep_bytes(), time.monotonic()
    for place, entry in sorted(_sent.copy().items(), key=lambda pair: -pair[1].used):
        record = entry.record()
        if record is None:
            _sent.pop(place, None)
            continue
        if entry.kept is not None and not record.own:
            left -= record.gpu_bytes
            if left < 0 or now > entry.used + KEEP_SECONDS:
                entry.kept = None


def not_taken(sent: Collection[object]) -> None:
    """The reader of these records did not answer: it may have had no GPU memory for its copies. So they are not kept."""
    for entry in _sent.copy().values():
        if (
            entry.kept is not None
            and not entry.kept.own
            and any(entry.kept is record for record in sent)
        ):
            entry.kept = None


# ---- messages to objects


class Later:
    """Stands for an object of a message: a thread opens it, since it waits for the GPU, where it is not quick."""

    def __init__(self, header: dict[str, Any], small: list[bytes]) -> None:
        self._header = header
        self._small = small

    def open(self) -> Any:
        """The object, in this process's own memory. Waits for the GPU.

        Raises:
            HandleFailed: a block cannot be opened, or copied, or the library has no GPU memory left.
        """
        connection, header = node.established(), self._header
        if connection is None or connection.instance != header["instance"]:
            raise family.OtherBroker("the broker that holds the blocks of a message is gone")
        try:
            try:
                found = self._frames(connection)
            except MemoryError:
                trim(everything=True)
                gpus.collect()
                found = self._frames(connection)
        except MemoryError as error:
            raise family.HandleFailed(f"no GPU memory is left: {error}") from error
        except BrokerLost as error:
            raise family.OtherBroker(str(error)) from error
        except Error as error:
            raise family.HandleFailed(str(error)) from error
        frames: list[Any] = list(self._small[1:])
        for place, frame in sorted(found.items()):
            frames.insert(place, frame)
        inner = msgpack.loads(
            self._small[0], object_hook=msgpack_decode_default, use_list=False, **msgpack_opts
        )
        return deserialize(inner, frames)

    def is_quick(self) -> bool:
        """Whether it is made of views alone, of memory that this process has mapped: then `open` waits for nothing."""
        return not self._header["host"] and all(
            not size or (_takes_views() and gpus.maps(handle))
            for _, handle, size in self._header["gpu"]
        )

    def _frames(self, connection: Any) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for place, handle, size, writeable in self._header["host"]:
            block = blocks.opened(connection, handle, size)
            found[place] = block.view(connection, writeable).data
        for place, handle, size in self._header["gpu"]:
            found[place] = _of_block(connection, handle, size) if size else gpus.empty(0)
        return found


def _takes_views() -> bool:
    return settings.shares() and bool(distributed.Worker._instances)


def _of_block(connection: Any, handle: bytes, size: int) -> Any:
    if _takes_views():
        found = gpus.viewed(connection, handle, size)
        if found is not None:
            return found
    return gpus.received(connection, handle, size)


def _loads(header: dict[str, Any], frames: list[Any]) -> Any:
    found = Later(header, [bytes(frame) for frame in frames])
    return found.open() if found.is_quick() else found


def _never(obj: object) -> Any:
    raise NotImplementedError  # `replies` packs what has a key


def register() -> None:
    """Registers the families."""
    register_serialization_family("cableway-cuda", _dumps, cuda_loads)
    register_serialization_family("cableway-gpu", _never, _loads)
