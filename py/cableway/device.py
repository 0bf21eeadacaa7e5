"""Devices, which hold the memory of arrays.

Names are "cpu", and "cuda" or "cuda:N" for the GPU of that number in this process.

>>> import cableway as cw
>>> "cpu" in cw.devices()
True
"""

from __future__ import annotations

import re
from typing import Any

from cableway._core.library import check, ffi, lib

__all__ = ["devices", "name_of", "resolve"]

_NAME = re.compile(r"cpu|cuda(:[0-9]{1,4})?")


def devices() -> list[str]:
    """The devices that can hold arrays, "cpu" first.

    Raises:
        LimitExceeded: this process sees more than 64 GPUs; name fewer in CUDA_VISIBLE_DEVICES.

    >>> import cableway as cw
    >>> cw.devices()[0]
    'cpu'
    """
    texts, count = ffi.new("char **"), ffi.new("uint64_t *")
    check(lib.cw_devices(texts, count))
    return [name.decode() for name in terminated(texts[0], count[0])]


def terminated(texts: object, count: int) -> list[bytes]:
    """Reads count null-terminated texts that lie one behind the other, and frees them."""
    found = []
    try:
        at = texts
        for _ in range(count):
            found.append(ffi.string(at))
            at += len(found[-1]) + 1  # type: ignore[operator]
    finally:
        lib.cw_free(texts)
    return found


def name_of(device: Any) -> Any:
    """A `torch.device` as its name, in which "cpu" has no number, as it says nothing; whatever else it is, that."""
    kind = type(device)
    if kind.__name__ != "device" or kind.__module__ != "torch":
        return device
    return "cpu" if device.type == "cpu" else str(device)


def resolve(device: object) -> str:
    """The full name of a device that exists here, of its name or a `torch.device`; None means "cpu".

    Raises:
        TypeError, ValueError: device is not the name of a device.
        DeviceError: this process has no such device; the message says why.
    """
    if device is None or device == "cpu":
        return "cpu"
    device = name_of(device)
    if not isinstance(device, str):
        raise TypeError(
            f"device must be a string such as 'cpu' or 'cuda:0', not {type(device).__name__}"
        )
    if device != "cuda:0" and not _NAME.fullmatch(device):  # the usual one is asked for often
        raise ValueError(f"{device!r} is not a device; use 'cpu' or 'cuda:N'")
    full = "cuda:0" if device == "cuda" else device
    check(lib.cw_device_check(full.encode()))
    return full
