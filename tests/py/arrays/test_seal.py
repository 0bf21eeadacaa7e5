"""Sealed arrays: nobody writes to their memory any more, by whatever name or handle they open it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import cableway as cw


def test_a_sealed_array_is_read_only_for_all() -> None:
    put = cw.put("sealed", np.arange(10), seal=True)
    assert put.readonly and put.tolist() == list(range(10))
    for found in (
        cw.get("sealed"),
        cw.put("another/name", cw.get("sealed")),
        pickle.loads(pickle.dumps(put)),
    ):
        assert found.readonly
        with pytest.raises(ValueError, match="read-only"):
            found.numpy()[0] = 1
    assert cw.get("sealed").sum() == 45


def test_an_array_that_is_not_sealed_is_not() -> None:
    for seal in (None, False):
        assert not cw.put("plain", np.zeros(10), seal=seal).readonly
        cw.get("plain").numpy()[0] = 1


def test_the_memory_of_a_sealed_array_is_sealed_under_all_its_names() -> None:
    first = cw.put("first", np.zeros((4, 4)))
    first.numpy()[1] = 5
    part = cw.put("part", first[1:3], seal=True)
    assert part.readonly and part.tolist() == [[5.0] * 4, [0.0] * 4]
    first.close()
    part.close()
    assert cw.get("first").readonly and cw.get("part").readonly


def test_what_cannot_be_sealed_is_said() -> None:
    with pytest.raises((ValueError, cw.RemoteError), match="sealed on another node|no peer"):
        cw.put("//elsewhere/x", np.zeros(10), seal=True)
    with pytest.raises(TypeError):
        cw.put("x", np.zeros(10), seal="yes")
