"""Nodes of a SLURM job: `cableway peers from-slurm`, and the example, its batch script run word for word between two
namespaces with SLURM's variables set and a stand-in for srun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import bridge_support
import pytest

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = ROOT / "docs/examples/bridge"
NO_NAMESPACES = bridge_support.namespaces_lacking()
pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())


def of_no_job() -> dict[str, str]:
    """Our environment, a sanitizer's variables too, without those of a job and of a user's settings."""
    ours = ("SLURM", "CABLEWAY", "XDG")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def cableway(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The command in a job on node n02, or what `more` says; "": not set."""
    job = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "n[01-03]",
        "SLURMD_NODENAME": "n02",
        **more,
    }
    return subprocess.run(
        [bridge_support.program("cableway"), *words],
        env={**of_no_job(), "HOME": str(home), "CABLEWAY_DIR": str(home / "run"),
             **{name: value for name, value in job.items() if value}},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def names_in(folder: Path) -> list[str]:
    """What lies there, sorted."""
    return sorted(file.name for file in folder.iterdir())


def nodes_of(folder: Path) -> list[Path]:
    """The folders of a job's nodes."""
    return [file for file in folder.iterdir() if file.is_dir()]


def test_all_nodes_of_a_job_are_made_known_to_each_other(tmp_path: Path) -> None:
    told = cableway(tmp_path, "peers", "from-slurm", "--read", "out/*", "--port", "7500")
    folder = tmp_path / ".config/cableway/job-4711"
    assert told.returncode == 0 and told.stdout == f"{folder}\n", told
    assert names_in(folder) == ["ca.crt", "n01", "n02", "n03", "peers"]
    modes = {name: (folder / name).stat().st_mode & 0o777 for name in ("ca.crt", "peers")}
    assert modes == {"ca.crt": 0o644, "peers": 0o600}
    authority = (folder / "ca.crt").read_text()
    assert (folder / "peers").read_text().count("read = out/*") == 3
    assert "write" not in (folder / "peers").read_text()
    prints = set()
    for node in nodes_of(folder):
        assert node.stat().st_mode & 0o777 == 0o700
        files = {file.name: file.stat().st_mode & 0o777 for file in node.iterdir()}
        assert files == {"node.key": 0o600, "node.crt": 0o644}
        others = sorted({"n01", "n02", "n03"} - {node.name})
        listed = cableway(tmp_path, "peers", "--json", SLURMD_NODENAME=node.name)
        assert [(p["name"], p["address"], p["known_by"]) for p in json.loads(listed.stdout)] == [
            (other, f"{other}:7500", "ca") for other in others
        ]
        shown = cableway(tmp_path, "keygen", "--show", SLURMD_NODENAME=node.name)
        prints.add(shown.stdout)
    assert len(prints) == 3
    assert not [file for file in tmp_path.rglob("*") if file.name == "ca.key"]
    # Once more: the first counts.
    again = cableway(tmp_path, "peers", "from-slurm", "--read", "*", SLURMD_NODENAME="n03")
    assert again.returncode == 0 and again.stdout == told.stdout and "already" in again.stderr
    assert (folder / "ca.crt").read_text() == authority
    assert names_in(folder.parent) == ["job-4711"]
    # A node whose peers are changed by hand has them for itself.
    assert cableway(tmp_path, "peers", "remove", "n03").returncode == 0
    for node_name, others in (("n02", ["n01"]), ("n01", ["n02", "n03"])):
        listed = cableway(tmp_path, "peers", "--json", SLURMD_NODENAME=node_name)
        assert [peer["name"] for peer in json.loads(listed.stdout)] == others, node_name
    # A job that was started again may have other nodes, and another job has its own.
    more = {"SLURM_RESTART_COUNT": "1", "SLURM_JOB_NODELIST": "x[8-9]", "SLURMD_NODENAME": "x8"}
    assert cableway(tmp_path, "peers", "from-slurm", **more).stdout == f"{folder}.1\n"
    listed = cableway(tmp_path, "peers", "--json", **more)
    assert [peer["name"] for peer in json.loads(listed.stdout)] == ["x9"]
    # Outside of it nothing has changed.
    for less in ({"SLURM_JOB_ID": ""}, {"SLURMD_NODENAME": ""}, {"SLURM_JOB_ID": "4712"}):
        assert json.loads(cableway(tmp_path, "peers", "--json", **less).stdout) == []


def test_calls_at_once_make_one_folder(tmp_path: Path) -> None:
    command = [bridge_support.program("cableway"), "peers", "from-slurm"]
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-8]", "HOME": str(tmp_path), "PATH": os.environ["PATH"]}  # fmt: skip
    begun = [
        subprocess.Popen(
            command,
            env={**job, "SLURMD_NODENAME": f"n{i % 8 + 1}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(16)
    ]
    told = [process.communicate(timeout=60) for process in begun]
    assert [process.returncode for process in begun] == [0] * 16, told
    assert len({out for out, _ in told}) == 1
    assert sum("already" not in said for _, said in told) == 1
    folder = tmp_path / ".config/cableway"
    assert [file.name for file in folder.iterdir()] == ["job-7"]
    assert names_in(folder / "job-7") == ["ca.crt", *(f"n{i}" for i in range(1, 9)), "peers"]
    assert all(names_in(node) == ["node.crt", "node.key"] for node in nodes_of(folder / "job-7"))


def test_a_job_of_1000_nodes_has_one_file_of_peers(tmp_path: Path) -> None:
    nodes = {"SLURM_JOB_NODELIST": "n[0001-1000]", "SLURMD_NODENAME": "n0500"}
    assert cableway(tmp_path, "peers", "from-slurm", "--read", "shared/*", **nodes).returncode == 0
    folder = tmp_path / ".config/cableway/job-4711"
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) == 2 * 1000 + 2
    assert sum(file.stat().st_size for file in files) <= 2_000_000
    listed = json.loads(cableway(tmp_path, "peers", "--json", **nodes).stdout)
    assert {peer["name"] for peer in listed} == {f"n{i:04}" for i in range(1, 1001)} - {"n0500"}


def test_what_is_no_job_is_said_so(tmp_path: Path) -> None:
    for more, words, says in (
        ({"SLURM_JOB_ID": ""}, [], "not set: this is for a job"),
        ({"SLURM_JOB_ID": "../x"}, [], "not set: this is for a job"),
        ({"SLURM_JOB_NODELIST": ""}, [], "not set: this is for a job"),
        ({"SLURM_JOB_NODELIST": "n[1-"}, [], "a bracket does not end"),
        ({"SLURM_JOB_NODELIST": "n[1-5000]"}, [], "more than 4096"),
        ({"SLURMD_NODENAME": "login"}, [], "is not one of the job's"),
        ({}, ["--port", "0"], "takes --port (1 to 65535)"),
        ({}, ["--read", ""], "read is empty"),
        ({}, ["n04"], "takes --port"),
    ):  # fmt: skip
        told = cableway(tmp_path, "peers", "from-slurm", *words, **more)
        assert told.returncode in (1, 2) and says in told.stderr and told.stdout == "", told
    assert not list(tmp_path.rglob("job-*"))


@pytest.mark.skipif(
    bool(NO_NAMESPACES) or not EXAMPLES.exists(), reason=NO_NAMESPACES or "no examples"
)
def test_the_example_runs_between_two_nodes(tmp_path: Path) -> None:
    with bridge_support.net("n01", "n02", namespaces=True) as made:
        nodes = made.nodes.values()
        hosts = "127.0.0.1 localhost\n" + "".join(f"{node.host} {node.name}\n" for node in nodes)
        try:
            for node in nodes:  # what the cluster's DNS does
                assert node.netns
                place = Path("/etc/netns", node.netns)
                place.mkdir(parents=True, exist_ok=True)
                (place / "hosts").write_text(hosts)
            programs = Path(bridge_support.program("cableway")).parent
            path = [
                Path(__file__).resolve().parents[2] / "support/standins",
                programs,
                Path(sys.executable).parent,
            ]
            environment = {
                **of_no_job(),
                "HOME": str(tmp_path),
                "PATH": ":".join([*map(str, path), os.environ["PATH"]]),
                "SLURM_JOB_ID": "4711",
                "SLURM_JOB_NODELIST": "n[01-02]",
                "SLURM_SUBMIT_DIR": str(EXAMPLES),
                "SLURMD_NODENAME": "n01",
                "CABLEWAY_DIR": str(made.nodes["n01"].folder),
                "NODES_STANDIN": json.dumps(
                    {node.name: [node.netns, str(node.folder)] for node in nodes}
                ),
            }
            done = subprocess.run(
                made.nodes["n01"].inside(
                    ["bash", str(EXAMPLES / "two_nodes.sbatch"), "--rows", "20000"]
                ),
                env=environment, capture_output=True, text=True, timeout=100, check=False,
            )  # fmt: skip
        finally:
            for node in nodes:
                shutil.rmtree(Path("/etc/netns", str(node.netns)), ignore_errors=True)
        assert done.returncode == 0, done
        for name in ("n01", "n02"):
            assert f"{name}: 16 MB from 1 other nodes" in done.stdout
        assert done.stdout.count(": right") == 2 and "WRONG" not in done.stdout
        assert (
            list((tmp_path / ".config/cableway").iterdir()) == []
        )  # the job's folder went with it


def test_each_script_has_its_batch_script() -> None:
    if not EXAMPLES.exists():
        pytest.skip("no examples here")
    for script in EXAMPLES.glob("*.py"):
        job = script.with_suffix(".sbatch").read_text()
        assert f"/{script.name}" in job
        assert subprocess.run(["bash", "-n"], input=job, text=True).returncode == 0
