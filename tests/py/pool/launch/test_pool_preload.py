"""When the workers' server must not be forked: workers come by plain spawn then, and the reason is said once. Runs in `make test-more`."""

from __future__ import annotations

import os

import pytest
from conftest import Script

from cableway._pool.launch.preload import device_of, is_users

FRAME = """
{}
import logging, multiprocessing, os
import cableway as cw
def parent_and_draws(_):
    import random, time
    import numpy as np
    time.sleep(0.02)
    return os.getpid(), os.getppid(), random.random(), np.random.random()
if __name__ == "__main__":
    multiprocessing.log_to_stderr(logging.INFO)
    for _ in range(2):
        with cw.Pool(2, context=multiprocessing.get_context("spawn")) as pool:
            for found in pool.map(parent_and_draws, range(6), chunksize=1):
                print(*found, os.getpid())
"""


def run(script: Script, head: str) -> tuple[list[list[str]], str]:
    """A line for each task (worker, its parent, draws, the main process), and what was logged."""
    done = script(FRAME.format(head))
    return [line.split() for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "importing left threads running (1)",
        ),
        ("import socket\nmine = socket.socket()", "must not share: socket:["),
        ("import os\nmine = os.pipe()", "must not share: pipe:["),
        (
            "import ctypes, subprocess\n"
            "die_with_us = lambda: ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG\n"
            "mine = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,\n"
            "    preexec_fn=die_with_us)",
            "importing left processes running: ",
        ),
        (
            "import numpy\nclass Mine: pass\nmine = Mine()\nmine.rng = numpy.random.default_rng()",
            "importing made a random generator without a seed",
        ),
        (
            "import numpy\nmine = numpy.random.RandomState()",
            "importing made a random generator without a seed",
        ),
        (
            "import random\nmine = random.Random()",
            "importing made a random generator without a seed",
        ),
        (
            "import multiprocessing\nmine = multiprocessing.get_context('spawn').Lock()",
            "importing left what workers must not share: semaphore /mp-",
        ),
        (
            "import multiprocessing\n"
            "if multiprocessing.process.current_process().name == 'MainProcess' != __name__ and __name__ != '__main__':\n"
            "    raise KeyError('here')",
            "importing the main module raised KeyError('here')",
        ),
    ],
    ids=[
        "thread",
        "socket",
        "pipe",
        "process",
        "generator",
        "RandomState",
        "Random",
        "lock",
        "exception",
    ],
)
def test_plain_spawn_where_importing_left_what_a_fork_must_not_share(
    script: Script, head: str, reason: str
) -> None:
    rows, log = run(script, head)
    assert {row[1] for row in rows} == {rows[0][4]}  # the main process made the workers
    assert log.count("workers come by plain spawn: ") == 1
    assert reason in log


@pytest.mark.parametrize(
    "head",
    [
        "import numpy\nmine = numpy.ones((500, 500)) @ numpy.ones((500, 500))",
        "import numpy\nmine = [numpy.random.default_rng(3), numpy.random.RandomState(3)]",
        "import random, tempfile\nmine = random.Random(3), random.SystemRandom(), tempfile.TemporaryFile()",
        "import numpy\nmine = numpy.random.random(5000)",
        "mine = open('/dev/null'), open('/proc/self/stat')",
        "import asyncio, ssl, concurrent.futures, tempfile, sqlite3, http.client",
    ],
    ids=["OpenBLAS", "seeded", "Random", "draws", "files", "libraries"],
)
def test_the_server_serves_where_importing_left_nothing(script: Script, head: str) -> None:
    rows, log = run(script, head)
    (parent,) = {row[1] for row in rows}
    assert parent != rows[0][4]
    assert "plain spawn" not in log


def test_random_numbers_differ_between_workers(script: Script) -> None:
    rows, _ = run(script, "import numpy\nnumpy.random.random(5000)\nnumpy.random.seed()")
    assert len({row[2] for row in rows}) == len(rows)
    assert len({row[3] for row in rows}) == len(rows)


def test_generators_that_the_main_module_seeds_are_seeded_in_each_worker(script: Script) -> None:
    rows, _ = run(script, "import numpy, random\nnumpy.random.seed(5)\nrandom.seed(6)")
    first: dict[str, list[str]] = {}
    for worker, _, *draws, _ in rows:
        first.setdefault(worker, draws)
    assert len(first) >= 2
    assert len({tuple(draws) for draws in first.values()}) == 1  # as with a plain spawn


def test_what_is_a_gpu() -> None:
    assert device_of(["/dev/null", "/dev/nvidiactl"]) == "/dev/nvidiactl"
    assert device_of(["/dev/nvidia-uvm"])
    assert device_of(["/dev/kfd"])
    assert device_of(["/dev/dri/renderD128"])
    assert not device_of(["/dev/null", "/usr/lib/libcuda.so.1", "/home/me/dev/nvidia0"])


def test_whose_a_file_is() -> None:
    assert is_users(__file__)
    assert not is_users(os.__file__)
    assert not is_users(pytest.__file__)
