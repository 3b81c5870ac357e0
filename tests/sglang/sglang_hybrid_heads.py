"""Heads for targets that keep recurrent states: EAGLE3, and three that fill in blocks. All know what bigrams know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from head_layouts import mask_token, write
from hybrid_models import BIT, CODE, HIDDEN, LAYERS, SIZES, SUCCESSOR, VOCAB, Draw, part, vocabulary
from sglang_files import ON_GPU
from torch import Tensor

HEADS, WIDTH = HIDDEN // CODE, 128 if ON_GPU else CODE
"""Of attention, each as wide as the code of a token; what kernels rotate on a GPU is a power of two."""
READS = [*range(LAYERS)]
"""Layers of the target whose results are read; nothing that counts is made of them."""
BLOCK = 4
"""Tokens of a block."""
SLOW = WIDTH // 2 - 1
"""The entry of a head that turns least with the position."""
HEEDED, KNOWN = 3.0, 2
"""How much a draft heeds its Markov head or selector, and of how many tokens that knows one."""
CANDIDATES = 8
"""Candidates of a place among which a selector chooses."""
SURE = 2.0
"""How much more a place to fill attends to the token before it than to what no key is of."""
SIZE: dict[str, Any] = {
    "dtype": "float32",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": WIDTH,
    "num_hidden_layers": 1,
    "intermediate_size": HIDDEN,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def handed_on() -> dict[str, Tensor]:
    """Return the values of each head, and what it writes: what follows from the token that is attended to."""
    values, written = torch.zeros(WIDTH, HIDDEN), torch.zeros(HIDDEN, WIDTH)
    begin = 0
    for read, wrote, much in (("bias", "bias", 1.0), ("next", "successor", SUCCESSOR), ("table", "bits", BIT)):
        place = slice(begin, begin + SIZES[read])
        values[place, part(read)] = torch.eye(SIZES[read])
        written[part(wrote), place] = much / HEADS * torch.eye(SIZES[read])
        begin = place.stop
    return {"v_proj": values.repeat(HEADS, 1), "o_proj": written.repeat(1, HEADS)}


def nothing_fed() -> dict[str, Tensor]:
    """Return layers that feed nothing forward."""
    return {f"mlp.{name}_proj": torch.zeros(HIDDEN, HIDDEN) for name in ("gate", "up", "down")}


def context(draw: Draw) -> Tensor:
    """Return what a head makes of rows of the target: noise in spare entries."""
    made = torch.zeros(HIDDEN, len(READS) * HIDDEN)
    made[part("spare")] = 0.1 * draw.noise(SIZES["spare"], made.shape[1])
    return made


def named(weights: dict[str, Tensor], before: str) -> dict[str, Tensor]:
    """Return weights of a layer by their names in a file."""
    attention = {f"self_attn.{name}" if "mlp" not in name else name: rows for name, rows in weights.items()}
    return {f"{before}.{name}.weight": rows for name, rows in attention.items()}


def write_eagle3(folder: Path) -> None:
    """Write the EAGLE3 head, in whose layer a token attends to itself."""
    (_, _, scores), draw = vocabulary(Draw(7)), Draw(11)
    codes = torch.zeros(WIDTH, HIDDEN)
    codes[:CODE, part("code")] = torch.eye(CODE)
    read = handed_on() | {"q_proj": codes.repeat(HEADS, 1), "k_proj": codes.repeat(HEADS, 1)}
    twice = {name: torch.cat((rows, torch.zeros_like(rows)), 1) for name, rows in read.items() if name != "o_proj"}
    made = named(read | twice | nothing_fed(), "midlayer")
    norms = [f"midlayer.{name}" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")]
    made |= {f"{name}.weight": torch.ones(HIDDEN) for name in (*norms, "norm")}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": VOCAB,
        "target_hidden_size": HIDDEN,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": READS},
    }
    write(folder, made | {"fc.weight": context(draw), "lm_head.weight": scores}, SIZE | config)


def write_blocks(folder: Path) -> None:
    """Write the draft of blocks, whose places to fill attend to the last token, which is none of them.

    Its mask is a token that no text has. The context has no keys, so that all of it counts little.
    """
    (_, known, _), draw = vocabulary(Draw(7)), Draw(12)
    asks = torch.zeros(WIDTH, HIDDEN)
    asks[SLOW, part("bias")] = 1
    write(folder, filling(known, asks, draw), SIZE | OF_BLOCKS | told(BLOCK) | {"architectures": ["DFlashDraftModel"]})


def write_corrected(folder: Path) -> None:
    """Write the same with a Markov head, whose last token knows what follows, and whose places attend to each other.

    They know what follows the mask, which is wrong, unless the head knows what follows the token before.
    """
    (_, known, scores), draw = vocabulary(Draw(7)), Draw(12)
    before, behind = pairs(known, scores)
    head = {"markov_head.markov_w1.weight": before, "markov_head.markov_w2.weight": behind}
    config = {"architectures": ["DSparkDraftModel"], "markov_rank": before.shape[1], "markov_head_type": "vanilla"}
    write(folder, filling(known, apart(known), draw) | head, SIZE | OF_BLOCKS | told(BLOCK - 1) | config)


def write_selected(folder: Path) -> None:
    """Write the draft of blocks with a selector, which knows what the Markov head knows."""
    (_, known, scores), draw = vocabulary(Draw(7)), Draw(12)
    asks = torch.zeros(WIDTH, HIDDEN)
    asks[SLOW, part("bias")] = 1
    before, behind = pairs(known, scores)
    selector = {"predecessor_codebook": before, "successor_codebook": behind}
    selector["hidden_projection.weight"] = torch.zeros(before.shape[1], HIDDEN)
    selector["hidden_projection.weight"][:, part("bias")] = 1
    config = told(BLOCK) | {"architectures": ["DFlash2DraftModel"]}
    config["dflash_config"] |= {"selector_rank": before.shape[1], "selector_top_k": CANDIDATES}
    weights = filling(known, asks, draw) | {f"candidate_selector.{name}": table for name, table in selector.items()}
    write(folder, weights, SIZE | OF_BLOCKS | config)


def pairs(known: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return tables [VOCAB, r] of tokens before and behind, whose products are scores of one behind the other."""
    knows = (torch.arange(VOCAB) % KNOWN == 0)[:, None]
    both = [(SUCCESSOR * known[:, part("next")], "successor"), (BIT * known[:, part("table")], "bits")]
    before = torch.cat([HEEDED * knows * rows for rows, _ in both], 1)
    return before, torch.cat([scores[:, part(name)] for _, name in both], 1)


