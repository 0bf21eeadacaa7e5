"""Array: what it tells, what it holds, its parts and its life."""

from __future__ import annotations

import copy
import gc
import signal
import sys
import threading
import warnings

import numpy as np
import pytest

import cableway as cw


def test_it_tells_what_numpy_would():
    x = np.arange(24, dtype="<i4").reshape(2, 3, 4)
    w = cw.asarray(x)
    for attribute in ("shape", "dtype", "strides", "ndim", "size", "nbytes", "itemsize"):
        assert getattr(w, attribute) == getattr(x, attribute), attribute
    assert len(w) == 2
    assert w.device == "cpu"
    assert w.name is None
    assert not w.readonly
    assert w.flags.c_contiguous and w.flags.writeable


def test_repr_tells_all():
    w = cw.put("a/b", np.zeros((2, 3), "f4"))
    for text in ("a/b", "(2, 3)", "float32", "(12, 4)", "ndim=2", "size=6", "nbytes=24", "cpu"):
        assert text in repr(w)
    assert "readonly" in repr(cw.get("a/b", readonly=True))
    w.close()
    assert "closed" in repr(w)


def test_numpy_never_copies():
    w = cw.zeros((3, 4))
    w.numpy()[1, 2] = 5
    assert np.shares_memory(w.numpy(), np.asarray(w))
    assert np.asarray(w)[1, 2] == 5
    assert np.asarray(w, dtype=w.dtype)[1, 2] == 5
    assert np.asarray(w, dtype="f4").dtype == np.float32
    assert not np.shares_memory(np.array(w), w.numpy())
    assert isinstance(np.add(w, 1), np.ndarray)
    assert (w.numpy() + w).sum() == 10


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="a class in Python has no buffers before 3.12"
)
def test_buffer_protocol():
    w = cw.asarray(np.arange(6, dtype="i2").reshape(2, 3))
    view = memoryview(w)
    assert view.shape == (2, 3) and view.format == "h" and not view.readonly
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    w.close()
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]
    cw.put("r", [1])
    assert memoryview(cw.get("r", readonly=True)).readonly
    with pytest.raises((BufferError, TypeError)):
        memoryview(cw.zeros(2, [("x", "i4")]))


def test_array_interface_keeps_the_memory_after_close():
    w = cw.asarray(np.arange(12).reshape(3, 4))[::-1, 1:]

    class Interface:
        __array_interface__ = w.__array_interface__

    view = np.asarray(Interface())
    assert np.shares_memory(view, w.numpy())
    w.close()
    del w, Interface
    gc.collect()
    cw.full(12, -1)
    assert view.tolist() == [[9, 10, 11], [5, 6, 7], [1, 2, 3]]


def test_views_outlive_close():
    with cw.put("x", np.arange(1000)) as w:
        view = w.numpy()[10:20]
        other = np.asarray(w)
    cw.remove("x")
    gc.collect()
    for _ in range(50):
        cw.full(1000, 7)
    assert view.tolist() == list(range(10, 20))
    assert other.sum() == 499500


def test_memory_is_used_again_when_the_last_view_is_gone():
    found = {cw.zeros(100_000).numpy().__array_interface__["data"][0] for _ in range(200)}
    assert len(found) <= 10


