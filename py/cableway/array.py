"""`Array`: a handle on memory that several processes share.

>>> import numpy as np, cableway as cw
>>> w = cw.put("weights", np.arange(6, dtype="f4").reshape(2, 3))
>>> w
<cableway.Array name='weights' shape=(2, 3) dtype=float32 strides=(12, 4) ndim=2 size=6 nbytes=24 device='cpu'>
>>> float(np.asarray(w).sum())
15.0
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from cableway import _dispatch, client
from cableway._array import copies, dlpack, hashing, pickles, swaps
from cableway._array.values import Values, plain
from cableway._core import dtypes, layouts, words
from cableway._core.layouts import Layout, received
from cableway._core.leases import (
    EvictableLease,
    FixedLease,
    Lease,
    check_basic,
    is_basic,
    lease_again,
    lease_of_handle,
    show,
    usable,
)
from cableway._core.library import exported, ffi, lib
from cableway._cuda import interop, stream_order
from cableway.device import resolve
from cableway.errors import Error, Stale

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from cableway._pool.devices.fast_path import Described

__all__ = ["Array"]


class Array(Values, _dispatch.Fields):
    """A handle on an array in shared memory; `get`, `put`, `empty` and others make it.

    NumPy and other libraries use it without a copy: `numpy.asarray(w)`, `numpy.from_dlpack(w)`, and from Python 3.12 on
    `memoryview(w)` and `bytearray(w)` (with older Pythons those of `w.numpy()`). For an array on a GPU, use `cupy.asarray(w)` or
    `torch.from_dlpack(w)`. A slice (`w[10:20]`) is a handle on a part of the same memory; `w[...] = x` writes. A pickle of it, of
    whatever kind, is a handle of about 200 bytes, and the receiver sees the same memory.

    In host memory everything else is as with an ndarray: `w == 2`, `2 in w`, `w + 1`, `w.sum()`, `numpy.sqrt(w)`, `w[w > 2]`
    and `w[[0, 2]]` give ndarrays or scalars; `w += 1` and `out=w` write; a 1-d array iterates over its elements, one with more
    axes over handles on its parts. Take `x = w.numpy()` before a loop over single elements: `x[i]` is many times quicker than
    `w[i]`. Functions that accept only a real ndarray need `w.numpy()`, too: `rng.random(out=w.numpy())`. Like an ndarray it has
    no hash: use its name, or `id(w)`, as a key. For an array on a GPU all of these raise a TypeError that says what to do
    instead. There `reshape`, `ravel`, `transpose`, `swapaxes` and `squeeze` return handles on the same memory, as slices do; if
    NumPy would have to copy, they raise a ValueError.

    close() ends this handle. Views on it stay valid, and the memory stays until the last of them is gone.
    """

    __slots__ = ("__weakref__",)

    _lease: Lease | None
    _layout: Layout | None
    _memory: NDArray[np.uint8] | None
    _name: str | None
    _offset: int
    _described: Described | None  # what a Pool's messages say of it (`_pool.devices.fast_path`)

    def __init__(self) -> None:
        raise TypeError("an Array is made by cableway.put, get, empty, zeros, full and asarray")

    @staticmethod
    def _new(
        layout: Layout,
        *,
        zero: bool = False,
        filled: bool = False,
        device: str = "cpu",
        evictable: bool = False,
        apart: bool = False,
    ) -> Array:
        """Allocates an unnamed array. filled: all of it is about to be written. apart: CW_APART."""
        connection = client.current()
        flags = (lib.CW_ZERO if zero else 0) | (lib.CW_EVICTABLE if evictable else 0)
        flags |= (lib.CW_FILLED if filled else 0) | (lib.CW_APART if apart else 0)
        kind = EvictableLease if evictable else Lease
        place = device.encode()
        lease = lease_again(kind, lib.cw_array_new, connection.pointer, place, layout.c, flags)
        return make(lease, layout, layout.origin)

    # ---- what it is

    def _open_lease(self) -> Lease:
        lease = self._lease
        if lease is None:
            name = "" if self._name is None else f" {self._name!r}"
            again = "cableway.get()" if self._name is not None else "put, get or empty"
            raise ValueError(
                f"this cableway.Array{name} is closed; take its views before close(), or open it again with {again}"
            )
        return lease

    def _layout_now(self) -> Layout:
        lease = self._open_lease()
        layout = self._layout
        if layout is None:
            layout = layouts.of(lease.pointer)
            self._offset = layout.origin
            self._layout = layout
        return layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._layout_now().shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of one element. A type that NumPy lacks ("bfloat16") is a dtype of ml_dtypes if that is installed, else a void
        of the same size; repr(w) shows its name. If a byte holds two numbers (`int4_x2`), an element is the byte, and `numpy()`
        shows it as uint8.
        """
        return self._layout_now().dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        return self._layout_now().strides

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._layout_now().ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._layout_now().size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._layout_now().nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def device(self) -> str:
        """Where the memory lies: "cpu", or "cuda:N" by the numbers of this process."""
        lease = self._open_lease()
        return str(ffi.string(lib.cw_array_device(lease.pointer)), "ascii")

    @property
    def device_uuid(self) -> str:
        """The UUID of the GPU that holds the array, the same in every process; "" for host memory."""
        return interop.uuid(self._open_lease())

    @property
    def evictable(self) -> bool:
        """Whether it was made with evictable=True."""
        return isinstance(self._open_lease(), EvictableLease)

    @property
    def away(self) -> bool:
        """Whether its bytes are in host memory now because its GPU was full. The next use brings them back."""
        lease = self._open_lease()
        return bool(lib.cw_array_away(lease.pointer))

    @property
    def name(self) -> str | None:
        """The name under which it was put or found; None for unnamed arrays and for parts."""
        return self._name

    @property
    def readonly(self) -> bool:
        """Whether NumPy refuses to write: it was opened read-only, see `get`, or is what `numpy.broadcast_to` made."""
        return self._open_lease().readonly or self._layout_now().repeats

    @property
    def flags(self) -> Any:
        """NumPy's flags of the memory (c_contiguous, f_contiguous, writeable, ...)."""
        return self._seen().flags

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._lease is None

    def __len__(self) -> int:
        shape = self._layout_now().shape
        if not shape:
            raise TypeError("len() of a 0-d array")
        return shape[0]

    def __repr__(self) -> str:
        if self._lease is None:
            return f"<cableway.Array name={self._name!r} closed>"
        it = self._layout_now()
        return (
            f"<cableway.Array name={self._name!r} shape={it.shape} dtype={words.name(it.dtype)} strides={it.strides} "
            f"ndim={it.ndim} size={it.size} nbytes={it.nbytes} device={self.device!r}"
            f"{' readonly' if self.readonly else ''}>"
        )

    # ---- what it holds

    def _seen(self) -> NDArray[Any]:
        """The memory as NumPy describes it. Of a GPU array nobody may look at the elements."""
        lease, layout = self._open_lease(), self._layout_now()
        memory = self._memory
        if memory is None:
            memory = lease.memory()
        elif type(lease) is FixedLease:
            lease.check_mapped()
        dtype = layout.dtype
        if dtype.metadata is not None:
            dtype = words.raw(dtype)
        found: NDArray[Any] = np.ndarray(layout.shape, dtype, memory, self._offset, layout.strides)
        if layout.repeats:
            found.flags.writeable = False
        return found

    def _on_gpu(self) -> bool:
        return self._memory is None and self._open_lease().gpu >= 0

    def numpy(self) -> NDArray[Any]:
        """The memory as a NumPy array, never copied. It stays valid after close().

        Raises:
            ValueError: the array is closed.
            TypeError: it lies on a GPU; `.to("cpu").numpy()` copies it.

        >>> import cableway as cw
        >>> w = cw.zeros(3, "i4")
        >>> w.numpy()[1] = 7
        >>> w.numpy().tolist()
        [0, 7, 0]
        """
        if self._memory is None:
            lease = self._open_lease()
            if lease.gpu >= 0:
                raise interop.no_host_view(self.device)
            if self._layout is not None:  # it may be new, and about to be filled
                lib.cw_array_prefault(lease.pointer)
            self._memory = lease.memory()
            if self._lease is None:  # another thread has closed it meanwhile
                self._memory = None
            show(lease)
        return self._seen()

    def _exact(self) -> NDArray[Any]:
        """The same, of two numbers in a byte not as bytes: what is made like it has the dtype of this array."""
        found, dtype = self.numpy(), self._layout_now().dtype
        return found if found.dtype == dtype else found.view(dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found = self.numpy()
        wanted = found.dtype if dtype is None else words.dtype_of(dtype)
        if not words.same(wanted, found.dtype):
            words.check_cast(found.dtype, wanted)
            if copy is False:
                raise ValueError(
                    f"copy=False, but converting {words.name(found.dtype)} to {words.name(wanted)} needs a copy; leave copy out"
                )
            return found.astype(wanted)
        return found.copy(order="K") if copy else found

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._on_gpu():
            raise AttributeError("an array on a GPU has no __array_interface__")
        lease, found = self._open_lease(), self.numpy()
        if found.dtype.names is not None or not found.size or words.word(found.dtype):
            raise AttributeError("__array_interface__ cannot tell this array; __array__ does")
        seen: Any = self._memory
        if seen is None:  # another thread has closed it meanwhile
            seen = lease.memory()
        memory = memoryview(seen)
        return {
            "version": 3,
            "shape": found.shape,
            "typestr": found.dtype.str,
            "strides": found.strides,
            # An object rather than an address: the consumer's view then keeps the lease itself.
            "data": memory if found.flags.writeable else memory.toreadonly(),
            "offset": self._offset,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        layout = self._layout_now()
        return interop.interface(self._open_lease(), layout, self._offset)

    @property
    def __cupy_get_ndarray__(self) -> Callable[[], Any]:
        # What __cuda_array_interface__ cannot tell; CuPy looks here after that.
        return dlpack.for_cupy(self)

    if sys.version_info >= (3, 12):

        def __buffer__(self, flags: int) -> memoryview:
            if self._on_gpu():
                raise BufferError(str(interop.no_host_view(self.device)))
            found = self.numpy()
            if found.dtype.names is not None:
                raise BufferError(
                    "structured arrays keep their dtype through cableway.Array.numpy() alone"
                )
            if words.word(found.dtype):  # without ml_dtypes NumPy would say void
                raise BufferError(
                    f"a buffer cannot tell {words.name(found.dtype)}; take cableway.Array.numpy(), or its bytes: "
                    "w.numpy().view('u1')"
                )
            try:
                return memoryview(found)
            except ValueError as error:
                raise BufferError(str(error)) from None

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_of(self._open_lease())

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule: versioned if max_version says 1.0 or later, else of the older form; see `dlpack.give`."""
        return dlpack.give(self, stream, max_version, dl_device, copy)

    def copy_from(self, source: ArrayLike | Array, *, stream: Any = None) -> Array:
        """Copies source into this array, and converts its numbers if NumPy's rule "same_kind" allows it.

        Args:
            source: anything array-like of the same shape, also on a GPU. Numbers from a GPU are not converted.
            stream: between two GPU arrays of cableway, the stream that does the copy; the call then returns at once. None: the
                call returns when the copy is done.

        Returns:
            Array: this one.

        Raises:
            ValueError: the shapes differ, this array is closed or read-only.
            TypeError: the dtype of source cannot be converted.

        >>> import cableway as cw
        >>> cw.empty(3, "f8").copy_from([1, 2, 3]).numpy()
        array([1., 2., 3.])
        """
        copies.assign(self, source, stream=stream)
        return self

    def copy(self) -> Array:
        """A new, unnamed array on the same device with the same contents; the order of the axes is kept.

        >>> import cableway as cw
        >>> w = cw.asarray([1, 2]); c = w.copy(); c[0] = 9
        >>> w.numpy().tolist(), c.numpy().tolist()
        ([1, 2], [9, 2])
        """
        return copies.duplicate(self)

    def to(self, device: str, *, stream: Any = None) -> Array:
        """This array on a device: the array itself if it is there already, else a copy.

        Args:
            device: "cpu", or "cuda:N".
            stream: as in `copy_from`.

        Raises:
            DeviceError: there is no such device.
            LimitExceeded: no memory left there.

        >>> import cableway as cw
        >>> w = cw.zeros(2)
        >>> w.to("cpu") is w
        True
        """
        self._open_lease()
        return copies.onto(self, resolve(device), stream)

    def to_device(self, device: str, /, *, stream: Any = None) -> Array:
        """`to`, by the name that the array API standard has for it."""
        return self.to(device, stream=stream)

    def prefetch(self, device: str | None = None) -> Array:
        """Starts to bring this array to a device ahead of its use there: itself if it belongs there, else a copy.

        Returns at once; the copy goes on in a stream of its own. Everything that uses the result waits for the copy: `reading`
        and `writing`, `wait`, every copy, and `cupy.asarray` or `torch.from_dlpack`. A copy to "cpu", or by cableway-mover,
        blocks, as with `to`.

        Args:
            device: "cuda:N" or "cpu"; None for the array's own device: an evictable array that is away then comes back.

        Raises:
            DeviceError: there is no such device.
            LimitExceeded: no memory left there; the array is as before.

        >>> import cableway as cw
        >>> w = cw.zeros(2)
        >>> w.prefetch() is w
        True
        """
        self._open_lease()
        return copies.prefetch(self, self.device if device is None else resolve(device))

    def torch(self) -> Any:
        """A PyTorch tensor on this memory, without a copy. Each sees what is written to the other. Sending the tensor to another
        process (by a `cableway.Queue`, or after `cableway.torch.share()`) copies nothing either.

        Work on the tensor in the current stream waits for the last write to the array; `writing` and `reading` put later work in
        order. The tensor of a read-only array is writable all the same, since PyTorch has no read-only tensors; a warning says so
        once.

        Raises:
            ImportError: PyTorch is not installed.
            BufferError: PyTorch does not have this dtype.
            ProducerDied: the process that wrote it last died before its work was complete.
        """
        import torch

        if not words.is_packed(self.dtype):
            return torch.from_dlpack(self)
        layout = self._layout_now()
        raw = Layout(layout.shape, words.raw(layout.dtype), layout.strides)
        same = make(self._open_lease(), raw, self._offset, None, self._memory)
        return interop.packed(torch.from_dlpack(same), layout.dtype)

    # ---- work of GPU streams on it

    def writing(
        self, stream: Any = None, *, timeout: float | None = None, whole: bool = False
    ) -> stream_order.Writing:
        """A `with` block in which GPU work may write the array, in order with the work of all other processes.

        Args:
            stream: a number or a stream of a GPU library; None for the current one. See `cableway._cuda.stream_order`.
            timeout: seconds that the CPU waits at most, if it has to wait; then `Timeout` is raised. None: for ever.
            whole: your work writes every element, so that it does not matter if the last writer died.

        Returns:
            Writing: a section. Call `r.wait()` after `with y.writing() as r:` to wait until the work is complete. It raises
            `ProducerDied` if the data that the work used was not complete.

        Raises:
            ProducerDied: a process died before its GPU work on the array was complete. This is raised at the begin, at the end if
                it is known by then, or by the section's `wait`.
        """
        return stream_order.Writing(self, stream, timeout, whole)

    def reading(self, stream: Any = None, *, timeout: float | None = None) -> stream_order.Reading:
        """Like `writing`, for GPU work that reads the array."""
        return stream_order.Reading(self, stream, timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Waits on the CPU until the last write is complete, at most timeout seconds. Raises what `writing` raises."""
        stream_order.wait(self, timeout)
        copies.arrived(self._open_lease())

    # ---- parts of it

    def _part(self, found: NDArray[Any]) -> Array:
        lease = self._open_lease()
        offset = (
            found.__array_interface__["data"][0] - lease.address if found.size else self._offset
        )
        whole = self._layout_now().dtype
        if whole.metadata is not None and found.dtype == words.raw(whole):  # and not a field's
            found = found.view(whole)
        return make(lease, layouts.seen(found), offset, None, self._memory)

    def __getitem__(self, key: Any) -> Any:
        """For a basic key (slices, `...`) a handle on a part; in host memory also one element, or a copy of several, as in NumPy.

        >>> import cableway as cw
        >>> w = cw.asarray([1, 2, 3])
        >>> w[1], w[1:].name, w[w > 1]
        (np.int64(2), None, array([2, 3]))
        """
        found = self._at(key)
        if swaps.is_part(found):
            swaps.taken(found)
        return found

    def _at(self, key: Any) -> Any:
        found = self._seen()
        if isinstance(key, str):
            return self._part(found[key])
        whole = key if isinstance(key, tuple) else (key,)
        on_gpu = self._on_gpu()
        if on_gpu:
            for part in whole:
                check_basic(part, self.device)
        elif not all(map(is_basic, whole)):
            return self.numpy()[plain(key)]
        if not any(part is Ellipsis for part in whole):
            if not on_gpu:
                element = found[key]
                if not isinstance(element, np.ndarray):
                    return self.numpy()[key] if self._memory is None else element
            whole += (Ellipsis,)
        return self._part(found[whole])

    def __setitem__(self, key: Any, value: Any) -> None:
        if swaps.is_part(value) and swaps.assigned(self, key, value):
            return
        if self._on_gpu() or copies.lies_on_gpu(value):
            copies.assign(self._at(key), value, spread=True)
        elif key is not ... or not copies.fill_new(self, value):
            found = self.numpy()
            found[plain(key)] = copies.as_values(self, found, value)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the elements of a 1-d array, or over handles on the parts of an array with more axes."""
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        if self.ndim == 1:
            return iter(self.numpy())
        return (self[i] for i in range(len(self)))

    @property
    def T(self) -> Array:
        """A handle on the same memory with the axes reversed."""
        return self._part(self._seen().T)

    @property
    def mT(self) -> Array:
        """A handle on the same memory with the last two axes exchanged. ValueError if there are fewer than two."""
        if self.ndim < 2:
            raise ValueError("matrix transpose with ndim < 2 is undefined")
        return self._part(self._seen().swapaxes(-1, -2))

    # ---- its life

    def close(self) -> None:
        """Ends this handle. Views on it stay valid. May be repeated."""
        self._lease = None  # first: who sets what follows looks at this afterwards
        self._memory = None
        self._described = None

    def __enter__(self) -> Array:
        self._open_lease()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lease = None  # first: who sets what follows looks at this afterwards
        self._memory = None
        self._described = None

    def __copy__(self) -> Array:
        return make(self._open_lease(), self._layout, self._offset, self._name, self._memory)

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        made = memo[id(self)] = self.copy()
        return made

    def handle(self, transit: bool = True, openers: int = 1) -> bytes:
        """48 bytes that name this array's memory for another process of the same broker.

        Args:
            transit: True: the broker holds the array until the handle was opened, but at most `transit_seconds`; False: the
                caller must keep the array until then.
            openers: how often it is opened; `pickles.UNKNOWN`: nobody knows.
        """
        lease = self._open_lease()  # kept: a thread may close the array
        return bytes(ffi.buffer(exported(usable(lease), openers if transit else 0)))

    def reduce(self, transit: bool = True, openers: int = 1) -> tuple[Any, tuple[Any, ...]]:
        """What `__reduce__` returns; see `handle` for transit and openers."""
        lease, layout = self._open_lease(), self._layout_now()
        handle = self.handle(transit, openers)
        address = ffi.string(lib.cw_client_address(lib.cw_array_client(lease.pointer)))
        state = (
            handle,
            dtypes.encode(layout.dtype),
            layout.shape,
            layout.strides,
            self._offset,
            lease.readonly,
            self._name,
            address,
        )
        return open_handle, state

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        reduced = self.reduce(openers=pickles.UNKNOWN)
        pickles.begun(reduced[1][0])
        return reduced

    def __reduce_ex__(self, protocol: Any) -> Any:
        if protocol == hashing.PROTOCOL and hashing.by_joblib(sys._getframe(1)):
            return hashing.content(self)
        return self.__reduce__()

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """The token by which dask names a computation: equal for equal contents."""
        return hashing.token(self)


def make(
    lease: Lease,
    layout: Layout | None,
    offset: int = 0,
    name: str | None = None,
    memory: NDArray[np.uint8] | None = None,
) -> Array:
    """A handle on leased memory. layout None: the one that the library knows, read when first needed."""
    made = Array.__new__(Array)
    made._lease = lease
    made._layout = layout
    made._offset = offset
    made._name = name
    made._memory = memory
    made._described = None
    return made


new = Array._new


def reopened(array: Array) -> Array:
    """The same array, opened once more, read-only, by a lease of its own."""
    handle, dtype, shape, strides, offset, _, name, address = array.reduce(transit=False)[1]
    return open_handle(handle, dtype, shape, strides, offset, True, name, address)


def open_handle(
    handle: bytes,
    dtype: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    readonly: bool,
    name: str | None,
    address: bytes,
) -> Array:
    """Opens a handle that another process made; what unpickling calls.

    Raises:
        Stale: the array is gone.
        BrokerLost: the broker that held it is gone.
        Error: the handle or the layout is malformed.
    """
    carried = ffi.new("cw_handle *")
    if len(handle) != ffi.sizeof("cw_handle"):
        raise ValueError(f"a handle has {ffi.sizeof('cw_handle')} bytes, not {len(handle)}")
    ffi.memmove(carried, handle, len(handle))
    if carried.size_bytes > sys.maxsize:
        raise Error(f"a handle names {carried.size_bytes} bytes, more than any memory has")
    layout = received(shape, dtype, strides, offset, carried.size_bytes)
    connection = client.for_instance(
        carried.instance, ffi.string(ffi.from_buffer(address)).decode()
    )
    if connection.instance != carried.instance:
        raise Stale(
            "the array behind this handle went with the broker that held it; put it again and send it anew"
        )
    raw = Layout((carried.size_bytes,), np.dtype(np.uint8))
    flags = lib.CW_READONLY if readonly else 0
    lease = lease_of_handle(connection, bytes(handle), raw, flags)
    return make(lease, layout, offset, name)
