"""cableway.ray between nodes, each with a broker and a bridge. Each test is a function of ray_nodes.py. Runs in `make test-more`."""

from __future__ import annotations

import json

import bridge_support
import pytest
from dask_runs import limit
from ray_runs import SECONDS, run

pytestmark = [
    limit(SECONDS),
    pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking()),
]


@pytest.mark.parametrize(
    ("name", "may_read"),
    [("once_a_node", "ray/*"), ("maker_killed", "ray/*"), ("refused", "other/*")],
)
def test_between_nodes(name, may_read, tmp_path):
    with bridge_support.net("a", "b") as made:
        made.acquaint("--read", may_read)
        made.start()
        told = {
            node: {key: of.environment[key] for key in ("CABLEWAY_DIR", "CABLEWAY_NODE_DIR")}
            for node, of in made.nodes.items()
        }
        assert run("ray_nodes.py", tmp_path, name, json.dumps(told)).endswith("well\n")