def test_closed_use_is_a_clear_error():
    w = cw.put("x", [1, 2])
    w.close()
    w.close()
    assert w.closed
    uses = [
        lambda: w.shape, lambda: w.dtype, lambda: w.nbytes, lambda: w.device, lambda: w.readonly, lambda: len(w),
        lambda: w.numpy(), lambda: w[0], lambda: w.copy(), lambda: w.to("cpu"), lambda: w.flags, lambda: w.T,
        lambda: w.__dlpack__(), lambda: w.__dlpack_device__(), lambda: w.__reduce__(), lambda: w.__enter__(),
        lambda: copy.copy(w), lambda: cw.put("y", w), lambda: w.copy_from([1, 2]), lambda: list(w), lambda: float(w),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(ValueError, match=r"closed.*(get|put)"):
            use()
    with pytest.raises(ValueError, match="closed"):
        w[0] = 1


@pytest.mark.parametrize(
    "key",
    [
        np.s_[1:2], np.s_[...], np.s_[0], np.s_[-1], np.s_[:, 1], np.s_[1, 2], np.s_[::-1], np.s_[::-2, ::-1, 1:],
        np.s_[None], np.s_[..., None], np.s_[:, None, ..., 0], np.s_[5:2], np.s_[1, 1, 1, ...], np.s_[()], np.s_[:, ::3],
        np.s_[np.int64(1)],
    ],
)  # fmt: skip
def test_basic_slices_are_handles_on_the_same_memory(key):
    x = np.arange(60).reshape(3, 4, 5)
    w = cw.asarray(x)
    part, expected = w[key], x[key]
    assert isinstance(part, cw.Array)
    assert part.shape == np.shape(expected)
    assert np.array_equal(part, expected)
    assert part.name is None
    part[...] = -1
    x[key] = -1
    assert np.array_equal(w, x)
    w.close()
    assert part.numpy().sum() == -part.size


def test_slices_of_slices():
    x = np.arange(1000).reshape(10, 10, 10)
    w = cw.asarray(x)
    assert np.array_equal(w[::-1][2:, 1:][..., ::-3], x[::-1][2:, 1:][..., ::-3])


def test_fields_are_handles_too():
    w = cw.zeros(4, [("x", "i4"), ("y", "f8")])
    w["y"][...] = 2.5
    assert w.numpy()["y"].tolist() == [2.5] * 4
    assert w["y"].strides == (12,)


@pytest.mark.parametrize(
    "key", [[0, 1], np.array([0]), np.array([True, False]), True, (0, [1]), np.True_, 1.5]
)
def test_advanced_indexing_is_numpys(key):
    x = np.arange(4.0).reshape(2, 2)
    w = cw.asarray(x)
    try:
        expected = x[key]
    except IndexError:
        with pytest.raises(IndexError):
            w[key]
        return
    found = w[key]
    assert type(found) is np.ndarray and np.array_equal(found, expected)
    assert not np.shares_memory(found, w.numpy())
    w[key] = x[key] = 7
    assert np.array_equal(w.numpy(), x)


def test_an_element_is_a_scalar_and_with_an_ellipsis_a_handle():
    w = cw.asarray(np.arange(6).reshape(2, 3))
    assert type(w[1, 2]) is np.int64 and w[1, 2] == 5
    part = w[1, 2, ...]
    part[...] = 9
    assert isinstance(part, cw.Array) and w[1, 2] == 9
    rows = cw.zeros(2, [("a", "i4"), ("b", "f8")])
    rows[0]["a"] = 3  # as in NumPy a view
    assert rows["a"].tolist() == [3, 0]


def test_index_errors_are_numpys():
    w = cw.zeros((2, 2))
    with pytest.raises(IndexError):
        w[2]
    with pytest.raises(IndexError):
        w[0, 0, 0]
    with pytest.raises(IndexError):
        w["x"]


def test_assignment():
    w = cw.zeros((2, 3))
    w[...] = np.arange(6).reshape(2, 3)
    w[0] = cw.asarray([7, 8, 9])
    w[1, ::2] = -1
    w[w.numpy() == 4] = 40
    assert w.numpy().tolist() == [[7, 8, 9], [-1, 40, -1]]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (0, 0)])
@pytest.mark.parametrize("dtype", ["f8", "S3", [("a", "i2")]])
def test_zero_size_and_0d(shape, dtype):
    x = np.zeros(shape, dtype)
    w = cw.put("z", x)
    found = cw.get("z")
    assert found.shape == shape and found.dtype == x.dtype and found.nbytes == x.nbytes
    assert np.array_equal(found.numpy(), x)
    assert np.asarray(found).shape == shape
    assert found.copy().shape == shape
    assert repr(found)
    if shape:
        assert len(found) == shape[0]
    else:
        w[...] = x
        with pytest.raises(TypeError):
            len(found)
        with pytest.raises(TypeError):
            iter(found)


