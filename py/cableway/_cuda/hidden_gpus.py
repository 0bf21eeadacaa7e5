"""Arrays that this process cannot reach: on GPUs that its CUDA_VISIBLE_DEVICES hides, or, in a forked child, on any.

The program cableway-mover copies them, which the broker starts when it is first needed (about a second).
"""

from __future__ import annotations

from cableway import client
from cableway._core.leases import Lease, lease_again
from cableway._core.library import lib
from cableway.array import Array, make

__all__ = ["fetch"]


def fetch(encoded: bytes, device: str) -> Array:
    """A copy on a device of the array under a name.

    Raises:
        DeviceError: the mover does not reach that GPU either, or the copy failed there.
    """
    pointer = client.current().pointer
    return make(lease_again(Lease, lib.cw_get_copy, pointer, encoded, device.encode()), None)
