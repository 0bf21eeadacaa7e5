"""What the tests of the workers' server share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import server_tasks as tasks

import cableway as cw
from cableway import _pool_process, _pool_server


def server() -> _pool_server.Server:
    """The one server that there is."""
    (found,) = _pool_server._servers.values()
    return found


def start(context: Any, target: Callable[..., Any], *args: Any) -> Any:
    """A worker process."""
    process = _pool_process.process_class(context)(target=target, args=args, daemon=True)
    process.start()
    return process


def parents_of_workers(context: Any, **options: Any) -> set[int]:
    with cw.Pool(2, context=context, **options) as pool:
        return set(pool.map(tasks.parent_pid, range(8), chunksize=1))
