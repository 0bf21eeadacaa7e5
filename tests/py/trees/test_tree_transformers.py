"""transformers really run: `Qwen3ForCausalLM` of random weights, made on meta and filled from a tree by two processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tree_support import current_bytes

import cableway as cw

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

MAKE = """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    def model():
        config = Qwen3Config(vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                             num_key_value_heads=2, head_dim=16, max_position_embeddings=128, tie_word_embeddings=True)
        return Qwen3ForCausalLM(config).eval()
"""
READ = """
    import sys, cableway as cw
    tree = cw.get("qwen")
    with torch.device("meta"):
        empty = model()
    made = tree.into(empty)
    tokens = torch.arange(64).reshape(2, 32)
    with torch.no_grad():
        assert torch.equal(made(tokens).logits, torch.load(sys.argv[1]))
    assert made.lm_head.weight is made.model.embed_tokens.weight
    shared = {tensor.data_ptr() for tensor in tree.torch().values()}
    assert {p.data_ptr() for p in made.parameters()} <= shared
"""


def test_a_model_on_meta_gives_the_same_logits_and_two_processes_have_the_memory_once(
    tmp_path: Path,
) -> None:
    made: dict[str, Any] = {}
    exec(textwrap.dedent(MAKE), made)
    torch.manual_seed(0)
    model = made["model"]()
    with torch.no_grad():
        torch.save(model(torch.arange(64).reshape(2, 32)).logits, tmp_path / "logits")
    tree = cw.put("qwen", model)
    before = current_bytes()
    words = [
        sys.executable,
        "-c",
        textwrap.dedent(MAKE) + textwrap.dedent(READ),
        str(tmp_path / "logits"),
    ]
    readers = [subprocess.Popen(words) for _ in range(2)]
    assert [reader.wait(timeout=180) for reader in readers] == [0, 0]
    assert current_bytes() == before >= tree.nbytes
