"""cableway.dask: all kinds of objects, its two budgets, and who gets bytes. Runs in `make test-more`."""

from __future__ import annotations

import pytest
from dask_runs import run


@pytest.mark.parametrize(
    ("name", "max_bytes"),
    [
        ("by_tls", None),
        ("others_get_bytes", None),
        ("full_store", 64 << 20),
        ("spills_when_shared_memory_is_short", 80 << 20),
    ],
)
def test_dask_has(name, max_bytes, tmp_path):
    limits = {} if max_bytes is None else {"CABLEWAY_MAX_BYTES": str(max_bytes)}
    run("dask_programs.py", name, tmp_path, limits)


def test_all_kinds_of_objects_go_by_handle(tmp_path):
    run("dask_programs.py", "kinds", tmp_path, {"DASK_CABLEWAY__THRESHOLD": "4 KiB"})


@pytest.mark.parametrize(("mib", "limit"), [("64", "400MiB"), ("256", "1GiB")])
def test_shared_memory_is_no_workers_own(mib, limit, tmp_path):
    run("dask_programs.py", "budgets", tmp_path, {}, mib, limit)
