"""The loader against vLLM as published: its registry, its base class and its processing; configurations are stand-ins."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cableway as cw

torch = pytest.importorskip("torch")
pytest.importorskip("vllm.model_executor.model_loader")
import engine_models  # noqa: E402
import vllm.distributed  # noqa: E402
from vllm.config.load import LoadConfig  # noqa: E402
from vllm.model_executor.model_loader import base_loader, get_model_loader  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402

import cableway.vllm  # noqa: E402


def config(**extra: Any) -> LoadConfig:
    return LoadConfig(load_format="cableway", model_loader_extra_config={"name": "llm", **extra})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """vllm_config and model_config of a little model on the CPU, in a group of one."""
    load_general_plugins()
    group = SimpleNamespace(world_size=1, rank_in_group=0)
    for name, value in {
        "get_dp_group": group,
        "get_pp_group": group,
        "get_tensor_model_parallel_rank": 0,
        "get_tensor_model_parallel_world_size": 1,
    }.items():
        monkeypatch.setattr(vllm.distributed, name, lambda value=value: value)
    for module in (base_loader, cableway.vllm):
        monkeypatch.setattr(module, "initialize_model", lambda **_: engine_models.Model())
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    hf = SimpleNamespace(
        architectures=["Model"], quantization_config=None, tie_word_embeddings=True
    )
    hf.get_text_config = lambda: hf
    model = SimpleNamespace(
        model=str(engine_models.folder_of(tmp_path)), revision=None, dtype=torch.float32, quantization=None, hf_config=hf,
        hf_text_config=hf, enable_sleep_mode=False, model_weights="", quantization_config=None, rope_parameters=None,
        word_embeddings_untied_by_checkpoint=False,
    )  # fmt: skip
    return SimpleNamespace(
        model_config=model, device_config=SimpleNamespace(device=torch.device("cpu")), load_config=config(),
        parallel_config=SimpleNamespace(enable_eplb=False, enable_expert_parallel=False, expert_placement_strategy="linear"),
        cache_config=SimpleNamespace(cache_dtype="auto", kv_cache_dtype_skip_layers=[]), kernel_config=None,
        speculative_config=None, quant_config=None,
    )  # fmt: skip


def test_the_entry_point_registers_the_load_format() -> None:
    load_general_plugins()
    assert type(get_model_loader(config())) is cableway.vllm.CablewayModelLoader
    cableway.vllm.register()


def test_the_methods_have_the_signatures_of_the_base_class() -> None:
    for name in ("get_external_weight_memory", "download_model", "load_weights", "create_model", "load_model"):  # fmt: skip
        own, base = (
            list(inspect.signature(getattr(kind, name)).parameters)
            for kind in (cableway.vllm.CablewayModelLoader, base_loader.BaseModelLoader)
        )
        assert own == base, name


def test_a_second_engine_gets_the_first_ones_memory(engine: Any) -> None:
    loader = get_model_loader(config())
    assert loader.get_external_weight_memory(engine) == 0
    first = loader.load_model(engine, engine.model_config)
    again = get_model_loader(config())
    assert again.get_external_weight_memory(engine) > 0
    second = again.load_model(engine, engine.model_config)
    tokens, expected = torch.arange(20), engine_models.logits_expected()
    assert torch.equal(first(tokens), expected) and torch.equal(second(tokens), expected)
    (name,) = [name for name in cw.names() if name.startswith("llm/vllm/")]
    with cw.get(name) as tree:
        at = tree["qk.weight"].numpy().__array_interface__["data"][0]
    assert first.qk.weight.data_ptr() == second.qk.weight.data_ptr() == at
    with pytest.raises(ValueError, match='"share": "weights"'):
        again.load_weights(second, engine.model_config)


def test_weights_alone_leave_each_engine_its_own_memory(engine: Any) -> None:
    one, two = (
        get_model_loader(config(share="weights")).load_model(engine, engine.model_config)
        for _ in range(2)
    )
    assert torch.equal(one(torch.arange(20)), engine_models.logits_expected())
    assert one.qk.weight.data_ptr() != two.qk.weight.data_ptr()


def test_a_published_tree_takes_the_place_of_files(engine: Any) -> None:
    cw.put("llm", engine_models.checkpoint(), keep=True)
    engine.model_config.model = "no/such/files"
    model = get_model_loader(config(files=False)).load_model(engine, engine.model_config)
    assert torch.equal(model(torch.arange(20)), engine_models.logits_expected())


def test_what_does_not_go_with_shared_weights_is_refused(engine: Any) -> None:
    engine.model_config.enable_sleep_mode = True
    with pytest.raises(ValueError, match='sleep mode.*"share": "weights"'):
        get_model_loader(config()).load_model(engine, engine.model_config)
