"""cableway.dask: the first bytes on every route, handles after the broker's death, memory that goes back, tasks' arrays in shared memory
from the beginning (`cableway.allocate`), and settings.

Runs in `make test-more`.
"""

from __future__ import annotations

import pytest
from dask_runs import interpreter, limit, run, run_words

pytestmark = limit()
ALLOCATE = {"DASK_CABLEWAY__ALLOCATE": "true"}


@pytest.mark.parametrize("environment", [{}, ALLOCATE], ids=["", "allocate"])
@pytest.mark.parametrize("name", ["first_bytes", "comes_back", "names_go_with_blocks"])
def test_dask_has(name, environment, tmp_path):
    run("dask_values.py", name, tmp_path, environment)


@pytest.mark.parametrize(
    "name",
    [
        "nothing_is_copied",
        "orders_and_types",
        "what_somebody_has_is_copied",
        "a_running_task_has_its_argument",
        "tasks_may_fork",
        "many_at_once",
    ],
)
def test_allocated_arrays_are(name, tmp_path):
    run("dask_allocated.py", name, tmp_path, ALLOCATE)


def test_used_memory_is_reused(tmp_path):
    run("dask_allocated.py", "used_memory_is_reused", tmp_path, {})


def test_used_memory_is_not_reused(tmp_path):
    run("dask_allocated.py", "never", tmp_path, {"DASK_CABLEWAY__ALLOCATE": "false"})


def test_allocated_arrays_without_room(tmp_path):
    run("dask_allocated.py", "full_memory", tmp_path, {**ALLOCATE, "CABLEWAY_MAX_BYTES": "64 MiB"})


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


@pytest.mark.parametrize(
    ("name", "words"), [("GPU_SHARE", "true or false"), ("ALLOCATE", "reuse, true or false")]
)
def test_a_bad_switch_is_named(name, words, tmp_path):
    program = [interpreter(), "-c", "import cableway.dask"]
    _, errors = run_words(program, tmp_path, {f"DASK_CABLEWAY__{name}": "often"}, fails=True)
    assert f"DASK_CABLEWAY__{name}" in errors and f"is 'often': write {words}" in errors


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
