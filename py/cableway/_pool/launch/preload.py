"""What the server of _pool.launch.forker imports, and whether the server may be forked after that.

It imports what every worker would import by itself: the main module as multiprocessing does it, and modules that it is told. A forked
worker must be as good as a spawned one. So the server refuses to serve, and gives the reason, if an import raised or left
    - threads: a fork does not have them, and their locks stay locked for ever. Threads that their library ends at a fork are
      allowed (OpenBLAS, which comes with NumPy, starts one for each core when it is imported): this is checked after a fork
    - an open GPU: CUDA's driver does not work in a fork
    - descriptors of anything but files: all workers would share a socket or pipe
    - processes
    - semaphores or shared memory of multiprocessing that its resource tracker knows: each spawned worker makes its own
    - random generators that the user's modules made without a seed: all workers would draw the same numbers

The generators of the modules random and numpy.random go to the workers as the import left them if it seeded them, as they would be in
a spawned worker. Otherwise each worker seeds them anew.
"""

from __future__ import annotations

import gc
import importlib
import os
import random
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable
from multiprocessing import process, resource_tracker, spawn
from typing import Any

import numpy
import numpy.random
import numpy.random.bit_generator

__all__ = ["Preload", "device_of", "is_users"]

_STANDARD = os.path.join(os.path.realpath(sysconfig.get_paths()["stdlib"]), "")
_INSTALLED = {"site-packages", "dist-packages"}
_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


