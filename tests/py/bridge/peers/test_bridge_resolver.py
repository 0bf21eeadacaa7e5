"""A name server that does not answer: who has peers by host names waits for nothing else because of it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bridge_support
import numpy as np
import pytest
from bridge_support import Node
from conftest import eventually

import cableway as cw

SERVER = "127.66.0.1"
PEERS = 12  # more than the bridge has helpers
# A mount of its own for one process: its names are asked at SERVER.
INSIDE = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'


def lacking(folder: Path) -> str:
    """Why no name server of the test's own can be asked; "" if one can."""
    if why := bridge_support.lacking():
        return why
    conf = folder / "resolv.conf"
    conf.write_text(f"nameserver {SERVER}\noptions timeout:30 attempts:1\n")
    made = subprocess.run([*inside(conf), "true"], capture_output=True, text=True, check=False)
    return f"no mounts of a process's own here: {made.stderr.strip()}" if made.returncode else ""


def inside(conf: Path) -> list[str]:
    """The begin of a command line whose program asks at SERVER."""
    return ["unshare", "--mount", "sh", "-c", INSIDE, str(conf)]


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[socket.socket]:
    """A name server that hears and says nothing."""
    if why := lacking(tmp_path):
        pytest.skip(why)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        try:
            server.bind((SERVER, 53))
        except PermissionError as error:
            pytest.skip(f"the port of name servers is not allowed: {error}")
        server.settimeout(30)
        yield server


def hosts_asked(server: socket.socket, node: Node) -> set[bytes]:
    """The hosts that were asked for, once all of them were."""
    asked: set[bytes] = set()
    while len(asked) < PEERS:
        try:
            query = server.recv(4096)
        except TimeoutError:
            break
        if b"nobody" in query:
            asked.add(query[13 : 13 + query[12]])
    assert len(asked) == PEERS, (asked, node.said())
    return asked


def test_a_name_server_that_does_not_answer_holds_up_no_other_peer(
    silent: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        made.acquaint("--read", "*", "--write", "*")
        monkeypatch.setattr(b, "inside", lambda words: [*inside(tmp_path / "resolv.conf"), *words])
        made.start()
        made.connected()
        for i in range(PEERS):
            address = f"host{i:02}.nobody.example:7400"
            b.command("peers", "add", f"h{i}", address, "--key", f"{a.print[:-4]}{i:04x}")
        hosts_asked(silent, b)  # all at once: none waits until another was answered
        with b.here():
            for size in (5, 1 << 20):
                cw.put("//a/in", np.zeros(size))
                assert cw.get("//a/in").shape == (size,)
            cw.put("mine", np.zeros(1 << 20), keep=True)
        with a.here():
            assert cw.get("//b/mine").shape == (1 << 20,)
        # A peer whose address is a number is reached while all of them are asked for.
        a.stop()
        a.start()
        assert eventually(lambda: b.sees(a)), b.said()
        assert "nobody.example:" not in b.said(), b.said()  # no answer, and no end of its time
