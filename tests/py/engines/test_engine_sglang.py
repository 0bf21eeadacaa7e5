"""The loader against SGLang as published: its plugin registry, its choice of loaders and its processing; configurations are stand-ins."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cableway as cw

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.srt.weight_cache.ipc_loader")
import engine_models  # noqa: E402
import sglang.srt.runtime_context  # noqa: E402
from sglang.srt.arg_groups.choices import LOAD_FORMAT_CHOICES  # noqa: E402
from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.model_loader.loader import BaseModelLoader, get_model_loader  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402

import cableway.sglang  # noqa: E402


def config(**extra: Any) -> LoadConfig:
    load_plugins()
    return LoadConfig(load_format="cableway", model_loader_extra_config={"name": "llm", **extra})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What load_model gets for a little model on the CPU, in a group of one."""
    parallel = SimpleNamespace(
        tp_size=1, tp_rank=0, pp_size=1, pp_rank=0, dp_size=1, moe_ep_size=1, moe_ep_rank=0, moe_dp_size=1, moe_dp_rank=0,
        attn_dp_size=1, attn_cp_size=1, enable_dp_lm_head=False, moe_dense_tp_size=None,
    )  # fmt: skip
    execution = SimpleNamespace(moe=SimpleNamespace(moe_a2a_backend="none"))
    monkeypatch.setattr(sglang.srt.runtime_context, "get_parallel", lambda: parallel)
    monkeypatch.setattr(sglang.srt.runtime_context, "get_exec", lambda: execution)
    monkeypatch.setattr(cableway.sglang, "_get_quantization_config", lambda *_: None)
    monkeypatch.setattr(cableway.sglang, "_initialize_model", lambda *_: engine_models.Model())
    model = SimpleNamespace(
        model_path=str(engine_models.folder_of(tmp_path)), revision=None, dtype=torch.float32, quantization=None,
        hf_config=SimpleNamespace(architectures=["Model"]),
    )  # fmt: skip
    return {"model_config": model, "device_config": SimpleNamespace(device="cpu", gpu_id=0)}


def test_the_entry_point_adds_the_load_format() -> None:
    loader = get_model_loader(config())
    assert type(loader) is cableway.sglang.CablewayModelLoader
    cableway.sglang.register()
    assert LOAD_FORMAT_CHOICES.count("cableway") == 1
    assert LoadConfig(load_format="auto").load_format == "auto"
    with pytest.raises(ValueError, match="needs the name of a tree"):
        LoadConfig(load_format="cableway")


def test_load_model_has_the_signature_of_the_base_class() -> None:
    for name in ("download_model", "load_model"):
        own, base = (
            list(inspect.signature(getattr(kind, name)).parameters)
            for kind in (cableway.sglang.CablewayModelLoader, BaseModelLoader)
        )
        assert own == base, name


def test_what_the_key_asks_for_is_there() -> None:
    kind = sglang.srt.runtime_context
    assert callable(kind.get_parallel) and callable(kind.get_exec)


def test_a_second_engine_gets_the_first_ones_memory(engine: dict[str, Any]) -> None:
    loader, again = get_model_loader(config()), get_model_loader(config())
    first = loader.load_model(**engine)
    second = again.load_model(**engine)
    assert loader.preloaded_weights_bytes == 0 < again.preloaded_weights_bytes
    tokens, expected = torch.arange(20), engine_models.logits_expected()
    assert torch.equal(first(tokens), expected) and torch.equal(second(tokens), expected)
    (name,) = [name for name in cw.names() if name.startswith("llm/sglang/")]
    with cw.get(name) as tree:
        at = tree["qk.weight"].numpy().__array_interface__["data"][0]
    assert first.qk.weight.data_ptr() == second.qk.weight.data_ptr() == at


def test_weights_alone_leave_each_engine_its_own_memory(engine: dict[str, Any]) -> None:
    one, two = (get_model_loader(config(share="weights")).load_model(**engine) for _ in range(2))
    assert torch.equal(one(torch.arange(20)), engine_models.logits_expected())
    assert one.qk.weight.data_ptr() != two.qk.weight.data_ptr()


def test_a_quantization_that_cannot_be_shared_is_refused(engine: dict[str, Any]) -> None:
    engine["model_config"].quantization = "awq"
    with pytest.raises(ValueError, match='"share": "weights"'):
        get_model_loader(config()).load_model(**engine)
