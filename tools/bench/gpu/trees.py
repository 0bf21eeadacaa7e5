"""Weights of a model that other processes attach to: a tree of ours beside PyTorch's CUDA IPC, which inference engines use.

The shapes are those of Qwen3-8B (399 tensors) and of the checkpoint of Qwen3-30B-A3B at half its widths (18,867 tensors; whole
they are 61 GB). One process makes the weights, random ones, and goes on living, as PyTorch's IPC needs it; in each sample a new
process, which has begun CUDA and connected before, makes all tensors of them. Their first elements are compared.
"""

from __future__ import annotations

import multiprocessing
import pickle
import statistics
import subprocess
import time
from math import prod
from typing import Any

from gpu.rows import (
    LARGEST_MIB,
    TREE_ATTACH,
    TREE_ATTACH_MANY,
    TREE_MEMORY,
    TREE_PUBLISH,
    TREE_PUBLISH_AGAIN,
    TREE_TENSORS,
    missing,
    note,
)

import cableway as cw

SAMPLES = 5
READERS = 8
_SMALLER = 1 if LARGEST_MIB >= 1024 else 64  # for the test double

Shapes = dict[str, tuple[int, ...]]


def dense() -> Shapes:
    """Qwen3-8B."""
    found: Shapes = {"model.embed_tokens.weight": (151936, 4096), "lm_head.weight": (151936, 4096)}
    found["model.norm.weight"] = (4096,)
    for layer in range(36):
        at = f"model.layers.{layer}."
        found |= {f"{at}self_attn.{name}_proj.weight": (4096, 4096) for name in "qo"}
        found |= {f"{at}self_attn.{name}_proj.weight": (1024, 4096) for name in "kv"}
        found |= {f"{at}self_attn.{name}_norm.weight": (128,) for name in "qk"}
        found |= {f"{at}mlp.{name}_proj.weight": (12288, 4096) for name in ("gate", "up")}
        found[f"{at}mlp.down_proj.weight"] = (4096, 12288)
        found |= {f"{at}{name}_layernorm.weight": (4096,) for name in ("input", "post_attention")}
    return found


def many() -> Shapes:
    """Qwen3-30B-A3B as its checkpoint has it, at half its widths."""
    found: Shapes = {"model.embed_tokens.weight": (151936, 1024), "lm_head.weight": (151936, 1024)}
    found["model.norm.weight"] = (1024,)
    for layer in range(48):
        at = f"model.layers.{layer}."
        found |= {f"{at}self_attn.{name}_proj.weight": (256, 1024) for name in "kv"}
        found[f"{at}self_attn.q_proj.weight"] = (2048, 1024)
        found[f"{at}self_attn.o_proj.weight"] = (1024, 2048)
        found |= {f"{at}self_attn.{name}_norm.weight": (64,) for name in "qk"}
        found |= {f"{at}{name}_layernorm.weight": (1024,) for name in ("input", "post_attention")}
        found[f"{at}mlp.gate.weight"] = (128, 1024)
        for expert in range(128):
            to = f"{at}mlp.experts.{expert}."
            found |= {f"{to}{name}_proj.weight": (384, 1024) for name in ("gate", "up")}
            found[f"{to}down_proj.weight"] = (1024, 384)
    return found


