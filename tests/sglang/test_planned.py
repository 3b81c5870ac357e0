"""Attention that the host plans: before each step of a program it knows the lengths that the step has on the device."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang_programs import build_program
from sglang_server import Variant, serve
from sglang_workload import workload

VARIANTS = [
    Variant("EAGLE", "eagle", overlap=True, program=True),
    Variant("STANDALONE", "standalone", topk=4, num_draft_tokens=12, program=True),
    Variant("NGRAM", topk=2, num_draft_tokens=7, overlap=True, program=True),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_host_knows_the_lengths_of_a_step(variant: Variant, models: Path, tmp_path: Path) -> None:
    """While requests join, leave and begin anew; a step with other lengths than it was planned for ends the server."""
    engine = variant.engine(models)
    wheel = build_program(engine, tmp_path / "wheel", *variant.options)
    served = serve(
        engine,
        workload(48, seed=2),
        tmp_path / "job",
        overlap=variant.overlap,
        wheel=wheel,
        settings={"SPECC_TEST_PLAN": "1"},
    )
    plans, state = served.state["specc_testing"]["plans"], served.state["specc"]
    assert plans["planned"] == plans["run"] == state["served"] > 40
    assert served.state["specc_testing"]["overlap"] == variant.overlap
    assert not {"no lengths on the host", "no room for a step"} & state["left"].keys()
