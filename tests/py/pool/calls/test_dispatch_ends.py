"""Both ends of a pool in C (cableway._dispatch), in one process: groups, looking ahead, answers given later.

A worker end serves on a thread; what is not plain goes through a handler as _pool.worker.worker has one.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cableway import _dispatch
from cableway._pool.task_queue import Memory, TaskQueue

MESSAGE, NONE, VALUE, ANSWER = 4, 1, 2, 3  # kinds: a task's, then answers'


class Handler:
    """Runs messages as bytes: the first one names a method of the test's."""

    def __init__(self, end: Any, functions: dict[bytes, Callable[[Any], Any]]) -> None:
        self.end = end
        self.functions = functions
        self.opened = 0

    def load_function(self, pickled: bytes) -> Any:
        return pickle.loads(pickled)

    def run_message(self, data: memoryview, function: Any) -> Any:
        return self.functions[bytes(data).split(b" ")[0]](self)

    def encode_value(self, value: Any) -> tuple[bytes, int]:
        return b"value " + repr(value).encode(), 7

    def encode_exception(self, error: BaseException) -> tuple[bytes, int]:
        return b"error " + repr(error).encode(), 0

    def wait_until_released(self) -> None:
        self.opened += 1


class Ends:
    """A parent's end of two groups with a worker each, or of one group, and what it was given."""

    def __init__(self, groups: int = 2, deliver: Callable[..., None] | None = None) -> None:
        self.task_queue = TaskQueue(2, groups=groups)
        self.memory = Memory(self.task_queue.nbytes)
        self.told: dict[int, tuple[int, Any]] = {}
        self.dispatch = _dispatch.Dispatch(
            self.memory,
            self.memory.address,
            self.task_queue.nbytes,
            self.task_queue.workers,
            self.task_queue.cells,
            groups,
            0.0,
            deliver or self._deliver,
        )
        self.dispatch.use(2)
        for worker in range(2):
            self.dispatch.assign(worker, worker % groups)

    def _deliver(self, told: list[Any], faults: int) -> None:
        while told:
            _, number, _, kind, data, _, _ = told.pop(0)
            self.told[number] = (kind, data)

    def worker(self, number: int, group: int | None = None) -> Any:
        task_queue = self.task_queue
        group = number % task_queue.groups if group is None else group
        return _dispatch.WorkerEnd(
            self.memory.address,
            task_queue.nbytes,
            task_queue.workers,
            task_queue.cells,
            task_queue.groups,
            number,
            group,
            0,
        )

    def submit(self, number: int, data: bytes, group: int) -> None:
        assert self.dispatch.submit(None, self, number, MESSAGE, None, data, None, group) >= 0

    def answers(self, count: int) -> dict[int, tuple[int, Any]]:
        while len(self.told) < count:
            news = self.dispatch.news(False)
            self.dispatch.listen(news, 0.1)
        return self.told


@pytest.fixture
def ends() -> Iterator[Ends]:
    yield Ends()


def serve(
    end: Any, functions: dict[bytes, Callable[[Any], Any]], most: int = 0
) -> threading.Thread:
    """Serves on a thread; its handler is thread.handler."""
    handler = Handler(end, functions)
    thread = threading.Thread(target=end.serve, args=(handler, most))
    thread.handler = handler  # type: ignore[attr-defined]
    thread.start()
    return thread


def test_a_task_goes_to_its_group(ends: Ends) -> None:
    for group in range(2):
        ends.submit(group, b"where", group)
    assert [ends.dispatch.ready(group) for group in range(2)] == [1, 1]
    assert ends.dispatch.ready() == 2
    ends.dispatch.close(True)
    for number in range(2):
        serve(ends.worker(number), {b"where": lambda _, number=number: number}).join()
    assert ends.answers(2) == {n: (VALUE, pickle.dumps(n, 5)) for n in range(2)}


