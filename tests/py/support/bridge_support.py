"""Several nodes on one machine, each with a broker and a bridge of its own, real TCP and TLS between them.

Each node lives in a network namespace where those are allowed, with a veth pair to a bridge device that all share; else
all are on 127.0.0.1, each with a port that is held for it. The sockets of brokers are files, so that the tests
reach each from where they run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from conftest import eventually
from ports import held_port

import cableway as cw
from cableway._core import programs

PORT = 7400
SUBNETS = range(7, 255)  # 10.213.N.0/24; the guide's examples have the first one
# Most tests look at links that nothing uses: they are made at the start, and kept. test_bridge_idle.py has the others.
LINK_IDLE = os.environ.get("CABLEWAY_TEST_LINK_IDLE", "0")
# AddressSanitizer keeps what was freed, 256 MiB of it by default: what a process of ours may have more then.
KEPT_BY_SANITIZER = (300 << 20) if os.environ.get("CABLEWAY_ASAN") else 0


def lacking() -> str:
    """Why there can be no bridge here; "" if there can."""
    try:
        path = programs.path("cableway-bridge")
    except (OSError, RuntimeError) as error:
        return f"cableway-bridge was not built: {error}"
    return "" if os.access(path, os.X_OK) else "cableway-bridge was not built"


def namespaces_lacking() -> str:
    """Why there can be no network namespaces here; "" if there can."""
    if shutil.which("ip") is None:
        return "no ip command (iproute2)"
    name = f"cwtest{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces are not allowed here: {made.stderr.strip()}"
    device = f"cwt{os.getpid()}"
    tries = [
        ["ip", "netns", "exec", name, "true"],
        ["ip", "-n", name, "link", "add", "cwt0", "type", "veth", "peer", "name", "cwt1"],
        ["ip", "link", "add", device, "type", "bridge"],
        ["ip", "link", "del", device],
    ]
    why = ""
    for words in tries:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode and not why:
            why = f"no network of namespaces here: {' '.join(words)}: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return why


def ip(*words: str) -> None:
    """Runs the ip command."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Node:
    """One node: a folder, a key, a broker, and its bridge."""

    def __init__(self, root: Path, name: str, host: str, port: int, netns: str | None) -> None:
        self.name, self.host, self.port, self.netns = name, host, port, netns
        self.folder = root / name
        self.folder.mkdir(mode=0o700)
        self.keys = self.folder / "node"
        self.log = self.folder / "broker.log"
        self.environment = {
            **os.environ,
            "CABLEWAY_DIR": str(self.folder),
            "CABLEWAY_NODE_DIR": str(self.keys),
        }
        self.options: list[str] = []  # more of its broker's
        self.link_idle = LINK_IDLE  # seconds; "": as the broker has it
        self.process: subprocess.Popen[bytes] | None = None
        self.print = self.command("keygen", "--node", name).stdout.strip()

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs the `cableway` command as this node's user would."""
        return subprocess.run(
            [programs.path("cableway"), *words],
            env=self.environment, capture_output=True, text=True, check=check, timeout=60,
        )  # fmt: skip

    def inside(self, words: list[str]) -> list[str]:
        """A command line that runs in this node's namespace."""
        return words if self.netns is None else ["ip", "netns", "exec", self.netns, *words]

    def start(self, **more: str) -> None:
        """Starts its broker, which starts its bridge."""
        assert self.process is None
        words = [programs.path("cablewayd"), "--foreground", "--node", self.name, *self.options]
        words += ["--link-idle", self.link_idle] if self.link_idle else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.inside([*words, "--listen", f"{self.host}:{self.port}"]),
                env={**self.environment, **more}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        assert eventually(lambda: f"listens at {self.host}:{self.port}" in self.said()), self.said()

    def stop(self) -> None:
        """Ends its broker, and the bridge with it."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.said()
        self.process = None
        assert eventually(lambda: self.bridge_pid() == 0)

    def said(self) -> str:
        """All that broker and bridge wrote into their log."""
        return self.log.read_text() if self.log.exists() else ""

    def bridge_pid(self) -> int:
        """The pid of its bridge; 0 when none runs."""
        for entry in Path("/proc").iterdir():
            try:
                words = (
                    (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                )
            except OSError:
                continue
            if (
                len(words) > 3
                and words[0] == b"cableway-bridge"
                and words[3].startswith(os.fsencode(self.folder) + b"/")
            ):
                return int(entry.name)
        return 0

    def knows(
        self, other: Node, *words: str, address: str | None = None, key: str | None = None
    ) -> None:
        """Adds a peer."""
        place = f"{other.host}:{other.port}" if address is None else address
        self.command(
            "peers",
            "add",
            other.name,
            *([place] if place else []),
            "--key",
            key or other.print,
            *words,
        )

    def state_of(self, other: Node) -> dict[str, str]:
        """What `cableway peers show` tells about a peer; nothing when there is none such."""
        told = self.command("peers", "show", other.name, check=False)
        assert told.returncode in (0, 4), told
        return dict(
            line.split(maxsplit=1)
            for line in told.stdout.splitlines()[1:]
            if not line.startswith("  link ")
        )

    def sees(self, other: Node, state: str = "connected") -> bool:
        """Whether a peer has that state here."""
        return self.state_of(other).get("state") == state

    def put(self, name: str, values: object) -> None:
        """Puts an array there while this process is a client elsewhere."""
        file = self.folder / "put.npy"
        np.save(file, values)
        self.command("put", name, str(file))

    @contextlib.contextmanager
    def standing(self) -> Iterator[None]:
        """Its broker and bridge are stopped in the block, as on a machine that stands: of a bridge alone the broker would
        start another."""
        assert self.process is not None
        pids = [self.process.pid, self.bridge_pid()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def here(self) -> Iterator[cw.Connection]:
        """This process is a client of this node's broker in the block."""
        with cw.connect(self.folder) as connection:
            yield connection


