"""What `isend`, `irecv`, `Isend` and `Irecv` return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cableway._group.status import Status

if TYPE_CHECKING:
    from cableway._group.messages import Mailbox

__all__ = ["ANY", "Request"]

ANY = (-1, -1)  # source and tag


class Request:
    """A message that is sent, or received, while its member does something else: of `isend`, `irecv`, `Isend` and `Irecv`. As mpi4py's.

    It goes on only within calls of its member. What came for it is there until it is asked for.
    """

    __slots__ = ("_attempt", "_box", "_came", "_done", "_pattern")

    def __init__(
        self, box: Mailbox, attempt: Callable[[], Any], pattern: tuple[int, int] = ANY
    ) -> None:
        self._box = box
        self._pattern = pattern
        self._attempt: Callable[[], Any] | None = attempt  # what came of it; None: it is not done
        self._done = False
        self._came: tuple[Any, BaseException | None, Any] = (None, None, None)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether it is done, and then the object that came, of `irecv`; else None. Does not block.

        Raises:
            GroupBroken: who could send it is gone. What unpickling raises. ValueError: of `Irecv`, the message has other elements.
        """
        if not self._done:
            self._box.progress(self._pattern)
        return (True, self._result(status)) if self._done else (False, None)

    def wait(self, status: Status | None = None) -> Any:
        """Waits until it is done. Returns the object that came, of `irecv`; else None. Blocks.

        Raises:
            Timeout: the time of the group is over (`Group.timeout`); it can be waited for again. And as `test`.
        """
        self._box.wait(self)
        return self._result(status)

    def Test(self, status: Status | None = None) -> bool:
        """Whether it is done. Does not block."""
        return self.test(status)[0]

    def Wait(self, status: Status | None = None) -> bool:
        """As `wait`; returns True."""
        self.wait(status)
        return True

    @staticmethod
    def waitall(requests: Sequence[Request]) -> list[Any]:
        """Waits for all of them: a list of what `wait` returns. Blocks."""
        return [request.wait() for request in requests]

    Waitall = waitall

    def _result(self, status: Status | None) -> Any:
        value, error, told = self._came
        if status is not None and told is not None:
            status.source, status.tag, status.count = told
        if error is not None:
            raise error
        return value

    def cancel(self) -> None:
        """Gives up a receive that is not done: what comes is for others, and `wait` returns None. Of a send nothing happens."""
        self._box.cancel(self)

    Cancel = cancel

    def _try(self) -> None:
        """Whether it is done is known then."""
        came = self._attempt() if self._attempt is not None else None
        if (
            came is not None
        ):  # no call from here on, not even of _end(): what came would be lost by what a handler raises
            self._came = came
            self._done = True
            self._attempt = None

    def _end(self, came: tuple[Any, BaseException | None, Any]) -> None:
        self._came = came
        self._done = True
        self._attempt = None  # and what it holds
