"""`cableway top` on a node that has arrays of another one: what lies here of which node, and who holds it."""

from __future__ import annotations

import bridge_support
import numpy as np
import pytest
from cli_support import run_json
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())


def test_replicas_are_counted_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with bridge_support.pair("--read", "open/*") as (a, b):
        with b.here():
            kept = [cw.put(f"open/{i}", np.ones(100_000)) for i in range(3)]
        monkeypatch.setenv("CABLEWAY_DIR", str(a.folder))
        with a.here():
            assert run_json("top")["peers"] == []
            held = [cw.get(f"//{b.name}/open/{i}") for i in range(2)]
            # The bridge holds a replica, too, until it has ended the copy.
            assert eventually(
                lambda: (
                    [(r["replicas"], r["holders"]) for r in run_json("top")["peers"]] == [(2, 2)]
                )
            )
            found = run_json("top")
            (row,) = found["peers"]
            assert (row["node"], row["bytes"], row["holders"]) == (b.name, 1_600_000, 2)
            assert "bridge" in {client["role"] for client in found["clients"]}
            del held
        del kept
