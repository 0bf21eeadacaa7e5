"""Which broker this process has, as two processes of Dask tell each other in their handshake.

A handle means something only to processes of one run of one broker. So the run's number decides, never a host's name: two containers
with one name, or a broker that was started again, have other numbers.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Any

import distributed
from distributed.comm.addressing import get_address_host

from cableway import client
from cableway.errors import Error

__all__ = ["BYTES_SECONDS", "PROTOCOL", "connection", "distrust", "has_data", "told"]

PROTOCOL = 1  # of headers of the family "cableway"; peers of another one get bytes
BYTES_SECONDS = 30.0  # for which a host's processes are sent no handles after one failed
_RETRY_SECONDS = 5.0  # after no broker could be reached

logger = logging.getLogger("cableway.dask")

_lock = threading.Lock()
_not_before = 0.0
_warned = ""  # why there was none when that was last said
_distrusted: dict[str, float] = {}  # by host: until when


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def connection() -> client.Connection | None:
    """The connection through which this process shares memory; None if there is no broker. Starts one if none runs.

    Blocks for some milliseconds where it connects, for 10 s at most where the broker does not answer; then not again for 5 s. Why there
    is none is a warning in the log, once for each reason.
    """
    global _not_before, _warned
    found = client.known()
    if found is not None and not found.closed and not found.lost:
        return found
    with _lock:
        if time.monotonic() < _not_before:
            return None
        client.forget_lost()
        try:
            return client.current()
        except Error as error:
            _not_before = time.monotonic() + _RETRY_SECONDS
            if str(error) != _warned:
                _warned = str(error)
                logger.warning("no memory is shared, data go as bytes: %s", error)
            return None


def has_data() -> bool:
    """Whether this process is a worker or a client. A nanny alone needs no connection to the broker."""
    return bool(distributed.Worker._instances or distributed.Client._instances)


def told(peer: str, final: bool) -> dict[str, Any] | None:
    """What this process says of itself to a peer; None: nothing, so that it gets bytes.

    Args:
        peer: its address.
        final: what arrives is unpacked here, and not passed on as a scheduler does.
    """
    if not final or time.monotonic() < _distrusted.get(get_address_host(peer), 0.0):
        return None
    if not has_data():
        return None
    found = connection()
    if found is None:
        return None
    return {
        "instance": found.instance,
        "node": socket.gethostname(),
        "protocol": PROTOCOL,
        "final": final,
    }


def distrust(peer: str) -> None:
    """A handle of this peer could not be opened: connections that begin in the next 30 s are told nothing."""
    _distrusted[get_address_host(peer)] = time.monotonic() + BYTES_SECONDS
