"""Trees whose memory is shared with other arrays, got with swappable=True: of it they get copies, so that any version can follow."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from conftest import eventually
from tree_support import current_bytes

import cableway as cw


def small(value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(10, value), "b": np.full((3, 2), value, "f4")}


def without_copy(value: float) -> dict[str, cw.Array]:
    pool = cw.zeros(100_000)
    pool[...] = value
    return {"w": pool[50:60], "b": pool[70_000:]}


@pytest.mark.parametrize(("state", "options"), [(small, {}), (without_copy, {"copy": False})])
def test_it_swaps_at_the_same_addresses(
    state: Callable[[float], dict[str, object]], options: dict[str, bool]
) -> None:
    cw.put("m", state(0), **options)
    tree = cw.get("m", swappable=True)
    w, b = tree["w"].numpy(), tree["b"].numpy()
    others = []
    for value in range(1, 50):
        others.append(cw.put("x", np.ones(value)))  # so that each version lies elsewhere
        cw.put("m", state(value), meta={"value": value}, **options)
        assert tree.swap() and tree.meta == {"value": value}
        assert (w == value).all() and (b == value).all() and tree.verify() == 2
    assert not w.flags.writeable


def test_a_large_version_follows_a_small_one_of_another_layout_only_as_a_tree_of_its_own() -> None:
    cw.put("m", small(1))
    tree = cw.get("m", swappable=True)
    cw.put("m", {"w": np.ones(100_000)})
    with pytest.raises(cw.LayoutChanged, match="has another layout than version"):
        tree.swap()
    assert (tree["w"].numpy() == 1).all()


def test_what_is_sent_and_named_leads_to_the_version_that_is_mapped() -> None:
    cw.put("m", small(1))
    tree = cw.get("m", swappable=True)
    leaf, whole = pickle.dumps(tree["w"]), pickle.dumps(tree)
    cw.put("other", {"w": tree["w"]})
    cw.put("second", tree)
    cw.put("m", small(2))
    assert tree.swap()
    assert (pickle.loads(leaf).numpy() == 1).all() and (pickle.loads(whole)["w"].numpy() == 1).all()
    assert (cw.get("other")["w"].numpy() == 1).all() and (cw.get("second")["w"].numpy() == 1).all()
    assert (pickle.loads(pickle.dumps(tree["w"])).numpy() == 2).all()
    assert (pickle.loads(pickle.dumps(tree))["b"].numpy() == 2).all()


def test_it_goes_and_comes_back() -> None:
    cw.put("m", small(1))
    tree = cw.get("m", swappable=True)
    w = tree["w"]
    tree.unmap()
    tree.map()
    assert (w.numpy() == 1).all()
    tree.park()
    cw.put("m", small(2))
    tree.unpark()
    assert (w.numpy() == 1).all() and tree.swap() and (w.numpy() == 2).all()


def test_swaps_take_no_more_memory_with_time() -> None:
    cw.put("m", small(0))
    tree = cw.get("m", swappable=True)
    for value in range(3):
        cw.put("m", small(value))
        tree.swap()
    before = current_bytes()
    for value in range(200):
        cw.put("m", small(value))
        tree.swap()
    assert current_bytes() <= before
    tree.close()


def test_the_copies_of_who_is_killed_are_freed() -> None:
    cw.put("m", small(0))
    before = current_bytes()
    code = """if True:
        import os, signal, cableway as cw
        trees = [cw.get("m", swappable=True) for _ in range(20)]
        assert (trees[7]["w"].numpy() == 0).all()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == -9
    eventually(lambda: current_bytes() <= before)


def test_verify_beside_a_swap_sees_one_version() -> None:
    cw.put("m", small(0))
    tree = cw.get("m", swappable=True)
    wrong: list[Exception] = []
    done = threading.Event()

    def verify() -> None:
        while not done.is_set():
            try:
                assert tree.verify() == 2
            except Exception as error:
                wrong.append(error)
                return

    thread = threading.Thread(target=verify)
    thread.start()
    try:
        for value in range(500):
            cw.put("m", small(value))
            while True:
                try:
                    tree.swap()
                    break
                except cw.Error as error:
                    assert "are in use" in str(error), error
    finally:
        done.set()
        thread.join()
    assert not wrong, wrong[0]
