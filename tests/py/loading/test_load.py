"""`cableway.load`: what lies in the files is in the tree, each kind of damage is an error that leaves nothing behind, and a name means
the files that it was loaded from.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import DIFFERS, FAILED, run, run_json
from conftest import Script, stop_broker
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tree_files import DTYPES, sharded, weights, written
from waiting import eventually

import cableway as cw
from cableway._core import words


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    save_file(weights(), path, metadata={"format": "pt", 'quo"te': "ü\n"})
    return path


def check(tree: cw.Tree, wanted: dict[str, Any]) -> None:
    assert sorted(tree) == sorted(wanted)
    for name, values in wanted.items():
        found = tree[name].numpy()
        assert found.dtype == values.dtype and found.shape == values.shape, name
        assert found.tobytes() == values.tobytes(), name


def test_a_file_becomes_a_tree_with_hashes_and_where_it_came_from(file: Path) -> None:
    tree = cw.load("m", file)
    check(tree, weights())
    assert tree.device == "cpu" and tree.verify() > 0
    assert tree.meta["metadata"] == {"format": "pt", 'quo"te': "ü\n"}
    status = file.stat()
    (source,) = tree.meta["source"]["files"]
    assert (source["path"], source["inode"]) == (os.path.realpath(file), status.st_ino)
    assert (source["size"], source["mtime_ns"]) == (status.st_size, status.st_mtime_ns)
    assert tree.content_hash == cw.put("same", weights(tree)).content_hash != 0


@pytest.mark.parametrize("name", DTYPES)
def test_each_dtype_of_the_format(name: str, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(
        written({"x": {"dtype": name, "shape": [3, 2], "data_offsets": [0, 6 * DTYPES[name][0] // 8]}}, bytes(range(64))[: 6 * DTYPES[name][0] // 8])
    )  # fmt: skip
    found = cw.load("m", tmp_path)["x"]
    assert words.name(found.dtype) == DTYPES[name][1]
    assert found.shape == ((3, 1) if name == "F4" else (3, 2))
    assert found.tobytes() == bytes(range(found.nbytes))


def test_a_folder_an_index_and_one_of_its_files(tmp_path: Path) -> None:
    wanted = weights()
    index = sharded(tmp_path, wanted, 3)
    check(cw.load("folder", tmp_path), wanted)
    check(cw.load("folder", index), wanted)  # the same files
    assert cw.get("folder").version == cw.load("folder", str(tmp_path) + "/").version
    index.unlink()
    check(cw.load("files", tmp_path), wanted)  # all that there are
    assert len(cw.load("one", tmp_path / "s-1.safetensors")) < len(wanted)


def test_an_index_decides_what_is_taken(tmp_path: Path) -> None:
    index = sharded(tmp_path, weights(), 2)
    save_file({"more": np.ones(3)}, tmp_path / "other.safetensors")
    told = json.loads(index.read_text())
    del told["weight_map"]["bias"]
    index.write_text(json.dumps(told))
    assert sorted(cw.load("m", tmp_path)) == sorted(set(weights()) - {"bias"})


def broken_index(folder: Path, what: str) -> None:
    index = sharded(folder, weights(), 2)
    told = json.loads(index.read_text())
    names = told["weight_map"]
    if what == "a shard is missing":
        (folder / "s-1.safetensors").unlink()
    elif what == "a tensor is missing":
        names["none"] = "s-0.safetensors"
    elif what == "another file":
        names["bias"] = (
            "s-1.safetensors" if names["bias"] == "s-0.safetensors" else "s-0.safetensors"
        )
    elif what == "out of the folder":
        names["bias"] = "../s-0.safetensors"
    elif what == "no names":
        told["weight_map"] = {}
    elif what == "a number":
        names["bias"] = 1
    index.write_text(json.dumps(told) if what != "no JSON" else "{")
    if what == "two indexes":
        (folder / "other.safetensors.index.json").write_text(index.read_text())


INDEXES = {
    "a shard is missing": (OSError, "s-1.safetensors"),
    "a tensor is missing": (
        cw.Error,
        '1 are not in its files, the first: "none" is not in s-0.safetensors: fetch',
    ),
    "another file": (cw.Error, '"bias" is not in s-'),
    "out of the folder": (cw.Error, "in its folder"),
    "no names": (cw.Error, "no weight_map"),
    "a number": (cw.Error, 'names no file for the tensor "bias"'),
    "no JSON": (cw.Error, "m.safetensors.index.json ends where more must come: was it cut off"),
    "two indexes": (ValueError, "several indexes"),
}


def slabs() -> int:
    return int(run_json("status")["gauges"]["bytes"])


@pytest.mark.parametrize("what", INDEXES)
def test_an_index_that_is_wrong_leaves_nothing(what: str, tmp_path: Path) -> None:
    cw.empty(1).close()
    broken_index(tmp_path, what)
    before = slabs()
    kind, told = INDEXES[what]
    with pytest.raises(kind, match=told):
        cw.load("m", tmp_path)
    assert "m" not in cw.names() and slabs() == before
    assert run("load", "m", str(tmp_path), expect=FAILED).stderr.count("\n") == 1


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
FILES = {
    "nothing": b"",
    "too long": struct.pack("<Q", 100_000_001) + b"{}",
    "overflow": struct.pack("<Q", (1 << 64) - 1) + b"{}",
    "cut off in its header": struct.pack("<Q", 400) + b"{}",
    "cut off": written({"x": ONE}, b"\0" * 7),
    "goes on": written({"x": ONE}, b"\0" * 9),
    "overlap": written({"x": ONE, "y": {**ONE, "data_offsets": [4, 12]}}, b"\0" * 12),
    "hole": written({"x": ONE, "y": {**ONE, "data_offsets": [9, 17]}}, b"\0" * 17),
    "repeated": written(b'{"x":%s,"x":%s}' % ((json.dumps({**ONE, "shape": [0], "data_offsets": [0, 0]}).encode(),) * 2)),
    "negative": written({"x": {**ONE, "shape": [-2]}}, b"\0" * 8),
    "63 bits": written({"x": {**ONE, "shape": [1 << 40, 1 << 40]}}, b"\0" * 8),
    "64 bits": written(b'{"x":{"dtype":"U8","shape":[18446744073709551617],"data_offsets":[0,1]}}', b"\0"),
    "no UTF-8": written(b'{"\xff":' + json.dumps(ONE).encode() + b"}", b"\0" * 8),
    "half a character": written(rb'{"\ud800":' + json.dumps(ONE).encode() + b"}", b"\0" * 8),
    "no path of a tree": written({"a\nb": ONE}, b"\0" * 8),
    "an empty name": written({"": ONE}, b"\0" * 8),
    "a zero in a name": written({"a\0b": ONE}, b"\0" * 8),
    "deep": written(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_damaged_leaves_nothing(what: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(FILES[what])
    with pytest.raises((cw.Error, ValueError)):
        cw.load("m", path)
    assert "m" not in cw.names()


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        cw.load("m", tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="no .safetensors files"):
        cw.load("m", tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="is neither a file nor a folder"):
        cw.load("m", tmp_path / "pipe")
    with pytest.raises(ValueError):
        cw.load("m", "")
    with pytest.raises(cw.DeviceError):
        cw.load("m", tmp_path, device="cuda:63")


def test_a_name_means_the_files_it_came_from(file: Path, tmp_path: Path) -> None:
    first = cw.load("m", file)
    assert cw.load("m", file).version == first.version
    link = tmp_path / "link.safetensors"
    link.symlink_to(file)
    assert cw.load("m", link).version == first.version
    other = tmp_path / "fine-tuned.safetensors"  # with an equal header
    save_file({**weights(), "weight": -weights()["weight"]}, other)
    with pytest.raises(
        cw.NameTaken, match=r"m\.safetensors .* not .*fine-tuned\.safetensors .*: load it"
    ):
        cw.load("m", other)
    os.utime(file, ns=(1, 1))  # somebody wrote there
    moment = r"1970-01-01 00:00:00\.000000001 UTC"
    with pytest.raises(cw.NameTaken, match=moment + r"\): .* \(replace=True, --replace\)$"):
        cw.load("m", file)
    second = cw.load("m", other, replace=True)
    assert second.version > first.version and cw.load("m", other).version == second.version
    check(first, weights())
    cw.put("array", np.ones(3))
    cw.put("tree", {"a": np.ones(3)}, meta={"source": "mine"})
    for name in ("array", "tree"):
        with pytest.raises(cw.NameTaken, match=r"replace it \(replace=True, --replace\)$"):
            cw.load(name, file)
        check(cw.load(name, file, replace=True), weights())


def test_a_second_name_and_a_namespace(file: Path) -> None:
    tree = cw.load("a", file)
    again = cw.put("b", tree)
    assert cw.load("b", file).version == again.version  # it says where it came from
    cw.remove("a")
    check(cw.load("a", file), weights())


class Device:
    """As PyTorch has them: its name is its text."""

    def __str__(self) -> str:
        return "cpu"


def test_what_arguments_may_be(file: Path) -> None:
    assert cw.load("m", file, device=Device()).device == "cpu"
    with pytest.raises(cw.DeviceError):
        cw.load("m", file, device=63)
    with pytest.raises(ValueError, match="not a device"):
        cw.load("m", file, device="gpu")
    for name in (5, None, b"m"):
        with pytest.raises(TypeError, match="a name is a str, not"):
            cw.load(name, file)  # type: ignore[arg-type]
    for name in ("m\0", "m\ud800", "", "a//b"):
        with pytest.raises(ValueError, match="name"):
            cw.load(name, file)
    with pytest.raises(TypeError):
        cw.load("m", 5.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout is 0 or more seconds"):
        cw.load("m", file, timeout=-1)
    assert cw.load("m", file, timeout=0).version == cw.get("m").version  # it is there
    with pytest.raises(cw.Timeout, match="timeout=0 takes only a tree that is there already"):
        cw.load("n", file, timeout=0)
    for word in ("keep", "replace"):
        for value in ("no", 1, None):
            with pytest.raises(TypeError, match=f"{word} must be True or False, not "):
                cw.load("m", file, **{word: value})
        cw.load("m", file, **{word: np.True_})
    assert cw.names() == ["m"]


LOAD = "import sys, cableway as cw; cw.load('m', sys.argv[1]).close()"


@pytest.mark.parametrize("replace", [False, True])
def test_a_name_that_another_process_loaded_is_kept(
    replace: bool, file: Path, script: Script
) -> None:
    script(LOAD, str(file))
    first = cw.get("m")
    assert not run_json("stat", "m")["keep"]
    before = slabs()
    kept = cw.load("m", file, keep=True, replace=replace)
    assert run_json("stat", "m")["keep"] and slabs() == before
    assert kept.version > first.version and cw.get("m").version == kept.version
    check(kept, weights())
    check(first, weights())
    assert cw.load("m", file, keep=True).version == cw.load("m", file).version == kept.version
    assert run_json("stat", "m")["keep"]


def test_the_command_keeps_a_loaded_name_and_says_no_word_of_its_end(
    file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "d"  # of a broker with no other client
    here = {"CABLEWAY_DIR": str(folder)}
    try:
        assert "m goes 60 s after" in run("load", "m", str(file), env=here).stderr
        assert not run("load", "m", str(file), "--keep", env=here).stderr
        assert run_json("stat", "m", env=here)["keep"]
        assert not run("load", "m", str(file), env=here).stderr
    finally:
        stop_broker(folder)


def test_the_command_loads_and_verifies(file: Path, tmp_path: Path) -> None:
    told = run_json("load", "m", str(file), "--keep")
    assert told["loaded"] and told["tensors"] == len(weights())
    assert told["content_hash"] == f"{cw.get('m').content_hash:016x}"
    assert not run_json("load", "m", str(file))["loaded"]
    assert run_json("verify", "m", str(file))["equal"]
    assert "what was published" in run("verify", "m").stdout
    other = weights()
    other["weight"] = other["weight"] + 1
    other["bias"] = other["bias"].astype("f8")
    del other["empty"]
    save_file({**other, "new": np.ones(2)}, tmp_path / "o.safetensors")
    told = json.loads(
        run("verify", "--json", "m", str(tmp_path / "o.safetensors"), expect=DIFFERS).stdout
    )
    assert not told["equal"]
    assert {one["path"]: one["what"].split()[1:3] for one in told["differs"]} == {
        "weight": ["other", "values"], "bias": ["another", "dtype"], "new": ["in", "the"], "empty": ["in", "the"],
    }  # fmt: skip
    assert "other files" in run("load", "--help").stdout
    assert run("load", "m", str(tmp_path / "o.safetensors"), expect=6).stderr
    run("load", "--replace", "m", str(tmp_path / "o.safetensors"))
    run("verify", "none", expect=4)
    assert (
        "none.safetensors"
        in run("verify", "m", str(tmp_path / "none.safetensors"), expect=FAILED).stderr
    )


def test_metadata_of_the_callers_own_lie_beside_the_source(file: Path) -> None:
    meta = {"step": 3, 'qu"o}te': {"deep": [1, None, "ü}"]}}
    tree = cw.load("m", file, meta=meta)
    assert set(tree.meta) == {"source", "metadata", *meta}
    assert {name: tree.meta[name] for name in meta} == meta
    assert cw.load("m", file, meta={"step": 4}).meta == tree.meta  # it is there already
    for number, nothing in enumerate(({}, None)):
        assert set(cw.load(f"n{number}", file, meta=nothing).meta) == {"source", "metadata"}
    for wrong in ({"source": 1}, {"metadata": {}}, {"a": 1, "source": 2}):
        with pytest.raises(ValueError, match="a load writes there itself"):
            cw.load("other", file, meta=wrong)
    for bad in ([1], "text", {"a": object()}):
        with pytest.raises(TypeError):
            cw.load("other", file, meta=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="JSON"):
        cw.load("other", file, meta={"a": float("nan")})
    assert "other" not in cw.names()


def test_a_list_of_devices_is_of_gpus(file: Path) -> None:
    with pytest.raises(ValueError, match='has "cpu": give GPUs'):
        cw.load("m", file, device=["cpu"])
    with pytest.raises(ValueError, match="0 devices given, 1 to 64"):
        cw.load("m", file, device=[])
    with pytest.raises(cw.DeviceError):
        cw.load("m", file, device=[62, 63])
    assert cw.names() == []


def test_what_is_put_is_kept_or_not() -> None:
    for word in ("keep", "replace"):
        for value in ("no", 1, None):
            with pytest.raises(TypeError, match=f"{word} must be True or False, not "):
                cw.put("x", np.ones(3), **{word: value})  # type: ignore[call-overload]
    assert cw.names() == []


def test_empty_tensors_are_verified_too(file: Path) -> None:
    assert cw.load("m", file).verify() == len(weights())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 53), 1 << 53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)  # fmt: skip


@given(meta=st.dictionaries(st.text(max_size=9), JSON, max_size=5))
def test_any_metadata_come_back(
    meta: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "meta.safetensors"
    if not path.exists():
        save_file({"w": np.ones(3)}, path)
        os.utime(path, (1, 1))
    if {"source", "metadata"} & meta.keys():
        return
    with cw.load("m", path, meta=meta, replace=True) as tree:
        assert {name: tree.meta[name] for name in meta} == meta
        assert set(tree.meta) == {"source", "metadata", *meta}
    cw.remove("m")


class Raising:
    """The library, whose load has come to its end when a signal's handler raises."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def cw_load_wait(self, *given: Any) -> int:
        while (status := self._lib.cw_load_wait(*given)) == -errno.EINTR:
            pass  # a step
        assert status == 0
        raise KeyboardInterrupt


def test_an_interrupt_behind_the_end_of_a_load_keeps_no_version(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cableway._load import trees

    monkeypatch.setattr(trees, "lib", Raising(trees.lib))
    with pytest.raises(KeyboardInterrupt):
        cw.load("m", file)
    monkeypatch.undo()
    with cw.get("m") as tree:  # it was published before
        version = tree.version
    cw.put("m", {"w": np.zeros(3)})
    gc.collect()

    def is_gone() -> bool:
        try:
            cw.get("m", version=version).close()
        except cw.NameNotFound:
            return True
        return False

    assert eventually(is_gone)


def test_a_leaf_of_size_0_is_read_only_as_all_are(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    save_file({"none": np.zeros((0, 3), "f4"), "one": np.ones(1, "f4")}, file)
    for tree in (cw.load("m", file), cw.put("p", {"none": np.zeros((0, 3), "f4")})):
        none = tree["none"]
        assert none.readonly and none.shape == (0, 3) and none.dtype == np.float32
        assert not none.numpy().flags.writeable and none.device == "cpu"
        tree.close()
        assert none.numpy().size == 0
