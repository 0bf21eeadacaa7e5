"""A Dask cluster of a SLURM job on two nodes with bridges: the example's batch script, word for word, between two namespaces with
SLURM's variables set and a stand-in for srun.

Runs in `make test-more`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import bridge_support
import pytest
from dask_runs import PLACE, run_words

EXAMPLES = Path(__file__).resolve().parents[3] / "docs/examples/dask"
NO_NAMESPACES = bridge_support.namespaces_lacking()
pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_a_job_of_two_nodes_has_one_copy_a_node(tmp_path):
    shutil.copy(EXAMPLES / "slurm_job.py", tmp_path)
    standins = Path(__file__).resolve().parents[1] / "support/standins"
    with bridge_support.net("n01", "n02", namespaces=True) as made:
        nodes = [*made.nodes.values()]
        hosts = "127.0.0.1 localhost\n" + "".join(f"{node.host} {node.name}\n" for node in nodes)
        environment = {
            "HOME": str(tmp_path),
            "PATH": f"{standins}:{PLACE}/bin:{os.environ['PATH']}",
            "SLURM_JOB_ID": "4712",
            "SLURM_JOB_NODELIST": "n[01-02]",
            "SLURM_NTASKS_PER_NODE": "3",  # the scheduler, the client and one worker; three workers
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURMD_NODENAME": "n01",
            "NODES_STANDIN": json.dumps({node.name: [node.netns, str(node.folder)] for node in nodes}),
        }  # fmt: skip
        try:
            for node in nodes:  # what the cluster's DNS and routes do
                place = Path("/etc/netns", str(node.netns))
                place.mkdir(parents=True)
                (place / "hosts").write_text(hosts)
                bridge_support.ip("-n", str(node.netns), "route", "add", "default", "via", bridge_support.OUTSIDE)  # fmt: skip
            words = nodes[0].inside(["bash", str(EXAMPLES / "slurm_nodes.sbatch"), "--mib", "64"])
            printed, _ = run_words(words, tmp_path, environment)
        finally:
            for node in nodes:
                node.command("stop", "--yes", "--force", check=False)
                shutil.rmtree(Path("/etc/netns", str(node.netns)), ignore_errors=True)
    assert "4 workers, sum" in printed, printed
    assert "4 of them see shared memory" in printed, printed
    assert [*(tmp_path / ".config/cableway").iterdir()] == []  # the job's folder went with it
