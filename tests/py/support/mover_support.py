"""What the tests of cableway-mover share: a broker of their own in a folder of their own, and its mover."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import cuda_support
from processes import stat_fields
from waiting import eventually


class Run:
    """Runs programs in a world, each after the prelude."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.begun: list[subprocess.Popen[str]] = []

    def __call__(
        self, text: str, check: bool = True, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs one to its end."""
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(text)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**self.environment, **more},
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def begin(self, text: str) -> subprocess.Popen[str]:
        """Starts one."""
        started = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(text)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self.begun.append(started)
        return started


# What a program begins with: what its mover is, and what went by which way.
PRELUDE = """
import contextlib, json, os, signal, subprocess, sys, threading, time
from pathlib import Path
import numpy as np, cableway as cw

def figure(name):
    told = json.loads(subprocess.run([os.environ["CABLEWAY_COMMAND"], "status", "--json"], check=True, capture_output=True).stdout)
    return told["counters"][name]

def staged():
    cw.put("tick", 0)  # a request: the broker then reads our figures
    return figure("bytes_staged")

def in_a_copy():
    "Waits until the mover is in a copy that the double holds up: it calls that thread so."
    folder = os.fsencode(os.environ["CABLEWAY_DIR"])
    while True:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\\0")
                if words[0].endswith(b"cableway-mover") and any(word.startswith(folder) for word in words):
                    if any((thread / "comm").read_text() in ("fakecuda-hangs\\n", "fakecuda-waits\\n")
                           for thread in (entry / "task").iterdir()):
                        return
        time.sleep(0.01)

def random(size, seed=1):
    return np.random.default_rng(seed).random(size)
"""


def movers(folder: Path) -> list[int]:
    """The movers of the broker whose socket lies in folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state = stat_fields(entry.name)[0]
        except OSError:
            continue
        if (
            state != "Z"
            and words[0].endswith(b"cableway-mover")
            and len(words) > 2
            and words[2].startswith(os.fsencode(folder))
        ):
            found.append(int(entry.name))
    return found


@contextlib.contextmanager
def world(folder: Path, **settings: object) -> Iterator[Run]:
    """A broker's folder and GPUs; runs programs there. Settings are the double's, or whole variables in capitals."""
    folder.mkdir(mode=0o700, exist_ok=True)
    variables = {name: str(value) for name, value in settings.items() if name.isupper()}
    card = {name: value for name, value in settings.items() if not name.isupper()}
    extra = {} if cuda_support.REAL else cuda_support.double(folder / "card", **card)
    environment = {
        **os.environ,
        **extra,
        "CABLEWAY_COMMAND": str(cuda_support.COMMAND),
        "CABLEWAY_DIR": str(folder),
        **variables,
    }

    run = Run(environment)
    try:
        yield run
    finally:
        for started in run.begun:
            with started:
                started.kill()
        for lock in folder.glob("*.lock"):
            words = lock.read_text().split()
            if words and Path(f"/proc/{words[0]}").exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(words[0]), signal.SIGTERM)
    assert eventually(lambda: not movers(folder)), "a mover outlived its broker"
