"""CuPy, PyTorch and JAX pass one array through three processes, on one GPU, without a copy.

    python passing.py [--size N] [--device cuda:0]

CuPy's process makes the array, PyTorch's doubles it in place, JAX's adds it up. Nobody waits on the CPU for a GPU: `writing` and
`reading` put the work of the three streams in order. The result is checked against NumPy.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from typing import Any

import numpy as np

import cableway as cw


def by_cupy(size: int, device: str, after: Any) -> None:
    """Makes the array."""
    import cupy

    x = cw.empty(size, "f8", device=device)
    with cupy.cuda.Stream(non_blocking=True), x.writing():
        cupy.asarray(x)[:] = cupy.arange(size, dtype="f8")
    after.put(x)
    after.join()  # x is ours until the next process has it


def by_torch(before: Any, after: Any) -> None:
    """Doubles it in place."""
    import torch

    x = before.get()
    before.task_done()
    with torch.cuda.stream(torch.cuda.Stream()), x.writing():
        seen = torch.from_dlpack(x)
        seen.mul_(2)
    after.put(x)
    after.join()


def by_jax(before: Any, result: Any) -> None:
    """Adds it up. JAX's arrays are never written to, and its stream is its own: reading() waits for PyTorch's work."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp

    x = before.get()
    before.task_done()
    with x.reading() as r:
        total = float(jnp.from_dlpack(x).sum())
    r.wait()  # the sum is of complete data, or ProducerDied: PyTorch's process was killed
    result.put((total, x.device_uuid))


def main() -> None:
    """Passes, times, checks."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--size", type=int, default=10_000_000)
    options.add_argument("--device", default="cuda:0")
    given = options.parse_args()

    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    to_torch, to_jax, result = cw.JoinableQueue(), cw.JoinableQueue(), cw.Queue()
    begin = time.perf_counter()
    processes = [
        spawn.Process(target=by_cupy, args=(given.size, given.device, to_torch)),
        spawn.Process(target=by_torch, args=(to_torch, to_jax)),
        spawn.Process(target=by_jax, args=(to_jax, result)),
    ]
    for process in processes:
        process.start()
    found, uuid = result.get(timeout=120)
    seconds = time.perf_counter() - begin
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit(f"{process.name} ended with {process.exitcode}")

    expected = float(2 * np.arange(given.size, dtype="f8").sum())
    if not np.isclose(found, expected, rtol=1e-12):
        raise SystemExit(f"WRONG: {found!r} instead of {expected!r}")
    print(
        f"{given.size:,} numbers on {uuid}, through three processes: {seconds:.2f} s, with the start of three libraries"
    )
    print(f"the sum is NumPy's: {found:.0f}")


if __name__ == "__main__":
    main()
