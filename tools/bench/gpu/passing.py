"""GPU arrays and tensors to another process through a queue, and a word back: ours, torch's, cuda.core's. Both sides are hot."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from typing import Any

import numpy as np
from gpu.rows import (
    COPIED,
    MIB,
    NEW,
    OTHER,
    OWN,
    SAME,
    affordable,
    alternated,
    missing,
    note,
    passing,
    seconds,
    tensors,
    value,
)

import cableway as cw

SIZES = affordable(MIB, 256 * MIB, 1024 * MIB)
TENSORS = affordable(MIB, 64 * MIB)
ARRAYS = 23


def answer(there: cw.Queue, back: cw.Queue) -> None:
    """The other process."""
    back.put(None)
    while (w := there.get()) is not None:
        back.put(w.shape)


def look(there: cw.Queue, back: cw.Queue) -> None:
    """A third process, which says what arrays hold."""
    while (w := there.get()) is not None:
        back.put(w[:1].to("cpu").item())


def ours(size: int) -> dict[str, float]:
    """Microseconds by kind."""
    context = multiprocessing.get_context("spawn")
    there, back = cw.Queue(), cw.Queue()
    child = context.Process(target=answer, args=(there, back), daemon=True)
    child.start()
    back.get()
    arrays = [cw.empty(size, "u1", device="cuda:0") for _ in range(ARRAYS)]
    for i, w in enumerate(arrays):
        w[:1].copy_from(np.array([i], "u1"))

    def turn(w: cw.Array) -> None:
        there.put(w)
        assert back.get() == (size,)

    for w in arrays:
        turn(w)  # the slab is known
    found = {
        SAME: seconds(lambda _: turn(arrays[0]), 300),
        OTHER: seconds(lambda i: turn(arrays[i % ARRAYS]), 300),
    }
    rest = arrays[4:]
    del arrays[4:], w  # room for new ones, in slabs that are known
    check(rest)
    rest.clear()
    for _ in range(8):
        turn(cw.empty(size, "u1", device="cuda:0"))
    found[NEW] = seconds(lambda _: turn(cw.empty(size, "u1", device="cuda:0")), 60)
    there.put(None)
    child.join()
    return {kind: taken * 1e6 for kind, taken in found.items()}


def check(arrays: list[cw.Array]) -> None:
    """Another process sees in each array what was written to it."""
    there, back = cw.Queue(), cw.Queue()
    child = multiprocessing.get_context("spawn").Process(
        target=look, args=(there, back), daemon=True
    )
    child.start()
    for i, w in enumerate(arrays):
        there.put(w)
        assert back.get() == i + 4, i
    there.put(None)
    child.join()


def answer_torch(there: Any, back: Any) -> None:
    """The other process with torch's queues."""
    import torch

    torch.zeros(1, device="cuda")
    back.put(None)
    while (w := there.get()) is not None:
        back.put(tuple(w.shape))
        del w


def _turns(size: int, arrays: list[Any], turn: Any) -> dict[tuple[str, int], float]:
    import torch

    def new(_: int) -> None:
        turn(torch.empty(size, dtype=torch.uint8, device="cuda"))

    same = seconds(lambda _: turn(arrays[0]), 60)
    other = seconds(lambda i: turn(arrays[i % ARRAYS]), 40)
    arrays.clear()
    return {(SAME, size): same, (OTHER, size): other, (NEW, size): seconds(new, 40)}


def by_torch() -> dict[tuple[str, int], float]:
    """Microseconds by kind and size."""
    import torch
    import torch.multiprocessing as tm

    tm.set_start_method("spawn", force=True)  # else its Queue warns of forks that nobody does
    context = tm.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=answer_torch, args=(there, back), daemon=True)
    child.start()
    back.get()

    def turn(w: Any) -> None:
        there.put(w)
        back.get()

    found = {}
    for size in SIZES:
        arrays = [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(ARRAYS)]
        torch.cuda.synchronize()
        found.update(_turns(size, arrays, turn))
    there.put(None)
    child.join()
    torch.cuda.empty_cache()
    return {kind: taken * 1e6 for kind, taken in found.items()}


def answer_core(there: Any, back: Any) -> None:
    """The other process with cuda.core's buffers."""
    with contextlib.suppress(ImportError):
        from cuda.core import Device
    if "Device" not in locals():
        from cuda.core.experimental import Device
    Device(0).set_current()
    back.put(None)
    while (buffer := there.get()) is not None:
        back.put(buffer.size)
        buffer.close()


