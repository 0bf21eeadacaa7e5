"""What devices= means, and where a worker on a GPU is put: masks, cores, NUMA nodes, groups. No GPU is needed.

How such Pools work is in test_pool_devices_work.py, and what goes wrong in test_pool_devices_trouble.py.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cableway as cw
from cableway._core.library import lib
from cableway._pool.devices import devices as pool_devices
from cableway._pool.devices.devices import Device, Devices, Group
from cableway._pool.launch import environment
from cableway._pool.launch.environment import Description, Name


def gpu(number: int, kind: str = "GPU") -> Device:
    """One of the GPUs of this module."""
    return Device(
        f"cuda:{number}",
        f"{kind}-0000000{number}-aaaa-bbbb-cccc-dddddddddddd",
        f"0000:{number}0:00.0",
        132,
    )


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Any:
    """find() on a machine with so many GPUs: [(name, workers)], None where the Pool has no devices."""

    def found(devices: Any, processes: int | None = None, gpus: int = 4, **named: Any) -> Any:
        seen = [gpu(i) for i in range(gpus)]
        names = ["cpu", *(device.name for device in seen)]
        monkeypatch.setattr(pool_devices, "device_names", lambda: names)
        if gpus:
            monkeypatch.setattr(pool_devices, "_visible", lambda: seen)
        made = pool_devices.find(devices, processes, **named)
        return made and [(group.device.name, group.count) for group in made.groups]

    return found


# ---- what devices= says


def test_it_names_gpus_in_several_ways(find):
    each = [(f"cuda:{i}", 1) for i in range(4)]
    assert find("cuda") == find("auto") == find(["cuda:0", "cuda:1", "cuda:2", "cuda:3"]) == each
    assert find("cuda:2") == find(["cuda:2"]) == find({"cuda:2": 1}) == [("cuda:2", 1)]
    assert find(gpu(3).uuid) == find(gpu(3).uuid.upper().replace("GPU", "GPU")) == [("cuda:3", 1)]
    assert find({"cuda": 2}) == [(f"cuda:{i}", 2) for i in range(4)]
    assert find(("cuda:1", "cuda:0")) == [("cuda:1", 1), ("cuda:0", 1)], (
        "groups go in the order of devices="
    )
    assert find({"cuda:1": 3, "cuda:0": 1}) == [("cuda:1", 3), ("cuda:0", 1)]


class _Place:
    """`torch.device` in a Python without PyTorch."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.type = name.partition(":")[0]

    def __str__(self) -> str:
        return self.name


_Place.__module__, _Place.__name__ = "torch", "device"


def test_a_device_of_pytorch_is_a_name(find):
    assert find(_Place("cuda:2")) == find([_Place("cuda:2")]) == [("cuda:2", 1)]
    assert find({_Place("cuda:1"): 2, "cuda:0": 1}) == [("cuda:1", 2), ("cuda:0", 1)]
    assert find(_Place("cuda:0"), 1) == find((_Place("cuda:0"),)) == [("cuda:0", 1)]
    for devices in (_Place("cuda"), [_Place("cuda")]):
        with pytest.raises(
            ValueError, match='could be one GPU or all; write torch.device."cuda:0"'
        ):
            find(devices)
    for name in ("cpu", "cpu:0"):
        with pytest.raises(ValueError, match='"cpu" is not a GPU'):
            find(_Place(name))


def test_a_name_twice_means_two_workers(find):
    assert find(["cuda:1", "cuda:0", "cuda:1"]) == [("cuda:1", 2), ("cuda:0", 1)]


def test_none_and_auto_without_a_gpu_leave_the_pool_as_it_is(find):
    assert find(None) is None and find(None, 7) is None
    assert find("auto", gpus=0) is None and find("auto", 7, gpus=0) is None
    assert find("auto", gpus=0, sms=8, peer=True) is None, (
        "what is meant for GPUs does not matter then"
    )


