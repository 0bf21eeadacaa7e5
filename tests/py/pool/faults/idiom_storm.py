"""A storm over all idioms of Pool, Executor and Queue: workers, parents and brokers are killed and stopped at random.

    python idiom_storm.py --seconds 60 --seed 1            # rounds until the time is over
    python idiom_storm.py --seed 1 --only 17               # round 17 of that storm alone

Each round has a broker of its own and runs idiom_parent.py, which uses everything at once and checks each result. What is
harmed, how often, the start method and how the program ends follow from the seed and the round's number. What is promised:

- each call gives its right result, or raises an error that the harm explains (WorkerDied, BrokerLost, Stale ...);
- nothing hangs: a round that does not end is told with the stacks of all its processes, and the storm ends;
- with its parent, however that ends, each of its processes ends;
- then the broker holds nothing: its gauges and descriptors are those of one that nobody has used. A handle that was
  pickled and never opened holds its array for CABLEWAY_TRANSIT_SECONDS, so that is looked at while later rounds run;
- in /dev/shm is nothing of ours, and this process has as many descriptors as before.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from conftest import broker_pid, describe, disconnect, processes_with, stop_broker
from processes import stat_fields
from waiting import eventually

import cableway as cw
from cableway._core import programs

HERE = Path(__file__).parent
METHODS = ("fork", "fork", "spawn", "forkserver")
HARMS = ("", "workers", "workers", "workers", "broker", "workers,broker")
ENDS = ("clean", "clean", "clean", "leave", "exit", "SIGKILL", "SIGTERM", "SIGINT")
BEGIN_SECONDS = 60
HUNG_SECONDS = 120.0  # that a program may take to end, once its time is over
GONE_SECONDS = 60
TRANSIT_SECONDS = 15
GAUGES = (
    "names",
    "bytes",
    "slabs",
    "orphan_slabs",
    "transits",
    "waiting",
    "clients",
    "gpu_bytes",
    "fds",
)


class Wrong(Exception):
    """Something that was not as promised."""


def stat(pid: int) -> tuple[str, int, int]:
    """State, parent and start of a process."""
    fields = stat_fields(pid)
    return fields[0], int(fields[1]), int(fields[19])


def below(root: int) -> list[int]:
    """All processes that descend from one, without those that are not the program's own."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state, parent, _ = stat(int(entry))
                if state not in "ZX":
                    parents.setdefault(parent, []).append(int(entry))
    found, look = [], [root]
    while look:
        children = parents.get(look.pop(), [])
        look += children
        found += children
    helpers = ("resource_tracker", "cablewayd", "cableway-mover")
    kept = [pid for pid in found if not any(word in describe(pid) for word in helpers)]
    # A fork server's death is told of elsewhere: how its children end, nobody learns any more.
    return [
        pid for pid in kept if not ("forkserver" in describe(pid) and stat_or_none(pid) == root)
    ]


def stat_or_none(pid: int) -> int | None:
    """The parent of a process."""
    try:
        return stat(pid)[1]
    except OSError:
        return None


def hears(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal, which would end it otherwise."""
    caught = Path(f"/proc/{pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


class Harm:
    """Kills and stops. What is stopped goes on after a moment."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.done: Counter[str] = Counter()
        self._stopped: list[tuple[float, int]] = []  # until when, and a pidfd

    def send(self, pid: int, number: signal.Signals, what: str, root: int | None = None) -> None:
        """Sends a signal to a process that is, if asked, still one of those below the root."""
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if root is not None and pid not in below(root):
                os.close(fd)
                return
            signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            os.close(fd)
            return
        self.done[f"{what} {number.name}"] += 1
        if number == signal.SIGSTOP:
            self._stopped.append(
                (time.monotonic() + self.chance.choice([0.01, 0.03, 0.1, 0.3, 1.3]), fd)
            )
        else:
            os.close(fd)

    def let_go_on(self, all_of_them: bool = False) -> None:
        """Continues those whose time is over."""
        for until, fd in list(self._stopped):
            if all_of_them or time.monotonic() >= until:
                self._stopped.remove((until, fd))
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGCONT)
                os.close(fd)


