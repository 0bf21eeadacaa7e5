"""`cw.Group()`: the group of the job, by the environment of launchers. Runs in `make test-more`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cableway as cw
from cableway._core import programs
from cableway._group import environment
from cableway._group.environment import Membership, membership

COMMAND = os.environ.get("CABLEWAY_COMMAND") or programs.path("cableway")
LAUNCHERS = ("CABLEWAY_GROUP", "CABLEWAY_RANK", "CABLEWAY_SIZE", "PMI", "OMPI_", "SLURM_", "MPI_", "PRTE_")  # fmt: skip

SCRIPT = """
import os
import cableway as cw
with cw.Group() as g:
    os.write(1, f"{g.rank} {g.size} {g.name} {g.allreduce(g.rank)}\\n".encode())
"""


def clean() -> dict[str, str]:
    """The environment without any launcher."""
    return {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHERS)}


def python(env: dict[str, Any], script: str = SCRIPT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env={**clean(), **{name: str(text) for name, text in env.items()}},
        stdout=subprocess.PIPE,
        text=True,
    )


def said(env_of: Any, size: int) -> list[list[str]]:
    """What size processes say, each started with env_of(rank)."""
    started = [python(env_of(rank)) for rank in range(size)]
    return [process.communicate(timeout=120)[0].split() for process in started]


def test_a_job_of_cableway_run_is_a_group() -> None:
    done = subprocess.run(
        [COMMAND, "run", "-n", "4", "--", sys.executable, "-c", SCRIPT],
        env=clean(), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    lines = sorted(line.split() for line in done.stdout.splitlines())
    assert [line[0:2] + line[3:] for line in lines] == [[str(r), "4", "6"] for r in range(4)]
    assert len({line[2] for line in lines}) == 1
    assert not cw.names(".group/run-")


def test_a_job_goes_on_without_its_dead() -> None:
    script = """
import os
import cableway as cw
g = cw.Group()
if g.rank == 1:
    os.kill(os.getpid(), 9)
try:
    g.barrier()
except cw.GroupBroken as error:
    g.reform()
    os.write(1, f"{error.rank} {error.reason} {g.rank} {g.size}\\n".encode())
"""
    for _ in range(20):
        done = subprocess.run(
            [COMMAND, "run", "-n", "3", "--keep-going", "--", sys.executable, "-c", script],
            env=clean(), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert sorted(done.stdout.splitlines()) == ["1 died 0 2", "1 died 1 2"], done
        assert done.returncode == 128 + 9


def test_each_call_is_another_group() -> None:
    script = """
