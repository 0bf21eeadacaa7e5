"""The dtypes of machine learning keep their names: in and out of NumPy and DLPack, by name, by pickle, with ml_dtypes and
without it.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cableway as cw
from cableway import _dlpack
from cableway._core import dtypes, words

NUMBERS = [
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip
PAIRS = ["float4_e2m1fn_x2", "int4_x2", "uint4_x2"]
WORDS = [*NUMBERS, *PAIRS, "complex32"]
# As DLPack's header has them: code, bits, lanes.
DLPACK = {
    "bfloat16": (4, 16, 1), "float8_e4m3fn": (10, 8, 1), "float8_e4m3fnuz": (11, 8, 1), "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1), "float8_e8m0fnu": (14, 8, 1), "float4_e2m1fn_x2": (17, 4, 2), "int4_x2": (0, 4, 2),
    "uint4_x2": (1, 4, 2), "complex32": (5, 32, 1),
}  # fmt: skip


def raw(w: cw.Array) -> np.ndarray:
    """The bytes of an array."""
    return np.frombuffer(w.tobytes(), "u1")


def made(word: str, shape: tuple[int, ...] = (2, 3)) -> cw.Array:
    """An array of that dtype with different bytes."""
    w = cw.empty(shape, word)
    w.numpy().view("u1")[...] = np.arange(w.nbytes, dtype="u1").reshape(shape[:-1] + (-1,))
    return w


class Tensor:
    """A tensor of PyTorch's in host memory: DLPack, a dtype by name, and no way to NumPy."""

    class dtype:  # noqa: N801
        __module__ = "torch"

        def __init__(self, name: str) -> None:
            self.name = name

        def __str__(self) -> str:
            return f"torch.{self.name}"

    def __init__(
        self, values: np.ndarray, name: str, told: tuple[int, int, int], flags: int = 0
    ) -> None:
        self.values, self.told, self.flags = values, told, flags
        self._dtype = Tensor.dtype(name)

    def __getattribute__(self, key: str) -> Any:
        return object.__getattribute__(self, "_dtype" if key == "dtype" else key)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Got unsupported ScalarType")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def view(self, _: object) -> Tensor:
        """As unsigned bytes."""
        return Tensor(self.values.view("u1"), "uint8", (1, 8, 1), self.flags)

    def __dlpack__(self, **_: Any) -> object:
        v = self.values
        steps = tuple(step // v.itemsize for step in v.strides)
        address = v.__array_interface__["data"][0]
        return _dlpack.capsule(self, address, (1, 0), v.shape, steps, *self.told, self.flags, True)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of that name that has a dtype."""
    module = type(sys)("torch")
    module.uint8 = Tensor.dtype("uint8")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def in_another_process(program: str, *, without_ml_dtypes: bool = False) -> str:
    begin = "import sys, numpy as np, cableway as cw\n"
    if without_ml_dtypes:
        begin = "import sys\nsys.modules['ml_dtypes'] = None\n" + begin
    command = [sys.executable, "-c", begin + textwrap.dedent(program)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("word", WORDS)
def test_a_dtype_keeps_its_name_on_every_way(word: str) -> None:
    w = cw.put("w", made(word))
    for found in (w, cw.get("w"), cw.get("w", readonly=True), pickle.loads(pickle.dumps(w)), copy.copy(w),
                  copy.deepcopy(w), w.copy(), w[1:], w.T, w[..., 0], w.to("cpu"), cw.asarray(w),
                  cw.asarray(w, copy=True), cw.asarray(w, word), cw.asarray(w, order="F")):  # fmt: skip
        assert words.word(found.dtype) == word, found
        assert f" dtype={word} " in repr(found)
    assert (raw(w.copy()) == raw(w)).all() and (raw(cw.get("w")) == np.arange(w.nbytes)).all()
    told = in_another_process("print(repr(cw.get('w')), cw.get('w').tobytes())")
    assert f" dtype={word} " in told and str(w.tobytes()) in told


@pytest.mark.parametrize("word", WORDS)
def test_dlpack_tells_it_as_its_header_does(word: str) -> None:
    w = made(word)
    address, device, shape, steps, *told, flags = _dlpack.look(w.__dlpack__(max_version=(1, 1)))
    assert (device, shape, steps, flags) == ((1, 0), (2, 3), (3, 1), 0)
    assert tuple(told) == DLPACK[word]
    assert address == w.numpy().__array_interface__["data"][0]
    assert (
        tuple(_dlpack.look(w.__dlpack__())[4:7]) == DLPACK[word]
    )  # also to who is older than DLPack 1
    row = words.of_dlpack(*DLPACK[word])
    assert row is not None and words.word(words.of_row(row)) == row.dtype == word


@pytest.mark.parametrize("word", NUMBERS)
def test_numpy_has_the_dtype_of_ml_dtypes(word: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, word))
    values = np.array([1, 2, 4], "f4").astype(dtype)
    for w in (cw.put("x", values), cw.asarray(values), cw.asarray([1, 2, 4], word), cw.asarray([1.0, 2, 4], dtype),
              cw.asarray(np.array([1, 2, 4], "i8"), dtype.type), cw.empty(3, word).copy_from([1.0, 2.0, 4.0])):  # fmt: skip
        assert w.dtype == dtype and w.numpy().dtype == dtype and np.asarray(w).dtype == dtype
        assert w.numpy().astype("f4").tolist() == [1, 2, 4]
    w = cw.full((2, 2), 4, word)
    assert w.numpy().astype("f4").tolist() == [[4, 4], [4, 4]]
    w[0] = 2
    w[1, 1] = values[0]
    assert w.numpy().astype("f4").tolist() == [[2, 2], [4, 1]]
    assert (w + w).dtype == dtype and float(w[0, 0]) == 2
    assert np.shares_memory(cw.asarray(w.numpy()).numpy(), w.numpy())
    assert np.asarray(w, "f4").dtype == np.float32
    assert cw.asarray(w, "f4").numpy().tolist() == [[2, 2], [4, 1]]
    assert not raw(cw.zeros(3, word)).any() and cw.zeros(3, dtype.type).dtype == dtype


def test_no_consumer_is_told_a_void() -> None:
    """`__array_interface__` and a buffer would say `|V2`: who looks there goes on to `__array__`."""
    w = made("bfloat16")
    assert not hasattr(w, "__array_interface__") and not hasattr(w, "__cuda_array_interface__")
    if sys.version_info >= (3, 12):
        with pytest.raises(BufferError):
            memoryview(w)
    assert np.asarray(w).dtype == ml_dtypes.bfloat16
    assert not hasattr(w, "__cupy_get_ndarray__")


@pytest.mark.parametrize("word", PAIRS)
def test_two_numbers_in_a_byte_are_bytes_to_numpy(word: str) -> None:
    w = made(word)
    assert w.shape == (2, 3) and w.itemsize == 1 and w.numpy().dtype == np.uint8
    assert w[1:].numpy().tolist() == [[3, 4, 5]]
    values = np.arange(4, dtype="u1")
    as_word = cw.asarray(values, word)
    assert words.word(as_word.dtype) == word and as_word.numpy().tolist() == [0, 1, 2, 3]
    as_bytes = cw.asarray(as_word, "u1")
    as_bytes[0] = 9
    assert as_bytes.dtype == np.uint8 and as_word.numpy()[0] == 9  # the same memory
    assert words.word(cw.asarray(as_bytes, word, copy=False).dtype) == word
    assert words.word(cw.asarray([1, 2], word).dtype) == word
    assert cw.full(3, 0x21, word).numpy().tolist() == [0x21] * 3
    assert cw.empty(4, word).copy_from(values).numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(TypeError, match=f"cannot convert float64 to {word}"):
        cw.empty(2, word).copy_from([1.5, 2.5])
    with pytest.raises(TypeError, match="cannot convert"):
        cw.asarray(np.array([1.5, 2]), word)


@pytest.mark.parametrize("word", [*WORDS, "float32"])
def test_a_tensor_of_pytorch_comes_in_by_its_dtype(word: str, torch: Any) -> None:
    name = word.removesuffix("_x2") if word.startswith(("int4", "uint4")) else word
    # PyTorch tells its int4 as int8.
    told = {"int4_x2": (0, 8, 1), "uint4_x2": (1, 8, 1), "float32": (2, 32, 1)}.get(word) or DLPACK[
        word
    ]
    dtype = np.dtype("f4") if word == "float32" else words.raw(words.of_word(word))
    values = np.arange(24, dtype="u1").view(dtype)
    tensor = Tensor(values, name, told)
    if word == "float32":
        assert cw.empty(3, tensor.dtype).dtype == np.float32
        return
    for w in (
        cw.put("t", tensor),
        cw.asarray(tensor),
        cw.asarray(tensor, word),
        cw.asarray(tensor, tensor.dtype),
    ):
        assert words.word(w.dtype) == word and w.shape == values.shape
        assert (raw(w) == np.arange(24)).all()
    assert words.word(cw.empty(3, tensor.dtype).dtype) == word
    w = cw.zeros(values.shape, word)
    w[...] = tensor
    assert (raw(w) == np.arange(24)).all()
    w = cw.zeros(values.shape, word).copy_from(tensor)
    assert (raw(w) == np.arange(24)).all()
    part = Tensor(values[::2], name, told)
    assert raw(cw.asarray(part)).tobytes() == np.ascontiguousarray(values[::2]).tobytes()
    ours = cw.asarray(tensor)
    again = Tensor(ours.numpy(), name, told)
    assert np.shares_memory(cw.asarray(again).numpy(), ours.numpy())  # memory of ours is not copied
    assert not cw.In(Tensor(values, name, told, flags=1)).array.flags.writeable


def test_a_dtype_that_nobody_could_read_is_refused_with_what_to_do(torch: Any) -> None:
    for kind in (ml_dtypes.int4, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e3m4):
        with pytest.raises(TypeError, match=r"share array.view\('u1'\)"):
            cw.put("x", np.zeros(3, kind))
    with pytest.raises(TypeError, match="cannot be described to another process"):
        cw.put("x", np.zeros(3, [("a", ml_dtypes.bfloat16)]))
    with pytest.raises(TypeError, match="cannot be described to another process"):
        cw.put("x", np.zeros(3, [("a", made("int4_x2").dtype)]))
    with pytest.raises(TypeError, match="no dtype for torch.quint8"):
        cw.empty(3, Tensor.dtype("quint8"))
    with pytest.raises(TypeError, match="code 8, 8 bits, 1 lanes"):
        cw.asarray(Tensor(np.zeros(3, "u1"), "bfloat16", (8, 8, 1)))
    with pytest.raises(TypeError):
        cw.empty(3, "bfloat17")
    with pytest.raises(TypeError, match="no DLPack capsule"):
        _dlpack.look(object())


@pytest.mark.parametrize("word", [*NUMBERS, "complex32"])
def test_without_ml_dtypes_it_is_a_void_that_knows_its_name(word: str) -> None:
    cw.put("w", made(word))
    told = in_another_process(
        f"""
        import pickle
        w = cw.get("w")
        assert " dtype={word} " in repr(w), w
        x = w.numpy()
        assert x.dtype.kind == "V" and dict(x.dtype.metadata) == {{"cableway.dtype": "{word}"}}
        assert " dtype={word} " in repr(cw.asarray(x)) and " dtype={word} " in repr(cw.put("v", x))
        assert " dtype={word} " in repr(cw.asarray(x, copy=True)[1:])
        assert " dtype={word} " in repr(pickle.loads(pickle.dumps(w)))
        assert not cw.zeros(3, "{word}").tobytes().strip(bytes(1))
        c = cw.empty(w.shape, "{word}")
        c[...] = w
        assert c.tobytes() == w.tobytes() and np.asarray(w).dtype.metadata
        for act in (lambda: cw.full(3, 1.5, "{word}"), lambda: cw.asarray([1.5], "{word}"), lambda: c.copy_from(np.ones(c.shape)),
                    lambda: c.__setitem__(..., np.ones(c.shape)), lambda: c.__setitem__((0, 0), 1.5), lambda: cw.asarray(w, "f4"),
                    lambda: np.asarray(w, "f4"), lambda: w.astype("f4"), lambda: cw.zeros(c.shape).copy_from(w)):
            try:
                act()
            except TypeError as error:
                assert "cannot convert" in str(error) and "{word}" in str(error), error
                print(error)
            else:
                raise AssertionError("numbers were converted")
        assert c.tobytes() == w.tobytes()
        """,
        without_ml_dtypes=True,
    )
    assert ("pip install 'cableway[ml]'" in told) == (word != "complex32")
    assert words.word(cw.get("v").dtype) == word


def test_equal_voids_of_two_names_stay_two() -> None:
    """NumPy finds dtypes equal that differ in their metadata alone: nothing that is remembered by a dtype may mix them."""
    a, b = made("int4_x2"), made("uint4_x2")
    assert a.dtype == b.dtype  # to NumPy
    for w, word in ((a, "int4_x2"), (b, "uint4_x2"), (a, "int4_x2")):
        assert tuple(_dlpack.look(w.__dlpack__())[4:7]) == DLPACK[word]
        assert words.word(cw.empty((2, 3), w.dtype).dtype) == word
    with pytest.raises(TypeError, match="cannot convert uint4_x2 to int4_x2"):
        a.copy_from(b)
    with pytest.raises(ValueError, match="dtypes int4_x2 and uint4_x2"):
        cw.copy([(a, b)])
    a0, b0 = a[0], b[0]
    a[0] = a[1]
    assert words.word(a0.dtype) == "int4_x2" and words.word(b0.dtype) == "uint4_x2"


def test_a_hash_is_of_the_contents_and_the_dtype() -> None:
    import joblib

    values = np.arange(6).reshape(2, 3)
    w = cw.asarray(values, "bfloat16")
    assert (
        joblib.hash(w) == joblib.hash(w.copy()) != joblib.hash(cw.asarray(values + 1, "bfloat16"))
    )
    assert w.__dask_tokenize__() == w.copy().__dask_tokenize__()
    hashes = {
        word: (joblib.hash(made(word)), made(word).__dask_tokenize__())
        for word in WORDS
        if word not in ("bfloat16", "complex32")
    }
    assert (
        len({one for one, _ in hashes.values()})
        == len({one for _, one in hashes.values()})
        == len(hashes)
    )
    program = f"""
    import joblib
    w = cw.get("w")
    print(joblib.hash(w) == {joblib.hash(w)!r} and w.__dask_tokenize__() == {w.__dask_tokenize__()!r})
    """
    cw.put("w", w)
    for without in (False, True):
        assert in_another_process(program, without_ml_dtypes=without) == "True\n"


def test_the_text_of_every_row_of_the_table_is_read_back() -> None:
    for row in words._ROWS.values():
        dtype = dtypes.decode(row.dtype)
        assert dtypes.encode(dtype) == row.dtype and dtype.itemsize == row.size_bytes
        assert words.row(dtype) == row
        if row.ml_dtypes:
            assert dtype == np.dtype(getattr(ml_dtypes, row.ml_dtypes))


def test_a_shared_memory_can_be_seen_so() -> None:
    from multiprocessing.shared_memory import SharedMemory

    memory = SharedMemory(create=True, size=64)
    try:
        w = cw.asarray(memory, "bfloat16", shape=(4,))
        w[...] = [1, 2, 3, 4]
        assert bytes(memory.buf[:8]) == np.arange(1, 5).astype(ml_dtypes.bfloat16).tobytes()
    finally:
        memory.close()
        memory.unlink()
