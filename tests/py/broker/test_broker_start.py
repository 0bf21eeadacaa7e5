"""The broker that a client starts serves all processes of its user: nothing of its starter's stays with it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import broker_pid, run

if os.environ.get("CABLEWAY_ASAN"):
    pytest.skip("a sanitizer needs more memory than the starter may have", allow_module_level=True)

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


# A hard limit that the broker cannot raise again, as an ordinary user's: root gives the right up.
HARD = """
import ctypes, os, resource, sys
if os.geteuid() == 0:
    assert ctypes.CDLL(None).prctl(24, 24, 0, 0, 0) == 0  # PR_CAPBSET_DROP, CAP_SYS_RESOURCE
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.execv(sys.executable, [sys.executable, "-c", sys.argv[2]])
"""
PUT = """
import cableway as cw
try:
    cw.put("made", b"x", keep=True)
except cw.Error as error:
    print(type(error).__name__, error)
"""


def started_under(limit: int, folder: Path) -> str:
    """What a program says that puts an array, and starts the broker, with so few descriptors at most."""
    folder.mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, "-c", HARD, str(limit), PUT],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_a_program_with_a_tiny_limit_starts_no_broker_that_would_refuse_all_others(
    tmp_path: Path,
) -> None:
    said = started_under(100, tmp_path / "broker")
    assert "256 open files" in said and "100 (ulimit -Hn)" in said, said
    assert broker_pid(tmp_path / "broker") == 0
    done = subprocess.run(
        [sys.executable, "-c", PUT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == ""  # one with more starts it
    stop()


def test_a_brokers_limit_on_open_files_is_named_as_its_own(tmp_path: Path) -> None:
    """In its log and by doctor from its start on, and in the refusal of a client that has more."""
    assert started_under(300, tmp_path / "broker") == ""
    try:
        log = "".join(path.read_text() for path in (tmp_path / "broker").glob("*.log"))
        assert "max_fds is 172" in log and "cableway stop" in log, log
        checks = {
            check["check"]: check for check in json.loads(run("doctor", "--json").stdout)["checks"]
        }
        assert checks["broker's open files"]["level"] == "warning"
        assert "cableway stop" in checks["broker's open files"]["remedy"]
        pid = broker_pid(tmp_path / "broker")
        assert pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft // 20, hard))
        done = subprocess.run(
            [sys.executable, "-c", PUT], capture_output=True, text=True, check=True, timeout=60
        )
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert "limit of the broker" in done.stdout and "cableway stop" in done.stdout, done.stdout
        assert f"may open {soft // 20} files" in done.stdout, done.stdout
        assert "process's limit" not in done.stdout
    finally:
        stop()


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
