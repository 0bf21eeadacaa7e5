"""`load`: the weights of a model as a tree under a name, read once by all who ask for it."""

from __future__ import annotations

import errno
import math
import os
from typing import Any

import numpy as np

from cableway import client, tree
from cableway._core.deadlines import deadline, left_ns
from cableway._core.library import failure, ffi, lib
from cableway._load.checkpoint import file_failure, path_of, place_of
from cableway._tree.swapping import new_cell
from cableway.errors import Timeout
from cableway.name import _encode
from cableway.tree import Tree

__all__ = ["load"]


def _flag(name: str, value: object) -> bool:
    """An argument that is yes or no: "no" would count as yes."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def load(
    name: str,
    path: str | os.PathLike[str],
    device: Any = None,
    *,
    keep: bool = False,
    replace: bool = False,
    timeout: float | None = None,
) -> Tree:
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
        device: "cpu", "cuda:N", the number of a GPU, or a device of PyTorch; None: wherever the tree is already, else "cpu".
        keep: whether the name outlives the user's last process. A name that is loaded already, and is not kept, is kept from then
            on: it gets a next version, of the same memory. False leaves a kept name of the same files as it is.
        replace: whether a tree of other files under this name is replaced, by a new version.
        timeout: seconds; None: for ever.

    Returns:
        Tree: see `cableway.get`.

    Raises:
        NameTaken: the name means something else: other files (both are named), or the same on another device.
        OSError: a file is missing or cannot be read.
        Error: a file is damaged, was cut off, or was written to while it was read.
        LimitExceeded: there is no memory for it.
        Timeout: it takes longer. What was read is given up.
        DeviceError: there is no such device for this process; the text says why.
        TypeError: name is no str, path none, or keep or replace neither True nor False.
        ValueError: a bad name, path or name of a device.
    """
    flags = lib.CW_KEEP if _flag("keep", keep) else 0
    flags |= lib.CW_REPLACE if _flag("replace", replace) else 0
    encoded = _encode(name)
    place = ffi.NULL if device is None else place_of(device).encode()
    end = math.inf if timeout is None else deadline(timeout)
    began: Any = ffi.gc(ffi.new("cw_load **"), lib.cwpy_load_end)
    found = new_cell()
    pointer = client.current().pointer
    try:
        status = lib.cw_load_begin(pointer, encoded, path_of(path), place, flags, began)
        while status == 0:
            status = lib.cw_load_wait(began[0], left_ns(end), found, ffi.NULL)
            if status != -errno.EINTR:
                break
            status = 0  # the signal was served; it goes on
        if status == -errno.ETIMEDOUT:
            raise Timeout(f"{failure(status)} (timeout: {timeout} s)")
        if status < 0:
            raise file_failure(status)
    finally:
        lib.cwpy_load_end(began)
    return tree.make(found, name)
