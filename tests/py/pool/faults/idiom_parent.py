"""A program that uses all idioms of Pool, Executor and Queue at once, while others harm it; idiom_storm.py runs it.

    python idiom_parent.py METHOD SEED SECONDS HARM END FOLDER

HARM: which deaths there may be, of `workers`, `broker`, joined by commas; they decide which errors a call may raise. END:
how the program ends: clean (all is ended and looked at), leave (the interpreter's exit finds it all), or exit (os._exit).
Prints a line of JSON for each idiom that was run, "begun" when it may be harmed, and "over" before its end. Status 1 and
a line with "WRONG" tell of what was not as promised. A line on stdin asks for all stacks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import json
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

import idiom_tasks as tasks
import pool_idioms
import pool_sends
from idiom_queues import queues
from waiting import eventually

import cableway as cw
from cableway.executor import ExecutorBroken

DRIVERS = 3
SIZES = (1, 7, 257, 300, 1000)

# Those that lose nothing but an exception when a worker dies. The others tell of results by callbacks alone.
SENDS = (
    pool_sends.by_unordered, pool_sends.by_map_async, pool_sends.by_imap, pool_sends.by_apply_async,
    pool_sends.by_unordered_of_generator, pool_sends.by_starmap_async, pool_sends.by_imap_of_generator,
    pool_sends.by_map_async_in_chunks, pool_sends.by_unordered_in_chunks, pool_sends.by_apply, pool_sends.by_map,
    pool_sends.by_map_in_ones, pool_sends.by_starmap, pool_sends.by_imap_in_chunks,
)  # fmt: skip
EXECUTOR_SENDS = (
    pool_sends.by_submit, pool_sends.by_executor_map, pool_sends.by_submit_as_completed, pool_sends.by_submit_and_wait,
    pool_sends.by_executor_map_in_chunks,
)  # fmt: skip
LOST = {
    "WorkerDied": "workers", "ExecutorWorkerDied": "workers", "ExecutorBroken": "workers",
    "BrokerLost": "broker", "Stale": "broker",
}  # fmt: skip
POOL_ENDS = [end for end in pool_idioms.POOL_ENDS if end is not pool_idioms.two_take]


class Wrong(Exception):
    """Something that was not as promised."""


def tell(kind: str, outcome: str = "", raised: dict[str, int] | None = None) -> None:
    """A line of what this prints, in one piece; nothing of it waits where a fork would double it."""
    os.write(1, (json.dumps([kind, outcome, raised or {}]) + "\n").encode())


class Parent:
    """What this program does."""

    def __init__(self, method: str, seed: str, harm: set[str], folder: str) -> None:
        self.context: Any = multiprocessing.get_context(method)
        self.seed = seed
        self.harm = harm
        self.tasks_max = (
            3 if method == "fork" else 30
        )  # a worker by plain spawn takes seconds to start
        self.folder = folder
        self.over = False
        self.leaving = False
        self.wrong = False
        self.what = [""] * DRIVERS  # what each driver does now
        self._lock = threading.Lock()
        self._number = 0
        self._raised: Counter[str] = Counter()

    def number(self) -> int:
        with self._lock:
            self._number += 1
            return self._number

    def may_raise(self, error: BaseException) -> bool:
        """Whether a call may end so, since something was killed. It is counted."""
        allowed = self._explained(error)
        if allowed:
            with self._lock:
                self._raised[type(error).__name__] += 1
        return allowed

    def raised(self) -> dict[str, int]:
        """How many calls have failed as they may, by the error, since this was asked before."""
        with self._lock:
            found, self._raised = self._raised, Counter()
        return found

    def _explained(self, error: BaseException) -> bool:
        if isinstance(error, cw.TaskTimeout):
            return False
        if isinstance(error, (cw.WorkerDied, ExecutorBroken)):
            return "workers" in self.harm
        lost = (cw.BrokerLost, cw.Stale, cw.NameNotFound)
        return isinstance(error, lost) and "broker" in self.harm

    def checked(self, what: str, get: Callable[[], Any], right: Any) -> bool:
        """Whether a call gave what is right; else it has failed as it may."""
        try:
            found = get()
        except Exception as error:
            if not self.may_raise(error):
                raise
            return False
        if not (right(found) if callable(right) else found == right):
            raise Wrong(f"{what}: {found!r:.300} is not right")
        return True

    # ---- each way to end a Pool or an Executor, with one of the ways to send

    def ends_of_pool(self, chance: random.Random) -> str:
        end, send = chance.choice(POOL_ENDS), chance.choice(SENDS)
        return self._ends(end, send, cw.Pool(chance.randrange(1, 4), context=self.context), chance)

    def ends_of_executor(self, chance: random.Random) -> str:
        end, send = chance.choice(pool_idioms.EXECUTOR_ENDS), chance.choice(EXECUTOR_SENDS)
        return self._ends(end, send, cw.Executor(chance.randrange(1, 4), self.context), chance)

    def _ends(self, end: Any, send: Any, pool: Any, chance: random.Random) -> str:
        n = chance.choice(SIZES)
        found = end(pool, send, n)
        name = f"{end.__name__} {send.__name__} {n}"
        if isinstance(found, str) and found in LOST:  # in a thread of the idiom's
            if LOST[found] not in self.harm:
                raise Wrong(f"{name} raised {found}")
            with self._lock:
                self._raised[found] += 1
        elif (came := pool_idioms.look_at(found, n)) != "ok":
            raise Wrong(f"{name}: {came}")
        return name

    # ---- a Pool and what people do with it

    def pool(self, chance: random.Random) -> str:
        options = {
            "maxtasksperchild": chance.choice([None, None, self.tasks_max]),
            "retries": chance.choice([0, 0, 2]),
            "capture_stderr": chance.random() < 0.2,
            "initializer": chance.choice([None, tasks.begin]),
        }
        pool = cw.Pool(chance.randrange(1, 4), context=self.context, **options)
        self._use(pool, self.POOL_USES, chance)
        how = chance.choice(["close", "terminate", "drop", "with"])
        if how == "close":
            pool.close()
            pool.join()
        elif how == "terminate":
            pool.terminate()
            pool.join()
        elif how == "with":
            with contextlib.suppress(cw.WorkerDied), pool:
                pass
        return f"{how} {options}"

    def executor(self, chance: random.Random) -> str:
        tasks_max = chance.choice([None, None, self.tasks_max])
        executor = cw.Executor(
            chance.randrange(1, 4), self.context, max_tasks_per_child=tasks_max, retries=chance.choice([0, 2])
        )  # fmt: skip
        self._use(executor, self.EXECUTOR_USES, chance)
        how = chance.choice(["wait", "not", "cancel", "kill", "terminate", "drop"])
        left = [] if how == "drop" else [executor.submit(tasks.slow, 0.01, i) for i in range(9)]
        if how == "kill":
            executor.kill_workers()
        elif how == "terminate":
            executor.terminate_workers()
        elif how != "drop":
            executor.shutdown(wait=how == "wait", cancel_futures=how == "cancel")
        for i, future in enumerate(left):
            try:
                self.checked("a future at the end", future.result, i)
            except futures.CancelledError:
                if how != "cancel":
                    raise
            except futures.BrokenExecutor:
                if how not in ("kill", "terminate"):
                    raise
        return how

    def _use(self, pool: Any, uses: Any, chance: random.Random) -> None:
        for _ in range(chance.randrange(1, 5)):
            try:
                chance.choice(uses)(self, pool, chance)
            except Exception as error:
                if not self.may_raise(error):
                    raise

    def callbacks(self, pool: Any, chance: random.Random) -> None:
        told: list[int] = []
        kinds = [chance.random() < 0.3 for _ in range(chance.randrange(1, 20))]
        asked = []
        for i, fails in enumerate(kinds):
            function: Any = tasks.raises if fails else tasks.square
            hears = lambda _, i=i: told.append(i)  # noqa: E731
            asked.append(pool.apply_async(function, (i,), callback=hears, error_callback=hears))
        for i, (fails, result) in enumerate(zip(kinds, asked, strict=True)):
            try:
                self.checked(
                    "a callback's", result.get, lambda x, i=i, f=fails: not f and x == i * i
                )
            except LookupError as error:
                if not fails or str(error) != f"no {i}":
                    raise
        if not eventually(lambda: len(told) >= len(kinds)) or sorted(told) != list(
            range(len(kinds))
        ):
            raise Wrong(f"of {len(kinds)} calls {sorted(told)} were told of")

    def arrays(self, pool: Any, chance: random.Random) -> None:
        given = [tasks.numbers(i, chance.choice([10, 5000, 40_000, 400_000])) for i in range(4)]
        get = [self._begin(pool, tasks.doubled, array) for array in given]
        for array, got in zip(given, get, strict=True):
            self.checked("doubled", got, lambda found, a=array: bool((found == a * 2).all()))

    def _begin(self, pool: Any, function: Any, *args: Any) -> Callable[[], Any]:
        if isinstance(pool, cw.Executor):
            return pool.submit(function, *args).result
        return pool.apply_async(function, args).get  # type: ignore[no-any-return]

    def handles(self, pool: Any, chance: random.Random) -> None:
        shared, value = cw.zeros(tasks.LARGE, "i8"), chance.randrange(1, 100)
        get = self._begin(pool, tasks.filled, shared, value)
        whole = self.checked("filled", get, value * tasks.LARGE)
        if whole and not (shared.numpy() == value).all():
            raise Wrong("what a worker wrote is not there")
        get = self._begin(pool, tasks.made, value)
        self.checked("made", get, lambda found: bool((found.numpy() == value).all()))

    def recurring(self, pool: Any, chance: random.Random) -> None:
        values, n = tasks.numbers(5), chance.randrange(1, 20)
        if chance.random() < 0.5:
            found = lambda: pool.starmap(tasks.share, [(values, i) for i in range(n)], 1)  # noqa: E731
        else:
            found = lambda: pool.map(functools.partial(tasks.share, values), range(n), 1)  # noqa: E731
        self.checked("of an array that recurs", found, list(range(5, 5 + n)))
        if not (values == tasks.numbers(5)).all():
            raise Wrong("a task's write reached its caller")

    def constants(self, pool: Any, chance: random.Random) -> None:
        n = chance.randrange(1, 20)
        with cw.constant({"values": tasks.numbers(3)}) as model:
            call = functools.partial(tasks.of_constant, model)
            self.checked("of a constant", lambda: pool.map(call, range(n)), list(range(3, 3 + n)))

    def once(self, pool: Any, chance: random.Random) -> None:
        """No task runs twice unless it may be run again."""
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:
            n, again = chance.randrange(1, 60), pool._engine.options.retries
            results = [pool.apply_async(tasks.noted, (file.name, i)) for i in range(n)]
            right = [self.checked("noted", r.get, i) for i, r in enumerate(results)]
            ran = [int(word) for word in Path(file.name).read_text().split()]
        for i, whole in enumerate(right):
            if not (1 if whole else 0) <= ran.count(i) <= 1 + again:
                raise Wrong(f"task {i}, which {whole=}, ran {ran.count(i)} times")

    def imaps(self, pool: Any, chance: random.Random) -> None:
        """Each result once, in its place; of what died one error."""
        n, chunk = chance.randrange(1, 200), chance.choice([1, 1, 6])
        items: Any = range(n) if chance.random() < 0.5 else (x for x in range(n))
        results = pool.imap(tasks.square, items, chunk)
        place = 0
        while place < n:
            whole = self.checked("imap", results.__next__, place * place)
            place = place + 1 if whole else min(n, (place // chunk + 1) * chunk)
        if list(results):
            raise Wrong("imap gave more results than items")

    def maps(self, pool: Any, chance: random.Random) -> None:
        n, y = chance.randrange(0, 300), chance.randrange(9)
        function = chance.choice(
            [tasks.square, lambda x: x * x, functools.partial(tasks.multiply, y)]
        )
        right = [x * (y if isinstance(function, functools.partial) else x) for x in range(n)]
        chunk = chance.choice([1, 3, 50])
        self.checked("map", lambda: list(pool.map(function, range(n), chunksize=chunk)), right)

    def resizes(self, pool: Any, chance: random.Random) -> None:
        for _ in range(3):
            pool.resize(chance.randrange(1, 5))
            self.maps(pool, chance)

    def cancels(self, pool: Any, chance: random.Random) -> None:
        asked = [pool.submit(tasks.square, i) for i in range(chance.randrange(1, 100))]
        cancelled = {i for i in range(len(asked)) if chance.random() < 0.3 and asked[i].cancel()}
        places = {future: i for i, future in enumerate(asked)}
        seen = []
        for future in futures.as_completed(asked):
            seen.append(i := places[future])
            if (i in cancelled) != future.cancelled():
                raise Wrong(f"{i} is {'not ' * (i in cancelled)}cancelled")
            if i not in cancelled:
                self.checked("as_completed", future.result, i * i)
        if sorted(seen) != list(range(len(asked))):
            raise Wrong(f"as_completed told of {sorted(seen)}")

    def maps_ahead(self, pool: Any, chance: random.Random) -> None:
        n, ahead = chance.randrange(1, 100), chance.choice([1, 4])
        results = lambda: pool.map(tasks.square, iter(range(n)), buffersize=ahead)  # noqa: E731
        self.checked("map with buffersize", lambda: list(results()), [x * x for x in range(n)])

    POOL_USES = (callbacks, arrays, handles, recurring, constants, once, imaps, maps, resizes)
    EXECUTOR_USES = (arrays, handles, maps, resizes, cancels, maps_ahead)

    # ---- names

    def names(self, chance: random.Random) -> str:
        name, values = f"storm/{os.getpid()}/{self.number()}", tasks.numbers(7)
        for _ in range(5):  # after BrokerLost the next call begins anew; it may be killed again
            try:
                cw.put(name, values)
                break
            except cw.BrokerLost:
                if "broker" not in self.harm:
                    raise
        else:
            raise Wrong("five calls one after the other lost their broker")
        if self.checked(
            "get", lambda: cw.get(name), lambda found: bool((found.numpy() == values).all())
        ):
            self.checked("remove", lambda: cw.remove(name), lambda _: True)
        return ""

    def queues(self, chance: random.Random) -> str:
        return queues(self, chance)

    KINDS = (
        ends_of_pool,
        ends_of_pool,
        ends_of_executor,
        pool,
        pool,
        executor,
        executor,
        queues,
        queues,
        names,
    )

    # ---- the threads

    def drive(self, which: int) -> None:
        """One thread's work until the time is over."""
        chance = random.Random(f"{self.seed} {which}")
        while not self.over:
            kind: Any = chance.choice(self.KINDS)
            self.what[which] = f"{kind.__name__} since {time.monotonic():.2f}"
            outcome = "ok"
            try:
                outcome += " " + kind(self, chance)
            except Exception as error:
                if self.leaving:
                    return
                outcome = type(error).__name__
                if not self.may_raise(error):
                    self.wrong = True
                    outcome = f"WRONG {error!r:.500}"
                    traceback.print_exc()
            tell(kind.__name__, outcome, self.raised())
        self.what[which] = "nothing any more"

    def wait_for_what_never_comes(self) -> None:
        """Whoever waits hears of the broker's death: this ends at once, or by the put of the end."""
        while True:
            try:
                cw.get("storm/never", timeout=600)
                return
            except cw.BrokerLost as error:
                if not self.may_raise(error):
                    self.wrong = True
                    tell("wait", f"WRONG {error!r}")
                    raise

    def dump(self) -> None:
        """All stacks, and what the Pools wait for, when somebody asks."""
        while os.read(0, 100):  # not sys.stdin: a fork would inherit its lock
            print(f"{time.monotonic():.2f}: drivers: {self.what}", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            print(pool_idioms.state_of_engines(), file=sys.stderr, flush=True)


def footprint() -> dict[str, Any]:
    """What this process has when it holds nothing."""
    from conftest import disconnect

    gc.collect()
    disconnect()
    threads = [thread.name for thread in threading.enumerate()]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "pools' threads": sum(name.startswith("cableway-pool") for name in threads),
        "children": len(multiprocessing.active_children()),
    }


