"""`cableway._ray.serving`: who gets the arrays of a program, and what happens when either end dies. Needs no Ray."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from waiting import eventually

from cableway._ray import serving

PROGRAM = """
import os, sys, time
import numpy as np
from cableway._ray import serving

def stored(object_id):
    if object_id == "ab":
        return [np.arange(5, dtype="u1"), np.empty(0, "u1"), np.full(1 << 20, 7, "u1")]
    if object_id == "slow":
        time.sleep(600)
    if object_id == "large":
        return [np.zeros(64 << 20, "u1")]
    if object_id == "wrong":
        raise ValueError("wrong")
    return None

where = serving.address(stored)
assert serving.address(stored) == where
if "fork" in sys.argv:
    if os.fork():
        time.sleep(600)
    where += f" {os.getpid()}"  # of the child, which has let go of the socket now
print(where, flush=True)
time.sleep(600)
"""


@pytest.fixture
def program():
    """A program that serves; where, and what else it says."""
    started = []

    def start(*words: str) -> tuple[subprocess.Popen[str], list[str]]:
        made = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True
        )
        started.append(made)
        assert made.stdout is not None
        return made, made.stdout.readline().split()

    yield start
    for made in started:
        made.kill()
        made.wait()
        made.stdout.close()


def test_readers_get_the_bytes_that_are_there(program):
    _, (where,) = program()
    for _ in range(3):
        parts = serving.ask(where, "ab")
        assert [len(part) for part in parts] == [5, 0, 1 << 20]
        assert parts[0].tolist() == [0, 1, 2, 3, 4] and (parts[2] == 7).all()
        assert all(part.flags.writeable for part in parts)
    assert serving.ask(where, "unknown") is None
    with pytest.raises(OSError):
        serving.ask(where, "wrong")
    assert serving.ask(where, "unknown") is None


def test_many_ask_at_once_and_none_waits_for_a_slow_one(program):
    _, (where,) = program()
    slow = threading.Thread(target=pytest.raises, args=(OSError, serving.ask, where, "slow"))
    slow.start()
    found: list[int] = []
    readers = [
        threading.Thread(target=lambda: found.append(int(serving.ask(where, "ab")[2].sum())))
        for _ in range(16)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [7 << 20] * 16
    assert slow.is_alive()


@pytest.mark.parametrize("asked", ["slow", "large"])
def test_a_program_that_is_killed_amid_an_answer_is_an_error_at_once(program, asked, monkeypatch):
    made, (where,) = program()
    errors: list[BaseException] = []
    begun = threading.Event()
    received = serving._bytes

    def once_stopped(*arguments):
        begun.set()
        if asked == "large":  # it cannot have sent all of it
            assert eventually(lambda: made.poll() is not None)
        return received(*arguments)

    def ask() -> None:
        try:
            serving.ask(where, asked)
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(serving, "_bytes", once_stopped)
    reader = threading.Thread(target=ask)
    reader.start()
    assert begun.wait(60)
    start = time.monotonic()
    made.kill()
    made.wait()
    reader.join(60)
    assert time.monotonic() - start < serving.ASK_SECONDS / 2
    assert [type(error) for error in errors] in ([ConnectionError], [ConnectionResetError])
    with pytest.raises(ConnectionRefusedError):
        serving.ask(where, "ab")


def test_a_child_does_not_hold_the_socket_of_a_program_that_was_killed(program):
    made, (where, child) = program("fork")
    try:
        made.kill()
        made.wait()
        start = time.monotonic()
        with pytest.raises(ConnectionRefusedError):
            serving.ask(where, "ab")
        assert time.monotonic() - start < serving.ASK_SECONDS / 2
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_a_program_of_another_user_is_not_asked(program, monkeypatch):
    _, (where,) = program()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(PermissionError):
        serving.ask(where, "ab")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_gets_nothing(program):
    _, (where,) = program()
    assert answer_to(0, where) != b""
    assert answer_to(65534, where) == b""


def answer_to(user: int, where: str) -> bytes:
    """What a process of a user that asks for arrays is sent."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as program:
                program.settimeout(60)
                program.connect("\0" + where)
                try:
                    program.sendall(b"ab")
                    program.shutdown(socket.SHUT_WR)
                    os.write(into, program.recv(8))
                except (BrokenPipeError, ConnectionResetError):
                    pass  # it was refused before that
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(into)
    with open(out, "rb") as file:
        found = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return found