@pytest.mark.parametrize(
    ("devices", "error", "told"),
    [
        ([], ValueError, "empty"),
        ({}, ValueError, "empty"),
        ("", ValueError, "''"),
        (3, TypeError, "int"),
        ([0], TypeError, "0 is no name"),
        (b"cuda", TypeError, "bytes"),
        ("cpu", ValueError, "runs on the CPU"),
        (["cpu", "cuda:0"], ValueError, "runs on the CPU"),
        ("cuda0", ValueError, "'cuda0' is not a device"),
        ("gpu:1", ValueError, "'gpu:1' is not a device"),
        (["cuda"], ValueError, 'write "cuda:0"'),
        (["auto"], ValueError, "stands alone"),
        ({"auto": 1, "cuda:0": 1}, ValueError, "stands alone"),
        ({"cuda:0": 0}, ValueError, "0 workers"),
        ({"cuda:0": -1}, ValueError, "-1 workers"),
        ({"cuda:0": True}, ValueError, "True workers"),
        ({"cuda:0": 1.0}, ValueError, "1.0 workers"),
        ({"cuda:0": 1, "cuda": 1}, ValueError, "the same GPU"),
        (["cuda:0", "GPU-00000000-aaaa-bbbb-cccc-dddddddddddd"], ValueError, "the same GPU"),
        ("GPU-12345678", cw.DeviceError, "sees no GPU GPU-12345678"),
    ],
)
def test_what_says_nothing_is_refused_with_the_remedy(find, devices, error, told):
    with pytest.raises(error, match=told):
        find(devices)


def test_processes_may_not_say_otherwise(find):
    assert find({"cuda:0": 2, "cuda:1": 1}, 3) == [("cuda:0", 2), ("cuda:1", 1)]
    with pytest.raises(ValueError, match=r"processes=4, but devices= makes 3 workers"):
        find({"cuda:0": 2, "cuda:1": 1}, 4)


def test_more_devices_than_groups_are_refused():
    groups = [Group(Device(f"cuda:{i}", f"GPU-{i:08x}"), 1) for i in range(65)]
    with pytest.raises(ValueError, match="at most 64 devices, 65"):
        Devices(groups, [])


def test_sms_is_checked_against_the_gpu(find):
    assert find({"cuda": 4}, sms=33)
    for sms in (0, -8, 1.5, "8", True):
        with pytest.raises(ValueError, match="sms is a number of multiprocessors"):
            find("cuda", sms=sms)
    with pytest.raises(
        ValueError, match=r"5 workers of sms=33 need 165 multiprocessors of cuda:0, which has 132"
    ):
        find({"cuda": 5}, sms=33)


@pytest.mark.parametrize(("option", "value"), [("sms", 8), ("peer", True)])
def test_options_of_gpus_are_for_pools_with_devices(option, value):
    for kind in (cw.Pool, cw.Executor):
        with pytest.raises(ValueError, match=f"{option}= is for a Pool with devices="):
            kind(1, **{option: value})


@pytest.mark.parametrize("kind", [cw.Pool, cw.Executor])
def test_fork_is_refused_with_the_reason(kind):
    name = "context" if kind is cw.Pool else "mp_context"
    with pytest.raises(ValueError, match="CUDA does not survive a fork"):
        kind(devices="cuda", **{name: "fork"})


