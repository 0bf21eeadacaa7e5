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
from collections.abc import Callable, Sequence
from typing import Any

from cableway._core import words
from cableway._core.deadlines import deadline
from cableway._core.handler_errors import is_handlers
from cableway._core.leases import opened
from cableway._core.library import lib
from cableway._dispatch import small_load
from cableway._group import gpu, pickles
from cableway._group.calls import Calls, reason_of
from cableway._group.elements import Elements
from cableway._group.status import Status
from cableway.errors import Error, GroupBroken, Timeout

__all__ = ["Mailbox", "Request"]

OBJECT, REFUSED = 1, 2  # kinds of messages; REFUSED: why the sender could not send, as text
_INT_MAX = 0x7FFFFFFF
_KEPT, _LOOK, _WAIT = lib.CW_GROUP_KEPT, lib.CW_GROUP_LOOK, lib.CW_GROUP_WAIT
_ANY = (-1, -1)
_NAP_SECONDS = 0.001  # between looks whether a receiver has room again


class Request:
    """A message that is sent, or received, while its member does something else: of `isend`, `irecv`, `Isend` and `Irecv`. As mpi4py's.

    It goes on only within calls of its member. What came for it is there until it is asked for.
    """

    __slots__ = ("_attempt", "_box", "_came", "_done", "_pattern")

    def __init__(
        self, box: Mailbox, attempt: Callable[[], Any], pattern: tuple[int, int] = _ANY
    ) -> None:
        self._box = box
        self._pattern = pattern
        self._attempt: Callable[[], Any] | None = attempt  # what came of it; None: it is not done
        self._done = False
        self._came: tuple[Any, BaseException | None, Any] = (None, None, None)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether it is done, and then the object that came, of `irecv`; else None. Does not block.

        Raises:
            GroupBroken: who could send it is gone. What unpickling raises. ValueError: of `Irecv`, the message has other elements.
        """
        if not self._done:
            self._box.progress(self._pattern)
        return (True, self._result(status)) if self._done else (False, None)

    def wait(self, status: Status | None = None) -> Any:
        """Waits until it is done. Returns the object that came, of `irecv`; else None. Blocks.

        Raises:
            Timeout: the time of the group is over (`Group.timeout`); it can be waited for again. And as `test`.
        """
        self._box.wait(self)
        return self._result(status)

    def Test(self, status: Status | None = None) -> bool:
        """Whether it is done. Does not block."""
        return self.test(status)[0]

    def Wait(self, status: Status | None = None) -> bool:
        """As `wait`; returns True."""
        self.wait(status)
        return True

    @staticmethod
    def waitall(requests: Sequence[Request]) -> list[Any]:
        """Waits for all of them: a list of what `wait` returns. Blocks."""
        return [request.wait() for request in requests]

    Waitall = waitall

    def _result(self, status: Status | None) -> Any:
        value, error, told = self._came
        if status is not None and told is not None:
            status.source, status.tag, status.count = told
        if error is not None:
            raise error
        return value

    def cancel(self) -> None:
        """Gives up a receive that is not done: what comes is for others, and `wait` returns None. Of a send nothing happens."""
        self._box.cancel(self)

    Cancel = cancel

    def _try(self) -> None:
        """Whether it is done is known then."""
        came = self._attempt() if self._attempt is not None else None
        if (
            came is not None
        ):  # no call from here on, not even of _end(): what came would be lost by what a handler raises
            self._came = came
            self._done = True
            self._attempt = None

    def _end(self, came: tuple[Any, BaseException | None, Any]) -> None:
        self._came = came
        self._done = True
        self._attempt = None  # and what it holds


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
        self._finish_leaving()
        data = pickles.dumps(obj)
        rank, number = _rank(dest, "dest"), _tag(tag)
        self._calls.send_bytes[data, OBJECT, rank, number, True]  # no call from here on: it is sent

    def send(self, what: Any, dest: int, tag: int) -> None:
        """Sends elements."""
        self._finish_leaving()
        sent = gpu.host_values(gpu.send(what))
        nbytes = sent.size * sent.dtype.itemsize
        rank, number = _rank(dest, "dest"), _tag(tag)
        kind = _kind_of(sent)
        self._calls.send[sent.address, nbytes, kind, rank, number, True]

    def isend_object(self, obj: Any, dest: int, tag: int) -> Request:
        """Sends a pickle when there is room."""
        data = pickles.dumps(obj)
        return self._isend_bytes(data, OBJECT, _rank(dest, "dest"), _tag(tag))

    def _isend_bytes(self, data: bytes, kind: int, rank: int, number: int) -> Request:
        send = self._calls.send_bytes
        return self._leave(lambda: send[data, kind, rank, number, False])

    def isend(self, what: Any, dest: int, tag: int) -> Request:
        """Sends elements when there is room."""
        sent = gpu.host_values(gpu.send(what))
        return self._isend_elements(sent, _rank(dest, "dest"), _tag(tag))

    def _isend_elements(self, sent: Elements, rank: int, number: int) -> Request:
        nbytes, kind = sent.size * sent.dtype.itemsize, _kind_of(sent)
        send = self._calls.send
        return self._leave(lambda: send[sent.address, nbytes, kind, rank, number, False])

    def _leave(self, send: Callable[[], bool]) -> Request:
        self.progress()
        waits = bool(self.leaving)  # messages of one sender keep their order
        request = Request(self, lambda: (None, None, None) if send() else None)
        if not waits:
            request._try()
        if not request._done:
            self.leaving.append(request)
        return request

    def _finish_leaving(self) -> None:
        """Messages of one sender keep their order."""
        while self.leaving:
            self.wait(self.leaving[0])

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

        self._send_first(leave, dest, sendtag, source, recvtag)
        return self.receive_object(source, recvtag, status)

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

        self._send_first(leave, dest, sendtag, source, recvtag)
        return self.receive(out, source, recvtag, status)

    def _send_first(
        self,
        leave: Callable[[int, int], Request],
        dest: int,
        tag: int,
        source: int | None,
        recvtag: int | None,
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
                self._isend_bytes(reason_of(error), REFUSED, rank, number)
            raise
        self.wait(sent)

    # ---- receiving

    def receive_object(self, source: int | None, tag: int | None, status: Status | None) -> Any:
        """Receives one object."""
        pattern = _pattern(source, tag)
        if self.posted or self.leaving:
            self._await(pattern)
        value, error, told = self._take_object(pattern)
        if status is not None:
            status.source, status.tag, status.count = told
        if error is not None:
            raise error
        return value

    def receive(self, out: Any, source: int | None, tag: int | None, status: Status | None) -> Any:
        """Receives elements."""
        pattern = _pattern(source, tag)
        if self.posted or self.leaving:
            self._await(pattern)
        value, error, told = self._take(out, pattern)
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

    def _take_object(self, pattern: tuple[int, int]) -> tuple[Any, BaseException | None, Any]:
        """An object, or what is wrong with its message; and what is known of that."""
        found = self._calls.receive[pattern[0], pattern[1], OBJECT, 0, 0]
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

    def _take(self, out: Any, pattern: tuple[int, int]) -> tuple[Any, BaseException | None, Any]:
        """The same of elements."""
        asked = gpu.receive(out)
        got = gpu.host_room(asked)
        nbytes, kind = got.size * got.dtype.itemsize, _kind_of(got)
        found = self._calls.receive[pattern[0], pattern[1], kind, got.address or 1, nbytes]
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

    def progress(self, pattern: tuple[int, int] = _ANY) -> None:
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
                request._try()
            if request._done:
                requests.remove(request)
            elif in_order:
                return

    def _await(self, pattern: tuple[int, int]) -> None:
        """Waits until there is a message that no request is for."""
        end = deadline(self.limit)
        self.progress(pattern)
        while self._calls.end.probe(*pattern, _KEPT) is None:
            self._wait(pattern, end)

    def wait(self, request: Request) -> None:
        """Waits until a request is done."""
        end = deadline(self.limit)
        if not request._done:
            self.progress(request._pattern)
        while not request._done:
            self._wait(request._pattern if request in self.posted else None, end)

    def _wait(self, pattern: tuple[int, int] | None, end: float) -> None:
        """Until such a message may have come, or for a moment where something is to leave; None: no message is waited for."""
        if pattern is not None and not self.leaving:
            self._calls.end.probe(*pattern, _WAIT)
        elif time.monotonic() >= end:
            raise Timeout(
                f"{self.limit} s ran out: a receiver has no room for the {len(self.leaving)} messages of isend() that are to "
                "leave. The group goes on"
            )
        else:
            time.sleep(_NAP_SECONDS)
        self.progress(_ANY if pattern is None else pattern)
