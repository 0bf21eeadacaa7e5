"""Dask's tcp and tls, with handles to peers that share a broker with us.

A handle is sent only
  - to a process with the same run of the broker, and of our protocol: both say so in the handshake;
  - to a final receiver: a scheduler passes messages on to somewhere else, and never unpacks them;
  - where the caller left it to Dask how to serialize (`serializers=None`).
All else are bytes. What a worker sends of its data, by handle or as bytes, is what it sent under that key the first time (`replies`).

Between nodes that have bridges, a worker's reply names blocks (`names`), if the reader has said that it can fetch from that worker's
node. Before it asks a worker for data it tries that out, once for each node.

A process whose broker ended, or that has found another one, or can fetch from the peer's node now, says so with a message within the
next 50 ms, or the first one after that, on each connection that is there: a peer of ours gets `{"cableway-news": what has changed of what the handshake told, "message": the message}`,
and takes that apart. So both come back to handles on the connections that they have.

What a message names is held until the peer's answer, which is any message on the same connection, or its end, and for 30 s at most where
none comes (a connection goes back into a pool after a reply). If it is gone by the time that the peer opens it (we were killed, or later
than that), the peer sees `CommClosedError`, as if the connection had been cut: Dask asks elsewhere, or again. For 30 s the peer then
tells our host that it has no broker, and so gets bytes.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from distributed.comm import tcp
from distributed.comm.core import CommClosedError

from cableway._dask import family, gpu_objects, gpus, memory, names, node, replies
from cableway.client import Connection

__all__ = ["HOLD_SECONDS", "LOOK_SECONDS", "TCPBackend", "TLSBackend"]

HOLD_SECONDS = 30.0
LOOK_SECONDS = 0.05  # for which a connection takes what it has seen of broker and peer as it is
_NEWS = "cableway-news"
_SERIALIZERS = ("cableway", *family.INNER)


class _Unanswered(list[Any]):
    """Records of messages that the peer has not answered yet. While there are any, a timer runs."""

    timer: asyncio.TimerHandle | None = None

    def expect_answer(self) -> None:
        """A message was sent: its records go in 30 s, or by `answered`."""
        self._stop()
        self.timer = asyncio.get_running_loop().call_later(HOLD_SECONDS, self.answered)

    def answered(self) -> None:
        """The peer has read everything."""
        self._stop()
        self.clear()
        memory.collect_soon()

    def _stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _Handles(tcp.TCP):
    """What is different in a connection.

    Attributes:
        worker: the worker that answers `get_data` here; its data become views of the blocks.
        unanswered: what the peer may still open; None as long as it was sent no handles.
    """

    worker: Any = None
    unanswered: _Unanswered | None = None
    _look_again = 0.0
    _generation = 0
    _handles = False
    _node_name: str | None = None  # by which the peer fetches from this node

    def handshake_info(self) -> dict[str, Any]:
        info = super().handshake_info()
        told = node.told(self.peer_address, self.deserialize)
        if told is not None:
            info["cableway"] = told
        return info

    def _peer(self) -> dict[str, Any] | None:
        """What the peer has said of itself, if it is one of ours."""
        said = self.remote_info.get("cableway")
        return said if isinstance(said, dict) and said.get("protocol") == node.PROTOCOL else None

    def _takes_handles(self, said: dict[str, Any], found: Connection | None) -> bool:
        """Whether the peer can open ours, by what it has said."""
        if said.get("final") is not True or said.get("instance") is None:
            return False
        return found is not None and found.instance == said["instance"]

    async def read(self, deserializers: Any = None) -> Any:
        try:
            message = await super().read(deserializers)
            if type(message) is dict and _NEWS in message:
                said = self._peer()
                if said is not None:
                    said.update(message[_NEWS])
                    self._look_again = 0.0
                message = message["message"]
            if (
                type(message) is dict
                and type(data := message.get("data")) is dict
                and not replies.UNOPENED.isdisjoint(map(type, data.values()))
            ):
                message = await replies.opened(message)
        except family.HandleFailed as error:
            # Of another broker the next messages tell, and that a node cannot be reached was noted.
            if not isinstance(error, (family.OtherBroker, family.NotFetched)):
                node.distrust(self.peer_address)
            self.abort()
            raise CommClosedError(f"in {self}: a handle could not be opened: {error}") from error
        except CommClosedError:
            self._ended()
            raise
        if self.unanswered:
            self.unanswered.answered()
        return message

    def _ended(self) -> None:
        """The peer has read what it will ever read."""
        if self.unanswered:
            gpu_objects.not_taken(self.unanswered)
            self.unanswered.answered()

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> Any:
        news = None
        if self._generation != node.generation or time.monotonic() >= self._look_again:
            news = await self._look(msg)
        handles = self._handles and serializers is None
        node_name = self._node_name if serializers is None else None
        chosen = _SERIALIZERS if handles else serializers
        if type(msg) is dict and type(data := msg.get("data")) is dict:
            serves = self.worker is not None and msg.get("status") == "OK"
            if serves or (handles and msg.get("op") == "update_data"):
                large = replies.large_objects(data, self.worker if serves else None)
                if large:
                    msg = await replies.with_packed(self, msg, large, handles, node_name, chosen)
            if serves:  # what is large is packed
                chosen = serializers
        if news:
            msg = {_NEWS: news, "message": msg}
        try:
            written = await super().write(msg, serializers=chosen, on_error=on_error)
        except CommClosedError:
            self._ended()
            raise
        finally:
            if self.unanswered and (handles or node_name is not None):
                self.unanswered.expect_answer()
        if news:
            self.local_info["cableway"].update(news)
        return written

    async def _look(self, msg: Any) -> dict[str, Any] | None:
        """Finds out what the peer takes, for the next messages, too: it is asked with each of them, and changes seldom.

        Returns:
            What the peer is to be told; None: nothing.
        """
        if gpus.must_look() and self._peer() is not None and node.has_data():
            await asyncio.get_running_loop().run_in_executor(names.pool(), gpus.look)
        # From here on nothing that is kept is older than an `await`: in the meantime the peer may tell news.
        self._handles, self._node_name, self._generation = False, None, node.generation
        said = self._peer()
        if said is None:
            if self.remote_info:  # and it will say no more
                self._look_again = math.inf
            return None
        found, reached = node.established() if node.has_data() else None, False
        self._handles = self._takes_handles(said, found)
        if not self._handles and found is not None:
            reached = await self._reaches(msg, said, found)
            self._node_name = self._fetched_from(said, found)
        if self.unanswered is None and (self._handles or self._node_name is not None):
            self.unanswered = _Unanswered()
            self.handshake_options["cableway"] = self.unanswered  # the family's context
        news = self._news(found, reached)
        if not news and (self._handles or found is None):
            self._look_again = time.monotonic() + LOOK_SECONDS
        return news

    def gpus(self) -> list[str]:
        """The UUIDs of the GPUs on which the peer opens blocks."""
        said = self._peer()
        return [] if said is None else list(said["gpus"])

    def _fetched_from(self, said: dict[str, Any], found: Connection) -> str | None:
        """By which name of this node the peer fetches blocks from it; None: it does not."""
        if said.get("final") is not True or said.get("reached") is not True:
            return None
        own = names.own(found)
        return None if own is None else own.node

    async def _reaches(self, msg: Any, said: dict[str, Any], found: Connection) -> bool:
        """Whether we can fetch from the peer's node. Tried out before it is asked for data for the first time."""
        if not said.get("bridge") or said["instance"] in (None, found.instance):
            return False
        there, probe = said["bridge"]
        known = names.known_reach(there, said["instance"])
        if known is None and isinstance(msg, dict) and msg.get("op") == "get_data":
            loop = asyncio.get_running_loop()
            ask = loop.run_in_executor(names.pool(), names.reaches, there, probe, said["instance"])
            known = await ask
        return bool(known)

    def _news(self, found: Connection | None, reached: bool) -> dict[str, Any] | None:
        """What has changed since the peer was told last."""
        said = self.local_info.get("cableway")
        if said is None:
            return None
        now = {"reached": reached, **node.changing(self.peer_address, found)}
        return {what: value for what, value in now.items() if said.get(what) != value}


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
