"""A model's weights as its files hold them, and its state after an engine has split, packed and quantized them.

The state lies under a name of its own, which tells what it was made for; all that decides about it is in the tree's metadata and is
compared before the state is used. If the process that makes a state dies, nothing is published and the next engine makes it. If two
make it at once, one is published and both use that one. A state belongs to no process: it goes with its name and its last user.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cableway import name as names
from cableway import tree as trees
from cableway._core.garbage import uncollected
from cableway._core.library import lib
from cableway._engines.options import Options
from cableway._load.trees import load
from cableway._tree import modules
from cableway._tree.tensors import tensors_of
from cableway.errors import Error, NameNotFound, NameTaken, VersionChanged
from cableway.tree import Tree

__all__ = [
    "attach",
    "complete",
    "device_id",
    "find",
    "name_of",
    "publish",
    "share",
    "source",
    "weights",
]


def weights(given: Options, folder: str | None) -> Iterator[tuple[str, Any]]:
    """Path and tensor, in host memory and read-only, of all weights; the files are read by one of all processes that ask.

    Args:
        given: where they are.
        folder: with the model's .safetensors files; None if a published tree is used.

    Raises:
        NameTaken: the name means other files.
        NameNotFound: nothing is published under the name.
    """
    tree = trees.get(given.name) if folder is None else load(given.name, folder, keep=given.keep)
    yield from tree.torch().items()


def source(given: Options, folder: str | None) -> dict[str, Any]:
    """What tells these weights from all others: the files as they are now, or the version of the tree.

    Raises:
        FileNotFoundError: the folder has no .safetensors file.
        NameNotFound: nothing is published under the name.
    """
    if folder is None:
        with trees.get(given.name) as tree:
            return {"tree": given.name, "version": tree.version, "content": tree.content_hash}
    path = Path(folder).resolve()
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"{path} has no .safetensors file, which cableway.load needs")
    told = [(str(file), os.stat(file)) for file in files]
    return {"files": [[file, at.st_ino, at.st_size, at.st_mtime_ns] for file, at in told]}


def name_of(given: Options, engine: str, fields: Mapping[str, Any]) -> str:
    """The name of a state: readable, and another one if any of the fields differs.

    Args:
        given: the first part.
        engine: the second.
        fields: all that decides about the state, as JSON can hold it; "dtype", "quantization", "tp_rank" and "tp_size" are shown.
    """
    whole = json.dumps(fields, sort_keys=True, allow_nan=False).encode()
    shown = [
        str(fields.get("dtype", "")).removeprefix("torch."),
        str(fields.get("quantization") or "plain"),
        f"tp{fields.get('tp_rank', 0)}of{fields.get('tp_size', 1)}",
        hashlib.sha256(whole).hexdigest()[:24],
    ]
    return f"{given.name}/{engine}/" + "-".join(re.sub(r"[^\w.]", "_", part) for part in shown)


def device_id(device: Any) -> str:
    """What tells the device from all others of this machine, whatever `CUDA_VISIBLE_DEVICES` says: "cpu", or the GPU's UUID.

    Args:
        device: of PyTorch, or its name; without a number its current one.
    """
    import torch

    place = torch.device(device)
    if place.type != "cuda":
        return str(place.type)
    number = torch.cuda.current_device() if place.index is None else place.index
    return str(torch.cuda.get_device_properties(number).uuid)


def find(name: str, fields: Mapping[str, Any]) -> Tree | None:
    """The state under a name; None if there is none.

    Raises:
        Error: the name means something else; the text names the fields that differ.
    """
    try:
        tree = trees.get(name)
    except NameNotFound:
        return None
    told = tree.meta.get("engine") if isinstance(tree.meta, dict) else None
    wanted = json.loads(json.dumps(fields))
    if told == wanted:
        return tree
    told = told if isinstance(told, dict) else {}
    differ = sorted(key for key in {*wanted, *told} if wanted.get(key) != told.get(key))
    raise Error(
        f'"{name}" is not the state of this engine (it differs in {", ".join(differ)}); remove that name'
    )


def publish(
    name: str, model: Any, fields: Mapping[str, Any], *, keep: bool, extra: Any = None
) -> Tree:
    """Puts a model's state under a name, with one copy on its device; or the one that another engine put there meanwhile.

    Args:
        name: see `name_of`.
        model: a module whose weights are loaded and processed.
        fields: what `find` compares.
        keep: whether the name outlives its last user.
        extra: what is remembered beside, under "extra" of the metadata.
    """
    meta = {"engine": dict(fields), "extra": extra}
    while True:
        try:
            return names.put(name, model, if_version=0, meta=meta, keep=keep)
        except (NameTaken, VersionChanged):  # another engine was quicker
            tree = find(name, fields)
            if tree is not None:
                return tree


def attach(model: Any, tree: Tree) -> None:
    """Gives a model the memory of a state: parameters are shared, read-only; buffers and other tensors are copies of its own.

    Args:
        model: a module on its device, or on the device "meta".
        tree: the state of such a module.

    Raises:
        KeyError: the tree has leaves of a part that the model has not.
    """
    with uncollected():
        found = list(zip(tree._rows(), tensors_of(tree)[1], strict=True))
    leaves = {
        row.path: (tensor, row.kind, bool(row.flags & lib.CW_LEAF_TRANSIENT))
        for row, tensor in found
    }
    modules.install(model, leaves)


def complete(model: Any, tree: Tree) -> None:
    """Ends the filling of a model that was made on the device "meta".

    What the state does not have, because the engine dropped it while it processed the weights, is dropped here, too.

    Raises:
        Error: something else has no memory; the text names it. To use it would be to compute with noise.
    """
    left = modules.drop_absent(model, set(tree))
    if left:
        raise Error(
            f"the model's state lacks {', '.join(left[:4])}{' and more' if len(left) > 4 else ''}: "
            'such a model cannot be shared as it is; use "share": "weights" in model_loader_extra_config'
        )


def share(
    name: str, model: Any, fields: Mapping[str, Any], *, keep: bool, extra: Any = None
) -> Tree:
    """Publishes a model's state, and lets the model itself use it in place of its own memory."""
    tree = publish(name, model, fields, keep=keep, extra=extra)
    attach(model, tree)
    return tree
