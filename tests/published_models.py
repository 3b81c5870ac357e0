"""Published models, as far as arguments and caches of engines depend on them: the fields of their config.json.

Those of `tests/published` are taken from there. The weights do not matter, and heads have the sizes of their targets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "tests/published"


def dense(kind: str, architecture: str, sizes: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """A model whose layers are all alike: hidden, feed-forward, layers, heads, KV heads, vocabulary."""
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    named = dict(zip((*keys, "vocab_size"), sizes, strict=True))
    about = {"architectures": [architecture], "model_type": kind, "torch_dtype": "bfloat16"}
    return about | named | {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6} | more


def head(target: Mapping[str, Any], dtype: str = "bfloat16", part: int = 32000) -> dict[str, Any]:
    """An EAGLE3 head for a target: one layer of Llama's, as wide, which scores a part of the tokens."""
    text = target.get("text_config", target)
    hidden, heads = text["hidden_size"], math.gcd(text["hidden_size"], text["num_attention_heads"])
    sizes = (hidden, 4 * hidden, 1, heads, math.gcd(heads, text["num_key_value_heads"]))
    more = {"torch_dtype": dtype, "draft_vocab_size": part, "head_dim": text.get("head_dim") or 128}
    return dense("llama", "LlamaForCausalLMEagle3", (*sizes, text.get("vocab_size", 262208)), **more)


LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
EXPERTS = {"n_group": 8, "topk_group": 4, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8}
MROPE = {"rope_type": "default", "mrope_section": [24, 20, 20], "rope_theta": 1e6}

