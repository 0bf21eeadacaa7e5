"""Ports that the tests hold for bridges; also for scripts that run without pytest."""

from __future__ import annotations

import random
import socket


def held_port() -> socket.socket:
    """A socket bound to a port below those that the kernel gives away by itself. While it is open no other socket gets
    that port but one with SO_REUSEADDR that listens, as a bridge's does, however often that is started anew."""
    while True:
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return held
