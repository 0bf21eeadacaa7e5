"""Names, by which any process of the same user finds an array.

A name is 1 to 200 bytes of UTF-8; parts divided by "/", none of them empty, "." or ".."; no control characters.
"//NODE/NAME" is the name of an array on another node (`cableway peers`). The functions and errors are the same, and `RemoteError`
is raised if that node cannot be reached or refuses. An array of another node is copied into this node's memory once, where all
processes share it, read-only. It is fetched again if the name means another array on its node by then.

>>> import cableway as cw
>>> _ = cw.put("model/weights", [1.0, 2.0])
>>> cw.get("model/weights").numpy()
array([1., 2.])
>>> cw.names("model/")
['model/weights']
>>> cw.remove("model/weights")
"""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, overload

from cableway import _dispatch, client, create, tree
from cableway import array as arrays
from cableway._core.arguments import flag, name_bytes, optional_flag
from cableway._core.deadlines import Retries, deadline, left_ns, slice_ns
from cableway._core.leases import Lease, lease_once
from cableway._core.library import check, failure, failure_within, ffi, lib
from cableway._cuda import hidden_gpus
from cableway.array import Array
from cableway.device import name_of, resolve, terminated
from cableway.errors import NameNotFound, NameTaken, NotATree, Timeout
from cableway.tree import Tree

__all__ = ["get", "names", "put", "remove", "wait"]

_new_array, _new_lease, _Cell = Array.__new__, Lease.__new__, _dispatch.LeaseCell


class _Module(Protocol):
    """A module of PyTorch, or what has these as one."""

    def named_parameters(self) -> Any: ...

    def named_buffers(self) -> Any: ...


