"""Runs programs in the environment of Dask, or of Ray, with a broker of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TextIO

import pytest
from conftest import PATH, describe, processes_with
from waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("CABLEWAY_BUILD", ROOT / "build")).resolve()
PLACE = BUILD / "dask"
SECONDS = 240


def limit(seconds: float = SECONDS) -> pytest.MarkDecorator:
    """pytest's limit of a test whose command has so many seconds. The command's comes first, since it says where all stand."""
    return pytest.mark.timeout(seconds + 120)


def interpreter(place: Path = PLACE) -> str:
    """The Python that has Dask, or Ray, and the wheel of this build; skips the test if there is none."""
    if not (place / "made.stamp").exists():
        pytest.skip(f"`make build/{place.name}/made.stamp` was not called")
    return str(place / "bin/python")


def run_words(
    words: list[str],
    folder: Path,
    environment: dict[str, str],
    seconds: float = SECONDS,
    fails: bool = False,
    place: Path = PLACE,
) -> tuple[str, str]:
    """What a command prints and says as errors; it must succeed, or fail. Afterwards its broker is stopped.

    If it is not done in time, each Python process of it says where it stands, and all end.
    """
    interpreter(place)
    broker = folder / "broker"
    broker.mkdir(mode=0o700, exist_ok=True)
    where = {
        **os.environ,
        "PATH": f"{place}/bin:{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join(PATH),
        "CABLEWAY_DIR": str(broker),
        "DASK_TEMPORARY_DIRECTORY": str(folder),
        **environment,
    }
    try:
        code, printed, errors = _ended(words, folder, where, seconds)
    finally:
        stopped = subprocess.run(
            [place / "bin/cableway", "stop", "--yes", "--force"],
            env=where,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (code != 0) == fails, f"{code}: {printed}{errors[-20000:]}"
    setting = f"CABLEWAY_DIR={broker}"
    assert eventually(lambda: not processes_with(setting), 20), [
        *map(describe, processes_with(setting)),
        stopped,
    ]
    return printed, errors


def _ended(
    words: list[str], folder: Path, environment: dict[str, str], seconds: float
) -> tuple[int, str, str]:
    """A command's code, and what it and those whom it starts print and say as errors. They are a session of their own."""
    with open(folder / "stdout", "w+") as out, open(folder / "stderr", "w+") as errors:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=out, stderr=errors, start_new_session=True
        )
        code = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)  # PYTHONFAULTHANDLER: it says its stacks
            time.sleep(2)  # each writes them itself
            raise AssertionError(
                f"not done after {seconds} s: {_all(out)}{_all(errors)[-60000:]}"
            ) from None
        finally:
            if code is None or code < 0:  # it could not end what it had started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return code, _all(out), _all(errors)


def _all(file: TextIO) -> str:
    file.seek(0)
    return file.read()


def run(
    program: str,
    name: str,
    folder: Path,
    environment: dict[str, str],
    *arguments: str,
    seconds: float = SECONDS,
) -> str:
    """A function of a program of tests/py/clusters, which must come to its end. Returns what it said as errors."""
    file = Path(__file__).resolve().parent / program
    words = [interpreter(), str(file), name, *arguments]
    printed, errors = run_words(words, folder, environment, seconds)
    assert printed.endswith("well\n"), printed
    return errors