MODELS: dict[str, dict[str, Any]] = {
    "Llama-3.3-70B-Instruct": dense("llama", "LlamaForCausalLM", (8192, 28672, 80, 64, 8, 128256)),
    "M-7B-v0.1": dense(
        "mistral", "MistralForCausalLM", (4096, 14336, 32, 32, 8, 32000), sliding_window=4096
    ),
    "Phi-3-mini": dense(
        "phi3", "Phi3ForCausalLM", (3072, 8192, 32, 32, 32, 32064), sliding_window=2047, pad_token_id=0
    ),
    "Qwen2.5-7B-Instruct": dense(
        "qwen2", "Qwen2ForCausalLM", (3584, 18944, 28, 28, 4, 152064), sliding_window=131072, use_sliding_window=False
    ),
    "Qwen3-30B-A3B": dense(
        "qwen3_moe", "Qwen3MoeForCausalLM", (2048, 6144, 48, 32, 4, 151936), head_dim=128, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1,
    ),
    "Qwen3-VL-8B-Instruct": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "text_config": dense(
            "qwen3_vl_text", "", (4096, 12288, 36, 32, 8, 151936), head_dim=128, rope_scaling=MROPE, dtype="bfloat16"
        ),
        "vision_config": {"model_type": "qwen3_vl", "depth": 2, "hidden_size": 1152, "num_heads": 16},
    },
    "Qwen2.5-VL-7B-Instruct": dense(
        "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", (3584, 18944, 28, 28, 4, 152064),
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}, vision_config={"depth": 2},
    ),
    "DeepSeek-V2-Lite": dense(
        "deepseek_v2", "DeepseekV2ForCausalLM", (2048, 10944, 27, 16, 16, 102400), **LATENT | {"q_lora_rank": None},
        moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
        first_k_dense_replace=1,
    ),
    "DeepSeek-V3.2": dense(
        "deepseek_v32", "DeepseekV32ForCausalLM", (7168, 18432, 61, 128, 128, 129280), **LATENT, **EXPERTS,
        moe_intermediate_size=2048, first_k_dense_replace=3, num_nextn_predict_layers=1, index_topk=2048,
        index_head_dim=128, index_n_heads=64,
    ),
    "GLM-4.7-Flash": dense(
        "glm4_moe_lite", "Glm4MoeLiteForCausalLM", (2048, 10240, 47, 20, 20, 154880), **LATENT | {
            "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256
        }, n_routed_experts=64, n_shared_experts=1, num_experts_per_tok=4, moe_intermediate_size=1536,
        first_k_dense_replace=1, num_nextn_predict_layers=1,
    ),
    "MiniMax-M2": dense(
        "minimax_m2", "MiniMaxM2ForCausalLM", (3072, 1536, 62, 48, 8, 200064), head_dim=128, num_local_experts=256,
        num_experts_per_tok=8,
    ),
    "gemma-2-9b-it": dense(
        "gemma2", "Gemma2ForCausalLM", (3584, 14336, 42, 16, 8, 256000), head_dim=256, sliding_window=4096,
        query_pre_attn_scalar=256,
    ),
    "gemma-3-1b-it": dense(
        "gemma3_text", "Gemma3ForCausalLM", (1152, 6912, 26, 4, 1, 262144), head_dim=256, sliding_window=512,
        query_pre_attn_scalar=256,
    ),
    "EXAONE-4.0-32B": dense(
        "exaone4", "Exaone4ForCausalLM", (5120, 27392, 64, 40, 8, 102400), head_dim=128, sliding_window=4096,
        sliding_window_pattern=4,
    ),
    "OLMo-2-1124-7B": dense("olmo2", "Olmo2ForCausalLM", (4096, 11008, 32, 32, 32, 100352)),
    "Nemotron-H-8B": dense(
        "nemotron_h", "NemotronHForCausalLM", (4096, 21504, 52, 32, 8, 131072), head_dim=128, mamba_num_heads=128,
        mamba_head_dim=64, ssm_state_size=128, n_groups=8,
        hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    ),
    "Falcon-H1-7B": dense("falcon_h1", "FalconH1ForCausalLM", (3072, 12288, 44, 12, 2, 130048), head_dim=128),
    "LFM2-1.2B": dense(
        "lfm2", "Lfm2ForCausalLM", (2048, 12288, 16, 32, 8, 65536), full_attn_idxs=[2, 5, 8, 10, 12, 14],
        layer_types=["full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)],
    ),
    "granite-4.0-h-small": dense(
        "granitemoehybrid", "GraniteMoeHybridForCausalLM", (4096, 768, 40, 32, 8, 100352), num_local_experts=72,
        mamba_n_heads=128, mamba_d_head=64,
        layer_types=["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    ),
    "Step-3.5-Flash": dense(
        "step3p5", "Step3p5ForCausalLM", (4096, 11264, 4, 64, 8, 128896), head_dim=128, sliding_window=512,
        layer_types=["full_attention", *["sliding_attention"] * 3],
    ),
}  # fmt: skip


def block_draft(architecture: str = "DFlashDraftModel", **more: Any) -> dict[str, Any]:
    """A draft that fills in blocks of 16 for Qwen3-8B, as it is published; `more` is its `dflash_config`'s."""
    options = {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33], **more}
    sizes = (4096, 12288, 5, 32, 8, 151936)
    kinds = ["full_attention"] * 5
    return dense(
        "qwen3", architecture, sizes, head_dim=128, block_size=16, num_target_layers=36, dflash_config=options,
        layer_types=kinds,
    )  # fmt: skip


MARKOV = {"markov_rank": 256, "markov_head_type": "vanilla", "enable_confidence_head": True}
"""The keys of drafts of blocks with a Markov head."""
BLOCK_DRAFTS = {
    "Qwen3-8B-DFlash-b16": block_draft(),
    "Qwen3-8B-Domino": block_draft(
        projector_type="domino", shift_label=True, pure_draft_prefix_len=1, gru_hidden_dim=256, emb_dim=256
    ),
    "Qwen3-8B-DFlash2": block_draft("DFlash2DraftModel", selector_rank=64, selector_top_k=8),
    "Qwen3-8B-DSpark-block7": block_draft("Qwen3DSparkModel") | MARKOV | {"block_size": 7},
    "Qwen3-8B-DSpark-MiniMax": block_draft("DSparkMiniMaxDraftModel") | MARKOV | {"block_size": 7},
}


def targets() -> dict[str, dict[str, Any]]:
    """By name the configuration of every model but heads."""
    known = {path.parent.name: json.loads(path.read_text()) for path in PUBLISHED.glob("*/config.json")}
    return {name: config for name, config in (known | MODELS).items() if "EAGLE" not in name}


def write(folder: Path, models: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Write the directories of models; by default of all, and of heads for them, each head's called ``NAME-EAGLE3``."""
    known = {path.parent.name: json.loads(path.read_text()) for path in PUBLISHED.glob("*EAGLE*/config.json")}
    heads = {f"{name}-EAGLE3": head(config) for name, config in targets().items()}
    for name, config in (known | targets() | heads | BLOCK_DRAFTS if models is None else models).items():
        kept = {key: value for key, value in config.items() if key != "auto_map"}  # no code comes with them
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(kept))
