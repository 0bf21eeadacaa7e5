"""Workers whose end somebody else has waited for: SIGCHLD is ignored, or a thread of the user's calls os.wait()."""

from __future__ import annotations

import os
import select
import signal
import time
import types

import pytest
from conftest import Script

import cableway as cw
from cableway._pool.launch import process

WAIT = """
    import os, signal, sys, threading, time
    import cableway as cw
    from cableway._pool.launch import process
    def die(how):
        if how > 0: os._exit(how)
        os.kill(os.getpid(), -how)
    def waits():
        while True:
            try: os.wait()
            except ChildProcessError: time.sleep(0.001)
    if __name__ == "__main__":
        method, way, known = sys.argv[1:]
        if known == "unknown": process._told_by_kernel = lambda pidfd: None
        if way == "ignored": signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if way == "wait": threading.Thread(target=waits, daemon=True).start()
        with cw.Pool(2, context=method) as pool:
            for how in (3, -9, 1):
                try: pool.apply(die, (how,))
                except cw.WorkerDied as error: print(error.exitcode, "something else in it has waited" in str(error))
            print(pool.map(abs, range(3)))
        pool.join()
        if way == "ignored" and method == "fork":
            import multiprocessing
            print(multiprocessing.active_children())
"""


def kernel_tells() -> bool:
    """Linux 6.15 or later: asked of a process that nobody waited for, it says that it knows the question."""
    pid = os.fork()
    if pid == 0:
        os._exit(5)
    fd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()
    os.waitpid(pid, 0)
    try:
        return process._told_by_kernel(fd) == 5
    finally:
        os.close(fd)


@pytest.mark.parametrize("way", ["ignored", "wait"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_how_a_worker_ended_is_told_though_another_has_waited_for_it(
    script: Script, method: str, way: str
) -> None:
    if method == "fork" and not kernel_tells():
        pytest.skip("this kernel does not tell it (Linux 6.15 does)")
    printed = script(WAIT, method, way, "known").stdout
    assert printed.splitlines()[:4] == ["3 False", "-9 False", "1 False", "[0, 1, 2]"]
    assert printed.splitlines()[4:] in ([], ["[]"])


@pytest.mark.parametrize("way", ["ignored", "wait"])
def test_what_is_not_known_is_said(script: Script, way: str) -> None:
    printed = script(WAIT, "fork", way, "unknown").stdout.splitlines()
    assert printed[3] == "[0, 1, 2]"
    # Who calls os.wait() may come too late for one: then it is known, and right.
    right = ["3 False", "-9 False", "1 False"] if way == "wait" else ["None True"] * 3
    assert all(said in ("None True", known) for said, known in zip(printed, right, strict=False))


def test_a_death_that_another_has_waited_for_is_not_slept_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody will tell how it ended: the helper does not wait for it."""
    slept: list[float] = []
    was = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with cw.Pool(1, context="fork") as pool:
            clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=slept.append)
            monkeypatch.setattr(process, "time", clock)
            with pytest.raises(cw.WorkerDied):
                pool.apply(os._exit, (3,))
            assert pool.apply(abs, (-1,)) == 1
    finally:
        signal.signal(signal.SIGCHLD, was)
    assert not slept