def claimed_subnet() -> int:
    """The N of 10.213.N.0/24 for the nodes of one test, with the device of its bridge.

    Tests run beside each other, and this process has a route to the nodes of all of them. So no two have one subnet: who could make the
    device has it, as long as the device is there.
    """
    for number in SUBNETS:
        words = ["ip", "link", "add", f"cw{number}br", "type", "bridge"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return number
        assert "exists" in done.stderr, done.stderr
    raise AssertionError("all subnets have a device: `ip link` shows them, cw7br and on")


class Net:
    """Nodes that can reach each other.

    Attributes:
        subnet: what the addresses of nodes in namespaces begin with.
        outside: where these nodes reach this process.
    """

    def __init__(self, *names: str, namespaces: bool = False) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="cwbr-"))
        self.nodes: dict[str, Node] = {}
        self.held: list[socket.socket] = []
        self.tag = self.subnet = self.outside = ""
        if namespaces:
            number = claimed_subnet()
            self.tag, self.subnet = f"cw{number}", f"10.213.{number}."
            self.outside = f"{self.subnet}254"
            ip("link", "set", f"{self.tag}br", "up")
            ip("addr", "add", f"{self.outside}/24", "dev", f"{self.tag}br")  # who is on no node
        for i, name in enumerate(names):
            host = f"{self.subnet}{i + 1}" if namespaces else "127.0.0.1"
            netns = f"{self.tag}{name}" if namespaces else None
            if netns:
                self._lay(name, netns, host)
            if not namespaces:
                self.held.append(held_port())
            port = PORT if namespaces else self.held[-1].getsockname()[1]
            self.nodes[name] = Node(self.root, name, host, port, netns)

    def _lay(self, name: str, netns: str, host: str) -> None:
        ip("netns", "add", netns)
        outer = f"{self.tag}v{name}"
        ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", netns)
        ip("link", "set", outer, "master", f"{self.tag}br", "up")
        ip("-n", netns, "addr", "add", f"{host}/24", "dev", "eth0")
        ip("-n", netns, "link", "set", "eth0", "up")
        ip("-n", netns, "link", "set", "lo", "up")

    def cable(self, name: str, state: str) -> None:
        """Takes a node's link "down" or "up"."""
        ip("link", "set", f"{self.tag}v{name}", state)

    def acquaint(self, *words: str) -> None:
        """Everybody knows everybody, with these rights."""
        for one in self.nodes.values():
            for other in self.nodes.values():
                if one is not other:
                    one.knows(other, *words)

    def start(self, **more: str) -> None:
        """Starts all, and waits until all are connected that know each other."""
        for node in self.nodes.values():
            node.start(**more)

    def connected(self, seconds: float = 60) -> None:
        """Waits until everybody is connected with everybody. All are asked in turn: who is asked dials."""
        pairs = [(a, b) for a in self.nodes.values() for b in self.nodes.values() if a is not b]
        assert eventually(lambda: all([a.sees(b) for a, b in pairs]), seconds), [  # noqa: C419
            node.said() for node in self.nodes.values()
        ]

    def close(self) -> None:
        """Ends all of it."""
        for node in self.nodes.values():
            node.stop()
        for held in self.held:
            held.close()
        for node in self.nodes.values():
            if node.netns:  # the device goes at once, with the namespace it would some time later
                ip("link", "del", f"{self.tag}v{node.name}")
                ip("netns", "del", node.netns)
        if self.tag:
            ip("link", "del", f"{self.tag}br")
        shutil.rmtree(self.root)


@contextlib.contextmanager
def net(*names: str, namespaces: bool = False) -> Iterator[Net]:
    """Nodes, ended afterwards."""
    made = Net(*names, namespaces=namespaces)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def pair(*rights: str, **environment: str) -> Iterator[tuple[Node, Node]]:
    """Two nodes, a and b, that know each other and are connected."""
    with net("a", "b") as made:
        made.acquaint(*rights)
        made.start(**environment)
        made.connected()
        yield made.nodes["a"], made.nodes["b"]


def timed_out(begun: float, seconds: float) -> bool:
    """Whether so much time has passed."""
    return time.monotonic() - begun > seconds


def program(name: str) -> str:
    """The path of one of our programs."""
    return programs.path(name)


@contextlib.contextmanager
def acquainted(*rights: str) -> Iterator[tuple[Node, Node]]:
    """Two nodes, a and b, that know each other with these rights and are connected."""
    with net("a", "b") as made:
        made.acquaint(*rights)
        made.start()
        made.connected()
        yield made.nodes["a"], made.nodes["b"]
