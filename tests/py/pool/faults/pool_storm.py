"""A storm of kills: workers of a Pool and of an Executor are killed at random during mixed work.

    python pool_storm.py --kills 300 --seed 1 --method fork

Threads give work of all kinds and check each result; the main thread kills. What is promised: every task ends, with
its right result or with WorkerDied; WorkerDied tells of a worker that was killed, and of one message of it at most;
an item of the queue is lost only with a reader that was killed; at the end there are as many descriptors, threads and
processes as before, and the broker has no more bytes, slabs, transits and descriptors.
Who makes no progress for a while is hung: all stacks are printed, those of the workers too.

Workers are known by their initializer and by their results, each by its pid and its start time: in a long storm pids
come again. Three that die one after the other while they start end a Pool, as they should; so a worker that has not
answered yet is only killed now and then.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

import storm_tasks as tasks
from storm_tasks import Worker
from waiting import eventually

import cableway as cw
from cableway._core import programs

HUNG_SECONDS = 45
SAY_SECONDS = 20
HUNG = 3  # exit status
DRIVERS = 4
POOL_WORKERS, EXECUTOR_WORKERS = 3, 2
KILLS_FOR_ONE_AT_ITS_START = 12


class Victims:
    """The workers: those that started, those that have answered, those that were killed."""

    def __init__(self, starts: Path) -> None:
        self._starts = starts
        self._lock = threading.Lock()
        self._living: dict[Worker, int] = {}  # pidfds of those that have answered
        self._answered: set[Worker] = set()
        self.killed: set[Worker] = set()
        self.killed_at_start = 0

    def answered(self, worker: Worker) -> None:
        """A result came from a worker."""
        with self._lock:
            if worker not in self._answered:
                self._answered.add(worker)
                fd = _open(worker)
                if fd is not None:
                    self._living[worker] = fd

    def kill_one(self, chance: random.Random, at_its_start: bool) -> bool:
        """Kills a worker that has answered, or one that only started; False if none of these lives."""
        with self._lock:
            if at_its_start:
                candidates = set(self.started()) - self._answered - self.killed
            else:
                candidates = set(self._living)
            for worker in chance.sample(sorted(candidates), len(candidates)):
                fd = _open(worker) if at_its_start else self._living.pop(worker)
                if fd is None:
                    continue
                try:
                    if _has_ended(fd):
                        continue
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                except ProcessLookupError:  # another kill had just reached it
                    continue
                finally:
                    os.close(fd)
                self.killed.add(worker)
                self.killed_at_start += at_its_start
                return True
        return False

    def close(self) -> None:
        """Lets go of the descriptors."""
        with self._lock:
            for fd in self._living.values():
                os.close(fd)
            self._living.clear()

    def started(self) -> list[Worker]:
        """All workers that there have been."""
        words = map(int, self._starts.read_text().split())
        return [Worker(pid, start) for pid, start in zip(words, words, strict=True)]

    def killed_with(self, pid: int) -> int:
        """How many of those that were killed had a pid."""
        return sum(worker.pid == pid for worker in self.killed)


class Storm:
    """The work of all threads, and what came of it."""

    def __init__(self, method: str, starts: Path, maxtasksperchild: int | None) -> None:
        self.victims = Victims(starts)
        self.queue = cw.Queue()
        begin = (str(starts), self.queue)
        self.pool = cw.Pool(POOL_WORKERS, tasks.begin, begin, maxtasksperchild, method)
        self.executor = cw.Executor(EXECUTOR_WORKERS, method, tasks.begin, begin)
        self.over = False
        self.lock = threading.Lock()
        self.done: Counter[str] = Counter()
        self.deaths: dict[int, set[Any]] = {}  # by pid: the messages that were lost with it
        self.jobs = 0
        self.put: set[int] = set()  # items whose writer has answered
        self.perhaps_put: set[int] = set()  # whose writer died
        self.got: list[int] = []
        self.numbers = 0
        self.errors: list[str] = []
        self.progress = [time.monotonic()] * DRIVERS

    def number(self) -> int:
        with self.lock:
            self.numbers += 1
            return self.numbers

    def check(self, kind: str, message: Any, get: Callable[[], Any], right: Any) -> Any:
        """One task: its result is right, or its worker was killed. Returns the value, None of the dead."""
        try:
            found = get()
        except cw.WorkerDied as error:
            with self.lock:
                self.deaths.setdefault(error.pid or 0, set()).add((kind, *message))
                self.done[kind + ", died"] += 1
            return None
        worker, value = found
        self.victims.answered(Worker(*worker))
        with self.lock:
            self.done[kind] += 1
        if not right(value) if callable(right) else value != right:
            raise AssertionError(f"{kind}: {value!r} is not right")
        return value

    # ---- kinds of work

    def map(self, chance: random.Random, job: int) -> None:
        n, chunksize = chance.randrange(1, 30), chance.choice([None, 1, 2, 5])
        try:
            found = self.pool.map(tasks.square, range(n), chunksize)
        except cw.WorkerDied as error:
            self.check("map", (job, error.pid), _raises(error), None)
            return
        for i, pair in enumerate(found):
            self.check("map", None, lambda p=pair: p, i * i)  # type: ignore[misc]
        assert len(found) == n, f"map gave {len(found)} results for {n} items"

    def imap(self, chance: random.Random, job: int) -> None:
        n, chunksize = chance.randrange(1, 30), chance.choice([1, 1, 3])
        items: Iterable[int] = range(n) if chance.random() < 0.5 else iter(range(n))
        self._read(job, n, chunksize, self.pool.imap(tasks.square, items, chunksize))

    def _read(self, job: int, n: int, chunksize: int, results: Any) -> None:
        """Of a chunk whose worker died one error comes, in the place of its results."""
        place = 0
        while place < n:
            chunk = place // chunksize
            value = self.check("imap", (job, chunk), results.__next__, place * place)
            place = place + 1 if value is not None else min(n, (chunk + 1) * chunksize)
        try:
            next(results)
        except StopIteration:
            return
        raise AssertionError(f"imap gave more than {n} results")

    def imap_unordered(self, chance: random.Random, job: int) -> None:
        n = chance.randrange(1, 30)
        left = {x * x for x in range(n)}
        results = self.pool.imap_unordered(tasks.square, iter(range(n)))
        for place in range(n):
            value = self.check("imap_unordered", (job, place), results.__next__, left.__contains__)
            left.discard(-1 if value is None else value)
        lost = len(left)
        assert list(results) == [], "imap_unordered gave more results than items"
        assert lost <= len(self.victims.killed), f"{lost} results of imap_unordered are not there"

    def callbacks(self, chance: random.Random, job: int) -> None:
        told: Counter[int] = Counter()
        asked = []
        for i in range(chance.randrange(1, 12)):
            note = lambda _, i=i: told.update([i])  # noqa: E731
            asked.append(self.pool.apply_async(tasks.add, (i, job), {}, note, note))
        for i, result in enumerate(asked):
            self.check("apply_async", (job, i), lambda r=result: r.get(), i + job)  # type: ignore[misc]
        assert all(told[i] == 1 for i in range(len(asked))), f"callbacks of {len(asked)}: {told}"

    def exceptions(self, chance: random.Random, job: int) -> None:
        try:
            self.pool.apply(tasks.raises, (job,))
        except LookupError as error:
            assert str(error) == f"no {job}", error
            with self.lock:
                self.done["exception"] += 1
        except cw.WorkerDied as error:
            self.check("exception", (job, 0), _raises(error), None)

    def submit(self, chance: random.Random, job: int) -> None:
        asked = [self.executor.submit(tasks.add, i, y=job) for i in range(chance.randrange(1, 12))]
        cancelled = {
            i for i, future in enumerate(asked) if chance.random() < 0.1 and future.cancel()
        }
        for i, future in enumerate(asked):
            if i in cancelled:
                assert future.cancelled(), "a cancelled future is not cancelled"
            else:
                self.check("submit", (job, i), future.result, i + job)

    def arrays(self, chance: random.Random, job: int) -> None:
        given = [tasks.numbers(job + i) for i in range(chance.randrange(1, 5))]
        if chance.random() < 0.5:
            asked = [self.pool.apply_async(tasks.doubled, (array,)).get for array in given]
        else:
            asked = [self.executor.submit(tasks.doubled, array).result for array in given]
        for i, get in enumerate(asked):
            right = lambda found, i=i: bool((found == given[i] * 2).all())  # noqa: E731
            self.check("array", (job, i), get, right)

    def handles(self, chance: random.Random, job: int) -> None:
        size = tasks.MIB // 8
        shared = cw.zeros(size, "i8")
        get = self.pool.apply_async(tasks.filled, (shared, job)).get
        if self.check("handle", (job, 0), get, job * size) is not None:
            assert (shared.numpy() == job).all(), "what a worker wrote is not there"
        get = self.pool.apply_async(tasks.made, (job,)).get
        self.check("made", (job, 1), get, lambda found: bool((found.numpy() == job).all()))

    def queues(self, chance: random.Random, job: int) -> None:
        asked = []
        for i in range(chance.randrange(2, 12)):
            put, number = chance.random() < 0.5, self.number()
            call = (tasks.put if put else tasks.get, (number,))
            if chance.random() < 0.5:
                asked.append((put, number, (job, i), self.pool.apply_async(*call).get))
            else:
                asked.append((put, number, (job, i), self.executor.submit(call[0], number).result))
        for put, number, message, get in asked:
            if put:
                value = self.check("put", message, get, number)
                with self.lock:
                    (self.put if value is not None else self.perhaps_put).add(number)
                continue
            found = self.check("get", message, get, lambda _: True)
            with self.lock:
                if found is not None:
                    self.got.append(found)

    KINDS = (
        map,
        imap,
        imap_unordered,
        callbacks,
        exceptions,
        submit,
        arrays,
        handles,
        queues,
        queues,
    )

    def drive(self, which: int, seed: int) -> None:
        """One thread's work, until the storm is over."""
        chance = random.Random(f"{seed} {which}")
        try:
            while not self.over:
                with self.lock:
                    self.jobs += 1
                    job = self.jobs
                chance.choice(self.KINDS)(self, chance, job)
                self.progress[which] = time.monotonic()
        except BaseException as error:
            self.errors.append(f"{type(error).__name__}: {error}")
            faulthandler.dump_traceback(all_threads=False)
            raise

    # ---- the main thread

    def blow(self, kills: int, seed: int) -> None:
        """Kills until there were enough."""
        chance = random.Random(seed)
        threads = [
            threading.Thread(target=self.drive, args=(which, seed), daemon=True)
            for which in range(DRIVERS)
        ]
        for thread in threads:
            thread.start()
        said = time.monotonic()
        while len(self.victims.killed) < kills and not self.errors:
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                print(f"{len(self.victims.killed)} kills, {self.jobs} jobs", flush=True)
            time.sleep(chance.uniform(0, 0.05))
            at_its_start = len(self.victims.killed) % KILLS_FOR_ONE_AT_ITS_START == 0
            if not self.victims.kill_one(chance, at_its_start) and at_its_start:
                self.victims.kill_one(chance, False)
            self.look()
        self.over = True
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
            self.look()

    def look(self) -> None:
        """Ends the process if a thread makes no progress."""
        faulthandler.dump_traceback_later(HUNG_SECONDS + 5, exit=True)
        if not self.errors and time.monotonic() - min(self.progress) > HUNG_SECONDS:
            print(f"hung: no progress since {HUNG_SECONDS} s: {self.progress}", file=sys.stderr)
            faulthandler.dump_traceback()
            for worker in filter(_lives, self.victims.started()):
                print(f"the worker {worker.pid}:", file=sys.stderr, flush=True)
                try:
                    os.kill(worker.pid, signal.SIGUSR1)
                except ProcessLookupError:
                    pass
                time.sleep(0.3)  # so that one prints at a time
            os._exit(HUNG)

    def end(self) -> None:
        """Ends all, and looks at what the whole gave."""
        self.pool.close()
        self.pool.join()
        self.executor.shutdown()
        while not self.queue.empty():
            found = self.queue.get(timeout=HUNG_SECONDS)
            assert tasks.is_whole(found), f"the queue's item {found[0]} is not what was put"
            self.got.append(found[0])
        self.queue.close()
        self.victims.close()
        for pid, messages in self.deaths.items():
            kills = self.victims.killed_with(pid)
            assert kills, f"the worker {pid} died without being killed"
            assert len(messages) <= kills, (
                f"{kills} workers {pid} took more than one message each: {messages}"
            )
        assert len(self.got) == len(set(self.got)), "an item came twice"
        strange = set(self.got) - self.put - self.perhaps_put
        assert not strange, f"items came that nobody put: {strange}"
        lost = self.put - set(self.got)
        assert len(lost) <= self.done["get, died"], (
            f"lost {lost} with {self.done['get, died']} readers"
        )
        assert eventually(lambda: not any(map(_lives, self.victims.started())))


