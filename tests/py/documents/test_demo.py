"""The demo's last sentences are true for what was measured, also where that contradicts what one would like to read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("tqdm")
FOLDER = Path(__file__).resolve().parents[3] / "docs/examples/demo"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="no docs here")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.syspath_prepend(str(FOLDER))
    names = {path.stem for path in FOLDER.glob("*.py")}
    import demo

    yield demo
    for name in names:
        sys.modules.pop(name, None)


def rounds_of(demo: Any, seconds: dict[str, list[float]]) -> dict[str, list[Any]]:
    return {
        name: [demo.Result(value, value, 100 << 20, [1.0]) for value in values]
        for name, values in seconds.items()
    }


def test_a_row_that_contradicts_is_said(demo: Any) -> None:
    rounds = rounds_of(
        demo,
        {
            "serial": [4.0, 4.0, 4.0],
            "arguments": [2.0, 8.0, 2.1],  # not the same in all rounds
            "copies": [1.0, 1.0, 1.0],  # faster than ours
            "inherited": [2.0, 2.02, 1.98],
            "named": [2.0, 2.0, 2.0],
        },
    )
    results = {name: found[0] for name, found in rounds.items()}
    said = demo.conclusion("svr", results, rounds)
    titles = {name: row[0] for name, row in demo.ARRANGEMENTS.items()}
    parts = dict(
        zip(("serial", "arguments", "copies", "inherited"), said.split(' of "'), strict=False)
    )
    assert "0.50 of the time" in parts["serial"]
    assert "rounds differ: 0.25 to 1.00" in parts["arguments"]
    assert "2.00 of the time" in parts["copies"]
    assert "took as long" in parts["inherited"]
    assert all(titles[name] in said for name in ("serial", "arguments", "copies", "inherited"))


def test_rounds_go_through_all_arrangements_in_turn(
    demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def measure(arrangement: str, name: str, workers: int) -> Any:
        ran.append(arrangement)
        return demo.Result(1.0, 1.0, 1 << 20, [0.5] if arrangement != "copies" else [0.25])

    monkeypatch.setattr(demo, "measure", measure)
    equal, said = demo.compare("svr", "title", 2)
    order = list(demo.ARRANGEMENTS)
    assert ran == (order + order[::-1]) * 2 + order
    assert not equal and "DIFFERENT" in capsys.readouterr().out
    assert "took as long" in said and "as much memory" in said
