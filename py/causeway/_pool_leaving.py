"""Results on their way out: a worker's next task runs while they leave the GPU.

When a task's function has returned and its GPU work is complete, its results are handed to a thread, which copies them
into the parent's blocks and then answers the task (`defer` in csrc/dispatch_defer.c). Meanwhile the worker takes the next one.

Invariant: a task is answered after the last byte of its results lies in the parent's memory, and once. What its function
returned was pickled before the next task began, so that no task sees what a later one does to it.

Bounds: RESULTS_LEAVING tasks; who has more waits, so that their memory on the GPU is bounded.

Owner: the thread, from put() to the answer. If the process dies, the task is lost with it although its function
has ended, and counts so: results that are half copied lie in blocks that nobody reads. The worker does not leave
by itself before all is answered (`WorkerEnd.serve`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from causeway._pool_staging import Result

__all__ = ["RESULTS_LEAVING", "Leaving"]

RESULTS_LEAVING = 2

Message = (
    tuple[bytes, int] | None
)  # of a worker's handler, with the bytes beside it; None stands for None


class Leaving:
    """The results of a worker that leave.

    Args:
        answer: answers a task by the token that defer() gave for it.
        tell: an exception as a message.
    """

    def __init__(
        self, answer: Callable[[int, Message], None], tell: Callable[[Exception], Message]
    ) -> None:
        self._answer = answer
        self._tell = tell
        self._changed = threading.Condition()
        self._queue: list[tuple[list[Result], int, Message]] = []
        self._thread: threading.Thread | None = None

    def put(self, results: list[Result], token: int, message: Message) -> None:
        """These leave, then the task is answered. Blocks while too many others leave.

        Args:
            results: of one task.
            token: what defer() gave for it.
            message: its answer, if all goes well.
        """
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="causeway-pool-leaving", daemon=True
                )
                self._thread.start()
            while len(self._queue) >= RESULTS_LEAVING:
                self._changed.wait()
            self._queue.append((results, token, message))
            self._changed.notify_all()

    def wait(self) -> None:
        """Until all is answered."""
        with self._changed:
            while self._queue:
                self._changed.wait()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                results, token, message = self._queue[0]
            try:
                for result in results:
                    result.copy()
            except Exception as error:
                message = self._tell(error)
            results.clear()  # the parent may have its blocks back
            self._answer(token, message)
            with self._changed:
                self._queue.pop(0)
                self._changed.notify_all()
