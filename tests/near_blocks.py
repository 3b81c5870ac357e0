"""Targets of Laguna's and Muse-Glimmer's kinds with the drafts of blocks that they have, whose layers see a window.

All are small and of random weights. A target's layers are quiet: most tokens follow from the last one alone, as far as
which is the most probable. A draft's places to fill attend to the last token, which is none of them, so they know what
follows it. How much is left for it depends on how many tokens of the context they see, and so does what they draft.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from head_layouts import EXAMPLES, mask_token, write
from torch import Tensor
from transformers import (
    AutoTokenizer,
    LagunaConfig,
    LagunaForCausalLM,
    MuseGlimmerConfig,
    MuseGlimmerForConditionalGeneration,
    PreTrainedModel,
)

WINDOW = 12
"""Tokens that a target's layers see, but for some of them; far less than most texts have."""
NEAR = 6
"""Tokens that all layers of a draft see, of which a block has some."""
LAYERS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
WIDTH, INNER, HEADS, SHARED, HEAD = 64, 64, 4, 2, 32
"""Sizes of all models; heads of queries, and of keys and values, of a draft; the entries of a head."""
READS, BLOCK = [1, 2], 4
"""The layers of the target whose results a draft reads; the tokens of a block."""
STRENGTH, QUIET = 0.25, 0.012
"""The size of a target's weights, and by what its layers are less than the residual stream."""
ASKS, TELLS = 0, 1
"""Entries of the residual stream: one that all tokens have, and one that tells the mask from others."""
MARK, SURE, FAINT = 2.0, 0.5, 0.1
"""How large those are, how much a place attends to a token rather than to the context, and other weights of a draft."""
SLOW = HEAD // 2 - 1
"""The entry of a head that turns least with the position."""


def write_laguna(folder: Path, *, experts: bool = True) -> None:
    """Write a target and its draft, `laguna` and `laguna-blocks`, below a folder.

    Layers have heads of queries of their own number, most have experts, and the draft's see what is before them alone.
    """
    rotary = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in set(LAYERS)}
    rotary["full_attention"]["partial_rotary_factor"] = 0.5
    others = "sparse" if experts else "dense"
    config = LagunaConfig(
        vocab_size=_words(), hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=len(LAYERS),
        num_attention_heads=4, num_attention_heads_per_layer=[4, 8, 8, 4], num_key_value_heads=2, head_dim=HEAD,
        layer_types=LAYERS, sliding_window=WINDOW, mlp_layer_types=["dense", *[others] * (len(LAYERS) - 1)],
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
        moe_routed_scaling_factor=2.5, gating="per-head", rope_parameters=rotary, max_position_embeddings=1024,
        initializer_range=STRENGTH, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, dtype="float32",
        architectures=["LagunaForCausalLM"],
    )  # fmt: skip
    torch.manual_seed(4)
    model = LagunaForCausalLM(config).float()
    _write_target(folder / "laguna", model, ("o_proj.weight", "down_proj.weight", "experts.down_proj"))
    draft = _fused(_filling())
    draft |= {f"aux_hidden_norms.{number}.weight": torch.ones(WIDTH) for number in range(len(READS))}
    draft |= {f"layers.{layer}.self_attn.g_proj.weight": FAINT * torch.randn(HEADS, WIDTH) for layer in range(2)}
    options = {"block_size": BLOCK, "causal": True, "mask_token_id": mask_token(), "target_layer_ids": READS}
    about = {
        "architectures": ["DFlashLagunaForCausalLM"],
        "model_type": "laguna",
        "gating": "per-head",
        "draft_vocab_size": _words(),
        "num_experts": 0,
        "mlp_layer_types": ["dense", "dense"],
        "dflash_config": options | {"num_target_layers": len(LAYERS)},
    }
    write(folder / "laguna-blocks", draft, SIZES | about)


