"""Handles as bytes: what they lead to, for how many, and what an error tells."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import run_json
from conftest import disconnect, stop_broker
from hypothesis import given
from hypothesis import strategies as st
from interrupted import everywhere
from test_properties import arrays, same
from waiting import eventually

import cableway as cw


def is_stale(handle: bytes) -> bool:
    try:
        cw.from_handle(handle)
    except cw.Stale:
        return True
    return False


OPEN = """
    import base64, sys
    import cableway as cw
    a = cw.from_handle(base64.b64decode(sys.argv[1]))
    print(a.dtype, a.shape, a.strides, a.readonly, a[...].sum())
    if not a.readonly:
        a[0] = 77
"""


def text(handle: bytes) -> str:
    return base64.b64encode(handle).decode()


def test_another_process_sees_the_same_memory(script: Any) -> None:
    w = cw.asarray(np.arange(12.0).reshape(3, 4))
    done = script(OPEN, text(cw.to_handle(w[:, 1])))
    assert done.stdout == "float64 (3,) (32,) False 15.0\n"
    assert w[0, 1] == 77
    kept = cw.put("kept", w)
    read_only = cw.get("kept", readonly=True)
    done = script(OPEN, text(cw.to_handle(read_only)))
    assert done.stdout.split()[-2] == "True"
    assert kept.shape == (3, 4)
    assert cw.from_handle(cw.to_handle(w.numpy()[1:])).tolist() == w[1:].tolist()  # a view of one


def test_the_sender_lets_go_and_each_of_several_opens_it(script: Any) -> None:
    handle = cw.to_handle(cw.asarray(np.arange(4.0)), openers=4)
    for expected in ("6.0", "83.0", "83.0"):
        assert script(OPEN, text(handle)).stdout.split()[-1] == expected
    assert cw.from_handle(bytearray(handle)).tolist() == [77, 1, 2, 3]
    assert eventually(lambda: is_stale(handle))
    with pytest.raises(
        cw.Stale, match=r"made [\d.]+ s ago for 4 openers.*transit_seconds.*openers=n"
    ):
        cw.from_handle(memoryview(handle))


def test_an_opener_too_many_is_well_as_long_as_somebody_holds_it() -> None:
    w = cw.asarray([1.0])
    handle = cw.to_handle(w)
    assert [cw.from_handle(handle).item() for _ in range(5)] == [1.0] * 5
    del w
    assert eventually(lambda: is_stale(handle))


@given(arrays(), st.integers(1, 4))
def test_any_array_comes_back_the_same(x: np.ndarray, openers: int) -> None:
    handle = cw.to_handle(cw.asarray(x), openers=openers)
    for _ in range(openers):
        assert same(cw.from_handle(handle), x)


@given(arrays(), st.data())
def test_damage_is_an_error_and_loses_nothing(x: np.ndarray, data: Any) -> None:
    handle = cw.to_handle(cw.asarray(x))
    damaged = bytearray(handle)
    at = data.draw(st.integers(0, len(handle) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    for bad in (bytes(damaged), handle[:at], handle + b"x"):
        with pytest.raises(cw.Error):
            cw.from_handle(bad)
    assert same(cw.from_handle(handle), x)


@given(st.binary(max_size=400))
def test_any_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(cw.Error):
        cw.from_handle(data)


@pytest.mark.parametrize(
    ("a", "openers", "error", "sentence"),
    [
        (cw.zeros, 0, ValueError, "for 0 openers .* 1 to 65536"),
        (cw.zeros, 65537, ValueError, "for 65537 openers .* 1 to 65536"),
        (cw.zeros, -1, ValueError, "for -1 openers"),
        (cw.zeros, True, TypeError, "openers is a number, not bool"),
        (cw.zeros, "2", TypeError, "openers is a number, not str"),
        (np.zeros, 1, TypeError, r"not ndarray: copy it first, cw.asarray\(x\)"),
        (lambda n: {"a": cw.zeros(n)}, 1, TypeError, "not dict"),
        (lambda n: cw.put("tree", {"a": cw.zeros(n)}), 0, ValueError, "for 0 openers"),
    ],
)
def test_bad_arguments_are_told(a: Any, openers: Any, error: Any, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        cw.to_handle(a(3), openers=openers)


def test_a_handle_of_another_node_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with cw.connect(namespace="ours"):
        handle = cw.to_handle(cw.zeros(3), openers=2)
    assert cw.from_handle(handle).shape == (3,)  # a namespace is for names alone
    node = socket.gethostname()
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    with pytest.raises(
        cw.Error, match=f"of node '{node}' .namespace 'ours'.*'elsewhere'.*//{node}/NAME"
    ):
        cw.from_handle(handle)


def test_a_handle_leads_to_another_broker_of_ours_and_to_nobody_elses(
    tmp_path: Path, script: Any
) -> None:
    other = tmp_path / "other"
    other.mkdir(0o700)
    made = script(
        """
        import base64, cableway as cw
        print(base64.b64encode(cw.to_handle(cw.asarray([1.5, 2.5]), openers=2)).decode())
        """,
        env={**os.environ, "CABLEWAY_DIR": str(other)},
    )
    handle = base64.b64decode(made.stdout)
    try:
        assert cw.from_handle(handle).tolist() == [1.5, 2.5]
        disconnect()
        other.chmod(0o755)  # others could have put it there
        with pytest.raises(cw.Error, match=f"{other}"):
            cw.from_handle(handle)
    finally:
        other.chmod(0o700)
        stop_broker(other)
    with pytest.raises(cw.Stale, match="no broker runs at"):
        cw.from_handle(handle)


def test_a_broker_that_was_started_again_has_forgotten_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path))
    disconnect()
    try:
        handle = cw.to_handle(cw.zeros(3))
        disconnect()
        stop_broker(tmp_path)
        cw.names()
        with pytest.raises(cw.Stale, match="started again"):
            cw.from_handle(handle)
    finally:
        disconnect()
        stop_broker(tmp_path)


KILLED = """
    import base64, os, signal, sys
    import cableway as cw
    kept = cw.from_handle(base64.b64decode(sys.argv[1]))
    print(kept.tolist(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_deaths_of_maker_and_openers_take_it_from_nobody(script: Any) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", "import sys, base64, cableway as cw\n"
         "print(base64.b64encode(cw.to_handle(cw.asarray([1, 2]), openers=3)).decode(), flush=True)\n"
         "sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert maker.stdout is not None
    line = maker.stdout.readline()
    maker.kill()
    maker.communicate()
    for _ in range(2):
        done = script(KILLED, line.strip(), check=False)
        assert done.returncode == -signal.SIGKILL and done.stdout == "[1, 2]\n"
    assert cw.from_handle(base64.b64decode(line)).tolist() == [1, 2]
    assert eventually(lambda: is_stale(base64.b64decode(line)))


def test_fewer_openers_than_said_end_it_at_its_limit(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CABLEWAY_TRANSIT_SECONDS", "1")
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path))
    disconnect()
    try:
        handle = cw.to_handle(cw.zeros(3), openers=5)
        assert cw.from_handle(handle).shape == (3,)
        assert eventually(lambda: is_stale(handle))
        with pytest.raises(cw.Stale, match=r"at most 1 s \(transit_seconds\)"):
            cw.from_handle(handle)
    finally:
        disconnect()
        stop_broker(tmp_path)


def transits() -> int:
    return int(run_json("status")["gauges"]["transits"])


def test_an_interrupt_anywhere_leaves_no_array_under_way() -> None:
    w = cw.zeros(3)
    made: list[bytes] = []
    before = transits()

    def open_what_was_made() -> None:
        while made:
            cw.from_handle(made.pop())

    assert everywhere(lambda: made.append(cw.to_handle(w)), open_what_was_made) > 50
    # One that was returned, and lost on the way to its caller, ends at its limit: nobody can know of it.
    assert eventually(lambda: transits() <= before + 1), (before, transits())


def test_no_more_than_the_limit_are_under_way_and_pickles_make_room(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CABLEWAY_MAX_CLIENT_TRANSITS", "20")
    monkeypatch.setenv("CABLEWAY_DIR", str(tmp_path))
    disconnect()
    try:
        w = cw.zeros(3)
        for _ in range(50):
            pickle.dumps(w)
        handles = [cw.to_handle(w) for _ in range(20)]
        with pytest.raises(cw.LimitExceeded, match=r"max_client_transits"):
            cw.to_handle(w)
        cw.from_handle(handles.pop())
        assert eventually(lambda: cw.to_handle(w) is not None)
        for handle in handles:
            assert cw.from_handle(handle).shape == (3,)
    finally:
        disconnect()
        stop_broker(tmp_path)


def test_a_tree_goes_as_its_version_though_its_name_is_gone(script: Any) -> None:
    tree = cw.put("model", {"w": np.arange(4.0), "b": np.ones(2, "f4")})
    handle = cw.to_handle(tree, openers=2)
    cw.put("model", {"w": np.zeros(4), "b": np.zeros(2, "f4")})
    cw.remove("model")
    tree.close()
    del tree
    done = script(
        """
        import base64, sys, cableway as cw
        tree = cw.from_handle(base64.b64decode(sys.argv[1]))
        print(type(tree).__name__, {path: leaf.tolist() for path, leaf in tree.items()})
        """,
        text(handle),
    )
    assert done.stdout == "Tree {'w': [0.0, 1.0, 2.0, 3.0], 'b': [1.0, 1.0]}\n"
    kept = cw.from_handle(handle)
    assert kept["w"].tolist() == [0, 1, 2, 3]
    kept.close()
    del kept
    assert eventually(lambda: is_stale(handle))
    with pytest.raises(cw.Stale, match="the tree behind this handle"):
        cw.from_handle(handle)
