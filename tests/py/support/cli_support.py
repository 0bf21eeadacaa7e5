"""Running the `cableway` command in tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from conftest import eventually
from processes import stat_fields

from cableway._core import programs

COMMAND = os.environ.get("CABLEWAY_COMMAND") or programs.path("cableway")
OK, FAILED, USAGE, NO_BROKER, NO_NAME, TIMEOUT, NAME_TAKEN, LIMIT, DIFFERS = range(9)


def run(
    *arguments: str, expect: int = OK, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the command; the exit code must be the expected one."""
    done = subprocess.run(
        [COMMAND, *arguments],
        env={**os.environ, **(env or {})},
        timeout=60,
        check=False,
        **{"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, **options},
    )
    assert done.returncode == expect, (arguments, done)
    return done


def run_json(*arguments: str, **options: Any) -> Any:
    """Runs the command with --json and reads what it printed."""
    return json.loads(run(*arguments, "--json", **options).stdout)


def state(pid: int) -> str:
    """The state letter of a process, as /proc has it; X when there is none."""
    try:
        return stat_fields(pid)[0]
    except OSError:
        return "X"


def suspend(pid: int) -> None:
    """Stops a process by a signal, and waits until it has stopped: it must be scheduled for that."""
    os.kill(pid, signal.SIGSTOP)
    assert eventually(lambda: state(pid) == "T")


def broker_pid(folder: Path) -> int:
    """The pid of the broker that runs there, 0 if none does. One that nobody reaped yet does not run."""
    try:
        pid = int((folder / "cablewayd-v4.lock").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return 0
    return 0 if state(pid) in "ZX" else pid
