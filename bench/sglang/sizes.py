"""The sizes of models whose weights are made up when a server starts: their config.json, and those of their drafts.

`DRAFTED` has those of kinds of drafts that no head of one layer makes, by the folders of target and draft.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
SPECIAL: Config = {"bos_token_id": 0, "eos_token_id": 1, "dtype": "bfloat16"}
LLAMA: Config = SPECIAL | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
LATENT: Config = SPECIAL | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_nextn_predict_layers": 1,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "max_position_embeddings": 163840,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
MLA = LATENT | {
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "first_k_dense_replace": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": 1536,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "n_group": 8,
    "topk_group": 4,
    "vocab_size": 129280,
}


def eagle3(target: Config, inner: int, heads: int) -> Config:
    """An EAGLE3 head, which scores the whole vocabulary: the part that published ones have lies beside weights."""
    width = {"hidden_size": target["hidden_size"], "intermediate_size": inner, "num_attention_heads": heads}
    shared = ("num_key_value_heads", "head_dim", "vocab_size")
    own = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": target["vocab_size"],
    }
    return LLAMA | {name: target[name] for name in shared} | width | own


QWEN3 = LLAMA | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
BLOCKS = QWEN3 | {
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 5,
    "num_target_layers": 36,
    "layer_types": ["full_attention"] * 5,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}
QWEN3_14B = QWEN3 | {
    "hidden_size": 5120,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "intermediate_size": 17408,
}
BLOCKS_14B = BLOCKS | {
    **{name: QWEN3_14B[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size")},
    "num_target_layers": 40,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 10, 19, 28, 37]},
}
BLOCKS_32 = BLOCKS | {"block_size": 32}
"""The same layers with blocks that have room for trees of 32 nodes."""
MARKOV = BLOCKS | {
    "architectures": ["Qwen3DSparkModel"],
    "block_size": 7,
    "markov_rank": 256,
    "markov_head_type": "vanilla",
}
"""The same layers with blocks of seven, which a Markov head corrects, as drafts of Qwen3.8 have it."""
LATTICE = BLOCKS | {
    "architectures": ["DFlash2DraftModel"],
    "dflash_config": BLOCKS["dflash_config"]
    | {"selector_rank": 256, "selector_top_k": 16, "conv_kernel_size": 2, "conv_group_size": 16},
}
"""The layers of BLOCKS with a selector among 16 candidates of each place, as drafts of Qwen3.8 have it."""
MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
"""Half the layers of Qwen3-30B-A3B."""
SLIDING, FULL = "sliding_attention", "full_attention"
OSS: Config = SPECIAL | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "sliding_window": 128,
    "layer_types": [SLIDING, FULL] * 12,
    "attention_bias": True,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
    "hidden_act": "silu",
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}
_PATTERN = [int(layer % 6 > 0) for layer in range(30)]
MIMO: Config = SPECIAL | {
    "architectures": ["MiMoV2ForCausalLM"],
    "model_type": "mimo_v2_flash",
    "hidden_size": 4096,
    "num_hidden_layers": len(_PATTERN),
    "num_attention_heads": 32,
    "swa_num_attention_heads": 32,
    "num_key_value_heads": 4,
    "swa_num_key_value_heads": 8,
    **dict.fromkeys(("head_dim", "v_head_dim", "swa_head_dim", "swa_v_head_dim"), 128),
    "intermediate_size": 12288,
    "vocab_size": 152576,
    "hybrid_layer_pattern": _PATTERN,
    "layer_types": [SLIDING if windowed else FULL for windowed in _PATTERN],
    "mlp_layer_types": ["dense"] * len(_PATTERN),
    "moe_layer_freq": [0] * len(_PATTERN),
    "n_routed_experts": 2,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "partial_rotary_factor": 0.5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0},
    "attention_value_scale": 0.707,
    "attention_bias": False,
    "max_position_embeddings": 262144,
    "layernorm_epsilon": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Of MiMo-V2's kind with dense layers, 7.2 B parameters, whose values are as wide as its keys."""
_TEXT: Config = SPECIAL | {
    "model_type": "gemma4_text",
    "hidden_size": 2560,
    "num_hidden_layers": 42,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "intermediate_size": 10240,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "num_kv_shared_layers": 18,
    "sliding_window": 512,
    "layer_types": ([SLIDING] * 5 + [FULL]) * 7,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "pad_token_id": 0,
}
_EYES: Config = {
    "model_type": "gemma4_vision",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 1),
    "head_dim": 64,
}
"""What sees pictures, which nobody shows."""
DELTA: Config = SPECIAL | {
    "mtp_num_hidden_layers": 1,
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "linear_conv_kernel_dim": 4,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 128),
    "linear_num_key_heads": 16,
    "mamba_ssm_dtype": "float32",
    "head_dim": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    "vocab_size": 248320,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
"""What the language models of Qwen3.6 have in common: of four layers three are gated delta nets. They have a module."""
QWEN36 = DELTA | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "intermediate_size": 17408,
    "linear_num_value_heads": 48,
}
"""Of Qwen3.6-27B, what reads and writes text."""
QWEN36_MOE = DELTA | {
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 2048,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 32,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 512),
    "mlp_only_layers": [],
}
"""Half the layers of that of Qwen3.6-35B-A3B."""
COMPRESSED: Config = SPECIAL | {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "num_hidden_layers": 6,
    "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 4, 128, 4, 128, 4, 0],
    "compress_rope_theta": 160000,
    "sliding_window": 128,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_hash_layers": 0,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "swiglu_limit": 10.0,
    "vocab_size": 129280,
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
"""Of DeepSeek-V4-Flash 6 of 43 layers, in 16 bits. None chooses its experts by the token, as three of its own do."""
_TIED: Config = {"dtype": "bfloat16", "tie_word_embeddings": True}
GEMMA = _TIED | {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "text_config": _TEXT,
    "vision_config": _EYES,
}
ASSISTANT = _TIED | {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": _TEXT["hidden_size"],
    "use_ordered_embeddings": True,
    "num_centroids": 2048,
    "centroid_intermediate_top_k": 32,
    "text_config": _TEXT
    | {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 2048,
        "layer_types": [SLIDING] * 3 + [FULL],
        "num_kv_shared_layers": 4,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
    },
}
DRAFTED: dict[str, dict[str, Config]] = {
    "qwen3": {"target": QWEN3, "blocks": BLOCKS, "blocks32": BLOCKS_32, "markov": MARKOV, "lattice": LATTICE},
    "q14": {"target": QWEN3_14B, "blocks": BLOCKS_14B},
    "moe": {"target": MOE, "eagle3": eagle3(MOE, inner=12288, heads=32)},
    "oss": {"target": OSS, "eagle3": eagle3(OSS, inner=17280, heads=64)},
    "mimo": {"target": MIMO},
    "gemma": {"target": GEMMA, "assistant": ASSISTANT},
    "v4": {"target": COMPRESSED},
    "q27": {"target": QWEN36},
    "q35": {"target": QWEN36_MOE},
}
"""By the name of models what lies in its folders, NAME_target and so on. Modules are in their target's, as MiMo's."""
