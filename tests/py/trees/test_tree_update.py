"""Trees that are put with seal=False, in host memory: which of them can be written, and what others are told."""

from __future__ import annotations

import numpy as np
import pytest
from tree_support import in_process, state

import cableway as cw


def test_leaves_in_host_memory_are_not_updated():
    tree = cw.put("m", state(1.0), seal=False)
    with pytest.raises(ValueError, match="host memory, where no section tells"):
        tree.update({"norm.bias": np.zeros(5)})
    assert tree["norm.bias"].numpy()[1] == 1
    assert tree.content_hash == 0 and tree.verify() == 0


def test_who_got_a_tree_cannot_update_it():
    cw.put("m", state(1.0), seal=False)
    for tree in (cw.get("m"), cw.put("sealed", state(1.0))):
        with pytest.raises(ValueError, match="seal=False"):
            tree.update({"norm.bias": np.zeros(5)})
    told = in_process("""
        import cableway as cw
        try:
            cw.get("m").update({})
        except ValueError as error:
            print(error)
    """)
    assert "the process that put a tree with seal=False" in told


def test_a_closed_tree_is_not_updated():
    tree = cw.put("m", state(1.0), seal=False)
    tree.close()
    with pytest.raises(ValueError, match="closed"):
        tree.update({})


@pytest.mark.parametrize("given", [0, "no"])
def test_seal_is_yes_or_no(given):
    with pytest.raises(TypeError, match="seal must be True, False or None"):
        cw.put("m", state(), seal=given)


def test_what_does_not_go_with_it_is_refused():
    with pytest.raises(ValueError, match="leave hashed= and remote= out"):
        cw.put("m", state(), seal=False, hashed=True)
    with pytest.raises(ValueError, match="leave hashed= and remote= out"):
        cw.put("m", state(), seal=False, remote="read")
    x = cw.put("x", np.ones(3), seal=False)  # an array is open for writing by itself
    x[0] = 2
    assert cw.get("x")[0] == 2
    cw.put("m", state(), seal=False)
    with pytest.raises(ValueError, match="seal=False"):
        cw.get("m", swappable=True)


def test_its_leaves_are_copied_into_other_trees():
    cw.put("m", state(1.0), seal=False)
    found = cw.get("m")
    other = cw.put("other", {"b": found["norm.bias"]})
    assert other["b"].numpy().ctypes.data != found["norm.bias"].numpy().ctypes.data
