"""cableway.ray: values, one copy a node, who may write, and between nodes. Each test is a function of ray_programs.py, ray_torch.py or
ray_nodes.py. Runs in `make test-more`.
"""

from __future__ import annotations

import json
import re
import subprocess

import bridge_support
import pytest
from dask_runs import ROOT, interpreter, limit
from ray_runs import PLACE, SECONDS, run

pytestmark = limit(SECONDS)


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("sharing", {"CABLEWAY_CACHE_BYTES": "0"}),
        ("values", {}),
        ("subclasses", {}),
        ("objects", {}),
        ("one_store", {}),
        ("priority", {}),
        ("starts_again", {"RAY_raylet_start_wait_time_s": "1"}),
        ("sessions", {"CABLEWAY_CACHE_BYTES": "0"}),
        ("idioms", {}),
        ("many", {"CABLEWAY_CACHE_BYTES": "0"}),
        ("writing", {"CABLEWAY_CACHE_BYTES": "0"}),
        ("mistakes", {}),
        ("constructors", {}),
        ("by_name", {}),
        ("dropped", {}),
        ("plain", {}),
        ("full", {"CABLEWAY_MAX_BYTES": str(64 << 20), "CABLEWAY_CACHE_BYTES": "0"}),
    ],
)
def test_ray_has(name, environment, tmp_path):
    assert run("ray_programs.py", tmp_path, name, environment=environment).endswith("well\n")


@pytest.mark.parametrize("name", ["values", "beside_gloo"])
def test_ray_has_tensors(name, tmp_path):
    if subprocess.run([interpreter(PLACE), "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("PyTorch is not installed in the environment of Ray")
    assert run("ray_torch.py", tmp_path, name).endswith("well\n")


def test_the_guides_program_prints_what_the_page_says(tmp_path):
    page = (ROOT / "docs/guide/ray.md").read_text()
    code, output = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", page, re.DOTALL).groups()
    program = tmp_path / "program.py"
    program.write_text(code)
    assert run(program, tmp_path) == output


def test_examples_of_its_page_in_the_reference(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import doctest, cableway.ray\nprint(doctest.testmod(cableway.ray))\n")
    assert re.match(r"TestResults\(failed=0, attempted=[1-9]", run(program, tmp_path))


@pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())
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