class Preload:
    """Imports, and remembers what a worker must know of it."""

    def __init__(self) -> None:
        self._seeded: dict[str, bool] = {"random": False, "numpy": False}
        self._fresh = 0  # generators of the module random
        self._entropy: set[int] = set()  # that generators of NumPy were seeded from
        self._tracked: set[tuple[str, str]] = set()  # names and kinds
        self._state: Any = None

    def run(self, preparation: dict[str, Any], modules: list[str]) -> str:
        """Imports; returns why the process must not be forked, else "".

        Args:
            preparation: of multiprocessing.spawn.
            modules: what else. One that cannot be imported is left to the workers.
        """
        before = _descriptors()
        undo = self._watch()
        try:
            process.current_process()._inheriting = True  # type: ignore[attr-defined]
            try:
                spawn.prepare(preparation)
            finally:
                del process.current_process()._inheriting  # type: ignore[attr-defined]
            for name in modules:
                try:
                    importlib.import_module(name)
                except Exception:
                    continue
        except BaseException as error:  # also sys.exit
            return f"importing the main module raised {error!r}"
        finally:
            for restore in undo:
                restore()
        self._state = random.getstate()
        return self._left(before)

    def renew_randomness(self) -> None:
        """Before a fork: the worker's numbers are its own. (After it, this would touch many pages.)"""
        if not self._seeded["numpy"]:
            numpy.random.seed(numpy.frombuffer(os.urandom(32), numpy.uint32))

    def restore_randomness(self) -> None:
        """In a new worker: Python seeds the module random anew in a fork."""
        if self._seeded["random"]:
            random.setstate(self._state)

    def _left(self, before: dict[int, str]) -> str:
        """Why this process must not be forked."""
        mappings = _mappings()
        device = (
            device_of(mappings) or device_of(_descriptors().values()) or _other_driver(mappings)
        )
        if device:
            return f"importing opened the GPU {device}"
        for fd, target in _descriptors().items():
            if before.get(fd) != target and not target.startswith("/"):
                return f"importing left a descriptor open that workers must not share: {target}"
        with open(f"/proc/self/task/{threading.get_native_id()}/children") as file:
            children = file.read().split()
        if children:
            return f"importing left processes running: {', '.join(children)}"
        if self._tracked:
            names = ", ".join(f"{kind} {name}" for name, kind in sorted(self._tracked))
            return f"importing left what workers must not share: {names}"
        if self._fresh or self._uses_entropy():
            return "importing made a random generator without a seed, which workers must not share"
        _fork_once()
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            return f"importing left threads running ({threads - 1})"
        return ""

    def _uses_entropy(self) -> bool:
        """Whether a generator of NumPy's has its seed from there. (RandomState(7) asks for entropy too, in vain.)"""
        if not self._entropy:
            return False
        for found in gc.get_objects():
            if isinstance(found, numpy.random.BitGenerator):
                seeds = getattr(found, "seed_seq", None) or getattr(found, "_seed_seq", None)
                if getattr(seeds, "entropy", None) in self._entropy:
                    return True
        return False

    def _watch(self) -> list[Callable[[], None]]:
        """Notes who seeds what, and what the resource tracker is told; returns what ends this."""
        undo: list[Callable[[], None]] = []

        def replace(owner: Any, name: str, new: Any) -> None:
            old = getattr(owner, name)
            setattr(owner, name, new(old))
            undo.append(lambda: setattr(owner, name, old))

        def noting(kind: str) -> Callable[[Any], Any]:
            def wrap(old: Any) -> Any:
                def seed(*args: Any, **named: Any) -> Any:
                    made = self._fresh
                    result = old(*args, **named)
                    self._fresh = made  # the global one is seeded anew in each worker
                    given = (*args, *named.values())
                    self._seeded[kind] = bool(given) and given[0] is not None
                    return result

                return seed

            return wrap

        def fresh_random(old: Any) -> Any:
            def seed(self_: Any, a: Any = None, version: int = 2) -> None:
                caller = sys._getframe(1)
                if caller.f_code.co_filename == random.__file__ and caller.f_back is not None:
                    caller = caller.f_back  # it was Random.__init__
                self._fresh += a is None and is_users(caller.f_code.co_filename)
                old(self_, a, version)

            return seed

        def fresh_bits(old: Any) -> Any:
            def randbits(k: int) -> int:
                found = int(old(k))
                if _by_user():
                    self._entropy.add(found)
                return found

            return randbits

        def noting_names(old: Any) -> Any:
            def send(cmd: str, name: str, rtype: str) -> None:
                old(cmd, name, rtype)
                if cmd == "REGISTER":
                    self._tracked.add((name, rtype))
                else:
                    self._tracked.discard((name, rtype))

            return send

        replace(resource_tracker._resource_tracker, "_send", noting_names)
        for name in ("seed", "setstate"):
            replace(random, name, noting("random"))
        for name in ("seed", "set_state"):
            replace(numpy.random, name, noting("numpy"))
        replace(random.Random, "seed", fresh_random)
        replace(numpy.random.bit_generator, "randbits", fresh_bits)
        return undo


def is_users(path: str) -> bool:
    """Whether a source file is the user's: not of the standard library, not an installed package's."""
    path = os.path.realpath(path)
    return not path.startswith(_STANDARD) and _INSTALLED.isdisjoint(path.split(os.sep))


def _by_user() -> bool:
    """Whether the module whose body is running is the user's."""
    frame = sys._getframe(2)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    return is_users(frame.f_code.co_filename)


def device_of(paths: Any) -> str:
    """The first of some paths that is a GPU's, else ""."""
    return next((path for path in paths if path.startswith(_GPUS)), "")


def _other_driver(mappings: list[str]) -> str:
    """The driver that CABLEWAY_CUDA_DRIVER names, if it is there: of one that is not NVIDIA's no device tells that it is in use."""
    name = os.environ.get("CABLEWAY_CUDA_DRIVER", "")
    return name if name and os.path.realpath(name) in mappings else ""


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one of this very listing
            continue
    return found


def _mappings() -> list[str]:
    with open("/proc/self/maps") as file:
        return [line.split(None, 5)[5].rstrip("\n") for line in file if line.count(" /")]


def _fork_once() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads is what is to be found out
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:  # SIGCHLD is ignored: it has waited until the child had ended
        pass
