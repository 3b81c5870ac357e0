"""What programs count in engines, as prometheus_client has it: in one process, and in files that several leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

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
