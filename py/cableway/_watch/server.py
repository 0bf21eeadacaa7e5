"""The exporter's connections: all in one thread, none of which can make the others wait.

Limits, for whoever connects: CONNECTIONS_MAX connections at once, of them ADDRESS_CONNECTIONS_MAX from one address; HEAD_MAX_BYTES for
the request's line and headers; HEAD_SECONDS until they are complete; WRITE_SECONDS until the answer is taken; one request a connection.

Invariant: a connection is in `_open`, and in `_slow` while we wait for its other end. If all places are taken, a new connection gets
that of the one that has made us wait longest. A client that asks at once is waited for some turns of the loop, in each of which at most
ACCEPTS_AT_ONCE come in; so silent clients, however many, take each other's places and not its. If we wait for nobody, the new one is told
503: all are about to get their answers. An address that has all of its places taken is served so among its own. Who asks more than that
at once is told 503, or is cut.

If the exporter is killed, the kernel closes its connections, and nothing else is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from http import HTTPStatus

import cableway
from cableway._watch import command, neighbours, state
from cableway._watch.cached import CachedCommand, CommandFailed
from cableway._watch.request import Request

__all__ = [
    "ADDRESS_CONNECTIONS_MAX",
    "BACKLOG",
    "CONNECTIONS_MAX",
    "HEAD_MAX_BYTES",
    "HEAD_SECONDS",
    "WRITE_SECONDS",
    "Server",
    "is_loopback",
]

CONNECTIONS_MAX = 128
ADDRESS_CONNECTIONS_MAX = 96
ACCEPTS_AT_ONCE = 8  # in a turn of the event loop, in which all that have sent something are read
BACKLOG = 256  # connections that the kernel keeps for the next turns
HEAD_MAX_BYTES = 16 << 10
HEAD_SECONDS = 5.0
WRITE_SECONDS = 10.0
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 16
RATE_SECONDS = "0.5"  # between the two looks of which the page's rates are differences

Writer = asyncio.StreamWriter


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def _metrics(printed: bytes, errors: str, code: int) -> bytes:
    if code != command.OK:
        raise ValueError(errors or f"exit code {code}")
    return printed


def _state(printed: bytes, errors: str, code: int) -> bytes:
    if code not in (command.OK, command.NO_BROKER):
        raise ValueError(errors or f"exit code {code}")
    shown = state.cut(state.read(printed))
    shown.update(
        version=cableway.__version__, message=errors if code else "", host=socket.gethostname()
    )
    return state.dump(shown)


class Server:
    """Answers HTTP on a socket that is bound.

    Args:
        own_only: the page is for processes of this user and of root; `/metrics` is for all.
        hosts: names that a Host header may say besides this machine's, in lower case.
    """

    def __init__(self, own_only: bool, hosts: frozenset[str] = frozenset()) -> None:
        self._own_only = own_only
        self._hosts = hosts
        self._open: dict[Writer, str] = {}  # from which address
        self._slow: dict[Writer, None] = {}  # in the order in which we began to wait
        self._metrics = CachedCommand(("metrics",), _metrics)
        self._state = CachedCommand(("top", "--json", "-d", RATE_SECONDS), _state)

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Answers until stop is set. Connections that are open then are cut."""
        server = await asyncio.start_server(
            self._connected, sock=listener, limit=HEAD_MAX_BYTES, backlog=ACCEPTS_AT_ONCE
        )
        listener.listen(BACKLOG)  # asyncio has one number for both
        await stop.wait()
        server.close()
        for writer in self._open:
            writer.transport.abort()

    # ---- one connection

    async def _connected(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        address = (writer.get_extra_info("peername") or ("",))[0]
        if not self._make_room(address):
            writer.write(_busy())
            writer.close()
            return
        self._open[writer] = address
        try:
            # An error of the connection, or it was cut: nobody is there to be told. Cancelled at the exporter's end: Python 3.11
            # prints a traceback for a connection's task that ends so.
            with contextlib.suppress(
                OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError
            ):
                await self._converse(reader, writer)
        finally:
            self._forget(writer)
            writer.close()

    def _make_room(self, address: str) -> bool:
        """Whether there is a place for one more from there, perhaps that of the one that has made us wait longest."""
        rivals = list(self._open)
        if len(rivals) < CONNECTIONS_MAX:
            rivals = [writer for writer in rivals if self._open[writer] == address]
            if len(rivals) < ADDRESS_CONNECTIONS_MAX:
                return True
        slowest = next((writer for writer in self._slow if writer in rivals), None)
        if slowest is None:
            return False
        slowest.transport.abort()
        self._forget(slowest)
        return True

    def _forget(self, writer: Writer) -> None:
        self._open.pop(writer, None)
        self._slow.pop(writer, None)

    @contextlib.contextmanager
    def _waiting_for(self, writer: Writer) -> Iterator[None]:
        if writer in self._open:
            self._slow[writer] = None
        try:
            yield
        finally:
            self._slow.pop(writer, None)

    async def _converse(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        with self._waiting_for(writer):
            answer, head = b"", b""
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_SECONDS)
            except asyncio.LimitOverrunError:
                answer = _plain(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"the request's line and headers are larger than {HEAD_MAX_BYTES} bytes",
                )
            except asyncio.TimeoutError:
                answer = _plain(HTTPStatus.REQUEST_TIMEOUT, f"no request within {HEAD_SECONDS:g} s")
        if not answer:
            answer = await self._answer(head, writer)
        with self._waiting_for(writer):
            await asyncio.wait_for(_send(writer, answer), WRITE_SECONDS)
            writer.write_eof()
            await asyncio.wait_for(_linger(reader), _LINGER_SECONDS)

    async def _answer(self, head: bytes, writer: Writer) -> bytes:
        request = Request(head)
        if not request.refused:
            mistake = request.mistake(self._hosts)
            if mistake:
                request.send_error(*mistake)
            else:
                try:
                    await self._route(request, writer)
                except CommandFailed as error:
                    request.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return request.answer

    async def _route(self, request: Request, writer: Writer) -> None:
        if request.resource == "/metrics":
            request.reply_metrics(await self._metrics.get())
        elif request.resource not in ("/", "/state"):
            request.send_error(HTTPStatus.NOT_FOUND, "there are /, /state and /metrics")
        elif not await self._may_see(writer):
            request.send_error(
                HTTPStatus.FORBIDDEN,
                "the page is for processes of the user whose exporter this is; `cableway exporter --all-users` shows it to all "
                "users of this machine",
            )
        elif request.resource == "/":
            request.reply_page()
        else:
            request.reply(HTTPStatus.OK, "application/json", await self._state.get())

    async def _may_see(self, writer: Writer) -> bool:
        if not self._own_only:
            return True
        theirs, ours = (writer.get_extra_info(name) for name in ("peername", "sockname"))
        if not theirs or not ours:
            return False
        return await asyncio.to_thread(neighbours.is_own, theirs[:2], ours[:2])


async def _send(writer: Writer, answer: bytes) -> None:
    for at in range(0, len(answer), _CHUNK_BYTES):
        writer.write(answer[at : at + _CHUNK_BYTES])
        await writer.drain()


async def _linger(reader: asyncio.StreamReader) -> None:
    """Until the other end has closed: what it still sends would make the kernel drop the answer."""
    left = _LINGER_BYTES
    while left > 0 and (chunk := await reader.read(left)):
        left -= len(chunk)


def _plain(status: HTTPStatus, text: str) -> bytes:
    """An answer to what was never a request."""
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _busy() -> bytes:
    return _plain(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"as many requests are being answered as may be at once ({CONNECTIONS_MAX} in all, {ADDRESS_CONNECTIONS_MAX} of one address); "
        "try again",
    )
