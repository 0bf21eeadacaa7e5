"""Whose an exception is that comes out of pickling or unpickling on the main thread: what was pickled may have raised it,
or a signal's handler that ran meanwhile. Nobody can tell by looking at it: a handler may raise anything, and so may a
class's `__setstate__`.

So a thread of its own, where no handler runs, does the same again. If that fails in the same way, the exception was the
value's own, and goes to whoever asked for the value. Else it was a handler's, and is raised to the caller, in whose frames
it came up. On any other thread than the main one there is no doubt. It costs nothing where nothing fails.

What is of this package (`Error`: no broker, no memory) is the value's own, since it may pass before the same is done again,
and who writes handlers raises no such thing. Any other exception that may be a handler's is never swallowed: where no
thread can be had, it counts as one.
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
