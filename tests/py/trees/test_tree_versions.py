"""Versions of a tree: they rise, nothing of one ever changes, and a put may ask which one there is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import stop_broker
from tree_support import current_bytes, name_is_lost, state
from waiting import eventually

import cableway as cw


def test_versions_rise_and_who_has_one_keeps_it() -> None:
    first = cw.put("m", state(1.0))
    second = cw.put("m", state(2.0))
    assert second.version > first.version
    assert first["norm.bias"].numpy().tolist() == [0, 1, 2, 3, 4]
    assert cw.get("m").version == second.version
    assert cw.get("m", version=first.version)["norm.bias"].numpy()[1] == 1
    assert first.layout_hash == second.layout_hash
    assert first.content_hash != second.content_hash
    newer = first.newer()
    assert newer is not None and newer.version == second.version
    assert newer.newer() is None


def test_a_version_that_nobody_has_is_gone() -> None:
    first = cw.put("m", state(1.0))
    number = first.version
    cw.put("m", state(2.0))
    first.close()
    assert eventually(lambda: not _has("m", number))
    with pytest.raises(cw.NameNotFound, match=f'version {number} of "m" is gone.*get the newest'):
        cw.get("m", version=number)


def _has(name: str, version: int) -> bool:
    try:
        cw.get(name, version=version).close()
    except cw.NameNotFound:
        return False
    return True


def test_a_put_is_done_only_if_the_name_means_what_was_said() -> None:
    with pytest.raises(cw.VersionChanged):
        cw.put("m", state(), if_version=5)
    first = cw.put("m", state(), if_version=0)
    with pytest.raises(cw.VersionChanged, match="is taken") as told:
        cw.put("m", state(), if_version=0)
    assert isinstance(told.value, cw.NameTaken)
    with pytest.raises(cw.NameExists):
        cw.put("m", first, if_version=0)  # another name for a tree
    second = cw.put("m", state(2.0), if_version=first.version)
    with pytest.raises(cw.VersionChanged, match=f"it means {second.version}"):
        cw.put("m", state(3.0), if_version=first.version)
    assert cw.get("m").version == second.version
    with pytest.raises(cw.NameTaken) as refused:
        cw.put("m", state(), replace=False)
    assert not isinstance(refused.value, cw.VersionChanged)
    cw.put("array", [1])
    with pytest.raises(cw.NotATree):
        cw.get("array", swappable=True)


def test_two_who_add_one_by_comparing_versions_lose_nothing() -> None:
    cw.put("n", {"count": np.int64(0)})
    rounds = 50

    def add() -> None:
        done = 0
        while done < rounds:
            tree = cw.get("n")
            count = tree["count"].numpy() + 1
            try:
                cw.put("n", {"count": count}, if_version=tree.version)
                done += 1
            except cw.VersionChanged:
                continue

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cw.get("n")["count"].numpy() == 3 * rounds


def test_who_waits_for_a_later_version_gets_that() -> None:
    tree = cw.put("m", state())
    with pytest.raises(cw.Timeout):
        cw.wait("m", timeout=0.01, after=tree.version)
    assert tree.newer(timeout=0.01) is None
    later = threading.Thread(target=lambda: cw.put("m", state(2.0)))
    later.start()
    cw.wait("m", timeout=60, after=tree.version)
    later.join()
    assert cw.get("m").version > tree.version


def test_a_removed_name_never_gets_an_old_number_again() -> None:
    first = cw.put("m", state())
    cw.remove("m")
    assert cw.put("m", state()).version > first.version


def test_another_name_for_a_tree_copies_nothing() -> None:
    tree = cw.put("m", state())
    before = current_bytes()
    best = cw.put("best", tree)
    assert best.version > tree.version and best.content_hash == tree.content_hash
    assert current_bytes() == before
    cw.remove("m")
    tree.close()
    assert cw.get("best").verify() == 3


def test_leaves_of_another_tree_are_shared_and_not_copied() -> None:
    base = cw.put("base", {"w": np.ones(1 << 20)})
    tuned = cw.put("tuned", {"w": base["w"], "lora": np.ones(4)})
    assert (
        tuned["w"].numpy().__array_interface__["data"]
        == (base["w"].numpy().__array_interface__["data"])
    )
    base.close()
    cw.remove("base")
    assert tuned.verify() == 2


def test_after_a_new_broker_an_old_tree_finds_what_is_newer(broker_folder: Path) -> None:
    for value in range(3):
        tree = cw.put("m", state(float(value)))
    leaves = dict(tree)
    stop_broker(broker_folder)
    assert eventually(name_is_lost)
    with pytest.raises((cw.BrokerLost, ValueError)):  # the call after that begins with a new one
        cw.put("again", tree)
    made = cw.put("m", state(7.0))
    assert made.version <= tree.version, "numbers begin anew"
    newer = tree.newer(timeout=60)
    assert newer is not None and newer.version == made.version and newer.newer() is None
    again = cw.put("old", leaves)  # what is mapped still can be put again
    assert again["norm.bias"].tolist() == leaves["norm.bias"].tolist()
    assert cw.put("old", leaves, copy=True).verify() == 3


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: cw.put("m", {"w": [1]}, if_version="3"), "if_version is a whole number"),
        (lambda: cw.put("m", {"w": [1]}, if_version=3.0), "if_version is a whole number"),
        (lambda: cw.get("m", version="3"), "version is a whole number"),
        (lambda: cw.wait("m", after="3"), "after is a whole number"),
        (lambda: cw.put("m", {"w": [1]}, copy="no"), "copy must be True, False or None"),
        (lambda: cw.put("m", {"w": [1]}, hashed="no"), "hashed must be True, False or None"),
        (lambda: cw.put("m", {"w": [1]}, as_tree="no"), "as_tree must be True, False or None"),
        (lambda: cw.put("m", {"w": [1]}, meta={1, 2}), "meta must be made of dict"),
        (lambda: cw.get("m", readonly="no"), "readonly must be True or False"),
        (lambda: cw.get("m", swappable="no"), "swappable must be True or False"),
        (lambda: cw.get("m", device=3), "device must be a string"),
        (lambda: cw.load("m", 3), "path must be a str"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_a_wrong_type_is_named(call: Callable[[], object], told: str) -> None:
    cw.put("m", {"w": np.ones(3)})
    with pytest.raises(TypeError, match=told):
        call()


@pytest.mark.parametrize("how", ["swap", "newer"])
def test_a_node_that_is_behind_what_a_wait_was_told_is_asked_again(how, monkeypatch):
    """Of another node's name a wait is told before this node knows that what it has is out of date."""
    first = cw.put("behind", {"w": np.zeros(3)})
    tree = cw.get("behind", swappable=how == "swap")
    monkeypatch.setattr(type(tree), "_later", lambda *_: 0)  # as a wait whose answer is ahead
    later = threading.Timer(0.1, cw.put, ("behind", {"w": np.ones(3)}))
    later.start()
    found = tree if how == "swap" and tree.swap(timeout=60) else tree.newer(timeout=60)
    later.join()
    assert found.version > first.version and found["w"].numpy().tolist() == [1, 1, 1]
