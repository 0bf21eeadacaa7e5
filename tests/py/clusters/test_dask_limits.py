"""cableway.dask: all kinds of objects, its two budgets, who gets bytes, and what is told. Runs in `make test-more`."""

from __future__ import annotations

import pytest
from dask_runs import limit, run

pytestmark = limit()


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
    errors = run("dask_programs.py", name, tmp_path, limits)
    if name == "full_store":
        said = errors.count("since shared memory has no room for it")
        assert 1 <= said <= 5, errors  # once a process: four workers and the client


def test_all_kinds_of_objects_go_by_handle(tmp_path):
    run("dask_programs.py", "kinds", tmp_path, {"DASK_CABLEWAY__THRESHOLD": "4 KiB"})


@pytest.mark.parametrize(("mib", "limit"), [("64", "400MiB"), ("256", "1GiB")])
def test_shared_memory_is_no_workers_own(mib, limit, tmp_path):
    run("dask_programs.py", "budgets", tmp_path, {}, mib, limit)


@pytest.mark.parametrize("name", ["as_stock_has_them", "first_bytes_from_disk", "off_the_loop"])
def test_objects_are(name, tmp_path):
    run("dask_values.py", name, tmp_path, {})


@pytest.mark.parametrize("setting", ["CABLEWAY_MAX_BYTES=64MiX", "CABLEWAY_NAMESPACE=a b"])
def test_an_error_of_a_setting_is_told_once_a_process(setting, tmp_path):
    name, value = setting.split("=")
    errors = run("dask_values.py", "told", tmp_path, {name: value})
    said = [line for line in errors.splitlines() if value in line and "sent as bytes" in line]
    assert len(said) == 3, errors  # two workers and the client
