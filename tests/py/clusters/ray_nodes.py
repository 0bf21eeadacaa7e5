"""What cableway.ray promises between nodes: actors of one Ray, each with the broker and the bridge of its node. Runs in the environment of Ray."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
from typing import Any

import pytest
import ray
import ray_cluster
from ray_cluster import MIB, SECONDS, Maker, Reader, eventually, kill

import cableway as cw
from cableway._core import programs


def get(reference: Any) -> Any:
    return ray.get(reference, timeout=SECONDS)


def on(kind: Any, environment: dict[str, str]) -> Any:
    """An actor on a node."""
    made = kind.options(runtime_env={"env_vars": environment}).remote()
    ray.get(made.pid.remote(), timeout=3 * SECONDS)  # on a busy machine that takes long
    return made


def received(environment: dict[str, str]) -> int:
    """Bytes that a node's bridge has received from others."""
    shown = subprocess.run(
        [programs.path("cableway"), "peers", "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
    )
    return sum(row["bytes_in"] or 0 for row in json.loads(shown.stdout))


def names(environment: dict[str, str]) -> list[str]:
    with cw.connect(environment["CABLEWAY_DIR"]):
        return [*cw.names("ray/")]


def once_a_node(told: str) -> None:
    """An object crosses to a node once, into its shared memory; its names end with it."""
    a, b = json.loads(told).values()
    maker, here = on(Maker, a), on(Reader, a)
    there = [on(Reader, b) for _ in range(2)]
    x = maker.ones.remote(32, 2.0)
    assert get(here.keep.remote(x)) == 32 * MIB
    before = received(b)
    assert get([reader.keep.remote(x) for reader in there]) == [32 * MIB] * 2
    assert get(there[0].spoil.remote(x)) == 28 * MIB
    assert get(there[1].total.remote(x)) == 8 * MIB
    assert 32 * MIB <= received(b) - before < 40 * MIB, received(b) - before
    assert get(x).sum() == 8 * MIB  # this process is on no node of these
    two = maker.call.remote(lambda: [cw.full(MIB, 3.0).numpy(), ray_cluster.np.ones(MIB)])
    assert get(there[0].call.remote(lambda v: float(v[0].sum() + v[1].sum()), two)) == 4 * MIB
    assert len(names(a)) == 3
    del x, two
    assert eventually(lambda: not names(a)), names(a)
    assert get(there[1].kept_total.remote()) == 8 * MIB


def maker_killed(told: str) -> None:
    """What a dead actor made is had from the owner of the reference, if that is on its node; else there is an error."""
    a, b = json.loads(told).values()
    reader, late, latest = (on(Reader, b) for _ in range(3))
    owner, maker = on(Reader, a), on(Maker, a)
    get(owner.call.remote(own, maker, 16))
    x = maker.ones.remote(16)  # owned by this process, which is on no node of these
    assert get(reader.keep.remote(x)) == 16 * MIB
    y = maker.ones.remote(16, 5.0)
    ray.wait([y], timeout=SECONDS)
    assert get(owner.call.remote(pass_on, late)) == 2 * MIB * 3
    assert eventually(lambda: len(names(a)) == 4), names(a)
    kill(maker)
    assert eventually(lambda: len(names(a)) == 1), names(a)
    assert get(owner.call.remote(pass_on, latest)) == 2 * MIB * 3
    assert get(reader.kept_total.remote()) == 2 * MIB
    with pytest.raises(ray.exceptions.RayTaskError, match="the actor that made them did not send"):
        get(late.total.remote(y))
    get(owner.call.remote(disown))
    assert eventually(lambda: not names(a)), names(a)


def own(maker: Any, mib: float) -> None:
    """An actor calls another one's method, and keeps the reference."""
    builtins.owned = maker.ones.remote(mib, 3.0)  # type: ignore[attr-defined]
    ray.wait([builtins.owned], timeout=SECONDS)  # type: ignore[attr-defined]


def pass_on(reader: Any) -> float:
    return float(ray.get(reader.total.remote(builtins.owned), timeout=SECONDS))  # type: ignore[attr-defined]


def disown() -> None:
    del builtins.owned  # type: ignore[attr-defined]


def refused(told: str) -> None:
    """Where the other node may not read, and where its bridge is gone, arrays go through Ray's object store."""
    a, b = json.loads(told).values()
    maker, reader = on(Maker, a), on(Reader, b)
    x = maker.ones.remote(16)
    assert get(reader.keep.remote(x)) == 0
    assert get(reader.kept_total.remote()) == 2 * MIB
    assert get(reader.spoil.remote(x)) == 14 * MIB
    assert get(x).sum() == 2 * MIB


if __name__ == "__main__":
    ray_cluster.main({f.__name__: f for f in (once_a_node, maker_killed, refused)})