@overload
def put(
    name: str,
    array: Mapping[Any, Any] | _Module,
    *,
    replace: bool = True,
    keep: bool = False,
    tied: bool = False,
    copy: bool | None = None,
    device: str | None = None,
    meta: Any = None,
    if_version: int | None = None,
    hashed: bool | None = None,
    seal: bool | None = None,
    max_old: int | None = None,
    timeout: float | None = 0,
) -> Tree: ...
@overload
def put(
    name: str,
    array: Any,
    *,
    as_tree: Literal[True],
    keep: bool = False,
    tied: bool = False,
    meta: Any = None,
) -> Tree: ...
@overload
def put(
    name: str,
    array: Any,
    *,
    replace: bool = True,
    keep: bool = False,
    tied: bool = False,
    copy: bool | None = None,
    remote: str | None = None,
    device: str | None = None,
    seal: bool | None = None,
) -> Array: ...
def put(
    name: str,
    array: Any,
    *,
    replace: bool = True,
    keep: bool = False,
    tied: bool = False,
    copy: bool | None = None,
    remote: str | None = None,
    device: str | None = None,
    meta: Any = None,
    if_version: int | None = None,
    as_tree: bool | None = None,
    hashed: bool | None = None,
    seal: bool | None = None,
    max_old: int | None = None,
    timeout: float | None = 0,
) -> Any:
    """Gives an array a name under which every process of this user finds it.

    These are not copied, but get the name: an `Array`, a view of one (also one that NumPy, ctypes, Arrow or PyTorch made of
    `w.numpy()` or by DLPack) and a `SharedMemory`. An array of a GPU library is copied on its GPU, and stays there, unless that
    library allocates from cableway (`cableway.cupy.use()`, `cableway.torch.use()`, `cableway.numba.use()`). A record array keeps
    its records but not its class, as in a file of `numpy.save`: `w.numpy().view(numpy.recarray)` has the fields as attributes
    again.

    A dict of arrays (a `state_dict`), nested as you like, or a PyTorch module becomes a `Tree`: all of its arrays under one name. (Of
    an empty dict nothing is kept.) A reader sees all of them or none, in versions that never change. The arrays
    are copied, except those that come from another tree. Under a name of another node ("//NODE/NAME") array or tree is copied there,
    whole or not at all, and blocks until it is; of a tree you get the one here, with the number of the version there.

    Args:
        name: 1 to 200 bytes of UTF-8, parts divided by "/", none of them empty, "." or "..", no control characters;
            "//NODE/NAME" is one of another node.
        array: anything array-like, an Array (or part of one), a SharedMemory (its bytes), or what becomes a tree.
        replace: a name that exists gets the new array, in one step; processes that use the old array keep it. False: raises
            `NameTaken`.
        keep: the name stays until it is removed. Otherwise it ends a minute after the user's last process that uses cableway.
        tied: the name ends when this process ends, however it ends, or closes its connection. Other nodes lose it as they do a name
            that was removed. Not with keep=True, nor for //NODE/NAME.
        copy: True copies always, False never. What False means for memory of a GPU library: see `asarray`.
        remote: "read": every peer of this node may read it; None: only the peers whose patterns allow it.
        device: the device of the named array, which is a copy if the array is on another device. None: the array's own device.
            For a name of another node: "cuda:N" as that node counts its GPUs, or None for its host memory, wherever the array is
            here.
        meta: for a tree: an object that JSON can represent, for its readers.
        if_version: for a tree: put it only if the name means this version; 0: only if the name does not exist.
        hashed: for a tree: whether its leaves get a hash, for `Tree.verify`; None: only those in host memory.
        seal: for an array: True: nobody writes to its memory any more. It is read-only for whoever opens it, also for who puts it, and
            many nodes get it from each other; who has it open for writing must not write. Not for //NODE/NAME. For a tree: False:
            this process may write its leaves on GPUs, by `Tree.update`; no hashes then, no `swappable=True`, no other nodes.
        max_old: for a tree: how many versions before the new one processes may have open, the one that it replaces included, when
            it is put (`cableway ls --old` lists them). If there are more, nothing is copied until they are closed.
        timeout: only with max_old: seconds to wait for that, None: for ever; then `LimitExceeded`, which names the processes.
        as_tree: True: a list becomes a tree, too, where NumPy could make one array of it; False: never a tree.

    Returns:
        Array: a handle on the named array; for a tree, a `Tree`.

    Raises:
        NameTaken: replace=False, and the name exists.
        VersionChanged: the name means another version than if_version; with 0 it is a `NameExists`, also a `NameTaken`.
        LimitExceeded: too many names or bytes, or no memory left, here or there.
        DeviceError: there is no such device, here or there.
        ProducerDied: a name of another node, and the array's writer died before its work was complete.
        RemoteError: the other node is not known here, cannot be reached or refuses; or it is not known whether it was put there.
        ValueError: a bad name or timeout; copy=False, and it needs a copy; tied=True with keep=True, or with //NODE/.
        TypeError: the dtype holds objects, or elements are masked.

    >>> import cableway as cw
    >>> w = cw.put("x", [[1, 2], [3, 4]])
    >>> w.name, w.shape
    ('x', (2, 2))
    >>> cw.put("x", [5], replace=False)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    cableway.errors.NameTaken: ...
    """
    encoded = name_bytes(name)
    check(lib.cw_name_check(encoded))
    flags = lib.CW_REPLACE if flag("replace", replace) else 0
    flags |= lib.CW_KEEP if flag("keep", keep) else 0
    if flag("tied", tied):
        if keep:
            raise ValueError(
                "keep=True keeps the name until it is removed, tied=True ends it with this process; leave one of them out"
            )
        flags |= lib.CW_TIED
    tree.check_timeout(timeout, max_old)
    copy, hashed = optional_flag("copy", copy), optional_flag("hashed", hashed)
    as_tree = optional_flag("as_tree", as_tree)
    if remote is not None:
        if remote != "read":
            raise ValueError(f'remote is "read" or None, not {remote!r}')
        flags |= lib.CW_REMOTE_READ
    if as_tree or (as_tree is None and tree.is_tree(array)):
        if hashed is not None:
            flags |= lib.CW_TREE_HASH if hashed else lib.CW_TREE_NO_HASH
        if optional_flag("seal", seal) is False:
            if hashed or remote is not None:
                raise ValueError(
                    "seal=False: the tree changes in place, so it has no hashes and is not for other nodes; leave hashed= and remote= out"
                )
            flags |= lib.CW_TREE_UNSEALED
        return tree.put(
            name,
            array,
            flags=flags,
            if_version=if_version,
            meta=meta,
            device=device,
            copy=copy,
            max_old=max_old,
            timeout=timeout,
        )
    if (meta, if_version, hashed, max_old) != (None, None, None, None):
        raise ValueError(
            "meta=, if_version=, hashed= and max_old= are only for trees; put a dict of arrays, or leave them out"
        )
    flags |= lib.CW_SEAL if optional_flag("seal", seal) else 0
    there = device if encoded[:2] == b"//" else None
    if not replace and encoded[:2] != b"//":
        _check_free(name, encoded)
    found = create.asarray(array, copy=copy, device=None if there else device)
    layout = found._layout_now()
    lease = found._open_lease()
    if there is None:
        check(lib.cw_array_put(lease.pointer, encoded, flags, layout.c, found._offset))
    else:
        place = b"cuda:0" if there == "cuda" else there.encode()
        check(lib.cw_array_put_at(lease.pointer, encoded, place, flags, layout.c, found._offset))
    named = arrays.make(lease, layout, found._offset, name, found._memory)
    return arrays.reopened(named) if seal else named


