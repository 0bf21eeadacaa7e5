"""A terminal for `cableway top`: the command on a pseudo-terminal, and pyte, which makes a screen of what it writes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyte
from cli_support import COMMAND
from processes import stat_fields


class Terminal:
    """A program on a terminal of so many columns and lines.

    It is the leader of a session of its own, whose controlling terminal this is, as under an ssh.
    """

    def __init__(self, columns: int, lines: int, command: list[str], **settings: str) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.status: int | None = None
        seen, see = os.pipe()
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.close(see)
            os.read(seen, 1)
            environment = {**os.environ, "TERM": "xterm-256color", **settings}
            environment.pop("LINES", None)
            environment.pop("COLUMNS", None)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            # The tests may run under nohup, or in the background, with these ignored.
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            os.execve(command[0], command, environment)
        os.close(seen)
        self.before = self.modes()  # of the terminal as the program finds it, which begins now
        os.close(see)
        self.written = b""

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self, seconds: float = 0.05) -> bool:
        """Takes in what was written; False if the other end is closed."""
        while select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.written += data
            self._stream.feed(data)
            seconds = 0
        return True

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Reads until that is so."""
        end = time.monotonic() + seconds
        while not condition():
            alive = self.read()
            assert time.monotonic() < end, self.text
            if not alive and not condition():
                raise AssertionError(f"it ended: {self.wait()}\n{self.text}")

    def shows(self, *texts: str, seconds: float = 20) -> None:
        """Reads until all of these stand on the screen."""
        self.until(lambda: all(text in self.text for text in texts), seconds)

    def modes(self) -> list[object]:
        """How the terminal is set: the line discipline's modes."""
        return termios.tcgetattr(self.master)[:4]

    def wait(self, seconds: float = 10) -> int:
        """Its wait status once it has ended."""
        end = time.monotonic() + seconds
        while self.status is None:
            if self.master >= 0:
                self.read(0.02)
            else:
                time.sleep(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
            assert time.monotonic() < end or self.status is not None, f"runs still:\n{self.text}"
        return self.status

    def cpu_seconds(self) -> float:
        fields = stat_fields(self.pid)
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def hang_up(self) -> None:
        """Takes the terminal away, as a lost connection does."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.status = -1
        if self.master >= 0:
            os.close(self.master)


@contextmanager
def top(columns: int, lines: int, *arguments: str, **settings: str) -> Iterator[Terminal]:
    """The command, running; killed at the end if it still runs."""
    terminal = Terminal(columns, lines, [COMMAND, "top", *arguments], **settings)
    try:
        yield terminal
    finally:
        terminal.close()
