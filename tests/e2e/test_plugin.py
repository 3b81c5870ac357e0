"""The plugin of examples/plugin: an algorithm from a distribution of its own, with specc installed as a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "examples" / "plugin"
ACCEPTED = {"chain": 2.0, "tree": 3.0}
"""Mean accepted lengths that are surely passed: the second branch knows what the draft gets wrong."""


def run(site: Path, *command: str) -> str:
    """Run Python somewhere else, with what is installed in `site` before everything else."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, cwd=site, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(site: Path, *wheels: Path) -> None:
    """Install wheels into `site`."""
    pip = ["-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--quiet", "--target", str(site)]
    run(site, *pip, *map(str, wheels))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with specc and the plugin, both installed from wheels."""
    folder, wheels = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels")
    pip = ["-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    run(folder, *pip, "--wheel-dir", str(wheels), str(ROOT), str(PLUGIN))
    install(folder, *wheels.glob("*.whl"))
    where = run(folder, "-c", "import specc, specc_anchored; print(specc.__file__, specc_anchored.__file__)").split()
    assert all(path.startswith(str(folder)) for path in where), where
    return folder


@pytest.mark.parametrize("form", ["chain", "tree"])
def test_a_foreign_algorithm_decodes(site: Path, form: str) -> None:
    run(site, "-m", "specc.cli.main", "build", str(PLUGIN / f"anchored-{form}.yaml"), "-o", str(site / "dist"))
    install(site, *(site / "dist").glob(f"specc_program_anchored_{form}-*.whl"))
    output = run(site, str(PLUGIN / "demo.py"), f"specc_program_anchored_{form}")
    assert output.startswith("3 texts right, mean accepted length ")
    assert float(output.split()[-1]) > ACCEPTED[form]


@pytest.mark.parametrize("form", ["chain", "tree"])
def test_what_specc_makes_of_it(site: Path, form: str) -> None:
    """Its field has a pool, the draft captures nothing and has no KV pool, its output is compacted in a tree alone."""
    config = str(PLUGIN / f"anchored-{form}.yaml")
    run(site, "-m", "specc.cli.main", "build", config, "-o", str(site / form), "--emit", "plan")
    plan = json.loads((site / form / "plan.json").read_text())
    assert {field["name"]: field["axes"] for field in plan["carry"]} == {
        "bonus": ["B"],
        "anchor": ["B", "64"],
        "seq_lens": ["B"],
    }
    assert [b["shape"] for b in plan["buffers"] if b["name"] == "relay.anchor"] == [[5, 64]]
    assert set(plan["kv_pools"]) == {"target"}
    nodes = [node for phase in plan["phases"] for node in phase["nodes"]]
    (verifying,) = (node for node in nodes if "anchored.repeats" in [op["op"] for op in node.get("ops", ())])
    assert (verifying["name"], verifying["kind"]) == ("verify_argmax", "launch")
    captures = {node["name"]: node["capture"] for node in nodes if node["kind"] == "external"}
    drafts = {f"anchored_{step}": "null" for step in range(3)}
    assert captures == {"prefill_target": "last", "target": "full", **drafts}
    compacted = [op["operands"][0] for node in nodes for op in node.get("ops", ()) if op["op"] == "commit.compact"]
    assert ("tokens" in compacted) == (form == "tree")
    assert {node["name"] for node in nodes} == set(plan["captures"][0]["nodes"]) | {
        node["name"] for phase in plan["phases"] if phase["entry"] == "prefill" for node in phase["nodes"]
    }
