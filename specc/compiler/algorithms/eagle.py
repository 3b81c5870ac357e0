"""EAGLE: a one-layer head drafts from the target's hidden states (arXiv 2401.15077, 2406.16858).

At draft position p it reads the pair (token p + 1, hidden state p). The first hidden state of a step is carried from
the last extend, the next ones are the head's own; extend reads the target's. Both enter the same module, so the
target's spec width must be the draft's: `infer-types` finds out.
"""

from __future__ import annotations

from specc.compiler.algorithms.blocks.recurrent import build_recurrent
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.config import ANY, DraftKind, Fit, Needs, Pair


def _build(scope: Scope) -> None:
    build_recurrent(scope, reads_hidden=True)


KIND = DraftKind(
    frozenset({
        "EagleHead", "EAGLEModel", "LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle", "MistralForCausalLMEagle",
        "MistralLarge3ForCausalLMEagle", "EagleLlamaForCausalLM", "EagleLlama4ForCausalLM", "EagleMiniCPMForCausalLM",
        "EagleCohereForCausalLM", "EagleMistralForCausalLM", "EagleMistralLarge3ForCausalLM", "EagleDeepSeekMTPModel",
    }),
    {"draft_vocab_size": ANY},
    {"eagle_config": {"fc": ANY}},
)  # fmt: skip
"""Heads as their publishers and engines call them."""


def _recognises(pair: Pair) -> Fit | None:
    """A head by its class, a single layer as wide as the target, or one module of multi-token prediction."""
    draft, modules = pair.draft, pair.modules
    if modules is not None and modules.modules == 1:
        return Fit(f"'{modules.written}' has one module of multi-token prediction, which runs at every step")
    if draft is None or modules is not None:
        return None
    if why := KIND.sign(draft.classes, draft.content):
        return Fit(why)
    if draft.plain and pair.one_layer_as_wide:
        return Fit("the draft is one layer, as wide as the target, which a language model is not")
    return None


EAGLE = Algorithm(
    "EAGLE",
    "a head drafts from the target's hidden states",
    _build,
    Needs(modules=lambda steps: 1, recognises=_recognises, kind=KIND),
)
