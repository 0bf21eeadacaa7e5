"""Several streams between two nodes on this machine: 1, 2 and 4, beside as many OpenSSL loops on as many threads.

Loopback figures. Plain sockets without TLS, as many at once, are the loopback's own limit. Where there are fewer cores
than two for each stream (one encrypts, one decrypts), more streams cannot be faster.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from bridge.nodes import Owner, nodes, streams_known
from bridge.rivals import Loop, Ours, Rival, closing, rows
from measure import MIB, skipped

COUNTS = (1, 2, 4)
SIZE = 256 * MIB


def main() -> None:
    """Prints all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    build = options.build.resolve()
    if not streams_known(build):
        skipped("bridge streams", "this cablewayd has no --streams")
        return
    with contextlib.ExitStack() as stack:
        rivals: list[Rival] = []
        for count in COUNTS:
            made = stack.enter_context(nodes(build, "a", "b", streams=count))
            owner = Owner(made, "b")
            stack.callback(owner.close)
            keys = made.root / "a" / "node"
            rivals.append(Ours(made, owner, f"cableway, streams {count}"))
            rivals += [Loop(build, keys, kind, count, SIZE) for kind in ("tls", "plain")]
        with closing(rivals):
            rows("streams 256 MiB", SIZE, rivals, min(options.rounds, 5))


if __name__ == "__main__":
    main()
