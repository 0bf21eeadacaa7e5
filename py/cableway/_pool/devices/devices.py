"""The devices of a Pool: what `devices=` means.

A *group* is the workers of one GPU. Groups are numbered in the order in which devices= names their GPUs. A Pool without devices has
one group and no `Devices`. Only GPUs that this process sees (CUDA_VISIBLE_DEVICES) count. To find them opens the CUDA driver, but
takes no GPU memory.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cableway._core.library import check, ffi, lib
from cableway._transport.external_arrays import Lender
from cableway.device import devices as device_names
from cableway.device import name_of
from cableway.errors import DeviceError

__all__ = ["GROUPS_MAX", "Device", "Devices", "Group", "find", "key_of", "start"]

GROUPS_MAX = 64  # as ipc/cableway.h has it: CW_POOL_GROUPS_MAX
_SPELLING = 'devices= is "cuda", "auto", "cuda:N", a list of names, or a dict from names to numbers of workers'


class Device:
    """One GPU.

    Attributes:
        name: "cuda:N" by this process's mask; the UUID where this process does not see it (a part of a GPU, by MIG).
        uuid: as CUDA_VISIBLE_DEVICES takes it: "GPU-..." or "MIG-...".
        bus: where it is plugged in, as sysfs has it; "" unknown.
        multiprocessors: how many it has; 0 unknown.
    """

    __slots__ = ("bus", "multiprocessors", "name", "uuid")

    def __init__(self, name: str, uuid: str, bus: str = "", multiprocessors: int = 0) -> None:
        self.name = name
        self.uuid = uuid
        self.bus = bus
        self.multiprocessors = multiprocessors

    @property
    def key(self) -> str:
        """The same for all spellings of its UUID."""
        return key_of(self.uuid)

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a GPU by MIG, of which a process can use one alone."""
        return self.uuid.startswith("MIG-")


def key_of(uuid: str) -> str:
    """What tells a GPU in all processes.

    >>> key_of("GPU-66616B65-6375") == key_of("MIG-66616b65-6375")
    True
    """
    return uuid[4:].replace("-", "").lower()


class Group:
    """The workers of one GPU.

    Attributes:
        count: how many there shall be.
    """

    __slots__ = ("count", "device")

    def __init__(self, device: Device, count: int) -> None:
        self.device = device
        self.count = count


class Devices:
    """The groups of a Pool.

    Attributes:
        groups: by their numbers.
        visible: all GPUs of this process, whether they have workers or not.
        peer: whether tasks get views on arrays of other GPUs than their worker's, not copies.
        sms: multiprocessors of each worker; None: all.
        lender: of the caller's arrays.
        by_gpu: the group on each GPU that has one, by the GPU's number here.
    """

    __slots__ = ("by_gpu", "groups", "lender", "peer", "sms", "visible")

    def __init__(
        self,
        groups: list[Group],
        visible: list[Device],
        peer: bool = False,
        sms: int | None = None,
        borrow: bool | None = None,
    ) -> None:
        self.groups = groups
        self.visible = visible
        self.peer = peer
        self.sms = sms
        self.lender = Lender(borrow)
        numbers = {group.device.key: number for number, group in enumerate(groups)}
        self.by_gpu = {
            gpu: numbers[device.key] for gpu, device in enumerate(visible) if device.key in numbers
        }
        if len(groups) > GROUPS_MAX:
            raise ValueError(f"a Pool has at most {GROUPS_MAX} devices, {len(groups)} were given")
        for group in groups:
            self._check_parts(group, group.count)

    def _check_parts(self, group: Group, count: int) -> None:
        whole, asked = group.device.multiprocessors, count * (self.sms or 0)
        if whole and asked > whole:
            raise ValueError(
                f"{count} workers of sms={self.sms} need {asked} multiprocessors of {group.device.name}, "
                f"which has {whole}; have fewer workers there, or give them fewer"
            )

    @property
    def count(self) -> int:
        """Workers in all."""
        return sum(group.count for group in self.groups)

    def resize(self, processes: int) -> list[int]:
        """From now on so many workers, shared out evenly: the first groups have one more. Those of each group.

        Raises:
            ValueError: fewer than groups, or more than there are parts for; nothing has changed.

        >>> a, b = Group(Device("cuda:0", "GPU-0"), 1), Group(Device("cuda:1", "GPU-1"), 1)
        >>> Devices([a, b], []).resize(5)
        [3, 2]
        """
        if processes < len(self.groups):
            raise ValueError(
                f"a Pool on {len(self.groups)} devices needs at least one worker on each, and {processes} were asked for; "
                "make one on fewer devices"
            )
        each, more = divmod(processes, len(self.groups))
        counts = [each + (number < more) for number in range(len(self.groups))]
        for group, count in zip(self.groups, counts, strict=True):
            self._check_parts(group, count)
        for group, count in zip(self.groups, counts, strict=True):
            group.count = count
        return counts


