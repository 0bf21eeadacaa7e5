"""What a process keeps free does not get another one refused, whatever the first one does."""

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import disconnect, stop_broker

import cableway as cw

MIB = 1 << 20
LIMIT = 100 * MIB

Process = subprocess.Popen[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A broker of its own that takes 100 MiB."""
    path = tmp_path / "b"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("CABLEWAY_DIR", str(path))
    monkeypatch.setenv("CABLEWAY_MAX_BYTES", str(LIMIT))
    disconnect()
    yield path
    disconnect()
    stop_broker(path)


@pytest.fixture
def program(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts a text as a process, which says a line when it is ready."""
    running: list[Process] = []

    def start(text: str) -> Process:
        file = tmp_path / f"program{len(running)}.py"
        head = "import pickle, sys, cableway as cw, numpy as np\nMIB = 1 << 20\n"
        file.write_text(head + textwrap.dedent(text))
        process = subprocess.Popen(
            [sys.executable, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert line(process) == "ready"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def line(process: Process) -> str:
    """The next line that it says."""
    assert process.stdout
    return process.stdout.readline().strip()


def go_on(process: Process) -> str:
    """Has it go on; what it says then."""
    assert process.stdin
    process.stdin.write("go on\n")
    process.stdin.flush()
    return line(process)


def shared_mib(process: Process) -> int:
    """Shared memory that it has mapped and that is there."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.split("RssShmem:")[1].split()[0]) // 1024


IDLE_MAKERS = {
    "removes it": "cw.put('x', np.ones(70 * MIB, 'u1')); cw.remove('x')",
    "replaces it": "cw.put('x', np.ones(70 * MIB, 'u1')); cw.put('x', 1)",
    "handed it on": "x = cw.zeros(70 * MIB, 'u1'); h = pickle.dumps(x); del x; pickle.loads(h)",
    "never shared it": "x = cw.empty(70 * MIB, 'u1'); x[...] = 1; del x",
    "keeps it for its next": (
        "for i in range(7): cw.put(f'x{i}', np.ones(10 * MIB, 'u1'))\n"
        "for i in range(7): cw.remove(f'x{i}')\n"
        "y = cw.put('y', 1)"
    ),
}


@pytest.mark.parametrize("maker", IDLE_MAKERS)
def test_what_an_idle_process_has_let_go_of_is_room_for_others(program, maker):
    text = IDLE_MAKERS[maker]
    idle = program(
        f"{text}\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "z = cw.put('z', np.full(20 * MIB, 7, 'u1'))\n"
        "print(int(z.sum(dtype='u8')), flush=True); sys.stdin.readline()\n"
    )
    mine = cw.put("mine", np.ones(60 * MIB, "u1"))
    assert shared_mib(idle) < 20  # what was taken back is free, though it is mapped there
    assert int(go_on(idle)) == 7 * 20 * MIB  # it makes new memory
    assert cw.get("z").sum(dtype="u8") == 7 * 20 * MIB
    assert mine.sum(dtype="u8") == 60 * MIB


def test_what_a_process_removes_is_room_for_its_next_put_at_once(program):
    program(
        """
        for i in range(20):
            cw.put(f"x{i}", np.ones(4 * MIB, "u1"))
        print("ready", flush=True)
        sys.stdin.readline()
        """
    )
    for i in range(1, 20):
        cw.remove(f"x{i}")
    cw.put("mine", np.ones(80 * MIB, "u1"))
    assert cw.get("x0").sum(dtype="u8") == 4 * MIB


HOLDERS = {
    "the maker's view": ("x = cw.put('x', np.ones(70 * MIB, 'u1')).numpy()", None),
    "the maker's part": (
        "x = cw.put('x', np.ones(70 * MIB, 'u1')).numpy()[1000:2000]",
        None,
    ),
    "a reader's view": (
        "cw.put('x', np.ones(70 * MIB, 'u1'))",
        "x = cw.get('x').numpy()",
    ),
    "a read-only view": (
        "cw.put('x', np.ones(70 * MIB, 'u1'))",
        "x = cw.get('x', readonly=True).numpy()",
    ),
    "a forked child's": (
        """
        import os
        x = cw.put('x', np.ones(70 * MIB, 'u1')).numpy()
        if os.fork():
            import time
            del x
            time.sleep(1000)
        """,
        None,
    ),
    "a pickle": ("sent = pickle.dumps(cw.put('x', np.ones(70 * MIB, 'u1')))", None),
}
WAITS = """
print('ready', flush=True); sys.stdin.readline()
if 'sent' in globals(): x = pickle.loads(sent).numpy()
print('whole' if x.all() else 'lost', flush=True); sys.stdin.readline()
"""


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_holds_is_never_taken_back(program, holder):
    made, held = HOLDERS[holder]
    if held:
        program(f"{made}\nprint('ready', flush=True); sys.stdin.readline()")
        keeper = program(held + WAITS)
    else:
        keeper = program(textwrap.dedent(made) + WAITS)
    cw.remove("x")
    for _ in range(2):
        with pytest.raises(cw.LimitExceeded, match="max_bytes"):
            cw.put("mine", np.ones(60 * MIB, "u1"))
    assert go_on(keeper) == "whole"


def test_memory_that_is_taken_over_finds_the_same_room(program):
    from multiprocessing.shared_memory import SharedMemory

    program(IDLE_MAKERS["removes it"] + "\nprint('ready', flush=True); sys.stdin.readline()\n")
    memory = SharedMemory(create=True, size=60 * MIB)
    try:
        memory.buf[:3] = b"abc"
        w = cw.asarray(memory)
        assert bytes(w.numpy()[:3]) == b"abc"
        del w
    finally:
        memory.unlink()


def test_what_processes_take_from_each_other_is_what_nobody_holds(program):
    """Three processes put, look at their arrays and each other's, and remove, in memory for two."""
    storm = """
    import itertools, os, random
    chance = random.Random(SEED)
    print("ready", flush=True)
    put = refused = looked = 0
    held = []
    for i in range(60):
        size = chance.choice([1000, 300_000, 3 * MIB, 9 * MIB, 30 * MIB])
        value = chance.randrange(1, 255)
        try:
            held.append((f"{SEED}-{i}", value, cw.put(f"{SEED}-{i}", np.full(size, value, "u1"))))
            put += 1
        except cw.LimitExceeded:
            refused += 1
        for name in cw.names():
            try:
                view = cw.get(name).numpy()
            except (cw.NameNotFound, cw.Stale):
                continue
            assert view[0] and (view == view[0]).all(), name
            looked += 1
        while held and chance.random() < 0.6:
            name, value, array = held.pop(chance.randrange(len(held)))
            assert (array.numpy() == value).all()
            cw.remove(name)
            del array
    print(f"{put} {refused} {looked}", flush=True)
    sys.stdin.readline()
    """
    running = [program(f"SEED = {seed}\n{textwrap.dedent(storm)}") for seed in range(3)]
    for process in running:
        put, _, looked = (int(word) for word in line(process).split())
        assert put > 20
        assert looked > 20
