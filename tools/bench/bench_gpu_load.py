"""The weights of a model onto a GPU, from a file of the shapes of a real one: part of `make bench-gpu`.

    python bench_gpu_load.py [--gib 8] [--rounds 5] [--folder /dev/shm] [--cold] [--ways WAY ...]

    load        cw.load(device="cuda:0") of a name that means nothing yet
    load_file   cableway.safetensors.load_file(device="cuda:0")
    package     safetensors.torch.load_file(device="cuda:0")
    instant     InstantTensor, as it is told to read what is in the page cache (--cold: as it does by itself)
    raw         threads that read into a pinned ring, and copies to the GPU: the bare minimum (see Raw)
    four        4 processes that call cw.load of one name at once
    both        cw.load(device=["cuda:0", "cuda:1"]), beside `one after the other`, where there are two GPUs

Each sample is a process of its own that has initialised CUDA, imported and connected before. Ways take turns. What arrived is
checked in every sample: the sum of all bytes as 64-bit words, computed beside the clock. GB/s of the file: median (lowest to
highest). Of `load` it says where the time went, too. --cold takes the file out of the page cache before each sample; in
/dev/shm it cannot. Ways whose packages are not here are named and left out. --slot-mib, --slots, --threads and --streams
are those of `raw`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from measure import MIB, own_broker

HERE = Path(__file__).parent
ONE_GPU = ("load", "load_file", "package", "instant", "raw", "four")
TWO_GPUS = ("both", "one after the other")


def shapes(size_bytes: int) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes (bfloat16) of 398 tensors, as Qwen3-4B has them, all scaled to that size together."""
    hidden, inner, heads, vocabulary = 2560, 9728, 4096, 151936
    layer = [
        ("input_layernorm.weight", (hidden,)), ("mlp.down_proj.weight", (hidden, inner)), ("mlp.gate_proj.weight", (inner, hidden)),
        ("mlp.up_proj.weight", (inner, hidden)), ("post_attention_layernorm.weight", (hidden,)), ("self_attn.k_norm.weight", (128,)),
        ("self_attn.k_proj.weight", (1024, hidden)), ("self_attn.o_proj.weight", (hidden, heads)), ("self_attn.q_norm.weight", (128,)),
        ("self_attn.q_proj.weight", (heads, hidden)), ("self_attn.v_proj.weight", (1024, hidden)),
    ]  # fmt: skip
    found = [("model.embed_tokens.weight", (vocabulary, hidden))]
    for number in range(36):
        found += [(f"model.layers.{number}.{name}", shape) for name, shape in layer]
    found.append(("model.norm.weight", (hidden,)))
    whole = 2 * sum(int(np.prod(shape)) for _, shape in found)
    scaled = []
    for name, shape in found:
        rows = max(round(shape[0] * size_bytes / whole / 4) * 4, 4)
        scaled.append((name, (rows, *shape[1:])))
    return scaled


def write(path: Path, size_bytes: int) -> int:
    """Random bytes in these shapes. Returns the sum of all tensors' bytes, as words of 64 bits."""
    header, end = {}, 0
    for name, shape in shapes(size_bytes):
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = np.random.default_rng(1)
    total = 0
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, end, 64 * MIB):
            values = random.integers(0, 1 << 63, min(64 * MIB, end - at) // 8, "u8")
            total += int(values.sum(dtype="u8"))
            out.write(values.tobytes())
    os.utime(path, (1, 1))
    return total % (1 << 64)


def take_out(path: Path) -> None:
    """Of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def child(way: str, path: Path, options: argparse.Namespace) -> subprocess.Popen[str]:
    """A process that is ready, and begins when it is told to."""
    found = subprocess.Popen(
        [sys.executable, str(HERE / "gpu/load_once.py"), way, str(path), json.dumps(vars(options))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert found.stdout is not None
    told = found.stdout.readline()
    if told != "ready\n":
        raise SystemExit(f"{way}: {told or 'ended'}")
    return found


def sample(way: str, path: Path, options: argparse.Namespace, total: int) -> tuple[float, dict]:
    """Seconds until the last process has it, and what the first one says of them."""
    children = [child(way, path, options) for _ in range(4 if way == "four" else 1)]
    if options.cold:
        take_out(path)
    answers = []
    for one in children:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    for one in children:
        assert one.stdout is not None and one.stdin is not None
        answers.append(json.loads(one.stdout.readline()))
    for one in children:  # all have it: now the first may go
        one.communicate()
        if one.returncode:
            raise SystemExit(f"{way}: exit status {one.returncode}")
    for answer in answers:
        if any(found != total for found in answer["totals"]):
            raise SystemExit(f"{way}: other bytes than in the file")
    begin, end = min(one["begin"] for one in answers), max(one["end"] for one in answers)
    return end - begin, answers[0]["times"]


def ways_here(wanted: list[str]) -> list[str]:
    """Those that can be measured here; says which cannot."""
    found = []
    for way in wanted:
        needs = {"package": ("torch", "safetensors"), "instant": ("torch", "instanttensor"), "load_file": ("torch",)}  # fmt: skip
        lacks = [name for name in needs.get(way, ()) if importlib.util.find_spec(name) is None]
        if lacks:
            print(f"{way}: left out, since {' and '.join(lacks)} cannot be imported")
        else:
            found.append(way)
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--ways", nargs="+")
    parser.add_argument("--slot-mib", type=float, default=8)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--threads", type=int, default=min(16, len(os.sched_getaffinity(0))))
    parser.add_argument("--streams", type=int, default=1)
    options = parser.parse_args()
    ways = ways_here(options.ways or [*ONE_GPU, *(TWO_GPUS if options.gpus > 1 else ())])
    with own_broker(), tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "m.safetensors"
        total = write(path, int(options.gib * 1024) * MIB)
        size = path.stat().st_size
        samples: dict[str, list[float]] = {way: [] for way in ways}
        times: dict = {}
        for _ in range(options.rounds):
            for way in ways:
                seconds, told = sample(way, path, options, total)
                samples[way].append(size / seconds / 1e9)
                times = told if way == "load" else times
    state = "cold" if options.cold else "page cache warm"
    print(f"{size / 1e9:.2f} GB in 398 tensors, {state}, {options.rounds} rounds, GB/s: median (lowest to highest)")  # fmt: skip
    for way, found in samples.items():
        print(f"{way:>20}  {statistics.median(found):6.2f}  ({min(found):.2f} to {max(found):.2f})")
    for name, value in times.items():
        print(f"{name:>20}  {value / 1e6:9.2f} ms" if name.endswith("_ns") else f"{name:>20}  {value}")  # fmt: skip


if __name__ == "__main__":
    main()
