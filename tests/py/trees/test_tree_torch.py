"""Trees and PyTorch itself, where it is installed: tied weights, meta, buffers, outputs that are equal to the bit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest

import cableway as cw

torch = pytest.importorskip("torch")


def model(seed: int = 0) -> Any:
    """A language model in small: an embedding whose weight is that of the head, a norm with buffers."""
    torch.manual_seed(seed)

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(50, 16)
            self.body = torch.nn.Linear(16, 16)
            self.norm = torch.nn.BatchNorm1d(16)
            self.head = torch.nn.Linear(16, 50, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("angles", torch.arange(16.0), persistent=False)
            self.limits = torch.tensor([1.0, 2.0])

        def forward(self, tokens: Any) -> Any:
            hidden = self.body(self.embed(tokens)) + self.angles
            return self.head(self.norm(hidden) * self.limits[1])

    return Model().eval()


def test_a_model_made_on_meta_gives_the_same_logits_and_its_ties_are_one_object() -> None:
    made = model()
    cw.put("m", made)
    tree = cw.get("m")
    with torch.device("meta"):
        empty = model(1)
    filled = tree.into(empty)
    tokens = torch.arange(20)
    assert torch.equal(made(tokens), filled(tokens))
    assert filled.head.weight is filled.embed.weight
    assert (
        isinstance(filled.head.weight, torch.nn.Parameter) and not filled.head.weight.requires_grad
    )
    shared = tree["embed.weight"].numpy().__array_interface__["data"][0]
    assert filled.head.weight.data_ptr() == shared
    assert filled.angles.data_ptr() != tree["angles"].numpy().__array_interface__["data"][0]
    assert set(filled.state_dict()) == set(made.state_dict())


def test_a_state_dict_is_shared_by_two_processes() -> None:
    made = model()
    tree = cw.put("m", made.state_dict())
    assert tree.ties() == {"head.weight": "embed.weight"}
    code = """
        import cableway as cw, torch
        tensors = cw.get("m").torch()
        print(float(tensors["body.weight"].sum()), tensors["head.weight"] is tensors["embed.weight"])
        """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert run.stdout == f"{float(made.body.weight.sum())} True\n"


def test_an_optimisers_tensors_and_a_permuted_one_come_back() -> None:
    images = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    tree = cw.put(
        "m", {"images": images, "step": torch.tensor(3), "half": torch.ones(3, dtype=torch.float16)}
    )
    tensors = tree.torch()
    assert torch.equal(tensors["images"], images) and tensors["images"].stride() == images.stride()
    assert tensors["step"].item() == 3 and tensors["half"].dtype == torch.float16


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_dtypes_of_models_come_back_as_they_were(name: str) -> None:
    dtype = getattr(torch, name)
    made = torch.arange(6.0).reshape(2, 3).to(dtype)
    tree = cw.put("m", {"w": made, "scale": torch.ones(2)})
    found = tree.torch()["w"]
    assert found.dtype == dtype and torch.equal(found.float(), made.float())
    assert name in repr(tree["w"])


def test_a_tensor_of_torchs_own_function_that_needs_grad_is_published() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    assert cw.put("m", {"w": weight})["w"].numpy().tolist() == [1, 1, 1]


def test_what_is_no_array_is_refused_with_its_path_and_the_remedy() -> None:
    for value, word in (
        (torch.eye(3).to_sparse(), "to_dense"),
        (torch.eye(3).to_sparse_csr(), "to_dense"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "unbind"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "dequantize"),
        (torch.ones(3, dtype=torch.uint8).view(torch.bits8), "bits8|Bits8"),
    ):
        with pytest.raises(TypeError, match=f'^"a.b": .*({word})'):
            cw.put("m", {"a": {"b": value}})
    with pytest.raises(ValueError, match='^"a.b": it lies on the device "meta"'):
        cw.put("m", {"a": {"b": torch.ones(3, device="meta")}})


def test_conjugate_and_negative_views_have_their_values() -> None:
    values = torch.tensor([1 + 2j, 3 - 1j])
    tree = cw.put("m", {"conj": values.conj(), "imag": values.conj().imag, "plain": values})
    tensors = tree.torch()
    assert torch.equal(tensors["conj"], values.conj()) and torch.equal(tensors["plain"], values)
    assert torch.equal(tensors["imag"], values.conj().imag) and tree.ties() == {}
