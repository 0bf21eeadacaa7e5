"""Replicas of one array at several places of a node: bytes come over the network once, and no GPU's memory is lost.

Runs in `make test-more`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bridge_raw as raw
import bridge_support
import cuda_support
import pytest
from bridge_gpu_support import BYTES, MIB, begin, came, empty, end, figures, run, soon, two
from bridge_liar import Liar, about, known, no, opened
from bridge_raw import Raw, frame
from bridge_support import Node

cuda_support.require()
pytestmark = [
    pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking()),
    cuda_support.second_gpu,
]
double = pytest.mark.skipif(cuda_support.REAL, reason="needs the test double")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Two nodes that see two GPUs of 256 MiB."""
    with two(tmp_path, memory_mib=256) as made:
        yield made


def moved(node: Node) -> dict[str, int]:
    """Bytes by route."""
    return {name: count for name, count in figures(node).items() if name.startswith("bytes_")}


def test_a_thousand_gets_on_a_gpu_are_one_transfer(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    run(b, 'cw.put("g", cw.asarray(values(), device="cuda:0"), keep=True)')
    before = came(a, b)
    getters = [
        begin(a, """
            import concurrent.futures
            with concurrent.futures.ThreadPoolExecutor(10) as threads:
                got = list(threads.map(lambda _: cw.get("//b/g", device="cuda:1"), range(250)))
            assert all(x.device == "cuda:1" for x in got) and same(got[0])
        """)
        for _ in range(4)
    ]  # fmt: skip
    for getter in getters:
        end(getter, a, b)
    assert BYTES <= came(a, b) - before < 1.1 * BYTES
    assert moved(a)["bytes_to_gpu"] == BYTES and moved(b)["bytes_from_gpu"] == BYTES


def test_asked_on_two_devices_and_in_host_memory(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    run(b, 'cw.put("g", cw.asarray(values(), device="cuda:0"), keep=True)')
    before = came(a, b)
    asked = [
        begin(a, f"""
            x = cw.get("//b/g", device={device!r})
            assert x.device == {device!r} and same(x)
            say(); sys.stdin.read()
        """)
        for device in ("cuda:0", "cuda:1", "cpu")
    ]  # fmt: skip
    for one in asked:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    assert BYTES <= came(a, b) - before < 1.1 * BYTES
    for one in asked:
        end(one, a, b)
    # From wherever it was first: the network's bytes once, and a copy to each other place.
    run(a, 'assert same(cw.get("//b/g"))')
    assert came(a, b) - before < 1.1 * BYTES
    told = moved(a)
    checks = BYTES * 2  # what the programs themselves copied to look at it
    assert told["bytes_to_gpu"] + told["bytes_peer"] + told["bytes_from_gpu"] - checks in (
        2 * BYTES,
        3 * BYTES,
    )


@pytest.mark.parametrize("size", [1 << 20, BYTES])
@pytest.mark.parametrize("first", ["cpu", "cuda:0"])
def test_what_is_here_already_is_copied(nodes: tuple[Node, Node], first: str, size: int) -> None:
    """Whichever place has it, and also long after it came: then its bridge must map first what it has only written."""
    a, b = nodes
    run(b, f'cw.put("g", values(1, {size}), keep=True)')
    before = came(a, b)
    getters = []
    for device in (first, "cuda:1", "cpu", "cuda:0"):
        getters.append(begin(a, f"""
            x = cw.get("//b/g", device={device!r})
            assert x.device == {device!r} and same(x)
            say(); sys.stdin.read()
        """))  # fmt: skip
        assert getters[-1].stdout is not None and getters[-1].stdout.readline() == "ready\n"
    for getter in getters:
        end(getter, a, b)
    assert size <= came(a, b) - before < 1.1 * size


def test_a_generation_that_moved_is_fetched_again(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    run(b, 'cw.put("g", cw.asarray(values(1, 1 << 20), device="cuda:0"), keep=True)')
    watcher = begin(a, """
        old = [cw.get("//b/g", device=device) for device in ("cuda:0", "cuda:1", "cpu")]
        say(); sys.stdin.readline()
        while not all(same(cw.get("//b/g", device=x.device), 2) for x in old): time.sleep(0.001)
        assert all(same(x, 1) for x in old)  # who has the old one keeps it
    """)  # fmt: skip
    assert watcher.stdout is not None and watcher.stdout.readline() == "ready\n"
    run(b, 'cw.put("g", cw.asarray(values(2, 1 << 20), device="cuda:0"), keep=True)')
    end(watcher, a, b)


def test_small_and_empty_arrays(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    run(b, """
        for n in (0, 1, 5, 2000, 2048, 2049, 40_000):
            cw.put(f"gpu/{n}", cw.asarray(np.arange(n), device="cuda:0"), keep=True)
            cw.put(f"host/{n}", np.arange(n), keep=True)
        cw.put("view", cw.asarray(np.arange(200_000).reshape(200, 1000), device="cuda:1")[10:20, ::-2], keep=True)
    """)  # fmt: skip
    run(a, """
        for n in (0, 1, 5, 2000, 2048, 2049, 40_000):
            for kind in ("gpu", "host"):
                for device in ("cuda:1", "cuda:0", "cpu"):
                    x = cw.get(f"//b/{kind}/{n}", device=device)
                    assert x.device == device and x.to("cpu").numpy().tolist() == list(range(n)), (n, kind, device)
                    cw.put(f"//b/in/{n}", x, device="cuda:0")
                    cw.put(f"//b/in/{n}", x)
        view = cw.get("//b/view", device="cuda:0")
        assert (view.to("cpu").numpy() == np.arange(200_000).reshape(200, 1000)[10:20, ::-2]).all()
    """)  # fmt: skip
    run(
        b,
        'assert cw.get("in/5").device == "cpu" and cw.get("in/2049").numpy().tolist() == list(range(2049))',
    )


@double
def test_puts_onto_gpus_of_another_node(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    run(a, """
        x = values(1, 3 << 20)
        for name, it in (("host", x), ("gpu", cw.asarray(x, device="cuda:0"))):
            cw.put(f"//b/{name}", it, device="cuda:1", keep=True)
        cw.put("//b/any", x, device="cuda", keep=True)
        cw.put("//b/cpu", cw.asarray(x, device="cuda:0"), device="cpu", keep=True)
        cw.put("here", x, device="cuda:1")
        assert cw.get("here").device == "cuda:1" and same(cw.get("here"))
        for device, error in (("cuda:5", cw.DeviceError), ("cuda:99", cw.DeviceError), ("gpu", cw.DeviceError)):
            try: cw.put("//b/none", x, device=device)
            except error as said: assert device in str(said), said
            else: raise AssertionError(device)
        assert "none" not in cw.names("//b")
    """)  # fmt: skip
    run(b, """
        for name, device in (("host", "cuda:1"), ("gpu", "cuda:1"), ("any", "cuda:0"), ("cpu", "cpu")):
            x = cw.get(name)
            assert x.device == device and same(x), name
    """)  # fmt: skip


@double
def test_cp_of_gpu_arrays(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    run(a, 'cw.put("x", cw.asarray(values(1, 3 << 20), device="cuda:0"), keep=True)')
    a.command("cp", "--keep", "x", "//b/y")
    b.command("cp", "--keep", "//a/x", "z")
    b.command("cp", "--keep", "--device", "cuda:1", "//a/x", "on/gpu")
    a.command("cp", "--keep", "--device", "cuda:1", "x", "//b/there")
    a.command("cp", "--keep", "--device", "cuda:0", "//b/y", "//b/w")
    run(b, """
        for name, device in (("y", "cpu"), ("z", "cpu"), ("on/gpu", "cuda:1"), ("there", "cuda:1"), ("w", "cuda:0")):
            x = cw.get(name)
            assert x.device == device and same(x), name
    """)  # fmt: skip
    told = a.command("cp", "--device", "cuda:7", "x", "//b/v", check=False)
    assert told.returncode != 0 and "cuda:7" in told.stderr


@double
def test_an_evicted_array_is_put(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    run(a, f"""
        x = cw.asarray(values(1, {120 * MIB}), device="cuda:0", evictable=True)
        y = cw.zeros({120 * MIB // 8}, "i8", device="cuda:0", evictable=True)
        z = cw.zeros({60 * MIB // 8}, "i8", device="cuda:0")  # now x is away
        cw.put("//b/x", x, keep=True)
    """)  # fmt: skip
    run(b, 'assert same(cw.get("x"))')


@double
def test_a_full_gpu_is_told_and_nothing_leaks(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    run(b, f"""
        for i in range(4):
            cw.put(f"g/{{i}}", values(i, {100 * MIB}), keep=True)
    """)  # fmt: skip
    run(a, """
        held = [cw.get(f"//b/g/{i}", device="cuda:0") for i in range(2)]
        try: cw.get("//b/g/2", device="cuda:0")
        except cw.LimitExceeded as error: assert "cuda:0" in str(error), error
        else: raise AssertionError
        assert all(same(x, i) for i, x in enumerate(held))
        assert same(cw.get("//b/g/2"), 2)  # host memory is not full
        try: cw.put("//b/on", cw.get("//b/g/0"), device="cuda:0")  # the same GPU, of the other node
        except cw.LimitExceeded as error: assert "cuda:0" in str(error), error
        else: raise AssertionError
        assert "on" not in cw.names("//b/")
    """)  # fmt: skip
    # What nobody holds any more makes room at once.
    run(a, """
        for i in (2, 3, 0, 1, 2, 3):
            assert same(cw.get(f"//b/g/{i}", device="cuda:0"), i)
    """)  # fmt: skip
    for i in range(4):
        b.command("rm", f"g/{i}")
    assert empty(a) and empty(b)


@double
def test_what_nobody_holds_makes_room_for_two_who_want_it_at_once(tmp_path: Path) -> None:
    """A GPU has room for two replicas of three; each is let go of before the next one is asked for."""
    with two(tmp_path, memory_mib=64) as (a, b):
        run(b, f"for i in range(8): cw.put(f'g/{{i}}', values(i, {20 * MIB}), keep=True)")
        getters = [
            begin(a, f"""
                for turn in range(10):
                    i = {own} + 2 * (turn % 4)
                    x = cw.get(f"//b/g/{{i}}", device="cuda:0")
                    assert same(x, i)
                    del x
            """)
            for own in range(2)
        ]  # fmt: skip
        for getter in getters:
            end(getter, a, b)


def test_nothing_is_fetched_of_what_no_gpu_has_room_for(tmp_path: Path) -> None:
    """Books over all the bytes that a peer says it has are not made either."""
    size = 1 << 47

    def answer(op: int, id: int, asked: bytes) -> bytes:
        body = opened(size, about((size,)))
        return frame(op | raw.REPLY, body, id=id) if op == raw.OPEN else no(op, id, asked)

    with cuda_support.gpus(tmp_path), bridge_support.net("b", "evil") as made:
        b, evil = made.nodes.values()
        b.knows(evil, "--read", "*", address="")
        b.start(CABLEWAY_FAKECUDA_FAULTS="cuMemCreate@1+=delay:1000000")
        with Raw(evil.keys, b.port) as connection:
            known(connection, b, evil)
            with Liar(connection, answer) as liar:
                run(b, """
                    try: cw.get("//evil/x", device="cuda:0")
                    except cw.LimitExceeded: pass
                    else: raise AssertionError
                """)  # fmt: skip
        assert raw.OPEN in liar.seen and raw.READ not in liar.seen


def test_memory_that_streams_have_used_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover, which made it, has never heard of the process whose streams they were; it does not end meanwhile."""
    monkeypatch.setenv("CABLEWAY_MOVER_IDLE", "1000")
    with two(tmp_path, memory_mib=256) as (a, b):
        run(b, 'cw.put("g", cw.asarray(values(), device="cuda:0"), keep=True)')
        user = begin(a, """
            x, s = cw.get("//b/g", device="cuda:0"), Stream()
            with x.reading(s): pass
            s.finish(); x.close(); say(); sys.stdin.read()
        """)  # fmt: skip
        assert user.stdout is not None and user.stdout.readline() == "ready\n"
        run(b, 'cw.remove("g")')
        assert empty(a) and empty(b)
        end(user, a, b)


def test_a_write_under_way_is_waited_for(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    a, b = nodes
    go = tmp_path / "go"
    writer = begin(b, f"""
        w, stream = cw.put("g", cw.asarray(values(1), device="cuda:0"), keep=True), Stream()
        new = values(2)
        with w.writing(stream.handle.value):
            stream.hold({str(go)!r})
            host = np.ascontiguousarray(new)
            call("cuMemHostRegister_v2", ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(BYTES), 0)
            call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(low(w)), ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(BYTES), stream.handle)
        cw.put("other", np.arange(100_000), keep=True)
        say(); stream.finish()
    """)  # fmt: skip
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    waiting = [
        begin(a, 'assert same(cw.get("//b/g", device="cuda:1"), 2); say("got")') for _ in range(6)
    ]
    # Meanwhile the bridge serves all others.
    for _ in range(8):
        run(
            a,
            'assert cw.get("//b/other").numpy().sum() == 4999950000',
        )
        b.command("cp", "other", "other")
    assert all(one.poll() is None for one in waiting) and moved(b)["bytes_from_gpu"] == 0
    go.touch()
    end(writer, b)
    for one in waiting:
        assert end(one, a, b) == "got\n"


def test_a_poisoned_array_is_told_as_that(nodes: tuple[Node, Node]) -> None:
    a, b = nodes
    dying = begin(b, """
        w, stream = cw.put("g", cw.asarray(values(), device="cuda:0"), keep=True), Stream()
        with w.writing(stream.handle.value):
            stream.hold("/nowhere/at/all")
        say(); sys.stdin.read()
    """)  # fmt: skip
    assert dying.stdout is not None and dying.stdout.readline() == "ready\n"
    waiting = begin(a, """
        try: cw.get("//b/g", device="cuda:1")
        except cw.ProducerDied as error: print("died")
    """)  # fmt: skip
    waits = begin(a, """
        try: cw.get("//b/g")
        except cw.ProducerDied as error: print("died")
    """)  # fmt: skip
    dying.kill()
    dying.communicate()
    assert end(waiting, a, b) == "died\n" and end(waits, a, b) == "died\n"
    # The same where it is to be put.
    run(b, """
        try: cw.put("//a/x", cw.get("g"))
        except cw.ProducerDied: pass
        else: raise AssertionError
        cw.put("g", cw.asarray(values(2), device="cuda:0"), keep=True)
    """)  # fmt: skip
    run(a, 'assert same(cw.get("//b/g", device="cuda:0"), 2)')
    b.command("rm", "g")
    assert empty(a) and empty(b)


@double
def test_a_gpu_that_is_lost_is_told(tmp_path: Path) -> None:
    with two(tmp_path, b="copy@3=lose") as (a, b):
        run(b, 'cw.put("g", cw.asarray(values(), device="cuda:0"), keep=True)')
        run(a, """
            try: cw.get("//b/g")
            except cw.DeviceError as error: assert "cuda:0" in str(error), error
            else: raise AssertionError
        """)  # fmt: skip
        assert soon(lambda: a.sees(b))


@double
def test_a_node_without_gpus(tmp_path: Path) -> None:
    with two(tmp_path) as (a, b):
        (tmp_path / "none").mkdir()
        b.environment["CABLEWAY_FAKECUDA_DEVICES"] = "0"
        b.environment["CABLEWAY_FAKECUDA_DIR"] = str(tmp_path / "none")
        b.stop()
        b.start()
        assert soon(lambda: a.sees(b) and b.sees(a))
        run(a, 'cw.put("g", cw.asarray(values(1, 1 << 20), device="cuda:0"), keep=True)')
        run(b, """
            x = cw.get("//a/g")
            assert x.device == "cpu" and same(x)
            try: cw.get("//a/g", device="cuda:0")
            except cw.DeviceError as error: pass
            else: raise AssertionError
            cw.put("//a/on", np.arange(30_000), device="cuda:1", keep=True)
        """)  # fmt: skip
        run(a, """
            assert cw.get("on").device == "cuda:1"
            try: cw.put("//b/x", cw.get("g"), device="cuda:0")
            except cw.DeviceError as error: assert "GPU" in str(error), error
            else: raise AssertionError
            cw.put("//b/x", cw.get("g"), keep=True)
        """)  # fmt: skip
        run(b, 'assert same(cw.get("x"))')


def test_a_name_without_room_for_a_place_of_its_own(tmp_path: Path) -> None:
    """The longest names have no replicas on GPUs: each get there is a copy of the one in host memory."""
    with cuda_support.gpus(tmp_path), bridge_support.net("a", 20 * "b") as made:
        made.acquaint("--read", "*", "--write", "*")
        made.start()
        made.connected(60)
        a, b = made.nodes.values()
        for node in (a, b):
            node.environment["CABLEWAY_NAMESPACE"] = 64 * "n"
        run(b, 'cw.put(190 * "x", cw.asarray(values(1, 1 << 20), device="cuda:0"), keep=True)')
        run(a, f"""
            x, y = (cw.get("//{20 * "b"}/" + 190 * "x", device="cuda:1") for _ in range(2))
            assert x.device == "cuda:1" and same(x) and same(y)
        """)  # fmt: skip
        assert moved(b)["bytes_from_gpu"] == 1 << 20


def test_who_has_read_a_later_value_at_one_place_never_reads_an_earlier_one_at_another(
    nodes: tuple[Node, Node],
) -> None:
    """Before places looked at each other it was 2.9 % of the reads; it is none."""
    a, b = nodes
    run(b, 'cw.put("g", np.zeros(1, "i8"), keep=True)')
    readers = begin(a, """
        import concurrent.futures, threading
        seen, lock, reads, older = [0], threading.Lock(), [], []
        def read(device):
            while seen[0] < 400:
                with lock: before = seen[0]
                found = int(cw.get("//b/g", device=device).to("cpu").numpy()[0])
                reads.append(found)
                if found < before: older.append((device, found, before))
                with lock: seen[0] = max(seen[0], found)
        say()
        with concurrent.futures.ThreadPoolExecutor() as threads:
            for reader in [threads.submit(read, device) for device in ("cpu", "cuda:0", "cuda:1")]:
                reader.result(50)
        assert not older, (len(reads), older)
    """)  # fmt: skip
    assert readers.stdout is not None and readers.stdout.readline() == "ready\n"
    run(b, 'for i in range(1, 401): cw.put("g", np.full(1 + i % 7 * 3000, i), keep=True)')
    end(readers, a, b)
