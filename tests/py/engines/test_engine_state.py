"""What the loaders of both engines have in common, without an engine; and what is said where none is installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cableway as cw
from cableway._engines.options import options


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({}, ValueError, "needs the name of a tree"),
        ({"name": ""}, ValueError, "needs the name of a tree"),
        ({"name": "m", "kep": True}, ValueError, "'kep'.*knows 'name', 'files', 'keep', 'share'"),
        ({"name": "m", "keep": 1}, ValueError, "keep is true or false"),
        ({"name": "m", "share": "all"}, ValueError, 'share is "state" or "weights"'),
        (["m"], TypeError, "is a dict, not list"),
    ],
)
def test_bad_options_are_refused_with_the_remedy(given: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        options(given)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_without_the_engine_the_import_says_what_to_install(engine: str) -> None:
    if importlib.util.find_spec(engine) is not None:
        pytest.skip(f"{engine} is installed")
    with pytest.raises(ImportError, match=f"pip install '{engine}>="):
        importlib.import_module(f"cableway.{engine}")


def test_cableway_alone_imports_no_engine() -> None:
    code = "import sys, cableway; print(sorted({'torch', 'vllm', 'sglang'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("group", "module"),
    [("vllm.general_plugins", "cableway.vllm"), ("sglang.srt.plugins", "cableway.sglang")],
)
def test_the_package_names_its_entry_points(group: str, module: str) -> None:
    found = importlib.metadata.entry_points(group=group)
    assert {point.value for point in found if point.name == "cableway"} == {f"{module}:register"}


def test_a_state_made_by_one_model_is_the_memory_of_others(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import engine_models

    from cableway._engines import state

    given, fields = options({"name": "llm"}), {"dtype": "torch.float32", "tp_rank": 0, "tp_size": 1}
    name = state.name_of(given, "test", fields)
    assert name.startswith("llm/test/float32-plain-tp0of1-")
    assert state.find(name, fields) is None
    first = engine_models.Model().eval()
    first.load_weights(engine_models.checkpoint().items())
    tree = state.share(name, first, fields, keep=False)
    with torch.device("meta"):
        second = engine_models.Model().eval()
    found = state.find(name, fields)
    assert found is not None and found.version == tree.version
    state.attach(second, found)
    state.complete(second, found)
    expected = engine_models.logits_expected()
    tokens = torch.arange(20)
    assert torch.equal(first(tokens), expected) and torch.equal(second(tokens), expected)
    assert second.head.weight is second.embed.weight
    assert second.qk.weight.data_ptr() == found["qk.weight"].numpy().__array_interface__["data"][0]
    assert second.angles.data_ptr() != found["angles"].numpy().__array_interface__["data"][0]
    assert "angles" not in second.state_dict()
    # The second of two that publish at once gets the first one's.
    assert state.publish(name, engine_models.Model(), fields, keep=False).version == tree.version


def test_a_state_for_something_else_is_refused_with_the_fields(tmp_path: Path) -> None:
    from cableway._engines import state

    cw.put("s", {"w": [1.0, 2.0]}, meta={"engine": {"dtype": "a", "tp_rank": 0}}, keep=True)
    with pytest.raises(cw.Error, match="differs in tp_rank"):
        state.find("s", {"dtype": "a", "tp_rank": 1})


def test_another_checkpoint_has_another_source(tmp_path: Path) -> None:
    from cableway._engines import state

    given = options({"name": "llm"})
    with pytest.raises(FileNotFoundError, match="no .safetensors file"):
        state.source(given, str(tmp_path))
    (tmp_path / "a.safetensors").write_bytes(b"1")
    one = state.source(given, str(tmp_path))
    assert state.source(given, str(tmp_path)) == one
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "b").rename(tmp_path / "a.safetensors")
    assert state.source(given, str(tmp_path)) != one


def test_what_has_no_memory_is_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from cableway._engines import state

    cw.put("s", {"weight": torch.zeros(2, 3)}, keep=True)
    tree = cw.get("s")
    with torch.device("meta"):
        module = torch.nn.Linear(3, 2)
        module.scale = torch.ones(2)
    state.attach(module, tree)
    with pytest.raises(cw.Error, match="lacks scale: .*share.*weights"):
        state.complete(module, tree)
