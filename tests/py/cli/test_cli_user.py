"""The `cableway` command as an ordinary user sees processes: root may read what is left of a dead one, others may not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_support import COMMAND, NO_BROKER, OK, broker_pid
from conftest import eventually

from cableway._core import programs

NOBODY = 65534


@pytest.fixture
def own() -> Iterator[Path]:
    """A folder of an ordinary user's with the programs in it: ours may lie where that user cannot look."""
    folder = Path(tempfile.mkdtemp(prefix="cwuser-", dir="/tmp"))
    for program in (COMMAND, programs.path("cablewayd")):
        shutil.copy(program, folder / Path(program).name)
    (folder / "dir").mkdir(mode=0o700)
    if os.geteuid() == 0:
        folder.chmod(0o755)
        os.chown(folder / "dir", NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def as_user(folder: Path, *words: str) -> dict[str, Any]:
    """How an ordinary user starts a program of the folder: the one that runs the tests, or nobody where that is root."""
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    environment = {**os.environ, "CABLEWAY_DIR": str(folder / "dir"), "HOME": str(folder)}
    environment.pop("XDG_CONFIG_HOME", None)
    return {"args": [str(folder / words[0]), *words[1:]], "env": environment, "cwd": "/", **user}


def test_a_dead_broker_that_nobody_has_waited_for_is_none(own: Path) -> None:
    with subprocess.Popen(**as_user(own, "cablewayd", "--foreground")) as broker:
        assert eventually(lambda: broker_pid(own / "dir") == broker.pid)
        runs = subprocess.run(**as_user(own, "cableway", "status"), check=False)
        assert runs.returncode == OK
        broker.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)  # dead, and not waited for
        status = subprocess.run(
            **as_user(own, "cableway", "status"), capture_output=True, text=True, check=False
        )
        broker.wait()
    assert status.returncode == NO_BROKER, status.stderr


def test_ctrl_c_while_the_command_starts_ends_it_without_a_traceback() -> None:
    """Before the program of the wheel has taken the process over: neither the package nor NumPy is imported by then."""
    text = """
import _cableway_programs, os, signal, sys
assert not {"cableway", "numpy"} & set(sys.modules)
os.kill(os.getpid(), signal.SIGINT)
"""
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (-signal.SIGINT, b"")  # a shell says 130


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    text = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import _cableway_programs
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""
    subprocess.run([sys.executable, "-c", text], check=True)
