"""One load of a file onto a GPU, in a process of its own: what bench_gpu_load.py starts. Says "ready", waits for a line, loads,
says when it began and ended, and what it found there.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import driver
import numpy as np

import cableway as cw
from cableway import client, tree
from cableway._core.library import check, ffi, lib

ALIGN = 4096
MIB = 1 << 20


def total_of(arrays: list[Any]) -> int:
    """The sum of all bytes, as words of 64 bits, fetched from the GPU."""
    found = 0
    for array in arrays:
        values = array if isinstance(array, np.ndarray) else array.to("cpu").numpy()
        found += int(np.frombuffer(values.tobytes(), "u8").sum(dtype="u8"))
    return found % (1 << 64)


def of_torch(tensors: dict[str, Any]) -> list[np.ndarray]:
    """Bytes of tensors, on the host."""
    import torch

    return [one.cpu().view(torch.uint8).numpy().reshape(-1) for one in tensors.values()]


class Raw:
    """Threads that read the file into a pinned ring, from where it is copied to the GPU; each waits for its own slots alone."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self.size = Path(path).stat().st_size
        self.slot = int(options["slot_mib"] * MIB)
        self.threads = options["threads"]
        self.each = max(options["slots"] // self.threads, 1)
        flags = os.O_RDONLY | (os.O_DIRECT if options["cold"] else 0)
        self.fd = os.open(path, flags)
        self.streams = [driver.stream() for _ in range(options["streams"])]
        self.memory = driver.memory(self.size + self.slot)
        self.ring = driver.pinned(self.threads * self.each * self.slot)
        self.failed: list[BaseException] = []

    def _work(self, number: int) -> None:
        try:
            driver.enter()
            stream = self.streams[number % len(self.streams)]
            marks = [driver.event() for _ in range(self.each)]
            for turn, at in enumerate(range(number * self.slot, self.size, self.threads * self.slot)):  # fmt: skip
                which = turn % self.each
                place = self.ring + (number * self.each + which) * self.slot
                driver.call("cuEventSynchronize", marks[which])
                view = memoryview(ffi.buffer(ffi.cast("char *", place), self.slot))
                got = os.preadv(self.fd, [view], at)
                if got < min(self.slot, self.size - at):
                    raise OSError(f"{got} bytes at {at}")
                driver.copy("HtoD", self.memory + at, place, got, stream)
                driver.call("cuEventRecord", marks[which], stream)
        except BaseException as error:
            self.failed.append(error)

    def run(self) -> None:
        """All of it."""
        threads = [threading.Thread(target=self._work, args=(n,)) for n in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for stream in self.streams:
            driver.finish(stream)
        if self.failed:
            raise self.failed[0]

    def total(self) -> int:
        """Of all behind the header."""
        values = np.empty(self.size, "u1")
        stream = self.streams[0]
        driver.copy("DtoH", values.ctypes.data, self.memory, self.size, stream)
        driver.finish(stream)
        begin = 8 + struct.unpack_from("<Q", values)[0]
        return total_of([values[begin:]])


def load(path: str, times: dict[str, int]) -> cw.Tree:
    """cw.load(), and where its time went."""
    began = ffi.gc(ffi.new("cw_load **"), lib.cwpy_load_end)
    found = tree.new_cell()
    pointer = client.current().pointer
    check(lib.cw_load_begin(pointer, b"m", path.encode(), b"cuda:0", 0, began))
    status = -errno.EINTR
    while status == -errno.EINTR:
        status = lib.cw_load_wait(began[0], -1, found, ffi.NULL)
    check(status)
    spent = ffi.new("cw_load_times *")
    lib.cw_load_look_at(began[0], spent)
    for name in ("claim_ns", "allocate_ns", "read_ns", "publish_ns", "slot_ns", "file_ns", "pin_ns", "send_ns", "direct_bytes", "threads"):  # fmt: skip
        times[name] = getattr(spent, name)
    lib.cwpy_load_end(began)
    return tree.make(found, "m")


def prepared(way: str, path: str, options: dict[str, Any], times: dict[str, int]) -> tuple[Callable[[], Any], Callable[[Any], list[int]]]:  # fmt: skip
    """What is measured, and the totals of what it returned."""
    devices = ["cuda:0", "cuda:1"]
    if way == "raw":
        raw = Raw(path, options)
        return raw.run, lambda _: [raw.total()]
    if way in ("load", "four"):
        return lambda: load(path, times), lambda made: [total_of(list(made.values()))]
    if way == "both":
        return (lambda: cw.load("m", path, device=devices),
                lambda made: [total_of(list(one.values())) for one in made])  # fmt: skip
    if way == "one after the other":
        return (lambda: [cw.load(f"m/{one}", path, device=one) for one in devices],
                lambda made: [total_of(list(one.values())) for one in made])  # fmt: skip
    import torch

    torch.ones(1, device="cuda:0")
    torch.cuda.synchronize()
    if way == "load_file":
        import cableway.safetensors

        read = cableway.safetensors.load_file
    elif way == "package":
        from safetensors.torch import load_file as read
    else:
        import instanttensor

        backend = None if options["cold"] else instanttensor.BackendPolicy.BUFFERED

        def read(path: str, device: str) -> dict[str, Any]:
            with instanttensor.safe_open(path, framework="pt", device=device, backend=backend) as file:  # fmt: skip
                return dict(file.tensors())

    def run() -> Any:
        made = read(path, device="cuda:0")
        torch.cuda.synchronize()
        return made

    return run, lambda made: [total_of(of_torch(made))]


def main() -> None:
    """One sample."""
    way, path, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    driver.enter()
    cw.connect()
    cw.empty(1, device="cuda:0").close()
    if way in ("both", "one after the other"):
        cw.empty(1, device="cuda:1").close()
    times: dict[str, int] = {}
    run, totals = prepared(way, path, options, times)
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    made = run()
    end = time.monotonic()
    print(json.dumps({"begin": begin, "end": end, "totals": totals(made), "times": times}), flush=True)  # fmt: skip
    sys.stdin.read()
    for name in cw.names():
        try:
            cw.remove(name)
        except cw.NameNotFound:
            pass


if __name__ == "__main__":
    main()
