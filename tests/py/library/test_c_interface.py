"""The promises of cableway.h to who calls it wrongly: a code, never the end of the process; and one grammar of dtypes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_walk import prototypes

import cableway
from cableway._core import dtypes
from cableway._core.library import ffi, lib

WALK = Path(__file__).with_name("c_walk.py")
RUNS_MOST = 200


def test_every_function_of_the_header_is_walked_over() -> None:
    walked = {name for _, name, _ in prototypes()}
    exported = {name for name in dir(lib) if name.startswith("cw_")}
    assert walked == exported


def test_the_static_library_shows_what_the_header_declares_and_nothing_else() -> None:
    archive = Path(sys.prefix).parent / "libcableway.a"
    if not archive.exists():
        pytest.skip("this Python's environment lies in no build folder")
    listed = subprocess.run(
        ["nm", "-g", "--defined-only", archive], capture_output=True, text=True, check=True
    )
    shown = {line.split()[2] for line in listed.stdout.splitlines() if len(line.split()) == 3}
    assert shown == {name for _, name, _ in prototypes()}


def test_a_process_has_the_library_once() -> None:
    package = Path(cableway.__file__).parent
    maps = Path("/proc/self/maps").read_text().split()
    mapped = {Path(path) for path in maps if "libcableway" in path}
    assert mapped == {package / "libcableway-python.so.0"}
    for extension in ("_cableway", "_dispatch"):
        (built,) = package.glob(f"{extension}.*so")
        listed = subprocess.run(["nm", "-D", built], capture_output=True, text=True, check=True)
        rows = [line.split() for line in listed.stdout.splitlines()]
        ours = {row[-1]: row[-2] for row in rows if row[-1].startswith("cw_")}
        assert len(ours) > 20 and set(ours.values()) == {"U"}, ours


def test_the_version_is_told_as_text_and_as_a_number() -> None:
    major, minor, patch = map(int, ffi.string(lib.cw_version()).decode().split("."))
    assert lib.cw_version_number() == lib.CW_VERSION_NUMBER == 10000 * major + 100 * minor + patch


def test_no_wrong_argument_ends_the_process_and_each_is_told() -> None:
    """NULL and numbers out of range, in each parameter of each function. A run ends where the process dies."""
    wrong: list[str] = []
    first = 0
    for _ in range(RUNS_MOST):
        run = subprocess.run(
            [sys.executable, WALK, str(first)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = run.stdout.splitlines()
        wrong += [
            f"{begin}: {end}"
            for begin, end in zip(lines[::2], lines[1::2], strict=False)
            if not end.startswith("end right")
        ]
        if run.returncode == 0:
            break
        assert len(lines) % 2 == 1, run.stderr
        wrong.append(f"{lines[-1]}: the process ended with {run.returncode}")
        first = int(lines[-1].split()[1]) + 1
    assert wrong == []


def size_in_c(text: str) -> int | None:
    out = ffi.new("uint32_t *")
    return None if lib.cw_dtype_size(text.encode(), out) else int(out[0])


@pytest.mark.parametrize(
    "dtype",
    [
        *(
            "?",
            "i1",
            "<i2",
            ">i4",
            "u8",
            "f2",
            "f8",
            "f16",
            "c8",
            "c32",
            "S0",
            "U7",
            "V3",
            "M8",
            "m8[25s]",
        ),
        [("a", "<f4"), ("b", "i1")],
        [("a", "<f4", (2, 3)), ("b", [("c", "u1"), ("d", ">i2", (2,))])],
        [(("title", "n'ame"), "f8"), ("q\"'\\", "i4"), ("é", "V2")],
        {"names": ["a", "b"], "formats": ["i4", "f8"], "offsets": [8, 0], "itemsize": 20},
        np.dtype([("a", np.dtype([("x", "i1"), ("y", "f8")], align=True), (2,))], align=True),
        [],
    ],
)
def test_c_takes_what_python_says_of_a_dtype(dtype: Any) -> None:
    wanted = np.dtype(dtype)
    text = dtypes.encode(wanted)
    assert size_in_c(text) == wanted.itemsize
    assert dtypes.decode(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "[('x', '<f4'), ('x', '<f4')]",
        "[('x', '<f4'), ('\\x78', '<f4')]",
        "[('x', '<f4'), ('', '<f4'), ('', '<i4')]",
        "[('x', '<f4'), ('', '|V4'), ('', '<i4'), ('', '|V2')]",
        "[('', '<f4', (2,)), ('', '<i4')]",
        "[('', '<f4', ()), ('', '<i4')]",
        "[('', []), ('', '<i4')]",
        "[(('t', ''), '|V4'), ('', '<i4')]",
        "[(('x', 'x'), '<f4')]",
        "[(('y', 'x'), '<f4'), ('y', '<f4')]",
        "[(('y', 'x'), '<f4'), (('y', 'z'), '<f4')]",
        "[('x', [('x', '<f4')]), ('y', [('x', '<f4')])]",
        "[('\\ud800', '<f4'), ('\\ud801', '<f4')]",
        "{'names': ['a', 'a'], 'formats': ['<i4', '<i4'], 'offsets': [0, 4], 'itemsize': 8}",
        "{'names': ['', 'a'], 'formats': ['|V4', '<i4'], 'offsets': [0, 4], 'itemsize': 8}",
        "{'names': ['', ''], 'formats': ['|V4', '<i4'], 'offsets': [0, 4], 'itemsize': 8}",
        "{'names': ['a'], 'formats': ['<i4'], 'offsets': [0], 'itemsize': 4, 'titles': ['a']}",
        "{'names': ['a', 'b'], 'formats': ['<i4', '<i4'], 'offsets': [0, 4], 'itemsize': 8, "
        "'titles': [None, 'a']}",
        "[('\\n\\t\\x00\\u00e9\\U0001f600', '<f4')]",
    ],
)
def test_c_and_numpy_agree_on_which_names_a_dtype_may_have(text: str) -> None:
    try:
        wanted = dtypes._build(ast.literal_eval(text)).itemsize
    except ValueError:
        wanted = None
    assert size_in_c(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "[('\\N{DASH}', '<f4')]",
        "[('x', '<f4'), ('x', '<f4')]",
        "zz",
        "f8",
        "float64",
        "|O",
        "<f3",
        "<f8 ",
        "<M8[xs]",
        "[('a', '|O')]",
        "[('a',)]",
        "[1]",
        "[(1, '<f8')]",
    ]
    + [
        "{'names': ['a'], 'formats': ['<f8'], 'offsets': [4], 'itemsize': 8}",
        "('<f8', -1)",
        "[" * 2000,
    ],
)
def test_python_refuses_what_c_refuses(text: str) -> None:
    assert size_in_c(text) is None
    with pytest.raises(cableway.Error, match="dtype that cannot be"):
        dtypes.decode(text)
