"""Several processes that load the same at once: one reads the files, all get one tree in one memory; killed, stopped and interrupted
loaders hold nobody up for longer than they live, and leave nothing behind. A file that is written to while it is read is refused.

Runs in `make test-more`.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import TIMEOUT, run, run_json
from safetensors.numpy import save_file
from waiting import eventually

import cableway as cw
from cableway import client, tree
from cableway._core.library import check, failure, ffi, lib

KILLS = 1000 if os.environ.get("CABLEWAY_SOAK") else 25
BYTES = 48 << 20

LOADER = """
import sys, numpy as np, cableway as cw

def read_bytes():
    return int(open("/proc/self/io").read().split("rchar: ")[1].split()[0])

cw.connect()
print("ready", flush=True)
sys.stdin.readline()
before = read_bytes()
with cw.load("m", sys.argv[1]) as tree:
    after = read_bytes()
    print(tree.version, tree.content_hash, after - before, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    random_ = np.random.default_rng(3)
    save_file({f"w{n}": random_.integers(0, 255, BYTES // 4, "u1") for n in range(4)}, path)
    os.utime(path, (1, 1))  # whoever writes there from now on changes that
    return path


def begin(file: Path) -> subprocess.Popen[str]:
    """A loader that waits for its line."""
    loader = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LOADER), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert line(loader) == "ready"
    return loader


def line(loader: subprocess.Popen[str]) -> str:
    assert loader.stdout is not None
    return loader.stdout.readline().strip()


def go(loader: subprocess.Popen[str]) -> None:
    assert loader.stdin is not None
    loader.stdin.write("\n")
    loader.stdin.flush()


def end(loader: subprocess.Popen[str]) -> None:
    go(loader)
    assert loader.wait(60) == 0


def test_of_four_one_reads_and_all_have_one_memory(file: Path) -> None:
    loaders = [begin(file) for _ in range(4)]
    before = int(run_json("status")["gauges"]["bytes"])
    for loader in loaders:
        go(loader)
    told = [tuple(map(int, line(loader).split())) for loader in loaders]
    assert len({version for version, _, _ in told}) == len({value for _, value, _ in told}) == 1
    assert sorted(read >= BYTES for _, _, read in told) == [False, False, False, True]
    assert BYTES <= int(run_json("status")["gauges"]["bytes"]) - before < 2 * BYTES
    for loader in loaders:
        end(loader)


def test_a_killed_loader_leaves_nothing_and_others_take_over(file: Path) -> None:
    seed = int(os.environ.get("CABLEWAY_TEST_SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    print(f"CABLEWAY_TEST_SEED={seed}")
    wanted = cw.load("wanted", file).content_hash
    cw.remove("wanted")
    before = int(
        run_json("status")["gauges"]["bytes"]
    )  # this process keeps some for its next arrays
    whole = 0
    for _ in range(KILLS):
        victim, heir = begin(file), begin(file)
        go(victim)
        time.sleep(chance.random() * 0.12)  # any moment is right
        if chance.random() < 0.5:
            go(heir)
            victim.kill()
        else:
            victim.kill()
            go(heir)
        victim.wait(60)
        version, value, read = map(int, line(heir).split())
        assert value == wanted and cw.get("m").version == version
        whole += read < BYTES
        cw.remove("m")
        end(heir)
        for stream in (victim.stdin, victim.stdout, heir.stdin, heir.stdout):
            assert stream is not None
            stream.close()
    assert eventually(lambda: int(run_json("status")["gauges"]["bytes"]) <= before)
    print(f"{KILLS} kills, {whole} times the tree was there")


@contextlib.contextmanager
def half_a_load(file: Path) -> Iterator[None]:
    """One that has begun to read, and has not ended: whoever else loads waits for it."""
    found = tree.new_cell()
    while True:
        load = ffi.gc(ffi.new("cw_load **"), lib.cwpy_load_end)
        path = str(file).encode()
        check(lib.cw_load_begin(client.current().pointer, b"m", path, ffi.NULL, 0, load))
        while (status := lib.cw_load_wait(load[0], 500_000, found, ffi.NULL)) < 0:
            told = str(failure(status))
            if "still reads" in told:
                break
            assert "another process may be" in told
        if status < 0:
            break
        lib.cwpy_load_end(load)  # it was read at once
        tree.make(found, "m").close()
        cw.remove("m")
    yield
    lib.cwpy_load_end(load)


@pytest.mark.parametrize("timeout", [0, 1e-9, 0.25])
def test_a_timeout_is_named_as_it_was_given(timeout: float, file: Path) -> None:
    told = f'"m" is not loaded yet: another process may be loading it (timeout: {timeout} s)'
    named = told
    if timeout == 0:
        named = (
            told.split(" (")[0]
            + "; timeout=0 takes only a tree that is there already: give it the seconds to be loaded"
        )
    with half_a_load(file):
        with pytest.raises(cw.Timeout, match="^" + re.escape(named) + "$"):
            cw.load("m", file, timeout=timeout)
        ended = run("load", "m", str(file), "--timeout", str(timeout), expect=TIMEOUT)
        assert ended.stderr == f"cableway: {told}\n"
    assert len(cw.load("m", file)) == 4  # nothing of it is left


def test_a_stopped_loader_is_waited_for_and_a_signal_or_a_timeout_ends_the_wait(file: Path) -> None:
    """The stopped one has the claim or has not begun: either way the rest is right."""
    stopped = begin(file)
    go(stopped)
    os.kill(stopped.pid, signal.SIGSTOP)
    with pytest.raises(cw.Timeout, match=r'^"m" is not loaded yet: .*\(timeout: 0\.2 s\)$'):
        while True:  # until the stopped one has something to be waited for
            cw.load("m", file, timeout=0.2)
            cw.remove("m")
            os.kill(stopped.pid, signal.SIGCONT)
            line(stopped)
            end(stopped)
            stopped = begin(file)
            go(stopped)
            time.sleep(0.005)
            os.kill(stopped.pid, signal.SIGSTOP)
    served = []
    signal.signal(signal.SIGUSR1, lambda *_: served.append(1))
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    threading.Timer(0.3, os.kill, (stopped.pid, signal.SIGCONT)).start()
    tree = cw.load("m", file)  # a handler that returns does not end it
    timer.join()
    assert served and tree.verify() == 4
    line(stopped)
    end(stopped)


def test_a_handler_that_raises_ends_the_load_and_the_claim(file: Path) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    other = begin(file)
    cw.connect()
    old = signal.signal(signal.SIGUSR1, stop)
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        while True:
            cw.load("m", file).close()
            cw.remove("m")
    except (KeyboardInterrupt, cw.NameNotFound):
        pass
    finally:
        signal.signal(signal.SIGUSR1, old)
    go(other)
    assert len(line(other).split()) == 3
    end(other)


def test_a_file_that_is_written_to_meanwhile_is_refused_or_was_read_before(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"w": np.zeros(BYTES, "u1")}, path)
    begins_at = path.stat().st_size - BYTES
    refused = 0
    for number in range(1, 11):
        os.utime(path, (number, number))  # an old time, which a write changes
        stop = threading.Event()

        def write(byte: bytes, stop: threading.Event = stop) -> None:
            with path.open("r+b", buffering=0) as out:
                place = begins_at
                while not stop.is_set() and place < begins_at + BYTES:
                    os.pwrite(out.fileno(), byte * 4096, place)
                    place += 1 << 20

        writer = threading.Thread(target=write, args=(bytes([number]),))
        writer.start()
        try:
            with cw.load("m", path, replace=True) as tree:
                values = tree["w"].numpy()[:: 1 << 20].tolist()
                # The writer goes from front to back: nothing behind what is older is newer.
                assert values == sorted(values, reverse=True)
        except cw.Error as error:
            assert "was written to while it was read" in str(error)
            refused += 1
        stop.set()
        writer.join()
    print(f"refused {refused} times of 10")
    cw.load("m", path, replace=True).close()
