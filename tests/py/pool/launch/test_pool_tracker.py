"""The resource tracker of multiprocessing ends when it is told to, and with the interpreter: no server keeps it.

Whoever ends the tracker waits until nobody has its pipe any more. Later Pythons do so when the interpreter exits.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import Script

STOP_AT_THE_END = """
import atexit
def stop():
    from multiprocessing import forkserver, resource_tracker
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()
    print("ended")
atexit.register(stop)  # before multiprocessing's own: it comes after that one
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_tracker_ends_though_a_server_waits_for_work(script: Script, method: str) -> None:
    done = script(
        """
        import multiprocessing, os, sys
        from multiprocessing import forkserver, resource_tracker
        from multiprocessing.shared_memory import SharedMemory
        import cableway as cw
        def make(_):
            block = SharedMemory(create=True, size=100)
            block.close()
            return block.name, os.getppid()
        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[1])
            for _ in range(2):
                pool = cw.Pool(2, context=context)
                name, parent = pool.apply(make, (0,))
                SharedMemory(name).unlink()  # one tracker knows it from both
                pool.close()
                pool.join()
                forkserver._forkserver._stop()
                resource_tracker._resource_tracker._stop()
                print(parent)
        """,
        method,
    )
    first, second = done.stdout.split()
    assert first == second  # the server is still there
    assert done.stderr == ""


def test_the_tracker_ends_with_the_interpreter_though_a_pool_is_open(script: Script) -> None:
    done = script(
        STOP_AT_THE_END
        + """
import multiprocessing
import cableway as cw
if __name__ == "__main__":
    pool = cw.Pool(2, context=multiprocessing.get_context("spawn"))
    print(pool.map(abs, [-1]), flush=True)
"""
    )
    assert done.stdout == "[1]\nended\n"


def test_the_tracker_ends_with_the_interpreter_though_a_server_imports(
    script: Script, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    done = script(
        STOP_AT_THE_END
        + """
import multiprocessing, os, sys, threading, time
from cableway._pool.launch import process
import server_tasks as tasks
if __name__ != "__main__":
    open(os.path.join(sys.argv[1], str(os.getpid())), "x").close()
    time.sleep(600)
def start():
    process.hurry()
    context = multiprocessing.get_context("spawn")
    process.process_class(context)(target=tasks.nap, daemon=True).start()
if __name__ == "__main__":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    while len(os.listdir(sys.argv[1])) < 2:  # the worker, by plain spawn, and the server
        time.sleep(0.01)
    print("importing", flush=True)
""",
        str(begun),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert done.stdout == "importing\nended\n"
