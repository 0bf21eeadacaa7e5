"""A program that was started with its standard descriptors closed: none of ours becomes one of them.

Whatever it prints would go there: into a connection, or into memory that others read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

USE = """
import os
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
import ctypes
ctypes.CFUNCTYPE(None)(lambda: None)  # libffi may keep itself open from now on
for fd in held:
    os.close(fd)
import json, sys, traceback
from multiprocessing import resource_tracker, shared_memory
import numpy as np
import cableway as cw

seen, theirs = {}, {}

def standard():
    for fd in range(3):
        try:
            yield fd, os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            pass

def look(what):
    seen.update({f"{fd} after {what}": link for fd, link in standard() if theirs.get(fd) != link})

def not_given(link):  # to a worker, whose 2 is captured
    return link != "/dev/null" and not link.startswith("/dev/shm/psm_") and "/libffi." not in link

def task(x):
    look("a task")
    return seen

def use(method):
    global theirs
    memory = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.ensure_running()
    theirs = dict(standard())  # the standard library's own
    assert len(theirs) < 3, theirs  # else there is nothing to be seen
    x = cw.put("closed/stdio", np.arange(100_000.0))
    look("put")
    y = cw.asarray(memory)
    look("taking over")
    queue = cw.Queue()
    queue.put(x)
    assert queue._reader.fileno() > 2
    look("a queue")
    pid = os.fork()
    if pid == 0:
        queue.get()
        look("a fork")
        os._exit(len(seen))
    look("forking")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "in the child"
    with cw.Pool(2, context=method, capture_stderr=True) as pool:
        look("a Pool's start")
        for found in pool.map(task, [np.ones(200_000)] * 8, chunksize=1):
            seen.update({f"worker: {k}": v for k, v in found.items() if k[0] != "2" and not_given(v)})
        look("a Pool")
    look("a Pool's end")
    del y
    memory.close()
    memory.unlink()

if __name__ == "__main__":
    try:
        use(sys.argv[1])
    except BaseException:
        seen["error"] = traceback.format_exc()
    with open(sys.argv[2], "w") as file:
        json.dump(seen, file)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_no_descriptor_of_ours_becomes_a_closed_standard_one(method: str, tmp_path: Path) -> None:
    script, out = tmp_path / "use.py", tmp_path / "out"
    script.write_text(USE)
    shell = 'exec "$0" "$@" <&- >&- 2>&-'
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, script, method, out], timeout=120, check=False
    )
    assert done.returncode == 0
    assert json.loads(out.read_text()) == {}
