"""Functions for the workers of the Pool's tests: spawn and forkserver find them by this module's name."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import signal
import sys
import time
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np

import cableway as cw
from cableway._transport.blocks import BlockStore

CHILD_LIVES = 60  # seconds that a child of a killed worker lives

initialized: list[Any] = []


def square(x: Any) -> Any:
    return x * x


def add(x: Any, y: Any = 0, *, z: Any = 0) -> Any:
    return x + y + z


def same(x: Any) -> Any:
    return x


def fill_or_fail(x: Any, fails: bool = False) -> None:
    x[:] = 1
    if fails:
        raise Fault("after it was written", 0)


def pid(_: Any = None) -> int:
    return os.getpid()


def pid_after_a_while(_: Any = None) -> int:
    time.sleep(0.02)
    return os.getpid()


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def meet(appointment: tuple[str, int]) -> int:
    """Waits for the other one of two tasks: 0 and 1 meet, 2 and 3, and so on."""
    folder, number = Path(appointment[0]), appointment[1]
    (folder / str(number)).touch()
    while not (folder / str(number ^ 1)).exists():
        time.sleep(0.001)
    return number


def wait_for(path: str) -> str:
    """Runs until a file is there."""
    while not Path(path).exists():
        time.sleep(0.005)
    return path


def slow_square(x: int) -> int:
    time.sleep(0.05 if x % 3 == 0 else 0)
    return x * x


class Fault(Exception):
    """An exception with more than a sentence."""

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence, number)
        self.number = number


def fail(x: Any) -> Any:
    raise Fault(f"no {x}", 7)


def fail_at_three(x: int) -> int:
    if x == 3:
        raise Fault("three", 3)
    return x


def fail_holding(values: np.ndarray[Any, Any]) -> None:
    raise Fault(f"{len(values)} values", 1)


def kill_at_three(x: int) -> int:
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def killed(_: Any = None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_hard(code: int) -> None:
    os._exit(code)


def exit_softly(code: int) -> None:
    sys.exit(code)


def interrupted(_: Any = None) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)


def fork_and_be_killed(pid_file: str) -> None:
    """Leaves a child that keeps multiprocessing's sentinel open, and whose pid the file tells."""
    child = os.fork()
    if child == 0:
        time.sleep(CHILD_LIVES)
        os._exit(0)
    Path(pid_file).write_text(str(child))
    os.kill(os.getpid(), signal.SIGKILL)


class CannotBePickled:
    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")


class ExitsWhenPickled:
    def __reduce__(self) -> Any:
        raise SystemExit(3)


class CannotBeRead:
    """Pickles, and raises when it is unpickled in another process."""

    def __reduce__(self) -> Any:
        return read_only_in, (os.getpid(),)


def read_only_in(home: int) -> CannotBeRead:
    if os.getpid() != home:
        raise RuntimeError("not to be unpickled here")
    return CannotBeRead()


class FaultThatCannotBeRead(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a)


class FaultThatCannotBePickled(Exception):
    def __init__(self) -> None:
        super().__init__(lambda: 1)


def unpicklable_result(_: Any = None) -> Any:
    return lambda: 42


def stubborn_result(_: Any = None) -> Any:
    return CannotBePickled()


def unreadable_result(_: Any = None) -> Any:
    return CannotBeRead()


def unreadable_fault(_: Any = None) -> None:
    raise FaultThatCannotBeRead(1, 2)


def unpicklable_fault(_: Any = None) -> None:
    raise FaultThatCannotBePickled


class Outcome(BaseException):
    """Not an Exception, as those of some test frameworks."""


def base_fault(_: Any = None) -> None:
    raise Outcome("base")


def remember(*values: Any) -> None:
    initialized.extend(values)


def remembered(_: Any = None) -> list[Any]:
    return initialized


def note_start(path: str) -> None:
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")


def refuse_to_start(sentence: str) -> None:
    raise Fault(sentence + " " * 200_000, 5)  # too long for the ring


def refuse_and_end_slowly(mark: str, seconds: float) -> None:
    util.Finalize(None, _leave_mark_after, (mark, seconds), exitpriority=0)
    raise Fault("no", 5)


def _leave_mark_after(mark: str, seconds: float) -> None:
    time.sleep(seconds)
    Path(mark).touch()


def die_at_start(_: Any = None) -> None:
    os._exit(3)


def fail_at_start() -> None:
    raise LookupError("not here")


