"""The head whose drafts are told of the one before: its block, its tables, and what it is loaded from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, LlamaConfig

from specc.compiler.ir.ops.head import MARKOV
from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.models.drafts import DflashDraft
from specc.lab.engine.models.heads.dspark_head import DsparkHead
from specc.lab.engine.serving.fitting import tables_of

from .models_for_tests import COMMON, VOCAB, make_model
from .test_heads_dflash import LAYERS, WIDTH, make_rows
from .test_heads_dflash import make_head as make_plain

RANK = 5


def make_head(**more: Any) -> DsparkHead:
    """A random head that shares with a random target; more keys, of a block of theirs too."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_key_value_heads": 2, "markov_rank": RANK}
    options = {"dflash_config": {"target_layer_ids": [0, 2, 3], "block_size": 3}}
    torch.manual_seed(9)
    return DsparkHead(LlamaConfig(**{**COMMON, **sizes, **options, **more})).eval().share_with(make_model(hidden=WIDTH))


@torch.no_grad()
def test_the_bias_is_a_row_of_one_table_times_the_other() -> None:
    head, before = make_head(), torch.tensor([[0, VOCAB - 1], [3, 3]])
    first, second = head.markov_tables
    assert (first.shape, second.shape) == ((VOCAB, RANK), (VOCAB, RANK))
    torch.testing.assert_close(head.markov_head(before), first[before] @ second.T)
    assert not torch.allclose(first, second)


@torch.no_grad()
def test_scores_of_a_part_of_the_tokens() -> None:
    """The bias has their entries, and tokens before are any of the target's."""
    head, tokens = make_head(), torch.tensor([1, 4, 9])
    bias = head.markov_head(torch.arange(VOCAB))
    head.score_only(tokens)
    torch.testing.assert_close(head.markov_head(torch.arange(VOCAB)), bias[:, tokens])
    assert [*map(len, tables_of(DflashDraft(head), MARKOV).values())] == [VOCAB, 3]


@torch.no_grad()
@pytest.mark.parametrize(
    ("said", "places"), [({}, 3), ({"sample_from_anchor": True}, 3), ({"sample_from_anchor": False}, 4)]
)
@pytest.mark.parametrize("inside", [False, True])
def test_rows_of_drafts(said: dict[str, bool], places: int, inside: bool) -> None:
    """An anchored block gives rows of all of them, another all but that of the bonus token; keys may stand apart."""
    options = {"dflash_config": {"target_layer_ids": [0, 2, 3], "block_size": 3, **said}} if inside else said
    draft = DflashDraft(make_head(**options))
    positions = torch.arange(7, 11)[None]
    assert positions[:, draft.places].shape[1] == places
    head, aux, cache = draft.head, make_rows(7), DynamicCache()
    head.config._attn_implementation = "sdpa"
    for layer, pair in enumerate(head.keys_and_values(aux, torch.arange(7)[None])):
        cache.update(*pair, layer)
    everything = torch.ones(1, 1, places, 7 + places, dtype=torch.bool)
    rows = head(torch.tensor([5]), positions[:, draft.places], attention_mask=everything, past_key_values=cache)
    assert rows[:, int(not head.anchored) :].shape == (1, 3, WIDTH)


def test_a_directory_keeps_it(tmp_path: Path) -> None:
    """A head of confidence beside it is left out."""
    head = make_head(sample_from_anchor=False)
    head.save(tmp_path)
    target = make_model(hidden=WIDTH)
    again = DsparkHead.from_directory(tmp_path, target)
    assert not again.anchored
    for one, other in zip(head.markov_tables, again.markov_tables, strict=True):
        assert torch.equal(one, other)
    weights = {**head.state_dict(), "confidence_head.proj.weight": torch.ones(1, 1)}
    assert head.adapt(weights).keys() == head.state_dict().keys()


def test_what_has_no_markov_head() -> None:
    with pytest.raises(ValueError, match="says no markov_rank"):
        make_head(markov_rank=0)
    with pytest.raises(UnsupportedModelError, match="tables of a Markov head, which the draft does not have"):
        tables_of(DflashDraft(make_plain()), MARKOV)
    assert dict.fromkeys(MARKOV) == dict.fromkeys(tables_of(DflashDraft(make_head()), MARKOV))
