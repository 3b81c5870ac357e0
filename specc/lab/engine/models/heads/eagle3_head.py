"""The EAGLE3 draft head: one decoder layer over its own recurrence, started from several layers of the target.

EAGLE3 (arXiv 2503.01840) predicts tokens, not the target's features. The pair at position ``p`` joins the
embedding of token ``p + 1`` with a hidden state of the head's width: where the target has read ``p``, ``fc`` of the
outputs of some of its layers there (``project``), otherwise what the head's own layer gave for the pair before.
Embedding and hidden state are normed apart and enter the attention side by side; the hidden state is the residual
stream. What is passed on is that stream, before the last norm.

The modules are called as in published checkpoints. Shapes below: B batch, n pairs in a call, H the head's hidden
size, E the target's, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from specc.compiler.support.token_map import from_offsets
from specc.lab.engine.models.heads.eagle_head import FAMILIES, SharingHead, check_one_layer
from specc.lab.engine.models.heads.published_heads import renamed
from specc.lab.engine.models.scores import rows_of

DEFAULT_AUX = 3
"""Layers of the target that a head reads if its config does not list them."""


def reads_last(eagle_config: object) -> bool:
    """Return whether a head of this block of keys is one of EAGLE3's that reads the target's last hidden state."""
    return isinstance(eagle_config, Mapping) and eagle_config.get("use_aux_hidden_state") is False


class Eagle3Layer(nn.Module):
    """A decoder layer whose attention reads embedding and hidden state, each under a norm of its own."""

    def __init__(self, config: PretrainedConfig, embedding_width: int) -> None:
        """Random weights; the query, key and value projections are as wide as both inputs together."""
        super().__init__()
        family, width, eps = FAMILIES[config.model_type], config.hidden_size, config.rms_norm_eps
        self.goes_on_normed = bool(getattr(config, "norm_before_residual", False))
        self.input_layernorm = family.norm(embedding_width, eps=eps)
        self.hidden_norm = family.norm(width, eps=eps)
        self.self_attn = family.attention(config, layer_idx=0)
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.self_attn, name)
            both = nn.Linear(embedding_width + width, old.out_features, bias=old.bias is not None)
            setattr(self.self_attn, name, both)
        self.post_attention_layernorm = family.norm(width, eps=eps)
        self.mlp = family.mlp(config)

    def forward(self, embedded: Tensor, hidden: Tensor, **attention_kwargs: Any) -> Tensor:
        """Continue the residual stream hidden [B, n, H] past the tokens embedded [B, n, E]."""
        normed = self.hidden_norm(hidden)
        pairs = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        hidden = normed if self.goes_on_normed else hidden
        attention_kwargs.setdefault("attention_mask", None)
        hidden = hidden + self.self_attn(hidden_states=pairs, **attention_kwargs)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3Head(SharingHead):
    """``fc`` over hidden states of the target, one `Eagle3Layer`, and a norm and ``lm_head`` of its own.

    A head that reads the target's last hidden state (``use_aux_hidden_state: false``) has no ``fc``: its layer takes
    that state as it is, as in SGLang and vLLM.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        """Random weights in the shapes of ``config``, which describes a one-layer decoder."""
        super().__init__(config)
        check_one_layer(config)
        scored = getattr(config, "draft_vocab_size", None) or config.vocab_size
        width, family = config.hidden_size, FAMILIES[config.model_type]
        self.fc = nn.Linear(self.num_aux_layers * self.target_width, width, bias=False) if self.num_aux_layers else None
        if self.fc is None and self.target_width != width:
            raise ValueError(
                f"a head of {width} that reads the target's last hidden state, which has {self.target_width}"
            )
        self.midlayer = Eagle3Layer(config, self.target_width)
        self.norm = family.norm(width, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(width, scored, bias=False)
        if scored != config.vocab_size:
            self.register_buffer("d2t", torch.zeros(scored, dtype=torch.int64))
        self.rotary = family.rotary(config=config)

    @property
    def target_width(self) -> int:
        """E: the hidden size of the target."""
        return getattr(self.config, "target_hidden_size", None) or self.config.hidden_size

    @property
    def aux_layers(self) -> tuple[int, ...] | None:
        """The layers of the target, counted from 1, whose outputs the head was trained on; None if it does not say."""
        layers = (getattr(self.config, "eagle_config", None) or {}).get("eagle_aux_hidden_state_layer_ids")
        return tuple(layer + 1 for layer in layers) if layers else None

    @property
    def num_aux_layers(self) -> int:
        """How many layers of the target the head reads; 0 for one that reads its last hidden state."""
        if reads_last(getattr(self.config, "eagle_config", None)):
            return 0
        return len(self.aux_layers or ()) or getattr(self.config, "num_aux_hidden_states", None) or DEFAULT_AUX

    def adapt(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """As published: perhaps an embedding of its own.

        Raises ValueError for offsets that its config knows not of, or that are no whole numbers.
        """
        adapted = renamed(weights, "layers.0.", "midlayer.")
        if "embed_tokens.weight" in adapted:
            count, width = adapted["embed_tokens.weight"].shape
            self.embed_tokens = nn.Embedding(count, width)
            self.midlayer = Eagle3Layer(self.config, self.embed_tokens.embedding_dim)
        if "d2t" in adapted and not hasattr(self, "d2t"):
            if adapted["d2t"].any():
                raise ValueError("the head has offsets d2t, and its config.json no draft_vocab_size")
            del adapted["d2t"]
        elif "d2t" in adapted and (adapted["d2t"].is_floating_point() or adapted["d2t"].is_complex()):
            raise ValueError(f"the head's offsets d2t are {adapted['d2t'].dtype}, not whole numbers")
        return adapted

    def embed(self, tokens: Tensor) -> Tensor:
        """The embeddings T[..., E] of tokens i64[...], by a module of its own if it has one."""
        return self.embed_tokens(tokens) if hasattr(self, "embed_tokens") else super().embed(tokens)

    @property
    def own_tokens(self) -> list[int] | None:
        """The tokens of the target that it scores, by its offsets ``d2t``; None for all."""
        offsets = getattr(self, "d2t", None)
        return None if offsets is None else from_offsets(offsets.tolist())

    def score_only(self, tokens: Tensor) -> None:
        """Score tokens i64[n] alone, of a head that scores all."""
        self.lm_head = rows_of(self.lm_head, tokens)

    def project(self, aux: Tensor) -> Tensor:
        """Bring outputs of the target's layers [..., aux * E], in the target's dtype, to the head's width [..., H]."""
        aux = aux.to(self.weight.dtype)
        return aux if self.fc is None else self.fc(aux)

    def forward(self, input_ids: Tensor, hidden: Tensor, position_ids: Tensor, **attention_kwargs: Any) -> Tensor:
        """Continue each pair: [B, n, H].

        input_ids [B, n] i64: at pair ``p`` the token at ``p + 1``.
        hidden [B, n, H]: at pair ``p`` what `project` made of the target's layers at ``p``, or what this gave for
            the pair before.
        position_ids [B, n] i64: the position ``p`` of each pair.
        attention_kwargs: handed to the attention. The pairs of the call attend causally unless any is given.
        """
        embedded = self.embed(input_ids).to(hidden.dtype)
        return self.midlayer(
            embedded, hidden, position_embeddings=self.rotary(hidden, position_ids), **attention_kwargs
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, of those that it scores: [..., H] -> [..., Vd]."""
        return self.lm_head(self.states(hidden))

    def states(self, hidden: Tensor) -> Tensor:
        """What the ``lm_head`` reads of hidden states [..., H]."""
        return self.norm(hidden)

    @property
    def weight(self) -> Tensor:
        """The weights [Vd, H] of the ``lm_head``."""
        return self.lm_head.weight.detach()
