"""`cableway doctor` says what works here and what does not: it does what users do, by the very code."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bridge_support
import ports
import pytest
from cli_support import COMMAND, FAILED, OK, run, suspend
from conftest import stop_broker
from sandbox import IO_URING_SETUP, PIDFD_OPEN, refusing


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a broker, and one for the node's key; whatever doctor starts in it is ended."""
    folder = Path(tempfile.mkdtemp(prefix="cwdoc-"))
    monkeypatch.setenv("CABLEWAY_DIR", str(folder))
    monkeypatch.setenv("CABLEWAY_NODE_DIR", str(folder / "node"))
    yield folder
    stop_broker(folder)
    shutil.rmtree(folder)


def examine(
    expect: int = OK, words: tuple[str, ...] = (COMMAND,), **options: Any
) -> dict[str, dict[str, str]]:
    """What doctor found, by check."""
    done = subprocess.run(
        [*words, "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **options,
    )
    assert done.returncode == expect, done
    answer = json.loads(done.stdout)
    assert answer["works"] is (expect == OK)
    return {check["check"]: check for check in answer["checks"]}


def test_it_puts_and_gets_and_leaves_no_name(place: Path) -> None:
    checks = examine()
    assert checks["put and get"]["level"] == "ok"
    assert json.loads(run("ls", "--all", "--json").stdout) == []


def test_where_no_socket_folder_can_be_made_it_says_so_as_put_does(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CABLEWAY_DIR", str(place / "none" / "below"))
    found = examine(FAILED)["put and get"]
    assert found["level"] == "missing" and "CABLEWAY_DIR" in found["found"] and found["remedy"]
    assert "does not work here" in run("doctor", expect=FAILED).stdout


def in_mounts_of_its_own(script: str) -> tuple[str, ...]:
    """A command line that runs the command after it where the script has changed the mounts."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("mounts of its own need root and unshare (util-linux)")
    able = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if able.returncode:
        pytest.skip("mounts of its own are not allowed here")
    return ("unshare", "-m", "sh", "-c", f'{script} && exec "$@"', "sh", COMMAND)


def test_a_tmp_that_is_read_only_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CABLEWAY_DIR", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    script = "mount -t tmpfs none /tmp"
    if (
        Path(COMMAND).resolve().is_relative_to("/tmp")
    ):  # what lies there is seen in the new one, too
        ours = Path(*Path(COMMAND).resolve().parts[:3])
        script = f"mount --bind {ours} /mnt && {script} && mkdir {ours} && mount --bind /mnt {ours}"
    words = in_mounts_of_its_own(f"{script} && mount -o remount,ro /tmp")
    found = examine(FAILED, words)["put and get"]
    assert "Read-only file system" in found["found"] and "CABLEWAY_DIR" in found["found"]


def test_a_proc_that_is_not_there_is_told(place: Path) -> None:
    checks = examine(FAILED, in_mounts_of_its_own("umount -l /proc"))
    assert checks["/proc"]["level"] == "missing" and "mount -t proc" in checks["/proc"]["remedy"]


def test_a_sandbox_without_pidfds_is_told_as_that(place: Path) -> None:
    checks = examine(FAILED, preexec_fn=refusing(PIDFD_OPEN, errno.EPERM))
    for name in ("pidfd", "put and get"):
        assert checks[name]["level"] == "missing"
        assert "5.3" not in str(checks[name]) and "seccomp" in str(checks[name])


def test_a_broker_that_is_stopped_is_told_at_once(place: Path) -> None:
    examine()
    pid = int(next(place.glob("*.lock")).read_text().split()[0])
    suspend(pid)
    checks = examine(FAILED)
    assert checks["broker"]["level"] == checks["put and get"]["level"] == "missing"
    assert "--force" in checks["broker"]["remedy"]
    run("stop", "--yes", "--force")


needs_bridge = pytest.mark.skipif(
    bool(bridge_support.lacking()), reason=bridge_support.lacking() or "a bridge is there"
)


@needs_bridge
def test_of_the_bridge_it_tells_key_peers_and_where_it_listens(place: Path) -> None:
    checks = examine()
    assert "does not run" in checks["bridge"]["found"]
    assert "none in" in checks["bridge key"]["found"] and "keygen" in checks["bridge key"]["remedy"]
    assert checks["bridge peers"]["found"] == "0"
    print_of = run("keygen", "--node", "t").stdout.strip()
    another = "sha256:" + 64 * "a"
    run("peers", "add", "other", "127.0.0.1:9", "--key", another)
    run("stop", "--yes")
    held = ports.held_port()
    port = held.getsockname()[1]
    run("broker", "--node", "t", "--listen", f"127.0.0.1:{port}")
    held.close()
    checks = examine()
    assert f"listens at 127.0.0.1:{port}" in checks["bridge"]["found"]
    assert print_of in checks["bridge key"]["found"]
    assert checks["bridge peers"]["found"].startswith("1 ")
    assert {checks[f"bridge {part}"]["level"] for part in ("key", "peers")} == {"ok"}
    (place / "node" / "node.key").chmod(0o644)
    assert examine()["bridge key"]["level"] == "warning"
    (place / "node" / "peers").write_text("nonsense\n")
    assert examine()["bridge peers"]["level"] == "warning"


@needs_bridge
def test_which_way_the_bridge_waits_for_sockets_is_tried(place: Path) -> None:
    found = examine(preexec_fn=refusing(IO_URING_SETUP, errno.EPERM))["bridge sockets"]
    assert found["found"].startswith("epoll") and "seccomp" in found["found"]
    assert (
        examine(env={**os.environ, "CABLEWAY_BRIDGE_EPOLL": "1"})["bridge sockets"]["found"]
        == "epoll"
    )


def test_without_a_bridge_it_says_what_that_means(place: Path) -> None:
    found = examine(env={**os.environ, "CABLEWAY_BRIDGE": "/nonexistent"})["bridge"]
    assert found["level"] == "info" and "not installed" in found["found"]
    assert "liburing-dev" in found["remedy"]
