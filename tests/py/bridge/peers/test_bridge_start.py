"""`cablewayd --listen`: it listens when the command returns, or the command says why it does not."""

from __future__ import annotations

import os
import re
import resource
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import ports
import pytest
from cli_support import broker_pid
from conftest import eventually

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())


class Alone:
    """A folder, a key, and no broker yet."""

    def __init__(self, root: Path) -> None:
        self.folder = root
        self.environment = {
            **os.environ,
            "CABLEWAY_DIR": str(root),
            "CABLEWAY_NODE_DIR": str(root / "node"),
        }

    def run(self, name: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [bridge_support.program(name), *words],
            env={**self.environment, **more}, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def log(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("*.log"))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    tmp_path.chmod(0o700)
    made = Alone(tmp_path)
    assert made.run("cableway", "keygen", "--node", "t").returncode == 0
    yield made
    if broker_pid(tmp_path):
        assert made.run("cableway", "stop", "--yes").returncode == 0


@pytest.fixture
def port() -> Iterator[int]:
    """One that nobody else takes, and that a bridge may."""
    held = ports.held_port()
    yield held.getsockname()[1]
    held.close()


def accepts(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("form", ["127.0.0.1:{}", ":{}", "{}"])
def test_it_listens_when_the_command_returns(alone: Alone, port: int, form: str) -> None:
    started = alone.run("cablewayd", "--listen", form.format(port))
    assert (started.returncode, started.stderr) == (0, "")
    assert accepts(port)


@pytest.mark.skipif("CABLEWAY_ASAN" in os.environ, reason="a sanitizer needs more addresses")
def test_the_bridge_has_nothing_of_its_brokers_starter(alone: Alone, port: int) -> None:
    """Neither limits, nor priority, nor what changes how programs run: it serves all, as the broker does."""
    broker = bridge_support.program("cablewayd")
    limits = 'ulimit -S -t 200; ulimit -S -n 300; ulimit -S -v 40000000; exec nice -n 1 "$@"'
    started = subprocess.run(
        ["sh", "-c", limits, "sh", broker, "--listen", f"127.0.0.1:{port}"],
        env={**alone.environment, "MALLOC_PERTURB_": "85", "LD_BIND_NOW": "1"}, check=False, timeout=60,
    )  # fmt: skip
    assert started.returncode == 0
    parent = broker_pid(alone.folder)
    (bridge,) = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
    assert "bridge" in Path(f"/proc/{bridge}/comm").read_text()
    for which in (resource.RLIMIT_CPU, resource.RLIMIT_AS):
        soft, hard = resource.prlimit(bridge, which)
        assert soft == hard
    assert resource.prlimit(bridge, resource.RLIMIT_NOFILE)[0] > 300
    if os.geteuid() == 0:  # others may not undo it
        assert os.getpriority(os.PRIO_PROCESS, bridge) <= 0
    named = Path(f"/proc/{bridge}/environ").read_bytes()
    assert (
        b"CABLEWAY_DIR" in named and b"MALLOC_PERTURB_" not in named and b"LD_BIND_NOW" not in named
    )


@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("how", [(), ("--foreground",)])
def test_a_port_that_is_taken_is_said_and_no_broker_stays(
    alone: Alone, port: int, how: tuple[str, ...], key: bool
) -> None:
    if not key:
        (alone.folder / "node" / "node.key").unlink()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        started = alone.run("cablewayd", *how, "--listen", f"127.0.0.1:{port}")
        assert started.returncode == 1
        assert f"127.0.0.1:{port}: Address already in use" in started.stderr
        assert f"pid {os.getpid()} (" in started.stderr
        assert broker_pid(alone.folder) == 0
    assert alone.run("cablewayd", "--listen", f"127.0.0.1:{port}").returncode == 0


def test_a_port_that_is_taken_when_nobody_waits_is_told_and_tried_on(
    alone: Alone, port: int
) -> None:
    """The configuration asks for it; other nodes can be called meanwhile, so the bridge stays."""
    config = alone.folder / "conf"
    config.write_text(f"[bridge]\nlisten = 127.0.0.1:{port}\n")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        assert alone.run("cablewayd", "--config", str(config)).returncode == 0
        assert eventually(lambda: f"pid {os.getpid()} (" in alone.log())
        told = alone.run("cableway", "doctor").stdout
        assert f"does not listen at 127.0.0.1:{port}: pid {os.getpid()} (" in told
    assert eventually(lambda: f"listens at 127.0.0.1:{port}" in alone.log())
    assert accepts(port)
    assert "is started again" not in alone.log()
    assert f"listens at 127.0.0.1:{port}" in alone.run("cableway", "doctor").stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--listen", "nonsense"), 2, "HOST:PORT"),
        (("--listen", ":99999"), 2, "65535"),
        (("--peer", "a:70000"), 2, "65535"),
        (("--listen", "127.0.0.1:http"), 2, "HOST:PORT"),
        (("--listen", "127.0.0.1:"), 2, "HOST:PORT"),
        (("--listen", "203.0.113.9:7400"), 1, "no such address"),
        (("--listen", "127.0.0.1:0", "--node", "a b"), 2, "node = a b"),
        (("--peer", "nonsense"), 2, "NAME=HOST:PORT"),
        (("--peer", "a=foo"), 2, "NAME=HOST:PORT"),
        (("--peer", "a=:7400"), 2, "NAME=HOST:PORT"),
        (("--peer", "a b=foo:7400"), 2, "NAME=HOST:PORT"),
        (("--streams", "99"), 2, "streams"),
    ],
)
def test_an_option_that_the_bridge_cannot_carry_out_is_said(
    alone: Alone, words: tuple[str, ...], code: int, said: str
) -> None:
    started = alone.run("cablewayd", *words)
    assert started.returncode == code and said in started.stderr, started
    assert broker_pid(alone.folder) == 0


