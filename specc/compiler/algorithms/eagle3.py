"""EAGLE3: a head drafts from the outputs of several layers of the target (arXiv 2503.01840).

Where the target has read the text, extend and the draft's prefill take those outputs side by side, in the target's
dtype, and project them themselves; in decode the head reads what it gave before, which is also what is carried. So
two widths meet here, and each is declared by the forward that reads it: `infer-types` finds out whether the target
hands over as many layers of the size that the draft was made for.
"""

from __future__ import annotations

from specc.compiler.algorithms.blocks.recurrent import build_recurrent
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.algorithms.blocks.verification import aux_rows
from specc.compiler.config import ANY, DraftKind, Fit, Needs, Pair
from specc.compiler.support.speculators import KEYS, MARK


def _build(scope: Scope) -> None:
    build_recurrent(scope, reads_hidden=True, from_target=aux_rows(scope))


KIND = DraftKind(
    frozenset({
        "Eagle3Head", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3vlForCausalLM", "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM", "Eagle3DraftModel", "Eagle3Speculator",
    }),
    {
        "draft_vocab_size": ANY, "eagle_aux_hidden_state_layer_ids": ANY, "num_aux_hidden_states": ANY,
        MARK: ("eagle3",), **dict.fromkeys(KEYS, ANY),
    },
    {"eagle_config": {
        "eagle_aux_hidden_state_layer_ids": ANY, "use_aux_hidden_state": ANY,
        "use_input_layernorm_in_first_layer": ANY, "use_last_layernorm": ANY, "parallel_draft_step": (1,),
    }},
)  # fmt: skip
"""Heads as their publishers and engines call them, speculators' among them."""


def _recognises(pair: Pair) -> Fit | None:
    """A head by its class, or by the keys that heads of this kind have."""
    if (draft := pair.draft) is None:
        return None
    if why := KIND.sign(draft.classes, draft.content):
        return Fit(why)
    if draft.language_model is None or draft.block("dflash_config"):  # another head
        return None
    if "eagle_aux_hidden_state_layer_ids" in draft.block("eagle_config"):
        return Fit("the draft's eagle_config lists layers of the target")
    if (size := draft.number("draft_vocab_size")) is None or draft.number("num_layers") != 1:
        return None
    return Fit(f"the draft is one layer, and scores {size} tokens")


EAGLE3 = Algorithm(
    "EAGLE3",
    "a head drafts from several layers of the target",
    _build,
    Needs(target_hidden="aux", recognises=_recognises, kind=KIND),
)
