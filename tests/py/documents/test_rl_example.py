"""docs/examples/rl.py: the policy learns, and no player ever uses a mixture of two versions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "docs/examples/rl.py"


def test_it_learns() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, "--steps", "30"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of the last" in done.stdout
