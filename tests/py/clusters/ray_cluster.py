"""What the programs share: actors, and looks into them. Runs in the environment of Ray."""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import ray

import cableway.ray
from cableway import client
from cableway._core import programs

MIB = 1 << 20
OBJECT_STORE = 150 * MIB
SECONDS = 60
STARTS = 5  # of Ray, until one is quick enough
STACKS = signal.SIGUSR1  # an actor writes where its threads are into its log


def start() -> None:
    """Ray on this machine. Its process for the node ends if another one needs 15 s to start, as on a busy machine (its issue 65983): then
    all is started again.
    """
    for left in reversed(range(STARTS)):
        try:
            ray.init(
                num_cpus=2,
                object_store_memory=OBJECT_STORE,
                include_dashboard=False,
                logging_level="warning",
                log_to_driver=False,
            )
            return
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise


@ray.remote(num_cpus=0)
class Maker:
    """Makes arrays."""

    def __init__(self) -> None:
        faulthandler.register(STACKS)

    @ray.method(tensor_transport="cableway_numpy")
    def ones(self, mib: float, fill: float = 1.0) -> np.ndarray[Any, Any]:
        return np.full(int(mib * MIB) // 8, fill)

    @ray.method(tensor_transport="cableway_numpy")
    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @ray.method(tensor_transport="cableway_numpy")
    def kept(self, mib: float) -> np.ndarray[Any, Any]:
        self.array = np.ones(int(mib * MIB) // 8)
        return self.array

    def write(self, value: float) -> None:
        self.array[:] = value

    def wait_freed(self, seconds: float) -> None:
        ray.experimental.wait_tensor_freed(self.array, seconds)

    def plainly(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def pid(self) -> int:
        return os.getpid()

    def objects(self) -> int:
        return stored()


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Reader:
    """Reads arrays, and keeps what it is told to."""

    def __init__(self) -> None:
        faulthandler.register(STACKS)

    def total(self, x: Any) -> float:
        return float(x.sum())

    def spoil(self, x: Any) -> float:
        x[:] = 7
        return float(x.sum())

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def keep(self, x: Any) -> int:
        self.kept = x
        return cableway.ray.shared_bytes(x)

    def kept_total(self) -> float:
        return float(self.kept.sum())

    def collect(self, *some: Any) -> list[tuple[float, int]]:
        self.kept = some
        return [(float(x.sum()), cableway.ray.shared_bytes(x)) for x in some]

    def drop(self) -> None:
        del self.kept

    @ray.method(tensor_transport="cableway_numpy")
    def twice(self, x: Any) -> Any:
        return 2 * x

    def pid(self) -> int:
        return os.getpid()


def stored() -> int:
    """How many objects Ray's store of tensors has in this process."""
    from ray._private.worker import global_worker

    return int(global_worker.rdt_manager.rdt_store.get_num_objects())


def used() -> int:
    """Bytes of shared memory that the broker has given out. Starts one if none runs."""
    client.current()
    done = subprocess.run(
        [programs.path("cableway"), "status", "--json"], capture_output=True, check=True
    )
    return int(json.loads(done.stdout)["gauges"]["bytes"])


def warnings_here() -> list[str]:
    """What the logger of cableway.ray says in this process from now on."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("cableway.ray").addHandler(handler)
    return said


def eventually(holds: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Whether it comes true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return holds()


def kill(actor: Any) -> None:
    """Kills an actor's process, and waits until Ray knows."""
    os.kill(ray.get(actor.pid.remote(), timeout=SECONDS), signal.SIGKILL)

    def dead() -> bool:
        try:
            ray.get(actor.pid.remote(), timeout=SECONDS)
        except ray.exceptions.ActorDiedError:
            return True
        except ray.exceptions.ActorUnavailableError:
            pass  # it has no answer, and Ray was not told within a second that it is dead
        return False

    assert eventually(dead)


def write_stacks() -> None:
    """Where the threads of this process and of its actors are: those write it into their logs, which `ray_runs` shows."""
    faulthandler.dump_traceback()
    mine = f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}".encode()
    for entry in Path("/proc").iterdir():
        try:
            title, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            actor = title.startswith((b"ray::Maker", b"ray::Reader"))
            if actor and mine in environment.split(b"\0"):
                os.kill(int(entry.name), STACKS)
        except OSError:
            continue  # no process, or it has just ended
    time.sleep(1)


def main(functions: dict[str, Any]) -> None:
    """Runs the function that the command line names."""
    name, *arguments = sys.argv[1:]
    start()
    try:
        functions[name](*arguments)
    except BaseException:
        write_stacks()
        raise
    finally:
        ray.shutdown()
    print("well")
