"""docs/dashboards/specc.json: every query names metrics that are there, with labels that they have."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
BOARD = json.loads((ROOT / "docs" / "dashboards" / "specc.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
LEGENDS = [target["legendFormat"] for panel in BOARD["panels"] for target in panel["targets"]]

SCRIPT = """
import json, types
from prometheus_client import REGISTRY
from specc.engines._counters import Counters, Verified

package = types.SimpleNamespace(__name__="a_program", __version__="1")
shape = types.SimpleNamespace(num_steps=3, num_nodes=4)
counters = Counters(package, "SGLang")
counters.active("none")
counters.count(shape)
Verified(package).count(shape, [1, 4])
samples = [sample for family in REGISTRY.collect() for sample in family.samples if not sample.name.endswith("_created")]
print(json.dumps({sample.name: sorted(sample.labels) for sample in samples if sample.name.startswith("specc:")}))
"""
OF_VLLM = {
    "vllm:spec_decode_num_drafts_total": ["engine", "model_name"],
    "vllm:spec_decode_num_draft_tokens_total": ["engine", "model_name"],
    "vllm:spec_decode_num_accepted_tokens_total": ["engine", "model_name"],
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": ["engine", "model_name", "position"],
}
"""What vLLM's scheduler counts by itself, whoever runs the step (vllm/v1/spec_decode/metrics.py)."""


@pytest.fixture(scope="module")
def known() -> dict[str, list[str]]:
    """By name the labels of all metrics: those that the counters make in a process of their own, and vLLM's."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout) | OF_VLLM


def test_every_metric_is_there(known: dict[str, list[str]]) -> None:
    named = {name for query in QUERIES for name in re.findall(r"\b[a-z]+:\w+", query)}
    assert named == set(known)


def test_labels_are_those_of_the_metrics(known: dict[str, list[str]]) -> None:
    for query, legend in zip(QUERIES, LEGENDS, strict=True):
        labels = {label for name in re.findall(r"\b[a-z]+:\w+", query) for label in known[name]}
        grouped = {word.strip() for words in re.findall(r"by \(([^)]+)\)", query) for word in words.split(",")}
        filtered = {word for words in re.findall(r"\{([^}]+)\}", query) for word in re.findall(r"(\w+)[!=]", words)}
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert grouped | filtered | shown <= labels, query
        assert shown <= grouped or ("by (" not in query and "sum" not in query), query


def test_it_is_a_dashboard() -> None:
    panels: list[dict[str, Any]] = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(query.count(left) == query.count(right) for query in QUERIES for left, right in ("()", "{}", "[]"))
    assert {panel["datasource"]["uid"] for panel in panels} == {"${source}"}
    assert BOARD["templating"]["list"][0]["name"] == "source"
    boxes = [panel["gridPos"] for panel in panels]
    cells = [(box["x"] + x, box["y"] + y) for box in boxes for x in range(box["w"]) for y in range(box["h"])]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
