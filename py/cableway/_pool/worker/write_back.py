"""Write-back in the worker: the next task runs while results leave the GPU.

When a task's function has returned and its GPU work is complete, its results are given to a thread, which copies them into the
parent's blocks and then answers the task (`defer` in csrc/dispatch_defer.c). Meanwhile the worker takes the next task.

Invariant: a task is answered once, after the last byte of its results is in the parent's memory. What its function returned was
pickled before the next task began, so later tasks cannot change it.

Bounds: at most WRITE_BACKS_MAX tasks; the worker waits if it has more, so that their GPU memory is bounded.

Owner: the thread, from put() to the answer. If the process dies, the task is lost although its function has returned: half-copied
results lie in blocks that nobody reads. The worker does not leave by itself before all tasks are answered (`WorkerEnd.serve`). If an
answer cannot be given at all, the thread ends the process and says why on stderr; else the task, and the thread that waits to put
the next one here, would wait for ever.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable

from cableway._pool.worker.staging import Result
from cableway._transport.message import EncodedMessage

__all__ = ["WRITE_BACKS_MAX", "WriteBackThread"]

WRITE_BACKS_MAX = 2
_FAILED = 1  # exit code

Answer = EncodedMessage | None  # None stands for None


class WriteBackThread:
    """Writes the results of a worker back.

    Args:
        answer: answers a task by the token that defer() gave for it.
        tell: an exception as an answer.
    """

    def __init__(
        self, answer: Callable[[int, Answer], None], tell: Callable[[Exception], Answer]
    ) -> None:
        self._answer = answer
        self._tell = tell
        self._changed = threading.Condition()
        self._queue: list[tuple[list[Result], int, Answer]] = []
        self._thread: threading.Thread | None = None

    def put(self, results: list[Result], token: int, answer: Answer) -> None:
        """These leave, then the task is answered. Blocks while too many others leave.

        Args:
            results: of one task.
            token: what defer() gave for it.
            answer: if all goes well.
        """
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="cableway-pool-write-back", daemon=True
                )
                self._thread.start()
            while len(self._queue) >= WRITE_BACKS_MAX:
                self._changed.wait()
            self._queue.append((results, token, answer))
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
            try:
                self._first_leaves()
            except BaseException:
                traceback.print_exc()
                os._exit(_FAILED)

    def _first_leaves(self) -> None:
        results, token, answer = self._queue[0]
        try:
            _copy(results)
        except Exception as error:
            answer = self._tell(error)
        results.clear()  # the parent may have its blocks back
        self._answer(token, answer)
        with self._changed:
            self._queue.pop(0)
            self._changed.notify_all()


def _copy(results: list[Result]) -> None:
    for result in results:
        result.copy()
