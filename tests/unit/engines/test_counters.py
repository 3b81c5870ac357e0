"""What programs count in engines, as prometheus_client has it: in one process, and in files that several leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from specc.engines._counters import Verified
from specc.runtime.plan.shape import Shape

EVERY, BUDGET = Shape(5, 1, 6), Shape(5, 1, 6, 3)

SCRIPT = """
import json, sys, types, warnings
from prometheus_client import REGISTRY
from specc.engines._counters import Counters

warnings.simplefilter("error")
package = types.SimpleNamespace(__name__="counted", __version__="1+p1")
for captured in (("none",), ("none", "drafts")):  # the second time it is bound again, and captured
    counters = Counters(package, sys.argv[1])
    for what in captured:
        counters.active(what)
    counters.count("5x4x8")
    counters.left("sampling")
counters.count("0")
print(json.dumps([(row.name, row.labels, row.value) for family in REGISTRY.collect() for row in family.samples]))
"""


@pytest.mark.parametrize("engine", ["SGLang", "vLLM"])
@pytest.mark.parametrize("files", [False, True], ids=["process", "files"])
def test_steps_are_counted_by_who_ran_them_and_why(engine: str, files: bool, tmp_path: Path) -> None:
    environment = os.environ | ({"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)} if files else {})
    ended = subprocess.run([sys.executable, "-c", SCRIPT, engine], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    samples = json.loads(ended.stdout)
    if files:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(tmp_path))
        samples = [
            (sample.name, sample.labels, sample.value) for family in registry.collect() for sample in family.samples
        ]
    counted = {
        (name, *(labels.get(key, "") for key in ("program", "by", "reason", "shape", "version", "capture"))): value
        for name, labels, value in samples
        if name in ("specc:decode_steps_total", "specc:program_active")
    }
    assert counted == {
        ("specc:decode_steps_total", "counted", "program", "", "5x4x8", "", ""): 2,
        ("specc:decode_steps_total", "counted", "program", "", "0", "", ""): 1,
        ("specc:decode_steps_total", "counted", engine.lower(), "sampling", "", "", ""): 2,
        ("specc:program_active", "counted", "", "", "", "1+p1", "none"): 0,
        ("specc:program_active", "counted", "", "", "", "1+p1", "drafts"): 1,
    }


def test_rows_are_counted_that_a_budget_leaves_and_spares() -> None:
    """Padding leaves its share of a bucket's rows to requests, which have no more of them than nodes."""
    verified = Verified(SimpleNamespace(__name__="of_rows"))
    for shape, requests, size in ((BUDGET, 5, 8), (BUDGET, 2, 2), (BUDGET, 1, 8), (EVERY, 5, 8)):
        verified.read(shape, requests, size)

    def counted(name: str, shape: Shape) -> float | None:
        return REGISTRY.get_sample_value(f"specc:rows_{name}_total", {"program": "of_rows", "shape": str(shape)})

    assert (counted("verified", BUDGET), counted("saved", BUDGET)) == (24 + 6 + 6, 6 + 6 + 0)
    assert (counted("verified", EVERY), counted("saved", EVERY)) == (30, 0)
