"""How a member calls an operation of all, so that the members stay in step whatever fails in one of them.

what fails before the others are met     the member declines: it comes to their meeting without its part, all of them get a
                                         ValueError with its reason, and it raises what failed
a signal's handler that raises there     Ctrl-C and what is no Exception: the group is broken, as by one that raises while the
                                         member waits; any other exception counts as a failure
one that raises behind the operation     comes too late: its last step is no call to the interpreter (`Uninterrupted`), so the
                                         operation returns, and the exception comes up in the caller
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cableway._dispatch import GroupEnd, Uninterrupted

__all__ = ["Calls", "in_step", "reason_of"]

_REASON_BYTES = 150  # of the text that goes with a meeting (GROUP_INLINE_MAX)
_T = TypeVar("_T")


class Calls:
    """A member, and those of its calls after which nothing may come between.

    Attributes:
        end: the member.
        barrier, collect, exchange, move, objects, receive, receive_small, received, send, send_bytes, send_small: as its methods,
            with [] for ().
    """

    __slots__ = (
        "barrier", "collect", "end", "exchange", "move", "objects", "receive", "receive_small", "received", "send", "send_bytes",
        "send_small",
    )  # fmt: skip

    def __init__(self, end: GroupEnd) -> None:
        self.end = end
        self.barrier = Uninterrupted(end.barrier)
        self.collect = Uninterrupted(end.collect)
        self.exchange = Uninterrupted(end.exchange)
        self.move = Uninterrupted(end.move)
        self.receive = Uninterrupted(end.receive)
        self.received = Uninterrupted(end.received)
        self.objects = Uninterrupted(end.objects)
        self.receive_small = Uninterrupted(end.receive_small)
        self.send_small = Uninterrupted(end.send_small)
        self.send, self.send_bytes = Uninterrupted(end.send), Uninterrupted(end.send_bytes)


def in_step(end: GroupEnd, call: Callable[[], _T]) -> _T:
    """Calls an operation of all members, and declines it where this one cannot take part.

    Raises:
        What the call raises. GroupBroken, Timeout: of the others, when it was declined.
    """
    met = end.meetings
    try:
        return call()
    except Exception as error:
        if end.meetings == met:
            end.decline(reason_of(error))
        raise
    except BaseException:
        if end.meetings == met:
            end.interrupt()
        raise


def reason_of(error: Exception) -> bytes:
    """What other members are told of it."""
    text = f"{type(error).__name__}: {error}".encode("ascii", "backslashreplace")
    return text if len(text) <= _REASON_BYTES else text[: _REASON_BYTES - 3] + b"..."
