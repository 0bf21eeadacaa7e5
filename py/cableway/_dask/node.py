"""Which broker this process has, as two processes of Dask tell each other.

A handle means something only to processes of one run of one broker. So the run's number decides, never a host's name: two containers
with one name, or a broker that was started again, have other numbers. Each side tells its number in the handshake, and again with its
next message once it is another one (`comm`).

A broker that is lost is sought by a thread of its own, one a process at a time, every 5 s as long as something is to be sent; what is
sent meanwhile are bytes. Why there is none is said once, as a warning of the logger "cableway.dask".
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
from cableway._dask import gpus, names
from cableway.errors import Error

__all__ = [
    "BYTES_SECONDS",
    "PROTOCOL",
    "changing",
    "connection",
    "distrust",
    "established",
    "has_data",
    "told",
]

logger = logging.getLogger("cableway.dask")

PROTOCOL = (
    4  # of what is told, and of headers of the family "cableway"; peers of another one get bytes
)
BYTES_SECONDS = 30.0  # for which a host's processes are sent no handles after one failed
_RETRY_SECONDS = 5.0  # after no broker could be reached

generation = 0  # another one: a broker was found, or a host is distrusted, and `changing` says something else
_lock = threading.Lock()
_not_before = 0.0
_had = False  # whether there was ever a connection
_seeking = threading.Lock()  # held while a thread seeks the broker
_said = ""  # why there is no broker, as it was said last
_distrusted: dict[str, float] = {}  # by host: until when


def _after_fork_in_child() -> None:
    global _lock, _seeking
    _lock, _seeking = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def connection() -> client.Connection | None:
    """The connection through which this process shares memory; None if there is no broker. Starts one if none runs.

    Blocks for some milliseconds where it connects, for 10 s at most where the broker does not answer; then not again for 5 s.
    """
    global _not_before, _had, _said, generation
    found = _usable()
    if found is not None:
        return found
    with _lock:
        if time.monotonic() < _not_before:
            return None
        client.forget_lost()
        try:
            found = client.current()
        except (Error, ValueError) as error:
            _not_before = time.monotonic() + _RETRY_SECONDS
            if _said != str(error):
                _said = str(error)
                logger.warning("arrays are not shared, but sent as bytes: %s", error)
            return None
        _had, _said, generation = True, "", generation + 1
        return found


def _usable() -> client.Connection | None:
    found = client.known()
    return None if found is None or found.closed or found.lost else found


def established() -> client.Connection | None:
    """The connection, if there is one now. Never blocks: where there was one, or none could be had, a thread sees to it."""
    found = _usable()
    if found is None and time.monotonic() >= _not_before and _seeking.acquire(blocking=False):
        threading.Thread(target=_seek, name="cableway.dask broker", daemon=True).start()
    return found


def _seek() -> None:
    try:
        connection()
    finally:
        _seeking.release()


def has_data() -> bool:
    """Whether this process is a worker or a client. A nanny alone needs no connection to the broker."""
    return bool(distributed.Worker._instances or distributed.Client._instances)


def told(peer: str, final: bool) -> dict[str, Any] | None:
    """What this process says of itself to a peer in the handshake; None: nothing, since it passes on what arrives.

    Blocks as `connection` does, until the process has had a connection once.

    Args:
        peer: its address.
        final: what arrives is unpacked here, and not passed on as a scheduler does.
    """
    if not final:
        return None
    if not _had and has_data():
        found = connection()
        if found is not None:
            names.prepare(found)
    return {
        "node": socket.gethostname(),
        "protocol": PROTOCOL,
        "final": final,
        "reached": False,
        **changing(peer, established() if has_data() else None),
    }


def changing(peer: str, found: client.Connection | None) -> dict[str, Any]:
    """That part of it which changes; `reached` does, too. Never blocks. It is asked often, so it must be quick.

    - `instance`: the run of the broker whose handles the peer may send us; None: it is to send bytes.
    - `bridge`: how other nodes fetch from this process (`names.Own`); None: they do not.
    - `gpus`: the UUIDs of those whose memory this process can open.

    Args:
        found: what `established` gave; None where this process has no data (`has_data`).
    """
    if not has_data():
        return {"instance": None, "bridge": None, "gpus": []}
    own = None if found is None else names.own(found)
    trusted = not _distrusted or time.monotonic() >= _distrusted.get(get_address_host(peer), 0.0)
    return {
        "instance": found.instance if found is not None and trusted else None,
        "bridge": None if own is None else [*own],
        "gpus": gpus.seen(),
    }


def distrust(peer: str) -> None:
    """A handle of this peer could not be opened: its host's processes are to send bytes for 30 s."""
    global generation
    generation += 1
    _distrusted[get_address_host(peer)] = time.monotonic() + BYTES_SECONDS
