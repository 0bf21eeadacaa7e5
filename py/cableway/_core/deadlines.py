"""Timeouts as callers give them, in seconds, and what is left of them, as the library takes it."""

from __future__ import annotations

import errno
import math
import time

__all__ = ["Retries", "checked_seconds", "deadline", "left_ns", "slice_ns"]

_SLICE_NS = 500_000_000  # CW_TRACE_PART_NS: traces show calls with this limit as one wait
_COMES_BACK_S = 10.0  # that a bridge which went while it sent something may take to come back
_SILENT_S = 3.0  # the same, if it was only waited for: less than the 5 s after which a node that is not heard is an error


def checked_seconds(timeout: float) -> float:
    """A timeout as a float, which may be infinite.

    Raises:
        TypeError: timeout is no number.
        ValueError: it is NaN.
    """
    if not hasattr(timeout, "__float__"):
        raise TypeError(
            f"timeout must be a number of seconds or None, not {type(timeout).__name__}"
        )
    try:
        seconds = float(timeout)
    except OverflowError:  # an integer that no float holds
        seconds = math.inf if timeout > 0 else -math.inf
    if math.isnan(seconds):
        raise ValueError("timeout is not a number")
    return seconds


def deadline(timeout: float | None) -> float:
    """Seconds of time.monotonic() at which a wait ends.

    Raises:
        TypeError, ValueError: as `checked_seconds`.
    """
    return math.inf if timeout is None else time.monotonic() + checked_seconds(timeout)


def left_ns(end: float) -> int:
    """What is left until then; -1 for ever."""
    left = end - time.monotonic()
    return -1 if left > 1e9 else int(max(0.0, left) * 1e9)


def slice_ns(end: float) -> tuple[int, bool]:
    """How long the next call of a long wait lasts, and whether it is the last one. A signal that comes just before a call sleeps
    does not end that: its handler runs after this call.
    """
    left = left_ns(end)
    last = 0 <= left <= _SLICE_NS
    return (left if last else _SLICE_NS), last


class Retries:
    """Of calls to another node until a moment: its bridge may go and come while something is fetched.

    Attributes:
        end: of time.monotonic().
    """

    __slots__ = ("_back", "end")

    def __init__(self, end: float) -> None:
        self.end = end
        self._back = -math.inf  # when a bridge that has gone should be back

    def was_there(self) -> None:
        """The bridge answered, or a part of a wait is over and nobody said that it has gone."""
        self._back = max(self._back, time.monotonic() + _SILENT_S)

    def tries_again(self, status: int) -> bool:
        """Whether a call that ended so is made again: the bridge has gone, or was there a moment ago, and there is time left. Waits
        for a moment.
        """
        now = time.monotonic()
        if status == -errno.EHOSTUNREACH:
            self._back = now + _COMES_BACK_S
        elif status != -errno.EREMOTEIO or now > self._back:
            return False
        if now >= self.end:
            return False
        time.sleep(min(self.end - now, 0.05))
        return True
