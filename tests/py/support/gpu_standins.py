"""Stand-ins for GPU libraries: what each exposes, and the allocator interface of each, over the CUDA driver.

`install("cupy", "torch", "numba")` puts modules of these names where `import` finds them. Their arrays are memory and
the attributes by which other libraries know them; they compute nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import types
import weakref
from typing import Any

import numpy as np

cuda = ctypes.CDLL(os.environ.get("CABLEWAY_CUDA_DRIVER", "libcuda.so.1"))


def call(name: str, *arguments: Any) -> None:
    """Calls the driver."""
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)


def start(gpu: int = 0) -> None:
    """Makes the primary context current, as libraries do."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    call("cuCtxSetCurrent", context)


def write(address: int, values: np.ndarray) -> None:
    """Copies host values to the GPU."""
    start()
    flat = np.ascontiguousarray(values)
    call(
        "cuMemcpyHtoDAsync_v2",
        ctypes.c_uint64(address),
        ctypes.c_void_p(flat.ctypes.data),
        ctypes.c_size_t(flat.nbytes),
        None,
    )
    call("cuCtxSynchronize")


def read(address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Copies from the GPU."""
    start()
    out = np.empty(shape, dtype)
    call(
        "cuMemcpyDtoHAsync_v2",
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_uint64(address),
        ctypes.c_size_t(out.nbytes),
        None,
    )
    call("cuCtxSynchronize")
    return out


class DriverMemory:
    """Memory of cuMemAlloc."""

    def __init__(self, size: int) -> None:
        start()
        self.ptr, found = 0, ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(max(size, 1)))
        self.ptr = found.value

    def __del__(self) -> None:
        if self.ptr:
            start()  # it may go on any thread
            cuda.cuMemFree_v2(ctypes.c_uint64(self.ptr))


class Device:
    """What all the arrays below have in common: values on a GPU, in C order unless told otherwise."""

    def __init__(self, memory: Any, address: int, values: np.ndarray) -> None:
        self.memory, self.address = memory, address
        self.shape, self.dtype, self.strides = values.shape, values.dtype, values.strides
        if values.nbytes:
            write(address, values)

    def host(self) -> np.ndarray:
        """Its values."""
        return read(self.address, self.shape, self.dtype)

    def told(self, **more: Any) -> dict[str, Any]:
        """What every version of the interface has."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            **more,
        }


class Piece:
    """Memory that an allocator gives back when this goes."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


# ---- CuPy: interface 3 with its current stream; a pool over an allocator of one's own


class CudaRuntimeError(RuntimeError):
    """An error of the CUDA runtime."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    """What CuPy's and PyTorch's allocators raise."""


class MemoryPointer:
    """CuPy's: an address within memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr = mem, mem.ptr + offset


class PythonFunctionAllocator:
    """CuPy's: memory by two functions."""

    def __init__(self, malloc_func: Any, free_func: Any) -> None:
        self.malloc_func, self.free_func = malloc_func, free_func

    def malloc(self, size: int) -> MemoryPointer:
        """So many bytes."""
        memory = Piece(self.malloc_func(size, 0))
        weakref.finalize(memory, self.free_func, memory.ptr, 0)
        return MemoryPointer(memory, 0)


