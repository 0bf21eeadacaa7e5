"""The compiled library: `ffi`, `lib`, and how its results become exceptions.

>>> from cableway._core.library import lib, check
>>> check(0)
0
"""

from __future__ import annotations

import errno
import functools
import operator
from collections.abc import Callable
from typing import Any

from cableway import _cableway as _module
from cableway.errors import LimitExceeded, from_status

__all__ = [
    "check",
    "check_again",
    "export_again",
    "exported",
    "failure",
    "ffi",
    "from_cell",
    "keeping",
    "lib",
    "on_broker_lost",
    "when_full",
]

ffi: Any = _module.ffi
lib: Any = _module.lib

_lost_hooks: list[Callable[[], None]] = []
_make_room: list[Callable[[], bool]] = []


def on_broker_lost(hook: Callable[[], None]) -> None:
    """Calls hook() whenever a call found that the broker is gone, before `BrokerLost` is raised."""
    _lost_hooks.append(hook)


def failure(status: int) -> Exception:
    """The exception for a negative status. Call it in the thread that got it, before anything else."""
    sentence = ffi.string(lib.cw_error()).decode("utf-8", "replace")
    if status == -errno.ECONNRESET:
        for hook in _lost_hooks:
            hook()
    return from_status(status, sentence)


def failure_within(status: int, timeout: float | None) -> Exception:
    """The same of a call that had what was left of that timeout in seconds: an error that it is over names it."""
    error = failure(status)
    if status == -errno.ETIMEDOUT and timeout:
        return type(error)(f"{error} (timeout: {timeout} s)")
    return error


def check(status: int) -> int:
    """Returns status, or raises what it means when it is negative."""
    if status < 0:
        raise failure(status)
    return status


def check_again(call: Callable[..., int], *arguments: Any) -> int:
    """check() of a call that a signal ends before it did anything: the signal is served, and it is called again."""
    while (status := call(*arguments)) == -errno.EINTR:
        pass
    return check(status)


def keeping(pointer: Any, owner: object) -> Any:
    """The same pointer; the owner of what it points to stays as long as this one."""
    return ffi.gc(
        pointer, functools.partial(operator.is_, owner)
    )  # does nothing, but has the owner


def from_cell(cell: Any) -> Any:
    """The pointer in a cell (extra.h) that gives back what it has when it goes."""
    return keeping(cell[0], cell)


def when_full(make_room: Callable[[], bool]) -> None:
    """Where no further transit is possible make_room() is called, and the array exported again as long as it says True."""
    _make_room.append(make_room)


def export_again(call: Callable[..., int], *arguments: Any) -> None:
    """check_again() of a call that begins a transit; again where room could be made for one."""
    while True:
        try:
            check_again(call, *arguments)
            return
        except LimitExceeded:
            if not any(make() for make in _make_room):
                raise


def exported(pointer: Any, openers: int) -> Any:
    """The `cw_handle *` of an array. Its transit ends if a signal's handler raises when it was begun."""
    handle = ffi.new("cw_handle *")
    try:
        if openers:
            export_again(lib.cw_array_export, pointer, openers, handle)
        else:
            check_again(lib.cw_array_export, pointer, 0, handle)
    except BaseException:
        if handle.token:
            lib.cw_handle_discard(lib.cw_array_client(pointer), handle)
        raise
    return handle
