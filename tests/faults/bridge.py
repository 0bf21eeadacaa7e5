"""The role "bridge" of faults.py: two nodes on this machine, whose bridges talk over the loopback. Calls fail in the bridge
of one of them, a; walk_bridge.py walks on both.

Beside what faults.py asks of all: a bridge that has started lives to the end, the other node's does in any case, and when
all is removed a's bridge has the descriptors, and its broker the gauges, that they had before the walk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "py/support"))
from ports import held_port

START_S = 20.0
SETTLE_S = 5.0
RIGHTS = "read = *\nwrite = *\n"


class Node:
    """A node: its folder, its broker, its bridge. run: faults.Run."""

    def __init__(self, run: Any, name: str, key: Path, print_: str) -> None:
        self.run, self.name, self.print = run, name, print_
        self.place = run.folder / name
        self.place.mkdir(mode=0o700)
        self.keys = self.place / "node"
        shutil.copytree(key, self.keys)
        self.held = held_port()
        self.port = int(self.held.getsockname()[1])
        self.log = self.place / "said"
        self.process: subprocess.Popen[bytes] | None = None

    def knows(self, other: Node) -> None:
        """Writes the file of peers."""
        peers = self.keys / "peers"
        text = f"[{other.name}]\naddress = 127.0.0.1:{other.port}\nkey = {other.print}\n{RIGHTS}"
        peers.write_text(text)
        peers.chmod(0o600)

    def environment(self) -> dict[str, str]:
        """Of all that belongs to it."""
        return self.run.environment | {
            "CABLEWAY_DIR": str(self.place),
            "CABLEWAY_NODE_DIR": str(self.keys),
            "CABLEWAY_BRIDGE": str(self.run.role.build / "cableway-bridge"),
            "CABLEWAY_MOVER": str(self.run.role.build / "cableway-mover"),
            "CABLEWAY_BRIDGE_EPOLL": "1",
        }

    def start(self, shim: dict[str, str], ready: Callable[[], bool]) -> bool:
        """Starts broker and bridge, and waits until they are ready. false: it ended, and has said why."""
        words = [
            str(self.run.role.build / "cablewayd"),
            *("--foreground", "--node", self.name, "--listen", f"127.0.0.1:{self.port}"),
            *("--link-idle", "0"),  # they meet at the start
            *("--streams", "2"),
        ]
        before = len(self.said())
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                words,
                env=self.environment() | shim,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if ready():
                return True
            if self.process.poll() is not None:
                if not self.said()[before:].strip():
                    self.run.wrong(f"node {self.name} did not start, and did not say why")
                return False
            time.sleep(0.005)
        self.run.wrong(f"node {self.name} does not start: {self.said()[-500:]}")
        return False

    def said(self) -> str:
        """What broker and bridge wrote."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def bridge(self) -> int:
        """The pid of its bridge; 0: there is none."""
        assert self.process
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        for word in path.read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{word}/comm").read_text().startswith("cableway-bridge"):
                    return int(word)
        return 0

    def descriptors(self) -> Counter[str]:
        """What its bridge has open, by kind. Slabs are left out: the gauges tell of them."""
        found: Counter[str] = Counter()
        folder = f"/proc/{self.bridge()}/fd"
        for number in os.listdir(folder) if os.path.isdir(folder) else []:
            with contextlib.suppress(OSError):
                target = os.readlink(f"{folder}/{number}")
                if not target.startswith("/memfd:"):
                    found[target.split(":")[0].removeprefix(str(self.place))] += 1
        return found

    def gauges(self) -> dict[str, int]:
        """The broker's, without those that a mover or the reserve of the bridge moves."""
        done = subprocess.run(
            [str(self.run.role.build / "cableway"), "status", "--json"],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        try:
            told = json.loads(done.stdout)["gauges"]
        except (ValueError, KeyError):
            return {"status": done.returncode}
        return {name: value for name, value in told.items() if name in WATCHED}

    def stop(self) -> None:
        """Ends its broker, and with it the bridge."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.run.wrong(f"the broker of {self.name} does not end by SIGTERM")
            self.process.kill()
            code = self.process.wait()
        if code:
            self.run.wrong(f"the broker of {self.name} ended with {code}: {self.said()[-300:]}")
        self.process = None
        self.held.close()


# By when the walk is over and everything was removed they are as before. Slabs stay for what comes next.
WATCHED = ("clients", "names", "transits", "waiting", "jobs")


def make_keys(build: Path, folder: Path) -> dict[str, tuple[Path, str]]:
    """A key for each node: where it lies, and its fingerprint."""
    keys = {}
    for name in ("a", "b"):
        place = folder / name
        done = subprocess.run(
            [str(build / "cableway-bridge"), "keygen", "--node", name],
            env=os.environ | {"CABLEWAY_NODE_DIR": str(place)},
            capture_output=True,
            text=True,
            check=True,
        )
        keys[name] = (place, done.stdout.strip())
    return keys


def settled(before: tuple[Any, ...], look: Any) -> tuple[Any, ...]:
    """What look() gives, once it is as before, or after SETTLE_S."""
    end = time.monotonic() + SETTLE_S
    while (now := look()) != before and time.monotonic() < end:
        time.sleep(0.02)
    return now


def walk(
    run: Any, keys: dict[str, tuple[Path, str]], most: Counter[str], shim: dict[str, str]
) -> None:
    """Both nodes, the walk, and what is left of it.

    Args:
        run: a faults.Run.
        keys: of make_keys().
        most: how many descriptors of each kind the runs without a failure had; they add to it.
        shim: the environment of a's broker and bridge.
    """
    a, b = (Node(run, name, *keys[name]) for name in ("a", "b"))
    a.knows(b)
    b.knows(a)
    try:

        def met() -> bool:
            return "peer a is connected" in b.said()  # which is said once its start is over

        started = b.start({}, lambda: f"listens at 127.0.0.1:{b.port}" in b.said())
        if not started or not (a.start(shim, met) or a.start(shim, met)):
            run.wrong("the nodes did not start")
            return
        script = str(Path(__file__).parent / "walk_bridge.py")
        first = a.bridge()

        # Strands and streams are made when they are first wanted, which a failure puts off: what there may be of each
        # kind of descriptor is what the runs without a failure had.
        def look() -> tuple[Any, ...]:
            return a.gauges(), a.descriptors() - most if run.case else []

        words = [sys.executable, "-B", script, str(a.place), str(b.place)]
        warm = run.program(*words, "warm", shim=a.environment())
        before = a.gauges(), Counter() if run.case else []
        done = run.program(*words, "walk", str(b.process.pid), shim=a.environment())
        for part in (warm, done):
            if part.returncode > 0 or "whole" not in part.stdout:
                run.wrong(f"the walk ended with {part.returncode}: {part.stdout[-1500:]}")
        if a.bridge() != first or not first:
            run.wrong(f"the bridge did not survive: {a.said()[-700:]}")
        elif (after := settled(before, look)) != before:
            run.wrong(f"left behind: before {before}, after {after}")
        if not run.case:
            most |= a.descriptors()
    finally:
        a.stop()
        b.stop()
    ends = [line for line in a.said().splitlines() if "cannot run" in line]
    for line in a.said().splitlines():
        if ("was killed by signal" in line or "ended with exit code" in line) and not ends:
            run.wrong(f"a's log: {line}")
        if "ssertion" in line:
            run.wrong(f"a's log: {line}")