def test_0d_is_a_number():
    w = cw.asarray(7)
    assert int(w) == 7 and float(w) == 7.0 and complex(w) == 7 and bool(w) and w.item() == 7
    assert [10, 11, 12][cw.asarray(1)] == 11
    with pytest.raises((TypeError, ValueError)):
        int(cw.zeros(3))


@pytest.mark.parametrize("order", ["C", "F"])
def test_order_is_kept(order):
    x = np.asarray(np.arange(24.0).reshape(2, 3, 4), order=order)
    w = cw.put("o", x)
    found = cw.get("o")
    assert found.strides == x.strides and np.array_equal(found, x)
    assert found.flags.f_contiguous == x.flags.f_contiguous
    assert w.copy().strides == x.strides
    assert cw.empty((2, 3), order=order).strides == np.empty((2, 3), order=order).strides
    assert cw.zeros((2, 3), order=order).flags.f_contiguous == (order == "F")


def test_other_orders_of_axes_are_kept_by_copies():
    x = np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2)
    assert cw.asarray(x).strides == x.copy(order="K").strides
    assert cw.asarray(x, order="C").flags.c_contiguous
    assert cw.asarray(x, order="F").flags.f_contiguous


def test_iteration_transpose_and_conversion():
    w = cw.asarray(np.arange(6).reshape(2, 3))
    assert [row.tolist() for row in w] == [[0, 1, 2], [3, 4, 5]]
    assert all(isinstance(row, cw.Array) for row in w)
    assert w.T.shape == (3, 2) and np.shares_memory(w.T.numpy(), w.numpy())
    assert w.to("cpu") is w


def test_copies():
    w = cw.put("x", np.arange(5))
    shallow, deep, own = copy.copy(w), copy.deepcopy(w), w.copy()
    w[0] = 9
    assert shallow.numpy()[0] == 9 and shallow.name == "x"
    assert deep.numpy()[0] == 0 and own.numpy()[0] == 0 and own.name is None
    w.close()
    assert shallow.numpy()[0] == 9
    twice = copy.deepcopy([deep, deep])
    assert twice[0] is twice[1]


def test_copy_from():
    w = cw.zeros((2, 2), "f4")
    assert w.copy_from([[1, 2], [3, 4]]) is w
    assert w.tolist() == [[1, 2], [3, 4]]
    w.copy_from(cw.full((2, 2), 9))
    assert w.tolist() == [[9, 9], [9, 9]]
    with pytest.raises(ValueError, match="shape"):
        w.copy_from([1, 2])
    with pytest.raises(TypeError):
        w.copy_from([[1j, 1], [1, 1]])


def test_readonly_cannot_be_written():
    cw.put("x", np.arange(4))
    w = cw.get("x", readonly=True)
    assert w.readonly and not w.flags.writeable
    with pytest.raises(ValueError):
        w[0] = 1
    with pytest.raises(ValueError):
        w.numpy().flags.writeable = True
    with pytest.raises(ValueError):
        np.asarray(w)[0] = 1
    with pytest.raises(ValueError):
        w.copy_from([1, 2, 3, 4])
    assert w[1:].readonly
    cw.get("x")[0] = 7
    assert w.numpy()[0] == 7


def test_a_forced_write_to_readonly_memory_is_a_sigsegv(script):
    cw.put("x", np.arange(4))
    done = script(
        """
        import ctypes, resource, cableway as cw
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        w = cw.get("x", readonly=True)
        print(w.numpy().sum(), flush=True)
        ctypes.memset(w.numpy().ctypes.data, 0, 1)
        """,
        check=False,
    )
    assert done.stdout == "6\n"
    # A sanitizer catches it first.
    assert done.returncode == -signal.SIGSEGV or "SEGV" in done.stderr
    assert cw.get("x").tolist() == [0, 1, 2, 3]


def test_equality_is_by_value_and_there_is_no_hash_as_of_an_ndarray():
    w = cw.zeros(2)
    v = copy.copy(w)
    assert (w == v).tolist() == [True, True] and (w != v).tolist() == [False, False]
    for one in (w, w.numpy()):
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)


