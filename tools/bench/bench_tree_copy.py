"""A tree from one GPU to another, beside one copy of the same bytes by the driver and PyTorch's of each tensor: part of `make bench-gpu`.

`cw.put(name, tree, device="cuda:1")` allocates there, copies and publishes; of it the copies are timed, and all of it. PyTorch's copies
allocate, too; the driver's goes into memory that is there. They take turns, results are checked, and copies at less than LEAST of the
driver's rate fail the run from 256 MiB on. Arguments: leaves, and bytes of each.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from gpu import driver

import cableway as cw
from cableway._array import copies

MIB = 1 << 20
LEAST = 0.98
LEAVES, LEAF_BYTES = 400, 20 * MIB  # as a model of 8 GB has them
ROUNDS = 8


def seconds(action: Callable[[], object]) -> float:
    """The time of one."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def main() -> int:
    """Measures, and prints a row."""
    if "cuda:1" not in cw.devices():
        print("trees from GPU to GPU: not measured, there is no second GPU")
        return 0
    leaves, leaf_bytes = [int(value) for value in sys.argv[1:3]] or [LEAVES, LEAF_BYTES]
    size = leaves * leaf_bytes
    values = np.random.default_rng(0).integers(0, 255, leaf_bytes, "u1")
    state = {f"layer.{i}.weight": np.roll(values, i) for i in range(leaves)}
    tree = cw.put("bench/tree", state, device="cuda:0")
    there, here = driver.peers(size, 1)
    stream = driver.stream()

    def by_driver() -> None:
        driver.copy("DtoD", here[0], there[0], size, stream)
        driver.finish(stream)

    times: dict[str, list[float]] = {"cableway": [], "put": [], "driver": [], "torch": []}
    copied: list[float] = []  # of one put, by call
    copy = copies.copy
    copies.copy = lambda pairs: copied.append(seconds(lambda: copy(pairs)))
    tensors = tree.torch() if importlib.util.find_spec("torch") and _torch_sees() else {}
    for number in range(ROUNDS + 2):  # the first two do not count
        took = {"driver": seconds(by_driver)}
        copied.clear()
        took["put"] = seconds(lambda: cw.put("bench/copy", tree, device="cuda:1"))
        took["cableway"] = sum(copied)
        if tensors:
            took["torch"] = seconds(lambda: _by_torch(tensors))
        for who in took if number > 1 else ():
            times[who].append(took[who])
    copy = cw.get("bench/copy")
    for i in (0, leaves // 2, leaves - 1):
        path = f"layer.{i}.weight"
        assert np.array_equal(copy[path].to("cpu").numpy(), state[path])
    rates = {who: size / 1e9 / statistics.median(took) for who, took in times.items() if took}
    print(
        f"{'a tree from GPU to GPU':34} {'cableway':>9} {'all of put':>11} {'driver':>9} {'torch':>9}  unit  of the driver"
    )
    torch = f"{rates['torch']:9.1f}" if "torch" in rates else f"{'-':>9}"
    share = rates["cableway"] / rates["driver"]
    print(
        f"{f'{leaves} leaves, {size / 1e9:.2f} GB':34} {rates['cableway']:9.1f} {rates['put']:11.1f} {rates['driver']:9.1f} {torch}  GB/s  {share:.2f}"
    )
    cw.remove("bench/copy")
    cw.remove("bench/tree")
    if size >= 256 * MIB and share < LEAST:
        print(f"MISSED: a tree from GPU to GPU: {share:.2f} of the driver's rate, promised {LEAST}")
        return 1
    return 0


def _torch_sees() -> bool:
    import torch

    return bool(torch.cuda.device_count() > 1)


def _by_torch(tensors: dict[str, object]) -> None:
    import torch

    made = [tensor.to("cuda:1") for tensor in tensors.values()]  # type: ignore[attr-defined]
    torch.cuda.synchronize(1)
    del made


if __name__ == "__main__":
    sys.exit(main())
