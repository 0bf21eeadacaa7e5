"""Publishing: leaves are laid out one behind the other, copied, and put under a name at once.

The layout follows from the leaves and their order alone: one piece of memory on each device (of PIECE_BYTES at most), each leaf at
a multiple of CW_LEAF_ALIGN bytes. So two versions of a model have the same layout, and the same `Tree.layout_hash`.
"""

from __future__ import annotations

import errno
import operator
import struct
import sys
from typing import Any, NamedTuple

import numpy as np

from cableway import array as arrays
from cableway import client, create
from cableway._array import copies
from cableway._core import layouts, leases
from cableway._core.arguments import json_bytes
from cableway._core.garbage import uncollected
from cableway._core.layouts import Layout
from cableway._core.leases import Lease
from cableway._core.library import ffi, lib
from cableway._cuda import interop, suballocation
from cableway._tree.leaves import Leaf
from cableway._tree.old_versions import check_version
from cableway.array import Array
from cableway.device import resolve

__all__ = ["ANY_VERSION", "PIECE_BYTES", "Place", "aliases_of", "publish", "sources_of"]

ANY_VERSION = (1 << 64) - 1  # CW_ANY_VERSION

_SMALL = (
    1 << 16
)  # bytes of a leaf that NumPy copies; larger ones in one piece, which is the quickest way into new memory
PIECE_BYTES = 64 << 30  # of memory that is allocated at once, unless one leaf is larger


# A `cw_leaf` (cableway.h): path, layout, array, offset_bytes, size_bytes, hash, part, alias, kind, flags, reserved.
_LEAF = struct.Struct(f"=Q{ffi.sizeof('cw_layout')}sQQQQIIII24x")
assert _LEAF.size == ffi.sizeof("cw_leaf")

_told = set[Any]()  # dtypes that can be shared


class Place(NamedTuple):
    """Where a leaf lies: an array of ours, the bytes from its lowest byte to the leaf's, and its layout."""

    lease: Lease
    low: int
    layout: Layout


class Shared:
    """What tensors of PyTorch that were met with `copy=False` tell of those that come: a model has hundreds in one piece of memory.

    Where the memory of one is ours, so is that of the next one within the same lease, and its stream has been waited for. So nothing
    but its address, shape and dtype is asked of it. Of one that is anything but plain (not contiguous, conjugate, of a subclass),
    all is asked.
    """

    __slots__ = ("_known", "_last", "_layouts", "_torch", "ordered")

    def __init__(self) -> None:
        self._torch = sys.modules.get("torch")
        self._known: dict[Any, Layout] = {}  # one of each dtype, by PyTorch's
        self._layouts: dict[tuple[Any, Any], Layout] = {}  # by shape and PyTorch's dtype
        self._last: tuple[int, int, Lease, str] | None = None
        self.ordered = set[tuple[int, int]]()  # see create._of_external

    def _is_plain(self, value: Any) -> bool:
        torch = self._torch
        return (
            torch is not None
            and type(value) in (torch.Tensor, torch.nn.Parameter)
            and value.layout is torch.strided
            and value.is_contiguous()
            and not value.is_neg()
            and not value.is_conj()
        )

    def find(self, value: Any) -> tuple[Place, str] | None:
        """Where a tensor lies, and on which device, if that follows from those before; else None."""
        if self._last is None or not self._is_plain(value):
            return None
        begin, end, lease, where = self._last
        try:
            address = value.data_ptr()
        except RuntimeError:  # a tensor of torch.func, which has no memory
            return None
        known = self._known.get(value.dtype)
        if known is None or not begin <= address < end:
            return None
        key = value.shape, value.dtype
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = known.with_shape(tuple(value.shape))
        if not layout.nbytes or address + layout.nbytes > end:
            return None
        return Place(lease, address - begin, layout), where

    def add(self, value: Any, shared: Array) -> None:
        """Of a value that was looked at whole, and the array of ours that it is."""
        lease, layout = shared._open_lease(), shared._layout_now()
        if (
            type(lease) is not Lease
            or suballocation.number_of(lease) is not None  # it keeps this tensor alone
            or not self._is_plain(value)
            or layout.shape != tuple(value.shape)
            or layout.itemsize != value.element_size()
            or not layout.is_contiguous("C")
        ):
            return
        begin, nbytes = lease.span()
        self._known[value.dtype] = layout
        self._last = begin, begin + nbytes, lease, shared.device