def test_creation():
    assert cw.empty(3).dtype == np.float64 and cw.empty((2, np.int64(3)), "c16").shape == (2, 3)
    assert cw.zeros(1000, "i8").numpy().any() == np.False_
    assert cw.full((2,), 3).dtype == np.asarray(3).dtype
    assert cw.full((2,), 3, "f4").tolist() == [3.0, 3.0]
    assert cw.full((2, 2), [1, 2]).tolist() == [[1, 2], [1, 2]]
    assert cw.empty((2,), ("f4", (3,))).shape == (2, 3)
    assert cw.empty([2, 3]).shape == (2, 3)


def test_zeros_are_zeros_in_used_memory():
    for _ in range(5):
        cw.full(300_000, 255, "u1")
        gc.collect()
        assert not cw.zeros(300_000, "u1").numpy().any()


def test_asarray_copies_only_what_is_not_ours():
    w = cw.asarray(np.arange(6))
    assert cw.asarray(w) is w
    assert cw.asarray(w, "i8") is w
    assert cw.asarray(w, "f8") is not w and cw.asarray(w, "f8").dtype == np.float64
    part = cw.asarray(w.numpy()[1:4])
    part[0] = 50
    assert w.numpy()[1] == 50
    again = cw.asarray(np.asarray(w)[::-1])
    again[0] = 60
    assert w.numpy()[5] == 60
    assert not np.shares_memory(cw.asarray(w, copy=True).numpy(), w.numpy())
    assert cw.asarray(w.numpy(), copy=False).shape == (6,)
    with pytest.raises(ValueError, match="copy=False"):
        cw.asarray(np.arange(3), copy=False)
    with pytest.raises(ValueError, match="copy=False"):
        cw.asarray(w, "f4", copy=False)
    assert cw.asarray(np.arange(4.0), "i2").tolist() == [0, 1, 2, 3]


def test_it_cannot_be_made_by_hand():
    with pytest.raises(TypeError, match=r"cableway\.put"):
        cw.Array()


def test_devices():
    assert cw.devices()[0] == "cpu"
    cw.put("x", [1])
    assert cw.get("x", device="cpu").tolist() == [1]
    for use in (
        lambda: cw.get("x", device="cuda:0"), lambda: cw.empty(3, device="cuda"), lambda: cw.zeros(1).to("cuda:99"),
    ):  # fmt: skip
        with pytest.raises(cw.DeviceError, match="cpu"):
            use()
    with pytest.raises(ValueError, match="cuda:N"):
        cw.empty(3, device="gpu")
    with pytest.raises(TypeError):
        cw.empty(3, device=0)


def test_arrays_alike_keep_what_was_asked_for():
    plain, told = np.dtype("f8"), np.dtype("f8", metadata={"unit": "m"})
    loose, aligned = np.dtype("i4,f4"), np.dtype("i4,f4", align=True)
    assert plain == told and loose == aligned
    for _ in range(2):
        assert cw.empty(3, plain).dtype.metadata is None
        assert cw.empty(3, told).dtype.metadata == {"unit": "m"}
        assert not cw.empty(3, loose).dtype.isalignedstruct
        assert cw.empty(3, aligned).dtype.isalignedstruct
        assert [type(n) for n in cw.empty((True, np.int64(2))).shape] == [int, int]
        assert cw.empty((2, 3), "i2").strides == (6, 2)
        assert cw.empty((2, 3), "i2", order="F").strides == (2, 4)
        assert cw.empty([2, 3], ("i2", (2,))).shape == (2, 3, 2)
        for wrong in (3.0, (3.0,), (2.0, 3)):
            with pytest.raises(TypeError):
                cw.empty(wrong)
        with pytest.raises(ValueError, match="order"):
            cw.empty(3, order=["C"])
        with pytest.raises(ValueError, match="negative"):
            cw.empty(-3)
        with pytest.raises(ValueError, match="larger than any memory"):
            cw.empty((1 << 40, 1 << 40))


