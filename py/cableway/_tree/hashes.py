"""Whether the leaves of a tree are what was published."""

from __future__ import annotations

from typing import Any

from cableway._core.leases import usable
from cableway._core.library import check_again, ffi, lib
from cableway._tree.table import Row
from cableway.errors import Error

__all__ = ["compare"]


def compare(tree: Any, table: list[Row]) -> int:
    """Reads all leaves of a table that have a hash. Returns how many these are.

    Raises:
        Error: one differs.
    """
    looked = 0
    hashed = ffi.new("uint64_t *")
    for row in table:
        if not row.flags & lib.CW_LEAF_HASHED:
            continue
        if row.nbytes:  # else it is what it was
            lease = tree._part(row.part)  # keeps the memory, also if another thread closes the tree
            check_again(lib.cw_array_hash, usable(lease), row.offset, row.nbytes, hashed)
        if row.nbytes and hashed[0] != row.hash:
            raise Error(
                f'"{row.path}" of version {tree.version} is not what was published: somebody wrote there; '
                "publish it again, and write to copies"
            )
        looked += 1
    return looked