def test_groups_that_are_not_there_are_refused(ends: Ends) -> None:
    with pytest.raises(ValueError, match="there are 2 groups, and no group 2"):
        ends.submit(0, b"x", 2)
    with pytest.raises(ValueError, match="no group 5"):
        ends.dispatch.submit_plain(None, ends, 0, 1, None, ((), {}), 5)
    with pytest.raises(ValueError, match="no group 2"):
        ends.dispatch.submit_chunks(None, ends, 0, 2, None, (1, 2), 1, 2, 2)
    with pytest.raises(ValueError, match="no group 9"):
        ends.dispatch.call(1, None, print, ((), {}), print, 9)
    with pytest.raises(ValueError, match="no group"):
        ends.dispatch.ready(1 << 40)
    with pytest.raises(ValueError, match="no group 2"):
        ends.dispatch.assign(0, 2)
    with pytest.raises(ValueError, match="no worker 999"):
        ends.dispatch.assign(999, 0)
    with pytest.raises(ValueError, match="worker 0 is in group 0, not in group 1"):
        ends.worker(0, group=1)
    with pytest.raises(ValueError, match="a Pool has at most 64 groups"):
        TaskQueue(2, groups=65)
    assert ends.dispatch.ready() == 0


def test_ready_tasks_are_seen_before_they_are_taken(ends: Ends) -> None:
    end = ends.worker(1)
    assert end.peek(0) is None
    for number in range(3):
        ends.submit(number, b"run %d" % number, 1)
    seen = [end.peek(nth) for nth in range(4)]
    assert [found and found[1] for found in seen] == [b"run 0", b"run 1", b"run 2", None]
    places: list[int] = []
    ends.dispatch.close(True)

    def run(handler: Handler) -> None:
        places.append(handler.end.place)
        assert handler.end.peek(0) == (seen[len(places)] if len(places) < 3 else None)

    serve(end, {b"run": run}).join()
    assert places == [found[0] for found in seen if found]
    assert set(ends.answers(3).values()) == {(NONE, b"")}


def test_plain_tasks_are_seen_without_their_bytes(ends: Ends) -> None:
    end = ends.worker(0)
    described = (1, 0, 10)
    assert ends.dispatch.submit_plain(None, ends, 0, 1, described, ((1,), {})) >= 0
    place, data = end.peek(0)
    assert (place % 2, data) == (0, b"")


def test_answers_are_given_later_by_another_thread(ends: Ends) -> None:
    end = ends.worker(0)
    tokens: list[int] = []

    def later(handler: Handler) -> str:
        handler.end.extra_in = 5
        tokens.append(handler.end.defer())
        return "nobody sees this"

    for number in range(3):
        ends.submit(number, b"later", 0)
    ends.submit(3, b"now", 0)
    ends.dispatch.close(True)
    thread = serve(end, {b"later": later, b"now": lambda _: None})
    assert ends.answers(1) == {3: (NONE, b"")}
    assert len(tokens) == 3
    assert thread.is_alive()  # it leaves when all is answered
    end.answer(tokens[2], 12)
    assert ends.answers(2)[2] == (VALUE, pickle.dumps(12, 5))
    end.answer_message(tokens[0], (b"a message", 0))
    assert ends.answers(3)[0] == (ANSWER, b"a message")
    handler = thread.handler  # type: ignore[attr-defined]
    assert handler.opened == 0
    end.answer(tokens[1], object)  # not plain: the handler's, with something beside it
    kind, lent = ends.answers(4)[1]
    assert (kind, lent.data) == (ANSWER, b"value <class 'object'>")
    assert handler.opened == 1
    thread.join()
    for token in [*tokens, 99]:
        with pytest.raises(ValueError, match=f"by the token {token}"):
            end.answer(token, None)
    state, tasks, _, bytes_in, _, calls = ends.dispatch.look_at(0)
    assert calls == 0  # of messages the handler counts them
    assert (state, tasks, bytes_in) == (0, 4, 3 * (len(b"later") + 5) + len(b"now"))


def test_a_function_that_raises_after_it_deferred_is_answered_with_that(ends: Ends) -> None:
    end = ends.worker(0)
    tokens: list[int] = []

    def raises(handler: Handler) -> None:
        tokens.append(handler.end.defer())
        raise KeyError("after")

    ends.submit(0, b"raises", 0)
    ends.dispatch.close(True)
    serve(end, {b"raises": raises}).join()
    assert ends.answers(1) == {0: (ANSWER, b"error KeyError('after')")}
    with pytest.raises(ValueError, match="no task waits"):
        end.answer(tokens[0], None)