def apart(known: Tensor) -> Tensor:
    """Return what tells the mask from other tokens [WIDTH, HIDDEN]: in one entry of a head, less than 0 of it."""
    made = torch.zeros(WIDTH, HIDDEN)
    made[SLOW, part("bias")] = 1
    made[SLOW, part("code")] = -2 / CODE * known[mask_token(), part("code")]
    return made


def filling(known: Tensor, asks: Tensor, draw: Draw) -> dict[str, Tensor]:
    """Return the layers of a draft of blocks, with what queries are made of; `known` is what tokens bring."""
    read = handed_on() | {"q_proj": asks.repeat(HEADS, 1), "k_proj": apart(known).repeat(HEADS, 1)}
    made = named(read | nothing_fed(), "layers.0")
    made |= {f"layers.0.self_attn.{name}_norm.weight": torch.full((WIDTH,), SURE**0.5) for name in "qk"}
    norms = [f"layers.0.{name}" for name in ("input_layernorm", "post_attention_layernorm")]
    made |= {f"{name}.weight": torch.ones(HIDDEN) for name in (*norms, "hidden_norm", "norm")}
    return made | {"fc.weight": context(draw)}


def told(size: int) -> dict[str, Any]:
    """Return what a configuration says of blocks of a size."""
    return {"block_size": size, "dflash_config": {"mask_token_id": mask_token(), "target_layer_ids": READS}}


OF_BLOCKS: dict[str, Any] = {
    "model_type": "qwen3",
    "num_target_layers": LAYERS + 1,
    "layer_types": ["full_attention"],
    "attention_bias": False,
    "rope_theta": 10000.0,
}
