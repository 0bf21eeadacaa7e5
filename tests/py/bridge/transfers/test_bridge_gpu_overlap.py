"""Arrays on GPUs go out over the bridge while they are copied, and land while they come in: seen by the order of events.

The copies of one node's mover hang at a number that its test chooses; what has come to the other node by then is what has
left before. An array has two under way at once, and who waits for one waits for the next, too, where that was submitted
meanwhile: where the N-th hangs, N - 1 are copied, of which N - 2 at least are known to be; N - 4 where two are read at once.

Runs in `make test-more`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import bridge_support
import cuda_support
import pytest
from bridge_gpu_support import BYTES, MIB, begin, came, empty, end, figures, run, soon, two
from bridge_support import Node
from mover_support import movers
from streams_support import connections
from waiting import eventually

cuda_support.require()
pytestmark = [
    pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking()),
    pytest.mark.skipif(cuda_support.REAL, reason="needs the test double's faults"),
]

HANGS = "fakecuda-hangs"
PUT = 'cw.put("g", cw.asarray(values(), device="cuda:0"), keep=True)'


def hung(node: Node) -> list[int]:
    """Its movers with a copy that the double lets hang: it calls that thread so."""
    return [pid for pid in movers(node.folder) if HANGS in threads(pid)]


def threads(pid: int) -> set[str]:
    """The names of a process's threads."""
    names = set()
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            names.add((thread / "comm").read_text().strip())
    return names