def smaller(shapes: Shapes) -> Shapes:
    """For a machine with little memory."""
    return {name: tuple(max(1, n // _SMALLER) for n in shape) for name, shape in shapes.items()}


def made_by_torch(shapes: Shapes) -> dict[str, Any]:
    """Tensors that PyTorch has allocated, each with its number as its first element."""
    import torch

    found = {
        name: torch.empty(s, dtype=torch.bfloat16, device="cuda") for name, s in shapes.items()
    }
    return numbered(found)


def made_by_us(shapes: Shapes) -> dict[str, Any]:
    """The same in memory of ours: one array, and tensors in it."""
    import torch

    begins, end = [], 0
    for shape in shapes.values():
        begins.append(end)
        end += -(-2 * prod(shape) // 256) * 256
    whole = cw.empty(end, "u1", device="cuda:0").torch()
    found = {
        name: whole[begin : begin + 2 * prod(shape)].view(torch.bfloat16).view(shape)
        for begin, (name, shape) in zip(begins, shapes.items(), strict=True)
    }
    return numbered(found)


def numbered(tensors: dict[str, Any]) -> dict[str, Any]:
    """Random values, and the first says which tensor it is."""
    import torch

    for number, tensor in enumerate(tensors.values()):
        tensor.normal_()
        tensor.flatten()[0] = number % 256
    torch.cuda.synchronize()
    return tensors


def owner(way: str, shapes: Shapes, pipe: Any) -> None:
    """Makes the weights, says in how many seconds they were offered each time, and lives until it is told."""
    if way == "torch":
        from torch.multiprocessing.reductions import reduce_tensor

        tensors = made_by_torch(shapes)
        begin = time.perf_counter()
        offered = pickle.dumps({name: reduce_tensor(t)[1] for name, t in tensors.items()}, 5)
        pipe.send(([time.perf_counter() - begin], offered))
    else:
        tensors = made_by_us(shapes)
        offered_in = []
        for _ in range(1 + SAMPLES):
            begin = time.perf_counter()
            tree = cw.put("bench/tree", tensors, copy=False)
            offered_in.append(time.perf_counter() - begin)
            assert tree.device == "cuda:0"
        pipe.send((offered_in, b""))
    pipe.recv()


def reader(way: str, pipe: Any) -> None:
    """Makes all tensors of what is offered, as soon as it is told to, and says how long that took."""
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    cw.connect()
    if way == "torch":
        from torch.multiprocessing.reductions import rebuild_cuda_tensor
    pipe.send(None)
    offered = pipe.recv()
    begin = time.perf_counter()
    if way == "torch":
        told = pickle.loads(offered)
        tensors = {name: rebuild_cuda_tensor(*how) for name, how in told.items()}
    else:
        tree = cw.get("bench/tree")
        tensors = tree.torch()
    taken = time.perf_counter() - begin
    again = 0.0
    if way != "torch":
        begin = time.perf_counter()
        tree.torch()
        again = time.perf_counter() - begin
    firsts = torch.stack([tensor.flatten()[0] for tensor in tensors.values()]).tolist()
    assert firsts == [number % 256 for number in range(len(tensors))]
    pipe.send((taken, again, len(tensors)))
    pipe.recv()


class Process:
    """One of those, and the end of its pipe."""

    def __init__(self, target: Any, *arguments: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=target, args=(*arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def told(self) -> Any:
        """What it says next."""
        if not self.pipe.poll(120):
            raise TimeoutError("a process of the benchmark said nothing for 120 s")
        return self.pipe.recv()

    def end(self) -> None:
        """It may go."""
        self.pipe.send(None)
        self.process.join()


def attached(way: str, shapes: Shapes) -> tuple[list[float], list[float], list[float]]:
    """Seconds of offering, of all tensors, and of all tensors once more."""
    holds = Process(owner, way, shapes)
    ready = [Process(reader, way) for _ in range(SAMPLES)]
    offering, offered = holds.told()
    first, again = [], []
    for one in ready:
        one.told()
    for one in ready:
        one.pipe.send(offered)
        taken, repeated, count = one.told()
        assert count == len(shapes)
        first.append(taken)
        again.append(repeated)
    for one in ready:
        one.end()
    holds.end()
    if way != "torch":
        cw.remove("bench/tree")
    return offering, first, again


def spread(seconds: list[float]) -> str:
    """The lowest and the highest, in milliseconds."""
    return f"{min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f}"


def used_mib() -> int:
    """What nvidia-smi says is in use on the first GPU."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return int(told.split()[0])


def readers() -> None:
    """What the GPU holds when many processes have one tree, beside the same processes without."""
    shapes = smaller(dense())
    holds = Process(owner, "ours", shapes)
    holds.told()
    many_of_them = [Process(reader, "ours") for _ in range(READERS)]
    for one in many_of_them:
        one.told()
    before = used_mib()
    for one in many_of_them:
        one.pipe.send(b"")
    for one in many_of_them:
        one.told()
    note(TREE_MEMORY, used_mib() - before, "", None, "MiB", "copies of the first elements included")
    for one in (*many_of_them, holds):
        one.end()
    cw.remove("bench/tree")


def measure() -> None:
    """All of it."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        missing("trees beside torch IPC", error)
        return
    for what, shapes in ((TREE_ATTACH, smaller(dense())), (TREE_ATTACH_MANY, smaller(many()))):
        _, theirs, _ = attached("torch", shapes)
        offering, ours, again = attached("ours", shapes)
        note(
            what,
            statistics.median(ours) * 1e3,
            "torch IPC",
            statistics.median(theirs) * 1e3,
            "ms",
            f"{spread(ours)} | {spread(theirs)}, {SAMPLES} each",
        )
        if what == TREE_ATTACH:
            note(TREE_PUBLISH, offering[0] * 1e3, "", None, "ms", "one sample, the first put")
            later = statistics.median(offering[1:]) * 1e3
            note(TREE_PUBLISH_AGAIN, later, "", None, "ms", spread(offering[1:]))
        else:
            each = [seconds / len(shapes) * 1000 for seconds in again]
            note(TREE_TENSORS, statistics.median(each) * 1e3, "", None, "ms", spread(each))
    try:
        readers()
    except (OSError, subprocess.CalledProcessError) as error:
        missing(TREE_MEMORY, error)