def test_instances_of_mig_are_those_that_the_mask_names(monkeypatch):
    parts = [gpu(i, "MIG") for i in range(3)]

    def place(name: bytes, told: Any) -> int:
        told.uuid = parts[0].uuid.encode()
        return 0

    class Library:
        cw_device_place_of = staticmethod(place)
        cw_device_check = staticmethod(lambda name: 0)

    monkeypatch.setattr(pool_devices, "lib", Library)
    monkeypatch.setattr(pool_devices, "device_names", lambda: ["cpu", "cuda:0"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{parts[0].uuid},{parts[1].uuid}")
    found = pool_devices.find("cuda", None)
    assert found is not None
    assert [group.device.uuid for group in found.groups] == [parts[0].uuid, parts[1].uuid]
    assert [environment.mask_of(group.device, found.visible) for group in found.groups] == [
        [parts[0].uuid],
        [parts[1].uuid],
    ], "a process sees one instance"
    found = pool_devices.find([parts[2].uuid, "cuda:0"], None)
    assert found is not None and found.groups[0].device.uuid == parts[2].uuid


def test_workers_are_shared_out_evenly_when_their_number_changes():
    made = Devices([Group(gpu(i), 1) for i in range(3)], [gpu(i) for i in range(3)], sms=33)
    assert (
        made.resize(3) == [1, 1, 1] and made.resize(5) == [2, 2, 1] and made.resize(12) == [4, 4, 4]
    )
    with pytest.raises(ValueError, match="at least one worker on each, and 2 were asked for"):
        made.resize(2)
    with pytest.raises(ValueError, match="5 workers of sms=33"):
        made.resize(13)
    assert [group.count for group in made.groups] == [4, 4, 4], "a refusal changes nothing"


# ---- where a worker is


def machine(
    folder: Path, bus: str, cpus: str, node: str, siblings: dict[int, str] | None = None
) -> Path:
    """A sysfs with one GPU."""
    place = folder / "bus/pci/devices" / bus
    place.mkdir(parents=True)
    (place / "local_cpulist").write_text(cpus + "\n")
    (place / "numa_node").write_text(node + "\n")
    for cpu, told in (siblings or {}).items():
        topology = folder / f"devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(told + "\n")
    return folder


def test_cores_near_a_gpu_are_those_that_this_process_may_use(tmp_path):
    bus = "0000:4e:00.0"
    sys_ = machine(tmp_path, bus, "0-3,8-11", "1", {i: f"{i % 8},{i % 8 + 8}" for i in range(16)})
    near = environment.cores_near
    assert near(bus, range(16), sys_) == [[0, 8], [1, 9], [2, 10], [3, 11]]
    assert near(bus, {1, 2, 5, 9}, sys_) == [[1, 9], [2]]
    assert near(bus, {4, 5}, sys_) is None, "none near is usable: it runs wherever it may"
    assert near("0000:ff:00.0", range(16), sys_) is None and near("", range(16), sys_) is None
    assert environment.node_near(bus, sys_) == 1


def test_a_machine_that_does_not_tell_where_a_gpu_is(tmp_path):
    sys_ = machine(tmp_path, "0000:01:00.0", "", "-1")
    assert environment.cores_near("0000:01:00.0", {0, 1}, sys_) is None
    assert environment.node_near("0000:01:00.0", sys_) is None
    assert environment.node_near("", sys_) is None
    sys_ = machine(tmp_path, "0000:02:00.0", "0-1", "0")
    assert environment.cores_near("0000:02:00.0", {0, 1}, sys_) == [[0], [1]], (
        "no topology: each is a core"
    )


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 8, 9])
def test_workers_of_one_gpu_share_its_cores(parts):
    cores = [[i, i + 8] for i in range(8)]
    shares = [environment.share_of(cores, part, parts) for part in range(parts)]
    if parts <= 8:
        assert sorted(cpu for share in shares for cpu in share) == list(range(16)), (
            "each in one share"
        )
        assert max(map(len, shares)) - min(map(len, shares)) <= 2
        assert all((cpu + 8) % 16 in share for share in shares for cpu in share), (
            "a core is not divided"
        )
    else:
        assert shares == [list(range(16))] * parts


def test_a_description_is_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    devices = Devices(
        [Group(gpu(1), 2), Group(gpu(0), 1)], [gpu(0), gpu(1), gpu(2)], peer=True, sms=16
    )
    sys_ = machine(tmp_path, gpu(1).bus, "0-1", "3")
    first, second = (environment.describe(devices, 0, part, sys_) for part in (0, 1))
    assert (first.name, first.uuid, first.cpus, first.node) == ("cuda:1", gpu(1).uuid, [0], 3)
    assert second.cpus == [1] and (second.part, second.peer, second.sms) == (1, True, 16)
    assert first.variables == {"CUDA_VISIBLE_DEVICES": ",".join(gpu(i).uuid for i in (1, 0, 2))}
    other = environment.describe(devices, 1, 0, sys_)
    assert (
        other.cpus is None
        and other.node is None
        and other.variables["CUDA_VISIBLE_DEVICES"].startswith(gpu(0).uuid)
    )


