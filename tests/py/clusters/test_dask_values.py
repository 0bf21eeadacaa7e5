"""cableway.dask: the first bytes on every route, handles after the broker's death, memory that goes back, and settings.

Runs in `make test-more`.
"""

from __future__ import annotations

import pytest
from dask_runs import interpreter, limit, run, run_words

pytestmark = limit()


@pytest.mark.parametrize("name", ["first_bytes", "comes_back", "names_go_with_blocks"])
def test_dask_has(name, tmp_path):
    run("dask_values.py", name, tmp_path, {})


def test_memory_goes_back(tmp_path):
    run("dask_values.py", "memory_goes_back", tmp_path, {"CABLEWAY_CACHE_BYTES": "0"})


def test_a_bad_threshold_is_named(tmp_path):
    program = "import cableway.dask"
    for bad, parsed in (("much", "much"), ("0", 0), ("-1 MiB", "-1 MiB"), ("True", True)):
        for name in ("DASK_CABLEWAY__THRESHOLD", "DASK_CABLEWAY__BRIDGE_THRESHOLD"):
            environment = {name: bad}
            _, errors = run_words([interpreter(), "-c", program], tmp_path, environment, fails=True)
            assert name in errors, errors
            assert f"is {parsed!r}, which is no size" in errors, errors


def test_a_bad_setting_after_the_import_ends_nothing(tmp_path):
    printed = run("dask_values.py", "a_bad_setting_after_the_import", tmp_path, {})
    assert "which is no size" in printed, printed


def test_a_bad_setting_of_sharing_is_named(tmp_path):
    words = [interpreter(), "-c", "import cableway.dask"]
    _, errors = run_words(words, tmp_path, {"DASK_CABLEWAY__GPU_SHARE": "often"}, fails=True)
    assert "DASK_CABLEWAY__GPU_SHARE" in errors and "is 'often': write true or false" in errors


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
