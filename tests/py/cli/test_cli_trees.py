"""The `cableway` command and trees: files of all leaves, second names, what is shown, waiting for versions."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import COMMAND, FAILED, NAME_TAKEN, TIMEOUT, USAGE, run, run_json

import cableway as cw


def state() -> dict[str, Any]:
    """A little model: tied, a scalar, nothing at all, a strided view, and one dtype that .npy lacks."""
    weight = np.arange(12, dtype="f4").reshape(3, 4)
    half = cw.zeros((2, 3), "bfloat16")
    half.numpy().view("u2")[...] = np.arange(6).reshape(2, 3)
    return {
        "norm": {"bias": np.arange(5, dtype="i1")},  # 5 bytes: what comes behind would be odd
        "embed.weight": weight,
        "head.weight": weight,
        "layers": [{"w": half}, {"w": np.array(2.5)}],
        "none": np.zeros((3, 0), "i8"),
    }


def parts(file: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file, and its data."""
    data = file.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), data[8 + length :]


# ---- get


def test_get_writes_all_leaves_under_their_paths(tmp_path: Path) -> None:
    tree = cw.put("m", state(), meta={"step": 100, "format": "pt", "more": {"a": [1, None]}})
    file = tmp_path / "m.safetensors"
    told = run("get", "m", str(file)).stdout
    assert f"{file}: {len(tree)} leaves" in told
    header, data = parts(file)
    assert header.pop("__metadata__") == {"step": "100", "format": "pt", "more": '{"a":[1,null]}'}
    assert set(header) == set(tree)
    end = 0
    for path, about in header.items():  # without holes, each aligned to its elements
        begin, behind = about["data_offsets"]
        assert begin == end and tree[path].tobytes() == data[begin:behind]
        assert begin % tree[path].dtype.itemsize == 0 and tuple(about["shape"]) == tree[path].shape
        end = behind
    assert end == len(data)
    assert header["embed.weight"] != header["head.weight"]  # tied: once for each path
    told = run_json("get", "m", str(file))
    assert (told["version"], told["leaves"], told["bytes"]) == (tree.version, len(tree), len(data))


def test_what_get_wrote_is_read_by_load_verify_and_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    file = str(tmp_path / "m.safetensors")
    tree = cw.put("m", {path: a for path, a in state().items() if path != "layers"}, meta={"format": "pt"})  # fmt: skip
    run("get", "m", file)
    found = load_file(file)
    assert set(found) == set(tree)
    for path, array in found.items():
        assert array.dtype == tree[path].dtype and (array == tree[path].numpy()).all()
    run("verify", "m", file)
    run("load", "again", file)
    assert cw.get("again").meta["metadata"] == {"format": "pt"}
    run("get", "again", str(tmp_path / "b.safetensors"))  # and what a file said goes on to the next
    assert parts(tmp_path / "b.safetensors")[0]["__metadata__"] == {"format": "pt"}
    assert parts(tmp_path / "b.safetensors")[1] == parts(tmp_path / "m.safetensors")[1]


def test_strided_leaves_are_written_in_c_order(tmp_path: Path) -> None:
    whole = cw.asarray(np.arange(24, dtype="f4").reshape(4, 6))
    views = {"down": whole[::-1], "column": whole[:, 2], "turned": np.asfortranarray(whole.numpy())}
    cw.put("views", views, copy=None)
    run("get", "views", str(tmp_path / "v.safetensors"))
    header, data = parts(tmp_path / "v.safetensors")
    assert "__metadata__" not in header
    for path, view in views.items():
        begin, end = header[path]["data_offsets"]
        assert data[begin:end] == np.ascontiguousarray(view).tobytes()


def test_get_says_what_the_format_lacks_and_leaves_no_file(tmp_path: Path) -> None:
    cw.put("m", {"a": np.zeros(3), "deep": {"odd": np.zeros(2, "c16")}})
    for file in (str(tmp_path / "m.npy"), "-"):
        told = run("get", "m", file, expect=FAILED)
        assert "tree of 2 arrays" in told.stderr and ".safetensors" in told.stderr
        assert "cw_" not in told.stderr and not told.stdout
    told = run("get", "m", str(tmp_path / "m.safetensors"), expect=FAILED).stderr
    assert '"deep.odd"' in told and "no dtype <c16" in told
    cw.put("m", {"a": np.zeros(3), "__metadata__": np.zeros(2)})
    told = run("get", "m", str(tmp_path / "m.safetensors"), expect=FAILED).stderr
    assert "called __metadata__" in told
    assert list(tmp_path.iterdir()) == []


def test_keys_that_would_collide_are_refused_when_they_are_put() -> None:
    with pytest.raises(ValueError, match=r"a\.b"):
        cw.put("m", {"a": {"b": np.zeros(1)}, "a.b": np.zeros(2)})


@pytest.mark.parametrize(("meta", "text"), [([1, 2], "[1,2]"), (7, "7"), ("seven", "seven")])
def test_meta_that_is_no_object_has_a_key_of_its_own(meta: Any, text: str, tmp_path: Path) -> None:
    cw.put("m", {"a": np.zeros(3)}, meta=meta)
    assert run("get", "m", str(tmp_path / "m.safetensors")).stderr == ""
    assert parts(tmp_path / "m.safetensors")[0]["__metadata__"] == {"meta": text}


