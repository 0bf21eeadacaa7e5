"""A little model as engines have them: `load_weights` fuses two tensors of the checkpoint into one parameter."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch


class Model(torch.nn.Module):
    """Made with what engines give to a model; the arguments mean nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.qk = torch.nn.Linear(16, 32, bias=False)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("angles", torch.arange(16.0), persistent=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Paths of the parameters that were filled."""
        own = dict(self.named_parameters())
        for name, tensor in weights:
            if name in ("q.weight", "k.weight"):
                part = own["qk.weight"].data.narrow(0, 0 if name[0] == "q" else 16, 16)
                part.copy_(tensor)
            else:
                own[name].data.copy_(tensor)
        return set(own)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        q, k = self.qk(self.embed(tokens) + self.angles).chunk(2, -1)
        logits: torch.Tensor = self.head(q * k)
        return logits


def checkpoint() -> dict[str, torch.Tensor]:
    """Weights as files have them."""
    torch.manual_seed(0)
    return {
        "embed.weight": torch.randn(50, 16),
        "q.weight": torch.randn(16, 16),
        "k.weight": torch.randn(16, 16),
    }


def folder_of(path: Path) -> Path:
    """A folder with these weights in one file."""
    from safetensors.torch import save_file

    save_file(checkpoint(), path / "model.safetensors")
    return path


def logits_expected() -> torch.Tensor:
    """What the model computes from these weights, without cableway."""
    model = Model()
    model.load_weights(checkpoint().items())
    return model.eval()(torch.arange(20))
