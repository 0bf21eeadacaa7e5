"""Tensors of PyTorch through cableway.ray. Runs in the environment of Ray, where PyTorch is."""

from __future__ import annotations

from typing import Any

import pytest
import ray
import ray_cluster
import torch
from ray_cluster import MIB, SECONDS, eventually, stored

import cableway as cw
import cableway.ray


def get(reference: Any) -> Any:
    return ray.get(reference, timeout=SECONDS)


@ray.remote(num_cpus=0, enable_tensor_transport=True)
class Actor:
    """Makes tensors and reads them."""

    @ray.method(tensor_transport="cableway")
    def call(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    def plainly(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    @ray.method(tensor_transport="gloo")
    def by_gloo(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "uint8", "bool", "complex64",
]  # fmt: skip


def tensors() -> list[Any]:
    found = [(torch.arange(MIB) % 100).reshape(64, -1).to(getattr(torch, name)) for name in DTYPES]
    whole = torch.arange(MIB, dtype=torch.float32).reshape(64, -1)
    found += [
        whole.T,
        whole[::2, 3:],
        torch.tensor(2.5),
        torch.empty((0, 4)),
        whole.to(torch.complex64).conj(),
    ]
    return [*found, torch.ones(MIB).expand(3, MIB), cw.full(MIB, 3.0).torch()]


def same(found: Any, number: int) -> None:
    """It is that one of `tensors`. Compared where it is: Ray's pickles of tensors cannot bring all of them."""
    value = tensors()[number]
    assert found.dtype == value.dtype and found.shape == value.shape
    assert torch.equal(found.to(torch.complex128), value.to(torch.complex128))


def values() -> None:
    """All kinds of tensors arrive as they were, one by one and many at once."""
    maker, reader = Actor.remote(), Actor.remote()
    for number in range(len(tensors())):
        sent = maker.call.remote(lambda n: tensors()[n], number)
        get(reader.plainly.remote(same, sent, number))
        same(get(sent), number)
    sent = maker.call.remote(tensors)
    assert len(get(sent)) == len(tensors())
    # the rows of one tensor, as in Ray's documentation
    rows = maker.call.remote(lambda: [*torch.arange(1000 * 1000.0).reshape(1000, 1000)])
    total = reader.plainly.remote(lambda v: float(sum(r.double().sum() for r in v)), rows)
    assert get(total) == 1e6 * (1e6 - 1) / 2
    x = maker.call.remote(torch.ones, MIB)
    assert get(reader.plainly.remote(cableway.ray.shared_bytes, x)) == 4 * MIB
    assert get(reader.plainly.remote(lambda v: float(v.add_(1).sum()), x)) == 2 * MIB
    assert float(get(x).sum()) == MIB
    target = torch.zeros(MIB)
    ray.experimental.set_target_for_ref(x, [target])
    assert get(x) is not None and float(target.sum()) == MIB
    del x, rows, sent
    assert eventually(lambda: get(maker.plainly.remote(stored)) == 0)
    with pytest.raises(TypeError, match="dense"):
        get(maker.call.remote(lambda: torch.eye(3).to_sparse()))
    with pytest.raises(TypeError, match="a tensor on meta"):
        get(maker.call.remote(lambda: torch.empty(3, device="meta")))


def beside_gloo() -> None:
    """Ray's own transport and ours give the same, also in one actor."""
    from ray.experimental.collective import create_collective_group

    actors = [Actor.remote(), Actor.remote()]
    create_collective_group(actors, backend="torch_gloo")
    for shape in ((3,), (4, MIB // 4)):
        ours = actors[0].call.remote(torch.ones, *shape)
        theirs = actors[0].by_gloo.remote(torch.ones, *shape)
        plain = actors[0].plainly.remote(torch.ones, *shape)
        found = [get(actors[1].plainly.remote(lambda v: v + 1, x)) for x in (ours, theirs, plain)]
        assert all(torch.equal(each, found[0]) for each in found)


if __name__ == "__main__":
    ray_cluster.main({f.__name__: f for f in (values, beside_gloo)})
