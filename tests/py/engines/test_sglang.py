"""`cableway.sglang` beside the published package of SGLang: the entry point, the load format, the interface of its loaders.

A whole engine needs a GPU, and does not run here.
"""

from __future__ import annotations

import inspect
from importlib import metadata
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sglang.srt.model_loader.loader", exc_type=ImportError)


@pytest.fixture
def register() -> Any:
    """By the entry point, as SGLang does at its start."""
    (found,) = metadata.entry_points(group="sglang.srt.plugins", name="cableway")
    register = found.load()
    register()
    register()
    return register


def test_the_load_format_is_ours_and_has_the_interface_of_its_loaders(register: Any) -> None:
    from sglang.srt.arg_groups import choices
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import BaseModelLoader, get_model_loader
    from sglang.srt.plugins.hook_registry import HookRegistry

    import cableway.sglang

    assert choices.LOAD_FORMAT_CHOICES.count("cableway") == 1
    HookRegistry.apply_hooks()
    config = LoadConfig(load_format="cableway", model_loader_extra_config='{"name": "llm"}')
    loader = get_model_loader(config)
    assert type(loader) is cableway.sglang.CablewayModelLoader
    for name in ("download_model", "load_model"):
        ours, theirs = getattr(type(loader), name), getattr(BaseModelLoader, name)
        assert list(inspect.signature(ours).parameters) == list(
            inspect.signature(theirs).parameters
        ), name
    with pytest.raises(ValueError, match="needs the name of a tree"):
        LoadConfig(load_format="cableway")
    assert LoadConfig(load_format="auto").load_format.value == "auto"
