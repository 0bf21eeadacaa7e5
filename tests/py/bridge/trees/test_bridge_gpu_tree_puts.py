"""Trees with leaves on GPUs that are put onto another node, and trees that are put onto its GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import bridge_gpu_support
import bridge_support
import cuda_support
import pytest
from bridge_gpu_support import run
from bridge_support import Node

cuda_support.require()
pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

LEAVES = """
leaves = {"gpu": cw.full(300_000, 2.0, device="cuda:0"), "small": cw.full(3, 1.0, device="cuda:0"), "host": np.arange(3)}
"""
SAME = """
assert (t["gpu"].to("cpu").numpy() == 2).all() and (t["small"].to("cpu").numpy() == 1).all()
assert t["host"].to("cpu").numpy().tolist() == [0, 1, 2] and t.meta == {"n": 1}
"""


@pytest.fixture(scope="module")
def two(broker_folder: Path) -> Iterator[tuple[Node, Node]]:
    """Two nodes whose processes see two GPUs."""
    with bridge_gpu_support.two(broker_folder) as both:
        yield both


def test_leaves_of_gpus_go_into_host_memory_there(two: tuple[Node, Node]) -> None:
    put = 't = cw.put("//b/h", leaves, meta={"n": 1}, keep=True, hashed=True)\nassert t["gpu"].device == "cuda:0"\n'
    run(two[0], LEAVES + put)
    run(two[1], 't = cw.get("h")\nassert t.device == "cpu" and t.verify() == 3\n' + SAME)


def test_all_of_it_goes_onto_one_gpu_there(two: tuple[Node, Node]) -> None:
    put = 'cw.put("//b/g", leaves, meta={"n": 1}, keep=True, hashed=True, device="cuda:0")\n'
    run(two[0], LEAVES + put)
    run(two[1], 't = cw.get("g")\nassert t.device == "cuda:0" and t.verify() == 3\n' + SAME)


@cuda_support.second_gpu
def test_another_gpu_there(two: tuple[Node, Node]) -> None:
    run(two[0], LEAVES + 'cw.put("//b/g1", leaves, meta={"n": 1}, keep=True, device="cuda:1")\n')
    run(two[1], 't = cw.get("g1")\nassert t.device == "cuda:1"\n' + SAME)


def test_a_gpu_that_is_not_there_is_told(two: tuple[Node, Node]) -> None:
    run(two[0], """
        try:
            cw.put("//b/none", {"x": np.arange(3)}, device="cuda:9")
        except cw.DeviceError as error:
            assert "9" in str(error), error
        else:
            raise AssertionError
    """)  # fmt: skip
    run(two[1], 'assert "none" not in cw.names()\n')
