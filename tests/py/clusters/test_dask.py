"""cableway.dask: values, one copy a node, and handles. Each test is a function of dask_programs.py."""

from __future__ import annotations

import pytest
from dask_runs import run


@pytest.mark.parametrize("name", ["one_copy", "by_tls", "handles", "work_in_a_task"])
def test_dask_has(name, tmp_path):
    run("dask_programs.py", name, tmp_path, {})


def test_all_kinds_of_objects_go_by_handle(tmp_path):
    run("dask_programs.py", "kinds", tmp_path, {"DASK_CABLEWAY__THRESHOLD": "4 KiB"})