import os
import cableway as cw
groups = [cw.Group() for _ in range(3)]
os.write(1, (" ".join(g.name.partition("/")[2] for g in groups) + f" {groups[2].allreduce(1)}\\n").encode())
"""
    done = subprocess.run(
        [COMMAND, "run", "-n", "2", "--", sys.executable, "-c", script],
        env=clean(), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert [line.split() for line in done.stdout.splitlines()] == [["1", "2", "2"]] * 2


def test_a_failed_call_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("GROUP", "again"), ("RANK", "1"), ("SIZE", "2")):
        monkeypatch.setenv(f"CABLEWAY_{name}", text)
    cw.names()  # the broker has begun: the group's time is for its members
    for _ in range(2):
        with pytest.raises(cw.Timeout, match=r'"again.*missing: rank 0'):
            cw.Group(timeout=0.5)
    assert environment.next_membership() == environment.next_membership()


def test_processes_of_open_mpi() -> None:
    def env_of(rank: int) -> dict[str, Any]:
        return {
            "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 3, "OMPI_COMM_WORLD_LOCAL_SIZE": 3,
            "PMIX_RANK": rank, "PMIX_NAMESPACE": "prterun-host-1@1", "SLURM_PROCID": 0,
        }  # fmt: skip

    name = "mpirun-prterun-host-1@1"
    assert said(env_of, 3) == [[str(rank), "3", name, "3"] for rank in range(3)]


def test_processes_of_slurm() -> None:
    def env_of(rank: int) -> dict[str, Any]:
        return {
            "SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_JOB_ID": 77, "SLURM_STEP_ID": 3,
            "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_NUM_NODES": 1, "SLURM_NNODES": 2,
        }  # fmt: skip

    try:
        assert said(env_of, 2) == [[str(rank), "2", "slurm-77.3", "1"] for rank in range(2)]
    finally:  # a job of SLURM has a broker of its own
        stop = [COMMAND, "stop", "--yes"]
        subprocess.run(stop, env={**clean(), "SLURM_JOB_ID": "77"}, timeout=60, check=False)


def test_processes_of_mpich(tmp_path: Path) -> None:
    proxy, script = tmp_path / "hydra_pmi_proxy", tmp_path / "script.py"
    script.write_text(SCRIPT)
    proxy.write_text(
        "#!/bin/sh\nfor rank in 0 1; do PMI_RANK=$rank PMI_SIZE=2 MPI_LOCALNRANKS=2 "
        f'sh -c "{sys.executable} {script}; :" & done; wait\n'
    )
    proxy.chmod(0o755)
    names = set()
    for _ in range(2):
        run = subprocess.run(
            [proxy], env=clean(), capture_output=True, text=True, timeout=120, check=True
        )
        lines = sorted(line.split() for line in run.stdout.splitlines())
        assert [line[0:2] + line[3:] for line in lines] == [["0", "2", "1"], ["1", "2", "1"]]
        assert len({line[2] for line in lines}) == 1
        names.add(lines[0][2])
    assert len(names) == 2, "each job has a name of its own"


def test_a_process_of_no_job_is_alone() -> None:
    (line,) = said(lambda rank: {}, 1)
    assert (line[0], line[1], line[3]) == ("0", "1", "0")
    batch_script = {"SLURM_JOB_ID": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    assert membership(batch_script).size == 1


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"CABLEWAY_GROUP": "a", "CABLEWAY_RANK": "1", "CABLEWAY_SIZE": "2", "PMI_RANK": "7"}, ("a", 2, 1)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_MCA_ess_base_jobid": "9"}, ("mpirun-9", 1, 0)),
        ({"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_JOBID": "4.0", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, ("mpiexec-4.0", 3, 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_PORT": "host:71"}, ("mpiexec-host:71", 2, 0)),
        ({"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.8.0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0"}, ("slurm-8.0", 2, 1)),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "8"}, ("slurm-8.0", 1, 0)),
    ],
)  # fmt: skip
def test_what_variables_mean(env: dict[str, str], expected: tuple[str, int, int]) -> None:
    assert membership(env) == Membership(*expected)


def test_a_long_name_of_a_job_is_shortened() -> None:
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    names = {membership({**env, "PMIX_NAMESPACE": f"{'x/' * 100}{i}"}).name for i in range(2)}
    assert len(names) == 2
    assert all(len(name) < 150 and "/" not in name for name in names)


@pytest.mark.parametrize(
    ("env", "kind", "text"),
    [
        ({"CABLEWAY_RANK": "0"}, ValueError, "CABLEWAY_GROUP, CABLEWAY_SIZE not set beside CABLEWAY_RANK"),
        ({"CABLEWAY_GROUP": "", "CABLEWAY_RANK": "0", "CABLEWAY_SIZE": "1"}, ValueError, "CABLEWAY_GROUP not set"),
        ({"CABLEWAY_GROUP": "a", "CABLEWAY_RANK": "-1", "CABLEWAY_SIZE": "1"}, ValueError, "CABLEWAY_RANK is '-1'"),
        ({"PMI_RANK": "0"}, ValueError, "PMI_SIZE is None"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, cw.Error, "not the name of its job .* set CABLEWAY_GROUP"),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}, cw.Error, "how many processes"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_JOBID": "1", "MPI_LOCALNRANKS": "2"}, cw.Error, "4 processes on several machines, 2 of .* mpi4py or NCCL"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_JOBID": "1.0", "SLURM_NNODES": "2"}, cw.Error, r"2 machines \(SLURM_NNODES\).* mpi4py or NCCL"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, cw.Error, "mpi4py or NCCL"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_JOB_ID": "1"}, cw.Error, "mpi4py or NCCL"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(
    env: dict[str, str], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        membership(env)


def test_a_name_and_a_size_belong_together() -> None:
    with pytest.raises(TypeError, match="'alone' needs a size"):
        cw.Group("alone")
    with pytest.raises(TypeError, match="need a name"):
        cw.Group(size=1)
    with pytest.raises(TypeError, match="need a name"):
        cw.Group(rank=0)
