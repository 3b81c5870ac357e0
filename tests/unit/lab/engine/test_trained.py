"""The engine with the trained models of the examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.program import FakeProgram, make_plan
from memoryless import accepted_lengths, emitted

from specc.lab.engine.engine import Engine
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import EagleDraft, StandaloneDraft
from specc.lab.engine.models.heads.eagle_head import EagleHead
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions

EXAMPLES = Path(__file__).parents[4] / "examples" / "models"
PROMPTS = ["def main():\n", "import os\n", "class Node:\n    def __init__(self, value):\n        self."]
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.skipif(not (EXAMPLES / "target").is_dir(), reason="the examples have no models")


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Return the trained target and both drafts."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    tokenizer = transformers.AutoTokenizer.from_pretrained(EXAMPLES / "target")
    target = TargetModel(load(EXAMPLES / "target"), tokenizer)
    head = EagleHead.from_directory(EXAMPLES / "eagle", target.model)
    standalone = StandaloneDraft(load(EXAMPLES / "standalone"))
    return {"target": target, "standalone": standalone, "eagle": EagleDraft(head)}


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("kind", "shifted"), [("standalone", False), ("standalone", True), ("eagle", True)])
def test_trained_drafts_are_as_good_as_without_kv_memory(
    trained: dict[str, Any], kind: str, shifted: bool, steps: int
) -> None:
    target, draft = trained["target"], trained[kind]
    plan = make_plan(target, draft, steps=steps, shifted=shifted, page_size=16)
    engine = Engine(FakeProgram(plan), target, draft, max_context=128)
    for completion in engine.generate(PROMPTS, StopConditions(max_new_tokens=32)):
        text = (*completion.prompt_ids, *greedy(target, completion.prompt_ids, 32 + steps))
        expected = accepted_lengths(target, draft, text, len(completion.prompt_ids), steps, shifted=shifted)
        assert completion.token_ids == text[len(completion.prompt_ids) :][:32]
        assert completion.accept_lens == emitted(expected, 32 - 1)
    assert len(engine.stats.accept_lens) > 1


def test_text_and_stop_strings(trained: dict[str, Any]) -> None:
    target, draft = trained["target"], trained["eagle"]
    pieces: list[str] = []
    engine = Engine(
        FakeProgram(make_plan(target, draft)), target, draft, on_token=lambda event: pieces.append(event.text)
    )
    (free,) = engine.generate([PROMPTS[0]], StopConditions(max_new_tokens=32))
    assert free.text == "".join(pieces) == engine.tokenizer.decode(free.token_ids)
    assert free.text is not None
    stop = free.text[10:13]
    pieces.clear()
    (cut,) = engine.generate([PROMPTS[0]], StopConditions(max_new_tokens=32, stop=(stop,)))
    assert cut.text == "".join(pieces) == free.text[: free.text.index(stop)]
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert cut.finish_reason == "stop"