class MemoryPool:
    """CuPy's: keeps what was freed, by size, and gives it out again at once."""

    def __init__(self, allocator: Any = None) -> None:
        self.allocator, self.kept = allocator, {}

    def malloc(self, size: int) -> MemoryPointer:
        """So many bytes, of what is kept if there is any."""
        size = -(-size // 512) * 512
        kept = self.kept.setdefault(size, [])
        memory = kept.pop() if kept else self._more(size)
        piece = Piece(memory.ptr)
        weakref.finalize(piece, kept.append, memory)
        return MemoryPointer(piece, 0)

    def _more(self, size: int) -> Any:
        for last in (False, True):
            try:
                return self.allocator(size).mem
            except CudaRuntimeError as error:
                if error.status != 2:
                    raise
                if last:
                    raise OutOfMemoryError(size) from error
                self.free_all_blocks()
        raise AssertionError

    def free_all_blocks(self) -> None:
        """Gives back what is kept."""
        for kept in self.kept.values():
            kept.clear()


class CupyArray(Device):
    """`cupy.ndarray`."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        contiguous = self.strides == np.empty(self.shape, self.dtype).strides
        return self.told(version=3, stream=1, strides=None if contiguous else self.strides)


def cupy() -> types.ModuleType:
    """A module `cupy`."""
    module = types.ModuleType("cupy")
    state = {"allocator": lambda size: MemoryPointer(DriverMemory(size), 0)}

    def asarray(values: Any) -> CupyArray:
        values = np.asarray(values)
        pointer = state["allocator"](max(values.nbytes, 1))
        return CupyArray(pointer, pointer.ptr, values)

    module.asarray = asarray
    module.cuda = types.SimpleNamespace(
        get_allocator=lambda: state["allocator"],
        set_allocator=lambda allocator: state.update(allocator=allocator),
        MemoryPool=MemoryPool,
        PythonFunctionAllocator=PythonFunctionAllocator,
        runtime=types.SimpleNamespace(CUDARuntimeError=CudaRuntimeError),
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        get_current_stream=lambda: types.SimpleNamespace(ptr=0),
    )
    return module


# ---- PyTorch: interface 2, which knows no stream; pools over functions of a library


class Tensor(Device):
    """`torch.Tensor`."""

    device = "cuda:0"

    def get_device(self) -> int:
        """The GPU's number."""
        return 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.told(version=2, strides=None)


Tensor.__module__ = "torch"


class CUDAPluggableAllocator:
    """PyTorch's: two functions of a shared object."""

    def __init__(self, path: str, alloc_fn_name: str, free_fn_name: str) -> None:
        library = ctypes.CDLL(path)
        self.alloc, self.free = getattr(library, alloc_fn_name), getattr(library, free_fn_name)
        self.alloc.restype = ctypes.c_void_p
        self.alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]

    def allocator(self) -> CUDAPluggableAllocator:
        """What a pool takes."""
        return self


