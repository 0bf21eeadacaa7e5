"""Modules of PyTorch, by a stand-in: parameters are shared, ties are one object, buffers are copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import module_standins as nn
import numpy as np
import pytest

import cableway as cw


@pytest.fixture(autouse=True)
def standin() -> Iterator[None]:
    """`import torch` finds the stand-in."""
    nn.install()
    yield
    nn.uninstall()


def data(tensor: Any) -> int:
    """Where a tensor lies."""
    return int(tensor.values.__array_interface__["data"][0])


def test_a_module_is_its_parameters_buffers_and_attributes() -> None:
    tree = cw.put("m", nn.Model())
    assert set(tree) == {
        f"{part}.{name}" for part in ("embed", "head") for name in ("weight", "mean", "scratch", "scale")
    }  # fmt: skip
    kinds = {tree.kind(f"embed.{name}") for name in ("mean", "scratch")}
    assert kinds == {"buffer"}
    assert tree.kind("embed.weight") == "parameter" and tree.kind("embed.scale") == "attribute"
    assert tree.ties() == {"head.weight": "embed.weight"}


def test_ties_are_found_in_a_state_dict_which_knows_nothing_of_them() -> None:
    tree = cw.put("m", nn.Model().state_dict())
    assert tree.ties() == {"head.weight": "embed.weight"}


def test_a_module_on_meta_is_filled_without_a_copy_and_its_ties_are_one_object() -> None:
    cw.put("m", nn.Model(3.0))
    tree = cw.get("m")
    module = nn.Model(0.0).on_meta()
    assert tree.into(module) is module
    one, other = module._modules["embed"], module._modules["head"]
    assert one._parameters["weight"] is other._parameters["weight"]
    weight = one._parameters["weight"]
    assert isinstance(weight, nn.Parameter) and not weight.requires_grad
    assert weight.values.tolist() == np.full((4, 3), 3.0).tolist()
    shared = tree["embed.weight"].numpy().__array_interface__["data"][0]
    assert data(weight) == shared


def test_what_a_checkpoint_holds_once_fills_all_its_places() -> None:
    """Files keep what is tied once, under one of its names."""
    leaves = dict(nn.Model(3.0).state_dict())
    del leaves["head.weight"]
    tree = cw.put("m", leaves)
    assert tree.ties() == {}
    for module in (nn.Model(0.0), nn.Model(0.0).on_meta()):
        tree.into(module, strict=False)  # scratch is in no state_dict
        one, other = module._modules["embed"], module._modules["head"]
        assert one._parameters["weight"] is other._parameters["weight"]
        assert other._parameters["weight"].values.tolist() == np.full((4, 3), 3.0).tolist()


def test_buffers_and_attributes_are_the_modules_own() -> None:
    tree = cw.put("m", nn.Model())
    module = tree.into(nn.Model(0.0))
    layer = module._modules["embed"]
    layer._buffers["mean"].values[:] = 9
    layer.scale.values[:] = 9
    assert tree["embed.mean"].numpy().tolist() == [0.5] * 3
    assert tree.verify() > 0


def test_two_modules_share_one_memory() -> None:
    tree = cw.put("m", nn.Model())
    modules = [tree.into(nn.Model(0.0)) for _ in range(2)]
    places = {data(module._modules["embed"]._parameters["weight"]) for module in modules}
    assert len(places) == 1


def test_a_tree_that_does_not_fit_changes_nothing() -> None:
    tree = cw.put("m", {"embed.weight": np.zeros((4, 3), "f4")})
    module = nn.Model(5.0)
    with pytest.raises(KeyError, match="lacks"):
        tree.into(module)
    wrong = cw.put("w", {**nn.Model().state_dict(), "head.mean": np.zeros(7)})
    with pytest.raises(ValueError, match="shape"):
        wrong.into(module, strict=False)
    other = cw.put("w", {**nn.Model().state_dict(), "head.mean": np.zeros(3, "f4")})
    with pytest.raises(ValueError, match="dtype"):
        other.into(module, strict=False)
    assert module._modules["embed"]._parameters["weight"].values.tolist() == [[5.0] * 3] * 4
    tree.into(module, strict=False)
    assert module._modules["embed"]._parameters["weight"].values.tolist() == [[0.0] * 3] * 4
    assert module._modules["head"]._parameters["weight"].values.tolist() == [[0.0] * 3] * 4  # tied


def test_what_no_state_dict_has_stays_as_the_module_made_it() -> None:
    tree = cw.put("m", nn.Model(3.0).state_dict())  # without scratch, which is not persistent
    module = nn.Model(0.0)
    module._modules["head"]._buffers["scratch"].values[:] = 7
    tree.into(module)
    assert module._modules["head"]._buffers["scratch"].values.tolist() == [7.0, 7.0]
    assert module._modules["head"]._parameters["weight"].values.tolist() == [[3.0] * 3] * 4
    empty = nn.Model(0.0).on_meta()
    with pytest.raises(KeyError, match='lacks "embed.scratch", "head.scratch".*persistent=False'):
        tree.into(empty)
    assert empty._modules["head"]._parameters["weight"].is_meta


def test_a_plain_attribute_on_meta_that_the_tree_lacks_is_named() -> None:
    tree = cw.put("m", nn.Model(3.0))
    module = nn.Model(0.0).on_meta()
    module._modules["head"].cache = module._modules["head"]._parameters["weight"]
    with pytest.raises(KeyError, match='lacks "head.cache".*plain attributes'):
        tree.into(module)
    assert module._modules["head"]._parameters["weight"].is_meta
    tree.into(module, strict=False)
    assert module._modules["head"]._parameters["weight"].values.tolist() == [[3.0] * 3] * 4


@pytest.mark.parametrize("module", [None, {}, nn.Model])
def test_only_a_module_can_be_filled(module: Any) -> None:
    with pytest.raises(TypeError, match="a module of PyTorch is needed"):
        cw.put("m", {"w": np.ones(3)}).into(module)


def test_a_module_without_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="meta"):
        cw.put("m", nn.Model().on_meta())


def test_tensors_are_no_copies_and_tied_ones_are_one() -> None:
    tree = cw.put("m", nn.Model())
    tensors = tree.torch()
    assert tensors["embed.weight"] is tensors["head.weight"]
    tree.close()
    cw.remove("m")
    assert tensors["embed.weight"].values.sum() == 12
