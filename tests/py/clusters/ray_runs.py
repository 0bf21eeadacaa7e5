"""Runs programs in the environment of Ray, with a broker and a folder of Ray's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from dask_runs import BUILD, SECONDS, interpreter, run_words

PLACE = BUILD / "ray"


def run(
    program: str | Path, folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> str:
    """What a program prints, of this folder or another. It must come to its end, and leave no process."""
    python = interpreter(PLACE)
    sessions = tempfile.mkdtemp(
        prefix="cwray-", dir="/tmp"
    )  # the paths of Ray's sockets must be short
    # A broker and actors find their folder in the environment, which Ray hands on to all that it starts.
    where = {
        "RAY_TMPDIR": sessions,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",  # else actors stand still where other tests run beside them
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        ),
        **(environment or {}),
    }
    file = Path(__file__).resolve().parent / program
    try:
        printed, _ = run_words([python, str(file), *arguments], folder, where, SECONDS, place=PLACE)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{logs(Path(sessions))}") from error
    finally:
        shutil.rmtree(sessions, ignore_errors=True)
    return printed


def logs(sessions: Path) -> str:
    """What Ray's processes and the actors said of errors, and where the actors' threads were; the end of it."""
    found = []
    for file in sorted(sessions.glob("ray/session_2*/logs/*")):
        if file.is_file() and file.suffix in (".err", ".log", ".out"):
            lines = file.read_text(errors="replace").splitlines()
            if not file.name.startswith("worker-"):  # Ray's own, of which most is of no interest
                lines = [
                    line for line in lines if " E " in line or " W " in line or "ERROR" in line
                ]
            if lines:
                found.append("\n".join([f"--- {file.name}", *lines[-100:]]))
    return "\n".join(found)