def test_meta_that_is_no_json_is_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = types.SimpleNamespace(dumps=lambda meta, **_: json.dumps(meta))  # as a program in C may
    monkeypatch.setattr("cableway._core.arguments.json", told)
    cw.put("m", {"a": np.zeros(3)}, meta={"loss": float("nan")})
    assert run_json("stat", "m")["meta"] is None
    said = run("get", "m", str(tmp_path / "m.safetensors")).stderr
    assert said.startswith("note: the metadata") and said.count("\n") == 1
    assert list(parts(tmp_path / "m.safetensors")[0]) == ["a"]


# ---- cp


def test_cp_gives_a_tree_a_second_name_for_the_same_memory() -> None:
    tree = cw.put("m", state(), meta={"step": 1})
    before = run_json("status")["gauges"]["bytes"]
    run("cp", "m", "second")
    second = cw.get("second")
    assert second.meta == {"step": 1} and second.content_hash == tree.content_hash
    assert second.version > tree.version
    assert run_json("status")["gauges"]["bytes"] == before
    run("cp", "m", "second", "--no-replace", expect=NAME_TAKEN)
    assert cw.get("second").version == second.version


def test_cp_of_a_tree_to_a_device_says_what_to_do() -> None:
    cw.put("m", state())
    told = run("cp", "m", "third", "--device", "cpu", expect=FAILED).stderr
    assert "leave out --device" in told and "third" not in cw.names()


# ---- stat


def test_stat_shows_what_a_tree_is() -> None:
    tree = cw.put("m", state(), meta={"step": 100}, keep=True)
    told = run("stat", "m").stdout
    for line in (
        f"version +{tree.version}", f"leaves +{len(tree)}, in [1-9]", "devices +cpu", 'meta +{"step": 100}', "dtype +tree",
        f"bytes +{tree.nbytes} B", "keep +yes",
    ):  # fmt: skip
        assert re.search(f"(?m)^{line}", told), (line, told)
    assert "shape" not in told
    told = run_json("stat", "m")
    assert told["version"] == tree.version and told["leaves"] == len(tree)
    assert told["devices"] == ["cpu"] and told["meta"] == {"step": 100}
    assert told["content_hash"] == f"{tree.content_hash:016x}"
    assert told["layout_hash"] == f"{tree.layout_hash:016x}"
    assert told["bytes"] == tree.nbytes and "paths" not in told
    cw.put("m", np.zeros(3))  # and of an array nothing of that
    assert not {"version", "leaves", "meta", "devices"} & set(run_json("stat", "m"))


def test_stat_lists_the_leaves() -> None:
    tree = cw.put("m", state())
    rows = run("stat", "--leaves", "m").stdout.splitlines()
    assert rows[0].split() == ["PATH", "DTYPE", "SHAPE", "BYTES", "TIED", "TO"]
    assert [row.split()[0] for row in rows[1:]] == list(tree)
    tied = next(row for row in rows if row.startswith("head.weight"))
    assert "<f4" in tied and "(3, 4)" in tied and tied.endswith("embed.weight")
    assert "bfloat16" in next(row for row in rows if row.startswith("layers.0.w"))
    told = run_json("stat", "--leaves", "m")["paths"]
    assert [leaf["path"] for leaf in told] == list(tree)
    assert [tuple(leaf["shape"]) for leaf in told] == [tree[path].shape for path in tree]
    assert [leaf["bytes"] for leaf in told] == [tree[path].nbytes for path in tree]
    assert {leaf["path"]: leaf["tied_to"] for leaf in told if leaf["tied_to"]} == tree.ties()
    assert {leaf["path"] for leaf in told if leaf["device"] != "cpu"} == {"none"}
    cw.put("a", np.zeros(3))
    told = run("stat", "--leaves", "a", expect=FAILED).stderr
    assert "is an array" in told and "--leaves" in told


def test_stat_of_a_tree_without_leaves_or_meta_in_json() -> None:
    cw.put("m", {}, meta=None)
    told = run_json("stat", "--leaves", "m")
    assert (told["leaves"], told["paths"], told["devices"], told["meta"]) == (0, [], [], {})
    assert run("stat", "--leaves", "m").stdout == ""


def test_a_command_for_trees_says_of_an_array_what_it_is() -> None:
    cw.put("a", np.zeros(3))
    told = run("verify", "a", expect=FAILED).stderr
    assert told.startswith('cableway: "a" is an array, not a tree') and "cw_" not in told


# ---- wait


def test_wait_after_waits_for_a_later_version() -> None:
    first = cw.put("m", {"w": np.zeros(3)})
    run("wait", "m", "--after", "0")
    run("wait", "m", "--after", str(first.version - 1))
    told = run("wait", "m", "--after", str(first.version), "--timeout", "0", expect=TIMEOUT).stderr
    assert f"no version after {first.version}" in told
    waiting = subprocess.Popen([COMMAND, "wait", "m", "--after", str(first.version)])
    cw.put("m", {"w": np.ones(3)})
    assert waiting.wait(60) == 0
    for bad in ("", "-1", "1.5", "soon", "99999999999999999999", " 1"):
        told = run("wait", "m", "--after", bad, expect=USAGE).stderr
        assert "--after takes the number of a version" in told


# ---- ls


def test_ls_shows_how_many_leaves_a_tree_has() -> None:
    cw.put("shown/many", state())
    cw.put("shown/one", {"w": np.zeros(3)})
    rows = {row.split()[0]: row for row in run("ls", "shown/").stdout.splitlines()}
    assert re.search(r" 6 leaves +tree ", rows["shown/many"])
    assert re.search(r" 1 leaf +tree ", rows["shown/one"])
    assert [one["shape"] for one in run_json("ls", "shown/")] == [[6], [1]]