def _check_free(name: str, encoded: bytes) -> None:
    """Refuses a name that is taken before anything is copied. The broker decides: another may take it meanwhile."""
    status = lib.cw_wait(client.current().pointer, encoded, 0)
    if status == 0:
        raise NameTaken(f'the name "{name}" is taken: replace it, or choose another')
    if status not in (-errno.ETIMEDOUT, -errno.EINTR):
        check(status)


@overload
def get(name: str, timeout: float | None = 0, *, version: int, swappable: bool = False) -> Tree: ...
@overload
def get(
    name: str, timeout: float | None = 0, *, swappable: Literal[True], version: int | None = None
) -> Tree: ...
@overload
def get(name: str, timeout: float | None = 0, *, device: list[str]) -> Tree: ...
@overload
def get(
    name: str, timeout: float | None = 0, *, readonly: bool = False, device: str | None = None
) -> Any: ...
def get(
    name: str,
    timeout: float | None = 0,
    *,
    readonly: bool = False,
    device: str | Sequence[str] | None = None,
    version: int | None = None,
    swappable: bool = False,
) -> Any:
    """The array or the `Tree` under a name, without a copy.

    Args:
        name: the name.
        timeout: seconds to wait for it; 0: do not wait, None: for ever. An array of another node must also arrive within that
            time, else `Timeout` is raised. (It is fetched all the same, for the next caller.) If that node's `cableway-bridge` ends
            and comes back while the array is fetched, it is asked for again, until the time is out. With 0, a name that exists is
            fetched, however long that takes.
        readonly: the handle is read-only: NumPy refuses to write. If other code writes all the same (in C, or by a tensor), the
            process gets a SIGSEGV, unless it also has a writable handle on the same array.
        device: the device of the result, which is a copy if the array is on another device. This also works if
            CUDA_VISIBLE_DEVICES hides that device here (another process then makes the copy). None: the array's own device. An
            array of another node comes into host memory, or onto the GPU that you name; all processes of this node share it
            there, read-only. So does a tree of another node, all of it; for one whose leaves lie on several GPUs there this may be
            a list: what lies on the first GPU there comes onto the first device, and so on, and what is in host memory there
            comes into host memory. A tree of this node is opened where it lies.
        version: for a tree: this version, even if the name means a later one, as long as a process still has it.
        swappable: for a tree: it gets addresses of its own in this process, which stay when another version takes its place
            (`Tree.swap`) or its memory is away for a time (`unmap`, `park`).

    Returns:
        Array: a handle (for a tree: a `Tree`). Close it, use it in a `with` block, or just drop it.

    Raises:
        NameNotFound: no such name (timeout=0).
        Timeout: the name did not appear, or the array did not arrive, in time.
        DeviceError: there is no such device.
        LimitExceeded: no memory is left on that device, or here.
        ProducerDied: an array of another node whose writer died before its work was complete.
        BrokerLost: the broker is gone.
        RemoteError: the other node cannot be reached, or refuses.
        ValueError: a bad name.

    >>> import cableway as cw
    >>> _ = cw.put("x", [1, 2, 3])
    >>> with cw.get("x", readonly=True) as x:
    ...     int(x.numpy().sum())
    6
    """
    encoded = name_bytes(name)
    if readonly is not False or swappable is not False:
        readonly, swappable = flag("readonly", readonly), flag("swappable", swappable)
    if device is not None and not isinstance(device := name_of(device), str):
        if not isinstance(device, Sequence):
            raise TypeError(
                f"device must be a string such as 'cpu' or 'cuda:0', or a list of such, not {type(device).__name__}"
            )
        return _tree_on(name, tuple(device), version, timeout)
    if device is not None:
        device = resolve(device)
    if version is not None or swappable:
        return _version(name, version, device, timeout, swappable)
    if device is not None and encoded[:2] == b"//":
        made = _get_at(name, encoded, device, 2 if readonly else 0, timeout)
        if made is None:
            return _tree(name, device, timeout, readonly)
        made._name = name
        return made
    connection = client._default or client.current()
    flags, status = 2 if readonly else 0, 0  # CW_READONLY
    if timeout:  # it bounds the whole call: also the broker's answer, where memory is to be mapped
        lease = _get_later(name, encoded, flags, timeout, -errno.EINTR)
    else:
        lease = _new_lease(Lease)  # without a line of Python: this is each get's way
        lease.cell = cell = _Cell()
        pointer = connection.pointer  # stays for as long as the call lasts
        status = cell.get(connection.number, encoded, flags)
        del pointer
    if status:
        if status == -errno.ENODEV and device is not None:
            return hidden_gpus.fetch(encoded, device)
        if status == -errno.EISDIR:
            return _tree(name, device, timeout, readonly)
        if status != -errno.EINTR and (status != -errno.ENOENT or timeout == 0):
            raise failure(status)
        lease = _get_later(name, encoded, flags, timeout, status)
    if lease is None:
        return _tree(name, device, timeout, readonly)
    made = _new_array(Array)
    made._lease = lease
    made._layout = None
    made._offset = 0
    made._name = name
    made._memory = None
    made._described = None
    return made if device is None else made.to(device)


