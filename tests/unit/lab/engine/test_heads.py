"""The head of a draft, as an engine hands it to a program that computes it."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Cohere2Config, Gemma2Config, LlamaConfig, PretrainedConfig

from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.models.drafts import StandaloneDraft
from specc.lab.engine.serving.fitting import head_of

SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
}


def draft_of(config: PretrainedConfig) -> StandaloneDraft:
    torch.manual_seed(1)
    return StandaloneDraft(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_of_a_language_model(tied: bool) -> None:
    draft = draft_of(LlamaConfig(**SIZES, tie_word_embeddings=tied))
    assert head_of(draft).data_ptr() == draft.model.get_output_embeddings().weight.data_ptr()


def test_the_head_of_a_part_of_the_tokens() -> None:
    draft, tokens = draft_of(LlamaConfig(**SIZES)), torch.arange(1, 90, 3)
    whole = head_of(draft)
    draft.score_only(tokens)
    assert torch.equal(head_of(draft), whole[tokens])


@pytest.mark.parametrize(
    "config",
    [Gemma2Config(**SIZES, final_logit_softcapping=0.05), Cohere2Config(**SIZES, logit_scale=0.0625)],
    ids=["cap", "scale"],
)
def test_scores_that_are_no_product_are_refused(config: PretrainedConfig) -> None:
    with pytest.raises(UnsupportedModelError, match="are not the product of its hidden states and its head"):
        head_of(draft_of(config))
