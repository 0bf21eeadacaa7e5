"""Which group a process joins, and as whom: what its program says, or the launcher that started it, by its environment.

    cableway run            CABLEWAY_GROUP, CABLEWAY_RANK, CABLEWAY_SIZE
    mpirun of Open MPI      OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE; the job is PMIX_NAMESPACE or OMPI_MCA_ess_base_jobid
    mpiexec of MPICH,       PMI_RANK, PMI_SIZE, MPI_LOCALNRANKS; no variable names the job, so it is the proxy of Hydra that has
    Intel MPI               started all processes of this machine. srun --mpi=pmi2: PMI_JOBID
    srun of SLURM           SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES; the job is SLURM_JOB_ID and SLURM_STEP_ID. A
                            batch script itself is no task of a step
    PMIx                    PMIX_RANK and PMIX_NAMESPACE; it has no variable for the size, but SLURM has

The first that is there counts: mpirun in a job of SLURM also leaves SLURM's variables to see. A process without any is alone.
"""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cableway._core.library import lib
from cableway.errors import Error

__all__ = ["Membership", "checked", "joined", "membership", "next_membership"]

_NAME_BYTES = 150  # of 190: a number may come behind it
_OURS = ("CABLEWAY_GROUP", "CABLEWAY_RANK", "CABLEWAY_SIZE")


def checked(name: str, size: int, rank: int | None) -> tuple[int, int]:
    """Size and rank as the library has them; rank -1: the lowest that is free.

    Raises:
        TypeError: the name is no text, or a number no integer.
        ValueError: a number is out of range.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a group is a str, not {type(name).__name__}")
    members, number = operator.index(size), -1 if rank is None else operator.index(rank)
    if not 1 <= members <= lib.CW_GROUP_RANKS_MAX:
        raise ValueError(f"size {members}: a group has 1 to {lib.CW_GROUP_RANKS_MAX} members")
    if rank is not None and not 0 <= number < members:
        raise ValueError(
            f"rank {number}: a group of {members} has ranks 0 to {members - 1}; None takes the lowest that is free"
        )
    return members, number


class Membership(NamedTuple):
    """Of a process in the group of its job."""

    name: str
    size: int
    rank: int


def membership(env: Mapping[str, str] = os.environ) -> Membership:
    """Reads the environment.

    Raises:
        ValueError: a variable is missing beside the others, or is no number.
        Error: the job has processes on several machines, or its name cannot be found.
    """
    if any(name in env for name in _OURS):
        missing = [name for name in _OURS if not env.get(name)]
        if missing:
            raise ValueError(
                f"{', '.join(missing)} not set beside {', '.join(name for name in _OURS if name not in missing)}: "
                "set all three, as `cableway run` does, or none"
            )
        return Membership(
            env["CABLEWAY_GROUP"], _number(env, "CABLEWAY_SIZE"), _number(env, "CABLEWAY_RANK")
        )
    if "OMPI_COMM_WORLD_RANK" in env:
        return _of_open_mpi(env)
    if "PMI_RANK" in env:
        return _of_pmi(env)
    if "PMIX_RANK" in env or env.get("SLURM_STEP_ID", "").isdecimal():
        return _of_slurm(env)
    return Membership(f"alone-{_identity(os.getpid())}", 1, 0)


_joined_before = 0  # how many groups of its job this process has joined


def next_membership() -> Membership:
    """Of this process in the next group of its job: each has a name of its own, since the one before may not have ended yet."""
    found = membership()
    return found._replace(name=f"{found.name}/{_joined_before}") if _joined_before else found


def joined() -> None:
    """The next one is another one. Not where it failed: then all try again."""
    global _joined_before
    _joined_before += 1


def _of_open_mpi(env: Mapping[str, str]) -> Membership:
    job = env.get("PMIX_NAMESPACE") or env.get("OMPI_MCA_ess_base_jobid")
    size = _number(env, "OMPI_COMM_WORLD_SIZE")
    here = _number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", size)
    return _member("mpirun", job, size, _number(env, "OMPI_COMM_WORLD_RANK"), here)


def _of_pmi(env: Mapping[str, str]) -> Membership:
    size = _number(env, "PMI_SIZE")
    job = env.get("PMI_JOBID") or env.get("PMI_PORT") or _hydra()
    here = _number(env, "MPI_LOCALNRANKS", size)
    if "MPI_LOCALNRANKS" not in env and "PMI_JOBID" in env:  # of srun
        _check_nodes(env, size)
    return _member("mpiexec", job, size, _number(env, "PMI_RANK"), here)


def _of_slurm(env: Mapping[str, str]) -> Membership:
    sizes = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    size_of = next((name for name in sizes if name in env), None)
    rank_of = next((name for name in ("SLURM_PROCID", "PMIX_RANK") if name in env), None)
    if size_of is None or rank_of is None:
        raise Error(
            "PMIX_RANK or SLURM_STEP_ID is set, but no variable says how many processes the job has (SLURM_STEP_NUM_TASKS, "
            "SLURM_NTASKS) and which one this is: set CABLEWAY_GROUP, CABLEWAY_RANK and CABLEWAY_SIZE"
        )
    size = _number(env, size_of)
    _check_nodes(env, size)
    job = env.get("PMIX_NAMESPACE")
    if "SLURM_JOB_ID" in env:
        job = f"{env['SLURM_JOB_ID']}.{env.get('SLURM_STEP_ID', '')}"
    return _member("slurm", job, size, _number(env, rank_of), size)


def _check_nodes(env: Mapping[str, str], size: int) -> None:
    nodes = next((n for n in ("SLURM_STEP_NUM_NODES", "SLURM_NNODES") if n in env), None)
    if nodes is not None and size > 1 and _number(env, nodes) > 1:
        raise _several(size, f"{env[nodes]} machines ({nodes})")


def _several(size: int, where: str) -> Error:
    return Error(
        f"this job has {size} processes on {where}, and a group is of one machine: use mpi4py or NCCL (torch.distributed) "
        "between machines, or start the job on one node"
    )


def _member(kind: str, job: str | None, size: int, rank: int, here: int) -> Membership:
    if here != size:
        raise _several(size, f"several machines, {here} of them on this one")
    if not job:
        raise Error(
            f"the environment has the rank of this process, but not the name of its job ({kind}): set CABLEWAY_GROUP, "
            "CABLEWAY_RANK and CABLEWAY_SIZE"
        )
    name = f"{kind}-{job.replace('/', '_')}"
    if len(name.encode()) > _NAME_BYTES:
        name = f"{kind}-{hashlib.sha256(job.encode()).hexdigest()}"
    return Membership(name, size, rank)


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise ValueError(
            f"{name} is {text!r}: it must be a number, as the launcher of this process sets it"
        )
    return int(text)


def _stat(pid: int) -> tuple[str, int, str]:
    """The name of a process's program, its parent's pid, and when it started."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return head.partition("(")[2], int(fields[1]), fields[19]


def _identity(pid: int) -> str:
    return f"{pid}-{_stat(pid)[2]}"


def _hydra() -> str | None:
    """The proxy of Hydra from which this process descends. None: it does not."""
    pid = os.getpid()
    while pid > 1:
        try:
            program, parent, started = _stat(pid)
        except OSError:  # it has ended meanwhile
            return None
        if program.startswith("hydra_"):
            return f"{pid}-{started}"
        pid = parent
    return None
