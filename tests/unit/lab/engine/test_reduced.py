"""Drafts that score a part of the target's tokens: by their own weights, or by a file for any draft."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes.program import make_plan, with_model
from torch import nn

from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.engine.errors import EngineError, UnsupportedModelError
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import Draft, Eagle3Draft, StandaloneDraft
from specc.lab.engine.models.heads.eagle3_head import Eagle3Head
from specc.lab.engine.models.loading import load_draft
from specc.lab.engine.models.scores import rows_of
from specc.lab.engine.serving.fitting import bring_tables
from specc.runtime.plan.plan import TOKEN_MAP, Input, Plan

from .models_for_tests import make_model
from .test_eagle3 import LAYERS, make_head

V, TOKENS = 97, [0, 4, 5, 50, 96]


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """A random target of four layers that hands over two."""
    return TargetModel(make_model(layers=4), aux_layers=LAYERS)


def reduced_plan(target: TargetModel, draft: Draft, rows: int = len(TOKENS)) -> Plan:
    """A plan for a draft that scores so many tokens."""
    plan = make_plan(target, draft, steps=3, shifted=True)
    plan = replace(plan, inputs={**plan.inputs, TOKEN_MAP: Input(TOKEN_MAP, "i64", ("Vd",), "engine", "V")})
    plan = with_model(plan, "target", aux_layers=LAYERS)
    return with_model(plan, "draft", vocab_size=rows)


def saved(target: TargetModel, path: Path, offsets: list[int] | None) -> Eagle3Head:
    """A head in a directory, of all tokens or of those that its offsets say."""
    head = make_head(target, draft_vocab_size=None if offsets is None else len(offsets))
    if offsets is not None:
        head.get_buffer("d2t").copy_(torch.tensor(offsets))
    head.save(path)
    return head


def test_a_head_says_what_it_scores(target: TargetModel, tmp_path: Path) -> None:
    offsets = [token - row for row, token in enumerate(TOKENS)]
    head = saved(target, tmp_path, offsets)
    plan = reduced_plan(target, Eagle3Draft(head))
    draft = load_draft(tmp_path, plan, target)
    assert draft.token_map is not None
    assert (draft.token_map.tolist(), draft.facts.vocab_size) == (TOKENS, len(TOKENS))
    hidden = torch.randn(2, 3, 32)
    torch.testing.assert_close(draft.logits(hidden), head.lm_head(head.norm(hidden)))
    assert bring_tables(plan, {}, draft)[TOKEN_MAP] is draft.token_map


@pytest.mark.parametrize(
    ("offsets", "code"), [([0, 0, 0, 0, 93], "map/range"), ([0, 0, -1, 0, 0], "map/repeated"), ([1, -1], "map/length")]
)
def test_weights_whose_map_is_wrong(target: TargetModel, tmp_path: Path, offsets: list[int], code: str) -> None:
    head = saved(target, tmp_path, offsets)
    with pytest.raises(DiagnosticError, match=code):
        load_draft(tmp_path, reduced_plan(target, Eagle3Draft(head)), target)


def test_a_file_takes_rows_of_a_head_of_all_tokens(target: TargetModel, tmp_path: Path) -> None:
    head = saved(target, tmp_path, None)
    (tmp_path / "map.json").write_text(json.dumps(TOKENS))
    plan = reduced_plan(target, Eagle3Draft(head))
    draft = load_draft(tmp_path, plan, target, tmp_path / "map.json")
    hidden = torch.randn(2, 32)
    torch.testing.assert_close(draft.logits(hidden), head.lm_head(head.norm(hidden))[:, TOKENS])
    for file, reason in ((None, "nothing says which"), (tmp_path / "none.json", "map/unreadable")):
        with pytest.raises(DiagnosticError, match=reason):
            load_draft(tmp_path, plan, target, file)


def test_a_file_beside_weights_that_say_it(target: TargetModel, tmp_path: Path) -> None:
    head = saved(target, tmp_path, [0] * 5)
    (tmp_path / "map.json").write_text(json.dumps(TOKENS))
    with pytest.raises(DiagnosticError, match="its weights say which, and so does a file"):
        load_draft(tmp_path, reduced_plan(target, Eagle3Draft(head)), target, tmp_path / "map.json")


def test_a_program_of_all_tokens_takes_no_map(target: TargetModel, tmp_path: Path) -> None:
    saved(target, tmp_path, [0] * 5)
    plan = with_model(
        make_plan(target, Eagle3Draft(make_head(target)), steps=3, shifted=True), "target", aux_layers=LAYERS
    )
    with pytest.raises(DiagnosticError, match="scores all tokens"):
        load_draft(tmp_path, plan, target)


def test_a_language_model_scores_a_part() -> None:
    model = make_model(layers=2)
    draft, tokens = StandaloneDraft(model), torch.tensor(TOKENS)
    whole = draft.logits(hidden := torch.randn(3, 32))
    draft.score_only(tokens)
    torch.testing.assert_close(draft.logits(hidden), whole[:, TOKENS])
    torch.testing.assert_close(draft.scores(hidden), whole)
    assert (draft.facts.vocab_size, draft.token_map) == (len(TOKENS), tokens)
    model.lm_head.weight.data.zero_()  # a copy of its rows: nothing of the model is cut or shared
    torch.testing.assert_close(draft.logits(hidden), whole[:, TOKENS])


def test_a_bias_goes_with_its_row() -> None:
    head = nn.Linear(4, V)
    rows = torch.randn(2, 4)
    torch.testing.assert_close(rows_of(head, torch.tensor(TOKENS))(rows), head(rows)[:, TOKENS])


def test_a_head_that_is_no_matrix() -> None:
    with pytest.raises(UnsupportedModelError, match="no part of a Sequential"):
        rows_of(nn.Sequential(), torch.tensor(TOKENS))


def test_a_map_that_nobody_has(target: TargetModel, tmp_path: Path) -> None:
    draft = Eagle3Draft(make_head(target))
    with pytest.raises(EngineError, match="reads a table 'd2t'"):
        bring_tables(reduced_plan(target, draft), {}, draft)
