"""`cableway put` and `get` with .safetensors files: every dtype of the format comes back as it was, every bad file is refused;
.npy refuses what it would lose.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cli_support import FAILED, run, run_json

import cableway as cw
from cableway._core import words

FILE_NAMES = {
    "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "float4_e2m1fn_x2": "F4", "|b1": "BOOL", "|i1": "I8",
    "<i2": "I16", "<i4": "I32", "<i8": "I64", "|u1": "U8", "<u2": "U16", "<u4": "U32", "<u8": "U64", "<f2": "F16",
    "<f4": "F32", "<f8": "F64", "<c8": "C64",
}  # fmt: skip


def written(header: Any, data: bytes = b"") -> bytes:
    """A file with that header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def parts(file: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file, and its data."""
    data = file.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), data[8 + length :]


@pytest.mark.parametrize("dtype", FILE_NAMES)
def test_an_array_is_written_and_read_with_its_dtype(dtype: str, tmp_path: Path) -> None:
    w = cw.empty((2, 3), dtype)
    w.numpy().view("u1")[...] = np.arange(w.nbytes, dtype="u1").reshape(2, -1) % 2
    cw.put("model/ä", w)
    run("get", "model/ä", str(tmp_path / "x.safetensors"))
    header, data = parts(tmp_path / "x.safetensors")
    shape = [2, 6] if dtype.startswith("float4") else [2, 3]  # the format counts numbers
    assert header == {
        "model/ä": {"dtype": FILE_NAMES[dtype], "shape": shape, "data_offsets": [0, w.nbytes]}
    }
    assert data == w.tobytes()
    assert ((tmp_path / "x.safetensors").stat().st_size - w.nbytes) % 64 == 0
    told = run_json("put", "back", str(tmp_path / "x.safetensors"))
    assert (told["dtype"], told["shape"], told["bytes"]) == (dtype, [2, 3], w.nbytes)
    back = cw.get("back")
    assert (
        back.shape == (2, 3) and words.same(back.dtype, w.dtype) and back.tobytes() == w.tobytes()
    )


@pytest.mark.parametrize("word", ["bfloat16", "float4_e2m1fn_x2", "complex32"])
def test_ls_and_stat_show_the_word(word: str) -> None:
    cw.put("shown", cw.zeros((2, 3), word))
    assert word in run("stat", "shown").stdout and run_json("stat", "shown")["dtype"] == word
    row = next(row for row in run("ls").stdout.splitlines() if row.startswith("shown"))
    assert f" {word} " in row and "..." not in row
    assert [one["dtype"] for one in run_json("ls", "shown")] == [word]


def test_npy_refuses_what_it_would_lose(tmp_path: Path) -> None:
    cw.put("b", cw.zeros(3, "bfloat16"))
    cw.put("i", cw.zeros(3, "int4_x2"))
    told = run("get", "b", str(tmp_path / "b.npy"), expect=FAILED).stderr
    assert "no dtype bfloat16" in told and ".safetensors" in told
    for file in ("i.npy", "i.safetensors"):
        told = run("get", "i", str(tmp_path / file), expect=FAILED).stderr
        assert "int4_x2" in told and "numpy.save" in told
    assert list(tmp_path.iterdir()) == []
    for lost in (np.zeros(3, ml_dtypes.bfloat16), np.zeros(3, ml_dtypes.float8_e4m3fn)):
        np.save(tmp_path / "lost.npy", lost)
        told = run("put", "lost", str(tmp_path / "lost.npy"), expect=FAILED).stderr
        assert "numpy.save()" in told and ".safetensors" in told
    np.save(tmp_path / "void.npy", np.zeros(3, "V2"))
    run("put", "void", str(tmp_path / "void.npy"))
    assert cw.get("void").dtype == np.dtype("V2")


def test_order_strides_and_scalars(tmp_path: Path) -> None:
    file = str(tmp_path / "x.safetensors")
    values = np.arange(24, dtype="f4").reshape(4, 6)
    for array in (np.asfortranarray(values), values[::2, ::-1], np.array(3.5), np.zeros((3, 0, 2))):
        cw.put("x", cw.asarray(values)[::2, ::-1] if array.shape == (2, 6) else array)
        run("get", "x", file)
        run("put", "y", file)
        assert (cw.get("y").numpy() == array).all() and cw.get("y").shape == array.shape
        assert cw.get("y").flags.c_contiguous
    for bad in (np.zeros(2, ">f4"), np.zeros(2, [("a", "f4")]), np.zeros(2, "c16"), np.array("x")):
        cw.put("x", bad)
        assert "no dtype" in run("get", "x", str(tmp_path / "z.safetensors"), expect=FAILED).stderr
    cw.put("__metadata__", values)
    assert (
        "another name"
        in run("get", "__metadata__", str(tmp_path / "z.safetensors"), expect=FAILED).stderr
    )
    assert not (tmp_path / "z.safetensors").exists()


def test_metadata_and_blanks_are_read(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    }
    (tmp_path / "m.safetensors").write_bytes(
        written(json.dumps(header).encode() + b"   ", b"\0" * 8)
    )
    run("put", "m", str(tmp_path / "m.safetensors"))
    assert cw.get("m").tolist() == [0, 0]


NONE = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD = {
    "empty": (b"", "cut off"),
    "short": (b"\1\2", "cut off"),
    "no header": (struct.pack("<Q", 0), "is no .safetensors file"),
    "length of 2^63": (struct.pack("<Q", 1 << 63) + b"{}", "is no .safetensors file"),
    "header cut off": (struct.pack("<Q", 400) + b"{}", "cut off in its header"),
    "not JSON": (written(b"{]      "), "where a text must be"),
    "a list": (written(b"[]      "), "does not begin with {"),
    "a blank first": (written(b" {}     "), "does not begin with {"),
    "repeated": (written(b'{"x":%s,"x":%s}' % (NONE, NONE)), 'has the tensor "x" twice'),
    "none": (written({}), "holds 0 arrays"),
    "two": (written({"x": ONE, "y": {**ONE, "data_offsets": [8, 16]}}, b"\0" * 16), "holds 2 arrays"),
    "no object": (written({"x": 1}), "no object"),
    "odd metadata": (written({"__metadata__": {"a": 1}, "x": ONE}, b"\0" * 8), "where a text must be"),
    "no dtype": (written({"x": {"shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8), "without dtype"),
    "more keys": (written({"x": {**ONE, "more": 1}}, b"\0" * 8), "other fields than dtype"),
    "unknown dtype": (written({"x": {**ONE, "dtype": "F6_E2M3"}}, b"\0" * 8), "F6_E2M3"),
    "empty dtype": (written({"x": {**ONE, "dtype": ""}}, b"\0" * 8), "which cableway lacks"),
    "shape no list": (written({"x": {**ONE, "shape": 2}}, b"\0" * 8), "no list"),
    "below 0": (written({"x": {**ONE, "shape": [-2]}}, b"\0" * 8), "a whole number from 0 on"),
    "a half": (written({"x": {**ONE, "shape": [2.0]}}, b"\0" * 8), "a whole number from 0 on"),
    "true": (written({"x": {**ONE, "shape": [True]}}, b"\0" * 8), "a whole number from 0 on"),
    "too many axes": (written({"x": {**ONE, "shape": [1] * 65}}, b"\0" * 8), "more than 64 axes"),
    "overflow": (written({"x": {**ONE, "shape": [1 << 40, 1 << 40]}}, b"\0" * 8), "63 bits"),
    "odd F4": (written({"x": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, b"\0"), "odd"),
    "F4 without axes": (written({"x": {"dtype": "F4", "shape": [], "data_offsets": [0, 1]}}, b"\0"), "odd"),
    "other bytes": (written({"x": {**ONE, "shape": [3]}}, b"\0" * 8), "data_offsets"),
    "begins later": (written({"x": {**ONE, "data_offsets": [4, 12]}}, b"\0" * 12), "behind a hole"),
    "one offset": (written({"x": {**ONE, "data_offsets": [8]}}, b"\0" * 8), "data_offsets"),
    "data cut off": (written({"x": ONE}, b"\0" * 7), "cut off"),
    "data goes on": (written({"x": ONE}, b"\0" * 9), "behind its data"),
}  # fmt: skip


@pytest.mark.parametrize("key", BAD)
def test_a_bad_file_is_refused_with_the_reason(key: str, tmp_path: Path) -> None:
    content, reason = BAD[key]
    (tmp_path / "bad.safetensors").write_bytes(content)
    told = run("put", "bad", str(tmp_path / "bad.safetensors"), expect=FAILED).stderr
    assert reason in told and "bad.safetensors" in told, told
    assert "bad" not in cw.names()


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    import os
    import threading

    fifo = tmp_path / "pipe.safetensors"
    os.mkfifo(fifo)
    content = written(
        {"x": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}, bytes(range(8))
    )
    writer = threading.Thread(target=fifo.write_bytes, args=(content,))
    writer.start()
    run("put", "piped", str(fifo))
    writer.join()
    assert (
        cw.get("piped").tobytes() == bytes(range(8))
        and words.word(cw.get("piped").dtype) == "bfloat16"
    )
