"""Trees that are put onto another node: whole or absent, in versions, and refused with a reason."""

from __future__ import annotations

import json
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

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

RIGHTS = ("--read", "open/*", "--write", "open/*", "--write", "in/*")
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


def test_all_of_a_tree_goes(two: tuple[Node, Node]) -> None:
    a, b = two
    state = {
        "large": values_of(LARGE),
        "scalar": np.float64(2.5),
        "empty": np.zeros((0, 3), "i4"),
        "fortran": np.asfortranarray(np.arange(2000.0).reshape(40, 50)),
        "layers": [{"w": np.ones((3, 4), "f4")}, {"w": np.zeros((3, 4), "f4")}],
    }
    state["tied"] = state["large"]
    with a.here():
        put = cw.put("//b/in/all", state, meta={"step": 7})
        assert put.name == "//b/in/all" and put.meta == {"step": 7}
        assert (put["large"].numpy() == state["large"]).all()
        paths, content = list(put), put.content_hash
        version = put.version
    with b.here():
        tree = cw.get("in/all")
        assert list(tree) == paths and tree.version == version
        assert tree.meta == {"step": 7} and tree.ties() == {"tied": "large"}
        assert tree.content_hash == content and tree.verify() == len(paths)
        assert tree.device == "cpu"
        assert (tree["large"].numpy() == state["large"]).all()
        assert not tree["large"].numpy().flags.writeable
        assert (tree["fortran"].numpy() == state["fortran"]).all()
        assert tree["fortran"].numpy().flags.f_contiguous
        assert tree["empty"].shape == (0, 3) and tree["scalar"].numpy() == 2.5
        assert (tree["layers.0.w"].numpy() == 1).all()


def test_small_trees_and_such_without_leaves(two: tuple[Node, Node]) -> None:
    a, b = two
    with a.here():
        cw.put("//b/in/none", {}, as_tree=True)
        cw.put("//b/in/small", {"x": np.arange(3), "zero": np.zeros(0)})
        cw.put("//b/in/zeros", {"zero": np.zeros((0, 2))})
    with b.here():
        assert len(cw.get("in/none")) == 0
        assert cw.get("in/small")["x"].numpy().tolist() == [0, 1, 2]
        assert cw.get("in/zeros")["zero"].shape == (0, 2)


def test_many_leaves_have_a_large_index(two: tuple[Node, Node]) -> None:
    """An index that does not fit into its OFFER is read as any array."""
    a, b = two
    with a.here():
        cw.put("//b/in/many", {f"x{i}": np.full(3, i) for i in range(5000)})
    with b.here():
        tree = cw.get("in/many")
        assert len(tree) == 5000 and tree.verify() == 5000
        assert all(tree[f"x{i}"].numpy()[0] == i for i in range(0, 5000, 499))


def test_leaves_in_pieces_of_their_own(two: tuple[Node, Node]) -> None:
    """Of each array only what its leaf needs goes."""
    a, b = two
    with a.here():
        whole = cw.asarray(values_of(8 * LARGE))
        before = int(b.state_of(a)["bytes_in"])
        pieces = {f"p{i}": cw.asarray(values_of(1000 * i + 1, i)) for i in range(20)}
        cw.put("//b/in/pieces", {"x": whole[LARGE : LARGE + 1000], **pieces}, copy=False)
        assert int(b.state_of(a)["bytes_in"]) - before < LARGE
    with b.here():
        tree = cw.get("in/pieces")
        assert (tree["x"].numpy() == values_of(8 * LARGE)[LARGE : LARGE + 1000]).all()
        for i in range(20):
            assert (tree[f"p{i}"].numpy() == values_of(1000 * i + 1, i)).all()
        assert tree.verify() == 21


def test_versions_follow_one_another(two: tuple[Node, Node]) -> None:
    """Who has the old version there keeps it, and is told of the new one, here and there."""
    a, b = two
    with a.here():
        first = cw.put("//b/open/v", {"x": values_of(LARGE, 1)})
        fetched = cw.get("//b/open/v")
        assert fetched.version == first.version
        assert first.newer() is None
    with b.here():
        held = cw.get("open/v")
    told = []
    with a.here():
        waiter = threading.Thread(target=lambda: told.append(first.newer(timeout=60)))
        waiter.start()
        second = cw.put("//b/open/v", {"x": values_of(LARGE, 2)}, if_version=first.version)
        waiter.join(60)
        assert second.version > first.version
        assert told[0] is not None and told[0].version == second.version
        assert (told[0]["x"].numpy() == values_of(LARGE, 2)).all()
        cw.wait("//b/open/v", timeout=60, after=first.version)
        assert eventually(lambda: cw.get("//b/open/v").version == second.version)
        assert (fetched["x"].numpy() == values_of(LARGE, 1)).all()
        assert (first["x"].numpy() == values_of(LARGE, 1)).all()
    with b.here():
        later = held.newer()
        assert later is not None and later.version == second.version
        assert (later["x"].numpy() == values_of(LARGE, 2)).all()
        assert (held["x"].numpy() == values_of(LARGE, 1)).all()
        cw.wait("open/v", timeout=60, after=first.version)