class MemPool:
    """PyTorch's: segments of 2 MiB, carved by the caching allocator, which uses what is freed at once."""

    SEGMENT = 2 << 20

    def __init__(self, allocator: CUDAPluggableAllocator) -> None:
        self.functions = allocator
        self.kept: dict[int, list[int]] = {}
        self.at = self.end = 0

    def malloc(self, size: int) -> int:
        """So many bytes."""
        size = -(-size // 512) * 512
        kept = self.kept.setdefault(size, [])
        if kept:
            return kept.pop()
        if self.at + size > self.end:
            room = max(self.SEGMENT, size)
            segment = self.functions.alloc(room, 0, None)
            if not segment:
                raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {room} bytes")
            self.at, self.end = segment, segment + room
        self.at += size
        return self.at - size

    def free(self, address: int, size: int) -> None:
        """Gives them back."""
        self.kept[-(-size // 512) * 512].append(address)


def torch() -> types.ModuleType:
    """A module `torch`."""
    module = types.ModuleType("torch")
    pools: list[MemPool] = []

    @contextlib.contextmanager
    def use_mem_pool(pool: MemPool, device: int) -> Any:
        pools.append(pool)
        try:
            yield
        finally:
            pools.remove(pool)

    def as_tensor(values: Any, device: str = "cuda") -> Tensor:
        values = np.array(values, order="C")
        size = max(values.nbytes, 1)
        if not pools:
            memory = DriverMemory(size)
            return Tensor(memory, memory.ptr, values)
        pool = pools[-1]
        address = pool.malloc(size)
        storage = Piece(address)
        weakref.finalize(storage, pool.free, address, size)
        return Tensor(storage, address, values)

    module.as_tensor = as_tensor
    module.OutOfMemoryError = OutOfMemoryError
    module.device = lambda name: types.SimpleNamespace(index=None)
    module.__version__ = "2"
    stream = types.SimpleNamespace(cuda_stream=0)
    module.cuda = types.SimpleNamespace(
        MemPool=MemPool,
        use_mem_pool=use_mem_pool,
        init=lambda: start(),
        current_device=lambda: 0,
        device=lambda gpu: contextlib.nullcontext(),
        current_stream=lambda device=None: stream,
        is_available=lambda: True,
        is_initialized=lambda: True,
        memory=types.SimpleNamespace(CUDAPluggableAllocator=CUDAPluggableAllocator),
    )
    return module


# ---- Numba: interface 3; a memory manager as a plug-in, and no pool


class CudaAPIError(RuntimeError):
    """Numba's error of the driver."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code


class NumbaPointer:
    """Numba's MemoryPointer."""

    def __init__(self, context: Any, pointer: Any, size: int, finalizer: Any = None) -> None:
        self.handle = pointer
        if finalizer is not None:
            weakref.finalize(self, finalizer)


class NumbaCUDAMemoryManager:
    """Numba's own memory manager."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def _attempt_allocation(self, allocator: Any) -> Any:
        try:
            return allocator()
        except CudaAPIError as error:
            if error.code != 2:
                raise
            return allocator()

    def memalloc(self, size: int) -> NumbaPointer:
        """So many bytes of the driver's."""
        memory = DriverMemory(size)
        return NumbaPointer(self.context, ctypes.c_uint64(memory.ptr), size, memory.__del__)

    def get_ipc_handle(self, memory: Any) -> bytes:
        """A legacy handle."""
        return b""


class DeviceNDArray(Device):
    """Numba's array."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.told(version=3, strides=None, stream=None)


def numba() -> types.ModuleType:
    """A package `numba` with `numba.cuda.cudadrv.driver`."""
    top, module = types.ModuleType("numba"), types.ModuleType("numba.cuda")
    below, driver = types.ModuleType("numba.cuda.cudadrv"), types.ModuleType("numba.driver")
    state: dict[str, Any] = {"manager": NumbaCUDAMemoryManager, "context": None}

    class Context:
        device = types.SimpleNamespace(id=0)

        def __init__(self) -> None:
            self.memory_manager = state["manager"](context=self)

    def current_context() -> Context:
        state["context"] = state["context"] or Context()
        return state["context"]

    def to_device(values: Any) -> DeviceNDArray:
        values = np.array(values, order="C")
        pointer = current_context().memory_manager.memalloc(max(values.nbytes, 1))
        return DeviceNDArray(pointer, pointer.handle.value, values)

    driver.NumbaCUDAMemoryManager, driver.CudaAPIError = NumbaCUDAMemoryManager, CudaAPIError
    driver.USE_NV_BINDING = False
    driver.drvapi = types.SimpleNamespace(cu_device_ptr=ctypes.c_uint64)
    module.set_memory_manager = lambda manager: state.update(manager=manager)
    module.current_context, module.to_device = current_context, to_device
    module.MemoryPointer = NumbaPointer
    module.cudadrv, below.driver, top.cuda = below, driver, module
    sys.modules["numba.cuda"], sys.modules["numba.cuda.cudadrv"] = module, below
    sys.modules["numba.cuda.cudadrv.driver"] = driver
    return top


# ---- others, known by their interfaces alone


class JaxArray(Device):
    """`jax.Array`: interface 2, results that may not be submitted yet, never written in place."""

    waited = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.told(version=2, strides=None)

    def block_until_ready(self) -> JaxArray:
        """Waits for the computation."""
        self.waited = True
        return self


class GPUArray(Device):
    """`pycuda.gpuarray.GPUArray`: interface 3 with strides always, without a stream."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.told(version=3, strides=self.strides)

    @property
    def gpudata(self) -> int:
        """The address."""
        return self.address


class Column(Device):
    """A column of cuDF: interface 1, with a mask (one bit a value) where values are missing."""

    mask: Any = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        told = self.told(version=1, strides=self.strides)
        return told if self.mask is None else {**told, "mask": self.mask}


def make(kind: type[Device], values: Any) -> Device:
    """An array of one of these classes, in memory of the driver's."""
    values = np.array(values, order="C")
    memory = DriverMemory(values.nbytes)
    return kind(memory, memory.ptr, values)


def install(*names: str) -> None:
    """Puts stand-ins where `import` finds them."""
    for name in names:
        sys.modules[name] = {"cupy": cupy, "torch": torch, "numba": numba}[name]()


# ---- what a consumer of DLPack sees


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def look(capsule: Any) -> types.SimpleNamespace:
    """What a DLPack capsule says, without consuming it."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    versioned = "dltensor_versioned" in repr(capsule)
    name = b"dltensor_versioned" if versioned else b"dltensor"
    at = pointer(capsule, name)
    kind = _Versioned if versioned else _Tensor
    found = ctypes.cast(at, ctypes.POINTER(kind)).contents
    tensor = found.tensor if versioned else found
    ndim = tensor.ndim
    return types.SimpleNamespace(
        address=(tensor.data or 0) + tensor.byte_offset,
        device=(tensor.device_type, tensor.device_id),
        dtype=(tensor.code, tensor.bits, tensor.lanes),
        shape=tuple(tensor.shape[i] for i in range(ndim)),
        strides=tuple(tensor.strides[i] for i in range(ndim)),
        flags=found.flags if versioned else 0,
        version=(found.major, found.minor) if versioned else None,
        capsule=capsule,
    )
