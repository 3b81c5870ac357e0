"""Language models as an engine runs them: transformers' own code over paged pools, and what is known of their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from operator import index
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.lab.engine.errors import UnknownTokenError
from specc.lab.engine.memory.attention import page, plain_attention
from specc.lab.engine.memory.context import PagedContext
from specc.lab.engine.memory.kv_pool import PoolShape
from specc.lab.engine.memory.probing import CACHE, Kept, kept_by
from specc.lab.engine.memory.state_pool import PartShape
from specc.lab.engine.models.aux_states import AuxStates
from specc.lab.engine.models.scores import LmHead, layers_of
from specc.runtime.plan.plan import Model
from specc.runtime.semantics.convention import DTYPES

DYNAMIC_ROPE = {"dynamic", "longrope"}
ROPE_BOUNDARY = "original_max_position_embeddings"
CONTEXT_KEYS = ("max_position_embeddings", "max_target_positions", "max_seq_len")
"""Where configs say how many positions there are."""


@dataclass(frozen=True)
class ModelSizes:
    """What a program is built for, in the names of plan.json's `models`; dtype is a plan dtype.

    `kv_layers` are the numbers of the `num_layers` layers that keep keys and values. `states` is what recurrent layers
    keep of a request; a layer may keep both.
    """

    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_layout: str
    vocab_size: int
    dtype: str
    max_context: int | None
    kv_layers: tuple[int, ...] = ()
    states: tuple[PartShape, ...] = ()

    @classmethod
    def of(cls, config: PretrainedConfig, dtype: torch.dtype, kept: Kept | None = None) -> ModelSizes:
        """Read a transformers config. kept: what the model keeps of a token, by default as plain attention does."""
        text = config.get_text_config()
        kept = kept or _kept_by_layers_of(text)
        return cls(
            hidden_size=text.hidden_size,
            num_layers=len(kept.layers),
            num_kv_heads=kept.kv_heads,
            head_dim=kept.head_dim,
            kv_layout="mla" if kept.latent else "mha",
            vocab_size=text.vocab_size,
            dtype={known: name for name, known in DTYPES.items()}[dtype],
            max_context=_context_of(text),
            kv_layers=kept.layers,
            states=kept.states,
        )

    @property
    def pool(self) -> PoolShape:
        """The KV pool that the model needs."""
        sizes = (self.num_layers, self.num_kv_heads, self.head_dim)
        return PoolShape(*sizes, DTYPES[self.dtype], latent=self.kv_layout == "mla", numbers=self.kv_layers)

    def check(self, role: str, wanted: Model) -> None:
        """Refuse a model that the program was not built for: a DiagnosticError with every difference."""
        names = ("hidden_size", "num_layers", "num_kv_heads", "head_dim", "kv_layout", "vocab_size", "dtype")
        wrong = [
            f"{name} is {getattr(self, name)}, the program was built for {getattr(wanted, name)}"
            for name in names
            if getattr(wanted, name) != getattr(self, name)
        ]
        if wrong:
            hint = f"give the model that the config's `{role}.model` named, or rebuild for this one"
            message = f"the {role} model does not fit the program: {'; '.join(wrong)}"
            raise DiagnosticError(Diagnostic("run/model-mismatch", message, hint=hint))


class CausalModel:
    """A causal language model of transformers, run over the paged pool.

    Its hidden states are those after the final norm, which is what its lm_head reads.

    Attributes:
        compared: tokens of the longest text of which paged memory is known to give the model's own scores.
        warnings: what whoever loaded it should know.

    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        """Take over a loaded model, whose attention is switched, and its tokenizer."""
        self.model, self.tokenizer = model.eval(), tokenizer
        self._head = LmHead(model)
        self._layers: Any = getattr(model, layers_of(model))
        with plain_attention(model):
            self.facts = ModelSizes.of(model.config, model.dtype, kept_by(model, self._layers))
        self.compared = 0
        self.warnings: list[Diagnostic] = []
        page(model)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def takes_positions(self) -> bool:
        """Whether the model's code can be told where tokens are."""
        return "position_ids" in signature(self._layers.forward).parameters

    @property
    def has_usual_attention(self) -> bool:
        """Whether the model's attention goes through transformers' interface."""
        return self.model._can_set_attn_implementation()

    @property
    def capturable(self) -> bool:
        """Whether a forward can be captured: rotary embeddings that grow with the text read lengths back.

        So does the commit of recurrent states.
        """
        return has_static_rope(self.model.config) and not self.facts.states

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end a text, as transformers' `generate` would take them."""
        ids = self.model.generation_config.eos_token_id if self.model.generation_config else None
        if ids is None:
            return frozenset()
        return frozenset((ids,) if isinstance(ids, int) else ids)

    def check_tokens(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens as integers; UnknownTokenError for the first that the model has no embedding of."""
        wrong: list[int] = []
        for place, token in enumerate(tokens):
            try:
                wrong.append(index(token))
            except TypeError:
                raise UnknownTokenError(place, token, self.facts.vocab_size) from None
            if not 0 <= wrong[-1] < self.facts.vocab_size:
                raise UnknownTokenError(place, wrong[-1], self.facts.vocab_size)
        return tuple(wrong)

    def forward(self, tokens: Tensor, positions: Tensor, paged: PagedContext) -> Tensor:
        """Run tokens i64[b, n] at positions i64[b, n]: hidden states T[b, n, H].

        A window may reach past the longest context. Nobody reads what comes of that, and a model is not asked for
        positions that it does not have, nor led to treat the batch as longer than its texts are.
        """
        places = positions if self.facts.max_context is None else positions.clamp(max=self.facts.max_context - 1)
        with paged:
            out = self._layers(input_ids=tokens, position_ids=places, **{CACHE: paged}, use_cache=True)
        return out.last_hidden_state

    def scores(self, hidden: Tensor) -> Tensor:
        """The scores T[..., V] of the token after each hidden state T[..., H], of all tokens."""
        return self._head(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """The scores T[..., V] that a program is given."""
        return self.scores(hidden)


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
    return DYNAMIC_ROPE.isdisjoint(str(record.get("rope_type", "default")) for record in _ropes(config))


def _ropes(config: PretrainedConfig) -> list[dict[str, Any]]:
    """The records of a config's rotary embeddings: one, or one for each type of layer."""
    parameters = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return [parameters, *(value for value in parameters.values() if isinstance(value, dict))]


def _context_of(config: PretrainedConfig) -> int | None:
    """The most tokens of one text, None without limit.

    A rotary embedding that changes with the length of the longest text in a batch (longrope) is only served as it is
    for short texts: with the other one, all keys of a text would have to be computed again.
    """
    known = [getattr(config, name, None) for name in CONTEXT_KEYS]
    known += [rope.get(ROPE_BOUNDARY) for rope in _ropes(config) if rope.get("rope_type") in DYNAMIC_ROPE]
    return min((length for length in known if length), default=None)


def _kept_by_layers_of(config: PretrainedConfig) -> Kept:
    """What layers of plain grouped attention keep, or those of latent attention (DeepSeek's)."""
    layers = tuple(range(config.num_hidden_layers))
    if (rank := getattr(config, "kv_lora_rank", None)) is not None:
        return Kept(layers, 1, rank + config.qk_rope_head_dim, latent=True)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Kept(layers, kv_heads, head_dim, latent=False)