class Round:
    """One program, and what is done to it."""

    def __init__(self, seed: int, number: int, hung: float = HUNG_SECONDS) -> None:
        self.hung = hung
        self.name = f"{seed} {number}"
        self.chance = chance = random.Random(self.name)
        self.method, self.harm = chance.choice(METHODS), chance.choice(HARMS)
        self.end, self.seconds = chance.choice(ENDS), chance.choice([0.3, 1.0, 3.0, 8.0])
        self.brokers_left = 2
        self.folder = Path(tempfile.mkdtemp(prefix="cwidiom-"))
        (self.folder / "b").mkdir(mode=0o700)
        self.broker_folder = self.folder / "b"
        self.environment = {
            **os.environ,
            "CABLEWAY_DIR": str(self.broker_folder),
            "CABLEWAY_TRANSIT_SECONDS": str(TRANSIT_SECONDS),
        }
        self.setting = f"CABLEWAY_DIR={self.broker_folder}"
        self.hurt = Harm(chance)
        self.out, self.err = self.folder / "out", self.folder / "err"
        self.limit = 0.0  # until when the broker may hold something yet

    def __repr__(self) -> str:
        return f"round {self.name}: {self.method}, harm {self.harm or 'none'}, end {self.end} after {self.seconds} s"

    # ---- the program

    def run(self) -> Counter[str]:
        """What its idioms came to."""
        ends_itself = self.end in ("clean", "leave", "exit")
        words = [self.method, self.name, str(self.seconds if ends_itself else 600), self.harm]
        with self.out.open("w") as out, self.err.open("w") as err:
            program = subprocess.Popen(
                [sys.executable, str(HERE / "idiom_parent.py"), *words]
                + [self.end if ends_itself else "clean", str(self.folder)],
                env=self.environment, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True, start_new_session=True,
            )  # fmt: skip
        try:
            self._storm(program, ends_itself)
        except BaseException:
            self.hurt.let_go_on(all_of_them=True)
            self.dump(program)
            raise
        finally:
            self.hurt.let_go_on(all_of_them=True)
            if program.stdin is not None:
                program.stdin.close()
        return self.look(program)

    def _storm(self, program: subprocess.Popen[str], ends_itself: bool) -> None:
        def begun() -> bool:
            return '"begun"' in self.out.read_text() or program.poll() is not None

        if not eventually(begun, BEGIN_SECONDS):
            raise Wrong("it does not begin")
        start = time.monotonic()
        ended_by_us = False
        while program.poll() is None:
            now = time.monotonic() - start
            if now > self.seconds + self.hung:
                raise Wrong(f"HANG: it has not ended {self.hung:g} s after its time")
            time.sleep(self.chance.uniform(0, 0.12))
            self.hurt.let_go_on()
            if not ends_itself and not ended_by_us and now > self.seconds:
                self.hurt.send(program.pid, signal.Signals[self.end], "the parent")
                ended_by_us = True
            elif now < self.seconds + 1:
                self.do_harm(program.pid)

    def do_harm(self, root: int) -> None:
        """One kill or stop, or none."""
        chance = self.chance
        dice = chance.random()
        if dice < 0.06:
            self.hurt.send(root, signal.SIGSTOP, "the parent")
        elif dice < 0.12 and (pid := broker_pid(self.broker_folder)):
            self.hurt.send(pid, signal.SIGSTOP, "the broker")
        elif dice < 0.18 and "broker" in self.harm and self.brokers_left:
            if pid := broker_pid(self.broker_folder):
                self.brokers_left -= 1
                self.hurt.send(pid, signal.SIGKILL, "the broker")
        elif dice < 0.75 and (victims := below(root)):
            kills = "workers" in self.harm and chance.random() < 0.6
            number = signal.SIGKILL if kills else signal.SIGSTOP
            self.hurt.send(chance.choice(victims), number, "a worker", root)

    def dump(self, program: subprocess.Popen[str]) -> None:
        """All stacks of all processes go to the program's stderr."""
        with contextlib.suppress(OSError):
            assert program.stdin is not None
            program.stdin.write("dump\n")
            program.stdin.flush()
        time.sleep(2)
        for pid in processes_with(self.setting):
            with contextlib.suppress(OSError):
                text = describe(pid)
                if pid != program.pid and hears(pid, signal.SIGUSR1):
                    with self.err.open("a") as err:
                        err.write(f"--- {text}, below {stat_or_none(pid)}\n")
                    os.kill(pid, signal.SIGUSR1)
                    time.sleep(0.3)  # so that one prints at a time

    # ---- and what is left of it

    def look(self, program: subprocess.Popen[str]) -> Counter[str]:
        """Its outcomes. Its processes end now."""
        told: Counter[str] = Counter()
        whole = self.out.read_text()
        for line in whole[: whole.rfind("\n") + 1].splitlines():
            kind, outcome, raised = json.loads(line)
            if outcome.startswith("WRONG"):
                raise Wrong(f"{kind}: {outcome}")
            told += Counter(raised)
            told[f"{kind} {outcome.split()[0] if outcome else ''}".strip()] += 1
        if "Fatal Python error" in self.err.read_text():
            raise Wrong("a process broke")
        expected = {
            "clean": {0}, "leave": {0}, "exit": {0}, "SIGKILL": {-9}, "SIGTERM": {-15},
            "SIGINT": {-2, 1, 130},
        }[self.end]  # fmt: skip
        if program.returncode not in expected:
            raise Wrong(f"its status is {program.returncode}")
        if not eventually(lambda: not self.left(), GONE_SECONDS):
            self.dump(program)
            raise Wrong(f"left are {[describe(pid) for pid in self.left()]}")
        return told

    def left(self) -> list[int]:
        """Its processes without the broker."""
        return [pid for pid in processes_with(self.setting) if "cablewayd" not in describe(pid)]

    def clear(self) -> None:
        """Names that a killed program has left are removed: nothing is to hold anything any more."""
        with self.connected():
            for _ in range(3):
                with contextlib.suppress(cw.BrokerLost):
                    for name in cw.names():
                        cw.remove(name)
                    break
        self.limit = time.monotonic() + TRANSIT_SECONDS + 30

    @contextlib.contextmanager
    def connected(self) -> Any:
        os.environ["CABLEWAY_DIR"] = str(self.broker_folder)
        disconnect()
        try:
            yield
        finally:
            disconnect()
            del os.environ["CABLEWAY_DIR"]

    def gauges(self) -> dict[str, int]:
        """What the broker holds; all 0 once it has ended."""
        done = subprocess.run(
            [programs.path("cableway"), "status", "--json"],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return {}
        told = json.loads(done.stdout)
        found = {name: int(told["gauges"][name]) for name in GAUGES}
        with contextlib.suppress(OSError):
            found["descriptors"] = len(os.listdir(f"/proc/{told['broker']['pid']}/fd"))
        return found

    def is_clean(self, fresh: dict[str, int]) -> bool:
        """Whether its broker holds no more than one that nobody has used; raises when it should not any more."""
        found = self.gauges()
        if all(found.get(name, 0) <= count for name, count in fresh.items()):
            return True
        if time.monotonic() > self.limit:
            raise Wrong(f"the broker's gauges are {found}, those of a fresh one {fresh}")
        return False

    def remove(self) -> None:
        stop_broker(self.broker_folder)
        if not eventually(lambda: not processes_with(self.setting)):
            raise Wrong(f"left are {[describe(pid) for pid in processes_with(self.setting)]}")
        shutil.rmtree(self.folder)

    def discard(self) -> None:
        """All that is still there of it goes, whatever has failed: its processes, its broker, its files."""

        def is_gone() -> bool:
            found = processes_with(self.setting)  # the broker too: it may be what hangs
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not found

        if self.folder.exists():
            eventually(is_gone)
            shutil.rmtree(self.folder, ignore_errors=True)


def fresh_gauges() -> dict[str, int]:
    """The gauges of a broker that nobody has used yet."""
    unused = Round(0, 0)
    with unused.connected():
        cw.names()
    found: dict[str, int] = {}

    def quiet() -> bool:
        found.update(unused.gauges())
        return found.get("clients") == 0

    assert eventually(quiet), found
    unused.remove()
    return found


def ours_in_shm() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith(("cw", "cableway"))}


