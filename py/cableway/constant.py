"""`constant`: one read-only object for all tasks, which lies in shared memory once.

A constant is one array of bytes: a header, a table of its buffers, a pickle, and the buffers of pickle protocol 5 (the data of
its arrays). Each process that gets the handle maps the array read-only and unpickles the object once; the object's arrays are
views on the shared memory.

    header   magic, state (one byte), the maker's pid, pid namespace and start time, an id, sizes
    state    OPEN      the maker has the handle
             RELEASED  the maker has dropped the handle without closing it: handles under way may still be opened
             CLOSED    no process may open it or ask for its value any more

Only the maker writes the state. Other processes cache the constants that they have opened, at most CACHED_MAX. They drop a
constant when they see that the maker is done with it, or is dead. They check this when they open another constant, and a Pool's
worker checks before each task; whether the maker is dead they check at most once a second. The objects that a task has stay
valid, since each view holds the lease on the memory.

>>> import numpy as np, cableway as cw
>>> with cw.constant(np.arange(3.0)) as c, cw.Pool(2) as pool:
...     pool.starmap(np.multiply, [(c, 2), (c, 3)])
[array([0., 2., 4.]), array([0., 3., 6.])]
"""

from __future__ import annotations

import copyreg
import functools
import io
import operator
import os
import pickle
import struct
import sys
import threading
import time
import weakref
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import numpy as np

from cableway import array as arrays
from cableway import client
from cableway._array import hashing, pickles
from cableway._core import layouts, locks
from cableway._core.library import ffi, lib
from cableway.array import Array
from cableway.errors import Stale

__all__ = ["CACHED_MAX", "Constant", "arguments", "constant", "met", "resolve", "sweep"]

CACHED_MAX = 16  # constants of other processes that a process keeps unpickled
OPEN, RELEASED, CLOSED = 1, 2, 3

_MAGIC = b"cwconst1"
_HEADER = struct.Struct("<8sB3xIQQ16sQQQ")  # ..., the pickle's offset, its bytes, number of buffers
_ENTRY = struct.Struct("<QQ")  # a buffer: offset, bytes
_STATE_AT = 8
_ALIGN = 64
_LOOK_SECONDS = 1.0  # how often a maker's life is looked at

_T = TypeVar("_T")
_NOT_YET = object()


# ---- what a process has of a constant


class _Opened:
    """A constant's memory in this process, and the object after it is unpickled. All its handles in this process share it."""

    __slots__ = ("__weakref__", "_lock", "_value", "array", "ident", "maker", "memory", "nbytes")

    def __init__(self, array: Array, ident: bytes) -> None:
        self.array: Array | None = array
        self.ident = ident
        memory: Any = array.numpy()
        self.nbytes = int(memory.nbytes)
        self.memory: Any = memory  # None: it was let go of
        self._lock = locks.RLock()
        self._value: Any = _NOT_YET
        magic, _, pid, space, started, found, *_ = _HEADER.unpack_from(memory)
        if magic != _MAGIC or found != ident:
            raise Stale(
                "the constant behind this handle is gone; make it again with cableway.constant()"
            )
        self.maker = (pid, space, started)

    @property
    def state(self) -> int:
        memory = self.memory
        return CLOSED if memory is None else int(memory[_STATE_AT])

    def mark(self, state: int) -> None:
        """Stores the state, which all processes see; not where it was let go of, since it says CLOSED there. Only the maker calls this."""
        memory = self.memory
        if memory is not None:
            memory[_STATE_AT] = state

    def value(self) -> Any:
        with self._lock:
            # Read once, in this order: a finaliser, or what is unpickled here, may let go of it in this thread.
            value, memory = self._value, self.memory
            if memory is None:
                raise _closed()
            if value is _NOT_YET:
                readonly = memory.view()
                readonly.flags.writeable = False
                *_, begin, nbytes, count = _HEADER.unpack_from(readonly)
                entries = _ENTRY.iter_unpack(
                    readonly[_HEADER.size : _HEADER.size + count * _ENTRY.size]
                )
                buffers = [memoryview(readonly[at : at + n]) for at, n in entries]
                value = pickle.loads(readonly[begin : begin + nbytes], buffers=buffers)
                if self.memory is not None:
                    self._value = value
            return value

    def let_go(self) -> None:
        """The constant was closed: drops object and memory, so that no handle in this process gives the object any more."""
        if self._lock.acquire(blocking=False):  # else somebody unpickles it just now
            try:
                dropped = self._value, self.array, self.memory
                self.memory = self.array = self._value = None
            finally:
                self._lock.release()
            del dropped

    def maker_is_gone(self) -> bool:
        pid, space, started = self.maker
        return bool(space == _pid_space() and _started(pid) != started)

    def renew_lock(self) -> None:
        self._lock = locks.RLock()


