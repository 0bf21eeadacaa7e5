"""Operators of an Array give what an ndarray's give, to the bit: by its fast ways, its refusals and its deference."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import cableway as cw

BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift", "lt", "le",
    "gt", "ge", "eq", "ne",
)  # fmt: skip
IN_PLACE = (
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor", "ilshift", "irshift",
)  # fmt: skip
UNARY = ("neg", "pos", "abs", "invert")
VALUES: dict[str, Any] = {
    "bool": np.array([True, False]),
    "i4": np.array([3, -2], "i4"),
    "u1": np.array([3, 250], "u1"),
    "f2": np.array([-0.0, 65000.0], "f2"),
    "f4": np.array([-0.0, 0.1], "f4"),
    "f8": np.array([-0.0, -np.inf]),
    "g": np.array([0.1, 1e300], "g"),
    "c16": np.array([0.1 + 3j, -0.0]),
    "2-d": np.array([[0.1, 2], [3, 1e200]]),
    "text": np.array(["a", "b"]),
    "M8": np.array(["2020-01-01", "NaT"], "M8[D]"),
    "fields": np.zeros(2, [("a", "i4")]),
    "0-d": np.array(2.0),
}
OTHERS: dict[str, Any] = {
    **VALUES,
    **{repr(x): x for x in (2, 0.5, -1, 0, 1.0, 2j, True, 2**40, "a", [1, 2], [[1, 2], [3, 4]], np.float32(0.5))},
}  # fmt: skip

quiet = pytest.mark.filterwarnings("ignore")


def told(call: Any, *given: Any) -> Any:
    """What a call does, so that two can be compared to the bit."""
    try:
        found = call(*given)
    except Exception as error:
        return type(error)
    parts = found if isinstance(found, tuple) else (found,)
    return [
        (type(part), getattr(part, "dtype", None), getattr(part, "shape", None), repr(np.asarray(part).tolist()))
        if isinstance(part, (np.ndarray, np.generic)) else part
        for part in parts
    ]  # fmt: skip


@quiet
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("kind", VALUES)
def test_an_operator_gives_what_an_ndarrays_gives(kind, name):
    x, do = VALUES[kind], getattr(operator, name)
    w = cw.asarray(x)
    for told_as, other in OTHERS.items():
        assert told(do, w, other) == told(do, x, other), told_as
        if not (name == "pow" and isinstance(other, np.ndarray) and not x.shape):
            # There an ndarray on the left decides alone, and NumPy before 2.4 has a faster way for 0-d ndarrays.
            assert told(do, other, w) == told(do, other, x), told_as
    for told_as, other in VALUES.items():
        both = cw.asarray(other)
        assert told(do, w, both) == told(do, x, other), told_as


@quiet
@pytest.mark.parametrize("kind", VALUES)
def test_divmod_and_unary_operators_give_what_an_ndarrays_give(kind):
    x = VALUES[kind]
    w = cw.asarray(x)
    for name in UNARY:
        do = getattr(operator, name)
        assert told(do, w) == told(do, x), name
    for other in (2, 0.5, x):
        assert told(divmod, w, other) == told(divmod, x, other)
        assert told(divmod, other, w) == told(divmod, other, x)


@quiet
@pytest.mark.parametrize(
    ("kind", "name"),
    # Not text times a number: before 2.4 NumPy writes beyond the array there, also beyond an ndarray.
    [(kind, name) for kind in VALUES for name in IN_PLACE if (kind, name) != ("text", "imul")],
)
def test_an_operator_in_place_writes_what_an_ndarrays_writes_and_refuses_what_it_refuses(
    kind, name
):
    do = getattr(operator, name)
    for told_as, other in OTHERS.items():
        x = VALUES[kind].copy()
        w = cw.asarray(x)
        expected, found = told(do, x, other), told(do, w, other)
        assert repr(w.tolist()) == repr(x.tolist()), told_as
        if isinstance(expected, list):
            assert found[0] is w, told_as
        else:
            assert found is expected, told_as


class Mine:
    """Says how it is computed with."""

    def __radd__(self, other: Any) -> str:
        return f"radd {type(other).__name__}"

    def __rmatmul__(self, other: Any) -> str:
        return f"rmatmul {type(other).__name__}"

    def __lt__(self, other: Any) -> str:
        return f"lt {type(other).__name__}"


class Refuses(Mine):
    __array_ufunc__ = None


class First(Mine):
    __array_priority__ = 100


@pytest.mark.parametrize("kind", [Refuses, First, Mine])
def test_what_an_ndarray_leaves_to_the_other_side_is_left_to_it(kind):
    x, other = np.arange(2.0), kind()
    w = cw.asarray(x)
    for do in (operator.add, operator.matmul, operator.gt, operator.iadd):
        assert told(do, w, other) == told(do, x.copy(), other), do
    assert w.tolist() == [0, 1]


@pytest.mark.parametrize("form", ["csr_matrix", "csr_array", "coo_matrix"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "matmul", "eq", "lt"])
def test_sparse_matrices_compute_with_it_as_with_an_ndarray(form, name):
    sparse = pytest.importorskip("scipy.sparse")
    do, x = getattr(operator, name), np.arange(9.0).reshape(3, 3)
    a, w = getattr(sparse, form)([[0, 1, 0], [2, 0, 0], [0, 0, 3]]), cw.asarray(x)

    def dense(call: Any) -> Any:
        found = call()
        return (
            type(found),
            (found.toarray() if sparse.issparse(found) else np.asarray(found)).tolist(),
        )

    assert dense(lambda: do(w, a)) == dense(lambda: do(x, a))
    assert dense(lambda: do(a, w)) == dense(lambda: do(a, x))
