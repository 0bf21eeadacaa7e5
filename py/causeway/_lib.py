"""The compiled library: `ffi`, `lib`, and how its results become exceptions.

>>> from causeway._lib import lib, check
>>> check(0)
0
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from causeway import _causeway as _module
from causeway.errors import from_status

__all__ = [
    "check",
    "check_again",
    "failure",
    "ffi",
    "lib",
    "make_again",
    "on_broker_lost",
    "try_once",
]

ffi: Any = _module.ffi
lib: Any = _module.lib

_lost_hooks: list[Callable[[], None]] = []


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


def try_once(call: Callable[..., int], *arguments: Any) -> tuple[int, Any]:
    """The status of a call, and the `cw_array *` that it puts where its last argument points: the caller's to close. If a
    signal's handler raises when one was made, it is closed: nobody would get to know it.
    """
    out = ffi.new("cw_array **")
    try:
        status = call(*arguments, out)
    except BaseException:
        lib.cw_array_close(out[0])
        raise
    return status, out[0]


def make_again(call: Callable[..., int], *arguments: Any) -> Any:
    """The `cw_array *` of such a call, which is made as in check_again()."""
    status, pointer = try_once(call, *arguments)
    while status == -errno.EINTR:
        status, pointer = try_once(call, *arguments)
    check(status)
    return pointer