def test_one_layout_serves_many_threads():
    """All of them ask for its C form first, at once."""
    for n in range(1, 40):
        ready, found = threading.Barrier(4), []

        def ask(n=n, ready=ready, found=found):
            ready.wait()
            found.append(cw.zeros((n, 7), "i8").numpy().shape)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [(n, 7)] * 4


def test_work_on_an_array_that_was_closed_before_it_began_keeps_its_memory():
    x = cw.zeros(1 << 16, "u1")
    address = x.numpy().ctypes.data
    work = cw.work(reads=x)
    x.close()
    with work:
        assert cw.zeros(1 << 16, "u1").numpy().ctypes.data != address


STRUCT = [("a", "i4"), ("b", "f8")]
READ = [
    ([(1, 2.5), (3, 4.5)], STRUCT), ([300], "i1"), ([-1], "u1"), ([2**64 - 1, 0], "u8"), ([2**64 - 1, -1], "f8"),
    ([2**70], "f8"), ([None, 1.0], "f8"), ([float("nan")], "i4"), (["2020-01-01"], "M8[D]"), ([1, 2], "M8[s]"),
    ([1, "a"], "U4"), (["a", 1], "S3"), ([2**62 + 1, 0.5], "i8"), ([1 + 2j], "f8"), (["1", "x"], "i4"), (["True"], "?"),
    (["False"], "?"), ((1, 2.5), STRUCT), ([[1, 2], [3, 4]], "(2,)i4"), (["abc"], "S1"), (np.array(["a", "bb"], object), "U"),
    (np.array([1.5, None], object), "f8"), (["0.1"], "g"), (np.array([300]), "i1"), (range(3), "f4"), (7, "f4"),
]  # fmt: skip


def numpys(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = make()
        except Exception as error:
            return type(error)
    found = np.asarray(found)
    return found.dtype, found.shape, found.tolist()


@pytest.mark.parametrize(("obj", "dtype"), READ)
def test_asarray_reads_by_the_dtype_as_numpy_does(obj, dtype):
    assert repr(numpys(lambda: cw.asarray(obj, dtype))) == repr(
        numpys(lambda: np.asarray(obj, dtype))
    )


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (300, "i1"), (-1, "u1"), (float("nan"), "i4"), (1 + 2j, "f8"), ("x", "f8"), (2**70, "f8"), (None, "f8"),
        ((1, 2.5), STRUCT), ("2020-01-01", "M8[D]"), (0, "U3"), (1e300, "f4"), ("abc", "S2"), (7, None), ([1, 2], "i2"),
    ],
)  # fmt: skip
def test_full_converts_as_numpys(value, dtype):
    assert repr(numpys(lambda: cw.full(2, value, dtype))) == repr(
        numpys(lambda: np.full(2, value, dtype))
    )


@pytest.mark.parametrize(
    "shape", ["3", [3, 2], np.int64(3), np.array([2, 3]), np.array(3), range(2), 3.0, (2.0,), True, None, [], ()]
)  # fmt: skip
def test_a_shape_is_what_numpy_takes(shape):
    if shape is None:  # older NumPys take it for (), and say that it is deprecated
        assert numpys(lambda: cw.zeros(None)) is TypeError
        return
    assert numpys(lambda: cw.zeros(shape)) == numpys(lambda: np.zeros(shape))


def test_a_number_that_does_not_fit_is_an_error_in_copy_from_too():
    with pytest.raises(OverflowError):
        cw.zeros(1, "i1").copy_from([300])
    with pytest.raises(OverflowError):
        cw.zeros(1, "i1")[0] = 300
    assert cw.zeros(2, "i1").copy_from([1, -2]).tolist() == [1, -2]


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0), (0, 2**40, 2**40), (2**62,)])
def test_a_shape_that_ndarray_refuses_is_refused(shape):
    with pytest.raises(ValueError, match="too big|too large"):
        np.empty(shape)
    with pytest.raises(ValueError, match="larger than any memory"):
        cw.empty(shape)
    assert cw.empty((0, 2**59)).size == 0
