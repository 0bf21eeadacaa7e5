"""Processes that may not use some system call, as in a container with a seccomp profile."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

PIDFD_OPEN, IO_URING_SETUP = 434, 425  # the same on every architecture

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]  # noqa: RUF012


def refusing(call: int, error: int) -> Callable[[], None]:
    """A preexec_fn: this process and its children get that errno for the system call."""
    words = b"".join(
        struct.pack("HBBI", *word)
        for word in (
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_EQUAL, 0, 1, call),
            (_RETURN, 0, 0, _ERRNO | error),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    text = ctypes.create_string_buffer(words, len(words))
    program = _Program(len(words) // 8, ctypes.addressof(text))
    libc = ctypes.CDLL(None, use_errno=True)

    def apply(_words: object = text) -> None:  # the program points to them
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
        if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp")

    return apply