def _checked(name: str) -> str:
    """The name, if it is one."""
    check(lib.cw_name_check(name_bytes(name)))
    return name


def _version(
    name: str, version: int | None, device: str | None, timeout: float | None, swappable: bool
) -> Tree:
    """A tree that was asked for by its version, or with addresses of its own."""
    places: tuple[str, ...] = () if device is None else (device,)
    end = None
    if version is None and timeout != 0:
        end = deadline(timeout)
        tree.wait_after(_checked(name), 0, timeout)
    return tree.get(_checked(name), version, places, end, timeout, swappable=swappable)


def _tree_on(
    name: str, devices: tuple[str, ...], version: int | None, timeout: float | None
) -> Tree:
    """A tree of another node, which lies on several GPUs."""
    if _checked(name)[:2] != "//":
        raise ValueError("a list of devices is for a tree of another node; leave device= out")
    places = tuple(resolve(device) for device in devices)
    end = None if timeout == 0 else deadline(timeout)
    while True:
        try:
            return tree.get(name, version, places, end, timeout)
        except NameNotFound:
            if end is None:
                raise
        _wait_until(name, name_bytes(name), timeout, Retries(end))


def _tree(name: str, device: str | None, timeout: float | None, readonly: bool) -> Array | Tree:
    """What a name means that meant a tree a moment ago."""
    places: tuple[str, ...] = ()
    end = None
    if name[:2] == "//":
        places = () if device is None else (device,)
        end = None if timeout == 0 else deadline(timeout)
    try:
        found = tree.get(name, None, places, end, timeout)
    except NotATree:  # an array was put there meanwhile
        again: Array | Tree = get(name, timeout, readonly=readonly, device=device)
        return again
    if not places and device is not None and found.device != device:
        raise ValueError(
            f'"{name}" is a tree and cannot be moved to a device as a whole: leave device= out, and copy what you need: t[path].to({device!r})'
        )
    return found


