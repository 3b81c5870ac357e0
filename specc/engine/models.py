"""Language models as an engine runs them: transformers' own code over paged pools, and what is known of their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from specc.engine.attention import NAME, PagedContext
from specc.engine.aux_states import AuxStates
from specc.engine.errors import UnknownTokenError, UnsupportedModelError
from specc.engine.kv_pool import PoolShape
from specc.engine.plan_facts import DTYPES
from specc.support.diagnostics import Diagnostic, DiagnosticError

ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
DYNAMIC_ROPE = {"dynamic", "longrope"}


@dataclass(frozen=True)
class ModelFacts:
    """What a program is built for, in the names of plan.json's `models`; dtype is a plan dtype."""

    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    dtype: str
    max_context: int | None

    @classmethod
    def of(cls, config: PretrainedConfig, dtype: torch.dtype) -> ModelFacts:
        """Read a transformers config; raises UnsupportedModelError for layers that are not attention."""
        text = config.get_text_config()
        unknown = set(getattr(text, "layer_types", None) or ()) - ATTENTION_LAYERS
        if unknown:
            raise UnsupportedModelError(f"layers of type {', '.join(sorted(unknown))} are not implemented")
        heads = text.num_attention_heads
        return cls(
            hidden_size=text.hidden_size,
            num_layers=text.num_hidden_layers,
            num_kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            vocab_size=text.vocab_size,
            dtype={known: name for name, known in DTYPES.items()}[dtype],
            max_context=getattr(text, "max_position_embeddings", None),
        )

    @property
    def pool(self) -> PoolShape:
        """The KV pool that the model needs."""
        return PoolShape(self.num_layers, self.num_kv_heads, self.head_dim, DTYPES[self.dtype])

    def check(self, role: str, plan: Mapping[str, Any]) -> None:
        """Refuse a model that the program was not built for: a DiagnosticError with every difference."""
        names = ("hidden_size", "num_layers", "num_kv_heads", "head_dim", "vocab_size", "dtype")
        wrong = [
            f"{name} is {getattr(self, name)}, the program was built for {plan[name]}"
            for name in names
            if plan.get(name) is not None and plan[name] != getattr(self, name)
        ]
        if wrong:
            hint = f"give the model that the config's `{role}.model` named, or rebuild for this one"
            message = f"the {role} model does not fit the program: {'; '.join(wrong)}"
            raise DiagnosticError(Diagnostic("run/model-mismatch", message, hint=hint))


class CausalModel:
    """A causal language model of transformers, run over the paged pool.

    Its hidden states are those after the final norm, which is what its lm_head reads.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        """Take over a loaded model, whose attention is switched, and its tokenizer."""
        self.facts = ModelFacts.of(model.config, model.dtype)
        lm_head = model.get_output_embeddings()
        if lm_head is None:
            raise UnsupportedModelError(f"{type(model).__name__} has no lm_head")
        self.model, self._lm_head = model.eval(), lm_head
        self.tokenizer = tokenizer
        self.model.set_attn_implementation(NAME)
        self._softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def capturable(self) -> bool:
        """Whether a forward can be captured: rotary embeddings that grow with the text read lengths back."""
        return has_static_rope(self.model.config)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a text, as transformers' `generate` would take them."""
        found = self.model.generation_config.eos_token_id if self.model.generation_config else None
        if found is None:
            return frozenset()
        return frozenset((found,) if isinstance(found, int) else found)

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise UnknownTokenError for the first token that the model has no embedding of."""
        for place, token in enumerate(tokens):
            if not 0 <= token < self.facts.vocab_size:
                raise UnknownTokenError(place, token, self.facts.vocab_size)

    def forward(self, tokens: Tensor, positions: Tensor, paged: PagedContext) -> Tensor:
        """Run tokens i64[b, n] at positions i64[b, n]: hidden states T[b, n, H]."""
        out = self.model.base_model(input_ids=tokens, position_ids=positions, use_cache=False, paged=paged)
        return out.last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """The scores T[..., V] of the token after each hidden state T[..., H]."""
        scores = self._lm_head(hidden)
        return scores if self._softcap is None else torch.tanh(scores / self._softcap) * self._softcap


class TargetModel(CausalModel):
    """The model whose greedy text the engine produces.

    It hands over its hidden states, or, given `aux_layers` (counted from 1), the outputs of those layers side by side.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None, aux_layers: Sequence[int] = ()) -> None:
        """Take over a loaded model and its tokenizer."""
        super().__init__(model, tokenizer)
        self._aux = AuxStates(model, aux_layers) if aux_layers else None

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """The layers whose outputs are handed over; none where it is the hidden states."""
        return self._aux.layers if self._aux else ()

    @property
    def handed_width(self) -> int:
        """Elements of a row that is handed over."""
        return self.facts.hidden_size * max(1, len(self.aux_layers))

    def sliding_window(self, layer: int) -> int | None:
        """Positions that a layer, counted from 0, attends to, its own included; None for all."""
        config = self.model.config.get_text_config()
        kinds = getattr(config, "layer_types", None)
        slides = kinds is None or kinds[layer] == "sliding_attention"
        return getattr(config, "sliding_window", None) if slides else None

    def handed_over(self, hidden: Tensor) -> Tensor:
        """What the program gets, T[b, n, W], of the forward that just returned the hidden states T[b, n, H]."""
        return self._aux.take() if self._aux else hidden


def has_static_rope(config: PretrainedConfig) -> bool:
    """Whether no rotary embedding that a config asks for, over all its layer types, depends on the length read."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return DYNAMIC_ROPE.isdisjoint(str(record.get("rope_type", "default")) for record in (parameters, *nested))
