"""The pools that are compared, each behind the same few calls, with as many workers and the same start method.

Fork for all that have it. loky and Ray have workers of their own making (new processes), which stay as those of the
others do. A call that a peer does not have is not there; a peer that is not installed is named by `missing`.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

from measure import broker, cpu_of, family
from tasks import nothing

CONTEXT = multiprocessing.get_context("fork")


class Peer(abc.ABC):
    """One of them; `how` says how its sides wait for each other."""

    name = ""
    how = "sleeps"
    needs: tuple[str, ...] = ()  # what must be installed

    def __init__(self, workers: int, *prepare: Any) -> None:
        before = set(family())
        self.pool = self.open(workers, *prepare)
        self.apply(nothing, 0)
        self.begin()
        self.pids = sorted(set(family()) - before)

    @abc.abstractmethod
    def open(self, workers: int, *prepare: Any) -> Any:
        """Makes the pool; prepare: an initializer and its arguments."""

    def begin(self) -> None:
        """Sees to it that all workers are there."""
        return

    @abc.abstractmethod
    def apply(self, work: Callable[..., Any], *args: Any) -> Any:
        """One call, and its result."""

    def cpu(self) -> float:
        """CPU seconds of this process and of what the peer started."""
        return cpu_of([os.getpid(), *self.pids])

    def close(self) -> None:
        """Ends it."""
        return


class Standard(Peer):
    """The standard library's Pool."""

    name = "multiprocessing.Pool"

    def open(self, workers: int, *prepare: Any) -> Any:
        """All workers start at once."""
        return CONTEXT.Pool(workers, *prepare)

    def apply(self, work: Callable[..., Any], *args: Any) -> Any:
        """Pool.apply."""
        return self.pool.apply(work, args)

    def map_one_by_one(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Pool.map with chunksize=1."""
        return self.pool.map(work, items, chunksize=1)  # type: ignore[no-any-return]

    def map_chunks(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Pool.map with its own choice of chunks."""
        return self.pool.map(work, items)  # type: ignore[no-any-return]

    def starmap(self, work: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """Pool.starmap with chunksize=1."""
        return self.pool.starmap(work, items, chunksize=1)  # type: ignore[no-any-return]

    def imap(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Pool.imap."""
        return list(self.pool.imap(work, items))

    def imap_unordered(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Pool.imap_unordered, put in order."""
        return sorted(self.pool.imap_unordered(work, items))

    def burst(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """apply_async for all, then get for all."""
        calls = [self.pool.apply_async(work, (item,)) for item in items]
        return [call.get() for call in calls]

    def close(self) -> None:
        """Ends the workers."""
        self.pool.terminate()
        self.pool.join()


class Ours(Standard):
    """Our Pool."""

    name = "cableway.Pool"
    how = "adaptive"

    def open(self, workers: int, *prepare: Any) -> Any:
        """With fork, as the others."""
        import cableway as cw

        return cw.Pool(workers, *prepare, context="fork")

    def cpu(self) -> float:
        """With the broker."""
        return super().cpu() + cpu_of(broker())


class Mpire(Standard):
    """mpire's WorkerPool, whose workers are kept: one for apply and one for maps, since kept workers serve one kind."""

    name = "mpire.WorkerPool"
    needs = ("mpire",)

    def open(self, workers: int, *prepare: Any) -> Any:
        """With fork and without its progress bars and insights."""
        from mpire import WorkerPool

        made = functools.partial(WorkerPool, workers, start_method="fork", keep_alive=True)
        self.maps = made()
        return made()

    def begin(self) -> None:
        """The workers for maps start too."""
        self.map_one_by_one(nothing, range(10))

    def map_one_by_one(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """WorkerPool.map with chunk_size=1."""
        return self.maps.map(work, items, chunk_size=1)  # type: ignore[no-any-return]

    def map_chunks(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """WorkerPool.map with its own choice of chunks."""
        return self.maps.map(work, items)  # type: ignore[no-any-return]

    def starmap(self, work: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """WorkerPool.map, which unpacks tuples."""
        return self.map_one_by_one(work, items)

    def imap(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """WorkerPool.imap, with chunks of 1 as the others."""
        return list(self.maps.imap(work, items, chunk_size=1))

    imap_unordered = None  # type: ignore[assignment] # one more kind

    def close(self) -> None:
        """Ends both."""
        super().close()
        self.maps.terminate()


class Futures(Peer):
    """The standard library's executor."""

    name = "ProcessPoolExecutor"

    def open(self, workers: int, *prepare: Any) -> Any:
        """Workers start with the first task."""
        return futures.ProcessPoolExecutor(workers, CONTEXT)

    def begin(self) -> None:
        """Some tasks, so that each worker had one."""
        self.burst(nothing, range(200))

    def apply(self, work: Callable[..., Any], *args: Any) -> Any:
        """One submit, and its result."""
        return self.pool.submit(work, *args).result()

    def burst(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Submits for all, then results of all."""
        calls = [self.pool.submit(work, item) for item in items]
        return [call.result() for call in calls]

    def map_one_by_one(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Executor.map, whose chunksize is 1."""
        return list(self.pool.map(work, items))

    def starmap(self, work: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """Executor.map of several iterables."""
        return list(self.pool.map(work, *zip(*items, strict=True)))

    def close(self) -> None:
        """Ends the workers."""
        self.pool.shutdown()


class OurExecutor(Futures):
    """Our executor."""

    name = "cableway.Executor"
    how = "adaptive"

    def open(self, workers: int, *prepare: Any) -> Any:
        """With fork, as the standard library's."""
        import cableway as cw

        return cw.Executor(workers, CONTEXT)

    def cpu(self) -> float:
        """With the broker."""
        return super().cpu() + cpu_of(broker())


class Loky(Futures):
    """joblib's executor, without joblib."""

    name = "loky"
    needs = ("joblib",)

    def open(self, workers: int, *prepare: Any) -> Any:
        """Its own way to start workers: it has no fork."""
        from joblib.externals import loky

        return loky.ProcessPoolExecutor(workers)


class Ray(Peer):
    """Ray's tasks on this machine, without its dashboard."""

    name = "Ray"
    needs = ("ray",)

    def open(self, workers: int, *prepare: Any) -> Any:
        """A cluster of one machine."""
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
        import ray

        ray.init(
            num_cpus=workers,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=1 << 30,
            runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}},
        )
        self.remote: dict[Callable[..., Any], Any] = {}
        return ray

    def begin(self) -> None:
        """Some tasks, so that each worker had one."""
        self.burst(nothing, range(200))

    def _of(self, work: Callable[..., Any]) -> Any:
        if work not in self.remote:
            self.remote[work] = self.pool.remote(work)
        return self.remote[work]

    def apply(self, work: Callable[..., Any], *args: Any) -> Any:
        """One task, and its result."""
        return self.pool.get(self._of(work).remote(*args))

    def burst(self, work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """All tasks, then their results at once."""
        remote = self._of(work)
        return self.pool.get([remote.remote(item) for item in items])  # type: ignore[no-any-return]

    map_one_by_one = burst

    def starmap(self, work: Callable[..., Any], items: Iterable[Any]) -> list[Any]:
        """All tasks, then their results at once."""
        remote = self._of(work)
        return self.pool.get([remote.remote(*item) for item in items])  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the cluster."""
        self.pool.shutdown()


def missing(peer: type[Peer]) -> str:
    """Why a peer cannot be measured; empty if it can."""
    for name in peer.needs:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a package does at import
            return f"{peer.name}: {name} cannot be imported ({error})"
    return ""


@contextlib.contextmanager
def opened(
    kinds: Iterable[type[Peer]], workers: int, *prepare: Any
) -> Iterator[tuple[list[Peer], list[str]]]:
    """The peers that are there, with their workers; and for the others why not."""
    found: list[Peer] = []
    lacking: list[str] = []
    try:
        for kind in kinds:
            why = missing(kind)
            if not why:
                try:
                    found.append(kind(workers, *prepare))
                except Exception as error:  # a peer that does not start is no reason to end
                    why = f"{kind.name}: did not start: {type(error).__name__}: {error}"
            if why:
                lacking.append(why)
        yield found, lacking
    finally:
        for peer in reversed(found):
            peer.close()
