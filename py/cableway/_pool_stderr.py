"""What a worker prints to stderr, captured: passed on to this process's own stderr, and its end kept.

A pipe. The worker opens its writing end through /proc, whatever way it was started. The parent keeps that end open
too, so the pipe never ends; it is read when there is something, without waiting. Two threads may do so.
"""

from __future__ import annotations

import os
import threading

__all__ = ["Capture"]

_KEEP_BYTES = 8 << 10
_READ_BYTES = 64 << 10


class Capture:
    """The pipe of one worker.

    Attributes:
        fd: to be watched for reading.
        path: what the worker opens.
    """

    def __init__(self) -> None:
        self.fd, self._writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.path = f"/proc/{os.getpid()}/fd/{self._writing}"
        self._lock = threading.Lock()
        self._end = b""
        self._closed = False

    def pass_on(self) -> None:
        """Reads what is there and prints it here."""
        with self._lock:
            while not self._closed:
                try:
                    found = os.read(self.fd, _READ_BYTES)
                except BlockingIOError:
                    return
                self._end = (self._end + found)[-_KEEP_BYTES:]
                try:
                    os.write(2, found)
                except OSError:  # no stderr here, or nobody reads it: it is kept all the same
                    pass

    @property
    def text(self) -> str:
        """The end of what came, at most 8 KiB."""
        return self._end.decode("utf-8", "replace")

    def close(self) -> None:
        """Ends it. What was kept stays. May be repeated."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.fd)
                os.close(self._writing)
