"""The interpreter ends while a daemon thread makes its first use of an Executor, a Pool or a Queue: it always ends.

Runs in `make test-more`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# CPython mends it in 3.12.2 (gh-113964).
needs_a_fork_at_exit = pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 2),
    reason="Python 3.12.0 and 3.12.1 refuse every fork as soon as the main thread is done",
)
ROUNDS = 1000 if os.environ.get("CABLEWAY_SOAK") else 6

PROGRAM = """
import os, sys, threading, time
import cableway as cw
from cableway._pool import workers
import cableway.executor, cableway.pool, cableway.queue

def told(x):  # by the worker: a daemon thread may be stopped before it can print what it got
    print(x * x, flush=True)

def square(x):
    return x * x

what, daemon, moment, seconds = sys.argv[1], sys.argv[2] == "daemon", sys.argv[3], float(sys.argv[4])
started = threading.Event()
start_all = workers.Workers.start_all

def slow(crew):  # the exit comes in the middle, for certain
    if moment == "before":
        started.set()
        time.sleep(0.3)
    start_all(crew)
    if moment == "after":
        started.set()
        time.sleep(0.3)

if moment != "any":
    workers.Workers.start_all = slow

if what == "executor":
    executor = cw.Executor(2, mp_context="fork")

def use():
    try:
        if what == "executor":
            executor.submit(told, 3).result()
        elif what == "map":
            list(cw.Executor(2, mp_context="fork").map(told, [3]))
        elif what == "pool":
            print(cw.Pool(2, context="fork").map(square, [3])[0], flush=True)
        elif what == "queue":
            q = cw.Queue()
            while True:
                q.put(bytes(100_000))
                q.get()
    except RuntimeError:
        print("refused", flush=True)

threading.Thread(target=use, daemon=daemon).start()
if moment == "any":
    time.sleep(seconds)
else:
    started.wait()
"""


def ends(folder: Path, *arguments: str) -> str:
    """What the program prints; it must end by itself, and nothing that it started may stay."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_a_fork_at_exit
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("what", ["executor", "map"])
def test_the_exit_waits_for_a_first_task_that_is_on_its_way(
    tmp_path: Path, what: str, moment: str
) -> None:
    """As after any submit, in whatever thread: workers that are being started are found, and waited for."""
    assert ends(tmp_path, what, "daemon", moment, "0") == "9"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_exit_ends_a_pool_that_is_being_started(tmp_path: Path, moment: str) -> None:
    ends(tmp_path, "pool", "daemon", moment, "0")


@pytest.mark.parametrize("daemon", ["daemon", "not"])
@pytest.mark.parametrize("what", ["executor", "map", "pool", "queue"])
def test_the_exit_comes_at_any_moment_of_a_first_use(
    tmp_path: Path, what: str, daemon: str
) -> None:
    """The standard library's executor is no measure here: it hung at its exit in one such round."""
    if daemon == "not" and what == "queue":
        pytest.skip("it works for ever")
    chance = random.Random(f"{what} {daemon}")
    for _ in range(ROUNDS):
        found = ends(tmp_path, what, daemon, "any", str(chance.random() * 0.012))
        assert daemon == "daemon" or what == "pool" or found in ("9", "refused")


@needs_a_fork_at_exit
def test_an_exit_handler_may_use_a_pool(tmp_path: Path) -> None:
    """As with the standard library, also one that runs after the Pools' own."""
    script = tmp_path / "handler.py"
    script.write_text(
        "import atexit\n"
        "@atexit.register\n"
        "def last():\n"
        "    with cw.Pool(1, context='fork') as pool:\n"
        "        print(pool.map(abs, [-3]))\n"
        "import cableway as cw\n"
        "cw.Pool\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[3]\n" and done.returncode == 0, done.stderr
