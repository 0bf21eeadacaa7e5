"""What put() takes as it is, and what it refuses rather than lose a part of it."""

from __future__ import annotations

import ctypes
import pickle

import numpy as np
import pytest

import cableway as cw

VIEWS = {
    "a slice": lambda w, n: n[2:],
    "as_strided": lambda w, n: np.lib.stride_tricks.as_strided(n, (5, 5), (8, 8)),
    "sliding_window_view": lambda w, n: np.lib.stride_tricks.sliding_window_view(n.reshape(-1), 10),
    "broadcast_to": lambda w, n: np.broadcast_to(n, (3, 10, 100)),
    "broadcast_arrays": lambda w, n: np.broadcast_arrays(n, np.ones((10, 100)))[0],
    "from_dlpack of an Array": lambda w, n: np.from_dlpack(w),
    "from_dlpack of a view": lambda w, n: np.from_dlpack(n),
    "frombuffer": lambda w, n: np.frombuffer(n),
    "a memoryview": lambda w, n: memoryview(n),
    "ctypeslib": lambda w, n: np.ctypeslib.as_array(np.ctypeslib.as_ctypes(n)),
    "ctypes.from_address": lambda w, n: np.ctypeslib.as_array(
        (ctypes.c_double * 1000).from_address(n.ctypes.data)
    ),
    "an object with __array_interface__": lambda w, n: type(
        "Other", (), {"__array_interface__": {**n.__array_interface__, "strides": None}}
    )(),
    "a part of another view": lambda w, n: np.from_dlpack(w)[3:, ::-2],
    "Arrow": lambda w, n: np.frombuffer(pytest.importorskip("pyarrow").py_buffer(n)),
    "Arrow's array": lambda w, n: pytest.importorskip("pyarrow").array(n[0]).to_numpy(),
    "pandas": lambda w, n: pytest.importorskip("pandas").DataFrame(n, copy=False).to_numpy(),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_of_ours_is_named_without_a_copy(kind):
    w = cw.put("whole", np.arange(1000.0).reshape(10, 100))
    n = w.numpy()
    view = VIEWS[kind](w, n)
    found = cw.put("view", view)
    assert np.shares_memory(found.numpy(), n)
    assert np.array_equal(found.numpy(), np.asarray(view))
    n[...] = 7
    assert (cw.get("view").numpy() == 7).all()


def test_what_broadcast_to_made_is_read_only_in_every_process(script):
    w = cw.asarray(np.arange(10.0))
    found = cw.put("broadcast", np.broadcast_to(w.numpy(), (3, 10)))
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 5
    with pytest.raises(ValueError, match="read-only"):
        found += 1
    with pytest.raises(ValueError, match="read-only"):
        found.copy_from(np.ones((3, 10)))
    assert found.readonly and not found.flags.writeable and w.flags.writeable
    for view in (np.asarray(found), found.T.numpy(), found[:2].numpy()):
        assert not view.flags.writeable and view.base is not None
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":  # before, it asks for what cannot say so
        assert not np.from_dlpack(found).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        found.__dlpack__()
    assert np.asarray(found.__array_interface__["data"]).flags.writeable is False
    assert pickle.loads(pickle.dumps(found)).readonly
    assert cw.put("one", w.numpy()[None, :]).flags.writeable  # each element is there once
    assert cw.zeros(3, "V0").flags.writeable and cw.zeros((3, 0)).flags.writeable
    done = script("""
        import cableway as cw
        found = cw.get("broadcast")
        print(found.readonly, found.numpy().flags.writeable, found.copy().numpy().flags.writeable)
        """)
    assert done.stdout == "True False True\n"
    assert w.tolist() == list(range(10))


def test_a_view_that_reaches_beyond_its_array_is_copied():
    both = cw.zeros((2, 1000))
    first = both[0]
    first.numpy()
    outside = np.ctypeslib.as_array(
        (ctypes.c_double * 10).from_address(both.numpy().ctypes.data + 8 * 1995)
    )
    assert not np.shares_memory(cw.put("outside", outside).numpy(), both.numpy())


def test_a_view_of_an_array_that_is_closed_is_copied():
    w = cw.zeros(100_000)
    other = (ctypes.c_double * 10)()
    view = np.ctypeslib.as_array(other)
    w.numpy()
    w.close()
    assert not np.shares_memory(cw.put("copied", view).numpy(), view)


def _named_in_a_task(x: np.ndarray) -> bool:
    view = np.ctypeslib.as_array((ctypes.c_double * x.size).from_address(x.ctypes.data))
    return np.shares_memory(cw.put("argument", view).numpy(), x)


def test_an_argument_of_a_task_whose_memory_is_used_again_is_copied_when_it_is_named():
    with cw.Pool(1) as pool:
        for value in range(3):
            assert pool.apply(_named_in_a_task, (np.full(100_000, float(value)),)) is False
            assert (cw.get("argument").numpy() == value).all()


MASKED = np.ma.masked_greater(np.array([1.0, 2.0, 9999.0]), 100)


@pytest.mark.parametrize(
    "take",
    [
        lambda: cw.put("masked", MASKED),
        lambda: cw.asarray(MASKED),
        lambda: cw.asarray(MASKED, "f4", copy=True),
        lambda: cw.zeros(3).copy_from(MASKED),
        lambda: cw.In(MASKED),
    ],
)
def test_a_masked_array_is_refused_with_the_remedy(take):
    with pytest.raises(TypeError, match=r"mask.*filled\(\)"):
        take()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (None, "no array .* of None"),
        ({1, 2}, r"no array .* of this set; .*a list"),
        ((x for x in "a"), r"no array .* of this generator; .*a list"),
        (object(), r"no array .* of this object; .*Pool"),
        (len, r"no array .* of this builtin_function_or_method"),
    ],
)
def test_what_is_no_array_is_refused_by_what_it_is(what, says):
    for take in (
        lambda: cw.put("none", what),
        lambda: cw.asarray(what),
        lambda: cw.asarray(what, object),
    ):
        with pytest.raises(TypeError, match=says):
            take()


