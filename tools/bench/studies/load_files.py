"""Weights from a .safetensors file whose pages are cached, beside the safetensors package, in one run, alternated.

    python load_files.py [ROUNDS] [MEBIBYTES]

    numpy       safetensors.numpy.load_file: memory of this process alone
    load_file   cableway.safetensors.load_file(framework="np"): memory that can be shared, hashed
    load        cw.load of a name that means nothing yet: the same, published
    again       cw.load of a name that means the tree already, and every tensor looked at

Each sample is a process of its own, which has imported and connected before; all bytes of all tensors are read once
within it, so that nobody puts off his work. Medians in milliseconds, with the lowest and the highest; not measured: a
cold disk, a GPU.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from measure import MIB, own_broker
from safetensors.numpy import save_file

TENSORS = 64
PROGRAM = """
import sys, time, numpy as np, cableway as cw, cableway.safetensors, safetensors.numpy
way, path = sys.argv[1:]
cw.connect()
began = time.perf_counter()
if way == "numpy":
    found = safetensors.numpy.load_file(path)
elif way == "load_file":
    found = cableway.safetensors.load_file(path, framework="np")
else:
    tree = cw.load("again" if way == "again" else "fresh", path)
    found = {name: tree[name].numpy() for name in tree}
total = sum(int(values.view("u8").sum(dtype="u8")) for values in found.values())
print(time.perf_counter() - began, total % (1 << 64))
if way == "load":
    cw.remove("fresh")
"""
WAYS = ("numpy", "load_file", "load", "again")


def main() -> None:
    """Prints the table."""
    rounds, size = (int(text) for text in (sys.argv[1:] + ["9", "512"][len(sys.argv) - 1 :]))
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    totals = set()
    with own_broker(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        values = np.random.default_rng(0).integers(
            0, 1 << 62, (TENSORS, size * MIB // 8 // TENSORS)
        )
        save_file({f"w{number}": one for number, one in enumerate(values)}, path)
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys, cableway as cw\ncw.load('again', sys.argv[1], keep=True)",
                str(path),
            ],
            check=True,
        )
        for _ in range(rounds):
            for way in WAYS:
                told = subprocess.run(
                    [sys.executable, "-c", PROGRAM, way, str(path)],
                    check=True,
                    capture_output=True,
                    text=True,
                )
                seconds, total = told.stdout.split()
                samples[way].append(float(seconds) * 1e3)
                totals.add(total)
    assert len(totals) == 1, "somebody read something else"
    print(
        f"{size} MiB in {TENSORS} tensors, page cache warm, {rounds} rounds, ms: median (lowest to highest)"
    )
    for way, found in samples.items():
        print(f"{way:>10}  {statistics.median(found):8.1f}  ({min(found):.1f} to {max(found):.1f})")


if __name__ == "__main__":
    main()