def write_muse(folder: Path) -> None:
    """Write a target and its draft, `muse` and `muse-blocks`, below a folder.

    The target would see pictures, normalises what tokens bring, and caps its scores. The draft's places see each other.
    """
    text = {
        "vocab_size": _words(),
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": len(LAYERS),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HEAD,
        "layer_types": LAYERS,
        "layer_rope_theta": [10000.0 * (kind == "sliding_attention") for kind in LAYERS],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "sliding_window": WINDOW,
        "output_multiplier": 0.5,
        "max_position_embeddings": 1024,
        "initializer_range": STRENGTH,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    eye = {"patch_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 32}
    eye["intermediate_size"] = 32
    config = MuseGlimmerConfig(
        text_config=text, vision_config=eye, out_hidden_size=128, projector_hidden_size=WIDTH, image_token_id=2,
        video_token_id=3, tie_word_embeddings=False, dtype="float32",
        architectures=["MuseGlimmerForConditionalGeneration"],
    )  # fmt: skip
    torch.manual_seed(5)
    model = MuseGlimmerForConditionalGeneration(config).float()
    _write_target(folder / "muse", model, ())
    about = {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        "block_size": BLOCK,
        "mask_token_id": mask_token(),
        "target_layer_ids": READS,
    }
    published = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    draft = {published.get(name, name): rows for name, rows in _filling().items()}
    own = {key: size for key, size in SIZES.items() if key != "vocab_size"}  # it has no word of that
    write(folder / "muse-blocks", draft, own | about)


def _words() -> int:
    """How many tokens there are."""
    return len(AutoTokenizer.from_pretrained(EXAMPLES / "target"))


def _write_target(folder: Path, model: PreTrainedModel, quiet: tuple[str, ...]) -> None:
    """Write a model whose embedding has the two entries, of which its head makes nothing."""
    embedding: Tensor = model.get_input_embeddings().weight
    head: Tensor = model.get_output_embeddings().weight
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith(quiet) and quiet:
                weights *= QUIET
            if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")) and not quiet:
                weights.fill_(QUIET - 1)
        embedding.normal_()
        embedding[:, [ASKS, TELLS]] = MARK
        embedding[mask_token()] = 0
        embedding[mask_token(), [ASKS, TELLS]] = torch.tensor([MARK, -MARK])
        head.normal_()
        head[:, [ASKS, TELLS]] = 0
        head[mask_token()] = 0
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(EXAMPLES / "target").save_pretrained(folder)
    (folder / "processor_config.json").write_text('{"image_processor": {}}')


def _filling() -> dict[str, Tensor]:
    """The two layers of a draft, of which the second adds little."""
    asks, tells = torch.zeros(2, HEAD, WIDTH)
    asks[SLOW, ASKS] = tells[SLOW, TELLS] = 1
    handed = torch.eye(WIDTH).view(SHARED, HEAD, WIDTH)
    written = handed.repeat_interleave(HEADS // SHARED, 0).flatten(0, 1).T * SHARED / HEADS * 2
    first = {
        "q_proj": asks.repeat(HEADS, 1),
        "k_proj": tells.repeat(SHARED, 1),
        "v_proj": handed.flatten(0, 1),
        "o_proj": written,
    }
    second = {name: torch.randn_like(rows) / WIDTH**0.5 for name, rows in first.items()}
    second["o_proj"] *= QUIET
    made = dict[str, Tensor]()
    for layer, attention in enumerate((first, second)):
        made |= {f"layers.{layer}.self_attn.{name}.weight": rows for name, rows in attention.items()}
        made |= {f"layers.{layer}.self_attn.{name}_norm.weight": torch.full((HEAD,), SURE**0.5) for name in "qk"}
        made |= {f"layers.{layer}.mlp.{name}_proj.weight": FAINT * torch.randn(INNER, WIDTH) for name in ("gate", "up")}
        made[f"layers.{layer}.mlp.down_proj.weight"] = FAINT * torch.randn(WIDTH, INNER)
        names = (f"layers.{layer}.{name}_layernorm" for name in ("input", "post_attention"))
        made |= {f"{name}.weight": torch.ones(WIDTH) for name in names}
    context = torch.randn(WIDTH, len(READS) * WIDTH)
    context[[ASKS, TELLS]] = 0
    return made | {"fc.weight": context, "hidden_norm.weight": torch.ones(WIDTH), "norm.weight": torch.ones(WIDTH)}


def _fused(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same with queries, keys and values as one, as Laguna's drafts are published."""
    made = dict[str, Tensor]()
    for name, rows in weights.items():
        fused = re.sub(r"\b[qkv]_proj", "qkv_proj", name)
        made[fused] = torch.cat((made[fused], rows)) if fused in made else rows
    return made


SIZES: dict[str, Any] = {
    "dtype": "float32",
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": SHARED,
    "head_dim": HEAD,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": NEAR,
    "intermediate_size": INNER,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "vocab_size": 2048,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
