"""cableway.ray: values, one copy a node, and who may write. Each test is a function of ray_programs.py. Runs in `make test-more`."""

from __future__ import annotations

import pytest
from ray_runs import run


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("sharing", {"CABLEWAY_CACHE_BYTES": "0"}),
        ("values", {}),
        ("idioms", {}),
        ("writing", {"CABLEWAY_CACHE_BYTES": "0"}),
        ("mistakes", {}),
        ("plain", {}),
        ("full", {"CABLEWAY_MAX_BYTES": str(64 << 20), "CABLEWAY_CACHE_BYTES": "0"}),
    ],
)
def test_ray_has(name, environment, tmp_path):
    assert run("ray_programs.py", tmp_path, name, environment=environment).endswith("well\n")
