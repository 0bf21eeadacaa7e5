"""Everything that an array has in common with an ndarray: operators, comparisons, functions, methods and numbers.

All of it reads the memory from the CPU and returns what NumPy returns: an ndarray or a scalar. For an array on a GPU all of it
raises the TypeError of `numpy()`, which says what to do; but for methods that only give the memory another shape (`shapes`): they
return a handle on it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cableway._array.shapes import SHAPES
from cableway._core import words

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Values", "plain"]

# Methods of an ndarray that are here what they are there. What is about the object and not about its values (resize,
# setflags) is not.
_METHODS = (
    "all", "any", "argmax", "argmin", "argpartition", "argsort", "byteswap", "choose", "clip", "compress",
    "conj", "conjugate", "cumprod", "cumsum", "diagonal", "dot", "dump", "dumps", "fill", "flatten", "getfield", "max",
    "mean", "min", "nonzero", "partition", "prod", "put", "repeat", "round", "searchsorted",
    "setfield", "sort", "std", "sum", "take", "tobytes", "tofile", "trace", "var", "view", "__array_namespace__",
)  # fmt: skip
_ATTRIBUTES = ("flat", "imag", "real")
_READ_ONLY = ("base", "ctypes", "data")


def plain(value: Any) -> Any:
    """The same with NumPy's view in place of each of our arrays, also in lists, tuples and dictionaries.

    Raises:
        TypeError: one of them lies on a GPU.
    """
    if isinstance(value, Values):
        return value.numpy()
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(plain, value))
    if kind is dict:
        return {key: plain(one) for key, one in value.items()}
    return value


def _given_back(found: Any, outs: Iterable[Any]) -> Any:
    """A call returns what it was given as out= itself."""
    for out in outs:
        if isinstance(out, Values) and isinstance(found, np.ndarray):
            view = out.numpy()
            if (
                found.__array_interface__["data"] == view.__array_interface__["data"]
                and found.shape == view.shape
                and found.strides == view.strides
                and found.dtype == view.dtype
            ):
                return out
    return found


def _all_given_back(found: Any, out: Any) -> Any:
    if out is None:
        return found
    outs = out if isinstance(out, tuple) else (out,)
    if isinstance(found, tuple):
        return tuple(_given_back(one, outs) for one in found)
    return _given_back(found, outs)


class Values(np.lib.mixins.NDArrayOperatorsMixin):
    """NumPy's way with an array, for a class that has `numpy()`.

    `==` compares elements, as an ndarray's does. So there is no hash, as an ndarray has none: the two together would make
    sets and dictionaries wrong. To remember an array in one use its `name`, or `id(w)` as long as the array is kept.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    if TYPE_CHECKING:

        def numpy(self) -> NDArray[Any]:
            """The memory as a NumPy array."""

        def _on_gpu(self) -> bool: ...

        def _seen(self) -> NDArray[Any]: ...

        def _part(self, found: NDArray[Any]) -> Any: ...

        # Those named above, as NumPy types them.
        def __getattr__(self, name: str) -> Any: ...

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        found = getattr(ufunc, method)(*map(plain, inputs), **plain(options))
        return _all_given_back(found, options.get("out"))

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        arguments: tuple[Any, ...],
        options: Mapping[str, Any],
    ) -> Any:
        found = function(*plain(arguments), **plain(dict(options)))
        return _all_given_back(found, options.get("out"))

    def __contains__(self, value: object) -> bool:
        return plain(value) in self.numpy()

    def astype(self, dtype: Any, *args: Any, **named: Any) -> NDArray[Any]:
        """`numpy().astype()`, also to the dtypes of machine learning by their names.

        Raises:
            TypeError: one of the two dtypes needs ml_dtypes, which is not here; NumPy alone would make zeros of it.
        """
        values, wanted = self.numpy(), words.dtype_of(dtype)
        words.check_cast(values.dtype, wanted)
        return values.astype(wanted, *args, **named)

    def item(self, *index: Any) -> Any:
        """One element, by default the only one, as a Python value. ValueError if there are more."""
        return self.numpy().item(*index)

    def tolist(self) -> Any:
        """The elements as nested lists of Python values."""
        return self.numpy().tolist()

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __complex__(self) -> complex:
        return complex(self.numpy())

    def __index__(self) -> int:
        found = self.numpy()
        return operator.index(found if found.shape else found[()])

    def __bytes__(self) -> bytes:
        # Before Python 3.12 a class has no way to give a buffer, and each integer would be taken for a byte.
        return self.numpy().tobytes()

    def __format__(self, spec: str) -> str:
        return format(self.numpy(), spec) if spec else str(self)

    def __delitem__(self, key: object) -> None:
        raise ValueError("cannot delete array elements")

    def __bool__(self) -> bool:
        return bool(self.numpy())


