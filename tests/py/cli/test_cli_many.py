"""The cableway command beside many names."""

from __future__ import annotations

from cli_support import run, run_json

import cableway as cw


def test_ls_asks_the_broker_of_many_names_at_once() -> None:
    """A question for each name took 6.6 s for 100,000 of them."""
    one, count = cw.zeros(1), 10_000
    for i in range(count):
        cw.put(f"many/{i}", one)
    try:
        before = run_json("status")["counters"]["requests"]
        lines = run("ls", "many/").stdout.splitlines()
        asked = run_json("status")["counters"]["requests"] - before
        assert len(lines) - 1 == count and count // 1000 < asked < count // 100
    finally:
        for i in range(count):
            cw.remove(f"many/{i}")