def test_a_dict_is_no_array_but_what_put_makes_a_tree_of():
    with pytest.raises(TypeError, match=r"no array .* of this dict; cableway\.put\(name, it\)"):
        cw.asarray({"a": 1})


def test_a_sparse_matrix_is_refused_with_the_remedy():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"no array .* of this csr_matrix; .*indptr.*toarray"):
        cw.put("sparse", sparse.csr_matrix([[0, 1], [2, 0]]))


def test_an_array_of_objects_is_refused_as_such():
    for what in (np.array([None, {}]), np.array(None), [None, 1]):
        with pytest.raises(TypeError, match="holds Python objects"):
            cw.put("objects", what)


def test_a_masked_array_of_which_nothing_is_masked_is_taken():
    assert cw.put("unmasked", np.ma.masked_array([1.0, 2.0])).tolist() == [1, 2]


def test_elements_of_a_record_array_are_records_in_every_process(script):
    records = np.rec.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")])
    nested = np.zeros(2, [("r", records.dtype, (2,)), ("n", "i2")])
    assert cw.put("records", records).numpy()[0].a == 1
    cw.put("nested", nested)
    for dtype in (records.dtype, nested.dtype):
        found = cw.zeros(2, dtype)
        assert repr(pickle.loads(pickle.dumps(found)).dtype) == repr(dtype)
    done = script(
        """
        import cableway as cw, numpy as np
        found = cw.get("records").numpy()
        print(found[1].a, found.view(np.recarray).b.tolist(), repr(found.dtype))
        print(cw.get("nested")["r"][0, 0, ...].numpy()[()].b, repr(cw.get("nested").dtype))
        """
    )
    assert done.stdout == (f"3 [2.5, 4.5] {records.dtype!r}\n0.0 {nested.dtype!r}\n")


def test_an_ordinary_put_does_not_import_what_only_masked_arrays_need(script):
    done = script(
        """
        import sys, numpy as np, cableway as cw
        cw.put("plain", np.zeros(3)).copy_from([1, 2, 3])
        print("numpy.ma" in sys.modules)
        """
    )
    assert done.stdout == "False\n"
