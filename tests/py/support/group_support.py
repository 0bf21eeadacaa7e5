"""Members of groups for tests: processes that run a function, and say what came of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import cableway as cw

FORK = multiprocessing.get_context("fork")
SECONDS = 60.0  # for what comes at once; a machine may be busy


HEAD, SLOT, JOINED = 512, 704, 72  # bytes: struct group_page in ipc/group/page.h


def has_joined(name: str, rank: int) -> bool:
    """Whether a member has this rank, in a group that is complete or will be."""
    if f".group/{name}" not in cw.names(".group/"):
        return False
    words = cw.get(f".group/{name}").numpy()[HEAD + rank * SLOT + JOINED :][:8]
    return bool(words.view("u8")[0])


def has_arrived(name: str, rank: int, number: int) -> bool:
    """Whether a member has come to a meeting of this number, which begins with 1."""
    words = cw.get(f".group/{name}").numpy()[HEAD + rank * SLOT + 8 * (number % 2) :][:4]
    return bool(words.view("u4")[0] == number)


def has_reached(name: str, rank: int, number: int) -> bool:
    """Whether a member has come to this meeting or a later one."""
    words = cw.get(f".group/{name}").numpy()[HEAD + rank * SLOT :][:16].view("u4")
    return max(int(words[0]), int(words[2])) >= number


class Member:
    """A process that runs function(*args); its answers are what it sends, then what it returned or raised."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=self._run, args=(function, theirs, args), daemon=True)
        self.process.start()
        theirs.close()

    def _run(self, function: Callable[..., Any], pipe: Any, args: tuple[Any, ...]) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            pipe.send(("returned", function(pipe, *args)))
        except BaseException as error:
            facts = {
                "kind": type(error).__name__, "text": str(error), "trace": traceback.format_exc(),
                "rank": getattr(error, "rank", None), "pid": getattr(error, "pid", None),
                "reason": getattr(error, "reason", None),
            }  # fmt: skip
            pipe.send(("raised", facts))
        pipe.recv()  # lives until it is told

    @property
    def pid(self) -> int:
        pid = self.process.pid
        assert pid is not None
        return pid

    def next(self, seconds: float = SECONDS) -> Any:
        """What it says next."""
        assert self.pipe.poll(seconds), f"process {self.pid} says nothing for {seconds:.0f} s"
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join(SECONDS)
            code = self.process.exitcode
            raise AssertionError(
                f"process {self.pid} ended with {code} and said nothing; -9 is the kernel's where memory is short"
            ) from None

    def returned(self, seconds: float = SECONDS) -> Any:
        """What its function returned."""
        how, what = self.next(seconds)
        assert how == "returned", what["trace"] if isinstance(what, dict) else what
        return what

    def raised(self) -> dict[str, Any]:
        """What is known of the exception that it raised."""
        how, what = self.next()
        assert how == "raised", what
        return dict(what)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.join()

    def end(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGCONT)
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextlib.contextmanager
def members(count: int, function: Callable[..., Any], *args: Any) -> Iterator[list[Member]]:
    """So many processes that run function(pipe, *args)."""
    started = [Member(function, *args) for _ in range(count)]
    try:
        yield started
    finally:
        for member in started:
            member.end()


@contextlib.contextmanager
def group(
    name: str, size: int, function: Callable[..., Any], *args: Any, timeout: float | None = 30
) -> Iterator[list[Member]]:
    """The members of a group, by rank, each of which runs function(its Group, its pipe, *args)."""

    def run(pipe: Any, rank: int) -> Any:
        with cw.Group(name, size, rank, timeout=timeout) as g:
            return function(g, pipe, *args)

    started = [Member(run, rank) for rank in range(size)]
    try:
        yield started
    finally:
        for member in started:
            member.end()


def outcomes(
    name: str, size: int, function: Callable[..., Any], *args: Any, timeout: float | None = 30
) -> list[Any]:
    """What function(its Group, its pipe, *args) returned in each member, by rank. Its calls may take all of the timeout."""
    with group(name, size, function, *args, timeout=timeout) as all_members:
        return [member.returned(max(SECONDS, timeout or 0)) for member in all_members]
