"""cableway.dask: values, one copy a node, and handles. Each test is a function of a program beside it."""

from __future__ import annotations

import os
import shutil

import pytest
from dask_runs import PLACE, ROOT, limit, run, run_words

pytestmark = limit()
EXAMPLES = ROOT / "docs/examples/dask"
RANKS = 4  # a scheduler, a client, two workers


@pytest.mark.parametrize("name", ["one_copy", "handles", "work_in_a_task", "other_preloads"])
def test_dask_has(name, tmp_path):
    run("dask_programs.py", name, tmp_path, {})


@pytest.mark.parametrize(
    "name", ["closed_while_written", "two_readers_at_once", "told_while_it_looked"]
)
def test_dask_messages(name, tmp_path):
    run("dask_faults.py", name, tmp_path, {})


def test_a_slurm_job_has_one_copy_a_node(tmp_path):
    """With SLURM's variables, as srun sets them; the batch script itself with a stand-in for srun."""
    tool = tmp_path / "bin/srun"
    tool.parent.mkdir()
    tool.write_text(STAND_IN)
    tool.chmod(0o755)
    job = EXAMPLES / "slurm_job.sbatch"
    shutil.copy(EXAMPLES / "slurm_job.py", tmp_path)
    environment = {
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "4711",
        "SLURM_NTASKS": str(RANKS),
        "PATH": f"{tool.parent}:{PLACE}/bin:{os.environ['PATH']}",
    }
    printed, _ = run_words(["bash", str(job), "--mib", "16"], tmp_path, environment)
    assert "2 workers, sum" in printed, printed
    assert "2 of them see shared memory" in printed, printed


STAND_IN = """#!/bin/bash
for ((i = 1; i < SLURM_NTASKS; i++)); do SLURM_PROCID=$i "$@" & done
SLURM_PROCID=0 "$@"
wait
"""
