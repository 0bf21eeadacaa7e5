"""Runs programs in the environment of Ray, with a broker and a folder of Ray's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from dask_runs import BUILD, interpreter, run_words

PLACE = BUILD / "ray"
SECONDS = 480  # for a program, which starts up to twenty actors
START_SECONDS = (
    180  # for a process of Ray, of which a busy machine needs more than Ray gives by itself
)


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
        "RAY_gcs_server_port_wait_time_s": str(START_SECONDS),
        "RAY_worker_register_timeout_seconds": str(START_SECONDS),
        "RAY_rdt_fetch_fail_timeout_milliseconds": str(1000 * START_SECONDS),
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
                kinds = (" C ", " E ", " W ", "ERROR")  # after " C " the process has ended
                lines = [line for line in lines if any(kind in line for kind in kinds)]
            if lines:
                found.append("\n".join([f"--- {file.name}", *lines[-100:]]))
    return "\n".join(found)
