"""Messages from one member to another: of objects and elements, with or without waiting.

A message goes to the request that was posted first of those that it fits, as in MPI, and then to who asks without a request. Requests
are looked at whenever the member receives, probes, or asks for one of them: there is no thread. Sending copies at once; only where
`CW_GROUP_MESSAGES_MAX` messages wait at the receiver is a request not done yet.

No message is lost by what a signal's handler raises: it is in hand (csrc/dispatch_messages.c) until its object is made, else given back.
A request keeps what came for it until it is asked.
"""

from __future__ import annotations

import contextlib
import operator
import pickle
import time
import zlib
from collections.abc import Callable
from typing import Any

from cableway._core import words
from cableway._core.deadlines import deadline, left_ns
from cableway._core.handler_errors import is_handlers
from cableway._core.leases import opened
from cableway._core.library import lib
from cableway._dispatch import small_load
from cableway._group import gpu, pickles
from cableway._group.calls import Calls, reason_of
from cableway._group.elements import Elements
from cableway._group.requests import ANY, Request
from cableway._group.status import Status
from cableway.errors import Error, GroupBroken, Timeout

__all__ = ["Mailbox"]

OBJECT, REFUSED = 1, 2  # kinds of messages; REFUSED: why the sender could not send, as text
_INT_MAX = 0x7FFFFFFF
_KEPT, _LOOK, _WAIT = lib.CW_GROUP_KEPT, lib.CW_GROUP_LOOK, lib.CW_GROUP_WAIT
_NAP_SECONDS = 0.001  # between looks whether a receiver has room again


def _kind_of(what: Elements) -> int:
    return 0x80000000 | zlib.crc32(what.text) >> 1


def _rank(rank: int, name: str) -> int:
    number = operator.index(rank)
    if not 0 <= number <= _INT_MAX:
        raise ValueError(f"{name} {number}: a rank is 0 or more")
    return number


def _tag(tag: int) -> int:
    number = operator.index(tag)
    if not 0 <= number <= _INT_MAX:
        raise ValueError(f"tag {number}: a tag is from 0 to {_INT_MAX}")
    return number


def _pattern(source: int | None, tag: int | None) -> tuple[int, int]:
    """As the library has it: -1 is any."""
    return (
        -1 if source is None else _rank(source, "source"),
        -1 if tag is None else _tag(tag),
    )


def _refused(source: int, tag: int, reason: bytes) -> ValueError:
    return ValueError(
        f"rank {source} could not send its message with tag {tag}: {reason.decode('ascii', 'replace')}"
    )


class _Opening:
    """What the handles of a message that is unpickled are opened into."""

    __slots__ = ("opened",)

    def __init__(self, cells: list[Any]) -> None:
        self.opened = cells


def _loads(data: bytes, cells: list[Any]) -> Any:
    """The object in a message. Called again, its handles are open in the cells."""
    if len(data) <= pickles.SMALL_BYTES and (found := small_load(data)):
        return found[0]  # it has no handles
    before = opened.by, opened.count
    opened.by, opened.count = _Opening(cells), 0
    try:
        return pickle.loads(data)
    finally:
        opened.by, opened.count = before