def start(
    context: Any,
    devices: Any,
    processes: int | None,
    *,
    peer: bool = False,
    sms: Any = None,
    borrow: bool | None = None,
) -> tuple[Any, Devices | None]:
    """The context of multiprocessing for a Pool's workers, and its devices; see `find`.

    Args:
        context: one, or the name of a start method; None for multiprocessing's choice, with devices "spawn".
        devices, processes, peer, sms, borrow: see `find`.

    Raises:
        ValueError: by "fork" workers cannot use a GPU. And what find() raises.
    """
    if isinstance(context, str):
        context = multiprocessing.get_context(context)
    by_fork = context is not None and context.get_start_method() == "fork"
    if by_fork and devices is not None and devices != "auto":
        raise _by_fork()
    found = find(devices, processes, peer=peer, sms=sms, borrow=borrow)
    if found is not None and by_fork:
        raise _by_fork()
    if context is None:
        context = multiprocessing.get_context("spawn" if found is not None else None)
    return context, found


def _by_fork() -> ValueError:
    return ValueError(
        'a Pool with devices= starts its workers by "spawn" or "forkserver", not by "fork": CUDA does not survive a '
        "fork, and the caller may have used it"
    )


def find(
    devices: Any,
    processes: int | None,
    *,
    peer: bool = False,
    sms: Any = None,
    borrow: bool | None = None,
) -> Devices | None:
    """What devices= says; None where a Pool has none: devices is None, or "auto" and there is no GPU.

    Args:
        devices: see `Pool`.
        processes: how many workers were asked for besides; None: the devices decide.
        peer: see `Pool`.
        sms: see `Pool`.
        borrow: see `Pool`.

    Raises:
        TypeError, ValueError: it says nothing, or what cannot be.
        DeviceError: there is no such GPU for this process; the text says why.
    """
    if sms is not None and (not isinstance(sms, int) or isinstance(sms, bool) or sms < 1):
        raise ValueError(f"sms is a number of multiprocessors above 0, not {sms!r}")
    if devices is None:
        given = {"sms": sms is not None, "peer": peer, "borrow": borrow is not None}
        for name in (name for name, is_given in given.items() if is_given):
            raise ValueError(f"{name}= is for a Pool with devices=")
        return None
    devices = _names(devices)
    wanted = _wanted(devices)
    if devices == "auto" and len(device_names()) < 2:
        return None
    visible = _visible()
    found = Devices(_groups(wanted, visible), visible, bool(peer), sms, borrow)
    if processes is not None and processes != found.count:
        raise ValueError(
            f"processes={processes}, but devices= makes {found.count} workers; leave processes out, or repeat names in "
            'devices (or give {"cuda:0": 2}) for more workers on a GPU'
        )
    return found


