"""`load`: the weights of a model as a tree under a name, read once by all who ask for it."""

from __future__ import annotations

import errno
import math
import os
from typing import Any, overload

from cableway import client, tree
from cableway._core.arguments import flag, json_bytes, name_bytes
from cableway._core.deadlines import deadline, slice_ns
from cableway._core.library import failure, ffi, lib
from cableway._load.checkpoint import file_failure, path_of, place_of
from cableway._tree.swapping import new_cell
from cableway.errors import Timeout
from cableway.tree import Tree

__all__ = ["load"]


@overload
def load(
    name: str,
    path: str | os.PathLike[str],
    device: list[Any] | tuple[Any, ...],
    *,
    keep: bool = False,
    replace: bool = False,
    timeout: float | None = None,
    meta: dict[str, Any] | None = None,
) -> list[Tree]: ...
@overload
def load(
    name: str,
    path: str | os.PathLike[str],
    device: Any = None,
    *,
    keep: bool = False,
    replace: bool = False,
    timeout: float | None = None,
    meta: dict[str, Any] | None = None,
) -> Tree: ...
def load(
    name: str,
    path: str | os.PathLike[str],
    device: Any = None,
    *,
    keep: bool = False,
    replace: bool = False,
    timeout: float | None = None,
    meta: dict[str, Any] | None = None,
) -> Any:
    """The weights in .safetensors files as a tree under a name: read from the files, or the one that is there already.

    Of many processes that call this at once, with the same name and the same files, one reads them, straight into memory that all
    share; the others wait for it and get the same tree. If that process dies or fails, another one takes over. Afterwards it does
    not matter who loaded: the tree stays as long as its name, or as long as anybody has it open.

    Which files a tree came from is in its `meta["source"]`: path, inode, size, time of the last change, and a hash of the header
    of each. Only a tree of the same files is returned. Each leaf has a hash of what was read (`Tree.verify`, `content_hash`).

    Args:
        name: of the tree.
        path: of a .safetensors file; of a folder with such files; or of the index (`model.safetensors.index.json`) of one, which a
            folder that has one means, too.
        device: "cpu", "cuda:N", the number of a GPU, or a device of PyTorch; None: wherever the tree is already, else "cpu". A list of
            GPUs: the same weights on each of them, as trees of their own, named "NAME/cuda:0" and so on. Each byte of the files is
            read once: every GPU gets a share of it over its own bus, and the rest from the other GPUs.
        keep: whether the name outlives the user's last process. A name that is loaded already, and is not kept, is kept from then
            on: it gets a next version, of the same memory. False leaves a kept name of the same files as it is.
        replace: whether a tree of other files under this name is replaced, by a new version.
        timeout: seconds for all of it, also to read the files; None: for ever; 0: only a tree that is there already.
        meta: a dict that JSON can hold; `Tree.meta` of a tree that is read now has its keys, beside "source" and "metadata". A tree
            that is there already keeps its own.

    Returns:
        Tree: see `cableway.get`. Of a list of devices a list of trees, in its order.

    Raises:
        NameTaken: the name means something else: other files (both are named), or the same on another device.
        OSError: a file is missing or cannot be read.
        Error: a file is damaged, was cut off, or was written to while it was read.
        LimitExceeded: there is no memory for it.
        Timeout: it takes longer. What was read is given up.
        DeviceError: there is no such device for this process; the text says why.
        TypeError: name is no str, path none, keep or replace neither True nor False, or meta no dict of what JSON can hold.
        ValueError: a bad name, path or name of a device; a list of no GPUs, or with one twice; meta has "source" or "metadata"; a
            timeout below 0.

    If a signal's handler raises, as Ctrl-C does, the load ends, publishes nothing and gives back what it had begun; another process
    that waits takes over.
    """
    flags = lib.CW_LOAD_STEPS | (lib.CW_KEEP if flag("keep", keep) else 0)
    flags |= lib.CW_REPLACE if flag("replace", replace) else 0
    encoded = name_bytes(name)
    several = isinstance(device, (list, tuple))
    places = [place_of(one) for one in device] if several else []
    place = ffi.NULL if several or device is None else place_of(device).encode()
    added = b"" if meta is None else _object(meta)
    end = math.inf if timeout is None else deadline(timeout)
    if timeout is not None and timeout < 0:
        raise ValueError(f"timeout is 0 or more seconds, or None, not {timeout}")
    began: Any = ffi.gc(ffi.new("cw_load **"), lib.cwpy_load_end)
    pointer = client.current().pointer
    try:
        if several:
            texts = [ffi.new("char[]", one.encode()) for one in places]
            listed = ffi.new("char const *[]", texts)
            begin = lib.cw_load_begin_all
            status = begin(pointer, encoded, path_of(path), listed, len(texts), flags, began)
        else:
            status = lib.cw_load_begin(pointer, encoded, path_of(path), place, flags, began)
        if status == 0 and added:
            status = lib.cw_load_meta(began[0], added, len(added))
        if status < 0:
            raise file_failure(status)
        found = _wait(began, name, max(len(places), 1), end, timeout)
    finally:
        lib.cwpy_load_end(began)
    if not several:
        return tree.make(found[0], name)
    return [tree.make(one, f"{name}/{at}") for one, at in zip(found, places, strict=True)]


def _object(meta: dict[str, Any]) -> bytes:
    """Metadata as the library takes them."""
    if not isinstance(meta, dict):
        raise TypeError(f"meta is a dict, not {type(meta).__name__}")
    return json_bytes("meta", meta)


def _wait(began: Any, name: str, count: int, end: float, timeout: float | None) -> list[Any]:
    """The cells of so many trees, once all are there."""
    found = [new_cell() for _ in range(count)]
    got = ffi.gc(ffi.new("cw_tree *[]", count + 1), lib.cwpy_trees_end)
    while True:  # signals are served between the calls
        left, last = slice_ns(end)
        status = lib.cw_load_wait(began[0], left, got, ffi.NULL)
        if timeout == 0 and status in (-errno.EINTR, -errno.ETIMEDOUT):
            # EINTR: the step that comes next would allocate memory, for there is no tree (CW_LOAD_STEPS).
            told = failure(status) if status == -errno.ETIMEDOUT else f'"{name}" is not loaded yet'
            raise Timeout(
                f"{told}; timeout=0 takes only a tree that is there already: give it the seconds to be loaded"
            )
        if status == -errno.ETIMEDOUT and last:
            raise Timeout(f"{failure(status)} (timeout: {timeout} s)")
        if status not in (-errno.EINTR, -errno.ETIMEDOUT):
            break
    if status < 0:
        raise file_failure(status)
    for cell in reversed(found):
        lib.cwpy_trees_take_last(got, cell)
    return found
