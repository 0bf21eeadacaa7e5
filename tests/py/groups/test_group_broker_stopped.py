"""A member whose broker is stopped: each call ends when the time of the group is over, once, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIMIT = 0.4
TRIES = 5  # on a busy machine a process may not run for that long: the quickest of them counts

PROGRAM = """
import os, signal, sys, time
import numpy as np
import cableway as cw

rank, tries, limit = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
groups = [cw.Group(f"stopped/{i}", 2, rank, timeout=30) for i in range(1 + 2 * tries)]
if rank == 1:
    groups[-1].allgather(None)
    sys.stdin.read()  # until rank 0 has seen all
    sys.exit()
with cw.connect() as connection:
    pid = connection.broker_pid
groups[-1].allgather(None)
for g in groups:
    g.timeout = limit
large = b"x" * 30_000_000  # needs new memory
many, out = np.ones(4_000_000), np.ones(4_000_000)
g = groups.pop()
messages = {
    "send": lambda: g.send(large, 1), "Send": lambda: g.Send(many, 1),
    "isend": lambda: g.isend(large, 1), "Isend": lambda: g.Isend(many, 1),
    "sendrecv": lambda: g.sendrecv(large, 1), "Sendrecv": lambda: g.Sendrecv(many, 1, out=out),
}
def seconds(call):
    begun = time.monotonic()
    try:
        call()
    except cw.Timeout as error:
        return time.monotonic() - begun, str(error)
    raise AssertionError("nothing was raised")
os.kill(pid, signal.SIGSTOP)
try:
    for name, call in messages.items():
        took = []
        while len(took) < tries and (not took or min(took) >= 1.5 * limit):
            second, error = seconds(call)
            took.append(second)
            assert "the broker did not answer" in error, (name, error)
        assert limit <= min(took) < 1.5 * limit, (name, took)
    assert not g.broken
    for name in ("allgather", "bcast"):
        took = []
        while len(took) < tries and (not took or min(took) >= 1.5 * limit):
            one = groups.pop()
            call = {"allgather": lambda: one.allgather(large), "bcast": lambda: one.bcast(large)}[name]
            second, error = seconds(call)
            took.append(second)
            assert "cannot take part" in error and f"{limit:.3f} s" in error and one.broken, (name, error)
        assert limit <= min(took) < 1.5 * limit, (name, took)
finally:
    os.kill(pid, signal.SIGCONT)
g.timeout = 30
g.send(large, 1)
print("all")
"""


def test_each_call_of_a_group_ends_once_its_time_is_over_while_the_broker_is_stopped(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(TRIES), str(LIMIT)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "CABLEWAY_DIR": str(tmp_path)},
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        assert started[0].communicate(timeout=60)[0] == "all\n"
    finally:
        for process in started:
            process.kill() if process.returncode is None else None
            process.communicate()
