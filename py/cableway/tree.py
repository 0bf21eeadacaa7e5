"""`Tree`: many arrays under one name, published at once and whole, in versions.

>>> import numpy as np, cableway as cw
>>> t = cw.put("model", {"layer.weight": np.ones((2, 3), "f4"), "layer.bias": np.zeros(3, "f4")}, meta={"step": 1})
>>> sorted(t), t.meta
(['layer.bias', 'layer.weight'], {'step': 1})
>>> t = cw.get("model")                      # in any other process: one lease, no copy
>>> t["layer.weight"].numpy().sum()
np.float32(6.0)
>>> t.newer() is None
True
>>> cw.remove("model")
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any
from weakref import WeakSet

from cableway import array as arrays
from cableway import client, create
from cableway._array import pickles
from cableway._core import dtypes
from cableway._core.arguments import count
from cableway._core.deadlines import Retries, left_ns
from cableway._core.garbage import uncollected
from cableway._core.layouts import Layout
from cableway._core.leases import Lease, lease_again, lease_of_handle
from cableway._core.library import check, check_again, failure, failure_within, ffi, lib
from cableway._tree import modules
from cableway._tree.hashes import compare
from cableway._tree.leaves import flatten, is_tree
from cableway._tree.old_versions import await_room, check_timeout, check_version
from cableway._tree.publish import ANY_VERSION, publish
from cableway._tree.swapping import (
    Described,
    checked,
    described,
    mounted,
    new_cell,
    new_turn,
    until_later,
    wait_after,
)
from cableway._tree.table import KINDS, Row, rows
from cableway._tree.tensors import tensors_of
from cableway._tree.updating import Updating
from cableway.array import Array
from cableway.errors import Error, NameNotFound, NotATree, Stale

__all__ = ["Tree", "check_timeout", "is_tree", "wait_after"]

_parts: WeakSet[Lease] = WeakSet()  # on memory that nobody writes any more


class Tree(Updating, Mapping[str, Array]):
    """One version of a tree: a mapping from paths to read-only `Array`s. `put` and `get` make it.

    It holds one lease, and by that all of its memory, for as long as it is there; so does each array that was taken out of it.
    A version never changes (but see `update`). To see a later one, get it (`newer`, `cw.get(name)`), or exchange this one for it (`swap`), if it was
    got with `swappable=True`.
    """

    __slots__ = ("_leases", "_writes")

    _leases: dict[int, Lease]  # on the parts that are mapped
    _name: str | None
    _table: tuple[Described, list[Row]] | None  # all leaves, once they were looked at

    def __init__(self) -> None:
        raise TypeError("a Tree is made by cableway.put and get")

    # ---- what it is

    @property
    def name(self) -> str | None:
        """The name under which it was put or found."""
        return self._name

    @property
    def version(self) -> int:
        """Its number: higher than that of each earlier version of any name."""
        return int(self._told().version)

    @property
    def nbytes(self) -> int:
        """Bytes of all leaves; what is tied counts once."""
        return int(self._told().total_bytes)

    @property
    def layout_hash(self) -> int:
        """A number of all but the values. It is the same for trees whose leaves, in the same order, have the same paths, dtypes
        (with their byte order), shapes, strides, kinds and ties, and lie in the same places of memory of the same size on the same
        devices: two dicts with the same keys in another order differ.
        """
        return int(self._told().layout_hash)

    @property
    def content_hash(self) -> int:
        """A number of the bytes of the leaves, in their order; 0 if one has no hash: by default those on GPUs. See `verify`.

        It knows nothing of paths, dtypes and shapes: trees are the same if `layout_hash` is the same, too. Equal numbers with other
        bytes (-0.0 and 0.0, another byte order, a transposed array) differ.
        """
        return int(self._told().content_hash)

    @property
    def meta(self) -> Any:
        """What was put with it as `meta=`; a new object each time.

        Raises:
            Error: another process wrote something that is no JSON.
        """
        now = self._now()  # keeps what its info points to
        told = ffi.buffer(now.info.meta, now.info.meta_bytes)[:]
        try:
            return json.loads(told or b"{}")
        except (ValueError, RecursionError) as error:
            raise Error(f"the metadata of this tree is no JSON: {error}") from None

    @property
    def device(self) -> str:
        """Where its leaves lie: "cpu", "cuda:N", or "" if on several devices, or if it has none."""
        found = {self._part(number).gpu for number in range(self._told().parts)}
        if len(found) != 1:
            return ""
        gpu = found.pop()
        return "cpu" if gpu < 0 else f"cuda:{gpu}"

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def __repr__(self) -> str:
        if self._closed:
            return f"<cableway.Tree name={self._name!r} closed>"
        return (
            f"<cableway.Tree name={self._name!r} version={self.version} leaves={len(self)} "
            f"nbytes={self.nbytes} parts={self._told().parts}>"
        )

    # ---- its leaves

    def __len__(self) -> int:
        return int(self._told().leaves)

    def _number(self, path: object) -> int:
        pointer = self._pointer()
        if not isinstance(path, str) or "\0" in path:
            return -1
        number = ffi.new("uint32_t *")
        status = lib.cw_tree_find(pointer, path.encode("utf-8", "surrogatepass"), number)
        return int(number[0]) if status == 0 else -1

    def _leaf(self, path: object) -> tuple[Any, Any]:
        """The leaf at a path, and the pointer that keeps what it points to.

        Raises:
            KeyError: there is none.
        """
        number = self._number(path)
        if number < 0:
            raise KeyError(f"the tree has no leaf {path!r}: list(tree) gives the paths")
        return self._leaf_at(number)

    def _leaf_at(self, number: int) -> tuple[Any, Any]:
        pointer, leaf = self._pointer(), ffi.new("cw_leaf *")
        check(lib.cw_tree_leaf(pointer, number, leaf))
        return leaf, pointer

    def _rows(self) -> list[Row]:
        table, now = self._table, self._now()
        if table is None or table[0] is not now:
            self._table = table = now, rows(now.info)
            if self._closed:  # meanwhile: this would keep its memory
                self._table = None
        return table[1]

    def __iter__(self) -> Iterator[str]:
        return iter([row.path for row in self._rows()])

    def __contains__(self, path: object) -> bool:
        return self._number(path) >= 0

    def __getitem__(self, path: str) -> Array:
        """The array at a path, read-only and without a copy."""
        leaf, _keeps = self._leaf(path)
        return self._array(leaf)

    def _layout(self, leaf: Any) -> Layout:
        told = leaf.layout
        shape = tuple(ffi.unpack(told.shape, told.ndim)) if told.ndim else ()
        strides = tuple(ffi.unpack(told.strides, told.ndim)) if told.strides else None
        return Layout(shape, dtypes.decode(ffi.string(told.dtype).decode()), strides)

    def _array(self, leaf: Any) -> Array:
        layout = self._layout(leaf)
        if not leaf.size_bytes:
            return _without_bytes(layout)
        return arrays.make(self._part(leaf.part), layout, leaf.offset_bytes + layout.origin)

    def _part(self, number: int) -> Lease:
        """The lease on all of a part, which is mapped when it is first looked at."""
        leases, mount = self._leases, self._mount  # close() leaves another dict
        pointer = self._pointer()
        lease = leases.get(number)
        if lease is None:
            if mount is not None:
                lease = self._fixed_part(mount, number)
            else:
                connection = client.current()
                lease = lease_again(Lease, lib.cw_tree_part, pointer, connection.pointer, number)
            if mount is not None or lib.cw_array_sealed(lease.pointer):
                _parts.add(lease)
            leases[number] = lease
        return lease

    def kind(self, path: str) -> str:
        """What the leaf was: "parameter", "buffer", "attribute", or "plain" if it came from no module."""
        leaf, _keeps = self._leaf(path)
        return KINDS[leaf.kind]

    def ties(self) -> dict[str, str]:
        """For each tied leaf the earlier leaf with the same memory."""
        table = self._rows()
        return {row.path: table[row.alias - 1].path for row in table if row.alias}

    # ---- what is done with it

    def verify(self) -> int:
        """Reads all leaves that have a hash and compares. Returns how many these are.

        Raises:
            Error: a leaf is not what was published; the message names it.
        """
        while True:
            now = self._now()
            try:
                return compare(self, self._rows())
            except Error:
                self._settle()
                if self._described is now:
                    raise  # else another thread has swapped meanwhile, and these are the next version's bytes

    def torch(self) -> dict[str, Any]:
        """All leaves as tensors of PyTorch, without a copy; what is tied is one tensor.

        They are read-only, of which PyTorch knows nothing: a write ends the process by SIGSEGV in host memory, and
        spoils its CUDA context (error 700) on a GPU. `clone()` what you want to write.
        """
        with uncollected():
            return dict(zip(*tensors_of(self), strict=True))

    def into(self, module: Any, *, strict: bool = True) -> Any:
        """Gives a module of PyTorch this tree's memory in place of its own; it may have been made on the device "meta".

        Parameters are shared, read-only and without a copy, and what is tied becomes one parameter. Buffers and tensors that are
        plain attributes are copied, so that the module may write them. All fits, or nothing is changed.

        Args:
            module: has `named_parameters` and `named_buffers`.
            strict: whether the tree must have each parameter and buffer of the module, and nothing else. What no `state_dict`
                has (buffers with `persistent=False`, tensors that are plain attributes) may lack where the module has it in
                memory: it stays as it is. On the device "meta" it has no values, and may not lack.

        Returns:
            the module.

        Raises:
            TypeError: module is none.
            KeyError: strict, and the tree or the module lacks paths that the other has.
            ValueError: a shape or a dtype differs.
        """
        with uncollected():
            found = list(zip(self._rows(), tensors_of(self)[1], strict=True))
        modules.fill(module, {row.path: (tensor, row.kind) for row, tensor in found}, strict)
        return module

    def newer(self, timeout: float | None = 0) -> Tree | None:
        """The version that the name means now, if it is a later one; else None.

        Args:
            timeout: seconds to wait for one; 0: do not wait, None: for ever.
        """
        if self._later(timeout) is None:
            return None

        def got() -> tuple[int, Tree]:
            found = get(str(self._name))
            return found.version, found

        return until_later(got, self.version)

    # ---- its life

    def close(self) -> None:
        """Ends this handle. Arrays that were taken out of it stay valid. May be repeated."""
        self._closed = True
        self._leases = {}
        self._mount = self._next = self._table = self._writes = None
        self._described = Described(None, self._described.info, (0, 0))

    def __enter__(self) -> Tree:
        self._pointer()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        handle = ffi.new("cw_handle *")
        pointer = self._pointer()
        check_again(lib.cw_tree_export, pointer, pickles.UNKNOWN, handle)
        raw = bytes(ffi.buffer(handle))
        pickles.begun(raw)
        return open_handle, (raw, self.version, self._name, client.current().address)


def _without_bytes(layout: Layout) -> Array:
    """A leaf of size 0: memory of its own, opened read-only, as all leaves are."""
    made = create.empty(layout.shape, layout.dtype)
    pointer, handle = made._open_lease().pointer, ffi.new("cw_handle *")
    check_again(lib.cw_array_export, pointer, 0, handle)
    raw = bytes(ffi.buffer(handle))
    lease = lease_of_handle(client.current(), raw, layout, lib.CW_READONLY)
    return arrays.make(lease, layout, layout.origin)


def make(cell: Any, name: str | None, *, swappable: bool = False) -> Tree:
    """The Tree of a cell (extra.h) that has one."""
    made = Tree.__new__(Tree)
    made._closed = False
    made._pid, made._run = os.getpid(), client.current().instance
    made._name = name
    made._leases = {}
    made._next = made._table = made._writes = None
    made._turn = new_turn()
    made._described = described(cell)
    made._mount = mounted(cell[0]) if swappable else None
    if swappable:  # all parts now: a forked child cannot take them from its parent's mount
        for number in range(made._described.info.parts):
            made._part(number)
    return made


def open_handle(handle: bytes, version: int, name: str | None, address: str) -> Tree:
    """Opens a handle that another process made; what unpickling calls.

    Raises:
        Stale: the tree is gone.
        Error: the handle, or the tree's index, is malformed.
    """
    if len(handle) != ffi.sizeof("cw_handle"):
        raise ValueError(f"a handle has {ffi.sizeof('cw_handle')} bytes, not {len(handle)}")
    carried = ffi.from_buffer("cw_handle *", handle)
    connection = client.for_instance(carried.instance, address)
    if connection.instance != carried.instance:
        raise Stale("the tree behind this handle went with the broker that held it; put it again")
    cell = new_cell()
    check_again(lib.cw_tree_open, connection.pointer, carried, version, cell)
    return make(cell, name)


def get(
    name: str,
    version: int | None = None,
    devices: tuple[str, ...] = (),
    end: float | None = None,
    timeout: float | None = None,
    *,
    swappable: bool = False,
) -> Tree:
    """The tree under a name; see `cableway.get`. devices: of another node's; end: the moment by which it must be here, and until
    which it is asked for again (None: once, however long that takes); timeout: what errors call the time until then."""
    wanted = 0 if version is None else checked(version)
    texts = [ffi.new("char[]", device.encode()) for device in devices]
    places, encoded, cell = ffi.new("char *[]", texts), name.encode(), new_cell()
    retries = None if end is None else Retries(end)
    while True:
        pointer, left = client.current().pointer, -1 if end is None else left_ns(end)
        status = lib.cw_tree_get_at(pointer, encoded, wanted, places, len(texts), left, cell)
        if status == -errno.ENOTDIR:
            raise NotATree(str(failure(status)))
        if status != -errno.EINTR and (retries is None or not retries.tries_again(status)):
            if status < 0:
                raise failure_within(status, timeout)
            return make(cell, name, swappable=swappable)


def put(
    name: str,
    value: Any,
    *,
    flags: int,
    if_version: int | None = None,
    meta: Any = None,
    device: str | None = None,
    copy: bool | None = None,
    max_old: int | None = None,
    timeout: float | None = 0,
) -> Tree:
    """Publishes a tree; see `cableway.put`."""
    if if_version is not None:
        if_version = checked(if_version, "if_version", 0)
    sealed = not flags & lib.CW_TREE_UNSEALED
    there = name[:2] == "//" and not check(
        lib.cw_name_is_here(client.current().pointer, name.encode())
    )
    if there and not (sealed and max_old is None):
        raise ValueError(
            "seal=False and max_old= are for trees of this node: leave them out, or put the tree on its own node"
        )
    if max_old is not None:
        await_room(name, count("max_old", max_old), timeout)
    place = None
    if there:  # its device is one of that node; here leaves stay where they are
        place, device = "cuda:0" if device == "cuda" else device or "cpu", None
    elif (
        isinstance(value, Tree) and meta is None and device is None and copy is not True and sealed
    ):
        return _name_again(name, value, flags, if_version)
    cell, places = publish(
        name.encode(),
        flatten(value),
        flags=flags,
        if_version=if_version,
        meta=meta,
        device=device,
        copy=copy,
        frozen=() if flags & lib.CW_TREE_UNSEALED else _parts,
        there=place,
    )
    made = make(cell, name)
    if flags & lib.CW_TREE_UNSEALED:
        made._writes = places
    return made


def _name_again(name: str, tree: Tree, flags: int, if_version: int | None) -> Tree:
    """Another name for the same memory."""
    wanted = ANY_VERSION if if_version is None else if_version
    version = ffi.new("uint64_t *")
    pointer, connection = tree._pointer(), client.current()
    flags &= lib.CW_REPLACE | lib.CW_KEEP | lib.CW_TIED | lib.CW_REMOTE_READ
    status = lib.cw_tree_name(pointer, connection.pointer, name.encode(), flags, wanted, version)
    check_version(status, if_version)
    try:
        return get(name, int(version[0]))
    except NameNotFound:  # somebody has put the next one meanwhile; this one was put all the same
        handle, cell = ffi.new("cw_handle *"), new_cell()
        check_again(lib.cw_tree_export, pointer, 0, handle)
        check_again(lib.cw_tree_open, connection.pointer, handle, int(version[0]), cell)
        return make(cell, name)
