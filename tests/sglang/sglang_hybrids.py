"""A draft for targets that keep recurrent states, and requests that ask them to remember."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from engine_prompts import PREAMBLES, TAILS
from head_layouts import EMBEDDING, write
from hybrid_models import BIT, HIDDEN, SUCCESSOR, VOCAB, Draw, part, vocabulary
from sglang_mixed import Oracle

GRID = 64
"""At multiples of so many tokens states of prefixes are kept."""
STATES = {"max_mamba_cache_size": 40, "mamba_track_interval": GRID}
"""A few more states than requests need, kept for prefixes as often as they can be."""
PAIRS, ANSWER = 3, 48
"""Answers that others go on from, alone at the end, and the least of their tokens."""
INNER, HEADS = 64, 4


def write_bigrams(folder: Path) -> None:
    """Write a draft that knows what follows from the last token, for targets with the vocabulary of `hybrid_models`."""
    (_, known, scores), draw = vocabulary(Draw(7)), Draw(9)
    embedding = torch.zeros(VOCAB, HIDDEN)
    embedding[:, part("successor")] = SUCCESSOR * known[:, part("next")]
    embedding[:, part("bits")] = BIT * known[:, part("table")]
    embedding[:, part("bias")] = 1
    written = {
        name: torch.zeros(HIDDEN, size) for name, size in (("self_attn.o_proj", HIDDEN), ("mlp.down_proj", INNER))
    }
    for weights in written.values():
        weights[part("spare")] = draw.noise(len(weights[part("spare")]), weights.shape[1])
    read = {f"self_attn.{name}_proj": draw.noise(HIDDEN, HIDDEN) for name in "qkv"}
    read |= {f"mlp.{name}_proj": draw.noise(INNER, HIDDEN) for name in ("gate", "up")}
    read |= {name: torch.ones(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")}
    made = {f"model.layers.0.{name}.weight": weights for name, weights in (written | read).items()}
    made |= {EMBEDDING: embedding, "lm_head.weight": scores}
    write(folder, made | {"model.norm.weight": torch.ones(HIDDEN)}, CONFIG)


CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HIDDEN // HEADS,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def remembered(target: Path, before: Iterable[Mapping[str, Any]] = (), later: int = 0) -> list[dict[str, Any]]:
    """Return requests, and behind them, one by one, those of which each second one goes on from an answer.

    So it begins with a state that verifications have left, behind all but two tokens of its prompt, or so many more.
    """
    oracle, made = Oracle(target), [*map(dict[str, Any], before)]
    for number in range(PAIRS):
        text = "".join(PREAMBLES[number:]) + TAILS[number]
        prompt = oracle.tokens(text)
        length = -(-(len(prompt) + ANSWER) // GRID) * GRID + 1 + later - len(prompt)
        made.append(alone({"text": text}, length, after=len(made) - 1))
        tokens = [*prompt, *oracle.continued(prompt, length), oracle.tokens(TAILS[number])[-1]]
        made.append(alone({"input_ids": tokens}, 16, after=len(made) - 1))
    return made


def alone(prompt: Mapping[str, Any], tokens: int, after: int) -> dict[str, Any]:
    """Return a request for so many tokens that arrives when another one has ended, if there is one."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    return {**prompt, "sampling": sampling, **({} if after < 0 else {"after": [after, 1000]})}


def states_accounted_for(group: Mapping[str, Any]) -> int:
    """Return how many states are cached in the end, where all others are free; `group` is what `specc_testing` has."""
    states = group["states"]
    assert states["free"] + states["cached"] == states["all"] == STATES["max_mamba_cache_size"]
    return states["cached"]
