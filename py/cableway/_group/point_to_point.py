"""What a `Group` has for messages from one member to another: with capital letters for elements, with small ones for objects."""

from __future__ import annotations

from typing import Any

from cableway._group.messages import Mailbox
from cableway._group.requests import Request
from cableway._group.status import Status

__all__ = ["PointToPoint"]


class PointToPoint:
    """The messages of a member."""

    __slots__ = ("_box",)
    _box: Mailbox

    def Send(self, send: Any, dest: int, tag: int = 0) -> None:
        """Sends elements to one member. They are copied: send may be changed afterwards. Blocks only if 4,096 messages wait there.

        Args:
            send: an array.
            dest: rank of the receiver.
            tag: 0 or more.

        Raises:
            GroupBroken: the group is broken. Timeout: there was no room; nothing was sent, and the group goes on.
        """
        self._box.send(send, dest, tag)

    def Recv(
        self,
        out: Any,
        source: int | None = None,
        tag: int | None = None,
        status: Status | None = None,
    ) -> Any:
        """Receives elements from one member. Messages of one sender come in the order in which it sent them; those with another
        source or tag wait. Blocks. Returns out.

        Args:
            out: an array of the dtype and the number of elements that were sent.
            source: rank of the sender. None: anybody.
            tag: of the message. None: any.
            status: is told of the message.

        Raises:
            What a signal's handler raises: the message waits for the next call.
            GroupBroken: who could send it is gone. Timeout: none came; the group goes on. ValueError: it has other elements, or is
            an object; it waits for the next call.
        """
        return self._box.receive(out, source, tag, status)

    def Isend(self, send: Any, dest: int, tag: int = 0) -> Request:
        """`Send` without waiting for room: send may be changed as soon as the request is done. Returns it."""
        return self._box.isend(send, dest, tag)

    def Irecv(self, out: Any, source: int | None = None, tag: int | None = None) -> Request:
        """`Recv` without waiting: the elements are in out when the request is done. Returns it."""
        return self._box.irecv(out, source, tag)

    def Sendrecv(
        self,
        send: Any,
        dest: int,
        sendtag: int = 0,
        out: Any = None,
        source: int | None = None,
        recvtag: int | None = None,
        status: Status | None = None,
    ) -> Any:
        """`Send` and `Recv` at once: members that do it in a ring do not wait for each other. Blocks. Returns out.

        If send or out is of no use, nothing is sent, and who receives from here gets a ValueError with the reason.
        """
        return self._box.sendrecv(send, dest, sendtag, out, source, recvtag, status)

    def probe(
        self, source: int | None = None, tag: int | None = None, status: Status | None = None
    ) -> bool:
        """Waits until such a message is there, which stays; status is told of it. Blocks. Returns True. Raises as `Recv`."""
        return self._box.probe(source, tag, status, True)

    def iprobe(
        self, source: int | None = None, tag: int | None = None, status: Status | None = None
    ) -> bool:
        """Whether such a message is there, which stays; status is told of it. Does not block. Raises GroupBroken as `Recv`."""
        return self._box.probe(source, tag, status, False)

    Probe, Iprobe = probe, iprobe

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object to one member: as `Send`. An array of cableway in it is not copied: the receiver sees the same memory."""
        self._box.send_object(obj, dest, tag)

    def recv(
        self, source: int | None = None, tag: int | None = None, status: Status | None = None
    ) -> Any:
        """Receives an object: as `Recv`. Returns the object.

        >>> import cableway as cw
        >>> with cw.Group("docs/recv", 1) as g:
        ...     g.send({"answer": 42}, 0, tag=7)
        ...     g.recv(tag=7)
        {'answer': 42}
        """
        return self._box.receive_object(source, tag, status)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """`send` without waiting for room. obj is pickled at once. Returns the request."""
        return self._box.isend_object(obj, dest, tag)

    def irecv(self, source: int | None = None, tag: int | None = None) -> Request:
        """`recv` without waiting. Returns the request, whose `wait` and `test` give the object.

        >>> import cableway as cw
        >>> with cw.Group("docs/irecv", 1) as g:
        ...     request = g.irecv(tag=1)
        ...     g.isend("later", 0, tag=1).wait()
        ...     request.wait()
        'later'
        """
        return self._box.irecv_object(source, tag)

    def sendrecv(
        self,
        obj: Any,
        dest: int,
        sendtag: int = 0,
        source: int | None = None,
        recvtag: int | None = None,
        status: Status | None = None,
    ) -> Any:
        """`send` and `recv` at once: members that do it in a ring do not wait for each other. Blocks. Returns the object.

        If obj cannot be pickled, who receives it gets a ValueError with the reason.
        """
        return self._box.sendrecv_object(obj, dest, sendtag, source, recvtag, status)
