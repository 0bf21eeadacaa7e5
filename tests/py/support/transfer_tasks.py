"""Functions that tasks of test_transfers and test_overlap call."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

import cableway as cw

kept: list[Any] = []


def told(x: cw.Array) -> tuple[Any, ...]:
    """What an argument is, and what it holds."""
    values = x.to("cpu").numpy()
    return type(x).__name__, x.shape, x.dtype.str, x.device.rstrip("0123456789"), values.tobytes()


def bump(x: cw.Array, by: int = 1) -> int:
    """Adds to an argument in place, by way of the host wherever it lies."""
    values = x.to("cpu").numpy() + np.array(by, x.dtype)
    x.copy_from(np.asarray(values, order="F" if _is_fortran(x) else "C"))
    return os.getpid()


def _is_fortran(x: cw.Array) -> bool:
    return x.flags.f_contiguous and not x.flags.c_contiguous


def add(x: cw.Array, y: cw.Array, out: cw.Array) -> None:
    """The sum of two arguments in a third."""
    out.copy_from(x.to("cpu").numpy() + y.to("cpu").numpy())


def bump_part(pair: dict[str, Any]) -> str:
    """An argument in a dictionary within a list."""
    bump(pair["x"][0], 5)
    return str(pair["text"])


def bump_and_raise(x: cw.Array) -> None:
    """Writes, and fails."""
    bump(x)
    raise RuntimeError("after it wrote")


def bump_and_die(x: cw.Array, flag: str) -> None:
    """Writes, and is killed the first time."""
    bump(x)
    if not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def bump_and_wait(x: cw.Array, begun: str, go: str) -> None:
    """Writes, tells of it, and ends when a file is there."""
    bump(x)
    Path(begun).touch()
    while not Path(go).exists():
        pass


def bump_and_keep(x: cw.Array) -> None:
    """Writes, and holds the argument for ever."""
    bump(x)
    kept.append(x)


def total_of_kept() -> float:
    """What is held."""
    return sum(float(x.to("cpu").numpy().sum()) for x in kept)


def bump_and_give(x: cw.Array) -> cw.Array:
    """Writes, and returns the argument itself."""
    bump(x)
    return x


def give_in(x: Any) -> Any:
    """A result that may not be."""
    return cw.In(np.asarray(x))
