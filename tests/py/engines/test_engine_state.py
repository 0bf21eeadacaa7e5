"""What the plugins of vLLM and SGLang share: options, weights of files by name, a processed state that the next engine attaches."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import cableway as cw
from cableway._engines.options import options

FIELDS = {"dtype": "torch.float32", "tp_rank": 0, "tp_size": 2, "model": "m"}


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (None, ValueError, "needs the name of a tree"),
        ({"name": ""}, ValueError, "needs the name of a tree"),
        ({"name": "m", "nam": 1}, ValueError, "'nam'"),
        ({"name": "m", "keep": 1}, ValueError, "keep is true or false"),
        ({"name": "m", "share": "all"}, ValueError, '"state" or "weights"'),
        ([("name", "m")], TypeError, "is a dict"),
    ],
)
def test_a_bad_option_is_told(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        options(given)


def test_a_name_tells_what_the_state_was_made_for() -> None:
    from cableway._engines import state

    given = options({"name": "m"})
    name = state.name_of(given, "vllm", FIELDS)
    assert name.startswith("m/vllm/float32-plain-tp0of2-")
    assert name == state.name_of(given, "vllm", dict(reversed(FIELDS.items())))
    assert name != state.name_of(given, "vllm", {**FIELDS, "tp_rank": 1})
    assert name != state.name_of(given, "vllm", {**FIELDS, "model": "n"})


def test_a_state_is_shared_by_the_engine_that_made_it_and_by_the_next(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from engines_support import model

    from cableway._engines import state

    made, tokens = model(), torch.arange(20)
    wanted = made(tokens)
    assert state.find("s", FIELDS) is None
    tree = state.share("s", made, FIELDS, keep=False, extra={"attributes": {}})
    assert torch.equal(made(tokens), wanted)
    assert made.head.weight is made.embed.weight
    assert made.embed.weight.data_ptr() == tree.torch()["embed.weight"].data_ptr()
    torch.save(wanted, tmp_path / "wanted")
    code = """
        import sys, torch, cableway as cw
        from cableway._engines import state
        from engines_support import model
        fields = eval(sys.argv[1])
        tree = state.find("s", fields)
        with torch.device("meta"):
            made = model(1)
        state.attach(made, tree)
        state.complete(made, tree)
        assert torch.equal(made(torch.arange(20)), torch.load(sys.argv[2]))
        assert made.head.weight is made.embed.weight and not made.embed.weight.requires_grad
        assert made.embed.weight.data_ptr() == tree.torch()["embed.weight"].data_ptr()
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), repr(FIELDS), str(tmp_path / "wanted")],
        check=True,
        cwd=Path(__file__).parent,
        timeout=120,
    )


def test_a_name_with_another_state_is_refused() -> None:
    from cableway._engines import state

    cw.put("s", {"w": [1.0]}, meta={"engine": {**FIELDS, "model": "n"}})
    with pytest.raises(cw.Error, match=r"differs in model"):
        state.find("s", FIELDS)


def test_a_part_without_memory_is_told_and_what_the_engine_dropped_goes() -> None:
    torch = pytest.importorskip("torch")
    from engines_support import model

    from cableway._engines import state

    made = model()
    del made.body._parameters["bias"]  # as an engine does that has packed it elsewhere
    tree = state.publish("s", made, FIELDS, keep=False)
    with torch.device("meta"):
        empty = model(1)
        empty.extra = torch.zeros(3)
    state.attach(empty, tree)
    with pytest.raises(cw.Error, match="lacks extra"):
        state.complete(empty, tree)
    assert "bias" not in empty.body._parameters
    del empty.extra
    state.complete(empty, tree)
