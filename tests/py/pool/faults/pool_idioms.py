"""A script that ends pools and executors in every way in which people end them; test_pool_idioms.py runs it.

    python pool_idioms.py LIBRARY METHOD ROUNDS SEED [IDIOM...]

LIBRARY is cableway or standard: the same idioms with multiprocessing.Pool and ProcessPoolExecutor, from which comes
what is expected. Each round of each idiom makes a pool of 1 to 4 workers, sends some work by the next of the methods in
SENDS (EXECUTOR_SENDS), and ends it. Prints one line of JSON for each idiom: its name, and how often it came to what.
"ok" is: each result, once. A round that does not end within LIMIT seconds is told with what every thread was doing and
with what the pool's threads waited for, and the script ends with status 3.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import multiprocessing
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from pool_sends import EXECUTOR_SENDS, SENDS, Send, Taken, by_failing_imap, by_imap, square, told
from waiting import eventually

LIMIT = 120.0  # seconds: a round takes some hundredths of one
SIZES = (3000, 3000, 300, 257, 3000, 1, 3000, 0)  # tasks: there are cells for 256

# ---- how a pool is ended. Each gives lists of results, of which each is to be whole


class Thread(threading.Thread):
    """A thread that is started at once, and tells what its call gave."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.start()

    def run(self) -> None:
        self.told = told(self._call)

    def result(self) -> Any:
        self.join()
        return self.told


def a_moment() -> None:
    """Somewhere in the middle of what others do."""
    threading.Event().wait(random.random() * 0.01)


def close_take_join(pool: Any, send: Send, n: int) -> Any:
    take = send(pool, n)
    pool.close()
    got = take()
    pool.join()
    return got


def take_close_join(pool: Any, send: Send, n: int) -> Any:
    got = send(pool, n)()
    pool.close()
    pool.join()
    return got


def close_join_take(pool: Any, send: Send, n: int) -> Any:
    take = send(pool, n)
    pool.close()
    pool.join()
    return take()


def close_join_elsewhere(pool: Any, send: Send, n: int) -> Any:
    take = send(pool, n)
    pool.close()
    joins = Thread(pool.join)
    got = take()
    joins.result()
    return got


def close_elsewhere(pool: Any, send: Send, n: int) -> Any:
    take = send(pool, n)
    closes = Thread(lambda: (a_moment(), pool.close(), pool.join()))
    got = take()
    closes.result()
    return got


def take_elsewhere(pool: Any, send: Send, n: int) -> Any:
    take = send(pool, n)
    takes = Thread(take)
    a_moment()
    pool.close()
    pool.join()
    return takes.result()


def send_beside_close(pool: Any, send: Send, n: int) -> Any:
    """A map in a thread, for instance: it may come too late."""
    sends = Thread(lambda: send(pool, n)())
    a_moment()
    pool.close()
    pool.join()
    got = sends.result()
    return [x * x for x in range(n)] if got == "ValueError" else got


def two_take(pool: Any, send: Send, n: int) -> Any:
    take = (by_imap if send is by_failing_imap else send)(pool, n)
    other = Thread(take)
    pool.close()
    got = take()
    theirs = other.result()
    pool.join()
    return got + theirs if isinstance(take, Taken) else got if sorted(got) == sorted(theirs) else []


def with_block(pool: Any, send: Send, n: int) -> Any:
    with pool:
        got = send(pool, n)()
    pool.join()
    return got


def take_terminate(pool: Any, send: Send, n: int) -> Any:
    got = send(pool, n)()
    pool.terminate()
    pool.join()
    return got


def terminate_untaken(pool: Any, send: Send, n: int) -> Any:
    send(pool, n)
    a_moment()
    pool.terminate()
    pool.join()
    return [x * x for x in range(n)]


def terminate_elsewhere(pool: Any, send: Send, n: int) -> Any:
    """Whoever takes meanwhile gets what there is, and is told of the end."""
    take = send(pool, n)
    terminates = Thread(lambda: (a_moment(), pool.terminate()))
    told(take)
    terminates.result()
    pool.join()
    return [x * x for x in range(n)]


def drop_and_take(pool: Any, send: Send, n: int) -> Any:
    """The pool is garbage once nothing is under way."""
    take = send(pool, n)
    del pool
    gc.collect()
    return take()


def take_and_drop(pool: Any, send: Send, n: int) -> Any:
    return send(pool, n)()


def drop_untaken(pool: Any, send: Send, n: int) -> Any:
    send(pool, n)
    return [x * x for x in range(n)]


POOL_ENDS = (
    close_take_join, take_close_join, close_join_take, close_join_elsewhere, close_elsewhere, take_elsewhere,
    send_beside_close, two_take, with_block, take_terminate, terminate_untaken, terminate_elsewhere, drop_and_take,
    take_and_drop, drop_untaken,
)  # fmt: skip
# Those in which the standard library's own waits for ever, now and then or each time, or keeps its processes.
OURS_ALONE = {two_take, terminate_elsewhere, drop_untaken, take_and_drop, drop_and_take}


def executor_with(executor: Any, send: Send, n: int) -> Any:
    with executor:
        return send(executor, n)()


def executor_with_take_after(executor: Any, send: Send, n: int) -> Any:
    with executor:
        take = send(executor, n)
    return take()


