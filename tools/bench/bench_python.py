"""What users of the Python package get by name, side by side with the standard library, in one run.

Prints one JSON line a measurement, as the C benchmarks do.
"""

from __future__ import annotations

import argparse
from multiprocessing import shared_memory

import numpy as np
from measure import alternate, own_broker, own_cpu, report


def bench_get(rounds: int) -> None:
    """get(name) and close; SharedMemory(name=) and close; both also with an ndarray over the bytes."""
    import cableway as cw

    data = np.random.default_rng(1).random(1000)
    block = shared_memory.SharedMemory(create=True, size=data.nbytes)
    np.ndarray(data.shape, data.dtype, buffer=block.buf)[:] = data
    keep = cw.put("bench", data)

    def ours() -> None:
        cw.get("bench").close()

    def ours_array() -> None:
        array = cw.get("bench")
        assert array.numpy()[7] == data[7]
        array.close()

    def theirs() -> None:
        shared_memory.SharedMemory(name=block.name).close()

    def theirs_array() -> None:
        memory = shared_memory.SharedMemory(name=block.name)
        array = np.ndarray(data.shape, data.dtype, buffer=memory.buf)
        assert array[7] == data[7]
        del array
        memory.close()

    rows = alternate(
        rounds,
        300,
        [
            ("cableway get+close", ours),
            ("SharedMemory attach+close", theirs),
            ("cableway get, ndarray, close", ours_array),
            ("SharedMemory attach, ndarray, close", theirs_array),
        ],
        own_cpu,
    )
    for name, (samples, cpu) in rows.items():
        report("python get", name, "", "us", [s * 1e6 for s in samples], cpu)
    keep.close()
    block.close()
    block.unlink()


def main() -> None:
    """Runs it, with a broker in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=42)
    options = parser.parse_args()
    with own_broker():
        bench_get(options.rounds)


if __name__ == "__main__":
    main()
