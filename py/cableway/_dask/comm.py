"""Dask's tcp and tls, with handles to peers that share a broker with us.

A handle is sent only
  - to a process with the same run of the broker, and of our protocol: both say so in the handshake;
  - to a final receiver: a scheduler passes messages on to somewhere else, and never unpacks them;
  - where the caller left it to Dask how to serialize (`serializers=None`).
All else are bytes, as without us.

What a message names is held until the peer's answer, which is any message on the same connection, and for 30 s at most where none
comes (a connection goes back into a pool after a reply). If it is gone by the time that the peer opens it (we were killed, or later
than that), the peer sees `CommClosedError`, as if the connection had been cut: Dask asks elsewhere, or again. For 30 s the peer then
says nothing of itself in its handshakes, and so gets bytes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from distributed.comm import tcp
from distributed.comm.core import CommClosedError
from distributed.protocol.serialize import Serialize, Serialized
from distributed.utils import offload

from cableway import client
from cableway._dask import family, node, records
from cableway._dask.records import Record

__all__ = ["HOLD_SECONDS", "TCPBackend", "TLSBackend"]

HOLD_SECONDS = 30.0


class _Unanswered(list[Record]):
    """Records of messages that the peer has not answered yet."""

    timer: asyncio.TimerHandle | None = None

    def expect_answer(self) -> None:
        """A message was sent: its records go in 30 s, or by `answered`."""
        self.answered(clear=False)
        if self:
            self.timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self.clear)

    def answered(self, clear: bool = True) -> None:
        """The peer has read everything."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if clear:
            self.clear()


class _Handles(tcp.TCP):
    """What is different in a connection.

    Attributes:
        worker: the worker that answers `get_data` here; its data become views of the blocks.
    """

    worker: Any = None
    _unanswered: _Unanswered | None = None

    def handshake_info(self) -> dict[str, Any]:
        info = super().handshake_info()
        told = node.told(self.peer_address, self.deserialize)
        if told is not None:
            info["cableway"] = told
        return info

    def takes_handles(self) -> bool:
        """Whether the peer can open ours."""
        ours, theirs = self.local_info.get("cableway"), self.remote_info.get("cableway")
        if not ours or not isinstance(theirs, dict):
            return False
        found = client.known()
        return (
            theirs.get("protocol") == node.PROTOCOL
            and theirs.get("final") is True
            and found is not None
            and not found.closed
            and found.instance == ours["instance"] == theirs.get("instance")
        )

    async def read(self, deserializers: Any = None) -> Any:
        try:
            message = await super().read(deserializers)
        except family.HandleFailed as error:
            node.distrust(self.peer_address)
            self.abort()
            raise CommClosedError(f"in {self}: a handle could not be opened: {error}") from error
        if self._unanswered is not None:
            self._unanswered.answered()
        return message

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> Any:
        if serializers is not None or not self.takes_handles():
            return await super().write(msg, serializers=serializers, on_error=on_error)
        if self._unanswered is None:
            self._unanswered = _Unanswered()
        self.handshake_options["cableway"] = self._unanswered  # the family's context
        msg = await self._with_keys(msg)
        families = ("cableway", *family.INNER)
        try:
            return await super().write(msg, serializers=families, on_error=on_error)
        finally:
            self._unanswered.expect_answer()

    # ---- objects with a key

    async def _with_keys(self, msg: Any) -> Any:
        """A message whose large objects are packed, if it is one that names their keys: a reply to get_data, or a scatter."""
        if not isinstance(msg, dict) or type(msg.get("data")) is not dict:
            return msg
        serves = self.worker is not None and msg.get("status") == "OK"
        if not serves and msg.get("op") != "update_data":
            return msg
        data = msg["data"]
        large = {
            key: value.data
            for key, value in data.items()
            if type(value) is Serialize
            and (records.recall(value.data) is not None or family.is_large(value.data))
        }
        if not large:
            return msg
        found = {key: self._known(key, obj) for key, obj in large.items()}
        if None in found.values():
            found = await offload(self._packed, large, serves)
        if serves:
            self.worker.took(large, found)
        assert self._unanswered is not None
        self._unanswered.extend(record for record in found.values() if record is not None)
        packed = {
            key: Serialized(record.header(), record.frames)
            for key, record in found.items()
            if record is not None
        }
        return {**msg, "data": {**data, **packed}}

    def _known(self, key: object, obj: object) -> Record | None:
        record = records.recall(obj)
        if record is None or record.key != records.name_of(key):
            return None
        return record if record.instance == self.local_info["cableway"]["instance"] else None

    def _packed(self, large: dict[Any, object], serves: bool) -> dict[Any, Record | None]:
        """Runs in the thread in which Dask serializes, of which there is one: so no object is packed twice at once."""
        context = {
            "sender": self.local_info,
            "recipient": self.remote_info,
            **self.handshake_options,
        }
        found: dict[Any, Record | None] = {}
        for key, obj in large.items():
            record = self._known(key, obj)
            if record is None:
                try:
                    record = family.pack(obj, records.name_of(key), context)
                except Exception:  # Dask's own family says what is wrong with it
                    record = None
                if record is not None and serves:
                    records.remember(obj, record)
            found[key] = record
        return found


class TCP(_Handles):
    """tcp with handles."""


class TLS(_Handles, tcp.TLS):
    """tls with handles."""


class _TCPConnector(tcp.TCPConnector):
    comm_class = TCP


class _TLSConnector(tcp.TLSConnector):
    comm_class = TLS


class _TCPListener(tcp.TCPListener):
    comm_class = TCP


class _TLSListener(tcp.TLSListener):
    comm_class = TLS


class TCPBackend(tcp.TCPBackend):
    """Makes these."""

    _connector_class = _TCPConnector
    _listener_class = _TCPListener


class TLSBackend(tcp.TLSBackend):
    """Makes these."""

    _connector_class = _TLSConnector
    _listener_class = _TLSListener
