"""Whose process is at the other end of a TCP connection over loopback.

The kernel lists every connection of this network namespace with the user who has it, in /proc/net/tcp and tcp6. A connection is
found there by both its addresses, so nobody else's is taken for it: while the connection is open, its two ports are in use.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

__all__ = ["is_own", "user_of"]

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_UID_FIELD = 7
_LOOKS = 3  # the kernel writes the table while it changes, and then may leave a row out

Address = tuple[str, int]


def _forms(address: Address) -> list[str]:
    """An address as the tables write it: 32-bit words in hexadecimal, in this machine's order of bytes."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    packed = [ip.packed]
    if ip.version == 4:
        packed.append(bytes(10) + b"\xff\xff" + ip.packed)  # as a socket for both kinds has it
    return [f"{_words(each)}:{address[1]:04X}" for each in packed]


def _words(packed: bytes) -> str:
    return "".join(
        f"{int.from_bytes(packed[at : at + 4], sys.byteorder):08X}"
        for at in range(0, len(packed), 4)
    )


def user_of(theirs: Address, ours: Address) -> int | None:
    """The uid of whoever has the end `theirs` of a connection to `ours`; None if there is none. Blocks for some milliseconds."""
    wanted = [f" {their} {our} ".encode() for their in _forms(theirs) for our in _forms(ours)]
    for _ in range(_LOOKS):
        for table in _TABLES:
            try:
                text = table.read_bytes()
            except OSError:  # a kernel without IPv6; a /proc that shows processes alone
                continue
            for pair in wanted:
                at = text.find(pair)
                if at >= 0:
                    line = text[text.rfind(b"\n", 0, at) + 1 : text.find(b"\n", at)]
                    return int(line.split()[_UID_FIELD])
    return None


def is_own(theirs: Address, ours: Address) -> bool:
    """Whether that is a process of this user, or of root, who sees everything anyway."""
    return user_of(theirs, ours) in (0, os.getuid())
