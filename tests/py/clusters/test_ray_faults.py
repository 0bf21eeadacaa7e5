"""cableway.ray when processes are killed. Each test is a function of ray_faults.py. Runs in `make test-more`."""

from __future__ import annotations

import pytest
from dask_runs import limit
from ray_runs import SECONDS, run

pytestmark = limit(SECONDS)


@pytest.mark.parametrize(
    "name",
    [
        "maker_killed",
        "maker_restarted",
        "reader_killed",
        "transfers_failed",
        "owner_killed",
        "lives_on",
        "broker_killed",
        "broker_killed_after_put",
        "broker_killed_amid_reads",
    ],
)
def test_ray_lives_through(name, tmp_path):
    printed = run("ray_faults.py", tmp_path, name, environment={"CABLEWAY_CACHE_BYTES": "0"})
    assert printed.endswith("well\n")


def test_ray_without_a_broker_uses_its_own_store(tmp_path):
    environment = {"CABLEWAY_DIR": "/nonexistent/folder"}
    assert run("ray_faults.py", tmp_path, "no_broker", environment=environment).endswith("well\n")


def test_ray_may_learn_late_of_a_death(tmp_path):
    """A call of a dead actor says that it is unavailable then, as on a busy machine."""
    environment = {
        "CABLEWAY_CACHE_BYTES": "0",
        "CABLEWAY_TEST_RAY_ROUNDS": "3",
        "RAY_timeout_ms_task_wait_for_death_info": "1",
    }
    printed = run("ray_faults.py", tmp_path, "reader_killed", environment=environment)
    assert printed.endswith("well\n")
