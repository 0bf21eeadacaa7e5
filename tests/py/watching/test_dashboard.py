"""The examples for Prometheus and Grafana fit what `cableway metrics` prints."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_support import run
from conftest import eventually
from prometheus_client.openmetrics import parser as openmetrics

import cableway as cw

FOLDER = Path(__file__).resolve().parents[3] / "docs/examples/exporter"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="no examples here")


def queries() -> list[str]:
    """Every expression of the dashboard."""
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return [*found, *(one["definition"] for one in dashboard["templating"]["list"] if "definition" in one)]  # fmt: skip


def test_each_metric_of_the_dashboard_is_printed_with_the_labels_that_it_uses() -> None:
    x = cw.put("dashboard/x", [1])
    with cw.Pool(1) as pool:
        pool.map(abs, [1])
        assert eventually(lambda: "cableway_pool_tasks_total{" in run("metrics").stdout)
        families = list(openmetrics.text_string_to_metric_families(run("metrics").stdout))
    samples: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    seen = set()
    for query in queries():
        used = re.findall(r"\bcableway_\w+", query)
        assert used, query
        labels = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in re.split(r", *", group)}  # fmt: skip
        labels |= set(re.findall(r"[{,](\w+)=", query)) - {"instance"}  # this one is Prometheus's
        for name in used:
            assert name in samples, (query, name)
            assert labels <= samples[name], (query, name, labels)
            kind = next(family.type for family in families if name in (family.name, f"{family.name}_total"))  # fmt: skip
            assert (kind == "counter") == bool(re.search(rf"(rate|increase)\({name}\b", query)), query  # fmt: skip
        seen |= set(used)
    assert len(seen) >= 20
    assert x.nbytes == 8


def test_the_dashboard_can_be_imported_anywhere() -> None:
    dashboard = json.loads((FOLDER / "grafana.json").read_text())
    panels: list[Any] = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))  # none lies on another


def test_prometheus_takes_the_example_of_its_configuration() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    done = subprocess.run([promtool, "check", "config", FOLDER / "prometheus.yml"], capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    asked = [query for query in queries() if not query.startswith("label_values(")]
    plain = [query.replace("$__rate_interval", "5m").replace("$instance", ".*") for query in asked]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(plain)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
