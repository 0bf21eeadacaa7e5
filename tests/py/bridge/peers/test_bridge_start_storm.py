"""1,023 peers connect to one bridge at the same moment, and all have their answer soon; it needs little memory for them.

The peers are one process: each has the key of a node of one job, connects, asks for an array, answers PINGs, and connects
again where it is cut, after a pause as a bridge's. Run with -s it prints what was found. `make nodes1000` has real ones.

Runs in `make test-more`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import bridge_raw as raw
import bridge_support
import numpy as np
import pytest
from bridge_support import KEPT_BY_SANITIZER, Node

import cableway as cw

pytestmark = pytest.mark.skipif(bool(bridge_support.lacking()), reason=bridge_support.lacking())
PEERS = 1023
SECONDS, MIB = 30, 70  # the most until all have their answer; and of memory of the bridge's own
if KEPT_BY_SANITIZER:  # the many small pieces of TLS are twice as large with what lies between them
    SECONDS, MIB = 2 * SECONDS, 2 * MIB + (KEPT_BY_SANITIZER >> 20)
VALUES = np.arange(100)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Node, Path]]:
    """One node of a job of 1,024, and the folder with the keys of all."""
    with bridge_support.net("n0001") as made:
        (one,) = made.nodes.values()
        job = {
            "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": f"n[0001-{PEERS + 1:04}]", "SLURMD_NODENAME": "n0001",
            "CABLEWAY_NODE_DIR": str(one.folder / "of-jobs"),
        }  # fmt: skip
        one.environment.update(job)
        for name, value in job.items():
            monkeypatch.setenv(name, value)
        one.command("peers", "from-slurm", "--read", "*")
        one.start()
        yield one, one.folder / "of-jobs" / "job-1"


def own_mib(pid: int) -> float:
    """Memory that a process shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(kib) for kib in re.findall(r"^Private_\w+:\s+(\d+)", text, re.M)) / 1024


class Peer:
    """One of them."""

    def __init__(self, keys: Path, number: int, port: int) -> None:
        self.name, self.number, self.port = f"n{number:04}", number, port
        self.context = raw.context(keys / self.name)
        self.tries = 0
        self.status: int | None = None
        self.answered = asyncio.Event()

    async def once(self) -> None:
        """One connection, until it ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)
        try:
            greeting = raw.hello(run=1000 + self.number, node=self.name.encode())
            writer.write(greeting + raw.asking(raw.OPEN, b"x", id=5))
            while True:
                size, op, _, id, status, _ = struct.unpack("<IHHQiI", await reader.readexactly(24))
                await reader.readexactly(size - 24)
                if op == raw.PING:
                    writer.write(raw.frame(raw.PING | raw.REPLY, id=id))
                elif op == raw.OPEN | raw.REPLY:
                    self.status = status
                    self.answered.set()
        finally:
            writer.close()

    async def run(self) -> None:
        """Again and again, with pauses as those of a bridge."""
        while True:
            self.tries += 1
            try:
                await self.once()
            except (OSError, asyncio.IncompleteReadError):
                pause = min(0.1 * 2 ** (self.tries - 1), 5)
                await asyncio.sleep(random.uniform(pause / 2, pause))


async def storm(keys: Path, port: int, pid: int) -> tuple[float, float, list[Peer]]:
    """The seconds until all had their answer, the most memory meanwhile and for some seconds after it, and the peers."""
    peers = [Peer(keys, number, port) for number in range(2, PEERS + 2)]
    most = own_mib(pid)
    begun = time.monotonic()
    tasks = [asyncio.create_task(peer.run()) for peer in peers]
    answers = asyncio.gather(*(peer.answered.wait() for peer in peers))
    while not answers.done() and time.monotonic() - begun < SECONDS + 30:
        await asyncio.wait([answers], timeout=0.2)
        most = max(most, own_mib(pid))
    seconds = time.monotonic() - begun
    for _ in range(15):  # all have a link now, which PINGs keep
        await asyncio.sleep(0.2)
        most = max(most, own_mib(pid))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    answers.cancel()
    return seconds, most, peers


def test_all_peers_come_at_once(node: tuple[Node, Path]) -> None:
    one, keys = node
    with one.here():
        cw.put("x", VALUES, keep=True)
    pid = one.bridge_pid()
    before = own_mib(pid)
    seconds, most, peers = asyncio.run(storm(keys, one.port, pid))
    tries = [peer.tries for peer in peers]
    print(
        f"\n{PEERS} peers at once on {os.cpu_count()} cores: all answered after {seconds:.1f} s, {sum(tries)} connections, "
        f"at most {max(tries)} of one peer; the bridge's own memory: {before:.1f} MiB before, at most {most:.1f} MiB"
    )  # fmt: skip
    assert [peer.status for peer in peers] == [0] * PEERS
    assert seconds < SECONDS and most < MIB
    assert one.bridge_pid() == pid
