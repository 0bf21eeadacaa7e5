"""The environment of a worker on a GPU, set before the user's code begins: which GPUs it sees, its CPU cores, and the NUMA
node of its memory.

The user's code begins with the import of the main module, which multiprocessing does before anything of ours runs. Only the process's
name comes before that. So the name of a worker carries its environment (`Name`): unpickling it sets CUDA_VISIBLE_DEVICES and the
cores. It is unpickled once more with the process object, after the main module, so that a script that sets CUDA_VISIBLE_DEVICES for
itself does not change it for its workers. The worker then checks that its first GPU is its own (_pool.worker.own_gpu).
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cableway._core.library import lib
from cableway._pool.devices.devices import Device, Devices

__all__ = [
    "Description", "Name", "cores_near", "describe", "mask_of", "move", "node_near", "share_of",
]  # fmt: skip

_SYS = Path("/sys")


class Description:
    """What a worker is told of its place.

    Attributes:
        name: the parent's name of its GPU.
        uuid: of its GPU.
        peers: UUIDs of the GPUs that it sees behind its own.
        cpus: where it may run; None: wherever its parent may.
        node: the NUMA node from which its memory comes first; None: unknown.
        peer: whether tasks get views on arrays of other GPUs.
        sms: how many multiprocessors it shall have; None: all.
        part: which of the GPU's workers it is, from 0 on.
    """

    __slots__ = ("cpus", "name", "node", "part", "peer", "peers", "sms", "uuid")

    def __init__(
        self,
        name: str,
        uuid: str,
        peers: list[str],
        cpus: list[int] | None,
        node: int | None,
        part: int,
        peer: bool,
        sms: int | None,
    ) -> None:
        self.name = name
        self.uuid = uuid
        self.peers = peers
        self.cpus = cpus
        self.node = node
        self.part = part
        self.peer = peer
        self.sms = sms

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that make its own GPU cuda:0."""
        return {"CUDA_VISIBLE_DEVICES": ",".join([self.uuid, *self.peers])}

    def prefer_node(self) -> None:
        """Memory of this thread, and of those that it starts, comes from its node first."""
        if self.node is not None:
            lib.cwpy_prefer_node(self.node)  # refused in some containers: then it comes as it comes


def describe(devices: Devices, group: int, part: int, sys: Path = _SYS) -> Description:
    """The place of one worker.

    Args:
        devices: of its Pool.
        group: which GPU it is on.
        part: which of the workers there it is, from 0 on.
        sys: where sysfs is.
    """
    mine = devices.groups[group]
    device = mine.device
    near = cores_near(device.bus, os.sched_getaffinity(0), sys)
    cpus = None if near is None else share_of(near, part % mine.count, mine.count)
    peers = mask_of(device, devices.visible)[1:]
    return Description(
        device.name,
        device.uuid,
        peers,
        cpus,
        node_near(device.bus, sys),
        part,
        devices.peer,
        devices.sms,
    )


def mask_of(device: Device, visible: Iterable[Device]) -> list[str]:
    """The UUIDs that a worker sees: its own GPU first, then the others that the parent sees. With MIG a process has one."""
    if device.is_part:
        return [device.uuid]
    return [device.uuid, *(other.uuid for other in visible if other.key != device.key)]


# ---- where it is


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _numbers(text: str) -> list[int]:
    """The numbers in a list of the kernel's.

    >>> _numbers("0-2,8")
    [0, 1, 2, 8]
    """
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _place(bus: str, sys: Path) -> Path:
    return sys / "bus" / "pci" / "devices" / bus


def node_near(bus: str, sys: Path = _SYS) -> int | None:
    """The NUMA node next to a GPU; None: there is one node, or it is not told."""
    if not bus:
        return None
    told = _read(_place(bus, sys) / "numa_node")
    return int(told) if told.isdecimal() else None  # -1: the machine does not know


def cores_near(bus: str, usable: Iterable[int], sys: Path = _SYS) -> list[list[int]] | None:
    """The CPUs next to a GPU that are usable, by core (its threads together); None: it is not told, or none is usable."""
    if not bus:
        return None
    near = sorted(set(_numbers(_read(_place(bus, sys) / "local_cpulist"))) & set(usable))
    if not near:
        return None
    cores: dict[int, list[int]] = {}
    for cpu in near:
        topology = sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        siblings = _numbers(_read(topology / "thread_siblings_list")) or [cpu]
        cores.setdefault(min(siblings), []).append(cpu)
    return [cores[first] for first in sorted(cores)]


def share_of(cores: list[list[int]], part: int, parts: int) -> list[int]:
    """The CPUs of one of several workers: whole cores, evenly, none in two shares; all where there are fewer cores.

    >>> share_of([[0, 4], [1, 5], [2, 6]], 0, 2), share_of([[0, 4], [1, 5], [2, 6]], 1, 2)
    ([0, 4], [1, 2, 5, 6])
    """
    if parts > len(cores):
        mine = cores
    else:
        mine = cores[len(cores) * part // parts : len(cores) * (part + 1) // parts]
    return sorted(cpu for core in mine for cpu in core)


def move(pid: int, pidfd: int, old: list[int] | None, new: list[int] | None) -> None:
    """The threads of a worker that run on its old share of cores run on its new one. Those that its tasks have put
    elsewhere stay there.

    The kernel knows no other way to name a thread than a number, which may be a stranger's as soon as the thread has
    ended. Its folder in /proc does not change hands: so the thread is looked up there before it is moved, and after; a
    stranger that came in between is put back.
    """
    if old is None or new is None:
        return
    try:
        folder = os.open(f"/proc/{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # it has ended
        return
    try:
        if _has_ended(pidfd):  # then it may be another process's folder
            return
        for thread in map(int, os.listdir(folder)):
            _move_thread(folder, thread, set(old), set(new))
    except OSError:  # it ends
        pass
    finally:
        os.close(folder)


def _move_thread(folder: int, thread: int, old: set[int], new: set[int]) -> None:
    try:
        if os.sched_getaffinity(thread) != old or not _is_in(folder, thread):
            return
        os.sched_setaffinity(thread, new)
        if not _is_in(folder, thread) and os.sched_getaffinity(thread) == new:
            os.sched_setaffinity(thread, old)
    except OSError:  # it has ended, or the cores were taken from this container meanwhile
        pass


def _is_in(folder: int, thread: int) -> bool:
    """Whether a thread lives, by the folder of its process's threads."""
    try:
        os.stat(str(thread), dir_fd=folder)
    except OSError:
        return False
    return True


def _has_ended(pidfd: int) -> bool:
    """Whether a process has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


# ---- how it gets there

# JAX and TensorFlow take most of the memory of every GPU that they see when they start, other workers' GPUs included.
_DEFAULTS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
_CODE = """
import os
os.environ.update({variables!r})
for name, value in {defaults!r}.items():
    os.environ.setdefault(name, value)
if {cpus!r}:
    try:
        os.sched_setaffinity(0, {cpus!r})
    except OSError:  # they were taken from this container meanwhile: it runs where it may
        pass
"""


class Name(str):
    """A process's name that brings an environment along. Unpickled it is a plain text."""

    __slots__ = ("_code",)
    _code: str

    @staticmethod
    def with_environment(name: str, description: Description) -> Name:
        """A name that sets what a description says."""
        made = Name(name)
        made._code = _CODE.format(
            variables=description.variables, defaults=_DEFAULTS, cpus=description.cpus
        )
        return made

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Of built-ins alone: a new interpreter may not know yet where cableway lies.
        return eval, (f"(exec({self._code!r}), {str(self)!r})[1]",)