def test_a_function_may_answer_itself_and_is_answered_once(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.append(args.exc_value))
    end = ends.worker(0)

    def answers(handler: Handler) -> None:
        handler.end.answer(handler.end.defer(), 1)

    def answers_and_raises(handler: Handler) -> None:
        answers(handler)
        raise KeyError("too late")

    ends.submit(0, b"answers", 0)
    ends.submit(1, b"raises", 0)
    ends.dispatch.close(True)
    serve(end, {b"answers": answers, b"raises": answers_and_raises}).join()
    assert ends.answers(2) == {n: (VALUE, pickle.dumps(1, 5)) for n in range(2)}
    assert [repr(error) for error in unraisable] == ["KeyError('too late')"]


def test_only_a_message_that_runs_is_deferred_and_once(ends: Ends) -> None:
    end = ends.worker(0)
    with pytest.raises(RuntimeError, match="while run_message runs"):
        end.defer()

    def twice(handler: Handler) -> None:
        token = handler.end.defer()
        with pytest.raises(RuntimeError, match="deferred once"):
            handler.end.defer()
        handler.end.answer(token, None)

    ends.submit(0, b"twice", 0)
    ends.dispatch.close(True)
    serve(end, {b"twice": twice}).join()
    assert ends.answers(1) == {0: (NONE, b"")}


def test_an_answer_that_cannot_be_given_leaves_the_task_to_be_answered(ends: Ends) -> None:
    end = ends.worker(0)
    tokens: list[int] = []
    ends.submit(0, b"later", 0)
    ends.dispatch.close(True)
    thread = serve(end, {b"later": lambda handler: tokens.append(handler.end.defer())})
    while not tokens:
        pass
    with pytest.raises(ValueError, match="at most 4096 bytes, not 4097"):
        end.answer_message(tokens[0], (bytes(4097), 0))
    end.answer_message(tokens[0], (bytes(4096), 0))
    assert ends.answers(1) == {0: (ANSWER, bytes(4096))}
    thread.join()


def test_a_child_that_a_task_has_forked_answers_nothing(ends: Ends) -> None:
    end = ends.worker(0)

    def forks(handler: Handler) -> int:
        child = os.fork()
        token = handler.end.defer()  # the child ends here
        if child == 0:
            os._exit(7)
        handler.end.answer(token, os.waitpid(child, 0)[1])
        return 1

    ends.submit(0, b"forks", 0)
    ends.dispatch.close(True)
    serve(end, {b"forks": forks}).join()
    assert ends.answers(1) == {0: (VALUE, pickle.dumps(0, 5))}


def test_what_a_dead_worker_had_is_told_one_by_one(ends: Ends) -> None:
    end = ends.worker(0)
    held: list[int] = []
    for number in range(3):
        ends.submit(number, b"later", 0)
    ends.submit(3, b"last", 0)
    over = threading.Event()
    thread = serve(
        end,
        {
            b"later": lambda handler: held.append(handler.end.defer()),
            b"last": lambda _: over.set(),
        },
        most=4,
    )
    assert over.wait(60)
    end.answer(held[1], None)
    assert set(ends.answers(2)) == {1, 3}
    lost = ends.dispatch.reap(0)  # as if it had died
    assert sorted((number, begun) for _, number, _, begun, *_ in lost) == [(0, 1), (2, 1)]
    assert ends.dispatch.under_way == 0
    end.answer(held[0], None)  # what it does meanwhile is no answer to anything
    end.answer(held[2], None)
    thread.join()


def test_a_closing_helper_hears_that_nothing_waits_any_more(ends: Ends) -> None:
    """Though somebody listens, so that answers do not wake it."""
    work, others = object(), object()
    waiting: deque[object] = deque([others, work])
    ends.dispatch.share({}, (), waiting, set())
    looked, told = threading.Event(), threading.Event()

    def helper() -> None:
        while True:
            was = ends.dispatch.news(True)
            ends.dispatch.ask_emptied()
            if not waiting:
                break
            looked.set()
            ends.dispatch.help(was, None)
        told.set()

    thread = threading.Thread(target=helper, daemon=True)
    thread.start()
    assert looked.wait(60)
    assert ends.dispatch.take_out(work)
    assert not ends.dispatch.take_out(work)
    assert ends.dispatch.take_out(others)
    assert told.wait(60)
    thread.join()


