"""A small model as an engine makes it, and its file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def model(seed: int = 0) -> Any:
    """Two layers with tied weights and a buffer; it takes weights as models of engines do."""
    import torch

    torch.manual_seed(seed)

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(50, 16)
            self.body = torch.nn.Linear(16, 16)
            self.head = torch.nn.Linear(16, 50, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("angles", torch.arange(16.0), persistent=False)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.body(self.embed(tokens)) + self.angles)

        def load_weights(self, weights: Any) -> set[str]:
            mine = dict(self.named_parameters())
            loaded = set()
            for name, tensor in weights:
                if name in mine:
                    mine[name].data.copy_(tensor)
                    loaded.add(name)
            return loaded

    return Model().eval()


def write(folder: Path, made: Any) -> Path:
    """The model's files, as Hugging Face keeps them."""
    from safetensors.torch import save_file

    folder.mkdir()
    state = {name: tensor.contiguous() for name, tensor in made.named_parameters()}
    save_file(state, os.fspath(folder / "model.safetensors"))
    return folder
