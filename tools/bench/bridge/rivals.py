"""Ways to bring an array from one process to another on this machine: ours, and what it is measured beside.

Each is asked for samples of one size after another: `ready(size)`, then `sample(turn)`, which returns seconds and CPU
seconds of everybody who took part, then `done()`. Bytes are random, go round in several arrays, and are compared with
what they should be after the clocks have stopped. `how` says how the sides wait for each other.
"""

from __future__ import annotations

import abc
import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
from bridge.nodes import Nodes, Owner, areas, free_port, random_bytes
from measure import Used, in_turn, report

import cableway as cw

Sample = tuple[float, float]
START_SECONDS = 20  # what a benchmark may lose to a rival that does not start


class Rival(abc.ABC):
    """One of them."""

    name = ""
    how = "sleeps"

    def ready(self, size: int) -> None:
        """From now on samples are of this size."""
        self.size = size
        self.arrays = [random_bytes(size, number) for number in range(areas(size))]

    @abc.abstractmethod
    def sample(self, turn: int) -> Sample:
        """One array."""

    def done(self) -> None:
        """No more samples of this size."""
        self.arrays = []

    def close(self) -> None:
        """Ends it."""
        return

    def check(self, found: Any, turn: int) -> None:
        """Whether it is the right array."""
        if not np.array_equal(found, self.arrays[turn % len(self.arrays)]):
            raise RuntimeError(f"{self.name}: wrong bytes")


def _until_gone(name: str) -> None:
    with contextlib.suppress(cw.NameNotFound):
        while True:
            cw.get(name).close()
            time.sleep(0.001)


def _get(folder: Path, pids: list[int], connection: Connection) -> None:
    size, arrays = 0, []
    with cw.connect(folder):
        while (word := connection.recv()) is not None:
            if word[0] == "ready":
                size = word[1]
                arrays = [random_bytes(size, number) for number in range(word[2])]
                connection.send("done")
            elif word[0] == "get":
                cpu, begun = Used(pids), time.perf_counter()
                array = cw.get(word[1])
                took = time.perf_counter() - begun
                used = cpu.until_now()
                right = np.array_equal(array.numpy(), arrays[word[2] % len(arrays)])
                array.close()
                connection.send((took, used, right))
            else:
                _until_gone(word[1])
                connection.send("done")


class Ours(Rival):
    """A get by node a of a name of node b that is new to it: replica, check and name included.

    The client is a process of its own, which times itself and stays node a's client.
    """

    how = "adaptive"

    def __init__(self, made: Nodes, owner: Owner, name: str) -> None:
        self.owner, self.name, self.next = owner, name, 0
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_get, args=(made.root / "a", made.pids, theirs), daemon=True
        )
        self.process.start()

    def _ask(self, *word: Any) -> Any:
        self.connection.send(word)
        return self.connection.recv()

    def ready(self, size: int) -> None:
        """The owner has the arrays, the client knows what they are."""
        self.size, self.areas = size, areas(size)
        self.owner.make(size)
        self._ask("ready", size, self.areas)

    def sample(self, turn: int) -> Sample:
        """Memory of the getting node was used before, but for the first time."""
        self.next += 1
        name, number = f"new/{self.next}", turn % self.areas
        self.owner.name(self.size, number, name)
        took, used, right = self._ask("get", f"//b/{name}", number)
        self.owner.remove(name)
        self._ask("gone", f"//b/{name}")
        if not right:
            raise RuntimeError(f"{self.name}: wrong bytes")
        return took, used

    def done(self) -> None:
        """The owner has them no more."""
        self._ask("ready", self.size, 0)
        self.owner.drop(self.size)

    def close(self) -> None:
        """Ends the client."""
        self.connection.send(None)
        self.process.join()


