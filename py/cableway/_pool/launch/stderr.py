"""Captured stderr of workers: it is passed on to this process's own stderr, and its last part is kept.

Each worker has a pipe. The worker opens its writing end through /proc, whatever its start method. The parent keeps that end open, too,
so the pipe never ends; it is read when there is something, without waiting. Two threads may do so.

No thread that looks after workers writes to this process's stderr: that may be a pipe that is full, or a terminal that is stopped. One
thread of a Pool writes to it (`Outlet`). At most WAITING_BYTES wait for that thread; more is dropped, and a line in its place says
how much. The part that is kept for `WorkerDied` never waits for it.

Owner: `Workers` makes and closes both. The thread of an outlet is a daemon and holds nothing that others need: at the Pool's end,
END_SECONDS are left for what still waits, and then it is dropped.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import termios
import threading
import time
from collections import deque

from cableway._core import locks
from cableway._core.descriptors import above_stdio

__all__ = ["END_SECONDS", "WAITING_BYTES", "Capture", "Outlet"]

WAITING_BYTES = 4 << 20
END_SECONDS = 1.0
_KEEP_BYTES = 8 << 10
_WRITE_BYTES = select.PIPE_BUF  # a pipe that is ready takes so many
_AGAIN_MS = 20  # a stderr that is ready and refuses


class Outlet:
    """Writes to this process's stderr in a thread of its own. Any thread may put."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._nbytes = 0
        self._dropped = 0
        self._ending = False
        self._gone = above_stdio(
            lambda: os.eventfd(0, os.EFD_CLOEXEC)
        )  # nothing is written any more
        self._thread: threading.Thread | None = None

    def put(self, data: bytes) -> None:
        """To be written. Waits for nobody."""
        with self._changed:
            if self._ending:
                return
            if self._nbytes + len(data) > WAITING_BYTES:
                self._dropped += len(data)
                return
            self._tell_dropped()
            self._append(data)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="cableway-pool-stderr", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Waits END_SECONDS at most until all is written; what is left then is dropped."""
        with self._changed:
            self._tell_dropped()
            self._ending = True
            self._changed.notify_all()
            thread = self._thread
            if thread is None:
                os.close(self._gone)
                return
        thread.join(END_SECONDS)
        with self._changed:
            if self._gone >= 0:  # else the thread has ended
                os.eventfd_write(self._gone, 1)

    def _append(self, data: bytes) -> None:
        self._waiting.append(data)
        self._nbytes += len(data)

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._append(
                f"\n[cableway: {self._dropped} bytes that workers printed to stderr were dropped here: "
                f"{WAITING_BYTES >> 20} MiB waited for this process's stderr already]\n".encode()
            )
            self._dropped = 0

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._waiting and not self._ending:
                        self._changed.wait()
                    if not self._waiting:
                        return
                    data = self._waiting[0]
                if not self._write(data):
                    return
                with self._changed:
                    self._waiting.popleft()
                    self._nbytes -= len(data)
                    if not self._waiting:
                        self._tell_dropped()
        finally:
            with self._changed:
                self._waiting.clear()
                os.close(self._gone)
                self._gone = -1

    def _write(self, data: bytes) -> bool:
        """False: the Pool has ended. What stderr refuses is dropped: there is none, or nobody reads it any more."""
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        poll.register(self._gone, select.POLLIN)
        at = 0
        while at < len(data):
            if any(fd == self._gone for fd, _ in poll.poll()):
                return False
            try:
                at += os.write(2, data[at : at + _WRITE_BYTES])
            except BlockingIOError:
                time.sleep(_AGAIN_MS / 1000)
            except OSError:
                return True
        return True


class Capture:
    """The pipe of one worker.

    Args:
        outlet: where to pass on what comes.

    Attributes:
        fd: to be watched for reading.
        path: what the worker opens.
    """

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet
        self.fd, self._writing = above_stdio(lambda: os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        self.path = f"/proc/{os.getpid()}/fd/{self._writing}"
        self._lock = locks.Lock()
        self._end = b""
        self._closed = False

    def pass_on(self) -> None:
        """Reads what is there now, keeps its end and passes it on. Waits for nobody: not for a writer without end either."""
        with self._lock:
            if self._closed:
                return
            there = array.array("i", [0])
            fcntl.ioctl(self.fd, termios.FIONREAD, there)
            if there[0]:
                found = os.read(self.fd, there[0])
                self._end = (self._end + found)[-_KEEP_BYTES:]
                self._outlet.put(found)

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
