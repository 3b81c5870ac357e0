"""The bytes of a launch are one number, whoever says it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.toys import ROTATED, SAMPLED, TOYS, Toy
from programs import EXAMPLES

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_config, load_text
from specc.compiler.driver.build import build_program
from specc.compiler.explain.document import document
from specc.compiler.explain.page.model import gather
from specc.compiler.explain.story import tell
from specc.lab.measure.steps import known
from specc.runtime.plan.nodes import Launch

NOT_HERE = ("random-qwen3-chain",)
"""Its models are made by a script."""
WRITTEN = [path for path in sorted(EXAMPLES.glob("*.yaml")) if path.stem not in NOT_HERE]


def loaded(program: Path | Toy) -> LoadedConfig:
    if isinstance(program, Path):
        return load_config(program, names(), needs)
    return load_text(program.text, Path("toy.yaml"), names(), needs)


@pytest.mark.parametrize(
    "program",
    [*WRITTEN, *TOYS, *ROTATED, SAMPLED],
    ids=lambda source: source.stem if isinstance(source, Path) else source.name,
)
def test_explain_report_and_bench_say_one_number(program: Path | Toy) -> None:
    for built in build_program(loaded(program)).shapes:
        (bucket,) = known(built.plan, built.plan.buckets[-1:])
        phases = document(tell(built))["phases"]
        nodes = [node for phase in phases if phase["entry"] == "step" for node in phase["nodes"]]
        explained = {node["name"]: node["bytes"] for node in nodes if node["kind"] == "launch"}
        steps = gather(built).of("step")
        reported = {step.node.name: step.bytes for step in steps if isinstance(step.node, Launch)}
        assert {launch.name: launch.bytes for launch in bucket.launches} == explained == reported
        assert explained
