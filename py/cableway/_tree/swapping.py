"""What a tree does that was got with `swappable=True`: its memory goes, comes back, and gives way to another version's, at the same
addresses.

The library decides by its mount (ipc/tree/mount.c) which version is mapped. What a Tree says of itself follows: it is made before
the call, and taken over by whoever looks first after it, so that no exception of a signal's handler comes between the two.
"""

from __future__ import annotations

import errno
import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import index
from typing import Any, NamedTuple, TypeVar

from cableway import client
from cableway._core.deadlines import Retries, deadline, left_ns, slice_ns
from cableway._core.leases import FixedLease, lease_again
from cableway._core.library import check, check_again, ffi, from_cell, lib
from cableway._cuda import stream_order
from cableway._tree.table import difference, rows
from cableway.errors import BrokerLost, Error, LayoutChanged, NameNotFound, Timeout

__all__ = [
    "Described",
    "Swapping",
    "checked",
    "described",
    "mounted",
    "new_cell",
    "new_turn",
    "until_later",
    "wait_after",
]


def checked(version: int, name: str = "version", least: int = 1) -> int:
    """The number of a version, if it is one. name: of the argument.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is below least, or has more than 64 bits.
    """
    try:
        number = index(version)
        if isinstance(version, bool):
            raise TypeError
    except TypeError:
        raise TypeError(
            f"{name} is a whole number, as Tree.version has it, not {version!r}"
        ) from None
    if not least <= number < (1 << 64) - 1:
        raise ValueError(f"{name} is a number from {least} on, of at most 64 bits, not {version}")
    return number


_SLICE_NS = (
    100_000_000  # of a wait: then signals are served, and it is seen that the tree was closed
)


_BEHIND_SECONDS = 1.0  # for which what this node knows of another node's name may be older than what a wait for it was told
_Got = TypeVar("_Got")


def until_later(get: Callable[[], tuple[int, _Got]], version: int) -> _Got:
    """What get() has got, with its version, of a name of which a wait was told that it means a later one than that. Again as long as it
    is that one, for a second at most.
    """
    end = time.monotonic() + _BEHIND_SECONDS
    while True:
        number, found = get()
        if number != version or time.monotonic() >= end:
            return found
        time.sleep(0.001)


class Described(NamedTuple):
    """What a tree says of itself.

    Attributes:
        pointer: the `cw_tree *`, which is there as long as anybody has this pointer.
        info: of it, a `cw_tree_info *`.
        state: the mount's when this holds, with its version.
    """

    pointer: Any
    info: Any
    state: tuple[int, int]


def new_cell() -> Any:
    """A place for a `cw_tree *`, which is closed when that goes."""
    return ffi.gc(ffi.new("cw_tree **"), lib.cwpy_tree_end)


def described(cell: Any, state: int = 0) -> Described:
    """The same of a cell (extra.h) with a tree."""
    info = ffi.new("cw_tree_info *")
    lib.cw_tree_look_at(cell[0], info)
    return Described(from_cell(cell), info, (state, int(info.version)))


def new_turn() -> Any:
    """A turn (extra.h) that nobody has."""
    turn = ffi.new("uint64_t[5]")
    lib.cwpy_turn_init(turn)
    return turn


def mounted(tree: Any) -> Any:
    """A `cw_mount *` of a `cw_tree *`."""
    cell = ffi.gc(ffi.new("cw_mount **"), lib.cwpy_mount_end)
    check_again(lib.cw_mount_open, tree, client.current().pointer, cell)
    return from_cell(cell)


