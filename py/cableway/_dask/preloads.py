"""Preloads: a worker or nanny that is made in this process has cableway, also where its maker names other preloads.

Dask reads the preloads of its configuration where none are named. dask-cuda names one for each worker, so these had no cableway, and
nobody said so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import distributed
from distributed import preloading

__all__ = ["MODULE", "follow", "with_module"]

MODULE = "cableway.dask"
_process = preloading.process_preloads


def with_module(names: str | Sequence[str], module: str = MODULE) -> list[str]:
    """The preloads, and the module among them."""
    found = [names] if isinstance(names, str) else list(names)
    return found if module in found else [*found, module]


def _added(names: Any, words: Any) -> tuple[list[str], Any]:
    """The preloads that were named, and the words for each, with ours. None named: Dask reads its configuration, which has ours."""
    names = [names] if isinstance(names, str) else list(names or ())
    if not names or MODULE in names:
        return names, words
    if words and not isinstance(words[0], str):  # a list for each; else they are for all
        words = [*words, []]
    return with_module(names), words


def _with_ours(server: Any, preload: Any, preload_argv: Any, *, file_dir: str | None = None) -> Any:
    if isinstance(server, distributed.Nanny):  # what it gives to its worker
        server.preload, server.preload_argv = _added(server.preload, server.preload_argv)
    if isinstance(server, (distributed.Worker, distributed.Nanny)):
        preload, preload_argv = _added(preload, preload_argv)
    return _process(server, preload, preload_argv, file_dir=file_dir)


def follow() -> None:
    """From now on all workers and nannies that are made here have it, and the nannies' workers. A scheduler has what it needs from the
    import in its process. May be repeated.
    """
    preloading.process_preloads = _with_ours
