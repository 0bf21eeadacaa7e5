"""A broker of its own for each test module, and a look afterwards: no process and no file is left."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import cableway as cw
from cableway import client
from cableway._pool.launch import server

HERE = Path(__file__).resolve().parent
# Where modules lie that tests share: on sys.path here and, by whoever starts them, in programs of tests.
PATH = [str(HERE), str(HERE / "support")]
sys.path[:0] = [folder for folder in PATH if folder not in sys.path]

from processes import stat_fields  # noqa: E402
from waiting import eventually  # noqa: E402

# A shell that starts us in the background ignores SIGINT for us, and so for every test of Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing on a machine that is busy.
settings.register_profile(
    "cableway",
    max_examples=1000 if os.environ.get("CABLEWAY_SOAK") else 100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("cableway")

LEFT_BY_DESIGN = (".log", ".lock")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With CABLEWAY_TEST_SECOND_GPU=1 only the tests that one GPU is not enough for (tests/gpu/steps.py)."""
    if os.environ.get("CABLEWAY_TEST_SECOND_GPU") != "1":
        return
    reasons = [
        [mark.kwargs.get("reason") for mark in item.iter_markers("skipif")] for item in items
    ]
    config.hook.pytest_deselected(
        items=[item for item, its in zip(items, reasons, strict=True) if "no second GPU" not in its]
    )
    items[:] = [item for item, its in zip(items, reasons, strict=True) if "no second GPU" in its]


def processes_with(setting: str) -> list[int]:
    """Processes that were started with a setting in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                state = stat_fields(entry.name)[0]
            except OSError:
                continue
            if setting.encode() in environment.split(b"\0") and state != "Z":
                found.append(int(entry.name))
    return found


def describe(pid: int) -> str:
    """A process's number and command."""
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}"
    except OSError:
        return str(pid)


def disconnect() -> None:
    """Ends all connections of this process."""
    gc.collect()
    while client._default is not None:
        client._default.close()
    client._others.clear()
    client._settings = client.ENVIRONMENT


def broker_pid(folder: Path) -> int:
    """The pid that the lock file tells, 0 if none runs."""
    for lock in folder.glob("*.lock"):
        words = lock.read_text().split()
        if words and Path(f"/proc/{words[0]}").exists():
            return int(words[0])
    return 0


def running_broker(folder: Path) -> int:
    """The pid of a broker that must be there: a signal to 0 goes to the whole group of this process."""
    pid = broker_pid(folder)
    assert pid, f"no broker runs in {folder}"
    return pid


def stop_broker(folder: Path) -> None:
    """Ends the broker of a folder, as an administrator would."""
    pid = broker_pid(folder)
    if pid:
        with contextlib.suppress(ProcessLookupError):  # it ends by itself some time
            os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: broker_pid(folder) == 0), (
            f"the broker {pid} did not end on SIGTERM"
        )


@pytest.fixture(scope="module", autouse=True)
def broker_folder() -> Iterator[Path]:
    """The socket folder of this module's broker, which the first call starts."""
    folder = Path(tempfile.mkdtemp(prefix="cwpy-"))
    old = {name: os.environ.pop(name, None) for name in ("CABLEWAY_DIR", "CABLEWAY_NAMESPACE")}
    os.environ["CABLEWAY_DIR"] = str(folder)
    disconnect()
    yield folder
    server.stop()
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    disconnect()
    stop_broker(folder)
    setting = f"CABLEWAY_DIR={folder}"
    trackers = {multiprocessing.resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
    eventually(lambda: not set(processes_with(setting)) - trackers, 20)
    left = set(processes_with(setting)) - trackers
    names = [describe(pid) for pid in left]
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    files = [name for name in os.listdir(folder) if not name.endswith(LEFT_BY_DESIGN)]
    for name, value in old.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    shutil.rmtree(folder)
    assert not names, f"processes left behind: {names}"
    assert not files, f"files left behind: {files}"
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(("cw", "cableway"))]


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def method(request: pytest.FixtureRequest) -> str:
    """Each start method."""
    return str(request.param)


@pytest.fixture(params=["spawn", "forkserver"])
def context(request: pytest.FixtureRequest) -> Any:
    """The contexts whose workers come from a server."""
    return multiprocessing.get_context(request.param)


@pytest.fixture
def no_server() -> Iterator[None]:
    """The test begins and ends without a server of workers."""
    server.stop()
    yield
    server.stop()


@pytest.fixture
def pool(method: str) -> Iterator[cw.Pool]:
    """A pool of two workers."""
    with cw.Pool(2, context=method) as made:
        yield made
    made.join()


@pytest.fixture
def forked() -> Iterator[cw.Pool]:
    """A pool of two workers by fork, for what does not depend on the start method."""
    with cw.Pool(2, context="fork") as made:
        yield made
    made.join()


@pytest.fixture(autouse=True)
def clean_names() -> Iterator[None]:
    """Each test begins and ends without names."""
    yield
    try:
        for name in cw.names():
            with contextlib.suppress(cw.NameNotFound):  # it went with a process that just ended
                cw.remove(name)
    except cw.BrokerLost:
        pass


Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Runs a text as a program of its own; returns what it printed."""

    def run(
        text: str, *arguments: str, check: bool = True, **options: object
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
        file.write_text(textwrap.dedent(text))
        done = subprocess.run(  # type: ignore[call-overload]
            [sys.executable, str(file), *arguments],
            capture_output=True,
            text=True,
            **{"check": False, "timeout": 60, **options},
        )
        assert not check or done.returncode == 0, done.stderr
        return done  # type: ignore[no-any-return]

    return run