class Swapping:
    """The part of `Tree` for trees that were got with `swappable=True`."""

    __slots__ = (
        "_closed",
        "_described",
        "_mount",
        "_name",
        "_next",
        "_pid",
        "_run",
        "_table",
        "_turn",
    )

    _closed: bool
    _described: Described
    _mount: Any  # cw_mount *; None: it was not got so
    _name: str | None
    _next: Described | None  # what it says once the mount is so
    _pid: int  # of who got it
    _run: int  # of the broker
    _table: Any
    _turn: Any  # of the calls that change what is mapped; taken until a cell of such a call goes (extra.h)

    def _now(self) -> Described:
        """What the tree says. Another thread may close this object at any moment: whoever has this keeps what it points to.

        So all that close() takes away is read once, and before this look whether it is closed, which close() says first.
        """
        self._settle()
        now = self._described
        if self._closed:
            raise ValueError(
                f"this cableway.Tree {self._name!r} is closed; open it again with cableway.get()"
            )
        return now

    def _pointer(self) -> Any:
        """The `cw_tree *`, which stays as long as anybody has it."""
        return self._now().pointer

    def _told(self) -> Any:
        """The `cw_tree_info *`, of the version that is mapped."""
        self._settle()
        return self._described.info

    def _settle(self) -> None:
        waiting, mount = self._next, self._mount
        if waiting is None or mount is None or waiting is self._described:
            return
        if (lib.cw_mount_state(mount), lib.cw_mount_version(mount)) == waiting.state:
            self._described = waiting
            self._table = None
            if self._closed:  # meanwhile, and close() gave up another one
                self._described = Described(None, waiting.info, (0, 0))

    def _own_mount(self) -> Any:
        mount = self._mount
        self._pointer()
        if mount is None:
            raise ValueError(
                "this tree's addresses cannot be kept: get it with cableway.get(name, swappable=True)"
            )
        return mount

    @contextmanager
    def _changing(self) -> Iterator[Any]:
        """The mount, for one thread at a time: others wait."""
        self._own_mount()
        turn = ffi.gc(ffi.new("int *"), functools.partial(lib.cwpy_turn_end, self._turn))
        while status := lib.cwpy_turn_take(self._turn, _SLICE_NS, turn):
            if status == -2:
                raise Error(
                    "a signal's handler cannot exchange the memory of a tree whose exchange it has interrupted: call again later"
                )
            if os.getpid() != self._pid:  # the thread that has the turn is not here
                raise Error("a forked child cannot exchange the memory of a tree: get it anew")
            self._pointer()  # or somebody has closed it
        try:
            yield self._own_mount()
        finally:
            self._settle()
            if self._next is not self._described:
                self._next = None  # it did not come to that: its version is given up
            ffi.release(turn)

    def _fixed_part(self, mount: Any, number: int) -> FixedLease:
        return lease_again(FixedLease, lib.cw_mount_part, mount, number)

    @property
    def state(self) -> str:
        """Where its memory is: "mapped", "unmapped" or "parked"."""
        mount = self._mount
        self._pointer()
        if mount is None:
            return "mapped"
        states = {lib.CW_MOUNT_UNMAPPED: "unmapped", lib.CW_MOUNT_PARKED: "parked"}
        return states.get(lib.cw_mount_state(mount), "mapped")

    def unmap(self, *, stream: Any = None) -> None:
        """Takes the tree's memory out of this process; its addresses stay reserved, and the version stays.

        Waits first for all work of this process on the tree's GPUs. While the tree is unmapped, its arrays raise. Code that reads
        the addresses by itself (a tensor in host memory, a kernel, a captured graph) ends its process with SIGSEGV, or breaks its
        CUDA context (error 700).

        Args:
            stream: the stream that must not be under capture; None: the current one of the library that is in use.

        Raises:
            ValueError: the tree was not got with `swappable=True`, or a stream is being captured. Nothing has changed.
            Error: a section or a copy on one of its arrays is under way. Nothing has changed.
        """
        with self._changing() as mount:
            check(lib.cw_mount_unmap(mount, _pointer_of(stream)))

    def map(self) -> None:
        """Maps the same version again, at the same addresses. Needs no broker.

        Raises:
            ValueError: the tree is parked.
            LimitExceeded: no memory; the tree stays unmapped.
        """
        with self._changing() as mount:
            check(lib.cw_mount_map(mount))

    def swap(
        self, timeout: float | None = 0, *, version: int | None = None, stream: Any = None
    ) -> bool:
        """Maps the newest version at the addresses of this one, which it gives up: its memory is free once nobody else has it.

        Everything that stands on these addresses sees the new values: tensors of `torch()`, parameters after `into()`, arrays, and
        captured CUDA graphs when they are replayed. (Buffers that `into()` copied stay as they are.) Afterwards `version`, `meta`
        and the hashes are the new version's. Waits first for all work of this process on the tree's GPUs.

        Args:
            timeout: seconds to wait for a later version; 0: do not wait, None: for ever.
            version: this version, earlier or later, as long as a process has it.
            stream: as `unmap` has it.

        Returns:
            whether another version is mapped now. False: there is no later one; a tree that was unmapped is mapped again.

        Of several threads one exchanges at a time, and the others wait for it. close() ends a wait for a later version.

        Raises:
            LayoutChanged: the new version has another `layout_hash`; the first leaf that differs is named. Get it as a tree of its own.
            NameNotFound: nobody has that version any more.
            ValueError: the tree was not got with `swappable=True`, is parked or closed, or a stream is being captured.
            BrokerLost: the broker is gone, or was: after that get the tree anew.
            Error: a section or a copy on one of its arrays is under way.

        If it raises, the old version stays mapped. Only if the driver does not let it be mapped again, the tree is unmapped, and
        the message says so.
        """
        self._check_swap(self._own_mount())
        wanted = self._later(timeout) if version is None else checked(version)
        with self._changing() as mount:
            self._check_swap(mount)
            found, cell = None, new_cell()
            if wanted is not None and wanted != self._described.info.version:
                name, pointer = str(self._name).encode(), client.current().pointer

                def got() -> tuple[int, tuple[Any, Described]]:
                    cell = new_cell()
                    check_again(lib.cw_tree_get, pointer, name, wanted, cell)
                    found = described(cell, lib.CW_MOUNT_MAPPED)
                    return int(found.info.version), (cell, found)

                now = int(self._described.info.version)
                cell, found = got()[1] if wanted else until_later(got, now)
            if found is None or found.info.version == self._described.info.version:
                if lib.cw_mount_state(mount) == lib.CW_MOUNT_UNMAPPED:
                    check(lib.cw_mount_map(mount))
                return False
            before, self._next = self._now(), found
            try:
                check_again(lib.cw_mount_swap, mount, cell[0], _pointer_of(stream))
            except LayoutChanged as error:
                differs = difference(rows(before.info), rows(found.info))
                raise LayoutChanged(f"{error}{': ' if differs else ''}{differs}") from None
            return True

    def _check_swap(self, mount: Any) -> None:
        connection = client.current()
        check(lib.cw_client_check(connection.pointer))
        if connection.instance != self._run:
            raise BrokerLost("the broker that had this tree has ended: get the tree anew")
        if lib.cw_mount_state(mount) == lib.CW_MOUNT_PARKED:
            raise ValueError("the tree is parked: unpark it first")

    def _later(self, timeout: float | None) -> int | None:
        """0 if there is a later version, None if not in time.

        Raises:
            ValueError: the tree has no name, or was closed meanwhile.
        """
        if self._name is None:
            raise ValueError("this tree has no name under which there could be a newer one")
        end, encoded = math.inf if timeout is None else deadline(timeout), self._name.encode()
        while True:
            pointer, connection, left = self._pointer(), client.current().pointer, left_ns(end)
            last = 0 <= left <= _SLICE_NS
            status = lib.cw_tree_newer(pointer, connection, encoded, left if last else _SLICE_NS)
            if status == -errno.ETIMEDOUT and last:
                return None
            if status not in (-errno.EINTR, -errno.ETIMEDOUT):
                check(status)
                return 0

    def park(self, device: str = "cpu", *, stream: Any = None) -> None:
        """Copies what lies on GPUs to host memory and gives the GPU memory up: it is free once no other process has it.

        The addresses stay reserved, as after `unmap`. The copy belongs to this Tree alone. If it was the last that had this version,
        the version cannot be got any more.

        Args:
            device: "cpu".
            stream: as `unmap` has it.

        Raises:
            ValueError: as `unmap`; or the tree is unmapped.
            LimitExceeded: no host memory. The tree stays mapped.
        """
        if device != "cpu":
            raise ValueError(f'a tree is parked in host memory, device="cpu", not {device!r}')
        with self._changing() as mount:
            cell = new_cell()
            check(lib.cw_tree_describe(self._pointer(), cell))
            self._next = described(cell, lib.CW_MOUNT_PARKED)
            check(lib.cw_mount_park(mount, _pointer_of(stream)))

    def unpark(self) -> None:
        """Fills GPU memory again, at the old addresses.

        If another process still has this version, its memory is shared again. Otherwise new memory is filled from the parked copy,
        which is this process's alone: the tree cannot be pickled or named then; put its arrays as a new tree.

        Raises:
            ValueError: the tree is unmapped and not parked; `map` it.
            LimitExceeded: no GPU memory. The tree stays parked.
            BrokerLost: the broker is gone; the tree stays parked.
        """
        with self._changing() as mount:
            if lib.cw_mount_state(mount) != lib.CW_MOUNT_PARKED:
                check(lib.cw_mount_unpark(mount, ffi.NULL))
                return
            cell, connection = new_cell(), client.current()
            version = int(self._described.info.version)
            try:
                if self._name is None or connection.instance != self._run:
                    raise NameNotFound
                check_again(lib.cw_tree_get, connection.pointer, self._name.encode(), version, cell)
            except NameNotFound:
                check_again(lib.cw_mount_unpark, mount, ffi.NULL)
                return
            self._next = described(cell, lib.CW_MOUNT_MAPPED)
            check_again(lib.cw_mount_unpark, mount, cell[0])


def _pointer_of(stream: Any) -> Any:
    return ffi.cast("void *", stream_order.stream_number(stream))


def wait_after(name: str, after: int, timeout: float | None) -> None:
    """Waits until the name means a version after that one; see `cableway.wait`."""
    after = checked(after, "after", 0)
    end = math.inf if timeout is None else deadline(timeout)
    encoded, retries = name.encode(), Retries(end)
    while True:
        left, last = slice_ns(end)
        status = lib.cw_wait_after(client.current().pointer, encoded, after, left)
        if status == -errno.ETIMEDOUT and last:
            raise Timeout(f'"{name}" got no version after {after} in {timeout} s')
        if status == -errno.ETIMEDOUT:
            retries.was_there()
        elif status != -errno.EINTR and not retries.tries_again(status):
            check(status)
            return
