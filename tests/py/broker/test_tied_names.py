"""Names with tied=True end with the process that put them, whenever and however that ends, and with no other one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import conftest
import numpy as np
import pytest
from waiting import eventually

import cableway as cw
from cableway import client

KILLS = 200 if os.environ.get("CABLEWAY_SOAK") else 25
BEGIN = "import os, signal, sys, time, numpy as np, cableway as cw\n"
WAIT = "\nprint('there', flush=True)\ntime.sleep(600)\n"


@contextlib.contextmanager
def program(text: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has done something, says so, and waits."""
    with subprocess.Popen([sys.executable, "-c", BEGIN + text + WAIT], stdout=subprocess.PIPE, text=True) as made:  # fmt: skip
        try:
            assert made.stdout is not None and made.stdout.readline() == "there\n"
            yield made
        finally:
            made.kill()


def folder() -> Path:
    """Of the broker of this module."""
    return Path(client.current().address).parent


def test_a_tied_name_ends_with_its_process_and_who_has_the_array_keeps_it() -> None:
    with program("cw.put('tied/x', np.arange(1000), tied=True)") as maker:
        with program("cw.get('tied/x'); cw.put('tied/others', [1], tied=True)") as other:
            x = cw.get("tied/x")
            other.kill()
            assert eventually(lambda: "tied/others" not in cw.names("tied/"))
            assert cw.get("tied/x").tolist() == x.tolist() == list(range(1000))
        maker.send_signal(signal.SIGSTOP)  # who stands is not dead
        time.sleep(0.3)
        assert cw.names("tied/") == ["tied/x"]
        maker.kill()
        assert eventually(lambda: not cw.names("tied/"))
    with pytest.raises(cw.NameNotFound):
        cw.get("tied/x")
    assert x.numpy().sum() == 499500
    cw.put("tied/x", [7])
    assert cw.get("tied/x").tolist() == [7]
    cw.remove("tied/x")


@pytest.mark.parametrize(
    "end", ["sys.exit(0)", "os._exit(3)", "os.kill(os.getpid(), 11)", "cw.current().close()"]
)
def test_however_it_ends(end: str) -> None:
    text = f"from cableway.client import current; cw.current = current; cw.put('tied/y', [1], tied=True); {end}"
    words = [sys.executable, "-c", BEGIN + text + "\nassert 'tied/y' not in cw.names(), cw.names()"]
    subprocess.run(words, check=False, timeout=60, stderr=subprocess.DEVNULL)
    assert eventually(lambda: "tied/y" not in cw.names("tied/"))


def test_a_child_that_lives_on_with_the_parents_connection_does_not_keep_it() -> None:
    text = """
cw.put('tied/parent', np.zeros(9), tied=True)
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", BEGIN + text], stdout=subprocess.PIPE, text=True) as parent:  # fmt: skip
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert eventually(lambda: not cw.names("tied/"))
            assert Path(f"/proc/{child}").exists()
        finally:
            os.kill(child, signal.SIGKILL)


def test_whoever_puts_the_name_last_decides_with_whom_it_ends() -> None:
    with program("cw.put('tied/z', [1], tied=True)") as first:
        cw.put("tied/z", [2])
        first.kill()
        first.wait()
    assert not eventually(lambda: "tied/z" not in cw.names("tied/"), 0.3)
    assert cw.get("tied/z").tolist() == [2]
    with (
        program("cw.put('tied/z', [3], tied=True)") as second,
        program("cw.put('tied/z', [4], tied=True)") as third,
    ):
        second.kill()
        second.wait()
        time.sleep(0.2)
        assert cw.get("tied/z").tolist() == [4]
        third.kill()
        assert eventually(lambda: not cw.names("tied/"))
    cw.put("tied/z", [5], tied=True)
    cw.remove("tied/z")
    cw.put("tied/z", [6], tied=True)
    assert cw.get("tied/z").tolist() == [6]
    cw.remove("tied/z")


def test_a_put_that_the_broker_reads_after_its_makers_death_leaves_no_name() -> None:
    broker = conftest.running_broker(folder())
    text = "w = cw.put('tied/late-before', [0])\nprint('there', flush=True)\nsys.stdin.readline()\ncw.put('tied/late', w, tied=True)"
    for child in (False, True):
        fork = "\nif os.fork() == 0:\n    time.sleep(2)\n    os._exit(0)\n" if child else "\n"
        words = [sys.executable, "-c", BEGIN + text.replace("\n", fork, 1)]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as late:
            assert late.stdin is not None and late.stdout is not None
            assert late.stdout.readline() == "there\n"
            os.kill(broker, signal.SIGSTOP)
            try:
                late.stdin.write("\n")
                late.stdin.flush()
                time.sleep(0.3)  # it has put, and waits for the answer
                late.kill()
                late.wait()
            finally:
                os.kill(broker, signal.SIGCONT)
        time.sleep(2.5 if child else 0.2)  # until the child has ended, too
        assert eventually(lambda: cw.names("tied/") == ["tied/late-before"]), cw.names("tied/")
    cw.remove("tied/late-before")


def test_killed_at_any_moment_of_many_puts_none_of_its_names_stays() -> None:
    text = """
w = cw.put('storm/base', np.zeros(4096), tied=True)
print('there', flush=True)
for i in range(10**9):
    name = f'storm/{i % 300}'
    cw.put(name, w if i % 3 else [i], tied=True)
    if i % 5 == 0:
        cw.put(name, [i])  # not tied any more
        cw.remove(name)
"""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    mine = cw.put("storm-mine", np.arange(100), tied=True)
    for _ in range(KILLS):
        with subprocess.Popen([sys.executable, "-c", BEGIN + text], stdout=subprocess.PIPE) as one:
            assert one.stdout is not None
            one.stdout.readline()
            time.sleep(chance.random() / 10)
            one.kill()
        # They end one after the other; one may stay, which it was about to remove.
        assert eventually(lambda: len(left := cw.names("storm/")) <= 1 and "storm/base" not in left), cw.names("storm/")  # fmt: skip
        for name in cw.names("storm/"):
            cw.remove(name)
        assert cw.get("storm-mine").tolist() == mine.tolist()
    cw.remove("storm-mine")


def test_trees_and_what_is_refused() -> None:
    with program("cw.put('tied/tree', {'a': np.arange(5), 'b': np.ones(3)}, tied=True)") as maker:
        tree = cw.get("tied/tree")
        maker.kill()
        assert eventually(lambda: not cw.names("tied/"))
        assert tree["a"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="leave one of them out"):
        cw.put("tied/no", [1], keep=True, tied=True)
    with pytest.raises(TypeError):
        cw.put("tied/no", [1], tied=1)  # type: ignore[call-overload]
    assert not cw.names("tied/")
