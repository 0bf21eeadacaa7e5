"""Connections to the broker. A process has one default connection, made when it is first needed.

If no broker runs, the first call starts one. After a fork the child makes its own connection at first use, to the same broker and
namespace. After `BrokerLost` the next call connects anew.

>>> import cableway as cw
>>> with cw.connect(namespace="docs") as connection:
...     _ = cw.put("x", [1, 2, 3])
...     cw.names()
['x']
>>> with cw.connect(namespace="others"):
...     cw.names()
[]
"""

from __future__ import annotations

import errno
import os
from types import TracebackType
from typing import Any

from cableway._core import locks
from cableway._core.library import check, ffi, from_cell, lib, on_broker_lost
from cableway.errors import BrokerLost

__all__ = ["Connection", "connect", "current"]


Settings = tuple[
    str | None, str | None
]  # address and namespace, None where the environment decides


class Connection:
    """One connection of this process to the broker. `connect` makes it.

    As a context manager, it closes at the end of the block, and the former default connection is the default again. Arrays that
    came over it stay valid.

    Attributes:
        instance: a random number that identifies this run of the broker.
        pid: of the process that made it.
        number: the address of the `cw_client`.
    """

    __slots__ = ("_entered", "_pointer", "_previous", "_settings", "instance", "number", "pid")

    def __init__(self, settings: Settings, flags: int = 0, timeout_ns: int = -1) -> None:
        address, namespace = settings
        out = ffi.gc(ffi.new("cw_client **"), lib.cwpy_client_end)
        check(
            lib.cw_connect_within(
                ffi.NULL if address is None else os.fsencode(address),
                ffi.NULL if namespace is None else namespace.encode(),
                flags,
                timeout_ns,
                out,
            )
        )
        self._pointer: Any = from_cell(out)
        self.number = int(ffi.cast("uintptr_t", self._pointer))
        self._settings = settings
        self._previous: Connection | None = None  # the default before; it is again after close()
        self._entered = False
        self.pid = os.getpid()
        self.instance = int(lib.cw_client_instance(self._pointer))

    @property
    def pointer(self) -> Any:
        """The `cw_client *`. A caller of the library must hold it until the call has returned: a thread may close the connection."""
        pointer = self._pointer
        if pointer is None:
            raise ValueError("the connection is closed; make a new one with cableway.connect()")
        return pointer

    @property
    def address(self) -> str:
        """Path of the broker's socket."""
        return _address(self.pointer)

    @property
    def namespace(self) -> str:
        """The namespace in which names are looked up."""
        return _namespace(self.pointer)

    @property
    def node(self) -> str | None:
        """By what name other nodes know this one's arrays (`//NODE/...`); None: no cableway-bridge runs now, none is started.

        Blocks for a request to the bridge.

        Raises:
            RemoteError: the bridge cannot start, or does not answer.
        """
        name = ffi.new("char[64]")
        while (status := lib.cw_node(self.pointer, name)) == -errno.EINTR:
            pass
        if status == -errno.ENOENT:
            return None
        check(status)
        return str(ffi.string(name), "ascii")

    @property
    def broker_pid(self) -> int:
        """Process id of the broker."""
        return int(lib.cw_client_broker_pid(self.pointer))

    @property
    def settings(self) -> Settings:
        """The (address, namespace) that were given; `connect(*settings)` makes such a connection again."""
        return self._settings

    @property
    def lost(self) -> bool:
        """Whether the broker is known to be gone."""
        pointer = self._pointer
        return pointer is not None and _lost(pointer)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._pointer is None

    def close(self) -> None:
        """Ends the connection as soon as no array that came over it is in use. May be repeated."""
        global _default, _settings
        with _lock:
            # Also when the default was made anew from these settings, after the broker was lost.
            if _default is self or _settings is self._settings:
                previous = self._before()
                _default = previous
                _settings = ENVIRONMENT if previous is None else previous._settings
            self._previous = None
            self._pointer = None

    def _before(self) -> Connection | None:
        """The one that was the default before, and is open."""
        found = self._previous
        while found is not None and found.closed:
            found = found._previous
        return found

    def __enter__(self) -> Connection:
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        pointer = self._pointer
        if pointer is None:
            return "<cableway.Connection closed>"
        return (
            f"<cableway.Connection address={_address(pointer)!r} namespace={_namespace(pointer)!r} "
            f"broker_pid={lib.cw_client_broker_pid(pointer)}{' lost' if _lost(pointer) else ''}>"
        )


