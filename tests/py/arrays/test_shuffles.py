"""Rows that change places, as NumPy's and Python's shuffles do it: none is lost, none is there twice."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import cableway as cw

pytestmark = pytest.mark.filterwarnings("ignore:you are shuffling a 'Array' object:UserWarning")

RECORDS = np.zeros(9, [("a", "i4"), ("b", "f8")])
RECORDS["a"], RECORDS["b"] = np.arange(9), np.nan

ARRAYS = {
    "1-d": np.arange(9),
    "2-d": np.arange(18.0).reshape(9, 2),
    "3-d": np.arange(54).reshape(9, 3, 2),
    "Fortran order": np.asfortranarray(np.arange(18.0).reshape(9, 2)),
    "nan": np.full((9, 2), np.nan) * np.arange(9)[:, None],
    "structured": RECORDS,
    "structured, 2-d": np.stack([RECORDS, RECORDS], axis=1),
    "records": RECORDS.view(np.recarray),
    "bytes without fields": np.arange(9).view("V8"),
    "one row": np.arange(2).reshape(1, 2),
    "no row": np.zeros((0, 2)),
}
SHUFFLES = {
    "Generator": lambda x: np.random.default_rng(3).shuffle(x),
    "RandomState": lambda x: np.random.RandomState(3).shuffle(x),
    "numpy.random": lambda x: (np.random.seed(3), np.random.shuffle(x)),
    "random": lambda x: random.Random(3).shuffle(x),
}


def rows(x: Any) -> list[bytes]:
    return [np.asarray(row).tobytes() for row in x]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("kind", ARRAYS)
def test_a_shuffle_keeps_every_row_once(kind, shuffle):
    x = ARRAYS[kind]
    w = cw.put("shuffled", x)
    SHUFFLES[shuffle](w)
    found = rows(cw.get("shuffled").numpy())
    assert sorted(found) == sorted(rows(x))
    if len(x) > 1:
        expected = list(range(len(x)))
        SHUFFLES[shuffle](expected)  # a list is shuffled rightly by all of them
        assert found == [rows(x)[i] for i in expected]


def test_two_rows_change_places():
    w = cw.asarray(np.arange(6).reshape(3, 2))
    w[0], w[2] = w[2], w[0]
    assert w.tolist() == [[4, 5], [2, 3], [0, 1]]
    w[-1], w[0] = w[0], w[-1]
    assert w.tolist() == [[0, 1], [2, 3], [4, 5]]
    w[:, 0], w[:, 1] = w[:, 1], w[:, 0]
    assert w.tolist() == [[1, 0], [3, 2], [5, 4]]
    w[1], w[1] = w[1], w[1]
    assert w.tolist() == [[1, 0], [3, 2], [5, 4]]


def test_parts_that_differ_are_assigned_as_those_of_an_ndarray():
    x = np.arange(6).reshape(3, 2)
    w = cw.asarray(x)
    for y in x, w:
        y[:1], y[1:] = y[1:2], y[:1]  # one row is spread over two
    assert w.tolist() == x.tolist()
    x, w = RECORDS[:2].copy(), cw.asarray(RECORDS[:2])
    x["b"] = w["b"] = [2.5, 3.5]
    for y in x, w:
        y["a"], y["b"] = y["b"], y["a"]
    assert w.tolist() == x.tolist()


@pytest.mark.parametrize("kind", ["2-d", "structured"])
def test_a_row_that_was_taken_shows_what_is_assigned_to_it(kind):
    x, w = ARRAYS[kind].copy(), cw.asarray(ARRAYS[kind])

    def use(x: Any) -> None:
        source, target = x[1], x[0]
        x[0] = source
        assert np.asarray(target).tobytes() == np.asarray(source).tobytes()
        if kind == "2-d":
            target += 5  # not the second half of a swap any more
        else:
            target["a"] = 7
        x[1] = target
        last = x[2]
        for i in range(len(x)):
            if np.asarray(x[i]).tobytes() != np.asarray(last).tobytes():
                x[i] = last
        x[3] = x[4]

    use(x)
    use(w)
    assert rows(w.numpy()) == rows(x)


def test_rows_of_a_read_only_array_stay():
    for kind in ("2-d", "structured"):
        cw.put("kept", ARRAYS[kind])
        w = cw.get("kept", readonly=True)
        with pytest.raises(ValueError, match="read-only"):
            w[0], w[1] = w[1], w[0]
        assert rows(w.numpy()) == rows(ARRAYS[kind])