def described() -> list[str]:
    """The descriptors of this process."""
    found = []
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            what = Path(f"/proc/self/fdinfo/{fd}").read_text().split("Pid:")[1:]
            found.append(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')} {' '.join(what).split()}")
    return found


def use_all(parent: Parent) -> None:
    """What stays for good is there afterwards."""
    with cw.Pool(1, context=parent.context) as pool:
        pool.map(tasks.square, [1])
    queue = cw.Queue()
    process = parent.context.Process(target=tasks.put_items, args=(queue, queue, 0, 4))
    process.start()
    process.join()
    process.close()


def main() -> None:
    method, seed, seconds, harm, end, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    parent = Parent(method, seed, set(filter(None, harm.split(","))), folder)
    threading.Thread(target=parent.dump, daemon=True).start()
    use_all(parent)
    before, there = footprint(), described()
    tell("begun")
    # At the interpreter's exit they are daemons, of which the exit knows nothing.
    drivers = [
        threading.Thread(target=parent.drive, args=(i,), daemon=True) for i in range(DRIVERS)
    ]
    waits = threading.Thread(target=parent.wait_for_what_never_comes, daemon=True)
    for thread in (*drivers, waits):
        thread.start()
    try:
        until = time.monotonic() + float(seconds)
        while (
            time.monotonic() < until
        ):  # a signal that another thread has got would not end one long sleep
            time.sleep(0.02)
    except KeyboardInterrupt:
        parent.leaving = True
        raise
    if end == "exit":
        os._exit(0)
    if end == "leave":
        parent.leaving = True
        return
    parent.over = True
    for thread in drivers:
        thread.join()
    while waits.is_alive():
        with contextlib.suppress(cw.BrokerLost):
            cw.put("storm/never", [1.0])
        waits.join(1)
    with contextlib.suppress(cw.BrokerLost, cw.NameNotFound):
        cw.remove("storm/never")
    tell("over")
    after: dict[str, Any] = {}

    def as_before() -> bool:
        try:  # a server for workers that was started for the last Pool is asked what it has learned by the next
            use_all(parent)
        except Exception as error:
            if not parent.may_raise(error):
                raise
        after.update(footprint())
        return all(after[name] <= count for name, count in before.items())

    if not eventually(as_before, 30):
        tell("the end", f"WRONG before {before}, after {after}")
        print("before", *there, "after", *described(), sep="\n", file=sys.stderr)
        parent.wrong = True
    sys.exit(parent.wrong)


if __name__ == "__main__":
    main()