_lock = locks.RLock()  # finalisers run at any moment, and may unpickle a constant
_opened: weakref.WeakValueDictionary[bytes, _Opened] = weakref.WeakValueDictionary()
_cache: OrderedDict[bytes, _Opened] = OrderedDict()  # of others' constants, last used last
_looked = 0.0  # when the makers' lives were last looked at


class _Met(threading.local):
    """Counts the handles that this thread has unpickled. A worker sees by it whether a task's arguments contain one."""

    count = 0


met = _Met()


def _after_fork_in_child() -> None:
    global _lock
    _lock = locks.RLock()
    for opened in list(_opened.values()):
        opened.renew_lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _pid_space() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _started(pid: int) -> int:
    """When a process started, in the kernel's ticks; 0: there is no such process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if words[0] in b"ZX" else int(words[19])


def _gone(look: bool) -> list[bytes]:
    return [
        ident
        for ident, opened in list(_cache.items())
        if opened.state != OPEN or (look and opened.maker_is_gone())
    ]


def sweep() -> None:
    """Drops from this process's cache all constants whose makers are done with them, or dead."""
    global _looked
    if not len(_opened):
        return
    now = time.monotonic()
    with _lock:
        look = now - _looked >= _LOOK_SECONDS
        if look:
            _looked = now
        dropped = [_cache.pop(ident, None) for ident in _gone(look)]
    del dropped  # outside of the lock, as in _open
    for opened in list(_opened.values()):
        if opened.state == CLOSED:
            opened.let_go()


def _open(ident: bytes, state: tuple[Any, ...]) -> Constant[Any]:
    """Opens a handle; pickles call this.

    Raises:
        Stale: the constant was closed, or its maker has died and no process holds it any more.
    """
    met.count += 1
    sweep()
    opened = _opened.get(ident)
    if opened is not None:
        _skip(state[0])
    else:
        made = _Opened(arrays.open_handle(*state), ident)
        with _lock:
            opened = _opened.setdefault(ident, made)
    if opened.state == CLOSED:
        raise _closed()
    if opened.state == OPEN and opened.maker[0] != os.getpid():
        with _lock:
            _cache[ident] = opened
            _cache.move_to_end(ident)
            dropped = [_cache.popitem(last=False) for _ in range(len(_cache) - CACHED_MAX)]
        del dropped  # outside of the lock: the object may run code of its own when it goes
    return _handle_on(opened, maker=0)


def _skip(handle: bytes) -> None:
    """This process need not open the handle: it is one of its openers all the same."""
    carried = ffi.new("cw_handle *")
    ffi.memmove(carried, handle, len(handle))
    if carried.token:
        lib.cw_handle_skip(client.current().pointer, carried)


def _closed() -> Stale:
    return Stale("this constant is closed; make a new one with cableway.constant()")


# ---- the handle