# What a `cw_client *` tells; the text lies in it, so the pointer stays until it is read.


def _address(pointer: Any) -> str:
    return os.fsdecode(ffi.string(lib.cw_client_address(pointer)))


def _namespace(pointer: Any) -> str:
    return str(ffi.string(lib.cw_client_namespace(pointer)), "ascii")


def _lost(pointer: Any) -> bool:
    return bool(lib.cw_client_check(pointer) < 0)


_lock = locks.RLock()
_default: Connection | None = None
ENVIRONMENT: Settings = (None, None)
_settings = ENVIRONMENT  # how to make the default one anew
_others: dict[str, Connection] = {}  # by address: connections made to open handles of other brokers
_parents: list[Any] = []  # what came over a fork and is the parent's: neither used nor closed here


def connect(
    address: str | os.PathLike[str] | None = None, namespace: str | None = None
) -> Connection:
    """Connects to a broker and makes this connection the process's default.

    Args:
        address: path of the broker's socket, or of its folder; None for the user's own broker ($CABLEWAY_DIR, else
            $XDG_RUNTIME_DIR/cableway, else /tmp/cableway-UID), which is started if it does not run.
        namespace: keeps the names of unrelated runs apart; 0 to 64 of the characters A-Z a-z 0-9 _ . -
            None for $CABLEWAY_NAMESPACE, else "". Child processes that are not forked read the environment: set the variable if
            they are to use the namespace, too.

    Returns:
        Connection: may be used with `with`.

    Raises:
        ValueError: a bad namespace.
        BrokerLost: no broker could be reached or started.
        Error: the socket's folder belongs to another user, or the broker speaks another version.

    >>> import cableway as cw
    >>> with cw.connect(namespace="run-7") as connection:
    ...     connection.namespace
    'run-7'
    """
    global _default, _settings
    if namespace is not None and "\0" in namespace:
        raise ValueError(f"a namespace must not contain a NUL character: {namespace!r}")
    if address is not None and not os.fspath(address):
        raise ValueError("an empty address names no broker")
    with _lock:
        # Made anew from these settings, perhaps in another working folder.
        place = None if address is None else os.path.abspath(os.fsdecode(address))
        made = Connection((place, namespace))
        if _default is not None and not _default._entered:
            _default._previous = (
                None  # who connects again and again without closing keeps two, not all
            )
        made._previous = _default
        _default = made
        _settings = made._settings
        return made


def current(timeout_ns: int = -1) -> Connection:
    """The process's default connection; made now if there is none. timeout_ns: for a broker that does not answer; -1: 10 s."""
    global _default
    found = _default
    if found is not None:
        return found
    with _lock:
        if _default is None:
            _default = Connection(_settings, timeout_ns=timeout_ns)
        return _default


def known() -> Connection | None:
    """The process's default connection, if there is one."""
    return _default


def settings() -> Settings:
    """The settings with which the default connection was made, or will be made when it is first needed."""
    return _settings


def use(settings: Settings) -> None:
    """Sets how the default connection is made when it is next needed. Does not connect."""
    global _default, _settings
    with _lock:
        if _default is not None and _default._settings != settings:
            _default = None
        _settings = settings


def for_instance(instance: int, address: str) -> Connection:
    """A connection to one run of the broker: the default connection if it is to that run, else a connection to address.

    If another run of the broker serves that address by now, the caller will find its handle stale.
    """
    global _default
    found = _default
    if found is not None and not found.closed and found.instance == instance:
        return found
    with _lock:
        known = _others.get(address)
        if known is not None and known.instance == instance:
            return known
        if _default is None:
            try:
                _default = Connection(_settings, lib.CW_CONNECT_NO_START)
            except BrokerLost:
                pass  # it may run elsewhere: address tells
            else:
                if _default.instance == instance:
                    return _default
        known = Connection((address, None), lib.CW_CONNECT_NO_START)
        _others[address] = known
        return known


def forget_lost() -> None:
    """Connections whose broker is gone: what needs one next connects anew."""
    global _default
    with _lock:
        if _default is not None and _default.lost:
            _default = None
        for address in _lost_ones():
            del _others[address]


def _lost_ones() -> list[str]:
    return [address for address, known in _others.items() if known.lost]


def _after_fork_in_child() -> None:
    global _default, _lock
    _lock = locks.RLock()
    if _default is not None:
        _parents.append(_default)
    _parents.extend(_others.values())
    _others.clear()
    _default = None


on_broker_lost(forget_lost)
os.register_at_fork(after_in_child=_after_fork_in_child)
