"""The dtypes of machine learning as arguments and results of tasks, in queues, constants, and joblib's batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtype_tasks as tasks
import ml_dtypes
import numpy as np
import pytest

import cableway as cw
from cableway._core import words

NUMBERS = [
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip
WORDS = [*NUMBERS, "float4_e2m1fn_x2", "int4_x2", "uint4_x2", "complex32"]
# The plain fast path takes the smallest, a pickle the next, a block the largest.
SIZES = [3, 5000, 300_000]


@pytest.fixture(scope="module")
def pool() -> Iterator[cw.Pool]:
    with cw.Pool(2) as made:
        yield made


def values_of(word: str, size: int) -> np.ndarray[Any, Any]:
    return (np.arange(size) % 4 + 1).astype(getattr(ml_dtypes, word))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("word", NUMBERS)
def test_an_ndarray_of_ml_dtypes_goes_to_a_task_and_back(
    pool: cw.Pool, word: str, size: int
) -> None:
    x = values_of(word, size)
    assert pool.apply(tasks.told, (x,)) == ("ndarray", word, x.tobytes())
    assert pool.map(tasks.told, [x, x]) == [("ndarray", word, x.tobytes())] * 2
    for back in (
        pool.apply(tasks.same, (x,)),
        pool.map(tasks.same, [[x]])[0][0],
        pool.apply(tasks.same, (x[::2],)),
    ):
        assert back.dtype == x.dtype and back.flags.writeable
        assert (back == x[:: 2 if len(back) < size else 1]).all()
    scalar = pool.apply(tasks.same, (x[0],))
    assert type(scalar) is getattr(ml_dtypes, word) and scalar == x[0]


@pytest.mark.parametrize("word", WORDS)
def test_an_array_keeps_its_dtype_in_a_task(pool: cw.Pool, word: str) -> None:
    w = cw.zeros((3, 8), word)
    w.numpy().view("u1")[...] = np.arange(w.nbytes, dtype="u1").reshape(3, -1)
    expected = ("Array", word, w.tobytes())
    assert pool.apply(tasks.told, (w,)) == pool.apply(tasks.told, (cw.In(w),)) == expected
    assert pool.apply(tasks.told, (cw.InOut(w),)) == expected
    assert w.tobytes() == expected[2]
    assert pool.map(tasks.told, [w[1:], w.T]) == [
        ("Array", word, w[1:].tobytes()), ("Array", word, w.T.tobytes()),
    ]  # fmt: skip
    back = pool.apply(tasks.same, (w,))
    assert f" dtype={word} " in repr(back) and back.tobytes() == w.tobytes()
    out = cw.zeros(w.shape, word)
    assert pool.apply(tasks.told, (cw.Out(out),))[:2] == ("Array", word)


@pytest.mark.parametrize("word", NUMBERS[:2])
def test_a_result_comes_back_into_an_ndarray_of_ml_dtypes(pool: cw.Pool, word: str) -> None:
    x = values_of(word, 5000)
    expected = x.astype("f4") * 2
    pool.apply(tasks.double, (cw.InOut(x),))
    assert (x.astype("f4") == expected).all()
    part = values_of(word, 40).reshape(8, 5)[::2, ::-1]
    expected = part.astype("f4") * 2
    pool.apply(tasks.double, (cw.InOut(part),))
    assert (part.astype("f4") == expected).all()


@pytest.mark.parametrize("word", WORDS)
def test_an_item_of_a_queue_keeps_its_dtype(word: str) -> None:
    queue = cw.Queue()
    w = cw.zeros((3, 8), word)
    for item in (w, [w], {"w": w[1:]}):
        queue.put(item)
        found = queue.get(timeout=10)
        found = found if item is w else found[0] if isinstance(found, list) else found["w"]
        assert f" dtype={word} " in repr(found)
    if word in NUMBERS:
        for size in SIZES:
            x = values_of(word, size)
            queue.put(x)
            found = queue.get(timeout=10)
            assert found.dtype == x.dtype and (found == x).all()


@pytest.mark.parametrize("word", NUMBERS)
def test_an_array_in_a_constant_is_one_memory_for_all(pool: cw.Pool, word: str) -> None:
    x = values_of(word, 300_000)
    with cw.constant(x) as constant:
        assert pool.apply(tasks.told, (constant,)) == ("ndarray", word, x.tobytes())
        assert pool.apply(tasks.writeable, (constant,)) == (word, False)
        assert constant.nbytes < x.nbytes + 4096
        assert np.shares_memory(constant.value, constant._now().memory)
    with cw.constant({"t": x.reshape(-1, 2).T, "w": cw.asarray(x)}) as constant:
        assert (constant.value["t"] == x.reshape(-1, 2).T).all()
        assert f" dtype={word} " in repr(constant.value["w"])


def test_batches_of_joblib_share_such_arrays() -> None:
    import joblib

    import cableway.joblib

    x = values_of("bfloat16", 300_000)
    try:
        with joblib.parallel_config("cableway", n_jobs=2):
            found = joblib.Parallel()(joblib.delayed(tasks.told)(x) for _ in range(4))
        assert found == [("ndarray", "bfloat16", x.tobytes())] * 4
    finally:
        cableway.joblib.shutdown()


def test_words_of_messages_are_words() -> None:
    """What a message says of a dtype is the word, and not what this process has for it."""
    from cableway._pool.devices.fast_path import described_dtype

    for word in WORDS:
        dtype = words.of_word(word)
        assert dtype is not None and described_dtype(dtype) == word
        assert words.word(words.dtype_of(described_dtype(dtype))) == word
