"""A Dask cluster of a SLURM job: the examples' batch scripts, word for word.

With Debian's slurm-wlm both go through sbatch, on two nodes of a cluster of one's own; the one with bridges between two network
namespaces. Where SLURM is not installed, the latter runs with its variables set and a stand-in for srun.

Runs in `make test-more`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import bridge_support
import pytest
import slurm_cluster
from dask_runs import PLACE, limit, run_words

EXAMPLES = Path(__file__).resolve().parents[3] / "docs/examples/dask"
NO_NAMESPACES = bridge_support.namespaces_lacking()
NO_SLURM = slurm_cluster.lacking()
pytestmark = [
    limit(),
    pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking()),
]

TASKS = 3  # on each node; of all, the first is the scheduler and the second the client
FIRST = "1"  # the number that a new cluster gives its first job


@contextlib.contextmanager
def two_nodes(job):
    """Two nodes in namespaces that know each other's names, as a cluster's DNS and routes have it; the job's brokers are stopped."""
    with bridge_support.net("n01", "n02", namespaces=True) as made:
        nodes = [*made.nodes.values()]
        hosts = "127.0.0.1 localhost\n" + "".join(f"{node.host} {node.name}\n" for node in nodes)
        try:
            for node in nodes:
                place = Path("/etc/netns", str(node.netns))
                place.mkdir(parents=True, exist_ok=True)
                (place / "hosts").write_text(hosts)
                bridge_support.ip("-n", str(node.netns), "route", "add", "default", "via", made.outside)  # fmt: skip
            yield nodes, made.outside
        finally:
            for node in nodes:
                node.environment["SLURM_JOB_ID"] = job
                node.command("stop", "--yes", "--force", check=False)
                shutil.rmtree(Path("/etc/netns", str(node.netns)), ignore_errors=True)


def submitted(cluster, folder, script, *words):
    """What a job printed that sbatch started, on two nodes, when it has ended well."""
    shutil.copy(EXAMPLES / "slurm_job.py", folder)
    shape = ["--nodes=2", f"--ntasks-per-node={TASKS}", "--cpus-per-task=1", "--output=printed.txt"]
    environment = {
        "HOME": str(folder),
        "PATH": f"{PLACE}/bin:{cluster.environment['PATH']}",
        "SLURM_CONF": cluster.environment["SLURM_CONF"],
        "SLURM_JOB_ID": FIRST,  # whose broker is stopped afterwards
    }
    try:
        run_words(["sbatch", "--wait", *shape, str(EXAMPLES / script), *words], folder, environment)
    finally:
        printed = folder / "printed.txt"
        said = printed.read_text() if printed.exists() else "it printed nothing"
        print(said, cluster.said())
    return said


def as_promised(printed):
    """All workers computed, and on shared memory."""
    workers = 2 * TASKS - 2
    assert f"{workers} workers, sum" in printed, printed
    assert f"{workers} of them see shared memory" in printed, printed


@pytest.mark.skipif(bool(NO_SLURM), reason=NO_SLURM)
def test_sbatch_runs_the_job(tmp_path):
    broker = tmp_path / "broker"  # the nodes are one machine, and so have one broker for the job
    nodes = [slurm_cluster.SlurmNode(name, broker) for name in ("n01", "n02")]
    with slurm_cluster.cluster(tmp_path / "slurm", nodes) as cluster:
        as_promised(submitted(cluster, tmp_path, "slurm_job.sbatch", "--mib", "64"))


@pytest.mark.skipif(bool(NO_SLURM or NO_NAMESPACES), reason=NO_SLURM or NO_NAMESPACES)
def test_sbatch_runs_the_job_between_nodes_with_bridges(tmp_path):
    with two_nodes(FIRST) as (nodes, outside):
        own = [slurm_cluster.SlurmNode(n.name, n.folder, n.host, n.netns) for n in nodes]
        with slurm_cluster.cluster(tmp_path / "slurm", own, outside) as cluster:
            as_promised(submitted(cluster, tmp_path, "slurm_nodes.sbatch", "--mib", "64"))
    assert [*(tmp_path / ".config/cableway").iterdir()] == []  # the job's folder went with it


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES)
def test_a_job_of_two_nodes_has_one_copy_a_node(tmp_path):
    shutil.copy(EXAMPLES / "slurm_job.py", tmp_path)
    standins = Path(__file__).resolve().parents[1] / "support/standins"
    job = "4712"
    with two_nodes(job) as (nodes, _):
        environment = {
            "HOME": str(tmp_path),
            "PATH": f"{standins}:{PLACE}/bin:{os.environ['PATH']}",
            "SLURM_JOB_ID": job,
            "SLURM_JOB_NODELIST": "n[01-02]",
            "SLURM_NTASKS_PER_NODE": str(TASKS),
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURMD_NODENAME": "n01",
            "NODES_STANDIN": json.dumps({node.name: [node.netns, str(node.folder)] for node in nodes}),
        }  # fmt: skip
        words = nodes[0].inside(["bash", str(EXAMPLES / "slurm_nodes.sbatch"), "--mib", "64"])
        printed, _ = run_words(words, tmp_path, environment)
    as_promised(printed)
    assert [*(tmp_path / ".config/cableway").iterdir()] == []  # the job's folder went with it
