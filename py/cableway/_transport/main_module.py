"""How things that a notebook's cells define are sent: by name as long as the workers have the same, else by value.

The rule. A script's `__main__` is imported by its workers (spawn, forkserver) or inherited (fork), and what it defines is sent by name,
as in the standard library. The `__main__` of a notebook (a REPL, `python -c`) has no file to import: workers by spawn have nothing of
it, and workers by fork have what it had when they were made. There, and only there, a function or class of `__main__` is sent by name
only if the workers were forked, and neither its own name, nor a global name that it reads, nor one that those read in turn, was bound
anew since. Otherwise it is sent by value (cloudpickle), with the present values of these names. So the workers never run the old
version of a cell after the cell was run again.

    - "bound anew" means names, not the contents of objects: in the workers, a dictionary that was changed in place after the fork is
      still the old one, as in the standard library.
    - Names that `__main__` does not have (globals that an initializer sets in the workers) do not count. What is sent by value finds
      them in the worker.
    - Workers by fork that start later have the `__main__` of that time. A name that was bound anew before then counts as bound anew
      for good, since not all workers have the same under it.
    - A result names its class, by module and qualified name, and the parent uses what has that name now.

To recognise a new binding, the objects of `__main__` are remembered as long as the Pool lives: by weak references, or, for objects that
do not allow these (numbers, lists, dictionaries), by keeping them. The workers keep their copies as long, too.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Main", "find", "names_in", "notebook", "of_main"]

_CACHED: Any = type(functools.cache(abs))
_DEFINED = (types.FunctionType, type, _CACHED)
_WRAPPED = ("__func__", "__self__", "__wrapped__", "fget", "fset", "fdel", "func")


class Main:
    """The `__main__` of a notebook, as the workers of one Pool have it. Any thread.

    Args:
        forked: whether they come by fork.
    """

    def __init__(self, forked: bool) -> None:
        self.forked = forked
        self.globals = vars(sys.modules["__main__"])
        self._then: dict[str, Callable[[], Any]] = {}
        if forked:
            for name, value in list(self.globals.items()):
                self._then[name] = _reference(value)

    def worker_starts(self) -> None:
        """Another worker comes by fork, with what there is now. Told before and after: a cell may be run meanwhile."""
        for name in list(self._then):
            if self._is_new(name):
                self._then.pop(name, None)

    def has(self, thing: Any) -> bool:
        """Whether the workers find under the name of a function or class what it is now."""
        name = thing.__qualname__
        if self._is_new(name.partition(".")[0]) or _look_up(self.globals, name) is not thing:
            return False
        left, seen = [thing], {}
        while left:
            thing = left.pop()
            if id(thing) in seen:
                continue
            seen[id(thing)] = thing
            if isinstance(thing, types.FunctionType) and thing.__globals__ is self.globals:
                for name in names_in(thing.__code__):
                    if name in self.globals:
                        if self._is_new(name):
                            return False
                        left.append(self.globals[name])
            left += _parts(thing)
        return True

    def _is_new(self, name: str) -> bool:
        then = self._then.get(name)
        return then is None or name not in self.globals or then() is not self.globals[name]


def notebook(forked: bool) -> Main | None:
    """The `__main__` of this process if no worker can import it, else None."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    is_repl = spec is not None and spec.name.partition(".")[0] == "_pyrepl"  # of Python 3.13
    is_imported = spec is not None or getattr(main, "__file__", None) is not None
    return None if main is None or (is_imported and not is_repl) else Main(forked)


def of_main(thing: Any) -> bool:
    """Whether a thing is a function (also a cached one) or class, and says that it is defined in `__main__`."""
    return isinstance(thing, _DEFINED) and getattr(thing, "__module__", None) == "__main__"


def find(name: str) -> Any:
    """What this process's `__main__` has under a qualified name. AttributeError if nothing."""
    found = _look_up(vars(sys.modules["__main__"]), name)
    if found is None:
        raise AttributeError(f"__main__ has no {name}, which a worker has sent something of")
    return found


def names_in(code: types.CodeType) -> set[str]:
    """The names that code, and functions and classes within it, may read globals by."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
    return names


def _look_up(namespace: dict[str, Any], name: str) -> Any:
    first, *rest = name.split(".")
    found = namespace.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return found


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _parts(thing: Any) -> Iterator[Any]:
    """What a function, class or object runs besides: decorated functions, methods, bases, its class."""
    kind = type(thing)
    if kind is types.FunctionType:
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # not set
                continue
        yield from thing.__defaults__ or ()
        yield from (thing.__kwdefaults__ or {}).values()
        yield from vars(thing).values()
    elif isinstance(thing, type):
        if thing.__module__ == "__main__":
            yield from list(vars(thing).values())
            yield from thing.__bases__
    elif kind.__module__ == "__main__":
        yield kind
    elif kind.__module__ in ("builtins", "functools"):
        for name in _WRAPPED:
            yield getattr(thing, name, None)
