"""Groups of processes that compute together: `Group` joins one by name.

>>> import cableway as cw
>>> with cw.Group("docs", 1) as g:
...     g.barrier()
...     g.rank, g.size
(0, 1)
"""

from __future__ import annotations

import operator
import os
from types import TracebackType

from cableway import _dispatch, client

__all__ = ["Group"]

_FOR_EVER_SECONDS = 1e9  # and longer: for ever


def _nanoseconds(timeout: float | None) -> int:
    if timeout is None or timeout > _FOR_EVER_SECONDS:
        return -1
    return max(0, int(timeout * 1e9))


class Group:
    """A member of a group of processes of one machine, which join by name and then meet in collective operations.

    The processes need not be related. Every member calls the same operations in the same order. If a member dies, leaves or gives
    up, all others get `GroupBroken` at once, at the latest in their next operation, and may go on without it by `reform`. One
    thread at a time uses a member, and a forked child is none: it joins a group of its own.

    >>> import cableway as cw
    >>> g = cw.Group("docs/sum", 1)
    >>> g.barrier()
    >>> g.close()

    Args:
        name: of the group: 1 to 190 bytes, as the name of an array.
        size: number of members, 1 to 256.
        rank: this member's number, from 0 to size - 1. None: the lowest that is free. Either all members give their rank, or none.
        timeout: seconds for joining, and then for each operation. None: without limit.

    Raises:
        Timeout: not all members came in time, or an earlier group of that name has not ended.
        NameTaken: another process has this rank.
        ValueError: size or rank out of range, another size than the other members give, or a bad name.

    Attributes:
        name: of the group.
        timeout: seconds, as given.
    """

    __slots__ = ("__weakref__", "_end", "_pid", "name", "timeout")

    def __init__(
        self, name: str, size: int, rank: int | None = None, timeout: float | None = 30
    ) -> None:
        connection = client.current()
        self.name = name
        self.timeout = timeout
        self._pid = os.getpid()
        number = -1 if rank is None else operator.index(rank)
        if rank is not None and number < 0:
            raise ValueError(f"rank {number}: a rank is 0 or more; None takes the lowest that is free")
        self._end = _dispatch.GroupEnd(
            connection.number, name, operator.index(size), number, _nanoseconds(timeout)
        )

    @property
    def rank(self) -> int:
        """This member's number, from 0 to size - 1."""
        return self._end.numbers()[0]

    @property
    def size(self) -> int:
        """Number of members."""
        return self._end.numbers()[1]

    @property
    def completed(self) -> int:
        """How many collective operations this member has completed. After `reform` it is the lowest number of all that are left."""
        return self._end.numbers()[2]

    def barrier(self) -> None:
        """Waits until all members have called it. Blocks.

        Raises:
            GroupBroken: a member is gone.
            Timeout: not all came in time; the group is broken then.
            ValueError: another member calls another operation. All members are told, and the group goes on.
        """
        self._end.barrier()

    def close(self) -> None:
        """Leaves the group. May be repeated. Members that still wait for this one, or will, get `GroupBroken`."""
        self._end.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._end.address():
            return f"<cableway.Group {self.name!r} closed>"
        rank, size, completed = self._end.numbers()
        return f"<cableway.Group {self.name!r} rank={rank} size={size} completed={completed}>"
