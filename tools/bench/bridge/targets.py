"""What is promised of the bridge: the lines of its table, and why ours is slower where it is."""

from __future__ import annotations

import os

from targets import Results, Target, at_least, at_most

SIZES = ("1 MiB", "16 MiB", "256 MiB", "1 GiB")
ONE = "cableway, one stream"
DEFAULT = " streams, the default here"
TLS = "OpenSSL, blocking loop in C"
STANDARD, DASK = "multiprocessing.connection, no TLS", "Dask, tls://"
NEW, REPLICA = "cableway, a get of a new name", "cableway, a get of a fresh replica"
PING, LOCAL = "OpenSSL, ping-pong in C", "cableway, a get of a local name"
MANY, EPOLL = "cableway-bridge", "epoll and OpenSSL in C"
GOOD_PART = 0.8  # "nearly with them": of as many times as one stream


def by_rival(results: Results, size: str, other: str, cores: int) -> Target:
    """Judged as the bridge is without any option; one stream is shown beside it."""
    ours = next((name for _, name in results.rows if name.endswith(DEFAULT)), DEFAULT)
    bench = f"bridge get {size}"
    one = results.ratio(bench, ONE, other)
    line = at_least(
        f"get of {size}, {ours.removeprefix('cableway, ').strip()}: by {other}",
        3,
        results.ratio(bench, ours, other),
    )
    line.found += f" (one stream {one:.3g} x)" if one and line.met is not None else ""
    if line.met is False and cores < 8:
        line.found += "; TLS alone takes this machine's cores, which both ends share"
    return line


def bridge_targets(results: Results, cores: int | None = None) -> list[Target]:
    """What is promised; those of what was not run say so. cores: of the machine, if it is not this one."""
    ratio = results.ratio
    cores = cores or len(os.sched_getaffinity(0))
    lines = [
        at_least(f"get of {size}, one stream: bytes a second by OpenSSL's blocking loop", 0.9, ratio(f"bridge get {size}", ONE, TLS))
        for size in SIZES
    ]  # fmt: skip
    lines += [by_rival(results, size, other, cores) for other in (DASK, STANDARD) for size in SIZES]
    lines += [
        at_most("64 B: a get of a new name by a TLS ping-pong (its round trips)", 2, ratio("bridge 64 B", NEW, PING)),
        at_most("64 B: a get of a fresh replica by a get of a local name (no round trip)", 1.5, ratio("bridge 64 B", REPLICA, LOCAL)),
        at_least("256 peers, gets of 64 B at once: a second, by an epoll loop in C", 1, ratio("bridge 256 peers", MANY, EPOLL)),
    ]  # fmt: skip
    for streams in (2, 4):
        ours = f"cableway, streams {streams}"
        growth = ratio("bridge streams 256 MiB", ours, "cableway, streams 1")
        loops = ratio("bridge streams 256 MiB", f"{TLS}, {streams} threads", TLS)
        line = at_least(
            f"{streams} streams: bytes a second by one stream's", GOOD_PART * streams, growth
        )
        if cores < 2 * streams and growth is not None:
            line.met = None  # both ends take a core for each stream
            line.promised += f" where there are {2 * streams} cores"
            line.found += f" ({loops:.3g} x OpenSSL's loops)" if loops else ""
        lines.append(line)
    return lines


_WORK = "checks all bytes (XXH3, both sides), makes memory and a name, and wakes client, broker and bridge"
_MANY = "rights are looked at, the array is leased while it is copied, and who got it is noted, to be told of a change"
BRIDGE_CAUSES = {
    **{(f"bridge get {size}", TLS): f"a get {_WORK}" for size in SIZES},
    **{(f"bridge get {size}, CPU", TLS): f"a get {_WORK}" for size in SIZES},
    **{(f"bridge get {size}{cpu}", STANDARD): "it does not encrypt" for size in SIZES for cpu in ("", ", CPU")},
    ("bridge 64 B", PING): "client, broker and bridge are woken, and the other bridge; one round trip of bytes",
    **{(f"bridge 64 B{cpu}", LOCAL): "names are looked up first, then the board of the bridge"
       for cpu in ("", ", CPU")},
    ("bridge 64 B, CPU", PING): "five processes take part instead of two",
    **{(f"bridge 256 peers{cpu}", EPOLL): _MANY for cpu in ("", ", server's CPU for a get")},
    **{("bridge streams 256 MiB", f"{TLS}{threads}"): f"a get {_WORK}" for threads in ("", ", 2 threads", ", 4 threads")},
}  # fmt: skip