class Mailbox:
    """The messages of a member.

    Attributes:
        posted: requests that wait for a message, in the order in which they were made.
        leaving: requests whose receiver has no room.
        limit: seconds for an operation; None: without limit.
    """

    def __init__(self, calls: Calls, limit: float | None) -> None:
        self._calls = calls
        self.limit = limit
        self.posted: list[Request] = []
        self.leaving: list[Request] = []

    def forget(self) -> None:
        """The group is broken: requests name ranks that are others in the next one. What has come for one of them stays."""
        dropped, self.posted, self.leaving = self.posted + self.leaving, [], []
        for request in dropped:
            request._end(
                (
                    None,
                    GroupBroken("the group was broken and reformed before the request was done"),
                    None,
                )
            )

    def cancel(self, request: Request) -> None:
        """Ends a request that waits for a message."""
        if request in self.posted and not request._done:
            self.posted.remove(request)
            request._end((None, None, None))

    # ---- sending

    def send_object(self, obj: Any, dest: int, tag: int) -> None:
        """Sends a pickle."""
        if not self.leaving and self._calls.send_small[obj, dest, tag]:
            return
        left = self._finish_leaving()
        data = pickles.dumps(obj)
        rank, number = _rank(dest, "dest"), _tag(tag)
        self._calls.send_bytes[
            data, OBJECT, rank, number, True, left
        ]  # no call from here on: it is sent

    def send(self, what: Any, dest: int, tag: int) -> None:
        """Sends elements."""
        left = self._finish_leaving()
        sent = gpu.host_values(gpu.send(what))
        nbytes = sent.size * sent.dtype.itemsize
        rank, number = _rank(dest, "dest"), _tag(tag)
        kind = _kind_of(sent)
        self._calls.send[sent.address, nbytes, kind, rank, number, True, left]

    def isend_object(self, obj: Any, dest: int, tag: int) -> Request:
        """Sends a pickle when there is room."""
        data = pickles.dumps(obj)
        return self._isend_bytes(data, OBJECT, _rank(dest, "dest"), _tag(tag))

    def _isend_bytes(
        self, data: bytes, kind: int, rank: int, number: int, left: int = -1
    ) -> Request:
        send = self._calls.send_bytes
        return self._leave(lambda: send[data, kind, rank, number, False, left])

    def isend(self, what: Any, dest: int, tag: int) -> Request:
        """Sends elements when there is room."""
        sent = gpu.host_values(gpu.send(what))
        return self._isend_elements(sent, _rank(dest, "dest"), _tag(tag))

    def _isend_elements(self, sent: Elements, rank: int, number: int) -> Request:
        nbytes, kind = sent.size * sent.dtype.itemsize, _kind_of(sent)
        send = self._calls.send
        return self._leave(lambda: send[sent.address, nbytes, kind, rank, number, False, -1])

    def _leave(self, send: Callable[[], bool]) -> Request:
        self.progress()
        waits = bool(self.leaving)  # messages of one sender keep their order
        request = Request(self, lambda: (None, None, None) if send() else None)
        if not waits:
            request._try()
        if not request._done:
            self.leaving.append(request)
        return request

    def _finish_leaving(self) -> int:
        """Messages of one sender keep their order. Returns what is left of the call's time in ns; -1: all of it."""
        if not self.leaving:
            return -1
        end = deadline(self.limit)
        while self.leaving:
            self.wait(self.leaving[0], end)
        return left_ns(end)

    # ---- both at once

    def sendrecv_object(
        self,
        obj: Any,
        dest: int,
        sendtag: int,
        source: int | None,
        recvtag: int | None,
        status: Status | None,
    ) -> Any:
        """Sends one object and receives one."""

        def leave(rank: int, number: int) -> Request:
            return self._isend_bytes(pickles.dumps(obj), OBJECT, rank, number)

        end = deadline(self.limit)
        self._send_first(leave, dest, sendtag, source, recvtag, end)
        return self.receive_object(source, recvtag, status, end)

    def sendrecv(
        self,
        what: Any,
        dest: int,
        sendtag: int,
        out: Any,
        source: int | None,
        recvtag: int | None,
        status: Status | None,
    ) -> Any:
        """Sends elements and receives some."""

        def leave(rank: int, number: int) -> Request:
            gpu.receive(out)  # else it would be refused when the message has left
            return self._isend_elements(gpu.host_values(gpu.send(what)), rank, number)

        end = deadline(self.limit)
        self._send_first(leave, dest, sendtag, source, recvtag, end)
        return self.receive(out, source, recvtag, status, end)

    def _send_first(
        self,
        leave: Callable[[int, int], Request],
        dest: int,
        tag: int,
        source: int | None,
        recvtag: int | None,
        end: float,
    ) -> None:
        """Sends what a sendrecv() sends: by leave(rank, tag). Where there is nothing to send, or no memory for it, it fails before
        it has left; the receiver is told, too, which would wait for the message until its time is over.
        """
        rank, number = _rank(dest, "dest"), _tag(tag)
        try:
            asked, size = _pattern(source, recvtag)[0], self._calls.end.numbers()[1]
            if asked >= size:
                raise ValueError(f"source {asked}: the group has ranks 0 to {size - 1}")
            sent = leave(rank, number)
        except Exception as error:
            with contextlib.suppress(
                Error
            ):  # a broken group, or no such rank: then nobody waits for us
                self._isend_bytes(reason_of(error), REFUSED, rank, number, left_ns(end))
            raise
        self.wait(sent, end)
        if sent._came[1] is not None:
            raise sent._came[1]

    # ---- receiving

    def receive_object(
        self,
        source: int | None,
        tag: int | None,
        status: Status | None,
        end: float | None = None,
    ) -> Any:
        """Receives one object; by then, in place of the group's time."""
        pattern = _pattern(source, tag)
        if self.posted or self.leaving:
            end = self._await(pattern, end)
        if end is None:
            found = self._calls.receive_small[pattern]
            if found is not None:  # no call from here on: it is received
                if status is not None:
                    status.source, status.tag, status.count = found[1], found[2], found[3]
                return found[0]
        value, error, told = self._take_object(pattern, -1 if end is None else left_ns(end))
        if status is not None:
            status.source, status.tag, status.count = told
        if error is not None:
            raise error
        return value

    def receive(
        self,
        out: Any,
        source: int | None,
        tag: int | None,
        status: Status | None,
        end: float | None = None,
    ) -> Any:
        """Receives elements; by then, in place of the group's time."""
        pattern = _pattern(source, tag)
        if self.posted or self.leaving:
            end = self._await(pattern, end)
        value, error, told = self._take(out, pattern, -1 if end is None else left_ns(end))
        if status is not None:
            status.source, status.tag, status.count = told
        if error is not None:
            raise error
        return value

    def irecv_object(self, source: int | None, tag: int | None) -> Request:
        """Receives an object when it comes."""
        pattern = _pattern(source, tag)
        return self._post(pattern, lambda: self._take_object(pattern))

    def irecv(self, out: Any, source: int | None, tag: int | None) -> Request:
        """Receives elements when they come."""
        pattern = _pattern(source, tag)
        gpu.receive(out)  # what cannot be received into is refused now
        return self._post(pattern, lambda: self._take(out, pattern))

    def _post(self, pattern: tuple[int, int], take: Callable[[], Any]) -> Request:
        probe = self._calls.end.probe
        request = Request(self, lambda: take() if probe(*pattern, _KEPT) else None, pattern)
        self.posted.append(request)
        return request

    def _take_object(
        self, pattern: tuple[int, int], left: int = -1
    ) -> tuple[Any, BaseException | None, Any]:
        """An object, or what is wrong with its message; and what is known of that."""
        found = self._calls.receive[pattern[0], pattern[1], OBJECT, 0, 0, left]
        source, tag, kind, nbytes, data, cells = found
        told = (source, tag, nbytes)
        if kind == REFUSED:
            self._calls.received[()]
            return None, _refused(source, tag, data), told
        if kind != OBJECT:
            text = f"the message from rank {source} with tag {tag} has elements: receive it with Recv()"
            return None, ValueError(text), told
        own: BaseException | None = None
        value = None
        try:
            value = _loads(data, cells)
        except BaseException as error:
            try:
                handlers = is_handlers(error, lambda: _loads(data, cells))
            except BaseException:
                self._calls.end.give_back()
                raise
            if handlers:
                self._calls.end.give_back()
                raise
            own = error
        self._calls.received[()]
        return value, own, told

    def _take(
        self, out: Any, pattern: tuple[int, int], left: int = -1
    ) -> tuple[Any, BaseException | None, Any]:
        """The same of elements."""
        asked = gpu.receive(out)
        got = gpu.host_room(asked)
        nbytes, kind = got.size * got.dtype.itemsize, _kind_of(got)
        found = self._calls.receive[pattern[0], pattern[1], kind, got.address or 1, nbytes, left]
        source, tag, its_kind, its_nbytes, data, _ = found
        told = (source, tag, its_nbytes)
        if its_kind == REFUSED:
            self._calls.received[()]
            return out, _refused(source, tag, data), told
        if (its_kind, its_nbytes) != (kind, nbytes):
            what = "is an object: receive it with recv()"
            if its_kind != OBJECT:
                what = (
                    f"has {its_nbytes // (got.dtype.itemsize or 1)} elements, and out has {got.size}: make out as large"
                    if its_kind == kind
                    else f"has {its_nbytes} bytes of another dtype than out, which is {words.name(got.dtype)}: make out with the "
                    "sender's dtype"
                )
            text = (
                f"the message from rank {source} with tag {tag} {what}. It waits for the next call"
            )
            return out, ValueError(text), told
        if got is not asked:
            try:
                gpu.put_values(asked, got)
            except BaseException:
                self._calls.end.give_back()
                raise
        self._calls.received[()]
        return out, None, told

    # ---- waiting

    def probe(
        self, source: int | None, tag: int | None, status: Status | None, waits: bool
    ) -> bool:
        """Whether there is a message that no request is for."""
        pattern = _pattern(source, tag)
        if waits:
            self._await(pattern)
        else:
            self.progress(pattern)
        told = self._calls.end.probe(*pattern, _KEPT)
        if told is not None and status is not None:
            status.source, status.tag, status.count = told
        return told is not None

    def progress(self, pattern: tuple[int, int] = ANY) -> None:
        """Does what can be done for requests without waiting. pattern: of what the caller is after."""
        if self.leaving:
            self._try_all(self.leaving, in_order=True)
        self._calls.end.probe(*pattern, _LOOK)
        if self.posted:
            self._try_all(self.posted, in_order=False)

    @staticmethod
    def _try_all(requests: list[Request], in_order: bool) -> None:
        for request in list(requests):
            if not request._done:
                try:
                    request._try()
                except Timeout as error:  # of the broker: it will not leave; its wait() says so
                    request._end((None, error, None))
            if request._done:
                requests.remove(request)
            elif in_order:
                return

    def _await(self, pattern: tuple[int, int], end: float | None = None) -> float:
        """Waits until there is a message that no request is for. Returns when the call's time is over."""
        over = deadline(self.limit) if end is None else end
        self.progress(pattern)
        while self._calls.end.probe(*pattern, _KEPT) is None:
            self._wait(pattern, over)
        return over

    def wait(self, request: Request, end: float | None = None) -> None:
        """Waits until a request is done; until then, in place of the group's time."""
        over = deadline(self.limit) if end is None else end
        if not request._done:
            self.progress(request._pattern)
        while not request._done:
            self._wait(request._pattern if request in self.posted else None, over)

    def _wait(self, pattern: tuple[int, int] | None, end: float) -> None:
        """Until such a message may have come, or for a moment where something is to leave; None: no message is waited for."""
        if pattern is not None and not self.leaving:
            self._calls.end.probe(*pattern, _WAIT, left_ns(end))
        elif time.monotonic() >= end:
            raise Timeout(
                f"{self.limit} s ran out: a receiver has no room for {len(self.leaving)} messages of this member (isend, sendrecv), "
                "which leave when it receives. The group goes on"
            )
        else:
            time.sleep(_NAP_SECONDS)
        self.progress(ANY if pattern is None else pattern)