def kill(node: Node, pids: list[int]) -> int:
    """Kills movers, and waits until they are gone; how many."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert soon(lambda: not set(pids) & set(movers(node.folder))), node.said()
    return len(pids)


def kill_movers_until(done: subprocess.Popen[str], *nodes: Node) -> list[int]:
    """Each mover copies so much, and hangs: it is killed then, and another comes; until done. How many were killed, of each node."""
    killed = [0] * len(nodes)
    while True:
        ended_or_hung = eventually(
            lambda: done.poll() is not None or any(hung(node) for node in nodes), 20
        )
        assert ended_or_hung, "".join(node.said() for node in nodes)
        if done.poll() is not None:
            return killed
        for i, node in enumerate(nodes):
            killed[i] += kill(node, hung(node))


def test_bytes_leave_before_the_last_chunk_was_copied(tmp_path: Path) -> None:
    with two(tmp_path, b="copy@4=hang") as (a, b):
        run(b, PUT)
        before = came(a, b)
        getter = begin(a, 'assert same(cw.get("//b/g")); print("whole")')
        # Of 8 chunks 2 or 3 are copied, by this mover and no other; their bytes are here.
        assert eventually(lambda: came(a, b) - before >= 10 * MIB and hung(b) != [], 20)
        assert figures(b)["bytes_from_gpu"] <= 15 * MIB and figures(b)["mover_starts"] == 1
        assert getter.poll() is None
        # Killed in the middle, it is started again, and its chunks are copied again.
        (killed,) = kill_movers_until(getter, b)
        assert end(getter, a, b) == "whole\n" and killed >= 2
        assert came(a, b) - before < 1.1 * BYTES  # nothing went twice
        assert figures(b)["bytes_from_gpu"] >= BYTES and figures(b)["jobs_repeated"] >= killed


def test_all_streams_are_at_work_from_the_first_chunks_on(tmp_path: Path) -> None:
    """What the first chunks have is not one stream's alone: of 16 MiB two chunks of 2 MiB are known to be copied, then the mover
    hangs, and four of eight streams at least have had a part. It does not run before all streams have asked, so that it does
    not count who of them is woken first.
    """
    with two(tmp_path, b="copy@5=hang", streams=8) as (a, b):
        run(b, f'cw.put("g", cw.asarray(values(size={16 * MIB}), device="cuda:0"), keep=True)')
        for turn in range(20):  # of arrays in host memory, until the streams are there
            run(b, f'cw.put("h{turn}", values(size={16 * MIB}), keep=True)')
            run(a, f'assert same(cw.get("//b/h{turn}"))')
            if len(connections(a, b)) == 8:
                break
        run(b, 'cw.put("s", cw.asarray(values(size=8), device="cuda:0"), keep=True)')
        run(a, 'assert same(cw.get("//b/s"))')  # the mover's first copy: it runs from now on
        (mover,) = movers(b.folder)
        os.kill(mover, signal.SIGSTOP)
        before, asked = connections(a, b), connections(b, a)
        assert len(before) == len(asked) == 8, a.said() + b.said()
        getter = begin(a, 'assert same(cw.get("//b/g")); print("whole")')

        def askers() -> int:
            """How many have asked for two pieces: a READ takes 70 bytes, a PING fewer."""
            pairs = zip(connections(b, a), asked, strict=True)
            return sum(late["bytes_in"] - early["bytes_in"] > 130 for late, early in pairs)

        def busy() -> int:
            """How many have brought a piece."""
            pairs = zip(connections(a, b), before, strict=True)
            return sum(late["bytes_in"] - early["bytes_in"] > 256 * 1024 for late, early in pairs)

        assert eventually(lambda: askers() == 8, 20)
        assert busy() == 0
        os.kill(mover, signal.SIGCONT)
        assert eventually(lambda: hung(b) == [mover], 20)
        assert eventually(lambda: busy() >= 4, 20)  # streams without work end after 30 s
        assert getter.poll() is None
        kill_movers_until(getter, b)
        assert end(getter, a, b) == "whole\n"


def test_bytes_land_before_the_last_has_come(tmp_path: Path) -> None:
    with two(tmp_path, b="copy@5=hang") as (a, b):
        run(b, PUT)
        getter = begin(a, 'assert same(cw.get("//b/g", device="cuda:1")); print("whole")')
        # Of 8 chunks 3 or 4 have left, so no more than 20 MiB can be here; all but the last piece of them are on the GPU.
        assert eventually(lambda: figures(a)["bytes_to_gpu"] >= 8 * MIB and hung(b) != [], 20)
        assert figures(b)["bytes_from_gpu"] <= 20 * MIB and getter.poll() is None
        assert kill_movers_until(getter, b) >= [1]
        assert end(getter, a, b) == "whole\n"
        assert figures(a)["bytes_to_gpu"] == BYTES and figures(b)["bytes_from_gpu"] >= BYTES


def test_a_mover_killed_while_pieces_land(tmp_path: Path) -> None:
    with two(tmp_path, a="copy@3=hang") as (a, b):
        run(b, PUT)
        before = came(a, b)
        getter = begin(a, 'assert same(cw.get("//b/g", device="cuda:1")); print("whole")')
        (killed,) = kill_movers_until(getter, a)
        assert end(getter, a, b) == "whole\n" and killed >= 3
        assert came(a, b) - before < 1.1 * BYTES and figures(a)["jobs_repeated"] >= killed


def test_a_get_by_a_gpu_needs_no_more_host_memory_than_two_rings(tmp_path: Path) -> None:
    with two(tmp_path, a="copy@3=hang", memory_mib=2048) as (a, b):
        run(b, f'cw.put("big", cw.asarray(values(size={256 * MIB}), device="cuda:0"), keep=True)')
        held = [figures(node)["bytes"] for node in (a, b)]
        getter = begin(a, 'assert same(cw.get("//b/big", device="cuda:1")); print("whole")')
        # Nothing lands any more: the ring of 64 MiB fills, and nothing more comes.
        assert eventually(lambda: came(a, b) >= 64 * MIB, 20)
        for node, before in zip((a, b), held, strict=True):
            assert figures(node)["bytes"] - before <= 72 * MIB, node.name
        getter.kill()
        getter.communicate()
        kill(a, movers(a.folder))


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_bridge_killed_in_the_middle(tmp_path: Path, which: str) -> None:
    with two(tmp_path, b="copy@6=hang") as (a, b):
        run(b, PUT)
        before = came(a, b)
        getter = begin(a, 'assert same(cw.get("//b/g", device="cuda:1")); print("whole")')
        assert eventually(lambda: came(a, b) - before >= 10 * MIB, 20)
        os.kill((a if which == "a" else b).bridge_pid(), signal.SIGKILL)
        kill_movers_until(getter, b)
        assert end(getter, a, b) == "whole\n"
        b.command("rm", "g")
        assert empty(a) and empty(b)


def test_who_asked_is_gone_in_the_middle(tmp_path: Path) -> None:
    with two(tmp_path, b="copy@6=hang") as (a, b):
        run(b, PUT)
        before = came(a, b)
        getter = begin(a, 'cw.get("//b/g", device="cuda:1")')
        assert eventually(lambda: came(a, b) - before >= 10 * MIB, 20)
        getter.kill()
        getter.communicate()
        # It goes on: it was wanted, and the next who asks has it.
        after = begin(a, 'assert same(cw.get("//b/g", device="cuda:1")); print("whole")')
        kill_movers_until(after, b)
        assert end(after, a, b) == "whole\n" and came(a, b) - before < 1.1 * BYTES
        b.command("rm", "g")
        assert empty(a) and empty(b)


def test_who_writes_meanwhile_is_found_out(tmp_path: Path) -> None:
    with two(tmp_path, b="copy@6=hang") as (a, b):
        run(b, PUT)
        before = came(a, b)
        getter = begin(a, 'assert same(cw.get("//b/g", device="cuda:1"), 2); print("whole")')
        assert eventually(lambda: came(a, b) - before >= 10 * MIB, 20)
        run(b, """
            w, stream = cw.get("g"), Stream()
            with w.writing(stream.handle.value):
                new = values(2)
                call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(low(w)), ctypes.c_void_p(new.ctypes.data), ctypes.c_size_t(BYTES), stream.handle)
            stream.finish()
        """)  # fmt: skip
        kill_movers_until(getter, b)
        assert end(getter, a, b) == "whole\n"
        b.command("rm", "g")
        assert empty(a) and empty(b)  # what had come of the old bytes is freed


def test_a_put_is_staged_and_lands(tmp_path: Path) -> None:
    with two(tmp_path, a="copy@4=hang", b="copy@3=hang") as (a, b):
        before = came(b, a)
        putter = begin(
            a,
            'cw.put("//b/x", cw.asarray(values(), device="cuda:0"), device="cuda:1", keep=True); print("put")',
        )
        assert eventually(lambda: came(b, a) - before >= 10 * MIB and hung(a) != [], 20)
        assert eventually(lambda: figures(b)["bytes_to_gpu"] >= 4 * MIB, 20)
        assert putter.poll() is None and b.command("ls", "--json").stdout.strip() == "[]"
        kill_movers_until(putter, a, b)
        assert end(putter, a, b) == "put\n"
        run(b, 'x = cw.get("x"); assert x.device == "cuda:1" and same(x)')
        assert came(b, a) - before < 1.1 * BYTES
