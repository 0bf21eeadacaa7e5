"""transformers itself: a small Qwen3 with random weights, made on meta and filled from a tree."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
from typing import Any

import pytest

import cableway as cw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip


def empty() -> Any:
    with torch.device("meta"):
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL)).eval()


def test_logits_are_equal_to_the_bit_ties_are_one_object_and_two_processes_share_memory() -> None:
    torch.manual_seed(0)
    made = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL)).eval()
    tokens = torch.arange(40).reshape(2, 20)
    with torch.no_grad():
        expected = made(tokens).logits
    cw.put("qwen", made, keep=True)
    tree = cw.get("qwen")
    filled = tree.into(empty())
    with torch.no_grad():
        assert torch.equal(filled(tokens).logits, expected)
    assert filled.lm_head.weight is filled.model.embed_tokens.weight
    code = f"""
        import sys, torch, transformers, cableway as cw
        with torch.device("meta"):
            model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**{SMALL!r})).eval()
        tree = cw.get("qwen")
        tree.into(model)
        at = tree["model.embed_tokens.weight"].numpy().__array_interface__["data"][0]
        assert model.model.embed_tokens.weight.data_ptr() == at
        with torch.no_grad():
            torch.save(model(torch.arange(40).reshape(2, 20)).logits, sys.stdout.buffer)
        with open("/proc/self/maps") as maps:
            for line in maps:
                span, _, offset, device, inode, *_ = line.split()
                low, high = (int(part, 16) for part in span.split("-"))
                if low <= at < high:
                    print(device, inode, int(offset, 16) + at - low, file=sys.stderr)
        """
    runs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)], capture_output=True
        )
        for _ in range(2)
    ]
    for run in runs:
        assert run.returncode == 0, run.stderr.decode()
        assert torch.equal(torch.load(io.BytesIO(run.stdout)), expected)
    places = {run.stderr.decode().strip().splitlines()[-1] for run in runs}
    assert len(places) == 1, f"the same file at the same place: {places}"