class Loop(Rival):
    """bench_tls: blocking loops in C."""

    def __init__(self, build: Path, keys: Path, kind: str, threads: int, most: int) -> None:
        what = "OpenSSL" if kind == "tls" else "plain sockets"
        self.name = f"{what}, blocking loop in C" + (f", {threads} threads" if threads > 1 else "")
        self.process = subprocess.Popen(
            [build / "tools/bench/programs/bench_tls", kind, keys, str(threads), str(most)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ready(self, size: int) -> None:
        """Its arrays are its own."""
        self.size = size

    def ask(self, command: str) -> Sample:
        """A command: seconds and CPU seconds."""
        assert self.process.stdin and self.process.stdout
        print(command, file=self.process.stdin, flush=True)
        took, used = self.process.stdout.readline().split()
        return float(took), float(used)

    def sample(self, turn: int) -> Sample:
        """It looks at the bytes itself."""
        return self.ask(str(self.size))

    def close(self) -> None:
        """The end of its input."""
        self.process.communicate()
        if self.process.returncode:
            raise RuntimeError(f"bench_tls ended with {self.process.returncode}")


def _send(address: tuple[str, int]) -> None:
    with Client(address) as connection:
        arrays: list[np.ndarray] = []
        while (word := connection.recv()) is not None:
            if word[0] == "ready":
                arrays = [random_bytes(word[1], number) for number in range(word[2])]
                connection.send("done")
            else:
                connection.send(arrays[word[1]])


class Standard(Rival):
    """multiprocessing.connection over TCP: no encryption, and a pickle of the array."""

    name = "multiprocessing.connection, no TLS"

    def __init__(self) -> None:
        self.listener = Listener(("127.0.0.1", 0))
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=_send, args=(self.listener.address,), daemon=True)
        self.process.start()
        self.connection: Connection = self.listener.accept()

    def ready(self, size: int) -> None:
        """The other side has the arrays."""
        super().ready(size)
        self.connection.send(("ready", size, areas(size)))
        self.connection.recv()

    def sample(self, turn: int) -> Sample:
        """A question and the array."""
        cpu, begun = Used([self.process.pid or 0]), time.perf_counter()
        self.connection.send(("send", turn % len(self.arrays)))
        found = self.connection.recv()
        took = time.perf_counter() - begun
        used = cpu.until_now()
        self.check(found, turn)
        return took, used

    def close(self) -> None:
        """Ends the other side."""
        self.connection.send(None)
        self.process.join()
        self.listener.close()


class Dask(Rival):
    """Client.gather of an array that a worker has, directly from it, over Dask's tls:// with keys made in the run.

    Its cipher is what Python's ssl agrees on, TLS_AES_256_GCM_SHA384: nothing in Python chooses those of TLS 1.3.
    """

    name = "Dask, tls://"

    def __init__(self) -> None:
        from distributed import Client
        from distributed.security import Security

        self.folder = tempfile.TemporaryDirectory(prefix="cwdask-")
        key, certificate = f"{self.folder.name}/key", f"{self.folder.name}/crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-subj", "/CN=bench",
             "-days", "2", "-keyout", key, "-out", certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        parts = ("client", "scheduler", "worker")
        security = Security(
            require_encryption=True, tls_ca_file=certificate,
            **{f"tls_{part}_{what}": path for part in parts for what, path in (("key", key), ("cert", certificate))},
        )  # fmt: skip
        port = free_port()
        files = [
            f"--tls-{what}={path}"
            for what, path in (("ca-file", certificate), ("cert", certificate), ("key", key))
        ]
        address = f"tls://127.0.0.1:{port}"
        self.futures: list[Any] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.client: Any = None
        try:
            self._start("scheduler", "--host=127.0.0.1", f"--port={port}", "--protocol=tls", "--no-dashboard",
                        "--no-show", *files)  # fmt: skip
            self._until_listening(port)
            self._start("worker", address, "--protocol=tls", "--nthreads=1", "--no-nanny", "--no-dashboard",
                        "--memory-limit=0", f"--local-directory={self.folder.name}", *files)  # fmt: skip
            self.client = Client(
                address, security=security, timeout=START_SECONDS, set_as_default=False
            )
            self.client.wait_for_workers(1, timeout=START_SECONDS)
        except Exception as error:
            said = self._said()
            self.close()
            raise RuntimeError(f"{type(error).__name__}: {error}; {said}") from error

    def _start(self, part: str, *words: str) -> None:
        here = os.path.dirname(os.path.abspath(__file__))
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]  # Dask itself may be there
        with Path(self.folder.name, part).open("w") as log:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", f"distributed.cli.dask_{part}", *words],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                    stdout=log, stderr=log,
                )
            )  # fmt: skip

    def _until_listening(self, port: int) -> None:
        limit = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                if self.processes[0].poll() is not None:
                    raise RuntimeError("the scheduler ended") from None
                if time.monotonic() > limit:
                    raise
                time.sleep(0.05)

    def _said(self) -> str:
        """The last lines of the scheduler and the worker, on one line."""
        last = []
        for part in ("scheduler", "worker"):
            with contextlib.suppress(OSError):
                lines = Path(self.folder.name, part).read_text().strip().splitlines()[-3:]
                last.append(f"{part}: {' | '.join(lines) or 'nothing'}")
        return "; ".join(last)

    def ready(self, size: int) -> None:
        """The worker makes the arrays."""
        super().ready(size)
        numbers = range(areas(size))
        self.futures = [
            self.client.submit(random_bytes, size, number, pure=False) for number in numbers
        ]
        for future in self.futures:
            future.exception()  # waits

    def sample(self, turn: int) -> Sample:
        """From the worker, without a way through the scheduler."""
        cpu, begun = Used([process.pid for process in self.processes]), time.perf_counter()
        found = self.client.gather(self.futures[turn % len(self.futures)], direct=True)
        took = time.perf_counter() - begun
        used = cpu.until_now()
        self.check(found, turn)
        return took, used

    def done(self) -> None:
        """The worker has them no more."""
        super().done()
        self.futures = []

    def close(self) -> None:
        """Ends scheduler and worker."""
        if self.client:
            self.client.close()
        for process in reversed(self.processes):
            process.terminate()
            process.wait()
        self.folder.cleanup()


def rows(bench: str, size: int, rivals: list[Rival], rounds: int) -> None:
    """Samples of all in turn: rates, and what the CPUs paid for a gigabyte."""
    for rival in rivals:
        rival.ready(size)
    found = in_turn(rounds, [(rival.name, rival.sample) for rival in rivals])
    for rival in rivals:
        rival.done()
        samples = found[rival.name]
        report(f"bridge {bench}", rival.name, rival.how, "GB/s", [size / took / 1e9 for took, _ in samples],
               sum(used for _, used in samples))  # fmt: skip
    for rival in rivals:
        report(f"bridge {bench}, CPU", rival.name, rival.how, "s/GB",
               [used / size * 1e9 for _, used in found[rival.name]])  # fmt: skip


@contextlib.contextmanager
def closing(rivals: list[Rival]) -> Iterator[list[Rival]]:
    """All of them, closed at the end."""
    try:
        yield rivals
    finally:
        for rival in reversed(rivals):
            rival.close()
