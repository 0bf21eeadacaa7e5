"""Properties, with random layouts, slices and dtypes: an Array is what NumPy has, seen from anywhere."""

from __future__ import annotations

import copy
import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cableway as cw
from cableway._core import dtypes, layouts

NUMBERS = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(endianness="?"), hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(), hnp.datetime64_dtypes(), hnp.byte_string_dtypes(min_len=1), hnp.unicode_string_dtypes(min_len=1),
)  # fmt: skip
SCALARS = NUMBERS
ANY = st.one_of(
    SCALARS,
    hnp.array_dtypes(SCALARS, allow_subarrays=True),
    hnp.nested_dtypes(SCALARS, max_leaves=6),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)


def filled(shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """Random bytes as an array (bools and text as zeros: not every byte is one)."""
    x = np.zeros(shape, dtype)
    if dtype.kind in "iufcV" and dtype.names is None and dtype.itemsize:
        x = np.random.default_rng(seed).integers(0, 100, x.shape).astype(dtype)
    return x


@st.composite
def arrays(draw, dtype=ANY):
    """Arrays in C, Fortran and odd orders of axes, some of them views with negative strides."""
    found = draw(dtype)
    base = found.base if found.subdtype else found
    x = filled(draw(SHAPES), base, draw(st.integers(0, 1000)))
    x = x.transpose(draw(st.permutations(range(x.ndim))))
    if draw(st.booleans()):
        x = x.copy(order=draw(st.sampled_from("CFK")))
    if x.ndim and draw(st.booleans()):
        x = x[draw(hnp.basic_indices(x.shape, allow_ellipsis=True))]
    return np.asarray(x)


def same(found, x) -> bool:
    """The same dtype, shape and elements."""
    y = np.asarray(found)
    return y.dtype == x.dtype and y.shape == x.shape and y.tobytes() == x.tobytes()


@given(ANY)
def test_dtypes_survive_text(dtype):
    dtype = dtype.base if dtype.subdtype else dtype
    text = dtypes.encode(dtype)
    assert dtypes.decode(text) == dtype
    assert text.isprintable() or "\\" in text


@given(st.text(max_size=60))
def test_any_text_is_a_dtype_or_an_error(text):
    try:
        found = dtypes.decode(text)
    except cw.Error:
        return
    assert not found.hasobject


@given(arrays())
def test_put_and_get(x):
    cw.put("x", x)
    found = cw.get("x")
    assert same(found, x)
    assert found.strides == layouts.like(x).strides
    assert (found.ndim, found.size, found.nbytes) == (x.ndim, x.size, x.nbytes)


@given(arrays())
def test_pickle_and_copies(x):
    w = cw.asarray(x)
    for found in (
        pickle.loads(pickle.dumps(w)),
        copy.copy(w),
        copy.deepcopy(w),
        w.copy(),
        w.T.T,
        w[...],
    ):
        assert same(found, x)


@given(st.data(), arrays(NUMBERS))
def test_slices_are_numpys(data, x):
    w = cw.asarray(x)
    for _ in range(2):
        key = data.draw(
            hnp.basic_indices(x.shape, allow_newaxis=True, allow_ellipsis=True, max_dims=8)
        )
        whole = key if isinstance(key, tuple) else (key,)
        if not any(part is Ellipsis for part in whole):
            whole += (...,)  # else one element is a scalar
        x, w = x[whole], w[whole]
        assert same(w, x)
        cw.put("part", w)
        assert same(cw.get("part"), x)
        assert same(pickle.loads(pickle.dumps(w)), x)


@given(SHAPES, st.sampled_from("CF"), NUMBERS)
def test_layouts_are_numpys(shape, order, dtype):
    x = np.zeros(shape, dtype, order=order)
    w = cw.zeros(shape, dtype, order=order)
    assert same(w, x)
    if x.size:
        assert w.strides == x.strides
    layout = layouts.Layout(x.shape, x.dtype, x.strides)
    assert (
        layout.is_contiguous("C") == x.flags.c_contiguous
        and layout.is_contiguous("F") == x.flags.f_contiguous
    )


@given(arrays(), st.sampled_from("CFAK"))
def test_orders_are_numpys(x, order):
    w = cw.asarray(x, order=order, copy=True)
    expected = np.array(x, order=order, copy=True)
    assert same(w, x)
    if x.size:
        assert np.asarray(w).flags.c_contiguous == expected.flags.c_contiguous
        assert np.asarray(w).flags.f_contiguous == expected.flags.f_contiguous


@given(
    st.integers(0, 40), st.integers(-50, 50), st.integers(-50, 50), st.integers(-5, 5).filter(bool)
)
def test_origin_and_span(n, start, stop, step):
    x = np.zeros(n, "i4")[start:stop:step]
    layout = layouts.Layout(x.shape, x.dtype, x.strides)
    assert layout.span == (0 if not x.size else (x.size - 1) * abs(step) * 4 + 4)
    assert layout.origin == (0 if not x.size or step > 0 else (x.size - 1) * -step * 4)