def _names(devices: Any) -> Any:
    """What devices= says, with each `torch.device` in it as its name."""
    if isinstance(devices, Mapping):
        return {_name(device): count for device, count in devices.items()}
    if isinstance(devices, Sequence) and not isinstance(devices, (str, bytes)):
        return [_name(device) for device in devices]
    return _name(devices)


def _name(device: Any) -> Any:
    name = name_of(device)
    if name == "cuda" and name is not device:
        raise ValueError(
            'torch.device("cuda") could be one GPU or all; write torch.device("cuda:0"), or devices="cuda" for all'
        )
    return name


def _wanted(devices: Any) -> list[tuple[str, int]]:
    """Names and how many workers each has, as they were spelled."""
    if isinstance(devices, str):
        named = [("cuda" if devices == "auto" else devices, 1)]
    elif isinstance(devices, Mapping):
        named = list(devices.items())
    elif isinstance(devices, Sequence) and not isinstance(devices, bytes):
        named = [(name, 1) for name in devices]
        if "cuda" in devices:
            raise ValueError(
                'in a list "cuda" could be one GPU or all; write "cuda:0", or devices="cuda" for all'
            )
    else:
        raise TypeError(f"{_SPELLING}, not {type(devices).__name__}")
    if not named:
        raise ValueError(f"devices= is empty; {_SPELLING}")
    for name, count in named:
        if not isinstance(name, str):
            raise TypeError(f"{_SPELLING}; {name!r} is no name")
        if name == "cpu":
            raise ValueError('"cpu" is not a GPU; a Pool without devices= runs on the CPU')
        if name == "auto" and len(named) + (not isinstance(devices, str)) > 1:
            raise ValueError('"auto" stands alone: devices="auto"')
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name!r} is to have {count!r} workers; give a whole number above 0")
    return named


def _visible() -> list[Device]:
    """The GPUs of this process, DeviceError if there is none. Of parts by MIG it sees one, whatever the mask names."""
    check(lib.cw_device_check(b"cuda:0"))
    found = []
    for name in device_names()[1:]:
        told = ffi.new("cw_device_place *")
        check(lib.cw_device_place_of(name.encode(), told))
        uuid, bus = (str(ffi.string(text), "ascii") for text in (told.uuid, told.bus))
        found.append(Device(name, uuid, bus, told.multiprocessors))
    if found[0].is_part:
        known = {found[0].key}
        for uuid in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","):
            if uuid.startswith("MIG-") and key_of(uuid) not in known:
                known.add(key_of(uuid))
                found.append(Device(uuid, uuid))
    return found


def _groups(wanted: list[tuple[str, int]], visible: list[Device]) -> list[Group]:
    by_key: dict[str, Group] = {}
    spelled: dict[str, str] = {}
    for name, count in wanted:
        for device in visible if name == "cuda" else [_device(name, visible)]:
            group = by_key.get(device.key)
            if group is None:
                by_key[device.key] = Group(device, count)
                spelled[device.key] = name
            elif spelled[device.key] == name:  # repeated in a list: one more worker
                group.count += count
            else:
                raise ValueError(
                    f"devices= names the same GPU as {spelled[device.key]!r} and as {name!r}; name it in one way"
                )
    return list(by_key.values())


def _device(name: str, visible: list[Device]) -> Device:
    if name.startswith(("GPU-", "MIG-")):
        for device in visible:
            if device.uuid.lower() == name.lower():
                return device
        if name.startswith("MIG-"):  # one of those that this process cannot see besides its own
            return Device(name, name)
        seen = ", ".join(device.uuid for device in visible)
        raise DeviceError(f"this process sees no GPU {name}; it sees {seen}")
    for device in visible:
        if device.name == name:
            return device
    if not re.fullmatch(r"cuda:[0-9]{1,4}", name):
        raise ValueError(f"{name!r} is not a device; {_SPELLING}")
    check(lib.cw_device_check(name.encode()))  # says which there are
    raise DeviceError(f"this process does not see {name}")