def executor_shutdown_take(executor: Any, send: Send, n: int) -> Any:
    take = send(executor, n)
    executor.shutdown(wait=False)
    got = take()
    executor.shutdown()
    return got


def executor_shutdown_elsewhere(executor: Any, send: Send, n: int) -> Any:
    take = send(executor, n)
    ends = Thread(lambda: (a_moment(), executor.shutdown()))
    got = take()
    ends.result()
    return got


def executor_cancelled(executor: Any, send: Send, n: int) -> Any:
    """Each future has its result, or was cancelled."""
    begun = [executor.submit(square, i) for i in range(n)]
    executor.shutdown(cancel_futures=True)
    return [i * i if f.cancelled() else f.result(0) for i, f in enumerate(begun)]


def executor_dropped(executor: Any, send: Send, n: int) -> Any:
    take = send(executor, n)
    del executor
    gc.collect()
    return take()


EXECUTOR_ENDS = (
    executor_with, executor_with_take_after, executor_shutdown_take, executor_shutdown_elsewhere, executor_cancelled,
    executor_dropped,
)  # fmt: skip
IDIOMS = {idiom.__name__: idiom for idiom in POOL_ENDS + EXECUTOR_ENDS}


# ---- the rounds


def state_of_engines() -> str:
    """What the threads of each engine wait for, or would."""
    from cableway._pool.engine import Engine

    lines = []
    for engine in [found for found in gc.get_objects() if isinstance(found, Engine)]:
        dispatch, crew = engine.dispatch, engine._workers
        lines.append(
            f"engine: state {engine.state}, error {engine._error}, abandoned {engine.abandoned}, waiting in the row "
            f"{len(engine._submit_queue.pending)}, inputs {len(engine._feeding)}, ready {dispatch.ready()}, under way "
            f"{dispatch.under_way}, workers {[w.pid for w in crew.living()]} of {crew.wanted}, dead {len(crew.dead)}, "
            f"waiting threads {engine._waiters}, news {dispatch.news(False)} and {dispatch.news(True)}, deferred "
            f"{len(engine._supervisor._deferred)}, over {engine._over}"
        )
    return "\n".join(lines)


class Watch:
    """Tells of a round that does not end, and ends the script."""

    def __init__(self, ours: bool) -> None:
        self._ours = ours
        self._what = ""
        self._round = 0
        self._changed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, what: str) -> None:
        self._what, self._round = what, self._round + 1
        self._changed.set()

    def _watch(self) -> None:
        while True:
            number = self._round
            self._changed.clear()
            if not self._changed.wait(LIMIT) and number == self._round and self._what:
                print(f"HANG: {self._what}", file=sys.stderr, flush=True)
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
                if self._ours:
                    print(state_of_engines(), file=sys.stderr, flush=True)
                os._exit(3)


def makers(library: str, method: str) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    """What makes a pool, and an executor, of so many workers."""
    context: Any = multiprocessing.get_context(method)
    if library == "standard":
        return context.Pool, lambda n: futures.ProcessPoolExecutor(n, mp_context=context)
    import cableway as cw

    return lambda n: cw.Pool(n, context=context), lambda n: cw.Executor(n, mp_context=context)


def threads_have_ended() -> bool:
    """Whether no pool of ours is left: what is garbage ends by itself."""

    def any_left() -> bool:
        return any(thread.name.startswith("cableway-pool") for thread in threading.enumerate())

    if any_left():
        gc.collect()
    return not any_left()


def look_at(got: Any, n: int) -> str:
    """What a round came to."""
    if not isinstance(got, list):
        return f"raised {got}"
    if sorted(got, key=str) == sorted((x * x for x in range(n)), key=str):
        return "ok"
    counts = Counter(got)
    lost = [x for x in range(n) if not counts[x * x]]
    repeated = [x for x, count in counts.items() if count > 1]
    return f"of {n}: lost {len(lost)} {lost[:3]}, repeated {len(repeated)} {repeated[:3]}, {len(got)} in all"


def main() -> int:
    """Runs the rounds."""
    library, method, rounds, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    names = sys.argv[5:] or list(IDIOMS)
    random.seed(seed)
    ours = library == "cableway"
    watch = Watch(ours)
    make_pool, make_executor = makers(library, method)
    for place, name in enumerate(names):
        idiom: Any = IDIOMS[name]
        outcomes: Counter[str] = Counter()
        sends = SENDS if idiom in POOL_ENDS else EXECUTOR_SENDS
        make = make_pool if idiom in POOL_ENDS else make_executor
        for number in range(rounds):
            send = sends[(number + 5 * place) % len(sends)]
            n, workers = random.choice(SIZES), 1 + random.randrange(4)
            what = f"{library} {method} {name} {send.__name__}, {n} tasks, {workers} workers, seed {seed}, round {number}"
            watch.begin(what)
            try:
                found = look_at(idiom(make(workers), send, n), n)
            except Exception as error:
                found = f"raised {type(error).__name__}: {error}"
            outcomes[found if found == "ok" else f"{send.__name__}: {found}"] += 1
            if ours and not eventually(threads_have_ended, LIMIT):
                outcomes["threads are left"] += 1
        print(json.dumps({"name": name, "outcomes": outcomes}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
