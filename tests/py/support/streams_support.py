"""What the tests of the bridge's streams share."""

from __future__ import annotations

import json

import numpy as np
from bridge_support import Node

import cableway as cw

MIB = 1 << 20


def values(size: int, seed: int = 0) -> np.ndarray:
    """Random bytes."""
    return np.random.default_rng([size, seed]).integers(0, 256, size, dtype=np.uint8)


def connections(one: Node, other: Node, kind: str = "stream") -> list[dict[str, int]]:
    """The connections of a kind that one has with the other."""
    peers = json.loads(one.command("peers", "--json").stdout)
    links = next(peer["links"] for peer in peers if peer["name"] == other.name)
    return [link for link in links if link["kind"] == kind]


def has_streams(one: Node, other: Node, count: int) -> bool:
    """Whether one has so many streams to the other."""
    return len(connections(one, other)) == count


def fetch(a: Node, name: str, expected: np.ndarray) -> None:
    """Gets an array of b at a, and looks at each byte."""
    with a.here():
        assert (cw.get(f"//b/{name}").numpy() == expected).all()
