"""Old versions of a tree that processes still have open, and a put that waits until they are few.

The broker knows the versions, and who has each of them open. It is looked at before anything is copied, so it bounds memory in the
usual case of one publisher: a reader may open a version, and another publisher put one, right after the look.

Also what a put says of the version that it found.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from typing import Any

from cableway import client
from cableway._core.deadlines import checked_seconds, deadline
from cableway._core.library import check, failure, ffi, lib
from cableway.errors import LimitExceeded, NameExists, VersionChanged

__all__ = ["await_room", "check_timeout", "check_version"]

_NAP_MAX = 0.05  # seconds between two looks


def _held(name: str) -> Iterator[Any]:
    """The `cw_version_info *` of each version of that name that a process has open, also the latest one."""
    info, after = ffi.new("cw_version_info *"), 0
    while True:
        status = lib.cw_version_next(client.current().pointer, name.encode(), 0, after, info)
        if status == -errno.ENOENT:
            return
        if status != -errno.EINTR:
            check(status)
            after = info.version
            if info.holders:
                yield info


def check_timeout(timeout: float | None, max_old: int | None) -> None:
    """Refuses the timeout of a put that is none, or has no meaning.

    Raises:
        TypeError: it is no number.
        ValueError: it is below 0; or something is to be waited for, without max_old.
    """
    seconds = None if timeout is None else checked_seconds(timeout)
    if seconds is not None and seconds < 0:
        raise ValueError(f"timeout is 0 or more seconds, or None, not {timeout}")
    if max_old is None and seconds != 0:
        raise ValueError(
            f"timeout={timeout} says how long a put waits with max_old=; give that, too, or leave timeout= out"
        )


def await_room(name: str, max_old: int, timeout: float | None) -> None:
    """Waits until a put makes no more than max_old old versions that processes have open.

    Raises:
        LimitExceeded: there are more after that time; it says which, and who has them.
    """
    end, nap = deadline(timeout), 0.001
    while True:
        held = [_told(info) for info in _held(name)]
        if len(held) <= max_old:
            return
        left = end - time.monotonic()
        if left <= 0:
            raise LimitExceeded(
                f'"{name}" would have {len(held)} old versions that processes have open, and max_old={max_old}: '
                f"{'; '.join(held)}. Close or swap them there, wait for it with timeout=, or allow more"
            )
        time.sleep(min(nap, left))
        nap = min(2 * nap, _NAP_MAX)


def _told(info: Any) -> str:
    pids = ", ".join(str(info.pids[number]) for number in range(info.listed))
    more = ", ..." if info.holders > info.listed else ""
    return f"version {info.version} ({info.total_bytes} bytes) by pid {pids}{more}"


def check_version(status: int, if_version: int | None) -> None:
    """What the status of a put means that asked for a version.

    Raises:
        NameExists: if_version is 0, and the name exists.
        VersionChanged: the name means another version.
        What the status means else, when it is negative.
    """
    if status == -errno.ESTALE:
        raise VersionChanged(str(failure(status)))
    if status == -errno.EEXIST and if_version == 0:
        raise NameExists(str(failure(status)))
    check(status)
