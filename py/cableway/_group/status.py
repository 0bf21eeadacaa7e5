"""What is known of a message of a group."""

from __future__ import annotations

__all__ = ["Status"]


class Status:
    """What is known of a message, as mpi4py's `Status`.

    Attributes:
        source: rank of the sender; None: no message was told of.
        tag: its tag.
        count: its bytes: of an object those of its pickle.

    >>> import cableway as cw
    >>> from cableway.group import Status
    >>> status = Status()
    >>> with cw.Group("docs/status", 1) as g:
    ...     g.send("x", 0, tag=3)
    ...     g.iprobe(status=status), status.source, status.tag, g.recv(tag=3)
    (True, 0, 3, 'x')
    """

    __slots__ = ("count", "source", "tag")

    def __init__(self) -> None:
        self.source: int | None = None
        self.tag: int | None = None
        self.count = 0

    def Get_source(self) -> int | None:
        """`source`."""
        return self.source

    def Get_tag(self) -> int | None:
        """`tag`."""
        return self.tag

    def Get_count(self) -> int:
        """`count`, in bytes."""
        return self.count

    def __repr__(self) -> str:
        return f"<Status source={self.source} tag={self.tag} count={self.count}>"