class Source:
    """One leaf, before it is copied."""

    __slots__ = ("layout", "leaf", "place", "values", "where")

    def __init__(
        self, leaf: Leaf, device: str | None, copy: bool | None, frozen: Any, shared: Shared
    ) -> None:
        self.place: Place | None = None
        found = shared.find(leaf.value) if copy is False else None
        if found is not None and (device is None or device == found[1]):
            place, self.where = found
            self.leaf, self.values = leaf, leaf.value
            self.place, self.layout = place, place.layout
            return
        self._look(leaf, device, copy, frozen, shared)

    def _look(
        self, leaf: Leaf, device: str | None, copy: bool | None, frozen: Any, known: Shared
    ) -> None:
        value = _numbers(leaf.value.detach()) if hasattr(leaf.value, "detach") else leaf.value
        if leases.has_masked(value):
            raise TypeError("a masked array's mask would be lost; put array.filled()")
        if isinstance(value, Array) and _is_left(value):
            value = value._exact()
        self.leaf = leaf
        self.values = value
        if copy is False and not _is_here(value, device) and 0 not in getattr(value, "shape", ()):
            value = create._shared(value, None, None, "K", False, device, known.ordered)
            known.add(leaf.value, value)
        if isinstance(value, Array):
            self.layout, self.where = value._layout_now(), value.device
            stays = device is None or device == self.where
            lease = value._open_lease()
            shared = (
                create._here(value, copy is False) if copy is False or lease in frozen else None
            )
            if shared is not None and (copy is False or (copy is None and stays)):
                lease = shared._open_lease()
                self.place = Place(lease, shared._offset - self.layout.origin, self.layout)
            elif not layouts.is_gapless(self.layout):
                self.layout = _gapless(self.layout)
        else:
            self._of_others(value)
        if device is not None:
            self.where = device
        kind = self.layout.row or self.layout.dtype
        if kind not in _told:
            _ = self.layout.text  # refuses what cannot be shared
            _told.add(kind)

    def _of_others(self, value: Any) -> None:
        told = interop.external_array(value)
        if told is not None:
            told.check_gapless()
            self.layout, self.where = told.layout, f"cuda:{told.gpu}"
            return
        self.values = create._values(value, None)
        self.layout, self.where = layouts.like(self.values, "K"), "cpu"

    def key(self, places: dict[int, tuple[int, int]]) -> tuple[Any, ...]:
        """The same for leaves that are one: the object, or the memory and how it is seen. places: of leases met so far."""
        values, place = self.leaf.value, self.place
        if place is not None and self.layout.nbytes:
            gpu, low = _place_of(place.lease, places)
            return (gpu, low + place.low + self.layout.origin, self.layout.meaning, self.where)
        if isinstance(values, Array):
            if not self.layout.nbytes:
                return (id(values),)
            gpu, low = _place_of(values._open_lease(), places)
            return (gpu, low + values._offset, self.layout.meaning, self.where)
        at: Any
        if isinstance(self.values, np.ndarray):
            at = (-1, self.values.__array_interface__["data"][0])
        else:
            told = interop.external_array(self.values)
            at = (told.gpu, told.address) if told is not None else id(values)
        if not self.layout.nbytes:
            return (id(values),)
        return (at, self.layout.shape, self._steps(), self.layout.text, self.where)

    def _steps(self) -> tuple[int, ...]:
        values = self.values
        return values.strides if isinstance(values, np.ndarray) else self.layout.strides


