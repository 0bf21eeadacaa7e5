"""A little model for the tests of trees, and a program of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

import cableway as cw


def state(value: float = 1.0) -> dict[str, Any]:
    """A little model."""
    weight = np.full((3, 4), value, "f4")
    return {"embed.weight": weight, "norm.bias": np.arange(5) * value, "head.weight": weight}


def in_process(code: str, *arguments: str) -> str:
    """What a new process prints."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def current_bytes() -> int:
    """Of all slabs of the broker."""
    command = [Path(sys.prefix) / "bin" / "cableway", "status", "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(json.loads(told)["gauges"]["bytes"])


def name_is_lost() -> bool:
    """Whether the broker that had "m" is known to be gone."""
    try:
        cw.get("m").close()
    except (cw.BrokerLost, cw.NameNotFound):
        return True
    return False
