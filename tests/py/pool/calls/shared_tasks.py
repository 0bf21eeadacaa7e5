"""Functions for the workers of test_pool_shared.py and test_constant.py."""

from __future__ import annotations

import os
import pickle
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cableway as cw

kept: list[Any] = []


def first_then_write(values: Any, number: int) -> float:
    """What the array begins with; then writes its own number all over it."""
    found = float(values.reshape(-1)[0])
    assert (values == found).all()
    values[...] = number + 100
    time.sleep(0.002)
    assert (values == number + 100).all()
    return found


def first_then_write_pair(pair: tuple[Any, int]) -> float:
    return first_then_write(*pair)


def keep_and_write(values: Any, number: int) -> int:
    """Writes into one page of an array and keeps it for good."""
    values[number] = -number
    kept.append((values, number))
    return os.getpid()


def kept_are_own(nothing: Any = None) -> bool:
    """Whether each array that was kept has its own number, and no other's."""
    time.sleep(0.01)
    return all(
        values[number] == -number and (np.delete(values, number) == 1).all()
        for values, number in kept
    )


def forget(nothing: Any = None) -> None:
    kept.clear()
    time.sleep(0.01)


def at(values: Any, i: int) -> float:
    return float(values[i])


def at_of(values: Any, i: int) -> float:
    return float(values.reshape(-1)[i])


def at_in_dict(given: dict[str, Any]) -> float:
    return float(given["values"][given["i"]])


def kind_of(values: Any, i: int) -> tuple[Any, ...]:
    return (
        type(values).__name__, values.shape, values.dtype, values.flags.c_contiguous,
        values.flags.f_contiguous, values.flags.writeable, values.tobytes(),
    )  # fmt: skip


@dataclass
class Holder:
    values: Any
    i: int = 0

    def at(self, i: int) -> float:
        return float(self.values[i])

    def __call__(self, i: int) -> float:
        return float(self.values[i])


class Pair(NamedTuple):
    values: Any
    i: int


def at_of_holder(holder: Any) -> float:
    return float(holder.values[holder.i])


class Refilled:
    """Pickles itself through one buffer of its class, filled anew each time."""

    scratch = np.zeros(50_000)

    def __init__(self, number: int) -> None:
        self.number = number
        self.values = self.scratch

    def __getstate__(self) -> dict[str, Any]:
        self.scratch[...] = self.number
        return {"values": self.scratch, "number": self.number}


def is_its_own(given: Refilled) -> bool:
    return bool((given.values == given.number).all())


def killed_at(values: Any, i: int) -> float:
    if i == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(values[i])


def fork_and_write(values: Any, number: int) -> tuple[int, bool]:
    """A child writes into the array after its parent has; what the child's exit says, and what the parent sees."""
    values[0] = number
    child = os.fork()
    if child == 0:
        mine = bool(values[0] == number and values[1] == 1)
        values[...] = -5
        os._exit(0 if mine and (values == -5).all() else 1)
    status = os.waitpid(child, 0)[1]
    return status, bool(values[0] == number and (values[1:] == 1).all())


def nap_with(values: Any, mark: str) -> None:
    values[0] = 7
    Path(mark).touch()
    time.sleep(60)


def fail_with(values: Any, i: int) -> None:
    raise ValueError(f"{i} of {len(values)}")


def doubled(values: Any, i: int) -> Any:
    values *= 2
    return values


# ---- for constants


class Model:
    """Counts in each process how often it was unpickled there."""

    loads = 0

    def __init__(self, weights: Any, name: str = "") -> None:
        self.weights = weights
        self.name = name

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        type(self).loads += 1

    def score(self, i: int) -> float:
        return float(self.weights[i])


def score(model: Model, i: int) -> float:
    return model.score(i)


def score_pair(pair: tuple[Model, int]) -> float:
    return pair[0].score(pair[1])


def loads_of(model: Model, i: int) -> tuple[int, int]:
    time.sleep(0.01)
    return os.getpid(), type(model).loads


def is_writeable(given: Any, i: int) -> tuple[bool, bool]:
    return given["a"].flags.writeable, given["b"].flags.writeable


def write_into(given: Any, i: int) -> None:
    given["a"][i] = 1


def value_of(constant: Any) -> Any:
    assert isinstance(constant, cw.Constant)
    return float(constant.value["a"].sum())


def ident(given: Any, i: int) -> tuple[int, int]:
    time.sleep(0.01)
    return os.getpid(), id(given)


def same(value: Any) -> Any:
    return value


def listed(values: list[Any]) -> list[Any]:
    assert type(values) is list
    return values


def is_a_model(given: Any) -> bool:
    return isinstance(given, Model)


def value_of_first(constants: list[Any]) -> float:
    return value_of(constants[0])


def sum_of_array(given: dict[str, Any]) -> float:
    return float(given["array"].numpy().sum())


def inner_name(given: list[Any]) -> Any:
    return given[0].value["text"]


def first_of(given: dict[str, Any], i: int) -> float:
    return float(given["a"][0])


def keep_handle(constants: list[Any]) -> None:
    kept[:] = constants
    assert constants[0].value["a"][5] == 0
    time.sleep(0.01)


def kept_handle_is_closed(nothing: Any = None) -> bool:
    time.sleep(0.01)
    if not kept:
        return True
    try:
        return kept[0].value is None
    except cw.Stale:
        return bool(kept[0].closed)


def set_kept(model: Model) -> None:
    kept[:] = [model]


def kept_score(i: int) -> float:
    return kept[0].score(i)


def predict(fitted: Any, rows: Any, begin: int, end: int) -> Any:
    return fitted.predict(rows[begin:end])


def cached(nothing: Any = None) -> int:
    from cableway.constant import _cache

    time.sleep(0.01)
    return len(_cache)


def use_and_close(table: Any) -> None:
    """In a child by fork."""
    assert float(table.value["a"][5]) == 5.0
    copy = pickle.loads(pickle.dumps(table))
    assert copy.value is table.value
    table.close()
    assert copy.value["name"] == "table"


class CannotBePickled:
    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")