class Constant(Generic[_T]):
    """A handle on an object in shared memory; `constant` makes it.

    If it is an argument of a task of a Pool or Executor, the task gets the object itself. Arguments are the items of `map`, the
    elements of `starmap`'s tuples, and the arguments of `apply`, `submit`, an initializer or a `functools.partial`. Anywhere else
    (inside a list, in a function's closure, through a Queue) the receiver gets a Constant, and `value` is the object.

    Attributes:
        nbytes: how much shared memory it takes.
    """

    __slots__ = ("__weakref__", "_held", "_maker", "_opened", "nbytes")

    _opened: _Opened | None
    _maker: (
        int  # pid of the process whose constant() made this very object, 0 for what was unpickled
    )
    _held: list[Any]  # arrays and constants inside it
    nbytes: int

    def __init__(self) -> None:
        raise TypeError("cableway.Constant is made by cableway.constant")

    def _now(self) -> _Opened:
        opened = self._opened
        if opened is None or opened.state == CLOSED:
            raise _closed()
        return opened

    @property
    def value(self) -> _T:
        """The object. Each process unpickles it once; its arrays are read-only views on the shared memory.

        Raises:
            Stale: the constant is closed.
        """
        return self._now().value()  # type: ignore[no-any-return]

    @property
    def closed(self) -> bool:
        """Whether it was closed, here or by its maker."""
        opened = self._opened
        return opened is None or opened.state == CLOSED

    def close(self) -> None:
        """In the process that made it, ends the constant for all; elsewhere, ends this handle. Objects from it stay valid. May be
        repeated.
        """
        opened, self._opened = self._opened, None
        if opened is not None and self._maker == os.getpid():
            opened.mark(CLOSED)
        self._held = []

    def __enter__(self) -> Constant[_T]:
        self._now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(
        self, getpid: Any = os.getpid, is_open: int = OPEN, released: int = RELEASED
    ) -> None:
        opened = getattr(self, "_opened", None)
        if opened is not None and self._maker == getpid() and opened.state == is_open:
            opened.mark(released)

    def reduce(self, transit: bool = True, openers: int = 1) -> tuple[Any, tuple[Any, ...]]:
        """The value of `__reduce__`; transit and openers as for `Array.handle`."""
        opened = self._now()
        array = opened.array
        if array is None:
            raise _closed()
        state = list(array.reduce(transit, openers)[1])
        state[5] = True  # read-only
        return _open, (opened.ident, tuple(state))

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        reduced = self.reduce(openers=pickles.UNKNOWN)
        pickles.begun(reduced[1][1][0])
        return reduced

    def __reduce_ex__(self, protocol: Any) -> Any:
        if protocol == hashing.PROTOCOL and hashing.by_joblib(sys._getframe(1)):
            return hashing.of_value(self.value)
        return self.__reduce__()

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """The token by which dask names this: a hash of the pickle and its buffers, equal in every process."""
        memory = self._now().memory
        if memory is None:
            raise _closed()
        return "cableway.Constant", hashing.digest(memory[_HEADER.size :])

    def __repr__(self) -> str:
        if self.closed:
            return "<cableway.Constant closed>"
        return f"<cableway.Constant nbytes={self.nbytes}>"


def _handle_on(opened: _Opened, maker: int, held: list[Any] | None = None) -> Constant[Any]:
    made: Constant[Any] = Constant.__new__(Constant)
    made._opened = opened
    made._maker = maker
    made._held = held or []
    made.nbytes = opened.nbytes
    return made


# ---- making one


class _Pickler(pickle.Pickler):
    pass


def _reduce_ndarray(values: np.ndarray[Any, Any]) -> Any:
    """Pickles as NumPy does, with buffers. Copies an array that is not contiguous, else its data would be in the pickle."""
    if not (values.flags.forc or values.dtype.hasobject):
        values = np.ascontiguousarray(values)
    if (
        values.dtype.num >= 256 and values.nbytes
    ):  # a dtype of ml_dtypes, of which NumPy makes no buffer
        return _view, (values.view(f"u{values.itemsize}"), values.dtype)
    return values.__reduce_ex__(5)


def _reduce_subclass(values: np.ndarray[Any, Any]) -> Any:
    return _view, (np.ascontiguousarray(values, dtype=values.dtype).view(np.ndarray), type(values))


def _view(values: np.ndarray[Any, Any], kind: Any) -> Any:
    return values.view(kind)


