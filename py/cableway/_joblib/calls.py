"""One call of joblib's Parallel that waits for all its results, and its batches under way.

The calling thread does everything: it collects the answers and runs joblib's callbacks, which submit the next batches. So, as long
as nothing fails, no other thread of this process takes part, and a batch costs no switch of threads. Batches that end before the
caller waits are kept until it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cableway._executor.errors import as_reported
from cableway._pool.async_result import AsyncResult
from cableway._pool.jobs import Task
from cableway._transport import message as wire

if TYPE_CHECKING:
    from cableway._pool.engine import Engine
    from cableway.executor import Executor

__all__ = ["Batch", "Call"]


class Batch(AsyncResult):
    """A batch under way. When it has ended, its call is told, from whatever thread collected the answer."""

    def __init__(
        self,
        call: Call,
        engine: Engine,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        callback: Callable[[Batch], object],
    ) -> None:
        super().__init__(engine, call.executor, function, None, None, (arguments,))
        self.call = call
        self.callback = callback

    def settle(self) -> None:
        """It has ended."""
        call: Call | None = self.__dict__.pop("call", None)  # at one go: two threads may end it
        if call is not None:  # else it was settled before
            call.ended.append(self)
        super().settle()

    def result(self) -> Any:
        """What it returned, or raises what it raised. Only once it has ended."""
        if self._success:
            return self._result
        raise as_reported(self._result)


class Call:
    """The batches of one call.

    Attributes:
        ended: those whose callback has not run yet.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.ended: deque[Batch] = deque()
        self._under_way = 0

    @property
    def settled(self) -> bool:
        """Whether there is a batch to be seen to: what the engine's `wait_for` asks."""
        return bool(self.ended)

    def submit(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        callback: Callable[[Batch], object],
    ) -> Batch:
        """Hands a batch to a worker. Its callback runs in `serve`."""
        engine = self.executor._running()
        batch = Batch(self, engine, function, arguments, callback)
        engine.submit(batch, Task(batch, 0, wire.APPLY, (arguments,)))
        self._under_way += 1
        return batch

    def serve(self, ends: Callable[[], bool]) -> None:
        """Runs callbacks until all batches have ended, those too that callbacks submit, or ends() is true."""
        engine: Any = self.executor._running()  # it asks the call for `settled`, as it asks a job
        while self._under_way and not ends():
            if self.ended:
                batch = self.ended.popleft()
                self._under_way -= 1
                batch.callback(batch)
            else:
                engine.wait_for(self, None)
