"""What another process wrote in the place of a tree is refused as what it is; every byte: tests/unit/ipc/test_tree.c."""

from __future__ import annotations

import numpy as np
import pytest

import cableway as cw
from cableway._core.library import ffi, lib
from cableway.client import current


def test_what_is_no_tree_is_refused_as_one() -> None:
    array = cw.put("a", np.arange(300))
    with pytest.raises(cw.Error, match="is an array, not a tree"):
        cw.get("a", version=_entry("a"))
    handle = array.handle()
    with pytest.raises(cw.Error, match="damaged"):
        cw.tree.open_handle(handle, 1, None, current().address)


def _entry(name: str) -> int:
    """The number of the put that a name means."""
    tree = cw.put("probe", {})
    cw.put(name, np.arange(300))
    return tree.version + 1


def test_metadata_that_is_no_json_is_an_error_of_the_tree() -> None:
    cell = ffi.gc(ffi.new("cw_tree **"), lib.cwpy_tree_end)
    any_version = (1 << 64) - 1
    status = lib.cw_tree_put(
        current().pointer, b"m", ffi.NULL, 0, b"{x", 2, lib.CW_REPLACE, any_version, cell
    )
    assert status == 0
    with pytest.raises(cw.Error, match="no JSON"):
        _ = cw.get("m").meta
