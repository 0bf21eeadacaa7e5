"""What people write for an ndarray does the same for an Array in host memory, and raises for one on a GPU."""

from __future__ import annotations

import collections
import math
import numbers
import operator
import pickle
from typing import Any

import numpy as np
import pytest

import cableway as cw


def pd() -> Any:
    return pytest.importorskip("pandas")


def pl() -> Any:
    return pytest.importorskip("polars")


IDIOMS = {
    "2 in x": lambda x: 2 in x,
    "5 in x": lambda x: 5 in x,
    "np.count_nonzero(x == 2)": lambda x: np.count_nonzero(x == 2),
    "np.where(x == 2)[0]": lambda x: np.where(x == 2)[0],
    "x == 2": lambda x: x == 2,
    "x == np.int64(2)": lambda x: x == np.int64(2),
    "x != 2": lambda x: x != 2,
    "x[1] == 2": lambda x: bool(x[1] == 2),
    "[i for i in x if i == 2]": lambda x: len([i for i in x if i == 2]),
    "len(set(x))": lambda x: len(set(x)),
    "Counter(x)": lambda x: collections.Counter(x).most_common(1)[0][1],
    "x[1] in {1, 2, 3}": lambda x: x[1] in {1, 2, 3},
    "{...}.get(x[1])": lambda x: {1: "a", 2: "b"}.get(x[1]),
    "Series.isin(x)": lambda x: pd().Series([1, 5]).isin(x).tolist(),
    "df[df.k.isin(x)]": lambda x: len(pd().DataFrame({"k": [1, 2, 9]})[lambda d: d.k.isin(x)]),
    "Series.map(dict(zip(x, ...)))": lambda x: (
        pd().Series([1, 3]).map(dict(zip(x, "abcd", strict=True))).tolist()
    ),
    "pd.Index.isin(x)": lambda x: pd().Index([1, 2]).isin(x).tolist(),
    "pd.Series(x).isin": lambda x: pd().Series(x).isin([2]).tolist(),
    "np.isin(x, [2])": lambda x: np.isin(x, [2]).tolist(),
    "pd.unique(x)": lambda x: len(pd().unique(x)),
    "Series.replace(list(x))": lambda x: (
        pd().DataFrame({"k": [1, 2, 9]}).k.replace(list(x), 0).tolist()
    ),
    "x == an ndarray": lambda x: (x == np.array([1, 2, 3, 4])).tolist(),
    "an ndarray == x": lambda x: (np.array([1, 2, 3, 4]) == x).tolist(),
    "x == a list": lambda x: x == [1, 2, 3, 2],
    "list(x) == [...]": lambda x: list(x) == [1, 2, 3, 2],
    "if x[0] == 1": lambda x: "yes" if x[0] == 1 else "no",
    "range(10)[x[1]]": lambda x: range(10)[x[1]],
    "f'{x[1]}'": lambda x: f"{x[1]}",
    "round(float(x[1]))": lambda x: round(float(x[1])),
    "math.isnan(x[1])": lambda x: math.isnan(x[1]),
    "isinstance(x[1], Number)": lambda x: isinstance(x[1], numbers.Number),
    "x[1] > 1": lambda x: x[1] > 1,
    "str.join": lambda x: ",".join(map(str, x)),
    "x + 1": lambda x: x + 1,
    "1 - x": lambda x: 1 - x,
    "x @ x": lambda x: x @ x,
    "-x": lambda x: -x,
    "x & 1": lambda x: x & 1,
    "divmod(x, 2)": lambda x: divmod(x, 2),
    "x[x > 1]": lambda x: x[x > 1],
    "x[[0, 2]]": lambda x: x[[0, 2]],
    "x[x]": lambda x: x[x[:1]],
    "x.sum()": lambda x: x.sum(),
    "x.mean(axis=0)": lambda x: x.mean(axis=0),
    "x.reshape(2, 2)": lambda x: x.reshape(2, 2),
    "x.astype('f4')": lambda x: x.astype("f4"),
    "x.real": lambda x: x.real,
    "np.sqrt(x)": lambda x: np.sqrt(x),
    "np.add.reduce(x)": lambda x: np.add.reduce(x),
    "np.add.outer(x, x)": lambda x: np.add.outer(x, x),
    "np.concatenate([x, x])": lambda x: np.concatenate([x, x]),
    "np.sum(x, where=x > 1)": lambda x: np.sum(x, where=x > 1),
    "np.median(x)": lambda x: np.median(x),
    "np.zeros_like(x)": lambda x: np.zeros_like(x),
    "np.modf(x / 2)": lambda x: np.modf(x / 2),
    "reversed(x)": lambda x: list(reversed(x)),
    "sorted(x)": lambda x: sorted(x),
    "max(x)": lambda x: max(x),
    "x is not hashable": lambda x: hash(x),
    "bool(x)": lambda x: bool(x),
    "x == 'text'": lambda x: x == "text",
    "x[9]": lambda x: x[9],
    "df[mask]": lambda x: pd().DataFrame({"k": [1, 2, 9, 4]})[x > 1].k.tolist(),
    "groupby(x)": lambda x: pd().DataFrame({"k": [1, 2, 9, 4]}).groupby(x).k.sum().tolist(),
    "pa.array(x)": lambda x: pytest.importorskip("pyarrow").array(x).to_pylist(),
    "pd.factorize(x)": lambda x: pd().factorize(x)[0].tolist(),
    "df.set_index(x)": lambda x: pd().DataFrame({"k": [1, 2, 9, 4]}).set_index(x).loc[3].k,
    "df.merge(left_on=x)": lambda x: len(
        pd().DataFrame({"v": range(4)}).merge(pd().DataFrame({"k": [1]}), left_on=x, right_on="k")
    ),
    "bytes(x)": bytes,
    "bytes(x.reshape(2, 2))": lambda x: bytes(x[:].reshape(2, 2)),
    "del x[0]": lambda x: operator.delitem(x, 0),
    "f'{x[0, ...]:.2f}'": lambda x: f"{x[0, ...]:.2f}",
    "f'{x:.2f}'": lambda x: f"{x:.2f}",
    "x.byteswap()": lambda x: x.byteswap(),
    "x.dumps()": lambda x: pickle.loads(x.dumps()),
    "x.ctypes.shape": lambda x: list(x.ctypes.shape),
    "x.data": lambda x: x.data.tolist(),
    "x.base = x": lambda x: setattr(x, "base", x),
    "x.getfield('i4')": lambda x: x.getfield("i4"),
    "x.__array_namespace__()": lambda x: x.__array_namespace__(),
    "pl.Series(x)": lambda x: pl().Series("a", x).to_list(),
    "pl.Series(x).name, dtype": lambda x: str(pl().Series("a", x, dtype=pl().Float32)),
    "pl.DataFrame({...: x})": lambda x: pl().DataFrame({"a": x}).rows(),
}