def _pickled(obj: Any) -> tuple[bytes, list[Any], list[Any]]:
    """The pickle of an object, its buffers, and the arrays and constants to hold as long as others may open it."""
    held: list[Any] = []
    buffers: list[Any] = []

    def hold(inner: Any) -> Any:
        held.append(inner)
        return inner.reduce(False)

    def put(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:
            return True
        buffers.append(np.frombuffer(raw, "u1"))
        return False

    from multiprocessing.reduction import ForkingPickler

    extra: dict[Any, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    own: dict[Any, Any] = {
        np.ndarray: _reduce_ndarray,
        np.recarray: _reduce_subclass,
        np.memmap: _reduce_subclass,
        Array: hold,
        Constant: hold,
    }
    table = {**copyreg.dispatch_table, **extra, **own}
    out = io.BytesIO()
    try:
        pickler = _Pickler(out, protocol=5, buffer_callback=put)
        pickler.dispatch_table = table
        pickler.dump(obj)
    except (pickle.PicklingError, AttributeError, TypeError):
        import cloudpickle

        class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
            # Of the class: cloudpickle's has one, which a pickler reads when it is made.
            dispatch_table = {**cloudpickle.Pickler.dispatch_table, **table}

        out = io.BytesIO()
        held.clear()
        buffers.clear()
        ByValue(out, protocol=5, buffer_callback=put).dump(obj)
    return out.getvalue(), buffers, held


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


def constant(obj: _T) -> Constant[_T]:
    """Puts an object that many tasks use into shared memory, once.

    A task gets a handle of some 300 bytes. A process that gets the handle unpickles the object when it first needs it, and keeps
    it for the next task. All NumPy arrays of the object are then read-only views on the same memory.

    Args:
        obj: anything that can be pickled (lambdas and local classes by cloudpickle). The constant does not keep obj alive, and
            later changes to obj do not show. A cableway.Array in it stays as long as the maker has the handle.

    Returns:
        Constant: the handle. close(), or the end of a `with` block, ends the constant.

    Raises:
        LimitExceeded: no memory left, or a limit of the broker.
        BrokerLost: the broker is gone.
        Whatever pickling raises.

    >>> import functools, numpy as np, cableway as cw
    >>> table = {"a": np.arange(5), "b": "text"}
    >>> with cw.constant(table) as c, cw.Pool(2) as pool:
    ...     pool.map(functools.partial(dict.get, c), ["b", "z"])
    ['text', None]
    """
    stream, buffers, held = _pickled(obj)
    at = _HEADER.size + len(buffers) * _ENTRY.size
    end = _aligned(at + len(stream))
    entries = []
    for buffer in buffers:
        entries.append((end, buffer.nbytes))
        end = _aligned(end + buffer.nbytes)
    array = arrays.new(layouts.Layout((end,), np.dtype("u1")))
    memory: Any = array.numpy()
    ident, pid = os.urandom(16), os.getpid()
    header = (_MAGIC, OPEN, pid, _pid_space(), _started(pid), ident, at, len(stream), len(buffers))
    _HEADER.pack_into(memory, 0, *header)
    for i, entry in enumerate(entries):
        _ENTRY.pack_into(memory, _HEADER.size + i * _ENTRY.size, *entry)
    memory[at : at + len(stream)] = np.frombuffer(stream, "u1")
    for (offset, nbytes), buffer in zip(entries, buffers, strict=True):
        memory[offset : offset + nbytes] = buffer
    opened = _Opened(array, ident)
    with _lock:
        _opened[ident] = opened
    return _handle_on(opened, pid, held)


# ---- how tasks get the object


def resolve(value: Any) -> Any:
    """What a task gets for an argument: of a Constant the object, of a partial one with objects in place of them."""
    if type(value) is Constant:
        return value.value
    if type(value) is functools.partial:
        args, named = arguments(value.args, value.keywords)
        same = all(map(operator.is_, args, value.args))
        if not (same and all(map(operator.is_, named.values(), value.keywords.values()))):
            return functools.partial(value.func, *args, **named)
    return value


def arguments(args: Any, named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments, resolved."""
    return tuple(map(resolve, args)), {name: resolve(value) for name, value in named.items()}
