"""Trees of other nodes with leaves on GPUs: they come to where the reader says, each part once."""

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

PUT = """
ranks = {f"rank{r}": {"w": cw.full(300_000, r + 1.0, device=f"cuda:{r}")} for r in range(2)}
cw.put("m", ranks | {"host": np.arange(3)}, meta={"ranks": 2}, keep=True, hashed=True)
"""


@pytest.fixture(scope="module")
def two(broker_folder: Path) -> Iterator[tuple[Node, Node]]:
    """Two nodes whose processes see two GPUs."""
    with bridge_gpu_support.two(broker_folder) as both:
        run(both[1], PUT)
        yield both


@cuda_support.second_gpu
def test_without_a_device_all_comes_into_host_memory(two: tuple[Node, Node]) -> None:
    run(two[0], """
        t = cw.get("//b/m")
        assert t.device == "cpu" and t.verify() == 3 and t.meta == {"ranks": 2}
        assert (t["rank1.w"].numpy() == 2).all() and t["host"].numpy().tolist() == [0, 1, 2]
    """)  # fmt: skip


@cuda_support.second_gpu
def test_one_device_has_all_of_it(two: tuple[Node, Node]) -> None:
    run(two[0], """
        t = cw.get("//b/m", device="cuda:1")
        assert t.device == "cuda:1" and t.verify() == 3
        assert (t["rank0.w"].to("cpu").numpy() == 1).all() and (t["rank1.w"].to("cpu").numpy() == 2).all()
        assert t["host"].device == "cuda:1"
    """)  # fmt: skip


@cuda_support.second_gpu
def test_each_gpu_there_has_one_here(two: tuple[Node, Node]) -> None:
    run(two[0], """
        t = cw.get("//b/m", device=["cuda:1", "cuda:0"])
        assert [t[f"rank{r}.w"].device for r in range(2)] == ["cuda:1", "cuda:0"]
        assert t["host"].device == "cpu" and t.verify() == 3
        try:
            cw.get("m", device=["cuda:0"])
        except ValueError as error:
            assert "another node" in str(error)
        else:
            raise AssertionError
    """)  # fmt: skip
