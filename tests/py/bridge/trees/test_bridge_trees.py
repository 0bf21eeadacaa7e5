"""Trees of other nodes: whole or absent, in versions, fetched once, and what is here is not fetched again."""

from __future__ import annotations

import errno
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

import bridge_support
import numpy as np
import pytest
from bridge_support import Node
from conftest import eventually

import cableway as cw
import cableway.tree

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

RIGHTS = ("--read", "open/*", "--write", "in/*")
LARGE = 5_000_011  # bytes: over streams


@pytest.fixture(scope="module", params=["io_uring", "epoll"])
def two(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other, with each of the two ways to wait for sockets."""
    with bridge_support.pair(
        *RIGHTS, **({"CABLEWAY_BRIDGE_EPOLL": "1"} if request.param == "epoll" else {})
    ) as made:
        yield made


def values_of(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def received(node: Node, other: Node) -> int:
    """Bytes that have come here from the other node."""
    return int(node.state_of(other)["bytes_in"])


def test_all_of_a_tree_comes(two: tuple[Node, Node]) -> None:
    a, b = two
    state = {
        "large": values_of(LARGE),
        "scalar": np.float64(2.5),
        "empty": np.zeros((0, 3), "i4"),
        "fortran": np.asfortranarray(np.arange(2000.0).reshape(40, 50)),
        "layers": [{"w": np.ones((3, 4), "f4")}, {"w": np.zeros((3, 4), "f4")}],
    }
    state["tied"] = state["large"]
    with b.here():
        put = cw.put("open/all", state, meta={"step": 7})
        arrays = {path: array.numpy().copy(order="K") for path, array in put.items()}
    with a.here():
        tree = cw.get("//b/open/all")
        assert list(tree) == list(put)
        assert tree.version == put.version and tree.meta == {"step": 7}
        assert tree.ties() == {"tied": "large"}
        assert tree.content_hash == put.content_hash
        assert tree.verify() == len(arrays)
        for path, array in arrays.items():
            assert tree[path].dtype == array.dtype and (tree[path].numpy() == array).all()
            assert tree[path].shape == array.shape
            assert not array.nbytes or not tree[path].numpy().flags.writeable
        assert (tree["large"].numpy() == state["large"]).all()
        assert (tree["fortran"].numpy() == state["fortran"]).all()
        assert tree["fortran"].numpy().flags.f_contiguous
        again = pickle.loads(pickle.dumps(tree))
        assert (again["layers.0.w"].numpy() == 1).all()
        assert tree.device == "cpu"


def test_stat_lists_leaves_there_and_fetches_the_index_alone(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        put = cw.put(
            "open/listed", {"large": values_of(LARGE), "n": {"x": np.ones(3, "f4")}}, meta={"k": 1}
        )
    before = received(a, b)
    told = json.loads(a.command("stat", "--leaves", "--json", "//b/open/listed").stdout)
    assert received(a, b) - before < LARGE // 10
    assert [leaf["path"] for leaf in told["paths"]] == ["large", "n.x"]
    assert told["paths"][0]["bytes"] == LARGE and told["paths"][1]["dtype"] == "<f4"
    assert (told["version"], told["meta"]) == (put.version, {"k": 1})
    table = a.command("stat", "--leaves", "//b/open/listed").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["PATH", "large", "n.x"]


def test_a_tree_that_changes_in_place_is_not_fetched(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/unsealed", {"large": values_of(LARGE)}, seal=False, keep=True)
    with a.here(), pytest.raises(cw.RemoteError, match="changes in place"):
        cw.get("//b/open/unsealed")
    b.command("rm", "open/unsealed")


def test_small_trees_and_such_without_leaves(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/none", {}, as_tree=True)
        cw.put("open/small", {"x": np.arange(3)})
    with a.here():
        assert len(cw.get("//b/open/none")) == 0
        assert cw.get("//b/open/small")["x"].numpy().tolist() == [0, 1, 2]


def test_it_is_fetched_once(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/once", {"x": values_of(LARGE), "y": values_of(LARGE, 1)})
    before = received(a, b)
    script = "import cableway as cw\nt = cw.get('//b/open/once')\nprint(t.verify())\ninput()\n"
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=a.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(4)
    ]  # fmt: skip
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline().strip() == "2"
    come = received(a, b) - before
    assert 2 * LARGE <= come < 3 * LARGE, come
    for reader in readers:
        reader.communicate("\n")
        assert reader.returncode == 0


def test_a_later_version_brings_what_is_not_here(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        base = cw.put("open/base", {"w": values_of(4 * LARGE)})
        cw.put("open/both", {"base": base["w"], "adapter": values_of(1000)})
    with a.here():
        first = cw.get("//b/open/both")
        before = received(a, b)
        with b.here():
            second = cw.put("open/both", {"base": base["w"], "adapter": values_of(1000, 1)})
        got = first.newer(timeout=60)
        assert got is not None and got.version == second.version
        assert (got["adapter"].numpy() == values_of(1000, 1)).all()
        assert got.verify() == 2
        assert received(a, b) - before < LARGE
        assert (first["adapter"].numpy() == values_of(1000)).all()
        again = first.newer()  # it is told at once
        assert again is not None and again.version == second.version


@pytest.mark.parametrize("size", [10, 100_000, LARGE])
def test_versions_follow_each_other_at_the_same_addresses(
    two: tuple[Node, Node], size: int
) -> None:
    a, b = two
    name = f"open/swapped/{size}"  # of a known one, a moment ago may mean the one before
    with b.here():
        cw.put(name, {"w": values_of(size), "b": values_of(7)})
    with a.here():
        tree = cw.get(f"//b/{name}", swappable=True)
        w = tree["w"].numpy()
    for seed in range(1, 8):
        with b.here():
            cw.put(name, {"w": values_of(size, seed), "b": values_of(7)})
        with a.here():
            assert tree.swap(timeout=60) and (w == values_of(size, seed)).all()
    with a.here():
        tree.close()


def test_waits_for_a_version(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        first = cw.put("open/versions", {"x": np.zeros(3)})
    with a.here():
        cw.wait("//b/open/versions", timeout=60)
        cw.wait("//b/open/versions", timeout=60, after=first.version - 1)
        tree = cw.get("//b/open/versions")
        assert tree.newer() is None
        with pytest.raises(cw.Timeout):
            cw.wait("//b/open/versions", timeout=0.1, after=first.version)
        told = []
        waiter = threading.Thread(
            target=lambda: told.append(cw.wait("//b/open/versions", 60, after=first.version))
        )
        waiter.start()
        with b.here():
            second = cw.put("open/versions", {"x": np.ones(3)})
        waiter.join(60)
        assert told == [None]
        later = tree.newer(timeout=60)
        assert later is not None and later.version == second.version
        assert cw.get("//b/open/versions", version=second.version)["x"].numpy()[0] == 1
        with pytest.raises(cw.NameNotFound, match=str(second.version)):
            cw.get("//b/open/versions", version=first.version)


@pytest.mark.parametrize("swappable", [False, True])
@pytest.mark.parametrize("timeout", [None, 60])
def test_a_bridge_that_went_and_came_is_asked_again(
    two: tuple[Node, Node],
    monkeypatch: pytest.MonkeyPatch,
    timeout: float | None,
    swappable: bool,
) -> None:
    a, b = two
    asked = []

    class Library:
        """Its first calls find no bridge."""

        def cw_tree_get_at(self, *arguments: object) -> int:
            asked.append(arguments)
            return -errno.EHOSTUNREACH if len(asked) < 3 else lib.cw_tree_get_at(*arguments)

        def __getattr__(self, name: str) -> object:
            return getattr(lib, name)

    lib = cableway.tree.lib
    with b.here():
        cw.put("open/again", {"w": np.arange(5)})
    with a.here():
        monkeypatch.setattr(cableway.tree, "lib", Library())
        assert (
            cw.get("//b/open/again", timeout, swappable=swappable)["w"].numpy() == range(5)
        ).all()
        assert len(asked) == 3
        with pytest.raises(cw.RemoteError):
            asked.clear()
            cw.get("//b/open/again", swappable=swappable)
        assert len(asked) == 1


def test_names_say_that_they_are_trees(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/told", {"x": np.zeros(3), "y": np.zeros(4)})
    told = a.command("stat", "//b/open/told", "--json")
    assert json.loads(told.stdout)["dtype"] == "tree"
    with a.here():
        assert "open/told" in cw.names("//b/open/")
    a.command("cp", "//b/open/told", "copied")
    with a.here():
        assert sorted(cw.get("copied")) == ["x", "y"]
        cw.remove("copied")
    a.command("wait", "--timeout", "60", "--after", "0", "//b/open/told")
    late = a.command(
        "wait", "--timeout", "0.1", "--after", str(1 << 40), "//b/open/told", check=False
    )
    assert late.returncode != 0 and "version" in late.stderr
    a.command("cp", "//b/open/told", "//b/in/told")
    with b.here():
        assert sorted(cw.get("in/told")) == ["x", "y"]
    file = a.folder / "told.safetensors"
    a.command("get", "//b/open/told", str(file))
    assert file.stat().st_size > 0


def test_what_may_not_be_read_is_not_there(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("closed/m", {"x": np.zeros(3)})
        cw.put("closed/open", {"x": np.arange(3)}, remote="read")
    with a.here():
        with pytest.raises(cw.NameNotFound):
            cw.get("//b/closed/m")
        assert cw.get("//b/closed/open")["x"].numpy().tolist() == [0, 1, 2]


def test_it_is_removed_and_may_become_an_array(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        cw.put("open/turns", {"x": np.zeros(3)})
    with a.here():
        tree = cw.get("//b/open/turns")
        with b.here():
            cw.put("open/turns", np.arange(5))
        assert eventually(lambda: isinstance(cw.get("//b/open/turns"), cw.Array))
        with b.here():
            cw.put("open/turns", {"x": np.ones(3)})
        assert eventually(lambda: isinstance(cw.get("//b/open/turns"), cw.Tree))
        assert cw.get("//b/open/turns")["x"].numpy()[0] == 1
        assert tree["x"].numpy()[0] == 0
        with b.here():
            cw.remove("open/turns")

        def gone() -> bool:
            try:
                cw.get("//b/open/turns")
            except cw.NameNotFound:
                return True
            return False

        assert eventually(gone)
        assert tree["x"].numpy()[0] == 0


def test_bytes_beside_the_leaves_do_not_come(two: tuple[Node, Node]) -> None:
    """A leaf may be a piece of a larger array; the rest of that is nobody's."""
    a, b = two
    with b.here():
        whole = cw.asarray(values_of(8 * LARGE))
        cw.put("open/piece", {"x": whole[LARGE : LARGE + 1000]}, copy=False)
    with a.here():
        before = received(a, b)
        tree = cw.get("//b/open/piece")
        assert (tree["x"].numpy() == values_of(8 * LARGE)[LARGE : LARGE + 1000]).all()
        assert received(a, b) - before < LARGE


def test_a_tree_of_this_node_by_its_full_name(two: tuple[Node, Node]) -> None:
    a, _ = two
    with a.here():
        put = cw.put("open/own", {"x": np.arange(3)})
        assert cw.get("//a/open/own").version == put.version
        assert cw.get("//a/open/own").newer() is None
