"""A SLURM cluster of one's own: slurmctld and a slurmd for each node, as Debian's slurm-wlm has them, on free ports and in one folder.

It needs no munge, no cgroups and no systemd: whoever may connect is believed (`auth/none`), and a job's processes are known by their
process group. A node may be a network namespace; else nodes share this machine's network. Each task finds its node's own
`CABLEWAY_DIR`, as each machine has a /tmp of its own (a TaskProlog).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ports import held_port
from waiting import eventually

PROGRAMS = "slurmctld", "slurmd", "sbatch", "srun", "sinfo"
CPUS = 64  # that a node says it has: tasks are not pinned
_SYSTEM = "/usr/sbin:/sbin"  # where Debian has the daemons, which is not on everybody's PATH

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={machine}({address})
SlurmctldPort={port}
AuthType=auth/none
CredType=cred/none
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
TaskProlog={folder}/prolog
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
"""


class SlurmNode(NamedTuple):
    """A node: its name, its own CABLEWAY_DIR, its address, and its network namespace (None: this machine's)."""

    name: str
    folder: Path
    address: str = "127.0.0.1"
    netns: str | None = None

    def inside(self, words: list[str]) -> list[str]:
        """A command that runs in the node's network."""
        return ["ip", "netns", "exec", self.netns, *words] if self.netns else words


def lacking() -> str:
    """Why there can be no cluster here; "" if there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian's slurm-wlm)"
    plugins = [*Path("/usr/lib").glob("*/slurm*/auth_none.so")]
    return "" if plugins else "this SLURM has no auth/none, which Debian's has"


def _path() -> str:
    return f"{os.environ['PATH']}:{_SYSTEM}"


def _configured(folder: Path, nodes: list[SlurmNode], address: str) -> None:
    ports = [held_port() for _ in range(len(nodes) + 1)]
    numbers = [held.getsockname()[1] for held in ports]
    for held in ports:
        held.close()  # slurmctld binds without SO_REUSEADDR
    machine = os.uname().nodename.partition(".")[0]
    text = _CONFIGURATION.format(
        machine=machine,
        address=address,
        port=numbers[0],
        user=pwd.getpwuid(os.getuid()).pw_name,
        folder=folder,
    )
    for node, port in zip(nodes, numbers[1:], strict=True):
        text += f"NodeName={node.name} NodeHostname={machine} NodeAddr={node.address} Port={port} CPUs={CPUS}\n"
    text += "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
    (folder / "slurm.conf").write_text(text)
    # The daemons load a plugin for cgroups even where none is used; this one does not look for systemd.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    cases = "".join(f"{node.name}) echo export CABLEWAY_DIR={node.folder};;\n" for node in nodes)
    (folder / "prolog").write_text(f'#!/bin/sh\ncase "$SLURMD_NODENAME" in\n{cases}esac\n')
    (folder / "prolog").chmod(0o755)


class Cluster:
    """What runs.

    Attributes:
        folder: its configuration, state and logs.
        environment: what commands of SLURM need.
    """

    def __init__(self, folder: Path, nodes: list[SlurmNode], address: str) -> None:
        self.folder = folder
        self.nodes = nodes
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "PATH": _path(),
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        self._running: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        (folder / "state").mkdir()
        for node in nodes:
            (folder / f"spool-{node.name}").mkdir()
        _configured(folder, nodes, address)

    def start(self) -> None:
        """Starts the daemons, and waits until all nodes take jobs."""
        self._daemon("slurmctld", ["slurmctld", "-D"])
        for node in self.nodes:
            words = node.inside(["slurmd", "-D", "-N", node.name])
            self._daemon(f"slurmd-{node.name}", words)
        assert eventually(lambda: self._idle() == len(self.nodes), 60), self.said()

    def _daemon(self, name: str, words: list[str]) -> None:
        with open(self.folder / f"{name}.txt", "wb") as output:
            process = subprocess.Popen(
                words, env=self.environment, stdout=output, stderr=subprocess.STDOUT, cwd=self.folder
            )  # fmt: skip
        self._running.append(process)

    def _idle(self) -> int:
        words = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=30, check=False
        )
        return sum(int(word) for word in done.stdout.split())

    def said(self) -> str:
        """What the daemons said last."""
        return "".join(
            f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}\n"
            for file in sorted(self.folder.glob("*.txt"))
        )

    def stop(self) -> None:
        """Ends the daemons, and waits for them."""
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def cluster(folder: Path, nodes: list[SlurmNode], address: str = "127.0.0.1") -> Iterator[Cluster]:
    """A running cluster, ended afterwards.

    Args:
        folder: a new one for what it writes.
        address: where the nodes reach slurmctld, which runs in this machine's network.
    """
    made = Cluster(folder, nodes, address)
    try:
        made.start()
        yield made
    finally:
        made.stop()
