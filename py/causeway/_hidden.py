"""Arrays that this process cannot reach: on GPUs that its CUDA_VISIBLE_DEVICES hides, or, in a forked child, on any.

The program causeway-mover copies them, which the broker starts when it is first needed (about a second).
"""

from __future__ import annotations

from causeway import client
from causeway._lib import check_again, ffi, lib
from causeway.array import Array, make
from causeway.views import Lease

__all__ = ["fetch"]


def fetch(encoded: bytes, device: str) -> Array:
    """A copy on a device of the array under a name.

    Raises:
        DeviceError: the mover does not reach that GPU either, or the copy failed there.
    """
    out = ffi.new("cw_array **")
    check_again(lib.cw_get_copy, client.current().pointer, encoded, device.encode(), out)
    return make(Lease(out[0]), None)