def die_at_first_start(path: str) -> None:
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def describe(values: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return (
        values.shape, values.dtype, values.flags.c_contiguous, values.flags.f_contiguous,
        values.flags.writeable, values.tobytes(),
    )  # fmt: skip


def overwrite(values: np.ndarray[Any, Any]) -> Any:
    values[...] = 0
    return values.sum()


def doubled(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values * 2


def kept(values: np.ndarray[Any, Any]) -> int:
    initialized.append(values)
    return len(initialized)


def kept_are_whole(expected: Any) -> bool:
    return all((array == i).all() for i, array in enumerate(initialized))


def fill(array: cw.Array, value: float) -> str | None:
    array[...] = value
    return array.name


def new_array(n: int) -> cw.Array:
    return cw.full(n, 5.0)


def arrays_and_a_lambda(n: int) -> Any:
    return [cw.full(n, 5.0), np.zeros(n), lambda: 1]


def sum_of(array: Any) -> float:
    return float(np.asarray(array).sum())


def leave_mark(path: str) -> None:
    Path(path).touch()
    time.sleep(60)


def sum_of_named(name: str) -> float:
    return sum_of(cw.get(name))


def fork_and_return(x: int) -> int:
    """Both parent and child return from the task."""
    os.fork()
    return x


def large(nbytes: int) -> np.ndarray[Any, Any]:
    return np.ones(nbytes, "u1")


def open_descriptors(_: Any = None) -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def nested_pool(n: int) -> list[int]:
    with cw.Pool(2) as pool:
        return pool.map(square, range(n), 1)


def nested_executor(n: int) -> list[int]:
    with cw.Executor(2) as executor:
        return list(executor.map(square, range(n)))


inherited: Any = None


def use_inherited() -> Any:
    return inherited.map(square, range(3))


def mark_and_wait(paths: tuple[str, str]) -> None:
    """Says that it runs, and runs until it is told to end."""
    mark, go = paths
    Path(mark).touch()
    wait_for(go)


def hold_the_interpreter(mark: str) -> None:
    """Never comes back from C, so that no other thread of Python runs."""
    Path(mark).touch()
    sum(range(10**12))


def pool_that_leaves_marks(mark: str) -> None:
    """In an Executor's worker: has a Pool at work, and writes down all pids."""
    with cw.Pool(2) as pool:
        pids = pool.map(pid_after_a_while, range(8), 1)
        pool.map_async(nap, [60] * 2, 1)
        Path(mark + "-").write_text(" ".join(str(pid) for pid in {os.getpid(), *pids}))
        Path(mark + "-").rename(mark)
        time.sleep(60)


def zeros(nbytes: int) -> np.ndarray[Any, Any]:
    return np.zeros(nbytes, "u1")


def zeros_after(nbytes: int, seconds: float) -> np.ndarray[Any, Any]:
    time.sleep(seconds)
    return np.zeros(nbytes, "u1")


def mark_and_zeros(mark: str, nbytes: int) -> np.ndarray[Any, Any]:
    """Says how often it ran."""
    with open(mark, "a") as file:
        file.write("x")
    return np.zeros(nbytes, "u1")


def blocks_of_this_worker() -> int:
    """Blocks for results, lent or free."""
    stores = [thing for thing in gc.get_objects() if isinstance(thing, BlockStore)]
    return sum(len(store._free) + len(store._lent) for store in stores)


def nap_if_slow(item: object) -> object:
    if item == "slow":
        time.sleep(0.3)
    return item


def die_when_ready(how: str, path: str = "", times: int = 1000) -> None:
    """An initializer: this worker dies as soon as it is ready, unless so many have done so before."""
    if path:
        with open(path, "a+") as file:
            file.write("x")
            if file.tell() > times:
                return

    def die(_frame: Any, event: str, what: Any) -> None:
        if (
            event != "c_return"
            or getattr(what, "__name__", "") != "tell"
            or hasattr(what.__self__, "read")
        ):
            return
        if how == "raise":
            sys.setprofile(None)
            raise LookupError("just ready")
        if how == "fault":
            faulthandler.disable()
            os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(3)

    sys.setprofile(die)


def hashes_inside(given: list[Any]) -> tuple[str, Any]:
    """joblib's and dask's of a constant that came in a list, and so as itself."""
    joblib = importlib.import_module("joblib")
    return joblib.hash(given[0]), given[0].__dask_tokenize__()
