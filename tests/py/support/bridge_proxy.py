"""A proxy between two nodes that delays, throttles, cuts and corrupts what goes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

import bridge_support
from bridge_support import Node
from conftest import eventually

TO, FROM = 0, 1  # towards the node behind the proxy, and from it


def _shut(*ends: socket.socket) -> None:
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class Proxy:
    """Listens on a port of its own and connects to another; one thread a direction and connection."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.lock = threading.Lock()
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.cut_at: tuple[int, int] | None = None  # direction, bytes: of the next connection
        self.cut_each: Callable[[], tuple[int, int]] | None = None  # of each that has no other
        self.flip_at: tuple[int, int] | None = None
        self.pause = 0.0  # before each piece
        self.passes = (threading.Event(), threading.Event())  # cleared: that direction stands
        for way in self.passes:
            way.set()
        self.piece = 65536
        self.passed = [0, 0]  # of the latest connection
        self.cuts = 0  # at the byte that cut_at named
        self.holes: list[
            socket.socket
        ] = []  # what stays open towards the node, and is heard no more
        self.mute = False  # those who connect from now on hear nothing, and wait here:
        self.muted: list[socket.socket] = []
        self.open = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while self.open:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.mute:
                self.muted.append(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target), 10)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            with self.lock:
                self.pairs.append((near, far))
                cut, flip = self.cut_at, self.flip_at
                self.cut_at = self.flip_at = None
                if cut is None and self.cut_each:
                    cut = self.cut_each()
                self.passed = passed = [0, 0]
            ways = [(near, far), (far, near)]
            left = list(ways)  # the last of the two closes both
            for way, (source, target) in enumerate(ways):
                threading.Thread(
                    target=self._pump,
                    args=(way, source, target, passed, cut, flip, left),
                    daemon=True,
                ).start()

    def _pump(
        self, way: int, source: socket.socket, target: socket.socket, passed: list[int],
        cut: tuple[int, int] | None, flip: tuple[int, int] | None, left: list[tuple[socket.socket, socket.socket]],
    ) -> None:  # fmt: skip
        try:
            while data := bytearray(source.recv(self.piece)):
                if self.pause:
                    time.sleep(self.pause)
                self.passes[way].wait()
                if source in self.holes or target in self.holes:
                    break
                if flip and flip[0] == way and passed[way] <= flip[1] < passed[way] + len(data):
                    data[flip[1] - passed[way]] ^= 0x20
                if cut and cut[0] == way and passed[way] + len(data) >= cut[1]:
                    target.sendall(data[: cut[1] - passed[way]])
                    passed[way] = cut[1]
                    with self.lock:
                        self.cuts += 1
                    break
                target.sendall(data)
                passed[way] += len(data)
        except OSError:
            pass
        with self.lock:
            if source in self.holes or target in self.holes:
                return
            _shut(source, target)
            left.remove((source, target))
            if not left:
                pair = (source, target) if way == TO else (target, source)
                if pair in self.pairs:
                    self.pairs.remove(pair)
                source.close()
                target.close()

    def cut(self) -> int:
        """Ends all connections now; returns how many there were."""
        with self.lock:
            count = len(self.pairs)
            for pair in self.pairs:
                _shut(*pair)
            self.pairs.clear()
        return count

    def half_open(self, ends: bool = True) -> int:
        """From now on nothing passes over the connections that there are, and the node hears nothing of it: no byte and no
        end. Who connected sees its end (ends), or nothing either. Returns how many there were."""
        with self.lock:
            count = len(self.pairs)
            for near, far in self.pairs:
                self.holes.append(far)
                if ends:
                    _shut(near)
            self.pairs.clear()
        return count

    def cut_younger(self, spared: int = 1) -> int:
        """Ends all connections but the oldest ones now; returns how many there were."""
        with self.lock:
            for pair in self.pairs[spared:]:
                _shut(*pair)
            count = len(self.pairs[spared:])
            del self.pairs[spared:]
        return count

    def cut_oldest(self) -> None:
        """Ends the oldest connection now."""
        with self.lock:
            _shut(*self.pairs.pop(0))

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self.open = False
        for way in self.passes:
            way.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.cut()
        for kept in self.holes + self.muted:
            kept.close()


@contextlib.contextmanager
def proxied(*options: str) -> Iterator[tuple[Node, Node, Proxy]]:
    """Two nodes with these options: a reaches b through a proxy, b does not dial; a may do all at b, b reads at a."""
    with bridge_support.net("a", "b") as made:
        a, b = made.nodes.values()
        with Proxy(b.port) as proxy:
            a.knows(b, "--read", "*", address=f"127.0.0.1:{proxy.port}")
            b.knows(a, "--read", "*", "--write", "*", address="")
            for node in (a, b):
                node.options = list(options)
            made.start()
            assert eventually(lambda: a.sees(b)), a.said()
            yield a, b, proxy