class Known:
    """As a function that keeps its slot."""

    described = (1, 0, 0)


def leave_one_behind() -> Ends:
    """An answer that Python delivers was collected by a thread that submits, which has told of it."""
    ends = Ends(groups=1)
    ends.dispatch.share({len: Known()}, (type(len),), deque(), set())
    ends.submit(7, b"seven", 0)
    end = ends.worker(0)
    serve(end, {b"seven": lambda _: 7}, most=1).join()
    told = ends.dispatch.news(True)
    while ends.dispatch.news(True) == told:
        assert ends.dispatch.begin(_dispatch.Outcome, ends, None, len, ("x",), None) is not None
    assert not ends.told
    return ends


def test_the_helper_does_not_sleep_on_an_answer_that_was_left_to_it() -> None:
    """Also where it was told before it has read its news: it had still something else to do."""
    ends = leave_one_behind()
    was = ends.dispatch.news(True)
    helper = threading.Thread(target=ends.dispatch.help, args=(was, None), daemon=True)
    helper.start()
    helper.join(60)
    assert list(ends.told) == [7]


def test_a_listener_does_not_sleep_on_an_answer_that_was_left_behind() -> None:
    ends = leave_one_behind()
    was = ends.dispatch.news(False)
    listener = threading.Thread(target=ends.dispatch.listen, args=(was, None), daemon=True)
    listener.start()
    listener.join(60)
    assert list(ends.told) == [7]


def test_whoever_is_interrupted_in_a_delivery_tells_all_who_wait() -> None:
    """The job may have ended, and the interrupt have come before the others were told."""
    told: list[list[Any]] = []
    calls: list[threading.Thread] = []

    def deliver(answers: list[Any], faults: int) -> None:
        calls.append(threading.current_thread())
        if len(calls) == 1:
            raise KeyboardInterrupt
        told.append(list(answers))
        answers.clear()

    ends = Ends(groups=1, deliver=deliver)
    ends.dispatch.share({}, (), deque(), {threading.get_ident(), 1})  # another thread waits, too
    ends.submit(7, b"seven", 0)
    serve(ends.worker(0), {b"seven": lambda _: 7}, most=1).join()
    was = ends.dispatch.news(False)
    with pytest.raises(KeyboardInterrupt):
        ends.dispatch.collect()
    assert not told  # who was interrupted does not try again
    assert ends.dispatch.news(False) != was
    helper = threading.Thread(
        target=ends.dispatch.help, args=(ends.dispatch.news(True), None), daemon=True
    )
    helper.start()
    helper.join(60)
    assert calls[1:] == [helper] and len(told) == 1 and len(told[0]) == 1


def test_what_nobody_opens_lets_its_worker_go(ends: Ends) -> None:
    end = ends.worker(0)
    tokens: list[int] = []

    def later(handler: Handler) -> None:
        tokens.append(handler.end.defer())

    for number in range(2):
        ends.submit(number, b"later", 0)
    ends.dispatch.close(True)
    thread = serve(end, {b"later": later})
    while len(tokens) < 2:
        thread.join(0.01)
    for token in tokens:
        end.answer(token, object)  # with something beside it
    assert not end.released()
    answers = ends.answers(2)
    lent = answers[0][1]
    lent.release()
    lent.release()  # counts once
    assert not end.released()
    answers.clear()  # nobody wants the other one
    assert end.released()
    thread.join()


def test_one_thread_sends_for_all_and_the_helper_takes_over_where_it_was_interrupted(
    ends: Ends,
) -> None:
    calls: list[str] = []

    def send() -> None:
        calls.append("begin")
        if len(calls) == 1:
            ends.dispatch.send_exclusive(
                send
            )  # as another thread does meanwhile: it is for us to look again
        elif len(calls) == 4:
            raise KeyboardInterrupt
        calls.append("end")

    ends.dispatch.send_exclusive(send)
    assert calls == ["begin", "end", "begin", "end"]
    was = ends.dispatch.news(True)
    calls[:] = ["", "", ""]
    with pytest.raises(KeyboardInterrupt):
        ends.dispatch.send_exclusive(send)
    assert ends.dispatch.news(True) != was
    ends.dispatch.send_exclusive(send)
    assert calls[-2:] == ["begin", "end"]