def _method(name: str) -> Callable[..., Any]:
    def method(self: Values, *arguments: Any, **options: Any) -> Any:
        found = getattr(self.numpy(), name)(*plain(arguments), **plain(options))
        return _all_given_back(found, options.get("out"))

    method.__name__, method.__qualname__ = name, f"Values.{name}"
    method.__doc__ = f"As numpy.ndarray.{name}."
    return method


def _shape_method(name: str, of_gpu: Callable[..., Any]) -> Callable[..., Any]:
    on_host = _method(name)

    def method(self: Values, *arguments: Any, **options: Any) -> Any:
        if self._on_gpu():
            return self._part(of_gpu(self._seen(), *arguments, **options))
        return on_host(self, *arguments, **options)

    method.__name__, method.__qualname__ = name, f"Values.{name}"
    method.__doc__ = f"As numpy.ndarray.{name}. For an array on a GPU a handle on the same memory; ValueError if it needs a copy."
    return method


# An ndarray's own operators and not the ufuncs behind them, of which NDArrayOperatorsMixin makes its: they have faster ways
# (x ** 2, x ** 0.5), compare numbers with text, refuse x @= of another shape, and leave to the other side what is its.
_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift",
)  # fmt: skip
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_UNARY = ("neg", "pos", "abs", "invert")


def _binary(do: Callable[[Any, Any], Any]) -> Callable[[Values, Any], Any]:
    return lambda self, other: do(self.numpy(), plain(other))


def _reflected(do: Callable[[Any, Any], Any]) -> Callable[[Values, Any], Any]:
    return lambda self, other: do(plain(other), self.numpy())


def _in_place(do: Callable[[Any, Any], Any]) -> Callable[[Values, Any], Any]:
    def method(self: Values, other: Any) -> Any:
        view = self.numpy()
        found = do(view, plain(other))
        return self if found is view else found

    return method


def _unary(do: Callable[[Any], Any]) -> Callable[[Values], Any]:
    return lambda self: do(self.numpy())


def _operator(name: str, method: Any) -> None:
    method.__name__, method.__qualname__ = name, f"Values.{name}"
    setattr(Values, name, method)


for _name in _BINARY:
    _of, _plain_name = getattr(operator, _name), _name.rstrip("_")
    _operator(f"__{_plain_name}__", _binary(_of))
    _operator(f"__r{_plain_name}__", _reflected(_of))
    _operator(f"__i{_plain_name}__", _in_place(getattr(operator, f"i{_plain_name}")))
for _name in _COMPARISONS:
    _operator(f"__{_name}__", _binary(getattr(operator, _name)))
for _name in _UNARY:
    _operator(f"__{_name}__", _unary(getattr(operator, _name)))
_operator("__divmod__", _binary(divmod))
_operator("__rdivmod__", _reflected(divmod))


def _attribute(name: str) -> property:
    def get(self: Values) -> Any:
        return getattr(self.numpy(), name)

    def put(self: Values, value: Any) -> None:
        setattr(self.numpy(), name, plain(value))

    return property(get, put, doc=f"As numpy.ndarray.{name}.")


for _name in _METHODS:
    if hasattr(np.ndarray, _name):  # older ones have no __array_namespace__
        setattr(Values, _name, _method(_name))
for _name, _of_gpu in SHAPES.items():
    setattr(Values, _name, _shape_method(_name, _of_gpu))
for _name in _ATTRIBUTES:
    setattr(Values, _name, _attribute(_name))
for _name in _READ_ONLY:
    setattr(Values, _name, property(_attribute(_name).fget, doc=f"As numpy.ndarray.{_name}."))
