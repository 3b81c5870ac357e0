"""The plugin of docs/plugins.md in the place of SGLang's EAGLE, on a CPU: a token is never drafted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_job import specc
from plugin_page import install_page
from sglang_disaggregated import serve_apart
from sglang_family import all_accounted_for, same_texts
from sglang_files import ON_GPU
from sglang_programs import write_program
from sglang_server import PLAIN, Served, Variant, accept_length, serve
from sglang_workload import without_aborts, workload

OWN = Variant("EAGLE", "eagle", overlap=True)
PROGRAMS = [replace(OWN, program=True), replace(OWN, topk=3, num_draft_tokens=8, program=True)]
REQUESTS = 60
"""Requests, of which some are thrown out and begin anew."""


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    return without_aborts(workload(REQUESTS, seed=9))


@pytest.fixture(scope="module")
def alone(models: Path, requests: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Served:
    return serve(PLAIN.engine(models), requests, tmp_path_factory.mktemp("alone") / "job")


def usual(served: Served) -> int:
    """The token that stands in answers most often."""
    counts = Counter(token for output in served.outputs for token in output["token_ids"])
    return counts.most_common(1)[0][0]


def sober(engine: Mapping[str, Any], never: int, folder: Path) -> Path:
    """The wheel of the page's algorithm for an engine of EAGLE, which never drafts a token."""
    install_page(folder)
    config = write_program(engine, folder / "wheel")
    text = config.read_text().replace("algorithm: EAGLE", "algorithm: SOBER")
    config.write_text(f"{text}options: {{never: {never}}}\n")
    specc("build", str(config), "-o", str(config.parent), "--quiet", beside=folder)
    [wheel] = config.parent.glob("*.whl")
    return wheel


@pytest.mark.parametrize("variant", PROGRAMS, ids=str)
def test_steps_are_the_plugins_and_texts_the_targets(
    variant: Variant, models: Path, requests: list[dict[str, Any]], alone: Served, tmp_path: Path
) -> None:
    """Its drafts are EAGLE's, but for a token that stands in texts often and is never drafted by a step."""
    engine, never = variant.engine(models), usual(alone)
    wheel = sober(engine, never, tmp_path)
    served = serve(engine, requests, tmp_path / "job", overlap=variant.overlap, wheel=wheel)
    same_texts(served, alone)
    all_accounted_for(served.state["specc_testing"])
    assert served.state["specc"]["served"] > 100
    assert set(served.state["specc"]["left"]) <= {"logprobs", "sampling"}
    assert accept_length(served) > 1.3
    for output in served.outputs:
        if not output["num_retractions"] and output.get("spec_verify_ct"):
            # A step emits it as the bonus token, or not; the first step has drafts of SGLang's prefill.
            assert output["spec_verify_ct"] >= output["token_ids"][1:].count(never) - 1


@pytest.mark.skipif(ON_GPU, reason="the transport is a stand-in for processes of a CPU")
def test_a_server_that_prefills_hands_over_what_the_plugin_carries(
    models: Path, requests: list[dict[str, Any]], alone: Served, tmp_path: Path
) -> None:
    """What EAGLE carries, in whose place it runs: the first token, the best drafts behind it, and hidden states."""
    variant = PROGRAMS[0]
    engine = variant.engine(models)
    wheel = sober(engine | {"disaggregation_mode": "decode"}, usual(alone), tmp_path)
    wheels = dict.fromkeys(("prefill", "decode"), wheel)
    sides = serve_apart(engine, requests, tmp_path / "job", overlap=variant.overlap, wheels=wheels)
    same_texts(sides["decode"], alone)
    assert sides["decode"].state["specc"]["served"] > 100
    assert accept_length(sides["decode"]) > 1.3
    for served in sides.values():
        all_accounted_for(served.state["specc_testing"])
