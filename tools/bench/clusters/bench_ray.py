"""Arrays from one actor of Ray to another: cableway's transports beside Ray's object store (a plain return) and, for tensors of PyTorch where
that is installed, gloo. Run by `make bench-ray`.

All actors are there at once, in one Ray; they are measured in turns, in an order that changes. The array was made before. A sample is the
time from the call of the method that returns it until a method of another actor, to which its reference is passed, has answered: of an
array that was never sent before (first), and of the same reference once more (again). "read" is the first for a method that passes
over the array, since who gets a mapping meets its pages then. "write" is the first for one that adds 1 to it in place, or to a copy where
it came read-only. The table has the median, with the lowest and highest.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import numpy as np
import ray

import cableway.ray  # noqa: F401 - before the actors are made

MIB = 1 << 20
SIZES = {"1 KiB": 1 << 10, "1 MiB": MIB, "64 MiB": 64 * MIB, "256 MiB": 256 * MIB}
SECONDS = 100


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Actor:
    """One end."""

    def make(self, nbytes: int, of_torch: bool) -> None:
        """The array to be given."""
        self.array: Any = np.full(nbytes // 8, random.random())
        if of_torch:
            import torch

            self.array = torch.from_numpy(self.array)

    def give(self) -> Any:
        """It."""
        return self.array

    def take(self, x: Any) -> int:
        """Looks at nothing."""
        return len(x)

    def read(self, x: Any) -> float:
        """One pass."""
        return float(x.sum())

    def write(self, x: Any) -> int:
        """One pass that writes."""
        if isinstance(x, np.ndarray) and not x.flags.writeable:
            x = x.copy()
        x += 1
        return len(x)


def kinds() -> dict[str, tuple[str | None, bool]]:
    """By their names: the transport, None for the object store; and whether tensors of PyTorch go."""
    found: dict[str, tuple[str | None, bool]] = {
        "NumPy, cableway": ("cableway_numpy", False),
        "NumPy, object store": (None, False),
    }
    try:
        import torch  # noqa: F401
    except ImportError:
        return found
    return found | {
        "torch, cableway": ("cableway", True),
        "torch, object store": (None, True),
        "torch, gloo": ("gloo", True),
    }


def measured(
    pair: list[Any], transport: str | None, of_torch: bool, nbytes: int, method: str
) -> list[float]:
    """Milliseconds, of one way and once more."""
    maker, reader = pair
    ray.get(maker.make.remote(nbytes, of_torch), timeout=SECONDS)
    give = maker.give if transport is None else maker.give.options(tensor_transport=transport)
    found = []
    reference = None
    for _ in range(2 if method == "take" else 1):
        begin = time.perf_counter()
        if reference is None:
            reference = give.remote()
        ray.get(getattr(reader, method).remote(reference), timeout=SECONDS)
        found.append((time.perf_counter() - begin) * 1000)
    return found


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    chosen = parser.parse_args()
    ray.init(
        num_cpus=2, object_store_memory=2048 * MIB, include_dashboard=False, logging_level="warning"
    )
    all_kinds = kinds()
    pairs = {name: [Actor.remote(), Actor.remote()] for name in all_kinds}
    for name, (transport, _) in all_kinds.items():
        if transport == "gloo":
            from ray.experimental.collective import create_collective_group

            create_collective_group(pairs[name], backend="torch_gloo")
    samples: dict[tuple[str, str, str], list[float]] = {}
    for turn in range(-1, chosen.rounds):  # the first one warms up
        for size, nbytes in SIZES.items():
            for method in ("take", "read", "write"):
                for name in random.sample([*all_kinds], len(all_kinds)):
                    found = measured(pairs[name], *all_kinds[name], nbytes, method)
                    whats = ["first", "again"] if method == "take" else [method]
                    for what, sample in zip(whats, found, strict=True):
                        if turn >= 0:
                            samples.setdefault((size, what, name), []).append(sample)
    ray.shutdown()
    print(f"\n| actor to actor, ms, {chosen.rounds} rounds | " + " | ".join(all_kinds) + " |")
    print("|---" * (len(all_kinds) + 1) + "|")
    for size in SIZES:
        for what in ("first", "again", "read", "write"):
            row = [
                f"{statistics.median(of):.2f} ({min(of):.2f} to {max(of):.2f})"
                for of in (samples[size, what, name] for name in all_kinds)
            ]
            print(f"| {size}, {what} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
