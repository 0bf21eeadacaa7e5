"""Names of another node on the command line, and a node's own name: it is the node itself."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import numpy as np
import pytest
from bridge_support import Node
from cuda_support import BUILD

import cableway as cw

TOP = Path(__file__).parents[4]

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other."""
    with bridge_support.acquainted("--read", "open/*", "--write", "in/*") as made:
        yield made


def test_ls_and_stat_tell_of_another_nodes_names_without_fetching_them(
    two: tuple[Node, Node],
) -> None:
    a, b = two
    b.put("open/told", np.zeros((3, 5), "f4"))
    b.put("open/tolder", np.zeros(0, [("n", "i8"), ("x", "f4")]))
    b.put("hidden/told", [1])
    a.put("open/told", [1])  # not what is here under the names that are there
    assert "//b/open/told" in a.command("ls", "//b").stdout
    assert "hidden" not in a.command("ls", "//b/").stdout
    (row,) = (row for row in a.command("ls", "//b/open/told").stdout.splitlines() if "told " in row)
    assert "(3, 5)" in row and "60 B" in row and "<f4" in row
    listed = json.loads(a.command("ls", "--json", "//b/open/told").stdout)
    assert [(row["name"], row["shape"], row["bytes"]) for row in listed] == [
        ("//b/open/told", [3, 5], 60),
        ("//b/open/tolder", [0], 0),
    ]
    assert listed[0]["dtype"] == "<f4" and listed[0]["holders"] is listed[0]["device"] is None
    assert 0 <= listed[0]["age_seconds"] < 600 and listed[0]["keep"] is False
    assert json.loads(a.command("stat", "--json", "//b/open/told").stdout)["shape"] == [3, 5]
    told = a.command("stat", "//b/open/told").stdout
    assert "//b/open/told" in told and "(3, 5)" in told and "holders" not in told
    for name in ("//b/open/tol", "//b/hidden/told"):
        assert a.command("stat", name, check=False).returncode == 4
    assert a.command("ls", "--all", "//b/", check=False).returncode == 2
    assert a.command("ls", "//c/", check=False).returncode == 1
    listed = json.loads(a.command("ls", "--all", "--json").stdout)
    assert not [row for row in listed if row["name"].startswith("//b/open/told")]  # no replica came


def test_a_name_with_garbage_is_listed_and_breaks_no_connection(two: tuple[Node, Node]) -> None:
    a, b = two
    (source,) = (TOP / "tests/unit").rglob("test_names_garbage.c")
    program = BUILD / source.relative_to(TOP).with_suffix("")
    if not program.exists():
        pytest.skip(f"{program} is not built: make test-programs")
    subprocess.run([program, "put", "open/garbage"], env=b.environment, check=True, timeout=60)
    b.put("open/good", np.arange(5))
    before = b.said()
    with a.here():
        for _ in range(3):
            with pytest.raises(cw.RemoteError, match="malformed metadata"):
                cw.get("//b/open/garbage", timeout=60)
        assert cw.get("//b/open/good", timeout=60).tolist() == [0, 1, 2, 3, 4]
    assert b.said() == before, "the connection went"
    listed = json.loads(a.command("ls", "--json", "//b/open/g").stdout)
    assert [(row["name"], row["dtype"], row["bytes"]) for row in listed] == [
        ("//b/open/garbage", None, 100),
        ("//b/open/good", "<i8", 40),
    ]
    b.command("rm", "open/garbage", "open/good")


def test_a_tree_of_another_node_is_told_as_what_it_is(two: tuple[Node, Node]) -> None:
    a, b = two
    with b.here():
        tree = cw.put("//b/open/tree", {"w": np.arange(4)})  # on its own node it is a name as any
        assert cw.get("open/tree").version == cw.get("//b/open/tree").version == tree.version
    with a.here():
        assert cw.get("//b/open/tree", timeout=60).version == tree.version
        b.put("open/good", np.arange(5))
        assert cw.get("//b/open/good", timeout=60).tolist() == [0, 1, 2, 3, 4]
    (row,) = json.loads(a.command("ls", "--json", "//b/open/tree").stdout)
    assert (row["dtype"], row["shape"], row["bytes"]) == ("tree", [1], tree.nbytes)
    assert " 1 leaf  tree " in a.command("ls", "//b/open/tree").stdout
    told = a.command("stat", "//b/open/tree").stdout
    assert re.search(
        r"(?m)^dtype +tree\nversion +\d+\nleaves +1, in 1 piece of memory\ndevices +cpu$", told
    ), told
    assert re.search(r"(?m)^w +<i8 +\(4,\) ", a.command("stat", "--leaves", "//b/open/tree").stdout)
    assert "is an array" in a.command("stat", "--leaves", "//b/open/good", check=False).stderr
    b.command("rm", "open/tree", "open/good")


def test_a_nodes_own_name_is_itself(two: tuple[Node, Node], tmp_path: Path) -> None:
    a, b = two
    with b.here():
        mine = cw.put("//b/own/x", np.arange(4))
        assert cw.get("own/x").numpy().tolist() == [0, 1, 2, 3]
        with cw.get("//b/own/x") as x:
            x.numpy()[0] = 7  # no replica: the array itself
        assert mine.numpy()[0] == 7 and cw.get("//b/own/x", timeout=5).numpy()[0] == 7
        assert cw.get("//b/own/x", device="cpu").numpy()[0] == 7
        assert cw.names("//b/own/") == cw.names("own/") == ["own/x"]
        assert cw.names("//b") == cw.names()
        with pytest.raises(cw.NameNotFound, match='"own/none"'):
            cw.get("//b/own/none")
        with pytest.raises(cw.Timeout):
            cw.get("//b/own/none", timeout=0.01)
        with pytest.raises(cw.NameTaken):
            cw.put("//b/own/x", 1, replace=False)
        assert cw.get("//b/own/x", timeout=1).numpy()[0] == 7
        cw.wait("//b/own/x")
        cw.remove("//b/own/x")
        assert "own/x" not in cw.names()
    b.put("//b/own/cli", [1, 2])
    assert json.loads(b.command("stat", "--json", "//b/own/cli").stdout)["holders"] >= 0
    assert "//b/own/cli" in b.command("ls", "//b/own").stdout
    b.command("cp", "//b/own/cli", "//b/own/copy")
    with b.here():
        cw.get("own/cli").numpy()[:] = 9
        assert cw.get("own/copy").numpy().tolist() == [1, 2]  # a copy, as on one node
    b.command("wait", "//b/own/copy")
    b.command("get", "//b/own/copy", str(tmp_path / "copy.npy"))
    assert np.load(tmp_path / "copy.npy").tolist() == [1, 2]
    b.command("rm", "//b/own/cli", "//b/own/copy")
    assert b.command("stat", "//b/own/cli", check=False).returncode == 4
    for node in two:
        assert json.loads(node.command("ls", "--json", "own/").stdout) == []


def test_a_layout_that_is_longer_than_an_answer_comes_too(two: tuple[Node, Node]) -> None:
    """CW_PLACED_MAX: who asked finds it by its name."""
    a, b = two
    values = np.zeros(3, [(f"field_{i:03}_of_many", "f4") for i in range(60)])
    values["field_059_of_many"] = 1, 2, 3
    b.put("open/wide", values)
    with a.here():
        found = cw.get("//b/open/wide", timeout=30)
        assert found.dtype == values.dtype and (found.numpy() == values).all()
