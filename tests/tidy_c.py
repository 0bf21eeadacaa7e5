"""The rules of tests/tidy.py for the folders of the C code: who may include whom, and how README.md tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

SHM = ("shm/base", "shm/session", "shm/blocks", "shm/names", "shm/tasks")
# What a folder may include: folders (without those in them) and headers. Its own files it may include always.
MAY_INCLUDE: dict[str, tuple[str, ...]] = {
    "shm/base": (),
    "shm/session": ("shm/base", "shm/names"),
    "shm/blocks": ("shm/base",),
    "shm/names": ("shm/base",),
    "shm/tasks": ("shm/base",),
    "ipc": (*SHM, "ipc/base", "ipc/request", "ipc/memory", "ipc/cuda", "ipc/order", "ipc/array"),
    "ipc/tree": (
        *SHM, "ipc", "ipc/base", "ipc/request", "ipc/memory", "ipc/array", "ipc/order/context_failure.h", "ipc/order/drain.h",
    ),
    "ipc/load": (
        *SHM, "ipc", "ipc/base", "ipc/memory", "ipc/request", "ipc/cuda", "ipc/array", "ipc/tree",
    ),
    "ipc/base": ("shm/base", "shm/blocks", "shm/names", "ipc"),
    "ipc/request": (*SHM, "ipc", "ipc/base"),
    # A block's bytes come back when the streams that used them have passed.
    "ipc/memory": (*SHM, "ipc", "ipc/base", "ipc/request", "ipc/order/fence.h"),
    # What is imported is a suballocation with an array on it; a wait for a stream may meet a failed context.
    "ipc/cuda": (
        *SHM, "ipc", "ipc/base", "ipc/request", "ipc/memory", "ipc/order/context_failure.h", "ipc/array/array.h",
        "ipc/array/suballocation.h",
    ),
    # The calls of cableway.h take arrays: where one lies is in its struct.
    "ipc/order": (*SHM, "ipc", "ipc/base", "ipc/request", "ipc/memory", "ipc/cuda", "ipc/array/array.h"),
    "ipc/array": (*SHM, "ipc", "ipc/base", "ipc/request", "ipc/memory", "ipc/cuda", "ipc/order"),
    "ipc/group": (
        *SHM, "ipc", "ipc/base", "ipc/request/socket.h", "ipc/array", "ipc/cuda", "ipc/memory/slab.h", "ipc/order",
    ),
    "ipc/tasks": (*SHM, "ipc", "ipc/base", "ipc/request", "ipc/array"),
    "broker": (
        *SHM, "ipc", "ipc/request", "broker/core", "broker/session", "broker/memory", "broker/names", "broker/roles",
    ),
    "broker/core": (*SHM, "ipc/wire.h", "ipc/request", "broker", "broker/session", "broker/memory", "broker/names", "broker/roles"),
    "broker/session": (*SHM, "ipc/wire.h", "broker", "broker/core", "broker/memory", "broker/names", "broker/roles"),
    "broker/memory": (*SHM, "ipc/wire.h", "ipc/base", "broker", "broker/core", "broker/session", "broker/names", "broker/roles"),
    "broker/names": (*SHM, "ipc", "ipc/base", "broker", "broker/core", "broker/session", "broker/memory"),
    "broker/roles": (*SHM, "ipc/wire.h", "ipc/base", "broker", "broker/core", "broker/session", "broker/memory", "broker/names"),
    "broker/mover": ("shm/base", "ipc", "ipc/memory/slab_cache.h", "ipc/array", "ipc/cuda", "ipc/order"),
    "broker/bridge": (
        "shm/base", "ipc", "ipc/base", "ipc/request", "broker/core/table.h", "broker/roles/verdict.h", "broker/bridge/io",
        "broker/bridge/tls", "broker/bridge/wire", "broker/bridge/link", "broker/bridge/serve", "broker/bridge/fetch",
        "broker/bridge/relay", "broker/bridge/local", "broker/bridge/cli",
    ),
    # A thread runs streams.
    "broker/bridge/io": ("shm/base", "ipc", "broker/bridge/memory.h", "broker/bridge/wire", "broker/bridge/link/stream.h"),
    "broker/bridge/tls": ("shm/base", "broker/bridge", "broker/bridge/wire"),
    "broker/bridge/wire": ("shm/base", "shm/names", "ipc", "ipc/base", "broker/bridge", "broker/bridge/io", "broker/bridge/tls"),
    "broker/bridge/link": (
        "shm/base", "ipc", "ipc/base", "broker/bridge", "broker/bridge/io", "broker/bridge/tls", "broker/bridge/wire",
        "broker/bridge/serve", "broker/bridge/fetch", "broker/bridge/local",
    ),
    "broker/bridge/serve": (
        "shm/base", "ipc", "ipc/base", "ipc/request", "ipc/array", "ipc/tree/index.h", "broker/bridge", "broker/bridge/wire",
        "broker/bridge/link", "broker/bridge/fetch", "broker/bridge/relay", "broker/bridge/local",
    ),
    "broker/bridge/fetch": (
        "shm/base", "ipc", "ipc/base", "ipc/array", "ipc/request/socket.h", "ipc/tree/tree.h", "broker/bridge",
        "broker/bridge/wire", "broker/bridge/link", "broker/bridge/relay", "broker/bridge/local",
    ),
    "broker/bridge/relay": (
        "shm/base", "ipc", "ipc/base", "ipc/request", "broker/bridge", "broker/bridge/tls", "broker/bridge/wire",
        "broker/bridge/link", "broker/bridge/serve", "broker/bridge/fetch", "broker/bridge/local",
    ),
    "broker/bridge/local": (
        "shm/base", "shm/names", "ipc", "ipc/base", "ipc/request", "ipc/array", "ipc/tree/tree.h", "broker/bridge",
        "broker/bridge/wire", "broker/bridge/link", "broker/bridge/serve", "broker/bridge/fetch",
    ),
    "broker/bridge/cli": (
        "shm/base", "ipc/cableway.h", "ipc/array/remote_name.h", "broker/bridge", "broker/bridge/io", "broker/bridge/tls",
        "broker/bridge/wire", "broker/bridge/link",
    ),
    "tools": ("shm/base", "shm/session", "ipc/cableway.h", "ipc/wire.h", "ipc/request/address.h"),
    "tools/commands": ("shm/base", "shm/session", "ipc/cableway.h", "tools", "tools/completion", "tools/doctor", "tools/npy", "tools/run", "tools/safetensors", "tools/top", "tools/trace", "tools/watch"),
    "tools/completion": ("shm/base", "shm/session", "tools"),
    "tools/screen": ("shm/base", "shm/session", "tools", "tools/top"),
    "tools/top": (*SHM, "ipc/wire.h", "ipc/base/device.h", "ipc/base/meta.h", "tools", "tools/trace", "tools/watch"),
    "tools/trace": ("shm/base", "ipc/wire.h", "ipc/group/page.h", "ipc/request/address.h", "tools", "tools/watch"),
    "tools/doctor": ("shm/base", "shm/session", "ipc/cableway.h", "tools"),
    "tools/npy": ("shm/base", "ipc/cableway.h"),
    "tools/run": ("shm/base", "ipc/cableway.h", "tools"),
    "tools/safetensors": ("shm/base", "ipc/cableway.h", "tools", "tools/npy"),
    "tools/watch": (
        "shm/base", "shm/session", "shm/blocks", "ipc/cableway.h", "ipc/wire.h", "ipc/base/device.h", "ipc/base/name_key.h",
        "ipc/tasks/pool_parts.h", "ipc/tasks/queue_head.h", "tools",
    ),
    # The benchmarks of TLS speak the protocol of nodes.
    "tools/bench/programs": ("shm/base", "shm/session", "ipc/cableway.h", "ipc/base/meta.h", "broker/bridge/wire/frame.h"),
    "py/csrc": ("ipc/cableway.h",),
    "py/csrc/dlpack": ("ipc/tree/index.h",),
    "docs/examples": ("ipc/cableway.h",),
}  # fmt: skip


def told(folder: str) -> str:
    """How the table stands in the folder's README.md; empty: nothing else of ours, or the folder has no line."""
    shown: list[str] = []
    for place in MAY_INCLUDE.get(folder, ()):
        top = (
            place.partition("/")[0]
            if place in SHM and set(SHM) <= set(MAY_INCLUDE[folder])
            else place
        )
        if top not in shown:
            shown.append(top)
    return ", ".join(f"`{place}`" for place in shown) + "." if shown else ""


def includes_against_the_table(texts: Mapping[str, str]) -> Iterator[str]:
    """Of all files by their names: what a folder includes that MAY_INCLUDE does not say."""
    for name, text in texts.items():
        folder = str(PurePosixPath(name).parent)
        if not name.endswith((".c", ".h")) or name.split("/")[0] not in (
            "shm",
            "ipc",
            "broker",
            "tools",
            "py",
            "docs",
        ):
            continue
        allowed = MAY_INCLUDE.get(folder) or MAY_INCLUDE.get(str(PurePosixPath(folder).parent))
        if folder not in MAY_INCLUDE and allowed is None:
            yield f"{name}: MAY_INCLUDE has no {folder}"
            continue
        for number, line in enumerate(text.splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match or (folder.startswith("docs") and match[1] == "cableway.h"):
                continue
            inner = f"{folder}/{match[1]}" if f"{folder}/{match[1]}" in texts else match[1]
            place = str(PurePosixPath(inner).parent)
            if place != folder and place not in (allowed or ()) and inner not in (allowed or ()):
                yield f"{name}:{number}: includes {inner}; {folder} may include {', '.join(allowed or ())}"
