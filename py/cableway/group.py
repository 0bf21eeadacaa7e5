"""Groups of processes that compute together: `Group` joins one by name.

>>> import cableway as cw
>>> with cw.Group("docs", 1) as g:
...     g.barrier()
...     g.rank, g.size
(0, 1)
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cableway import _dispatch, client, create
from cableway._core.deadlines import checked_seconds
from cableway._group import environment, nccl, objects, operations
from cableway._group.calls import Calls, in_step
from cableway._group.messages import Mailbox
from cableway._group.point_to_point import PointToPoint
from cableway._group.requests import Request
from cableway._group.status import Status

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from cableway.array import Array

__all__ = ["Group", "Request", "Status"]

_FOR_EVER_SECONDS = 1e9  # and longer: for ever


def _nanoseconds(timeout: float | None) -> int:
    if timeout is None:
        return -1
    seconds = checked_seconds(timeout)
    if seconds < 0:
        raise ValueError(f"timeout {timeout}: seconds are 0 or more; None is without limit")
    return -1 if seconds > _FOR_EVER_SECONDS else int(seconds * 1e9)


class Group(PointToPoint):
    """A member of a group of processes of one machine, which join by name and then meet in collective operations.

    The processes need not be related. Every member calls the same operations in the same order. If a member dies, leaves or gives
    up, all others get `GroupBroken` at once, at the latest in their next operation, and may go on without it by `reform`. One
    thread at a time uses a member, and a forked child is none: it joins a group of its own.

    >>> import cableway as cw
    >>> g = cw.Group("docs/sum", 1)
    >>> g.barrier()
    >>> g.close()

    Without a name it is the group of all processes of the job that this one belongs to, as mpi4py's COMM_WORLD: those that
    `cableway run`, mpirun, mpiexec or srun has started together, on one machine. A process that none of them has started is a
    group of one. The second such call of a process joins a second group of the same members, and so on.

    Args:
        name: of the group: 1 to 190 bytes, as the name of an array. None: that of the job, with its size and rank.
        size: number of members, 1 to 256.
        rank: this member's number, from 0 to size - 1. None: the lowest that is free. Either all members give their rank, or none.
        timeout: seconds for joining, then for each operation, and again for its later steps. None: without limit.

    Raises:
        Timeout: not all members came in time, or an earlier group of that name has not ended.
        NameTaken: another process has this rank.
        ValueError: size or rank out of range, another size than the other members give, or a bad name; without a name:
            variables of the environment that make no sense.
        Error: the group has all its members already, and none of them has left; without a name: the job has processes on other
            machines, or its name cannot be found.
        TypeError: a name without a size, or the reverse.

    Attributes:
        name: of the group.
    """

    __slots__ = ("__weakref__", "_calls", "_end", "_pid", "_timeout", "_watches", "name")

    def __init__(
        self,
        name: str | None = None,
        size: int | None = None,
        rank: int | None = None,
        timeout: float | None = 30,
    ) -> None:
        of_job = name is None
        if name is None:
            if size is not None or rank is not None:
                raise TypeError(
                    "a size and a rank need a name; without all three it is the job's group"
                )
            name, size, rank = environment.next_membership()
        elif size is None:
            raise TypeError(f"the group {name!r} needs a size: how many members it has")
        self._join(name, size, rank, timeout)
        if of_job:
            environment.joined()

    def _join(
        self, name: str, size: int, rank: int | None, timeout: float | None, stop: int = 0
    ) -> None:
        """stop: the address of a word of 4 bytes, which the caller keeps: joining gives up when it is not 0. 0: none."""
        members, number = environment.checked(name, size, rank)
        limit_ns, begun_ns = _nanoseconds(timeout), time.monotonic_ns()
        connection = client.current(limit_ns or -1)
        spent_ns = time.monotonic_ns() - begun_ns
        self.name = name
        self._timeout = timeout
        self._pid = os.getpid()
        self._watches: list[nccl.Watch] = []
        weakref.finalize(self, nccl.stop, self._watches)
        pointer = connection.pointer  # stays until it has joined, though a thread closes it
        self._end = _dispatch.GroupEnd(
            connection.number, name, members, number, limit_ns, stop, spent_ns
        )
        del pointer
        self._calls = Calls(self._end)
        self._box = Mailbox(self._calls, timeout)

    @classmethod
    def _join_until(cls, name: str, size: int, rank: int, stop: int) -> Group:
        """A member that joins without limit, but only while the word at the address stop is 0."""
        made = cls.__new__(cls)
        made._join(name, size, rank, None, stop)
        return made

    @property
    def timeout(self) -> float | None:
        """Seconds for each operation; None: without limit. Can be set between operations."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._end.set_timeout(_nanoseconds(seconds))
        self._timeout = self._box.limit = seconds

    @property
    def rank(self) -> int:
        """This member's number, from 0 to size - 1."""
        return self._end.numbers()[0]

    @property
    def size(self) -> int:
        """Number of members."""
        return self._end.numbers()[1]

    def Get_rank(self) -> int:
        """`rank`, as mpi4py calls it."""
        return self.rank

    def Get_size(self) -> int:
        """`size`, as mpi4py calls it."""
        return self.size

    @property
    def completed(self) -> int:
        """How many collective operations this member has completed. After `reform` it is the lowest number of all that are left."""
        return self._end.numbers()[2]

    def barrier(self) -> None:
        """Waits until all members have called it. Blocks.

        Raises:
            GroupBroken: a member is gone. Timeout: not all came in time; the group is broken then.
            ValueError: another member calls another operation. All members are told, and the group goes on.
        """
        self._calls.barrier[()]

    Barrier = barrier

    @property
    def broken(self) -> bool:
        """Whether the group is broken, as far as anybody has noticed: the next operation raises `GroupBroken`, and `reform` goes on."""
        return self._end.broken

    def reform(self, drop_messages: bool = False) -> None:
        """After `GroupBroken` or `Timeout`: the members that are left go on as a group of fewer. Blocks until all of them have called
        it, or have ended or closed the group.

        `rank` and `size` are new; the ranks keep their order. Some members may have completed an operation that others have not:
        `completed` is the lowest number of all of them, so that they can agree from where to do it again. What the interrupted
        operation should have written has no meaning; what was sent is as it was, unless it was sent and received in place.

        Messages that the members which are left sent each other before are received afterwards, in their order, from the new rank
        of their sender. Those of members that are gone are dropped, and so are requests that are not done.

        Args:
            drop_messages: this member drops all messages that were sent to it before: for members that do again what they sent.

        Raises:
            ValueError: the group is not broken.
            Timeout: a member lives and has not called it. It can be called again.
            GroupBroken: the others went on without this one.
        """
        if self.broken:  # first: what a signal's handler raises behind reform() must not leave requests to the old ranks
            self._box.forget()
            self._revoke()
        self._end.reform(drop_messages)
        self._box.forget()
        self._revoke()

    def empty(
        self, shape: int | tuple[int, ...], dtype: DTypeLike = float, *, device: str = "cpu"
    ) -> list[Array]:
        """Each member makes an array with arbitrary contents, and all map all of them. Blocks.

        Operations on arrays of cableway need no copy; those that all have mapped already are opened without asking the broker.

        Args:
            shape: of this member's array: one length or a tuple of them.
            dtype: of its elements.
            device: of this member's array: "cpu" or "cuda:N". Several members may name one GPU. Each has to see the GPUs of all.

        Returns:
            the arrays of all members, by rank; `g.empty(...)[g.rank]` is this member's own.

        >>> import cableway as cw
        >>> with cw.Group("docs/empty", 1) as g:
        ...     mine = g.empty(1000, "f4")[g.rank]
        ...     mine[...] = 1
        ...     float(g.Allreduce(mine, out=mine).numpy()[0])
        1.0
        """
        rank = self.rank

        def make() -> list[Array]:
            mine = create.empty(shape, dtype, device=device)

            def with_mine(found: list[Array]) -> list[Array]:
                found[rank] = mine
                return found

            made: list[Array] = objects.exchange(
                self._calls, mine, objects.ALL, objects.ALL, objects.EMPTY, rank, finish=with_mine
            )
            return made

        return in_step(self._end, make)

    def nccl(self, device: str | None = None) -> Any:
        """A communicator of NCCL in which the members have their ranks: `cupy.cuda.nccl.NcclCommunicator`. Needs CuPy. Blocks.

        NCCL's calls are submitted to a stream; the group's own operations are waited for. It takes about half a second to make a
        communicator, and several hundred MiB of memory on each GPU. Its calls are not ordered with sections by themselves: give
        them a stream within `Array.writing`.

        It is aborted when a member's process ends, when the group is broken, in `reform`, and in `close`: its calls that wait end
        then, and later ones raise `NcclError`.

        Args:
            device: "cuda:N", another one for each member. None: CuPy's current one.

        Raises:
            DeviceError: a member has no CuPy or NCCL, or two have the same GPU, or NCCL cannot join them. All members are told who
                it is, and the group goes on.
            GroupBroken: a member is gone. Timeout: NCCL did not join the members in time.
        """
        return nccl.communicator(
            self._end,
            lambda obj: self._exchange(obj, objects.ALL, objects.ALL, objects.NCCL),
            device,
            self._timeout,
            self._watches,
        )

    def _revoke(self) -> None:
        """Ends the communicators of NCCL."""
        nccl.stop(self._watches)

    # ---- on buffers: arrays of cableway and NumPy, and on GPUs also of other libraries; contiguous

    def Bcast(self, data: Any, root: int = 0) -> Any:
        """root's elements come to all. Blocks.

        Args:
            data: an array, at root to be sent, elsewhere to be received into. The same dtype and number of elements everywhere.
            root: rank of the sender.

        Returns:
            data.

        Raises:
            GroupBroken, Timeout: as `barrier`. ValueError: a member calls something else, or with another dtype, count or root;
            all members are told, nothing was done, and the group goes on; or the array is not contiguous, or read-only.

        On a GPU: what was given to the GPU before by sections on the array (`Array.writing`), or by another library to the stream
        that its array names, comes first. All is done when the operation returns.
        """
        if self._calls.move[operations.BCAST, data, data, None, root]:
            return data
        return self._bcast(data, root)

    def Scatter(self, send: Any, out: Any, root: int = 0) -> Any:
        """Each member receives one of root's `size` equal blocks, by rank. Blocks. send counts at root alone. Returns out."""
        return in_step(
            self._end,
            lambda: operations.scatter(self._calls, send, out, root, self.rank, self.size),
        )

    def Gather(self, send: Any, out: Any = None, root: int = 0) -> Any:
        """root receives the elements of all members, by rank. Blocks. Returns out, elsewhere None.

        Args:
            send: as many elements on each member.
            out: at root: an array of size times as many. None: a new one with one axis more, of `size` elements, in front.
            root: rank of the receiver.
        """
        return self._gather(operations.GATHER, send, out, root, self.rank == root)

    def Allgather(self, send: Any, out: Any = None) -> Any:
        """All receive the elements of all members, by rank. Blocks. Returns out; None: a new array with one axis more in front."""
        kind, none = operations.ALLGATHER, operations.NO_ROOT
        if self._calls.move[kind, send, out, None, none]:
            return out
        return self._gather(kind, send, out, none, True)

    def Reduce(self, send: Any, out: Any = None, op: str = "sum", root: int = 0) -> Any:
        """As `Allreduce`, for root alone. Blocks. Returns out, elsewhere None."""
        return self._reduce(operations.REDUCE, send, out, op, root, self.rank == root)

    def Allreduce(self, send: Any, out: Any = None, op: str = "sum") -> Any:
        """Elements of all members become one, everywhere the same bits. Blocks.

        They are computed in the order of the ranks, so the result is the same each time; float16 and bfloat16 in float32, and
        rounded once. Where all send and receive in arrays of cableway, nothing is copied: each member computes a part for all.

        Args:
            send: an array; the same dtype and number of elements on each member.
            out: an array for the result; may be send, or one array of cableway for all members. None: a new one.
            op: "sum", "prod", "min", "max" (NaN, where one is); of integers and bools also "land", "lor", "lxor" (logical) and
                "band", "bor", "bxor" (bitwise). Sums and products of integers wrap around.

        Returns:
            out.

        >>> import numpy as np, cableway as cw
        >>> with cw.Group("docs/allreduce", 1) as g:
        ...     g.Allreduce(np.arange(3))
        array([0, 1, 2])
        """
        kind, none = operations.ALLREDUCE, operations.NO_ROOT
        if self._calls.move[kind, send, out, op, none]:
            return out
        return self._reduce(kind, send, out, op, none, True)

    def Reduce_scatter(self, send: Any, out: Any = None, op: str = "sum") -> Any:
        """Each member receives one of `size` equal blocks of the result, by rank. Blocks. Returns out; None: a new array."""
        kind, none = operations.REDUCE_SCATTER, operations.NO_ROOT
        if self._calls.move[kind, send, out, op, none]:
            return out
        return self._split(kind, send, out, op)

    def Alltoall(self, send: Any, out: Any = None) -> Any:
        """Each member sends one of its `size` equal blocks to each, and receives one of each. Blocks. Returns out; None: a new
        array.
        """
        kind, none = operations.ALLTOALL, operations.NO_ROOT
        if self._calls.move[kind, send, out, None, none]:
            return out
        return self._split(kind, send, out, None)

    # Where Python is needed: apart, since a lambda costs the function around it also where it is not made (cells).

    def _bcast(self, data: Any, root: int) -> Any:
        return in_step(self._end, lambda: operations.bcast(self._calls, data, root, self.rank))

    def _gather(self, kind: int, send: Any, out: Any, root: int, here: bool) -> Any:
        return in_step(
            self._end,
            lambda: operations.gather(self._calls, kind, send, out, root, here, self.size),
        )

    def _reduce(self, kind: int, send: Any, out: Any, op: str, root: int, here: bool) -> Any:
        return in_step(
            self._end, lambda: operations.reduce(self._calls, kind, send, out, op, root, here)
        )

    def _split(self, kind: int, send: Any, out: Any, op: str | None) -> Any:
        return in_step(
            self._end, lambda: operations.split(self._calls, kind, send, out, op, self.size)
        )

    # ---- on objects, which travel as pickles

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        """root's object comes to all. Blocks. Returns it; at root obj itself. An array of cableway in it is not copied."""
        given = objects.given(root)
        if self.rank == root:  # no call behind the operation: a signal's handler might raise there
            self._exchange(obj, given, objects.ALL, objects.BCAST)
            return obj
        return self._exchange(obj, given, objects.ALL, objects.BCAST)[root]

    def scatter(self, objs: Any = None, root: int = 0) -> Any:
        """Of root's `size` objects each member gets one, by rank. Blocks. objs counts at root alone."""
        label = objects.SCATTER
        return self._exchange(
            objs,
            objects.given(root),
            objects.ALL,
            label,
            self.size if self.rank == root else 0,
            True,
        )[root]

    def gather(self, obj: Any, root: int = 0) -> list[Any] | None:
        """root gets a list of the objects of all members, by rank; the others None. Blocks."""
        rank = self.rank
        found = self._exchange(obj, objects.ALL, objects.given(root), objects.GATHER)
        return found if rank == root else None

    def allgather(self, obj: Any) -> list[Any]:
        """A list of the objects of all members, by rank. Blocks."""
        found: list[Any] = self._exchange(obj, objects.ALL, objects.ALL, objects.ALLGATHER)
        return found

    def reduce(self, obj: Any, op: str | Callable[[Any, Any], Any] = "sum", root: int = 0) -> Any:
        """As `allreduce`, for root alone; the others get None. Blocks."""
        folds = self.rank == root
        return self._exchange(
            obj, objects.ALL, objects.given(root), objects.REDUCE, op=op, folds=folds
        )

    def allreduce(self, obj: Any, op: str | Callable[[Any, Any], Any] = "sum") -> Any:
        """One object of those of all members, in the order of the ranks, on each member. Blocks.

        Args:
            obj: this member's.
            op: as for `Allreduce`, or a function of two objects. Each member calls it; if it raises, perhaps once more.

        >>> import cableway as cw
        >>> with cw.Group("docs/objects", 1) as g:
        ...     g.allreduce({"seen": 1}, lambda a, b: {**a, **b})
        {'seen': 1}
        """
        return self._exchange(obj, objects.ALL, objects.ALL, objects.ALLREDUCE, op=op)

    def reduce_scatter(self, objs: Any, op: str | Callable[[Any, Any], Any] = "sum") -> Any:
        """Each member gives `size` objects and gets one, made of those that the members gave for its rank. Blocks."""
        label = objects.REDUCE_SCATTER
        return self._exchange(objs, objects.ALL, objects.ALL, label, self.size, True, op)

    def alltoall(self, objs: Any) -> list[Any]:
        """Each member gives `size` objects, one for each, and gets a list of those that were for it, by rank. Blocks."""
        label, size = objects.ALLTOALL, self.size
        found: list[Any] = self._exchange(objs, objects.ALL, objects.ALL, label, size, True)
        return found

    def _exchange(
        self,
        obj: Any,
        source: int | None,
        to: int | None,
        label: int,
        parts: int = 0,
        part: bool = False,
        op: str | Callable[[Any, Any], Any] | None = None,
        folds: bool = True,
    ) -> Any:
        """An operation on objects; see `objects.operate`."""
        return objects.operate(self._calls, obj, source, to, label, parts, part, op, folds)

    def close(self) -> None:
        """Leaves the group. May be repeated. Members that still wait for this one, or will, get `GroupBroken`."""
        self._revoke()
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

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a Group is one process's member and cannot be copied or pickled; pass its name {self.name!r}, and join there"
        )

    def __repr__(self) -> str:
        if not self._end.address():
            return f"<cableway.Group {self.name!r} closed>"
        rank, size, completed = self._end.numbers()
        return f"<cableway.Group {self.name!r} rank={rank} size={size} completed={completed}>"
