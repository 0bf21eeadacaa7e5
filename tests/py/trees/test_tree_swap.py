"""A tree that was got with swappable=True: another version comes to its addresses, its memory goes and comes back."""

from __future__ import annotations

import gc
import os
import pickle
import random
import select
import subprocess
import sys
import textwrap
import threading

import interrupted
import numpy as np
import pytest
from conftest import eventually, stop_broker
from tree_support import current_bytes, in_process

import cableway as cw

SIZE = 1 << 18  # elements: 1 MiB, in memory of its own


def state(value: float, size: int = SIZE) -> dict[str, np.ndarray]:
    return {"w": np.full(size, value, "f4"), "b": np.arange(5.0) * value}


def low(array: cw.Array) -> int:
    return array._open_lease().address


def mapped(address: int) -> bool:
    """Whether this process may read there."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            span, mode, *_ = line.split()
            begin, end = (int(part, 16) for part in span.split("-"))
            if begin <= address < end:
                return mode[0] == "r"
    return False


def test_a_swap_shows_the_new_values_at_the_old_addresses():
    first = cw.put("m", state(1), meta={"step": 1})
    tree = cw.get("m", swappable=True)
    w = tree["w"]
    seen, at = w.numpy(), low(w)
    assert seen[0] == seen[-1] == 1 and tree.version == first.version
    second = cw.put("m", state(2), meta={"step": 2})
    assert seen[0] == 1 and tree.meta == {"step": 1}
    assert tree.swap() is True
    assert (seen == 2).all() and (w.numpy() == 2).all() and low(w) == at
    assert tree["b"].numpy().tolist() == [0, 2, 4, 6, 8]
    assert (tree.version, tree.meta, tree.content_hash) == (
        second.version, {"step": 2}, second.content_hash,
    )  # fmt: skip
    assert tree.verify() == 2 and tree.newer() is None
    assert tree.swap() is False and (seen == 2).all()


def test_the_old_version_is_given_up():
    cw.put("m", state(1), keep=True).close()
    tree = cw.get("m", swappable=True)
    old = tree.version
    cw.put("m", state(2), keep=True).close()
    gc.collect()
    cw.get("m", version=old).close()
    gc.collect()
    tree.swap()
    for _ in range(2000):
        try:
            cw.get("m", version=old).close()
        except cw.NameNotFound:
            break
    else:
        raise AssertionError("somebody holds the old version")


def test_an_earlier_version_is_swapped_in_by_its_number():
    first, second = cw.put("m", state(1)), cw.put("m", state(2))
    tree = cw.get("m", swappable=True)
    assert tree.swap(version=first.version) and tree["w"].numpy()[0] == 1
    assert tree.swap(version=second.version) and tree["w"].numpy()[0] == 2
    assert not tree.swap(version=second.version)
    with pytest.raises(ValueError, match="version is a number from 1 on"):
        tree.swap(version=0)


def test_a_swap_waits_for_a_later_version():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    assert tree.swap(timeout=0.01) is False
    putting = threading.Timer(0.05, lambda: cw.put("m", state(2)))
    putting.start()
    assert tree.swap(timeout=60) is True and tree["w"].numpy()[0] == 2
    putting.join()


@pytest.mark.parametrize(
    "other",
    [{"w": np.ones(SIZE, "f8")}, {"v": np.ones(SIZE, "f4")}, {"w": np.ones(SIZE // 2, "f4")}],
)
def test_another_layout_is_refused_and_the_old_version_stays(other):
    cw.put("m", {"w": np.ones(SIZE, "f4")})
    tree = cw.get("m", swappable=True)
    seen, version = tree["w"].numpy(), tree.version
    cw.put("m", other)
    with pytest.raises(cw.LayoutChanged, match="has another layout than version"):
        tree.swap()
    assert (seen == 1).all() and tree.version == version and tree.state == "mapped"
    assert list(tree) == ["w"]


def test_unmapped_arrays_raise_and_come_back_where_they_were():
    cw.put("m", state(3))
    tree = cw.get("m", swappable=True)
    w, at = tree["w"], low(tree["w"])
    assert w.numpy()[0] == 3 and mapped(at)
    tree.unmap()
    assert tree.state == "unmapped" and not mapped(at)
    for use in (w.numpy, w.copy, w.handle, lambda: tree["b"].numpy(), tree.verify):
        with pytest.raises(ValueError, match="the tree is unmapped: map it first"):
            use()
    tree.unmap()
    tree.map()
    tree.map()
    assert tree.state == "mapped" and (w.numpy() == 3).all() and low(w) == at


def test_a_swap_of_what_is_unmapped_maps_the_new_version():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    w, at = tree["w"], low(tree["w"])
    tree.unmap()
    assert tree.swap() is False and w.numpy()[0] == 1
    tree.unmap()
    cw.put("m", state(2))
    assert tree.swap() is True and (w.numpy() == 2).all() and low(w) == at


def test_a_reader_killed_while_unmapped_reads_a_signal_and_harms_nobody():
    cw.put("m", state(1))
    told = in_process("""
        import os, signal, cableway as cw
        tree = cw.get("m", swappable=True)
        seen = tree["w"].numpy()
        tree.unmap()
        pid = os.fork()
        if pid == 0:
            seen[0]
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSEGV)
        tree.map()
        print(seen[0])
    """)
    assert told.split() == ["True", "1.0"]


def test_each_tree_has_addresses_of_its_own():
    cw.put("m", state(1))
    one, two, plain = cw.get("m", swappable=True), cw.get("m", swappable=True), cw.get("m")
    assert len({low(tree["w"]) for tree in (one, two, plain)}) == 3
    cw.put("m", state(2))
    one.swap()
    assert [tree["w"].numpy()[0] for tree in (one, two, plain)] == [2, 1, 1]
    two.unmap()
    assert [tree["w"].numpy()[0] for tree in (one, plain)] == [2, 1]


def test_what_was_taken_out_stays_when_the_tree_is_closed():
    cw.put("m", state(4), keep=True).close()
    tree = cw.get("m", swappable=True)
    seen, at = tree["w"].numpy(), low(tree["w"])
    tree.close()
    cw.remove("m")
    gc.collect()
    assert (seen == 4).all()
    del seen, tree
    gc.collect()
    assert not mapped(at)


def test_what_is_sent_is_the_version_that_is_mapped():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    w = tree["w"]
    cw.put("m", state(2))
    with cw.Pool(1) as pool:
        assert pool.apply(np.sum, (w,)) == SIZE
        tree.swap()
        assert pool.apply(np.sum, (w,)) == 2 * SIZE


def test_a_tree_of_its_arrays_shares_their_memory():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    before = current_bytes()
    mixed = cw.put("n", {"w": tree["w"], "new": np.ones(3)})
    assert current_bytes() - before < 1 << 20 and mixed["w"].numpy()[0] == 1
    cw.put("m", state(2))
    tree.swap()
    assert mixed["w"].numpy()[0] == 1 and mixed.verify() == 2
    tree.unmap()
    with pytest.raises(ValueError, match="unmapped"):
        cw.put("n", {"w": tree["w"]})


def test_a_part_that_stays_the_same_stays_mapped():
    base = cw.put("base", {"w": np.ones(SIZE, "f4")})
    cw.put("m", {"w": base["w"], "a": np.full(SIZE, 1, "f4")})
    tree = cw.get("m", swappable=True)
    w, a = tree["w"].numpy(), tree["a"].numpy()
    cw.put("m", {"w": base["w"], "a": np.full(SIZE, 2, "f4")})
    tree.swap()
    assert (w == 1).all() and (a == 2).all()
    tree.unmap()
    tree.swap()
    assert (w == 1).all() and (a == 2).all()


def test_an_exception_at_any_step_leaves_a_tree_that_says_what_it_shows():
    first = cw.put("m", state(1), meta=1)
    second = cw.put("m", state(2), meta=2)
    tree = cw.get("m", swappable=True)
    seen = tree["w"].numpy()
    versions = {first.version: 1, second.version: 2}

    def other() -> None:
        tree.swap(version=(first if tree.meta == 2 else second).version)

    def looks_right() -> None:
        value = versions[tree.version]
        assert tree.meta == value == seen[0] == seen[-1]
        assert tree.content_hash == (first if value == 1 else second).content_hash
        tree.swap(version=first.version)  # nobody has its turn any more
        assert seen[0] == 1

    assert interrupted.everywhere(other, looks_right) > 100


def test_a_plain_tree_says_how_to_get_a_swappable_one():
    tree = cw.put("m", state(1))
    for call in (tree.swap, tree.unmap, tree.map, tree.park, tree.unpark):
        with pytest.raises(ValueError, match="swappable=True"):
            call()
    assert tree.state == "mapped"


def test_a_parked_host_tree_keeps_its_memory():
    cw.put("m", state(5))
    tree = cw.get("m", swappable=True)
    w, at = tree["w"], low(tree["w"])
    with pytest.raises(ValueError, match='device="cpu"'):
        tree.park("cuda:0")
    tree.park()
    assert tree.state == "parked" and not mapped(at) and len(tree) == 2
    with pytest.raises(ValueError, match="parked: unpark"):
        tree.map()
    cw.put("m", state(6))
    with pytest.raises(ValueError, match="the tree is parked: unpark it"):
        tree.swap()
    tree.unpark()
    assert tree.state == "mapped" and (w.numpy() == 5).all() and low(w) == at


def test_a_forked_child_reads_leaves_that_its_parent_never_took():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            w, b = tree["w"].numpy(), tree["b"].numpy()
            status = 0 if (w == 1).all() and b.tolist() == [0, 1, 2, 3, 4] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_keeps_what_was_mapped():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    seen = tree["w"].numpy()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(write)
            os.read(read, 1)  # until the parent has swapped
            refused = False
            try:
                tree.swap()
            except ValueError as error:
                refused = "parent" in str(error)
            status = 0 if refused and (seen == 1).all() and tree["w"].numpy()[0] == 1 else 2
        finally:
            os._exit(status)
    cw.put("m", state(2))
    tree.swap()
    os.close(read)
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (seen == 2).all()


def test_what_other_threads_send_meanwhile_is_one_version_or_the_other():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    w, stop, wrong = tree["w"], threading.Event(), []

    def send() -> None:
        while not stop.is_set():
            found = pickle.loads(pickle.dumps(w)).numpy()
            if found.min() != found.max():
                wrong.append((found.min(), found.max()))

    senders = [threading.Thread(target=send) for _ in range(2)]
    for sender in senders:
        sender.start()
    for value in range(2, 20):
        cw.put("m", state(value))
        while True:
            try:
                assert tree.swap()
                break
            except cw.Error as error:
                assert "in use" in str(error)
    stop.set()
    for sender in senders:
        sender.join()
    assert not wrong and w.numpy()[0] == 19


def test_swappers_and_publishers_killed_leave_whole_versions_and_no_memory():
    program = """
        import sys, numpy as np, cableway as cw
        tree = cw.get("m", swappable=True)
        w = tree["w"].numpy()
        print("ready", flush=True)
        value = int(w[0])
        while True:
            value += 1
            cw.put("m", {"w": np.full(1 << 16, value, "f4")}, keep=True)
            tree.swap()
            assert w.min() == w.max() >= 1, (w.min(), w.max())
            tree.unmap()
            tree.map()
    """
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    before = current_bytes()
    cw.put("m", {"w": np.ones(1 << 16, "f4")}, keep=True).close()
    watcher = cw.get("m", swappable=True)
    seen = watcher["w"].numpy()
    for _ in range(8):
        children = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(program)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for _ in range(2)
        ]
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        for child in children:
            select.select([], [], [], chance.random() / 20)  # the moment is chance's
            child.kill()
            assert child.communicate()[1] == b"", "it failed by itself"
        watcher.swap(timeout=0)
        assert seen.min() == seen.max() and watcher.verify() == 1
    del seen
    watcher.close()
    cw.remove("m")
    gc.collect()
    assert eventually(lambda: current_bytes() - before <= 2 << 20)


def test_a_lost_broker_changes_nothing(broker_folder):
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    w = tree["w"].numpy()
    cw.put("m", state(2))
    stop_broker(broker_folder)
    for _ in range(3):  # and it does not say that there is no later one
        with pytest.raises(cw.BrokerLost):
            tree.swap()
    assert (w == 1).all() and tree.state == "mapped"
    tree.unmap()  # needs no broker
    tree.map()
    assert (w == 1).all()


def test_a_parked_tree_is_not_swapped():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    tree.park("cpu")
    with pytest.raises(ValueError, match="parked"):
        tree.swap()
    tree.unpark()
    assert tree.swap() is False


def test_a_second_thread_waits_for_the_first_ones_exchange():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    failed: list[BaseException] = []

    def exchange() -> None:
        try:
            for _ in range(50):
                tree.swap()
                tree.unmap()
                tree.map()
        except ValueError as error:
            if "unmap" not in str(error):  # another thread's turn came between
                failed.append(error)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=exchange) for _ in range(3)]
    for thread in threads:
        thread.start()
    for value in range(2, 6):
        cw.put("m", state(value))
    for thread in threads:
        thread.join()
    assert not failed, failed
    tree.swap()
    assert tree["w"].numpy()[0] == 5


def test_a_thread_that_waits_for_a_version_keeps_nobody_from_exchanging():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(tree.swap(timeout=30)))
    waiting.start()
    assert tree.swap(timeout=0.2) is False
    tree.unmap()
    tree.map()
    cw.put("m", state(2))
    waiting.join(20)
    assert answers == [True] and tree["w"].numpy()[0] == 2


def test_close_ends_a_wait_for_a_later_version():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    told: list[str] = []

    def wait() -> None:
        try:
            tree.swap(timeout=None)
        except ValueError as error:
            told.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    tree.close()
    waiting.join(10)
    assert not waiting.is_alive() and "is closed" in told[0]


def test_a_signals_handler_in_an_exchange_is_told_and_a_forked_child_does_not_wait():
    cw.put("m", state(1))
    tree = cw.get("m", swappable=True)
    with tree._changing(), pytest.raises(cw.Error, match="signal's handler"):
        tree.swap()
    with tree._changing():
        told: list[str] = []

        def child() -> None:
            pid = os.fork()
            if pid == 0:
                try:
                    tree.unmap()
                except cw.Error as error:
                    os._exit(0 if "forked child" in str(error) else 2)
                os._exit(1)
            told.append(os.waitpid(pid, 0)[1])

        forker = threading.Thread(target=child)
        forker.start()
        forker.join(30)
    assert told == [0]