def run(seconds: float, seed: int, only: int | None, hung: float) -> Counter[str]:
    """Rounds until the time is over."""
    os.environ.pop("CABLEWAY_NAMESPACE", None)
    os.environ.pop("CABLEWAY_DIR", None)
    fresh = fresh_gauges()
    shm, descriptors = ours_in_shm(), len(os.listdir("/proc/self/fd"))
    told: Counter[str] = Counter()
    waiting: list[Round] = []
    until, number = time.monotonic() + seconds, 0 if only is None else only
    with contextlib.ExitStack() as left:
        while time.monotonic() < until and (only is None or number == only):
            now = Round(seed, number, hung)
            left.callback(now.discard)
            print(f"{now}", end="", flush=True)
            with told_of(now):
                told += now.run()
                now.clear()
                print(f": {dict(now.hurt.done)}", flush=True)
                told += now.hurt.done
            waiting.append(now)
            for before in list(waiting):
                with told_of(before):
                    if before.is_clean(fresh):
                        waiting.remove(before)
                        before.remove()
            number += 1
        for before in waiting:
            with told_of(before):
                while not before.is_clean(fresh):
                    time.sleep(0.2)
                before.remove()
    told["rounds"] = number if only is None else 1
    assert ours_in_shm() <= shm, ours_in_shm()
    assert len(os.listdir("/proc/self/fd")) <= descriptors, os.listdir("/proc/self/fd")
    return told


@contextlib.contextmanager
def told_of(one: Round) -> Iterator[None]:
    """What fails in the block is told with all that is known of a round."""
    try:
        yield
    except BaseException as error:
        tell(one, error)
        raise


def tell(failed: Round, error: BaseException) -> None:
    """All that is known of a round."""
    again = f"--seed {failed.name.replace(' ', ' --only ')}"
    print(f"\nFAILED: {failed}, {dict(failed.hurt.done)}; again: {again}; {error!r}")
    for line in failed.err.read_text().splitlines():
        if ": drivers: " in line:  # what hangs stands first: all else may be long
            print(line[:500])
    for file in (failed.out, failed.err):
        print(f"--- {file}\n{file.read_text()[-60_000:]}")
    for log in failed.broker_folder.glob("*.log"):
        print(f"--- {log}\n{log.read_text()[-5000:]}")
    for pid in failed.left():
        print(f"left: {describe(pid)}, below {stat_or_none(pid)}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--only", type=int, metavar="ROUND")
    parser.add_argument("--hung", type=float, default=HUNG_SECONDS, metavar="SECONDS")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    told = run(args.seconds, args.seed, args.only, args.hung)
    print(json.dumps(dict(sorted(told.items())), indent=1))


if __name__ == "__main__":
    main()
