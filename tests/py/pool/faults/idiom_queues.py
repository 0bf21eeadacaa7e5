"""Queues between processes that are killed, for idiom_parent.py: no item comes twice, and none is lost that may not be."""

from __future__ import annotations

import random
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import idiom_tasks as tasks

import cableway as cw

if TYPE_CHECKING:
    from idiom_parent import Parent


def queues(parent: Parent, chance: random.Random) -> str:
    """Some writers and some readers; what they told is looked at when all have ended."""
    kind = chance.choice([cw.Queue, cw.Queue, cw.JoinableQueue, cw.SimpleQueue])
    simple = kind is cw.SimpleQueue
    q: Any = kind() if simple else kind(maxsize=chance.choice([0, 4, 40]))
    session = Session(parent, q, simple, chance)
    session.run()
    session.look()
    text = repr(session)
    q.close()
    if not simple:
        q.join_thread()
    return text


class Session:
    """One queue and its processes."""

    def __init__(self, parent: Parent, q: Any, simple: bool, chance: random.Random) -> None:
        self.parent, self.q, self.simple = parent, q, simple
        self.out: Any = cw.Queue()
        self.count = chance.choice([10, 60, 200])
        make = parent.context.Process
        self.writers = [
            make(target=tasks.put_items, args=(q, self.out, i, self.count), daemon=True)
            for i in range(chance.randrange(1, 4))
        ]
        self.readers = [
            make(target=tasks.get_items, args=(q, self.out, i, simple), daemon=True)
            for i in range(chance.randrange(0, 4))
        ]
        self.got: list[tuple[int, int]] = []
        self.by_reader: dict[tuple[int, int], list[int]] = {}
        self.told: Counter[str] = Counter()
        self.not_put: set[tuple[int, int]] = set()
        self.ends: list[int] = []

    def __repr__(self) -> str:
        return f"{type(self.q).__name__} {len(self.writers)} to {len(self.readers)}, {len(self.got)} items, {dict(self.told)}"

    def note(self, found: Any) -> None:
        kind, who, what = found
        self.told[kind] += 1
        if kind == "got":
            self.got.append(what)
            self.by_reader.setdefault((who, what[0]), []).append(what[1])
        elif kind == "not put":
            self.not_put.add((who, what))
        elif kind == "WRONG":
            raise AssertionError(f"the item {what} is not what was put")

    def read_out(self, seconds: float) -> None:
        found = tasks.take(self.out, seconds, False)
        while not isinstance(found, str):
            self.note(found)
            found = tasks.take(self.out, 0, False)

    def read(self) -> None:
        """Takes an item itself, as one more reader."""
        if self.simple and self.q.empty():  # nobody else takes any
            return
        found = tasks.take(self.q, 0.02, self.simple)
        if found == "lost":
            self.told["lost"] += 1
        elif found != "none":
            if hasattr(self.q, "task_done"):
                self.q.task_done()
            if found is not None:
                self.note(("got" if tasks.is_whole(found) else "WRONG", -1, found[:2]))

    def run(self) -> None:
        try:
            for process in self.writers + self.readers:
                process.start()
            while any(process.is_alive() for process in self.writers):
                self.read_out(0.02)
                if not any(process.is_alive() for process in self.readers):
                    self.read()
            self.end_readers()
            self.ends = [process.exitcode for process in self.writers + self.readers]
        finally:
            for process in self.writers + self.readers:
                if process.pid is not None:
                    process.kill()
                    process.join()
                    process.close()
        while not self.q.empty():
            self.read()
        self.read_out(0.02)
        while not self.out.empty():
            self.read_out(0.02)

    def end_readers(self) -> None:
        """One None for each; who was killed leaves his to nobody."""
        while living := [process for process in self.readers if process.is_alive()]:
            if self.q.empty():
                for _ in living:
                    try:
                        self.q.put(None) if self.simple else self.q.put(None, timeout=0.05)
                    except cw.QueueBlocked:
                        pass
                    except Exception as error:
                        if type(error).__name__ != "Full":
                            raise
            self.read_out(0.02)

    def look(self) -> None:
        allowed = {0}
        if self.parent.context.get_start_method() == "forkserver":
            # The status of a fork server's child can be read once. Where two threads read it at once, which each
            # `start` does for all children, the second one makes it 255 (Popen.poll in popen_forkserver.py).
            allowed.add(255)
        if "workers" in self.parent.harm:
            allowed.add(-signal.SIGKILL)
        if "broker" in self.parent.harm:
            allowed |= {tasks.CANNOT_OPEN, 1}  # 1: the queue itself could not be unpickled
        assert set(self.ends) <= allowed, f"the queue's processes ended with {self.ends}"
        twice = [item for item, times in Counter(self.got).items() if times > 1]
        assert not twice, f"items came twice: {twice}"
        for who, order in self.by_reader.items():
            assert order == sorted(order), f"reader and writer {who}: not in order: {order}"
        seen = set(self.got)
        missing: list[tuple[int, int]] = []
        for writer, status in enumerate(self.ends[: len(self.writers)]):
            numbers = [i for w, i in seen if w == writer]
            last = self.count if status == 0 else max(numbers, default=-1) + 1
            missing += [
                (writer, i)
                for i in range(last)
                if (writer, i) not in seen and (writer, i) not in self.not_put
            ]
        may = sum(status != 0 for status in self.ends[len(self.writers) :]) + self.told["lost"]
        assert len(missing) <= may, (
            f"{missing} of {self!r} are missing, at most {may} may; {self.ends}"
        )
        if hasattr(self.q, "join") and not any(self.ends) and not self.told["lost"]:
            self.q.join()