def _get_at(
    name: str, encoded: bytes, device: str, flags: int, timeout: float | None
) -> Array | None:
    """An array of another node on a device; None: it is a tree."""
    end = math.inf if timeout == 0 else deadline(timeout)
    place, retries = device.encode(), Retries(end)
    while True:
        connection, left = client.current().pointer, left_ns(end)
        status, got = lease_once(Lease, lib.cw_get_at, connection, encoded, place, flags, left)
        if status in (0, -errno.EISDIR):
            return None if status else arrays.make(got, None)
        if status == -errno.ENOENT and timeout != 0:
            retries.was_there()
            _wait_until(name, encoded, timeout, retries)
        elif status != -errno.EINTR and (timeout == 0 or not retries.tries_again(status)):
            raise failure_within(status, timeout)


def _get_later(
    name: str, encoded: bytes, flags: int, timeout: float | None, status: int
) -> Lease | None:
    """The lease on the array; None: it is a tree."""
    end = math.inf if timeout == 0 else deadline(timeout)
    retries = Retries(end)
    while True:
        if status == -errno.ENOENT and timeout != 0:
            retries.was_there()
            _wait_until(name, encoded, timeout, retries)
        connection, left = client.current().pointer, left_ns(end)
        status, lease = lease_once(Lease, lib.cw_get_within, connection, encoded, flags, left)
        if status in (0, -errno.EISDIR):
            return lease if status == 0 else None
        # A name that came and went; a signal while the array came from another node.
        if status == -errno.EINTR or (status == -errno.ENOENT and timeout != 0):
            continue
        if timeout == 0 or not retries.tries_again(status):
            raise failure_within(status, timeout)


def _wait_until(name: str, encoded: bytes, timeout: float | None, retries: Retries) -> None:
    """Waits. Signals are served between the calls: Ctrl-C works."""
    while True:
        left, last = slice_ns(retries.end)
        status = lib.cw_wait(client.current().pointer, encoded, left)
        if status == -errno.ETIMEDOUT and last:
            raise Timeout(
                f"no array was put under the name {name!r} within {timeout} s; is its maker running?"
            )
        if status == -errno.ETIMEDOUT:
            retries.was_there()
        elif status != -errno.EINTR and not retries.tries_again(status):
            check(status)
            return


def wait(name: str, timeout: float | None = None, *, after: int | None = None) -> None:
    """Waits until an array or a tree has that name.

    Args:
        name: the name.
        timeout: seconds; None for ever.
        after: wait until the name means a later version than this one (`Tree.version`).

    Raises:
        Timeout: it did not appear in time.
        BrokerLost: the broker is gone.
        ValueError: a bad name.

    >>> import cableway as cw
    >>> _ = cw.put("ready", 1)
    >>> cw.wait("ready", timeout=1)
    """
    if after is not None:
        tree.wait_after(_checked(name), after, timeout)
        return
    _wait_until(name, name_bytes(name), timeout, Retries(deadline(timeout)))


def remove(name: str) -> None:
    """Removes a name. Processes that use the array keep it.

    Raises:
        NameNotFound: no such name.
        ValueError: a bad name.

    >>> import cableway as cw
    >>> _ = cw.put("y", 1)
    >>> cw.remove("y")
    """
    check(lib.cw_remove(client.current().pointer, name_bytes(name)))


def names(prefix: str = "") -> list[str]:
    """All names of this namespace that begin with prefix, sorted. "//NODE/..." lists the names of another node, without
    "//NODE/".

    >>> import cableway as cw
    >>> _ = cw.put("run/b", 1), cw.put("run/a", 2)
    >>> cw.names("run/")
    ['run/a', 'run/b']
    """
    texts, count = ffi.new("char **"), ffi.new("uint64_t *")
    check(lib.cw_names(client.current().pointer, name_bytes(prefix), texts, count))
    return sorted(name.decode() for name in terminated(texts[0], count[0]))
