"""cableway.dask: the first bytes on every route, objects as stock Dask has them, memory that goes back, and what is told."""

from __future__ import annotations

import pytest
from dask_runs import interpreter, run, run_words


@pytest.mark.parametrize(
    "name",
    ["first_bytes", "first_bytes_from_disk", "as_stock_has_them", "comes_back", "off_the_loop"],
)
def test_dask_has(name, tmp_path):
    run("dask_values.py", name, tmp_path, {})


def test_memory_goes_back(tmp_path):
    run("dask_values.py", "memory_goes_back", tmp_path, {"CABLEWAY_CACHE_BYTES": "0"})


@pytest.mark.parametrize("setting", ["CABLEWAY_MAX_BYTES=64MiX", "CABLEWAY_NAMESPACE=a b"])
def test_an_error_of_a_setting_is_told_once_a_process(setting, tmp_path):
    name, value = setting.split("=")
    errors = run("dask_values.py", "told", tmp_path, {name: value})
    said = [line for line in errors.splitlines() if value in line and "sent as bytes" in line]
    assert len(said) == 3, errors  # two workers and the client


def test_a_bad_threshold_is_named(tmp_path):
    program = "import cableway.dask"
    for bad, parsed in (("much", "much"), ("0", 0), ("-1 MiB", "-1 MiB"), ("True", True)):
        environment = {"DASK_CABLEWAY__THRESHOLD": bad}
        _, errors = run_words([interpreter(), "-c", program], tmp_path, environment, fails=True)
        assert "DASK_CABLEWAY__THRESHOLD" in errors, errors
        assert f"is {parsed!r}, which is no size" in errors, errors


def test_shared_bytes_takes_objects(tmp_path):
    program = """
import cableway.dask, distributed
for wrong in (None, distributed.Future.__new__(distributed.Future)):
    try:
        cableway.dask.shared_bytes(wrong)
    except TypeError as error:
        assert "None" in str(error) or "Future" in str(error)
    else:
        raise SystemExit("no error")
assert cableway.dask.shared_bytes([1]) == 0
"""
    run_words([interpreter(), "-c", program], tmp_path, {})
