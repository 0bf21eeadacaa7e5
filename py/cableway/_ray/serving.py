"""The arrays of a program that is no actor, for readers that cannot map them: their broker died after they were told where the arrays lie.

Ray can ask actors alone. So a program that puts arrays into shared memory listens at a socket, which its metadata name.

Invariant: who asks gets the bytes that the arrays of an object have then, if the program has put it and still has a reference; only processes
of the same user get any, and take any.

Owner: the process, with a thread that listens, and another for each reader while that is served.

Deaths: the program: its kernel ends the socket, and readers have an error at once. A reader amid an answer: its thread ends, nobody else
notices. A reader that is stopped holds its thread for ASK_SECONDS. A forked child has none of it, and listens itself if it puts something.
The socket has an abstract name, so nothing remains in the file system. Another machine, or another network namespace, does not reach it.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["ASK_SECONDS", "address", "ask"]

logger = logging.getLogger("cableway.ray")

ASK_SECONDS = 60.0  # for which the other end is waited for
_MAX_REQUEST = 1024  # bytes; an object's id has 56
_NUMBER = struct.Struct("=q")
_CREDENTIALS = struct.Struct("=3i")  # process, user, group

_lock = threading.Lock()
_listening: socket.socket | None = None
_name = ""


def _after_fork_in_child() -> None:
    global _lock, _listening, _name
    if _listening is not None:
        _listening.close()
    _lock, _listening, _name = threading.Lock(), None, ""


os.register_at_fork(after_in_child=_after_fork_in_child)


def address(stored: Callable[[str], list[Any] | None]) -> str:
    """Where this process listens, from now on.

    Args:
        stored: the bytes of each array of an object; None: it is not there any more. Always the same function.

    Raises:
        OSError: no socket can be had.
        RuntimeError: no thread can be had.
    """
    global _listening, _name
    with _lock:
        if _listening is None:
            chosen = f"cableway-ray-{uuid.uuid4().hex}"
            made = socket.socket(socket.AF_UNIX)
            try:
                made.bind("\0" + chosen)
                made.listen(128)
                threading.Thread(
                    target=_listen, args=(made, stored), name="cableway.ray server", daemon=True
                ).start()
            except BaseException:
                made.close()
                raise
            _listening, _name = made, chosen
        return _name


def _listen(listening: socket.socket, stored: Callable[[str], list[Any] | None]) -> None:
    while True:
        try:
            reader = listening.accept()[0]
            threading.Thread(
                target=_answer, args=(reader, stored), name="cableway.ray answer", daemon=True
            ).start()
        except (OSError, RuntimeError) as error:  # no descriptor or no thread now
            logger.warning("a reader that asked for arrays got no answer: %s", error)
            threading.Event().wait(1)


def _answer(reader: socket.socket, stored: Callable[[str], list[Any] | None]) -> None:
    try:
        with reader:
            reader.settimeout(ASK_SECONDS)
            _check_user(reader)
            request = b""
            while len(request) <= _MAX_REQUEST and (more := reader.recv(_MAX_REQUEST)):
                request += more
            parts = stored(request.decode("ascii"))
            if parts is None:
                reader.sendall(_NUMBER.pack(-1))
                return
            reader.sendall(_NUMBER.pack(len(parts)))
            for part in parts:
                reader.sendall(_NUMBER.pack(part.nbytes))
                reader.sendall(memoryview(part))
    except Exception as error:  # the reader, whose connection ends, has an error itself
        logger.warning("a reader that asked for arrays got no answer: %s", error)


def ask(where: str, object_id: str) -> list[np.ndarray[Any, Any]] | None:
    """The bytes of each array of an object; None: the program has it no more.

    Args:
        where: an `address`.

    Raises:
        OSError: the program is gone, or lies on another machine, or does not answer.
    """
    with socket.socket(socket.AF_UNIX) as program:
        program.settimeout(ASK_SECONDS)
        program.connect("\0" + where)
        _check_user(program)
        program.sendall(object_id.encode("ascii"))
        program.shutdown(socket.SHUT_WR)
        count = _number(program)
        return None if count < 0 else [_bytes(program, _number(program)) for _ in range(count)]


def _check_user(other: socket.socket) -> None:
    raw = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(raw)[1]
    if user != os.geteuid():
        raise PermissionError(f"the process at the other end is of user {user}")


def _number(program: socket.socket) -> int:
    return int(_NUMBER.unpack(_bytes(program, _NUMBER.size).tobytes())[0])


def _bytes(program: socket.socket, count: int) -> np.ndarray[Any, Any]:
    found = np.empty(count, "u1")
    rest = found.data
    while rest:
        received = program.recv_into(rest)
        if not received:
            raise ConnectionError("it ended its connection amid an answer")
        rest = rest[received:]
    return found
