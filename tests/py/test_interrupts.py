"""A signal whose handler raises as soon as a call of the library has made an array: nobody gets to know that array, and it
is not lost."""

from __future__ import annotations

import errno
import signal

import pytest

import causeway as cw
from causeway import array as arrays
from causeway import client, name
from causeway._lib import ffi, lib, make_again

NBYTES = 1 << 16


class Late:
    """The library, where the signal comes when one of its calls has been made, and before Python goes on."""

    def __init__(self, call: str) -> None:
        self._call = call

    def __getattr__(self, attribute):
        real = getattr(lib, attribute)

        def call(*arguments):
            status = real(*arguments)
            signal.raise_signal(signal.SIGINT)
            return status

        return call if attribute == self._call else real


def holders_of(what: str) -> int:
    info = ffi.new("cw_name_info *")
    assert lib.cw_name_stat(client.current().pointer, what.encode(), info) == 0
    return info.holders


def test_an_array_that_was_just_made_goes(monkeypatch):
    first = cw.empty(NBYTES, "u1")
    address = first.numpy().ctypes.data
    first.close()
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "lib", Late("cw_array_new"))
        with pytest.raises(KeyboardInterrupt):
            cw.empty(NBYTES, "u1")
    assert cw.empty(NBYTES, "u1").numpy().ctypes.data == address


def test_an_array_that_was_just_opened_goes(monkeypatch):
    kept = cw.put("x", [1, 2, 3], keep=True)
    function, arguments = kept.reduce(transit=False)
    kept.close()
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "lib", Late("cw_array_open"))
        with pytest.raises(KeyboardInterrupt):
            function(*arguments)
    assert holders_of("x") == 0
    assert function(*arguments).numpy().tolist() == [1, 2, 3]


def test_an_array_that_was_just_got_goes(monkeypatch):
    cw.put("x", [1, 2, 3], keep=True).close()
    with monkeypatch.context() as patch:
        patch.setattr(name, "lib", Late("cw_get_within"))
        with pytest.raises(KeyboardInterrupt):
            name._get_later("x", b"x", 0, None, -errno.EINTR)
    assert holders_of("x") == 0


def test_a_handler_that_raises_nothing_lets_the_call_go_on():
    asked = []

    def call(connection, layout, out):
        asked.append(out[0])
        return (
            -errno.EINTR if len(asked) < 3 else lib.cw_array_new(connection, b"cpu", layout, 0, out)
        )

    layout = cw.empty(NBYTES, "u1")._layout_now()
    made = arrays.Lease(make_again(call, client.current().pointer, layout.c))
    assert made.span()[1] == NBYTES and len(asked) == 3
