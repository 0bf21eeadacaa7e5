"""How an initializer and its arguments go to a worker that does not come by fork."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

from cableway._transport.main_module import Main

__all__ = ["start_arguments"]


def start_arguments(
    main: Main | None, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]
) -> tuple[Any, Any]:
    """The initializer and its arguments as multiprocessing's pickle takes them to a worker that does not come by fork.

    By value goes what a notebook defines, and elsewhere an initializer that standard pickle refuses.
    """
    if initializer is None or (main is None and _goes_by_name(initializer)):
        return initializer, initargs
    from cableway._transport.by_value import ByValue

    return ByValue(initializer, main), initargs if main is None else ByValue(initargs, main)


def _goes_by_name(thing: Any) -> bool:
    try:
        ForkingPickler.dumps(thing)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    except Exception:  # what it has along can be pickled only while a process is started
        return True
    return True
