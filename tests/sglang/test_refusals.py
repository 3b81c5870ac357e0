"""Programs inside SGLang where something is in the way: requests, servers and scores that they do not serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sglang_programs import build_program
from sglang_server import SERVER, Variant, serve

PROMPTS = ["def main():\n", "import os\n", "class Foo:\n    def __init__(self"]


def greedy(text: str, **more: Any) -> dict[str, Any]:
    return {"text": text, "sampling": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}, **more}


def roomy(variant: Variant, models: Path) -> dict[str, Any]:
    """Arguments of an engine in which nothing is retracted."""
    return variant.engine(models) | SERVER | {"max_total_tokens": 4096, "schedule_conservativeness": 1.0}


def reason(output: Mapping[str, Any]) -> Mapping[str, Any]:
    return output["finish_reason"]


def test_without_a_fallback(models: Path, tmp_path: Path) -> None:
    """Greedy requests have the texts of an engine that does not speculate; others are turned away by name."""
    engine = roomy(Variant("STANDALONE", "standalone"), models)
    odd = {
        "sampling": greedy("import sys\n") | {"sampling": {"temperature": 0.8, "max_new_tokens": 8}},
        "logprobs": greedy("import sys\n", logprobs=True),
        "penalties": greedy("import sys\n") | {"sampling": {"temperature": 0, "frequency_penalty": 0.5}},
        "logit bias": greedy("import sys\n") | {"sampling": {"temperature": 0, "logit_bias": {"5": 1.0}}},
    }
    requests = [*map(greedy, PROMPTS), *odd.values()]
    wheel, settings = build_program(engine, tmp_path / "wheel"), {"SPECC_FALLBACK": "refuse"}
    served = serve(engine, requests, tmp_path / "program", wheel=wheel, settings=settings)
    plain = serve(roomy(Variant(), models), requests[: len(PROMPTS)], tmp_path / "plain")
    for answer, expected in zip(served.outputs, plain.outputs, strict=False):
        assert answer["token_ids"] == expected["token_ids"]
    assert served.state["specc"]["served"] > 0
    assert served.state["specc"]["left"] == {}
    for what, output in zip(odd, served.outputs[len(PROMPTS) :], strict=True):
        assert reason(output)["type"] == "abort"
        assert f"does not serve {what}" in reason(output)["message"]


def test_scores_that_are_no_numbers_end_their_request_alone(models: Path, tmp_path: Path) -> None:
    engine = roomy(Variant("STANDALONE", "standalone"), models)
    wheel = build_program(engine, tmp_path / "wheel")
    clean = serve(engine, [*map(greedy, PROMPTS)], tmp_path / "clean", wheel=wheel)
    tokens = [set(output["token_ids"]) for output in clean.outputs]
    spoiled = clean.outputs[0]["token_ids"]
    token = next(candidate for candidate in spoiled[4:] if candidate not in tokens[1] | tokens[2])
    served = serve(
        engine, [*map(greedy, PROMPTS)], tmp_path / "nan", wheel=wheel, settings={"SPECC_TEST_NAN": str(token)}
    )
    ended = reason(served.outputs[0])
    assert ended["type"] == "abort"
    assert "NaN" in ended["message"]
    assert "health word" in ended["message"]
    for answer, expected in zip(served.outputs[1:], clean.outputs[1:], strict=True):
        assert answer["token_ids"] == expected["token_ids"]


def test_a_program_that_does_not_fit(models: Path, tmp_path: Path) -> None:
    """A server that must run it ends, and says all that differs; another runs SGLang's own steps, and says so."""
    wheel = build_program(roomy(Variant("STANDALONE", "standalone"), models), tmp_path / "wheel")
    engine = roomy(Variant("STANDALONE", "standalone", topk=4, num_draft_tokens=12), models)
    differs = "topk is 1 in the program, 4 in the server; num_draft_tokens is 4 in the program, 12 in the server"
    with pytest.raises(RuntimeError, match=f"specc_program_served does not fit this server: {differs}"):
        serve(engine, [greedy(PROMPTS[0])], tmp_path / "must", wheel=wheel)
    served = serve(engine, [greedy(PROMPTS[0])], tmp_path / "may", wheel=wheel, settings={"SPECC_PROGRAM": ""})
    assert f"does not fit this server: {differs}" in served.log
    assert "specc" not in served.state
