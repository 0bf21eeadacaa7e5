"""A signal whose handler raises as soon as a call of the library has made an array: nobody gets to know that array, and it
is not lost."""

from __future__ import annotations

import errno
import signal
import threading

import pytest
from cli_support import run_json
from interrupted import everywhere
from waiting import eventually

import cableway as cw
from cableway import array as arrays
from cableway import client, name
from cableway._core import leases, library
from cableway._core.leases import Lease, lease_again
from cableway._core.library import ffi, lib
from cableway._tree import swapping

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
    with cw.connect(namespace="made"):
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
        patch.setattr(leases, "lib", Late("cw_array_open"))
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
    made = lease_again(arrays.Lease, call, client.current().pointer, layout.c)
    assert made.span()[1] == NBYTES and len(asked) == 3


def test_what_holds_an_array_closes_it_once_and_takes_no_second_one():
    cw.put("x", [1, 2, 3], keep=True).close()
    lease, number = Lease(), client.current().number
    assert lease.cell.get(number, b"x", 0) == 0 and lease.cell.array()
    with pytest.raises(ValueError, match="holds nothing"):
        lease.cell.get(number, b"x", 0)
    assert holders_of("x") == 1
    for _ in range(2):
        lease.end()
        assert not lease.cell.array() and holders_of("x") == 0
    assert lease.cell.get(number, b"nobody has this", 0) == -errno.ENOENT
    assert not lease.cell.array()
    for wrong in ((), (number, "x", 0), (number, b"x", -1), ("x", b"x", 0), (number, b"x", 0, 0)):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            lease.cell.get(*wrong)
    assert lease.cell.get(number, b"x", 0) == 0
    del lease
    assert holders_of("x") == 0


def gauge(name: str) -> int:
    return run_json("status")["gauges"][name]


def test_an_interrupt_anywhere_leaves_no_new_array():
    with cw.connect(namespace="new"):  # nothing else comes and goes in its memory
        first = cw.empty(NBYTES, "u1")
        address = first.numpy().ctypes.data
        first.close()

        def is_free():
            assert cw.empty(NBYTES, "u1").numpy().ctypes.data == address

        assert everywhere(lambda: cw.empty(NBYTES, "u1"), is_free) > 100


def test_an_interrupt_anywhere_leaves_no_array_that_was_opened():
    kept = cw.put("x", [1, 2, 3], keep=True)
    function, arguments = kept.reduce(transit=False)
    kept.close()

    def is_free():
        assert holders_of("x") == 0

    assert everywhere(lambda: cw.get("x"), is_free) > 20
    assert everywhere(lambda: cw.get("x", timeout=5), is_free) > 20
    assert everywhere(lambda: function(*arguments), is_free) > 50


def test_an_interrupt_anywhere_leaves_no_array_of_an_item():
    sent = cw.put("x", [1, 2, 3], keep=True)
    queue = cw.Queue()

    def pass_on():
        queue.put(sent)
        queue.get(timeout=0)

    def is_free():
        while not queue.empty():
            queue.get()
        assert holders_of("x") == 1

    assert everywhere(pass_on, is_free, 3) > 50
    sent.close()
    assert holders_of("x") == 0


def test_an_interrupt_anywhere_leaves_no_connection(monkeypatch):
    assert client.current().pointer
    # Between the last instruction of a `with` and the call that ends it a signal's handler never runs, but an exception is raised
    # here: the lock stays with this thread then, and threads of the tests behind this one would wait for it.
    monkeypatch.setattr(client, "_lock", threading.RLock())
    before = gauge("clients")

    def connect():
        client.Connection((None, "another")).close()

    everywhere(connect, lambda: None)
    assert eventually(lambda: gauge("clients") == before)


def test_the_transit_of_a_handle_that_was_just_made_ends(monkeypatch):
    array, before = cw.put("x", [1, 2, 3], keep=True), gauge("transits")
    with monkeypatch.context() as patch:
        patch.setattr(library, "lib", Late("cw_array_export"))
        with pytest.raises(KeyboardInterrupt):
            array.handle()
    assert eventually(lambda: gauge("transits") == before)


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.parametrize(
    ("call", "of", "wait"),
    [
        ("cw_wait", name, lambda timeout: cw.wait("never", timeout)),
        ("cw_wait", name, lambda timeout: cw.get("never", timeout)),
        ("cw_wait_after", swapping, lambda timeout: cw.wait("never", timeout, after=3)),
        ("cw_wait_after", swapping, lambda timeout: cw.get("never", timeout, swappable=True)),
    ],
)
def test_a_long_wait_is_many_calls_between_which_handlers_run(monkeypatch, call, of, wait, timeout):
    """A signal that comes just before a call sleeps does not end that, but the wait ends with the call."""
    asked = []

    class Library:
        def __getattr__(self, attribute):
            return self.times_out if attribute == call else getattr(lib, attribute)

        def times_out(self, *arguments):
            asked.append(arguments[-1])
            if len(asked) == 5:
                raise KeyboardInterrupt  # as a handler does
            return -errno.ETIMEDOUT

    cw.names()
    monkeypatch.setattr(of, "lib", Library())
    with pytest.raises(KeyboardInterrupt):
        wait(timeout)
    assert len(asked) == 5 and all(0 < left <= 500_000_000 for left in asked)
