"""`cableway.vllm` beside the published package of vLLM: the entry point, the interface of its loaders, weights of files by name.

A whole engine needs a GPU, and does not run here.
"""

from __future__ import annotations

import inspect
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cableway as cw

torch = pytest.importorskip("torch")
pytest.importorskip("vllm.model_executor.model_loader", exc_type=ImportError)


@pytest.fixture
def loader() -> Any:
    """As an engine makes it: by the entry point and the load format."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor import model_loader

    (found,) = metadata.entry_points(group="vllm.general_plugins", name="cableway")
    register = found.load()
    register()
    register()
    config = LoadConfig(load_format="cableway", model_loader_extra_config={"name": "llm"})
    return model_loader.get_model_loader(config)


def test_the_load_format_is_ours_and_has_the_interface_of_its_loaders(loader: Any) -> None:
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    import cableway.vllm

    assert type(loader) is cableway.vllm.CablewayModelLoader and isinstance(loader, BaseModelLoader)
    for name, method in inspect.getmembers(BaseModelLoader, inspect.isfunction):
        ours = getattr(type(loader), name)
        assert list(inspect.signature(ours).parameters) == list(
            inspect.signature(method).parameters
        ), name


def test_a_bad_option_is_told_when_the_loader_is_made() -> None:
    from vllm.config.load import LoadConfig

    from cableway.vllm import CablewayModelLoader

    with pytest.raises(ValueError, match="needs the name of a tree"):
        CablewayModelLoader(LoadConfig(load_format="cableway"))


def test_weights_come_from_the_files_once_and_then_by_name(loader: Any, tmp_path: Path) -> None:
    from engines_support import model, write

    made, tokens = model(), torch.arange(20)
    folder = write(tmp_path / "m", made)
    about = SimpleNamespace(model=str(folder), model_weights=None, revision=None, quantization=None)
    for seed in (1, 2):
        other = model(seed)
        assert not torch.equal(other(tokens), made(tokens))
        loader.load_weights(other, about)
        assert torch.equal(other(tokens), made(tokens))
    tree = cw.get("llm")
    assert set(tree) == {"embed.weight", "body.weight", "body.bias"}


def test_weights_that_lack_are_told(loader: Any, tmp_path: Path) -> None:
    from engines_support import model, write

    made = model()
    del made.body
    folder = write(tmp_path / "m", made)
    about = SimpleNamespace(model=str(folder), model_weights=None, revision=None, quantization=None)
    with pytest.raises(ValueError, match=r"body\.bias, body\.weight"):
        loader.load_weights(model(1), about)
