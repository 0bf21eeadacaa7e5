"""Programs in which an object is closed in the midst of a call."""

from __future__ import annotations

import os
import subprocess
import sys


def holds(program: str, *arguments: str, told: str = "held\n", **environment: str) -> None:
    """Runs a program, which must end well and say so. What it frees is overwritten."""
    run = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "MALLOC_PERTURB_": "165", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, told), run.stderr


def holds_nothing_idle(program: str, *arguments: str, told: str = "held\n") -> None:
    """The same where memory that nobody has is gone at once."""
    holds(program, *arguments, told=told, CABLEWAY_CACHE_BYTES="0")
