"""The promises of cableway.h to who calls it wrongly: a code, never the end of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from c_walk import prototypes

from cableway._lib import lib

WALK = Path(__file__).with_name("c_walk.py")
RUNS_MOST = 200


def test_every_function_of_the_header_is_walked_over() -> None:
    walked = {name for _, name, _ in prototypes()}
    exported = {name for name in dir(lib) if name.startswith("cw_")}
    assert walked == exported


def test_no_wrong_argument_ends_the_process_and_each_is_told() -> None:
    """NULL and numbers out of range, in each parameter of each function. A run ends where the process dies."""
    wrong: list[str] = []
    first = 0
    for _ in range(RUNS_MOST):
        run = subprocess.run(
            [sys.executable, WALK, str(first)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = run.stdout.splitlines()
        wrong += [
            f"{begin}: {end}"
            for begin, end in zip(lines[::2], lines[1::2], strict=False)
            if not end.startswith("end right")
        ]
        if run.returncode == 0:
            break
        assert len(lines) % 2 == 1, run.stderr
        wrong.append(f"{lines[-1]}: the process ended with {run.returncode}")
        first = int(lines[-1].split()[1]) + 1
    assert wrong == []