def test_memory_comes_from_a_node_where_the_kernel_lets_it():
    """In a thread of its own, since it is the thread's."""
    code = (
        "from cableway._core.library import lib\n"
        "import ctypes\n"
        "done = lib.cwpy_prefer_node(0)\n"
        "mode = ctypes.c_int(-1)\n"
        "asked = ctypes.CDLL(None).syscall(239, ctypes.byref(mode), None, 0, None, 0)\n"
        "print(done, asked, mode.value)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    done, asked, mode = map(int, told.stdout.split())
    assert done in (0, -1)
    if done == 0 and asked == 0:
        assert mode & 0xFF == 1, "MPOL_PREFERRED"
    assert lib.cwpy_prefer_node(-1) == lib.cwpy_prefer_node(1 << 20) == -1


# ---- how it gets there


def described(cpus: list[int] | None) -> Description:
    """The environment of a worker."""
    return Description("cuda:1", "GPU-b", ["GPU-a"], cpus, None, 0, False, None)


def test_a_name_brings_its_environment_along():
    mine = sorted(os.sched_getaffinity(0))
    name = Name.with_environment("SpawnPoolWorker-1", described(mine[:1]))
    assert name == "SpawnPoolWorker-1" and isinstance(name, str)
    code = (
        "import os, pickle, sys\n"
        "name = pickle.load(sys.stdin.buffer)\n"
        "assert type(name) is str and 'cableway' not in sys.modules\n"
        "print(name, os.environ['CUDA_VISIBLE_DEVICES'], sorted(os.sched_getaffinity(0)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(name), capture_output=True, check=True
    )
    assert told.stdout.decode().strip() == f"SpawnPoolWorker-1 GPU-b,GPU-a {mine[:1]}"


def test_cores_that_were_taken_away_do_not_keep_a_worker_from_starting():
    name = Name.with_environment("x", described([100_000]))
    code = "import os, pickle, sys; pickle.load(sys.stdin.buffer); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    told = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(name), capture_output=True, check=True
    )
    assert told.stdout.decode().strip() == "GPU-b,GPU-a"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_only_threads_on_the_old_share_move_to_the_new_one() -> None:
    a, b = sorted(os.sched_getaffinity(0))[:2]
    text = f"""if True:
        import os, sys, threading
        os.sched_setaffinity(0, {{{a}, {b}}})
        ready = threading.Barrier(3)
        def wait(own):
            if own: os.sched_setaffinity(0, {{{a}}})
            ready.wait()
            end.wait()
        end = threading.Event()
        for own in (False, True):
            threading.Thread(target=wait, args=(own,), daemon=True).start()
        ready.wait()
        print("ready", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        tasks = f"/proc/{child.pid}/task"
        before = {int(name): os.sched_getaffinity(int(name)) for name in os.listdir(tasks)}
        pidfd = os.pidfd_open(child.pid)
        environment.move(child.pid, pidfd, [a, b], [b])
        for thread, was in before.items():
            assert os.sched_getaffinity(thread) == ({b} if was == {a, b} else was)
        assert {a} in before.values() and {a, b} in before.values()
    environment.move(child.pid, pidfd, [b], [a])  # it has ended
    os.close(pidfd)


# ---- a worker that is moved to other cores

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")


@pytest.fixture
def shares() -> tuple[list[int], list[int]]:
    """Two shares of the cores, one CPU each."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    return [first], [second]


@contextlib.contextmanager
def _process(cpus: list[int]) -> Iterator[tuple[int, int]]:
    """A process that runs on some cores and does nothing: its pid and a pidfd."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(child.pid)
    try:
        os.sched_setaffinity(child.pid, cpus)
        yield child.pid, pidfd
    finally:
        child.kill()
        child.communicate()
        os.close(pidfd)


@two_cores
def test_who_has_a_dead_workers_pid_is_not_moved(shares) -> None:
    old, new = shares
    with _process(old) as (_, dead):
        pass_on = os.dup(dead)
    with _process(old) as (stranger, _):  # as if it had got the pid
        environment.move(stranger, pass_on, old, new)
        assert os.sched_getaffinity(stranger) == set(old)
    os.close(pass_on)


@two_cores
@pytest.mark.parametrize("seen", [[False], [True, False]])
def test_who_has_the_number_of_a_thread_that_ended_is_not_moved(shares, monkeypatch, seen) -> None:
    """It ended before it was looked up, or between that and the moving: then the stranger is put back."""
    old, new = shares
    moved = []
    move = os.sched_setaffinity
    with _process(old) as (pid, pidfd), _process(old) as (stranger, _):
        looks = iter(seen)
        monkeypatch.setattr(os, "listdir", lambda _: [str(stranger)])
        monkeypatch.setattr(environment, "_is_in", lambda *_: next(looks))
        monkeypatch.setattr(os, "sched_setaffinity", lambda *now: (moved.append(now), move(*now)))
        environment.move(pid, pidfd, old, new)
        assert os.sched_getaffinity(stranger) == set(old)
        assert moved == [(stranger, set(new)), (stranger, set(old))][: 2 * (len(seen) - 1)]
        assert not list(looks)
        monkeypatch.undo()
