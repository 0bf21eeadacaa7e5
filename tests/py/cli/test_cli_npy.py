"""`cableway put` and `cableway get`: every kind of .npy file comes back as it was, every bad one is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from cli_support import FAILED, run

import cableway as cw

ARRAYS = {
    "float": np.linspace(0, 1, 1000),
    "big endian": np.arange(7, dtype=">i4"),
    "bool": np.array([[True, False]]),
    "complex": np.arange(4, dtype="c16"),
    "text": np.array(["ä", "bcd"]),
    "bytes": np.array([b"x", b"yz"]),
    "time": np.array(["2026-01-01", "2026-01-02"], dtype="M8[ns]"),
    "structured": np.array([(1, (2.5, "x"))], [("a", "<i2"), ("b", [("c", "<f8"), ("d", "U3")])]),
    "sub-array": np.zeros(3, [("m", "<f4", (2, 3)), ("n", "u1", 4)]),
    "padded": np.zeros(2, np.dtype([("a", "u1"), ("b", "<f8")], align=True)),
    "titled": np.zeros(2, [(("a title, with ) and '", "a"), "<f8")]),
    "unicode fields": np.zeros(2, [("größe", "<f8"), ("幅", "<i4")]),
    "scalar": np.array(3.5),
    "empty": np.zeros((3, 0, 2)),
    "fortran": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "large": np.random.default_rng(1).integers(0, 255, 5_000_000, "u1"),
    "many axes": np.zeros((1,) * 32),
}


@pytest.mark.parametrize("key", ARRAYS)
def test_a_file_comes_back_as_it_was(key: str, tmp_path: Path) -> None:
    array = ARRAYS[key]
    with pytest.warns(UserWarning) if "unicode" in key else contextlib.nullcontext():
        np.save(tmp_path / "in.npy", array)
    run("put", "a", str(tmp_path / "in.npy"))
    seen = cw.get("a").numpy()
    assert seen.dtype == array.dtype
    np.testing.assert_array_equal(seen, array)
    run("get", "a", str(tmp_path / "out.npy"))
    back = np.load(tmp_path / "out.npy")
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.flags.f_contiguous == array.flags.f_contiguous
    assert back.flags.c_contiguous == array.flags.c_contiguous
    np.testing.assert_array_equal(back, array)
    assert ((tmp_path / "out.npy").stat().st_size - array.nbytes) % 64 == 0


@pytest.mark.parametrize(
    "kind",
    [
        [(f"f{i}", "<f8") for i in range(300)],
        {"names": ["b", "a"], "formats": ["<f8", "<f8"], "offsets": [0, 4], "itemsize": 16},
    ],
    ids=["300 fields", "fields that overlap"],
)
def test_a_dtype_that_the_file_cannot_tell_is_an_error(kind: object, tmp_path: Path) -> None:
    """And no file that nobody can read."""
    cw.put("a", np.zeros(2, np.dtype(kind)))
    assert "numpy.save" in run("get", "a", str(tmp_path / "out.npy"), expect=FAILED).stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_versions_of_the_format_are_read(version: tuple[int, int], tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3)
    with open(tmp_path / "in.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    run("put", "a", str(tmp_path / "in.npy"))
    np.testing.assert_array_equal(cw.get("a").numpy(), array)


def test_a_strided_view_is_written_in_c_order(tmp_path: Path) -> None:
    array = np.arange(4 * 6 * 5, dtype="<i4").reshape(4, 6, 5)
    base = cw.put("base", array)
    for number, view in enumerate(
        [base[::2], base[:, ::-1], base[::-2, 1:4, ::-1], base[:, :, 2], base[3]]
    ):
        cw.put("view", view)
        run("get", "view", str(tmp_path / f"{number}.npy"))
        back = np.load(tmp_path / f"{number}.npy")
        np.testing.assert_array_equal(back, view.numpy())
        assert back.flags.c_contiguous


def npy_bytes(header: str, version: int = 1, data: bytes = b"") -> bytes:
    """An .npy file with any header."""
    text = header.encode("utf-8")
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def plain_header(descr: str = "'<f8'", order: str = "False", shape: str = "(2,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


BAD_FILES = {
    "a text": (b"hello, world, this is a text", "no .npy file"),
    "nothing": (b"", "cut off"),
    "half a header": (npy_bytes(plain_header())[:30], "cut off"),
    "half of the data": (npy_bytes(plain_header(), data=b"12345678"), "cut off"),
    "objects": (npy_bytes(plain_header("'|O'"), data=bytes(16)), "Python objects"),
    "objects in a field": (npy_bytes(plain_header("[('a', '|O')]"), data=bytes(16)), "objects"),
    "version 9": (npy_bytes(plain_header(), version=9), "version 9"),
    "an endless header": (
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100,
        "header of 4294967295 bytes",
    ),
    "no such dtype": (npy_bytes(plain_header("'<q7'"), data=bytes(16)), "dtype"),
    "code": (npy_bytes(plain_header("__import__('os')"), data=bytes(16)), "dtype"),
    "a negative axis": (npy_bytes(plain_header(shape="(-2,)"), data=bytes(16)), "damaged"),
    "more bytes than there are": (npy_bytes(plain_header(shape="(2**62,)")), "damaged"),
    "more bytes than can be counted": (
        npy_bytes(plain_header(shape="(4611686018427387904, 4611686018427387904)")),
        "63 bits",
    ),
    "too many axes": (npy_bytes(plain_header(shape="(" + "1, " * 65 + ")")), "64 axes"),
    "a key twice": (npy_bytes("{'shape': (), 'shape': ()}"), "repeated"),
    "a key missing": (npy_bytes("{'shape': (), }"), "lacks"),
    "more than the dictionary": (npy_bytes(plain_header() + "x"), "goes on"),
    "an open string": (npy_bytes("{'descr': '<f8"), "damaged"),
    "an open list": (npy_bytes("{'descr': [('a', '<f8'"), "damaged"),
    "nested too deep": (npy_bytes(plain_header("[('a', " * 200 + "'<f8'" + ")]" * 200)), "deep"),
}


@pytest.mark.parametrize("key", BAD_FILES)
def test_a_bad_file_is_refused_with_a_reason(key: str, tmp_path: Path) -> None:
    content, reason = BAD_FILES[key]
    (tmp_path / "bad.npy").write_bytes(content)
    done = run("put", "bad", str(tmp_path / "bad.npy"), expect=FAILED)
    assert reason in done.stderr
    assert "bad" not in cw.names()
    run("put", "bad", "-", expect=FAILED, input=content, text=False, stdin=None)
