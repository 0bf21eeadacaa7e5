"""A stand-in for `torch.nn`: modules whose tensors are NumPy arrays, with the methods that a tree uses; not the library.

`Tensor` knows what torch's host tensors know of memory: `__dlpack__`, `detach`, `clone`, a dtype and a shape; `from_dlpack` makes one
without a copy, as `torch.utils.dlpack.from_dlpack` does.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np


class Tensor:
    """Memory of the host, or none yet."""

    def __init__(self, values: Any, requires_grad: bool = False) -> None:
        self.values = values.values if isinstance(values, Tensor) else np.asarray(values)
        self.requires_grad = requires_grad
        self.is_meta = False

    @property
    def shape(self) -> tuple[int, ...]:
        """As torch's."""
        return self.values.shape

    @property
    def dtype(self) -> Any:
        """NumPy's in place of torch's."""
        return self.values.dtype

    def detach(self) -> Tensor:
        """Another tensor of the same memory, as torch's."""
        return Tensor(self.values)

    def clone(self) -> Tensor:
        """A copy."""
        return Tensor(self.values.copy())

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")
        return self.values

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class Parameter(Tensor):
    """A tensor that is trained."""

    def __init__(self, values: Any, requires_grad: bool = True) -> None:
        super().__init__(values, requires_grad)


def meta(tensor: Tensor) -> Tensor:
    """Says that there is no memory."""
    tensor.is_meta = True
    return tensor


class Module:
    """Parameters, buffers, parts."""

    def __init__(self) -> None:
        self._parameters: dict[str, Any] = {}
        self._buffers: dict[str, Any] = {}
        self._modules: dict[str, Module] = {}
        self._non_persistent_buffers_set: set[str] = set()

    def named_modules(
        self, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Itself and all parts."""
        yield prefix, self
        for name, part in self._modules.items():
            yield from part.named_modules(f"{prefix}.{name}" if prefix else name)

    def _named(self, table: str, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for prefix, part in self.named_modules():
            for name, value in getattr(part, table).items():
                if remove_duplicate and id(value) in seen:
                    continue
                seen.add(id(value))
                yield (f"{prefix}.{name}" if prefix else name), value

    def named_parameters(self, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """By path."""
        return self._named("_parameters", remove_duplicate)

    def named_buffers(self, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """By path."""
        return self._named("_buffers", remove_duplicate)

    def state_dict(self) -> dict[str, Any]:
        """New tensors of the same memory; what is tied stands twice; transient buffers do not."""
        found = {name: value.detach() for name, value in self._named("_parameters", False)}
        for prefix, part in self.named_modules():
            for name, value in part._buffers.items():
                if name not in part._non_persistent_buffers_set:
                    found[f"{prefix}.{name}" if prefix else name] = value.detach()
        return found


class Layer(Module):
    """A weight and a running mean."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self._parameters["weight"] = weight
        self._buffers["mean"] = Tensor(np.full(3, 0.5))
        self._buffers["scratch"] = Tensor(np.zeros(2))
        self._non_persistent_buffers_set.add("scratch")
        self.scale = Tensor(np.full(2, 4.0))


class Model(Module):
    """Two layers, whose weights are one."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        weight = Parameter(np.full((4, 3), value, "f4"))
        self._modules["embed"] = Layer(weight)
        self._modules["head"] = Layer(weight)

    def on_meta(self) -> Model:
        """The same without memory."""
        for _, part in self.named_modules():
            for table in (part._parameters, part._buffers):
                for value in table.values():
                    meta(value)
        return self


def from_dlpack(capsule: Any) -> Tensor:
    """Without a copy, from a capsule alone, as torch takes one."""
    carrier = type(
        "Carrier",
        (),
        {"__dlpack__": lambda self, **_: capsule, "__dlpack_device__": lambda self: (1, 0)},
    )
    return Tensor(np.from_dlpack(carrier()))


_real: dict[str, types.ModuleType] = {}  # PyTorch itself, where it was imported: it cannot be twice


def _hide() -> dict[str, types.ModuleType]:
    names = [name for name in sys.modules if name.partition(".")[0] == "torch"]
    return {name: sys.modules.pop(name) for name in names}


def install() -> None:
    """`import torch` finds this."""
    _real.update(_hide())
    torch = types.ModuleType("torch")
    utils, packs, nn = (
        types.ModuleType(f"torch.{name}") for name in ("utils", "utils.dlpack", "nn")
    )
    packs.from_dlpack = from_dlpack  # type: ignore[attr-defined]
    nn.Parameter = Parameter  # type: ignore[attr-defined]
    torch.utils, torch.nn, utils.dlpack = utils, nn, packs  # type: ignore[attr-defined]
    sys.modules.update(
        {"torch": torch, "torch.utils": utils, "torch.utils.dlpack": packs, "torch.nn": nn}
    )


def uninstall() -> None:
    """As before."""
    _hide()
    sys.modules.update(_real)
    _real.clear()
