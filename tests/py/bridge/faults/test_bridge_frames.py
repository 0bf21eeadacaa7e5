"""A peer says each kind of frame as fast as it can, in each state of its connection (peer_flood.py): an honest peer's gets
stay quick, it keeps its link, the bridge's memory stays below its bound, and the log says in few lines who was cut and why.

How quick is quick is measured in the same run, just before. What other work of the machine costs is not counted: for how
long those who take part in a get were ready to run, and had no core. A second for each pair, and ten with `make soak`.
By itself:
`CABLEWAY_SOAK=1 build/venv/bin/python -m pytest -s tests/py/bridge/faults/test_bridge_frames.py`, 10 minutes.

Runs in `make test-more`: a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bridge_support
import numpy as np
import peer_flood
import pytest
from bridge_support import KEPT_BY_SANITIZER, Node
from conftest import eventually

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())

SOAK = bool(os.environ.get("CABLEWAY_SOAK"))
SECONDS = 10.0 if SOAK else 0.9
QUICK_TIMES, QUICK_SECONDS = 10, 0.05  # of a quiet p99; and what is quick in any case
PEER_BYTES = 512 << 20  # CWB_PEER_BYTES
LINES_MOST = 256  # peer.c, and four a second
ITS_OWN_END = ("the other side closed the connection", "the connection broke: ")
FRESH = 40_000 if SOAK else 6_000  # names that each are asked for once

FLOOD = Path(peer_flood.__file__)
IN_STATES = {
    "before": ["hello", "ping", "open", "stream", "streams", "no-op"],
    "agreed": ["open", "read", "close", "names"],
    "open": [kind for kind in peer_flood.KINDS if kind != "no-tls"],
    "transfer": ["ping", "open", "read", "close", "cancel", "names", "offer", "changed", "reply"],
    "refused": ["open", "open-nothing", "offer-inside", "remove", "wait", "read"],
    "unread": ["ping", "open", "open-ahead", "names", "about"],
    "stream": ["ping", "read", "open"],
}
PAIRS = [(kind, state) for state, kinds in IN_STATES.items() for kind in kinds] + [("no-tls", "before")]  # fmt: skip


def private_bytes(pid: int) -> int:
    """What memory of its own a process has."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024


def loop_ns(pid: int) -> tuple[int, int]:
    """For how long a process's first thread (a bridge's loop) has run, and was ready to run without a core."""
    ran, waited, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
    return int(ran), int(waited)


def has_nothing_to_do(pid: int) -> bool:
    """Whether a bridge's loop sleeps for most of a moment."""

    begun, ran = time.monotonic_ns(), loop_ns(pid)[0]
    time.sleep(0.02)
    return (loop_ns(pid)[0] - ran) * 10 < time.monotonic_ns() - begun


class Honest:
    """The honest peer: it gets names of the other node that it does not have yet, and some that are not there."""

    def __init__(self, a: Node, b: Node) -> None:
        assert a.process is not None
        self.fresh = iter(range(FRESH))
        self.one_after_another = [os.getpid(), a.process.pid, a.bridge_pid(), b.bridge_pid()]

    def waited(self) -> float:
        """For how long those who work for a get have been kept from it."""
        return sum(loop_ns(pid)[1] for pid in self.one_after_another) / 1e9

    def get(self) -> float:
        """How long one took."""
        begun = time.monotonic()
        number = next(self.fresh, None)
        if number is None or number % 2:
            with pytest.raises(cw.NameNotFound):
                cw.get("//b/open/nothing")
        else:
            assert cw.get(f"//b/open/n/{number}").numpy().tolist() == [1, 2, 3]
        return time.monotonic() - begun

    def p99(self, seconds: float) -> float:
        """Of gets for so long."""
        took = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            waited = self.waited()
            took.append(self.get() - (self.waited() - waited))
            time.sleep(0.004)
        return max(0.0, sorted(took)[int(len(took) * 0.99)])


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node, Node]]:
    """a is good; b has a bridge that never ends; evil's broker never runs."""
    with bridge_support.net("a", "b", "evil") as made:
        a, b, evil = made.nodes.values()
        a.knows(b, "--read", "*")
        b.knows(a, "--read", "open/*")
        b.knows(evil, "--read", "open/*", "--write", "in/*", address="")
        a.start()
        b.start()
        assert eventually(lambda: a.sees(b)), a.said()
        with b.here():
            cw.put("open/small", [1, 2, 3], keep=True)
            cw.put("open/big", np.zeros(peer_flood.BIG, "u1"), keep=True)
            one = cw.put("open/n/0", [1, 2, 3], keep=True)
            for number in range(2, FRESH, 2):
                cw.put(f"open/n/{number}", one, keep=True)
        yield a, b, evil


