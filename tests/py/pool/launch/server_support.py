"""What the tests of the workers' server share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import server_tasks as tasks

import cableway as cw
from cableway._pool.launch import process as processes
from cableway._pool.launch import server as servers


def server() -> servers.Server:
    """The one server that there is."""
    (found,) = servers._servers.values()
    return found


def start(context: Any, target: Callable[..., Any], *args: Any) -> Any:
    """A worker process."""
    process = processes.process_class(context)(target=target, args=args, daemon=True)
    process.start()
    return process


def parents_of_workers(context: Any, **options: Any) -> set[int]:
    with cw.Pool(2, context=context, **options) as pool:
        return set(pool.map(tasks.parent_pid, range(8), chunksize=1))