def test_without_the_bridges_program_it_is_said(alone: Alone) -> None:
    started = alone.run("cablewayd", "--listen", ":7400", CABLEWAY_BRIDGE="/nonexistent")
    assert started.returncode == 1 and "/nonexistent" in started.stderr
    assert broker_pid(alone.folder) == 0
    started = alone.run("cablewayd", "--listen", ":7400", CABLEWAY_BRIDGE="/bin/false")
    assert started.returncode == 1 and ".log" in started.stderr, started


def test_without_a_key_it_says_so_and_listens_when_there_is_one(alone: Alone, port: int) -> None:
    (alone.folder / "node" / "node.key").rename(alone.folder / "away")
    started = alone.run("cablewayd", "--listen", str(port))
    assert started.returncode == 0 and "cableway keygen" in started.stderr
    assert not accepts(port)
    (alone.folder / "away").rename(alone.folder / "node" / "node.key")
    assert eventually(lambda: accepts(port))


def test_a_broker_that_runs_already_is_told_with_what_to_do(alone: Alone, port: int) -> None:
    assert alone.run("cablewayd").returncode == 0
    second = alone.run("cablewayd", "--listen", str(port))
    assert second.returncode == 3 and "cableway stop" in second.stderr


def test_what_the_configuration_asks_for_never_keeps_local_use_from_working(
    alone: Alone, port: int
) -> None:
    """Every client starts that broker: its bridge is tried again, after pauses that grow."""
    config = alone.folder / "conf"
    config.write_text(f"[bridge]\nlisten = {port}\n")
    started = alone.run("cablewayd", "--config", str(config), CABLEWAY_BRIDGE="/bin/false")
    assert started.returncode == 0
    assert eventually(lambda: "after 2.0 s" in alone.log())
    pauses = re.findall(r"is started again after ([\d.]+) s", alone.log())
    assert [float(pause) for pause in pauses[:2]] == [1.0, 2.0]
    assert alone.run("cableway", "ls").returncode == 0


@pytest.mark.skipif("CABLEWAY_SOAK" not in os.environ, reason="takes three minutes (make soak)")
def test_a_bridge_that_never_gets_ready_is_given_up(alone: Alone, port: int) -> None:
    config = alone.folder / "conf"
    config.write_text(f"[bridge]\nlisten = {port}\n")
    assert (
        alone.run("cablewayd", "--config", str(config), CABLEWAY_BRIDGE="/bin/false").returncode
        == 0
    )
    assert eventually(lambda: "not started again until" in alone.log(), 400)
    assert alone.log().count("started /bin/false") == 10
    asked = alone.run("cableway", "ls", "//other/")
    assert asked.returncode == 1 and "started /bin/false" in alone.log()
