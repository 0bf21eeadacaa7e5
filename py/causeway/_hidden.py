"""Arrays on GPUs that this process's CUDA_VISIBLE_DEVICES hides: copied by a process that sees just that GPU.

It is this interpreter, started for the one copy (about a second, and 500 MiB of that GPU's memory meanwhile).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

from causeway import client
from causeway._lib import check, ffi, lib
from causeway.array import Array
from causeway.errors import DeviceError

__all__ = ["fetch"]

_PROGRAM = """
import pickle, sys
import causeway as cw
address, namespace, name = sys.argv[1:]
cw.connect(address, namespace=namespace)
sys.stdout.buffer.write(pickle.dumps(cw.get(name).to("cpu")))
"""


def fetch(name: str, encoded: bytes) -> Array:
    """A copy on the host of the array under a name, whose GPU this process does not see.

    Raises:
        DeviceError: nobody sees that GPU here, or the copy failed there.
    """
    connection = client.current()
    info = ffi.new("cw_name_info *")
    check(lib.cw_name_stat(connection.pointer, encoded, info))
    uuid = ffi.string(info.device_uuid).decode()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, connection.address, connection.namespace, name],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid},
        capture_output=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise DeviceError(
            f"the array {name!r} lies on {uuid}, which this process does not see, and the process that was to copy "
            f"it failed: {last}"
        )
    found: Array = pickle.loads(done.stdout)
    return found
