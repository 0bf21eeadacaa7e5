"""Finds out whose exception came out of pickling or unpickling on the main thread: that of the pickled value, or that of a
signal handler that ran meanwhile. The exception itself does not show it: a handler may raise anything, and so may a class's
`__setstate__`.

So another thread, in which no handler runs, does the same again. If it fails in the same way, the exception was the value's own,
and is given to whoever asked for the value. If not, it was a handler's, and is raised to the caller, in whose frames it came up. On
any thread but the main one there is no doubt. Without an exception this costs nothing.

An exception of this package (`Error`: no broker, no memory) counts as the value's own, since its cause may be gone at the second
attempt, and handlers do not raise such exceptions. Any other exception that may be a handler's is never swallowed: if no thread can
be started, it counts as a handler's.
"""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections.abc import Callable

from cableway.errors import Error

__all__ = ["is_handlers"]


def is_handlers(error: BaseException, call: Callable[[], object]) -> bool:
    """Whether an exception that came out of a call on this thread is a signal's handler's, and not the call's own. Blocks
    while the call is made once more.

    Raises:
        What a handler raises meanwhile.
    """
    if isinstance(error, Error) or threading.current_thread() is not threading.main_thread():
        return False
    seen: list[type[BaseException]] = []
    over = threading.Event()

    def again() -> None:
        try:
            call()
        except BaseException as other:
            seen.append(type(other))
        finally:
            over.set()

    try:
        start_new_thread(again, ())
    except RuntimeError:  # no more threads, or the interpreter ends
        return True
    over.wait()
    return seen != [type(error)]
