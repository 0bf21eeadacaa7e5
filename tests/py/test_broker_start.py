"""The broker that a client starts serves all processes of its user: nothing of its starter's stays with it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import broker_pid, run

STARTER = """
import ctypes, os, resource, signal, sys
soft = {resource.RLIMIT_CPU: 2, resource.RLIMIT_NOFILE: 64, resource.RLIMIT_FSIZE: 100 << 20,
        resource.RLIMIT_DATA: 2 << 30}
for which, value in soft.items():
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))
os.nice(1)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
open("/proc/self/oom_score_adj", "w").write("500")
os.umask(0o777)
os.environ["LD_DEBUG_OUTPUT"] = "/dev/null"
os.environ["MALLOC_PERTURB_"] = "85"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
import cableway as cw
cw.put("made", b"x", keep=True)
"""


def limits_of(pid: int) -> dict[int, tuple[int, int]]:
    """Soft and hard limits that the test is about."""
    about = (
        resource.RLIMIT_CPU,
        resource.RLIMIT_NOFILE,
        resource.RLIMIT_FSIZE,
        resource.RLIMIT_DATA,
    )
    return {which: resource.prlimit(pid, which) for which in about}


@pytest.fixture
def started(tmp_path: Path) -> int:
    """The pid of a broker that a client with low limits has started."""
    folder = tmp_path / "broker"
    folder.mkdir(mode=0o700)
    os.environ["CABLEWAY_DIR"] = str(folder)
    subprocess.run([sys.executable, "-c", STARTER], check=True, timeout=60)
    pid = broker_pid(folder)
    assert pid
    return pid


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of this is seen by other tests."""
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path / "broker"))


def stop() -> None:
    """Ends this test's broker."""
    run("stop", "--yes")


def test_no_soft_limit_of_its_starter_holds_for_the_broker(started: int) -> None:
    try:
        for which, (soft, hard) in limits_of(started).items():
            if which == resource.RLIMIT_NOFILE:
                assert soft > 64
            else:
                assert soft == hard
    finally:
        stop()


def test_priority_affinity_and_oom_score_of_its_starter_do_not_stay(started: int) -> None:
    try:
        assert os.sched_getaffinity(started) == os.sched_getaffinity(0)
        if os.geteuid() == 0:  # others may not undo these
            assert os.getpriority(os.PRIO_PROCESS, started) == 0
            assert int(Path(f"/proc/{started}/oom_score_adj").read_text()) <= 0
        status = Path(f"/proc/{started}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Umask"].strip() == "0077"
        assert int(fields["SigIgn"], 16) & 1 << 14 == 0  # SIGTERM
        assert os.readlink(f"/proc/{started}/cwd") == "/"
    finally:
        stop()
