"""Every causal language model that transformers knows is right in the engine, or refused; and the list says so."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from specc.lab.engine.models import causal_models as engine_models

from . import causal_types
from .causal_types import HEADING, PAGE, TYPES, in_page, read_list, rendered, verdict

VERSION, LISTED = read_list()
ONCE_WRONG = (
    *("bloom", "codegen", "cpmant", "diffllama", "gpt_neo", "gpt_neox_japanese", "gptj", "hrm_text", "mpt", "mvp"),
    *("openai-gpt", "phi3", "phimoe", "qwen2_moe", "rwkv", "trocr", "xglm"),
)
"""Types that were accepted once and got wrong text."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TYPES)
def test_a_type_is_right_or_refused(kind: str) -> None:
    transformers.utils.logging.set_verbosity_error()
    outcome = verdict(kind)
    assert outcome.status != "wrong", outcome.reason
    if transformers.__version__ == VERSION and LISTED[kind].status != "not built":  # for lack of a package, perhaps
        assert outcome.status == LISTED[kind].status, "run `make models`, and look at what has changed"


LONG_ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


@pytest.mark.parametrize(
    ("kind", "status", "options"),
    [
        ("bert", "refused", {"is_decoder": False}),
        ("llama", "right", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}),
        ("llama4_text", "right", {"attention_chunk_size": 8}),
        ("llama4_text", "refused", {"floor_scale": 16}),  # its scale counts positions by one length for all rows
        ("phi3", "right", {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 96}),
        ("qwen2_moe", "right", {"max_window_layers": 0}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_options_that_change_what_a_type_computes(kind: str, status: str, options: dict[str, Any]) -> None:
    outcome = verdict(kind, **options)
    assert outcome.status == status, outcome.reason


def test_the_list_has_every_type_and_no_wrong_one() -> None:
    assert {outcome.status for outcome in LISTED.values()} == {"right", "refused", "not built"}
    assert all(outcome.reason for outcome in LISTED.values() if outcome.status != "right")
    assert all(LISTED[kind].status in ("right", "refused") for kind in ONCE_WRONG)
    if transformers.__version__ == VERSION:
        assert tuple(LISTED) == TYPES


def test_the_page_shows_the_list() -> None:
    page = PAGE.read_text(encoding="utf-8")
    begin, end = in_page(page)
    assert page.count(HEADING) == 1
    assert page[begin:end] == rendered(VERSION, LISTED), "run `make models`"


def test_text_is_judged_without_the_check_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check of scores would have refused is seen by the text alone: a rotary embedding gone wrong."""
    monkeypatch.setattr("specc.lab.engine.serving.fitting.check_scores", lambda *given: None)
    assert verdict("llama").status == "right"
    plain = engine_models.CausalModel.forward

    def shifted(self: Any, tokens: Any, positions: Any, paged: Any) -> Any:
        return plain(self, tokens, positions * 2, paged)

    monkeypatch.setattr(causal_types.TargetModel, "forward", shifted)
    assert verdict("llama").status == "wrong"
