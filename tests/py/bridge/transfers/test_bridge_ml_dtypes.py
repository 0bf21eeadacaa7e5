"""The dtypes of machine learning between nodes: they arrive with their names, and are listed by them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import numpy as np
import pytest
from bridge_support import Node

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

WORDS = [
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn_x2", "int4_x2", "uint4_x2", "complex32",
]  # fmt: skip


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Node, Node]]:
    """Two nodes that know each other."""
    with bridge_support.acquainted("--read", "open/*", "--write", "in/*") as made:
        yield made


def test_an_array_arrives_with_its_dtype(two: tuple[Node, Node]) -> None:
    a, b = two
    for word in WORDS:
        with b.here():
            w = cw.zeros((300, 7), word)
            w.numpy().view("u1")[...] = (
                np.arange(w.nbytes, dtype="u4").astype("u1").reshape(300, -1)
            )
            cw.put(f"open/{word}", w, keep=True)
            content = w.tobytes()
            del w
        with a.here():
            got = cw.get(f"//b/open/{word}", timeout=60)
            assert f" dtype={word} " in repr(got) and got.tobytes() == content
            cw.put(f"//b/in/{word}", got)
        with b.here():
            back = cw.get(f"in/{word}")
            assert f" dtype={word} " in repr(back) and back.tobytes() == content
    listed = {
        row["name"]: row["dtype"]
        for row in json.loads(a.command("ls", "--json", "//b/open/").stdout)
    }
    assert listed == {f"//b/open/{word}": word for word in WORDS}
    assert "bfloat16" in a.command("stat", "//b/open/bfloat16").stdout


def test_a_file_goes_to_another_node(two: tuple[Node, Node], tmp_path: Path) -> None:
    a, b = two
    with a.here():
        cw.put("w", cw.full(5, 2, "bfloat16"), keep=True)
    a.command("cp", "w", "//b/in/copied")
    b.command("get", "in/copied", str(tmp_path / "w.safetensors"))
    assert b'"dtype":"BF16","shape":[5]' in (tmp_path / "w.safetensors").read_bytes()
