"""Files of weights for the tests of loading: as the reference writes them, and as nobody should."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

# Of each dtype of the format its bits, and what cableway calls it.
DTYPES = {
    "BOOL": (8, "bool"), "U8": (8, "uint8"), "I8": (8, "int8"), "U16": (16, "uint16"), "I16": (16, "int16"), "U32": (32, "uint32"),
    "I32": (32, "int32"), "U64": (64, "uint64"), "I64": (64, "int64"), "F16": (16, "float16"), "BF16": (16, "bfloat16"),
    "F32": (32, "float32"), "F64": (64, "float64"), "C64": (64, "complex64"), "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2"), "F8_E8M0": (8, "float8_e8m0fnu"), "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"), "F4": (4, "float4_e2m1fn_x2"),
}  # fmt: skip


def weights(like: Mapping[str, Any] | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """A little model with tensors of all sizes: none, small ones, and one of several pieces. like: in the order of that."""
    random = np.random.default_rng(7)
    found: dict[str, np.ndarray[Any, Any]] = {
        "weight": random.standard_normal((1100, 1000)).astype("f8"),
        "bias": random.standard_normal(17).astype("f4"),
        "half": random.standard_normal((3, 5)).astype(ml_dtypes.bfloat16),
        "mask": random.standard_normal(9) > 0,
        "scalar": np.array(3.5, "f2"),
        "empty": np.zeros((0, 4), "i4"),
        **{f"layer.{number}.ä": random.integers(0, 99, number) for number in range(1, 40)},
    }
    return found if like is None else {name: found[name] for name in like}


def written(header: Any, data: bytes = b"") -> bytes:
    """A file with that header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def header_of(file: Path) -> dict[str, Any]:
    """The header of a file."""
    raw = file.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    found: dict[str, Any] = json.loads(raw[8 : 8 + length])
    return found


def sharded(folder: Path, values: Mapping[str, Any], shards: int) -> Path:
    """The files s-0.safetensors and so on, and their index, whose path is returned."""
    names = list(values)
    where = {name: f"s-{number % shards}.safetensors" for number, name in enumerate(names)}
    for shard in sorted(set(where.values())):
        save_file({name: values[name] for name in names if where[name] == shard}, folder / shard)
    index = folder / "m.safetensors.index.json"
    told = {
        "metadata": {"total_size": 1, "more": [{"deep": None}, 1.5e3, True]},
        "weight_map": where,
    }
    index.write_text(json.dumps(told))
    return index