def test_a_version_that_is_not_meant_changes_nothing(two: tuple[Node, Node]) -> None:
    a, b = two
    with a.here():
        first = cw.put("//b/in/if", {"x": np.zeros(3)}, if_version=0)
        with pytest.raises(cw.NameTaken, match="in/if"):
            cw.put("//b/in/if", {"x": np.ones(3)}, if_version=0)
        with pytest.raises(cw.NameTaken):
            cw.put("//b/in/if", {"x": np.ones(3)}, replace=False)
        with pytest.raises(cw.VersionChanged, match=str(first.version)):
            cw.put("//b/in/if", {"x": np.ones(3)}, if_version=first.version + 1)
        with pytest.raises(cw.VersionChanged, match="nothing"):
            cw.put("//b/in/absent", {"x": np.ones(3)}, if_version=7)
    with b.here():
        assert cw.get("in/if").version == first.version
        assert "in/absent" not in cw.names()


def test_only_one_of_many_replaces_a_version(two: tuple[Node, Node]) -> None:
    a, b = two
    with a.here():
        first = cw.put("//b/in/race", {"x": np.zeros(3)})
        won: list[int] = []

        def put(number: int) -> None:
            try:
                cw.put("//b/in/race", {"x": np.full(3, number)}, if_version=first.version)
                won.append(number)
            except cw.VersionChanged:
                pass

        threads = [threading.Thread(target=put, args=(i,)) for i in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(won) == 1
    with b.here():
        assert cw.get("in/race")["x"].numpy()[0] == won[0]


def test_a_tree_that_is_held_goes_too(two: tuple[Node, Node]) -> None:
    """One of this node, one that was fetched from there, and its leaves with others."""
    a, b = two
    with a.here():
        mine = cw.put("mine", {"w": values_of(LARGE), "b": np.arange(5)}, meta={"of": "mine"})
        there = cw.put("//b/open/copy", mine)
        assert there.content_hash == mine.content_hash and list(there) == list(mine)
        fetched = cw.get("//b/open/copy")
        cw.put("//b/in/back", fetched)
        cw.put("//b/in/mixed", {"w": fetched["w"], "new": np.ones(4)}, meta={"n": 1})
        cw.remove("mine")
    with b.here():
        for name in ("open/copy", "in/back", "in/mixed"):
            tree = cw.get(name)
            assert tree.verify() == 2 and (tree["w"].numpy() == values_of(LARGE)).all()
        assert cw.get("in/mixed").meta == {"n": 1}


def test_by_the_name_of_this_node(two: tuple[Node, Node]) -> None:
    a, _ = two
    with a.here():
        put = cw.put("//a/own", {"x": np.arange(3)})
        assert cw.get("own").version == put.version and put.newer() is None
        cw.put("//a/own2", put)
        assert cw.get("own2")["x"].numpy().tolist() == [0, 1, 2]


def test_what_is_refused(two: tuple[Node, Node]) -> None:
    a, b = two
    tree = {"x": np.zeros(3)}
    with a.here():
        with pytest.raises(cw.RemoteError, match="no peer"):
            cw.put("//nobody/in/x", tree)
        with pytest.raises(cw.RemoteError, match="does not let"):
            cw.put("//b/closed/x", tree)
        with pytest.raises(ValueError, match="NAME"):
            cw.put("//b", tree)
        with pytest.raises(ValueError, match="remote"):
            cw.put("//b/in/x", tree, remote="read")
        with pytest.raises(cw.DeviceError):
            cw.put("//b/in/x", tree, device="tpu:0")
        with pytest.raises(ValueError, match="version"):
            cw.put("//b/in/x", tree, if_version=-1)
        with pytest.raises(TypeError):
            cw.put("//b/in/x", {"x": np.array([object()])})
        with pytest.raises(cw.RemoteError, match="loaded"):
            cw.load("//b/in/x", "/nowhere")
    with b.here():
        assert "in/x" not in cw.names()


def test_it_replaces_an_array_and_is_replaced_by_one(two: tuple[Node, Node]) -> None:
    a, b = two
    with a.here():
        cw.put("//b/open/turns", np.arange(5))
        assert isinstance(cw.get("//b/open/turns"), cw.Array)
        cw.put("//b/open/turns", {"x": np.ones(3)})
        assert isinstance(cw.get("//b/open/turns"), cw.Tree)
        cw.put("//b/open/turns", np.arange(6))
        assert cw.get("//b/open/turns").shape == (6,)
    with b.here():
        assert cw.get("open/turns").shape == (6,)


def test_it_is_kept_when_the_one_who_put_it_ends(two: tuple[Node, Node]) -> None:
    a, b = two
    script = (
        "import cableway as cw, numpy as np\n"
        "cw.put('//b/in/kept', {'x': np.arange(100000)}, keep=True)\n"
    )
    subprocess.run([sys.executable, "-c", script], env=a.environment, check=True, timeout=60)
    with b.here():
        told = json.loads(b.command("stat", "in/kept", "--json").stdout)
        assert told["keep"] is True
        assert cw.get("in/kept").verify() == 1


def test_commands_put_trees_there(two: tuple[Node, Node]) -> None:
    a, b = two
    with a.here():
        tree = cw.put("local", {"x": values_of(LARGE), "y": np.arange(4)})
        a.command("cp", "local", "//b/in/copied")
        assert tree.version
    with b.here():
        assert cw.get("in/copied").verify() == 2
