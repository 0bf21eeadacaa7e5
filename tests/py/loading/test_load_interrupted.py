"""A signal's handler that raises ends `cw.load` at once, wherever it is: nothing is published, and what was begun is given back."""

from __future__ import annotations

import contextlib
import json
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_support import run_json

import cableway as cw
from cableway.safetensors import load_file

BYTES = 768 << 20
LOADER = "import sys, cableway as cw; cw.connect(); print('ready', flush=True); sys.stdin.readline(); print(len(cw.load('m', sys.argv[1])))"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a hole, which takes no room on the disk and time to be read."""
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    half = BYTES // 2
    header = {
        f"w{n}": {"dtype": "U8", "shape": [half], "data_offsets": [n * half, n * half + half]}
        for n in range(2)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + BYTES)
    return path


@contextlib.contextmanager
def signals(handler: Callable[..., object], after: float, every: float = 0) -> Iterator[None]:
    """This process gets a signal after some seconds, and perhaps more of them."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after, every)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def used() -> int:
    return int(run_json("status")["gauges"]["bytes"])


def ends_at_once(file: Path, after: float) -> bool:
    """Whether a load ends at a signal that comes after some seconds, and leaves nothing; it may have come to its end before."""
    began = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt), signals(signal.default_int_handler, after):
        cw.load("m", file).close()
    late = time.monotonic() - began - after
    if cw.names() == []:
        return late < 0.5
    cw.remove("m")
    return False


@pytest.mark.parametrize("after", [0.005, 0.03, 0.1, 0.3])
def test_a_handler_that_raises_ends_a_load_at_once(after: float, file: Path) -> None:
    cw.connect()
    before = used()
    for _ in range(3):
        assert any(ends_at_once(file, after / 2**tries) for tries in range(6))
    assert (
        used() - before < 2 * BYTES
    )  # the process keeps what it gave back once, for its next arrays


def test_a_handler_that_raises_ends_load_file_at_once(file: Path) -> None:
    with signals(signal.default_int_handler, 0.6), pytest.raises(KeyboardInterrupt):
        while True:
            load_file(file, framework="np")


def test_signals_that_come_again_and_again_let_a_load_end(file: Path) -> None:
    served: list[int] = []
    with signals(lambda number, _: served.append(number), 0.01, 0.01):
        assert cw.load("m", file).nbytes == BYTES
    assert served


def test_who_waits_takes_over_from_a_load_that_was_interrupted(file: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOADER, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        threading.Timer(0.02, other.stdin.close).start()
        with (
            contextlib.suppress(KeyboardInterrupt),
            signals(signal.default_int_handler, 0.1),
        ):
            cw.load("m", file).close()  # of a fast machine it may be whole
        assert other.stdout.readline() == "2\n"
        assert other.wait(60) == 0