def _raises(error: BaseException) -> Callable[[], Any]:
    def get() -> Any:
        raise error

    return get


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _lives(worker: Worker) -> bool:
    try:
        state, start = tasks.stat(worker.pid)
    except OSError:
        return False
    return start == worker.start and state not in "ZX"


def _open(worker: Worker) -> int | None:
    """A pidfd of a worker, None if it has ended."""
    try:
        fd = os.pidfd_open(worker.pid)
    except ProcessLookupError:
        return None
    if _lives(worker):  # after the opening, so that the pid was still this worker's
        return fd
    os.close(fd)
    return None


def children() -> list[int]:
    """Those that the main thread has started."""
    told = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in told.split()]


def status() -> dict[str, Any]:
    """What the broker's page tells."""
    done = subprocess.run(
        [programs.path("cableway"), "status", "--json"], capture_output=True, check=True
    )
    return dict(json.loads(done.stdout))


def clients() -> list[str]:
    """Who is connected to the broker: our own connection is one of them."""
    from conftest import describe

    found = []
    for client in status()["clients"]:
        there = Path(f"/proc/{client['pid']}").exists()
        found.append(f"{client} {'lives' if there else 'is dead'}: {describe(client['pid'])}")
    return found


def footprint() -> dict[str, int]:
    """What may not grow: of this process, and of the broker when this process holds nothing."""
    from conftest import disconnect

    gc.collect()
    disconnect()
    cw.names()
    told = status()
    gauges = {
        name: told["gauges"][name]
        for name in ("clients", "names", "bytes", "slabs", "orphan_slabs", "transits", "waiting")
    }
    return {
        **gauges,
        "broker's descriptors": len(os.listdir(f"/proc/{told['broker']['pid']}/fd")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(children()),
    }


def run(kills: int, seed: int, method: str) -> Storm:
    """One storm from the beginning to the end."""
    with tempfile.TemporaryDirectory() as folder:
        (starts := Path(folder) / "starts").touch()
        storm = Storm(method, starts, random.Random(seed).choice([None, 50]))
        storm.blow(kills, seed)
        if storm.errors:
            raise AssertionError("; ".join(storm.errors))
        storm.end()
        return storm


def main() -> None:
    from conftest import describe

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--method", default="fork")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    faulthandler.dump_traceback_later(HUNG_SECONDS, exit=True)
    run(2, args.seed, args.method)  # all that stays for good is there now
    before = footprint()
    began = time.monotonic()
    storm = run(args.kills, args.seed, args.method)
    seconds, victims = time.monotonic() - began, storm.victims
    print(
        f"{len(victims.killed)} kills in {seconds:.1f} s, {victims.killed_at_start} at the start of a worker; "
        f"{len(storm.deaths)} messages lost",
        flush=True,
    )
    print(dict(sorted(storm.done.items())), flush=True)
    died = sum(count for kind, count in storm.done.items() if kind.endswith("died"))
    assert len(storm.victims.killed) >= args.kills and died > 0
    del storm
    faulthandler.dump_traceback_later(HUNG_SECONDS + 40, exit=True)
    after: dict[str, int] = {}

    def nothing_more() -> bool:
        after.update(footprint())
        return all(after[name] <= count for name, count in before.items())

    clean = eventually(nothing_more, 40)
    print(f"before {before}\nafter  {after}", flush=True)
    if not clean:
        print("\n".join(["clients now:", *clients()]), flush=True)
        print("\n".join(["our children:", *map(describe, children())]), flush=True)
    assert clean, "something is left"


if __name__ == "__main__":
    main()