def _place_of(lease: Lease, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Its GPU, and the address of its lowest byte. known: of leases met so far."""
    found = known.get(id(lease))
    if found is None:
        found = known[id(lease)] = (lease.gpu, lease.address)
    return found


def _numbers(tensor: Any) -> Any:
    """A tensor of PyTorch as numbers in memory; another library's as it is.

    Raises:
        TypeError: it is sparse, nested or quantized.
        ValueError: it lies on the device "meta".
    """
    torch: Any = sys.modules.get("torch")
    kind: Any = getattr(torch, "Tensor", None)
    if kind is None or not isinstance(tensor, kind):
        return tensor
    if tensor.is_meta:
        raise ValueError('it lies on the device "meta", where there is no memory: load it first')
    if tensor.is_nested:
        raise TypeError("a nested tensor is no array: put the list that unbind() gives")
    if tensor.layout is not torch.strided:
        raise TypeError(f"a tensor of the layout {tensor.layout} is no array: put to_dense() of it")
    if tensor.is_quantized:
        raise TypeError(
            "a quantized tensor's scale would be lost: put int_repr() and the scale, or dequantize()"
        )
    return tensor.resolve_conj().resolve_neg()


def _is_left(value: Array) -> bool:
    """Whether it is host memory of a broker that is gone, which is mapped still and no call can copy."""
    lease = value._open_lease()
    return lease.gpu < 0 and lib.cw_client_check(lib.cw_array_client(lease.pointer)) < 0


def _is_here(value: Any, device: str | None) -> bool:
    """Whether it is an Array of this process's connection, on that device."""
    if not isinstance(value, Array) or (device is not None and device != value.device):
        return False
    lease = value._open_lease()
    owner = lib.cw_array_client(lease.pointer)
    return bool(owner == client.current().pointer) and not value.evictable


def _gapless(layout: Layout) -> Layout:
    shown: np.ndarray[Any, Any] = np.lib.stride_tricks.as_strided(
        np.empty(1, layout.dtype), layout.shape, layout.strides
    )
    return layouts.like(shown, "K")


def publish(
    name: bytes,
    found: list[Leaf],
    *,
    flags: int,
    if_version: int | None,
    meta: Any,
    device: str | None,
    copy: bool | None,
    frozen: Any,
    there: str | None = None,
) -> tuple[Any, dict[str, Place]]:
    """Copies and publishes leaves. frozen: leases on memory that nobody writes, which is shared as it is. there: the name is one
    of another node, and the tree is to lie on that device of it.

    Returns:
        the cell (extra.h) with the tree, and the place of each leaf that has bytes.

    Raises:
        NameTaken, NameExists, VersionChanged, LimitExceeded, ProducerDied, and what `asarray` raises of a leaf, with its path.
    """
    about = json_bytes("meta", {} if meta is None else meta)
    place = None if device is None else resolve(device)
    with uncollected():
        sources = sources_of(found, place, copy, frozen)
        aliases = aliases_of(sources)
        _part_what_overlaps(sources, aliases, copy is False)
    _copy([source for source, alias in zip(sources, aliases, strict=True) if not alias], frozen)
    cell = _put(name, sources, aliases, about, flags, if_version, there)
    places = {}
    for source, alias in zip(sources, aliases, strict=True):
        placed = sources[alias - 1].place if alias else source.place
        if placed is not None:
            places[source.leaf.path] = placed
    return cell, places


def sources_of(
    found: list[Leaf], place: str | None, copy: bool | None, frozen: Any
) -> list[Source]:
    """What is known of each leaf before it is copied."""
    sources, shared = [], Shared()
    for leaf in found:
        try:
            sources.append(Source(leaf, place, copy, frozen, shared))
        except (TypeError, ValueError, BufferError) as error:
            raise type(error)(f'"{leaf.path}": {error}') from error
    return sources


def aliases_of(sources: list[Source]) -> list[int]:
    """Of each leaf the number of the earlier one that it is, from 1; 0: none."""
    first: dict[tuple[Any, ...], int] = {}
    places: dict[int, tuple[int, int]] = {}
    found = []
    for number, source in enumerate(sources, 1):
        known = first.setdefault(source.key(places), number)
        found.append(0 if known == number else known)
    return found


def _part_what_overlaps(sources: list[Source], aliases: list[int], insist: bool) -> None:
    """Leaves that share a part of their memory, but are not the same: the later one is copied.

    Raises:
        ValueError: insist, there are such.
    """
    placed = []
    places: dict[int, tuple[int, int]] = {}
    for source, alias in zip(sources, aliases, strict=True):
        if source.place is not None and not alias and source.layout.nbytes:
            lease, low, layout = source.place
            gpu, address = _place_of(lease, places)
            placed.append((gpu, address + low, address + low + layout.span, source))
    placed.sort(key=operator.itemgetter(0, 1, 2))
    before: tuple[int, int, int, Source] | None = None
    for one in placed:
        if before is None or one[0] != before[0] or one[1] >= before[2]:
            before = one
            continue
        source = one[3]
        if insist:
            raise ValueError(
                f'"{before[3].leaf.path}" and "{source.leaf.path}" share a part of their memory, and a tree\'s leaves do not: '
                "copy one of them, or leave copy=False out"
            )
        source.place = None
        if not layouts.is_gapless(source.layout):
            source.layout = _gapless(source.layout)


def _copy(sources: list[Source], frozen: Any) -> None:
    """Lays out what has no place yet, and copies it there."""
    pieces: list[tuple[str, list[tuple[Source, int]]]] = []
    filled: dict[str, tuple[int, int]] = {}  # by device: which piece, and up to where
    for source in sources:
        if source.place is not None or not source.layout.nbytes:
            continue
        span, where = source.layout.span, source.where
        piece, end = filled.get(where, (-1, 0))
        begin = -(-end // lib.CW_LEAF_ALIGN) * lib.CW_LEAF_ALIGN
        if piece < 0 or begin + span > PIECE_BYTES:
            piece, begin = len(pieces), 0
            pieces.append((where, []))
        pieces[piece][1].append((source, begin))
        filled[where] = piece, begin + span
    for where, placed in pieces:
        last, begin = placed[-1]
        raw = Layout((begin + last.layout.span,), np.dtype(np.uint8))
        _fill(arrays.new(raw, device=where, apart=True), placed, frozen)


def _run(placed: list[tuple[Source, int]], at: int, frozen: Any) -> int:
    """How many leaves from that one on lie behind one another in a tree's part as they are to lie here: one copy brings them."""
    count = 0
    first: tuple[Lease, int] | None = None
    for number in range(at, len(placed)):  # a slice would copy the rest for each leaf
        source, begin = placed[number]
        values = source.values
        if not isinstance(values, Array) or values._open_lease() not in frozen:
            break
        layout = values._layout_now()
        if layout.strides != source.layout.strides or not layouts.is_gapless(layout):
            break
        there = values._open_lease(), values._offset - layout.origin - begin
        if first is None:
            first = there
        if there[0] is not first[0] or there[1] != first[1]:
            break
        count += 1
    return count


def _run_pair(lease: Lease, placed: list[tuple[Source, int]]) -> tuple[Array, Array]:
    """Where leaves come to and where they are, with what lies between them, less than CW_LEAF_ALIGN bytes each."""
    (first, begin), (last, last_begin) = placed[0], placed[-1]
    bytes_of = Layout((last_begin + last.layout.span - begin,), np.dtype(np.uint8))
    values = first.values
    low = values._offset - values._layout_now().origin
    for source, where in placed:
        source.place = Place(lease, where, source.layout)
    return arrays.make(lease, bytes_of, begin), arrays.make(values._open_lease(), bytes_of, low)


def _in_one_piece(target: Array, values: Any) -> bool:
    """Whether both lie on GPUs, alike and without gaps."""
    if not isinstance(values, Array) or not values._on_gpu() or not target._on_gpu():
        return False
    layout = values._layout_now()
    return target._layout_now().same(layout) and layouts.is_gapless(layout)


def _fill(whole: Array, placed: list[tuple[Source, int]], frozen: Any) -> None:
    lease = whole._open_lease()
    memory = lease.memory()
    together: list[tuple[Array, Array]] = []  # copied by one call
    at = 0
    while at < len(placed):
        count = _run(placed, at, frozen)
        if count > 1:
            pair = _run_pair(lease, placed[at : at + count])
            at += count
            if _in_one_piece(*pair):
                together.append(pair)
            else:
                copies.assign(*pair)
            continue
        source, begin = placed[at]
        at += 1
        layout, values = source.layout, source.values
        source.place = Place(lease, begin, layout)
        if source.where == "cpu" and layout.nbytes < _SMALL and type(values) is np.ndarray:
            shown: np.ndarray[Any, Any] = np.ndarray(
                layout.shape, layout.dtype, memory, begin + layout.origin, layout.strides
            )
            leases.copy_values(shown, values)
            continue
        target = arrays.make(lease, layout, begin + layout.origin)
        if _in_one_piece(target, values):
            together.append((target, values))
        else:
            copies.assign(target, values)
    if together:
        copies.copy(together)


def _put(
    name: bytes,
    sources: list[Source],
    aliases: list[int],
    about: bytes,
    flags: int,
    if_version: int | None,
    there: str | None,
) -> Any:
    paths = [source.leaf.path.encode() for source in sources]
    texts = ffi.new("char[]", b"\0".join(paths))
    leaves, kept = bytearray(_LEAF.size * len(sources)), []
    path_at, leaf_at, pointers = int(ffi.cast("uintptr_t", texts)), 0, dict[Lease, int]()
    for path, source, alias in zip(paths, sources, aliases, strict=True):
        real = sources[alias - 1] if alias else source
        place, layout, array, low = real.place, real.layout, 0, 0
        if place is not None:
            lease, low, layout = place
            array = pointers.get(lease, 0)
            if not array:
                array = pointers[lease] = int(ffi.cast("uintptr_t", lease.pointer))
        kind, marks = source.leaf.kind, source.leaf.flags
        _LEAF.pack_into(
            leaves, leaf_at, path_at, layout.c_bytes, array, low, 0, 0, 0, alias, kind, marks
        )
        kept.append(layout)
        path_at += len(path) + 1
        leaf_at += _LEAF.size
    given = ffi.cast("cw_leaf *", ffi.from_buffer(leaves))
    cell = ffi.gc(ffi.new("cw_tree **"), lib.cwpy_tree_end)
    wanted = ANY_VERSION if if_version is None else if_version
    connection = client.current()
    pointer = connection.pointer
    status = -errno.EINTR
    while status == -errno.EINTR:  # nothing was done: the signal is served, and it begins anew
        if there is None:
            status = lib.cw_tree_put(
                pointer, name, given, len(sources), about, len(about), flags, wanted, cell
            )
        else:
            status = lib.cw_tree_put_at(
                pointer, name, there.encode(), given, len(sources), about, len(about), flags, wanted, cell,
            )  # fmt: skip
            break  # a signal does not say whether it was done there: as for arrays, the caller is told
    check_version(status, if_version)
    del kept, texts
    return cell
