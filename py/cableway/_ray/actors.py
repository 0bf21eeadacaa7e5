"""What Ray leaves undone for actors.

An actor's process learns of transports by a task that Ray sends once, after the actor was made. Its first methods may run before that, and
the process of an actor that Ray restarts never gets it. So the class of an actor that has tensor transport names a transport: who unpickles
the class imports `cableway.ray`, before anything of the actor runs.

Deaths: nothing here outlives a process.
"""

from __future__ import annotations

import functools
from typing import Any

from ray.actor import ActorClass

__all__ = ["watch"]

_NAMED = "__cableway_transport__"  # attribute of an actor's class
_watched = False


def watch(transport: type) -> None:
    """From now on. May be repeated.

    Args:
        transport: a class of the module that registers transports.
    """
    global _watched
    if _watched:
        return
    _watched = True
    make = ActorClass._remote

    @functools.wraps(make)
    def make_knowing_transports(
        self: Any, args: Any = None, kwargs: Any = None, **options: Any
    ) -> Any:
        meta = self.__ray_metadata__
        if meta.enable_tensor_transport and meta.modified_class is not None:
            setattr(meta.modified_class, _NAMED, transport)
        return make(self, args, kwargs, **options)

    ActorClass._remote = make_knowing_transports
