"""`cableway exporter`: figures for Prometheus, and a live page for a browser, by HTTP.

    cableway exporter [--listen ADDRESS:PORT] [--all-users] [--host NAME]

`python -m cableway.exporter` is the same. It serves `/metrics`, what `cableway metrics` prints; `/`, a page that shows what
`cableway top` does; and `/state`, the JSON from which the page is made. It starts these commands when somebody asks, each at most
once at a time and not again within 0.5 s, and neither connects to the broker nor starts one.

It listens on 127.0.0.1 unless it is told otherwise. There, every user of this machine can read `/metrics` (pids, names of
commands, figures), and only processes of this user and of root can read the page, which has the names of arrays. On any other
address everyone who reaches it sees both. There is no password and no encryption: use `ssh -L`, or a proxy that has them.

SIGTERM and Ctrl-C end it, with exit code 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import socket
import sys
from typing import NoReturn

from cableway._watch import command
from cableway._watch.server import BACKLOG, Server, is_loopback

__all__ = ["DEFAULT_ADDRESS", "main"]

DEFAULT_ADDRESS = "127.0.0.1:9477"


def _say(text: str) -> None:
    print(f"cableway: exporter: {text}", file=sys.stderr, flush=True)


def _address(text: str) -> tuple[str, int]:
    """Of ADDRESS:PORT, [ADDRESS]:PORT or PORT.

    >>> _address("[::1]:80"), _address("8080")
    (('::1', 80), ('127.0.0.1', 8080))
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        host = "127.0.0.1"
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write an IPv6 address in brackets, as [::1]:9477"
        )
    if not host:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the address is missing; 0.0.0.0{text} listens on all addresses of this machine, 127.0.0.1{text} on none "
            "that others reach"
        )
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: the port must be a number from 0 to 65535")
    return host, int(port)


def _host(text: str) -> str:
    """A name that a Host header may say, in lower case.

    >>> _host("Node7.example")
    'node7.example'
    """
    if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})", text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: a host name has 1 to 253 letters, digits, '-', '.' and '_', and no port"
        )
    return text.lower()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cableway exporter",
        description="Serves the figures of `cableway metrics` (/metrics) and a live page (/) by HTTP.",
        epilog="On a loopback address the page is for processes of this user and of root alone; /metrics is for all users of the "
        "machine. On other addresses everyone who reaches them sees both.",
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS:PORT", type=_address, default=DEFAULT_ADDRESS,
        help=f"where (default {DEFAULT_ADDRESS}); port 0: one that is free",
    )  # fmt: skip
    parser.add_argument(
        "--all-users", action="store_true", help="show the page to all users of this machine"
    )
    parser.add_argument(
        "--host", metavar="NAME", type=_host, action="append", default=[],
        help="another name by which browsers reach this machine (may be repeated)",
    )  # fmt: skip
    return parser


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens there; ends the program with a sentence if that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        in_use = "; is another exporter running? --listen takes another port" if error.errno == 98 else ""  # fmt: skip
        _fail(f"cannot listen on {host}:{port}: {error.strerror or error}{in_use}")
    return listener


def _fail(text: str) -> NoReturn:
    _say(text)
    sys.exit(command.FAILED)


def _tell(listener: socket.socket, own_only: bool, loopback: bool) -> None:
    address, port = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    _say(f"http://{shown}:{port}/ is the page, http://{shown}:{port}/metrics for Prometheus")
    if not loopback:
        _say(
            "everyone who reaches this address sees the page: names, shapes and sizes of arrays, and users, pids and commands of "
            "processes; there is no password and no encryption"
        )
    elif not own_only:
        _say(
            "every user of this machine sees the page: names, shapes and sizes of arrays, and users, pids and commands of processes"
        )


async def _serve(listener: socket.socket, options: argparse.Namespace) -> None:
    loopback = is_loopback(listener.getsockname()[0])
    own_only = loopback and not options.all_users
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell's `&` in a script
            loop.add_signal_handler(number, stop.set)
    _tell(listener, own_only, loopback)
    hosts = frozenset(options.host)
    await Server(own_only, hosts).serve(listener, stop)


def main(arguments: list[str] | None = None) -> None:
    """Serves until SIGTERM or Ctrl-C. Blocks.

    Args:
        arguments: of the command line; None: those of this process.

    Raises:
        SystemExit: 2 for wrong arguments, 1 if it cannot listen there or the package is not complete.
    """
    options = _parser().parse_args(arguments)
    program = command.words()[0]
    if not os.access(program, os.X_OK):
        _fail(f"{program} cannot be run; install cableway again")
    asyncio.run(_serve(_listener(*options.listen), options))


if __name__ == "__main__":
    main()