# These ask whether it is an ndarray by its class. They refuse it aloud; give them x.numpy().
BY_CLASS = {
    "pd.unique(x)", "pd.factorize(x)", "groupby(x)", "df.set_index(x)", "df.merge(left_on=x)", "pl.Series(x)",
    "pl.Series(x).name, dtype", "pl.DataFrame({...: x})",
}  # fmt: skip


def answer(idiom: Any, x: Any) -> tuple[str, Any]:
    try:
        found = idiom(x)
    except Exception as error:
        return type(error).__name__, None
    return type(found).__name__, found


@pytest.mark.parametrize("idiom", IDIOMS)
def test_an_idiom_does_what_it_does_with_an_ndarray(idiom):
    x = np.array([1, 2, 3, 2])
    expected, found = answer(IDIOMS[idiom], x), answer(IDIOMS[idiom], cw.asarray(x))
    if idiom in BY_CLASS and found[0] in ("KeyError", "TypeError", "ValueError"):
        found = answer(IDIOMS[idiom], cw.asarray(x).numpy())
    assert expected[0] == found[0]
    np.testing.assert_equal(found[1], expected[1])


def test_what_writes_writes_to_the_memory():
    w = cw.put("written", np.arange(4.0))
    same = w
    w += 1
    w *= 2
    assert w is same and cw.get("written").tolist() == [2, 4, 6, 8]
    assert np.add(w, 1, out=w) is w and np.sqrt(w, w) is w
    assert np.array_equal(cw.get("written").numpy(), np.sqrt([3.0, 5.0, 7.0, 9.0]))
    total = cw.zeros(())
    assert np.sum(w, out=total) is total and w.sum(out=total) is total and total.item() == w.sum()
    first, second = cw.zeros(4), cw.zeros(4)
    found = np.modf(w, out=(first, second))
    assert found[0] is first and found[1] is second and second[0] == 1
    np.copyto(w, [4, 3, 2, 1])
    np.add.at(w, [0, 0], 1)
    w.sort()
    np.put(w, 0, -1)
    w[w > 3] = cw.zeros(())
    assert cw.get("written").tolist() == [-1, 2, 3, 0]
    with pytest.raises(ValueError, match="read-only"):
        w = cw.get("written", readonly=True)
        w += 1
    with pytest.raises(TypeError):  # the casting is NumPy's
        whole = cw.zeros(2, "i4")
        whole += 0.5


def test_what_bytes_are_made_of_are_the_elements_bytes():
    assert bytes(cw.asarray([1, 2])) == np.array([1, 2]).tobytes()  # not b"\\1\\2"
    assert bytes(cw.asarray(np.zeros(2, "i4,f8"))) == bytes(24)
    assert bytes(cw.asarray(5)) == np.array(5).tobytes()
    assert f"{cw.asarray(1.5)}".startswith("<cableway.Array")


def test_mt_is_a_handle_on_the_same_memory():
    w = cw.asarray(np.arange(24).reshape(2, 3, 4))
    assert isinstance(w.mT, cw.Array) and np.shares_memory(w.mT.numpy(), w.numpy())
    assert np.array_equal(w.mT.numpy(), w.numpy().swapaxes(1, 2))
    with pytest.raises(ValueError, match="ndim < 2"):
        cw.zeros(3).mT  # noqa: B018
    assert w.to_device("cpu") is w and w.base is not None
    with pytest.raises(AttributeError):
        w.data = w


def test_comparisons_beside_pickle_and_closed_arrays():
    w = cw.put("compared", [1, 2])
    assert (pickle.loads(pickle.dumps(w)) == w).all()
    w.close()
    for use in (
        lambda: w == 1,
        lambda: 1 in w,
        lambda: w.sum(),
        lambda: np.add(w, 1),
        lambda: w[w],
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_scikit_learn_takes_it_as_it_takes_an_ndarray():
    selection = pytest.importorskip("sklearn.model_selection")
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = np.arange(40.0).reshape(20, 2) % 7, np.arange(20) % 2
    expected = selection.train_test_split(x, y, random_state=0)
    found = selection.train_test_split(cw.asarray(x), cw.asarray(y), random_state=0)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is np.ndarray and np.array_equal(one, other)
    model = linear.LogisticRegression().fit(cw.asarray(x), cw.asarray(y))
    assert np.array_equal(
        model.predict(cw.asarray(x)), linear.LogisticRegression().fit(x, y).predict(x)
    )
    assert selection.cross_val_score(model, cw.asarray(x), cw.asarray(y)).tolist() == (
        selection.cross_val_score(model, x, y).tolist()
    )