def answer_tensors(there: Any, back: Any) -> None:
    """The other process: a shape, or the first element where it is asked for."""
    import torch

    torch.zeros(1, device="cuda")
    back.put(None)
    while (found := there.get()) is not None:
        back.put(found[0][0].item() if isinstance(found, tuple) else tuple(found.shape))
        del found


def by_tensors(size: int) -> None:
    """Tensors through our Queue and torch's, in turn: in memory of ours, and torch's own, another one each time.

    Ten of each in a row, as a program that sends one after the other; and one of each, so that both sides sleep before.
    """
    import torch

    spawn = multiprocessing.get_context("spawn")
    ends = {"ours": (cw.Queue(), cw.Queue()), "theirs": (spawn.Queue(), spawn.Queue())}
    children = [
        spawn.Process(target=answer_tensors, args=pair, daemon=True) for pair in ends.values()
    ]
    for child, (_, back) in zip(children, ends.values(), strict=True):
        child.start()
        back.get()

    def turn(which: str, item: Any) -> Any:
        there, back = ends[which]
        there.put(item)
        return back.get()

    plain = [torch.full((size,), i + 1, dtype=torch.uint8, device="cuda") for i in range(ARRAYS)]
    own = [cw.empty(size, "u1", device="cuda:0").torch() for _ in range(ARRAYS)]
    for i, tensor in enumerate(own):
        tensor.fill_(101 + i)
    torch.cuda.synchronize()
    for i in range(ARRAYS):  # the right one arrives, with what was written
        for which, tensor, holds in (
            ("ours", plain[i], i + 1),
            ("ours", own[i], 101 + i),
            ("theirs", plain[i], i + 1),
        ):
            assert turn(which, (tensor,)) == holds, (which, i)
    for kind, sent in ((OWN, own), (COPIED, plain)):
        for in_a_row, how in ((10, ""), (1, ", after a pause")):
            mine, theirs = alternated(
                lambda i, sent=sent: turn("ours", sent[i % ARRAYS]),  # type: ignore[misc]
                lambda i: turn("theirs", plain[i % ARRAYS]),
                60 if in_a_row == 1 else 12,
                in_a_row,
            )
            spread = f"{mine.p10 * 1e6:.0f} to {mine.p90 * 1e6:.0f} | {theirs.p10 * 1e6:.0f} to {theirs.p90 * 1e6:.0f}"
            what = tensors(kind, size, how)
            note(what, mine.median * 1e6, "torch Queue", theirs.median * 1e6, "us", spread)
    for child, (there, _) in zip(children, ends.values(), strict=True):
        there.put(None)
        child.join()
    torch.cuda.empty_cache()


def by_core(size: int) -> float:
    """Microseconds for a buffer of an IPC-enabled memory resource, a new one each time, as it is made to be used."""
    try:
        import cuda.core as core

        core.DeviceMemoryResource  # noqa: B018
    except (ImportError, AttributeError):
        import cuda.core.experimental as core
    device = core.Device(0)
    device.set_current()
    options = core.DeviceMemoryResourceOptions(max_size=2 << 30, ipc_enabled=True)
    resource = core.DeviceMemoryResource(device, options=options)
    context = multiprocessing.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=answer_core, args=(there, back), daemon=True)
    child.start()
    back.get(timeout=60)
    stream = device.create_stream()

    def turn(_: int) -> None:
        buffer = resource.allocate(size, stream=stream)
        stream.sync()
        there.put(buffer)
        assert back.get(timeout=60) == size
        buffer.close(stream)

    try:
        return seconds(turn, 40) * 1e6
    finally:
        there.put(None)
        child.join(30)
        if child.is_alive():
            child.kill()


def measure() -> None:
    """All of it. Memory that comes back is kept for the next array, as torch keeps all of its own."""
    os.environ.setdefault("CABLEWAY_GPU_CACHE_BYTES", str(8 << 30))
    theirs: dict[tuple[str, int], float] = {}
    try:
        theirs = by_torch()
    except ImportError as error:
        missing("torch's Queue", error)
    for size in SIZES:
        for kind, taken in ours(size).items():
            note(passing(kind, size), taken, "torch Queue", theirs.get((kind, size)), "us")
    for size in TENSORS:
        try:
            by_tensors(size)
        except ImportError as error:
            missing("tensors through a Queue", error)
    try:
        core = by_core(MIB)
        taken = value(passing(NEW, MIB))
        assert taken is not None
        note(passing(NEW, MIB), taken, "cuda.core, IPC buffer", core, "us")
    except Exception as error:  # noqa: BLE001  whatever its version lacks is its reason
        missing("cuda.core's IPC buffers", f"{type(error).__name__}: {error}")
