"""Repairs imports that a fork cut short.

A thread that imports holds a lock for each module that is not complete. A fork copies these locks and the half-imported modules,
but not the thread, so in the child everything that needs such a module waits for ever. CPython repairs its global import lock in a
child, but not these locks.

Two cases need a repair.

A worker by fork of a Pool, whose successors are forked by a thread of ours at any moment:
    - Before the fork, that thread waits until no other thread imports, at most IMPORT_TIMEOUT_SECONDS (`Moment`).
    - In the worker, modules that another thread was importing are imported again when they are needed (`begin_again`): their locks
      and what exists of the modules are dropped. A package begins again with all of its Python modules, so that they have the same
      classes; its extension modules stay, since many cannot be loaded twice in a process.
    - Modules that the thread that made the Pool was importing at that time stay as they are, as in the first workers: this is a
      program that runs within an import, and it must not run again.

Any other fork, by the user: modules that threads were importing because of an import of ours (`cw.Pool` imports multiprocessing)
begin again in the same way. Other modules are left as Python leaves them, since they may be the program itself.

Invariants: in the child nobody waits for a lock, of the modules above, whose thread does not exist there; a lock of the current
thread stays its own. The first thing that the child does is to note which locks were cut short (`_note`), so locks of threads that
start later in the child are not touched.

Owner: the fork handler runs in the thread that forked, which is the only thread in the child.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any

__all__ = ["IMPORT_TIMEOUT_SECONDS", "Moment", "begin_again", "begun_again_here", "under_way"]

IMPORT_TIMEOUT_SECONDS = 1.0  # more is a program that runs within an import, or one that hangs
_LOOK_AGAIN_SECONDS = 0.01
_OURS = ("cableway", "cloudpickle", "concurrent", "multiprocessing")  # what we import late

_bootstrap: Any = importlib._bootstrap
_cut_short: dict[str, Any] = {}  # in a child: the locks of threads that are not there
_begun_again: set[str] = set()


def _locks() -> Iterator[tuple[str, Any]]:
    for name, reference in _bootstrap._module_locks.copy().items():
        lock = reference()
        if lock is not None:
            yield name, lock


def under_way() -> tuple[frozenset[str], frozenset[str]]:
    """The modules that this thread imports, and those that others do."""
    me = threading.get_ident()
    mine: set[str] = set()
    others: set[str] = set()
    for name, lock in _locks():
        owner = getattr(lock, "owner", None)
        if owner is not None:
            (mine if owner == me else others).add(name)
    return frozenset(mine), frozenset(others)


class Moment:
    """When to fork: not while others import, if that ends soon. One thread at a time uses it.

    Attributes:
        kept: what the thread that made this was importing.
    """

    def __init__(self) -> None:
        self.kept = under_way()[0]
        self._since: float | None = None

    def wait(self) -> float | None:
        """None: now. Else seconds until it should be asked again."""
        if under_way()[1] <= self.kept:
            self._since = None
            return None
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return _LOOK_AGAIN_SECONDS if now - self._since < IMPORT_TIMEOUT_SECONDS else None


def begin_again(kept: frozenset[str] = frozenset()) -> None:
    """In a child: what other threads of the parent were importing begins again when it is needed.

    Args:
        kept: modules that stay as they are, and count as complete.
    """
    _drop(set(_cut_short), kept)
    _cut_short.clear()


def begun_again_here() -> str | None:
    """A module that is being imported, and that a thread of the parent was importing when this process was forked."""
    mine, others = under_way()
    return min((mine | others) & _begun_again, default=None)


def _drop(names: set[str], kept: frozenset[str] = frozenset()) -> None:
    locks = _bootstrap._module_locks
    for name in names:
        reference = locks.get(name)
        if reference is None or reference() is not _cut_short[name]:
            continue  # this process has imported it since
        del locks[name]
        if name in kept or name not in sys.modules:
            continue
        if _is_initializing(name):
            _forget(name)
        else:
            _attach(name)


def _is_initializing(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def _forget(name: str) -> None:
    """It was not complete."""
    _begun_again.add(name)
    del sys.modules[name]
    mine = under_way()[0]
    for other in [other for other in sys.modules if other.startswith(name + ".")]:
        if other not in mine and not _is_extension(sys.modules[other]):
            del sys.modules[other]


def _is_extension(module: Any) -> bool:
    try:  # an attribute of a module that is loaded when first used would load it
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
    except AttributeError:
        return False
    return isinstance(getattr(spec, "loader", None), ExtensionFileLoader)


def _attach(name: str) -> None:
    """It was complete; its package may have lacked it."""
    parent, _, child = name.rpartition(".")
    package = sys.modules.get(parent)
    if isinstance(package, ModuleType) and child not in vars(package):
        setattr(package, child, sys.modules[name])


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in _OURS


def _begin_ours_again() -> None:
    """What threads were importing by an import of ours: from the first module of ours on, in the order of sys.modules."""
    order = {name: number for number, name in enumerate(sys.modules)}
    by_thread: dict[int, list[str]] = {}
    for name, lock in _cut_short.items():
        by_thread.setdefault(lock.owner, []).append(name)
    for names in by_thread.values():
        names.sort(
            key=lambda name: order.get(name, len(order))
        )  # what is still looked for comes last
        first = next((number for number, name in enumerate(names) if _is_ours(name)), len(names))
        ours = names[first:]
        _drop(set(ours))
        for name in ours:
            del _cut_short[name]


def _renew(lock: Any) -> None:
    """This thread's own lock: another thread may have been looking at it, or waiting for it, when it was forked."""
    lock.lock = type(lock)(lock.name).lock
    lock.wakeup = threading.Lock()
    lock.waiters = type(lock.waiters)()


def _note() -> None:
    me = threading.get_ident()
    _cut_short.clear()
    for name, lock in list(_locks()):
        owner = getattr(lock, "owner", None)
        if owner == me:
            _renew(lock)
        elif owner is None:  # somebody was about to take it, or has just released it
            del _bootstrap._module_locks[name]
        else:
            _cut_short[name] = lock
    waiting = getattr(_bootstrap._blocking_on, "data", _bootstrap._blocking_on)
    for thread in [thread for thread in waiting if thread != me]:
        del waiting[thread]
    if _cut_short:
        _begin_ours_again()


os.register_at_fork(after_in_child=_note)