@dataclass
class Evil:
    """The peer that floods."""

    process: subprocess.Popen[str]

    @contextlib.contextmanager
    def floods(self, kind: str, state: str) -> Iterator[dict[str, int]]:
        """At work in the block; then what it says of itself is in the dict."""
        assert self.process.stdin is not None and self.process.stdout is not None
        said: dict[str, int] = {}
        print(kind, state, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "begun\n"
        yield said
        print(file=self.process.stdin, flush=True)
        said.update(json.loads(self.process.stdout.readline()))


@pytest.fixture(scope="module")
def both(nodes: tuple[Node, Node, Node]) -> Iterator[tuple[Honest, Evil]]:
    """Two peers of b."""
    a, b, evil = nodes
    words = [sys.executable, str(FLOOD), str(evil.keys), str(b.port)]
    with a.here(), subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # fmt: skip
        honest = Honest(a, b)
        honest.p99(0.5)
        yield honest, Evil(process)
        process.communicate("", 60)


def check_lines(said: str, cuts: int) -> None:
    """Of each connection of the evil peer's a line when it is there and one when it ends, and one cause of all cuts."""
    connections = cuts + 2  # the one before may end now; this one's last is not cut
    assert said.count("peer evil is connected") <= connections
    for kind in ("connection", "stream"):
        ends = re.findall(rf"{kind} from (\S+), peer evil ended: (.*)", said)
        assert len({where for where, _ in ends}) == len(ends) <= connections
        causes = [cause for _, cause in ends if not cause.startswith(ITS_OWN_END)]
        others = len(causes) - max(map(causes.count, causes), default=0)
        assert others <= 1, set(causes)  # of the one before


@pytest.mark.timeout(60 + 10 * SECONDS)
@pytest.mark.parametrize(("kind", "state"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_a_flood_harms_nobody_else(
    nodes: tuple[Node, Node, Node], both: tuple[Honest, Evil], kind: str, state: str
) -> None:
    _, b, _ = nodes
    honest, evil = both
    pid, begun = b.bridge_pid(), time.monotonic()
    assert eventually(lambda: has_nothing_to_do(pid))  # it was flooded before
    before = len(b.said())
    quiet = honest.p99(SECONDS / 3)
    with evil.floods(kind, state) as did:
        p99 = honest.p99(SECONDS)
        taken = private_bytes(pid)
    print(f"{kind} {state}: p99 {p99 * 1e3:.1f} ms, quiet {quiet * 1e3:.1f}, {taken >> 20} MiB, {did}")  # fmt: skip
    assert b.bridge_pid() == pid, b.said()
    assert taken < PEER_BYTES + KEPT_BY_SANITIZER
    assert p99 < max(QUICK_TIMES * quiet, QUICK_SECONDS)
    assert did["bytes"] or did["cuts"]
    said = b.said()[before:]
    assert "peer a ended" not in said  # the honest one keeps its link
    assert said.count("peer evil") < LINES_MOST + 8 * (time.monotonic() - begun + 1)
    check_lines(said, did["cuts"])
    if did["cuts"]:
        assert eventually(lambda: "ended: " in b.said())
