"""cableway's part of Dask's configuration.

`check` refuses a bad setting when `cableway.dask` is imported. One that is set later is met amid messages, where an error would make Dask
send the same thing again, without end: there the setting's default counts, and the logger `cableway.dask` says so, once a process.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import dask.config
from dask.utils import parse_bytes

__all__ = [
    "allocates",
    "bridge_threshold_bytes",
    "check",
    "keep_bytes",
    "shares",
    "threshold_bytes",
]

logger = logging.getLogger("cableway.dask")

NEVER, ALWAYS, REUSE = range(3)  # of `allocates`

_DEFAULTS: dict[str, Any] = {
    "threshold": "1 MiB",
    "bridge-threshold": "8 MiB",
    "gpu-keep": "1 GiB",
    "gpu-share": False,
    "allocate": "reuse",
}


def threshold_bytes() -> int:
    """Frames of at least so many bytes go by handle: `cableway.threshold`."""
    try:  # as dask.config.get("cableway.threshold"), which takes ten times as long
        setting = dask.config.config["cableway"]["threshold"]
    except (KeyError, TypeError):
        setting = _DEFAULTS["threshold"]
    return _usable("threshold", setting)


def bridge_threshold_bytes() -> int:
    """Objects whose large frames have together at least so many bytes go to another node by the bridge: `cableway.bridge-threshold`.
    Below it one reader has them sooner as bytes.
    """
    return _usable("bridge-threshold", _setting("bridge-threshold"))


def keep_bytes() -> int:
    """How much GPU memory a process keeps of what it sent: `cableway.gpu-keep`."""
    return _usable("gpu-keep", _setting("gpu-keep"))


def shares() -> bool:
    """Whether the workers of a GPU use one copy: `cableway.gpu-share`."""
    return bool(_usable("gpu-share", _setting("gpu-share")))


def allocates() -> int:
    """Whether large arrays of tasks lie in shared memory from the beginning: ALWAYS, NEVER, or in memory that the worker has used and
    that is free (REUSE). `cableway.allocate`.
    """
    return _usable("allocate", _setting("allocate"))


def check() -> None:
    """Whether all settings can be used.

    Raises:
        ValueError: one of them cannot.
    """
    for name in _DEFAULTS:
        _read(name, _setting(name))


def _setting(name: str) -> Any:
    return dask.config.get(f"cableway.{name}", default=_DEFAULTS[name])


def _usable(name: str, setting: Any) -> int:
    try:
        return _remembered(name, setting)
    except TypeError:  # a list or a dict, which cannot be remembered
        return _remembered(name, repr(setting))


@functools.lru_cache(typed=True)
def _remembered(name: str, setting: Any) -> int:
    try:
        return _read(name, setting)
    except ValueError as error:
        logger.warning("%s; %s is used here", error, _DEFAULTS[name])
        return _read(name, _DEFAULTS[name])


def _read(name: str, setting: Any) -> int:
    variable = f"DASK_CABLEWAY__{name.upper().replace('-', '_')}"
    what = f"cableway.{name} in Dask's configuration ({variable} in the environment) is {setting!r}"
    if name in ("allocate", "gpu-share"):
        reuse = name == "allocate"
        if not (reuse and setting == "reuse") and setting not in (0, 1):  # also True and False
            raise ValueError(f"{what}: write {'reuse, ' if reuse else ''}true or false")
        return REUSE if setting == "reuse" else ALWAYS if setting else NEVER
    least = 0 if name == "gpu-keep" else 1
    try:
        found = -1 if isinstance(setting, bool) else int(parse_bytes(setting))
    except Exception:
        found = -1
    if found < least:
        raise ValueError(
            f"{what}, which is no size: write '4 {'MiB' if least else 'GiB'}', or bytes from {least} on"
        )
    return found
