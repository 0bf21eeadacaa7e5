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


def ours(nbytes: int) -> Any:
    """Bytes of memory of ours as a tensor."""
    return torch.from_dlpack(cw.empty(nbytes, "u1"))


def test_tensors_in_one_piece_of_our_memory_are_put_without_a_copy_whatever_they_are() -> None:
    whole = ours(1 << 16)
    plain = whole[:4096].view(torch.float32)
    tree = cw.put(
        "m",
        {
            "first": plain[:64],
            "other.dtype": whole[4096:8192].view(torch.bfloat16).view(32, 64),
            "parameter": torch.nn.Parameter(plain[64:128].view(8, 8), requires_grad=False),
            "tied": plain[:64],
            "of.no.bytes": plain[:0],
            "turned": plain[128:192].view(8, 8).t(),
            "every.second": plain[256:320:2],
            "flags": whole[8192:8200].view(torch.bool),
            "complex": whole[8448:8512].view(torch.complex64),
            "last": whole[-256:],
        },
        copy=False,
    )
    begin = whole.data_ptr()
    plain[:] = torch.arange(1024.0)
    seen = tree.torch()
    assert seen["first"].data_ptr() == begin and seen["first"].tolist() == list(range(64))
    assert seen["tied"] is seen["first"] and tree.ties() == {"tied": "first"}
    assert seen["other.dtype"].dtype == torch.bfloat16
    assert seen["other.dtype"].shape == (32, 64) and seen["other.dtype"].data_ptr() == begin + 4096
    assert torch.equal(seen["parameter"], torch.arange(64.0, 128.0).view(8, 8))
    assert seen["of.no.bytes"].shape == (0,) and seen["of.no.bytes"].dtype == torch.float32
    assert seen["turned"].stride() == (1, 8)
    assert torch.equal(seen["turned"], torch.arange(128.0, 192.0).view(8, 8).t())
    assert torch.equal(seen["every.second"], torch.arange(256.0, 320.0, 2))
    assert seen["flags"].dtype == torch.bool and seen["complex"].dtype == torch.complex64
    assert seen["last"].data_ptr() == begin + (1 << 16) - 256
    assert list(seen) == list(tree)


def test_a_tensor_that_is_not_plain_is_looked_at_whole() -> None:
    whole = ours(4096).view(torch.complex64)
    whole[:] = torch.complex(torch.arange(512.0), torch.ones(512))
    first = whole[:32]
    tree = cw.put("m", {"a": first, "b": whole[64:96]}, copy=False)
    assert torch.equal(tree.torch()["b"], whole[64:96])
    with pytest.raises(Exception, match="b"):
        cw.put("m", {"a": first, "b": whole[64:96].conj()}, copy=False)
    with pytest.raises(ValueError, match='"b" and "a" share a part|"a" and "b" share a part'):
        cw.put("m", {"a": first, "b": whole[16:48]}, copy=False)
    with pytest.raises(ValueError, match="copy=False"):
        cw.put("m", {"a": first, "b": torch.zeros(32, dtype=torch.complex64)}, copy=False)
    assert torch.equal(cw.get("m").torch()["b"], whole[64:96])


def test_tensors_of_two_pieces_of_our_memory_in_turn() -> None:
    pieces = [ours(1 << 14).view(torch.float32) for _ in range(2)]
    for piece, value in zip(pieces, (1.0, 2.0), strict=True):
        piece.fill_(value)
    given = {f"{i}": pieces[i % 2][64 * i : 64 * i + 64] for i in range(40)}
    tree = cw.put("m", given, copy=False)
    for path, tensor in tree.torch().items():
        assert tensor.data_ptr() == given[path].data_ptr() and torch.equal(tensor, given[path])


def test_a_subclass_of_tensor_is_looked_at_whole() -> None:
    class Own(torch.Tensor):  # type: ignore[misc]
        pass

    whole = ours(4096).view(torch.float32)
    whole.fill_(3.0)
    given = {"a": whole[:64], "b": whole[64:128].as_subclass(Own)}
    tree = cw.put("m", given, copy=False)
    assert torch.equal(tree.torch()["b"], whole[64:128])


def test_dtypes_of_machine_learning_come_back_from_a_tree() -> None:
    given = {
        name: torch.arange(16, dtype=torch.uint8).view(getattr(torch, name))
        for name in (
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e8m0fnu",
            "float4_e2m1fn_x2",
        )
        if hasattr(torch, name)
    }
    for name, tensor in cw.put("m", given).torch().items():
        assert tensor.dtype == given[name].dtype
        assert torch.equal(tensor.view(torch.uint8), given[name].view(torch.uint8))


def test_a_tree_of_thousands_is_the_same_by_each_way() -> None:
    torch.manual_seed(3)
    given = {f"layer.{i}": torch.randn(1 + i % 7, 1 + i % 5) for i in range(3000)}
    tree = cw.put("m", given)
    seen = cw.get("m").torch()
    assert list(seen) == list(given)
    assert all(torch.equal(seen[path], given[path]) for path in given)
    assert all(tree[path].shape == tuple(given[path].shape) for path in given)


def test_tensors_live_longer_than_the_tree() -> None:
    tree = cw.put("m", {"a": torch.arange(100_000), "b": torch.ones(3)})
    seen = tree.torch()
    tree.close()
    cw.remove("m")
    del tree
    cw.put("m", {"a": torch.zeros(100_000), "b": torch.zeros(3)})
    assert int(seen["a"].sum()) == 4999950000 and seen["b"].tolist() == [1, 1, 1]


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
