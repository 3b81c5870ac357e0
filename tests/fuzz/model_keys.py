"""What a config.json may say: sizes, kinds of layers and of quantisation, and what is said of drafting.

Classes and keys of drafting come from the algorithms, so a new one is drawn as it comes. Others are made up: words as
people name what is new in a draft, which no algorithm lists.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from specc.compiler import algorithms
from specc.compiler.config.rules.draft_kind import BLOCKS, DraftKind
from specc.compiler.support.speculators import MARK

from .config_texts import ODD

MODEL_KEYS = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "dtype", "torch_dtype", "hc_mult", "kv_lora_rank", "qk_rope_head_dim", "v_head_dim", "layer_types",
    "layers_block_type", "hybrid_override_pattern", "attn_layer_indices", "full_attention_interval",
    "num_kv_shared_layers", "num_nextn_predict_layers", "index_head_dim", "index_topk", "num_experts_per_tok",
    "quantization_config", "text_config", "eagle_config", "dflash_config", "target_layer_ids", "draft_vocab_size",
    "target_hidden_size", "architectures", "rope_scaling", "sliding_window", "num_experts", "auto_map",
    "backbone_hidden_size", "block_size", "rope_parameters", "max_position_embeddings", "attn_type_list",
)  # fmt: skip
"""What a config.json may say, and more."""
ROPE_TYPES = ("default", "linear", "linear", "dynamic", "yarn", "llama3", "x", 3, None)
NUMBERS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1e300",
    "-0",
    "0.5",
    "9" * 39,
    "9" * 41,
    "9" * 4299,
    "9" * 4301,
)
"""Words for numbers, most of which no size of a model is."""
OTHER_CLASSES = (
    "LlamaForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM", "GptOssForCausalLM", "GPT2LMHeadModel", "MedusaModel",
    "MtpHeads", "MiMoMTP", "DFlash9DraftModel", "LlamaForCausalLMEagle4", "Qwen3NextForCausalLM", "X",
)  # fmt: skip
"""What a config.json may call its model beside the classes of heads."""
STEMS = (
    "markov", "selector", "anchor", "confidence_head", "dspark", "ptd", "pard", "medusa", "hydra", "lookahead",
    "noise_token", "n_candidate", "parallel_draft", "speculated", "draft_block", "eagle_tree",
)  # fmt: skip
"""How names of what is new in a draft begin."""
ENDS = ("_rank", "_ids", "_places", "_9")
LEVELS = ("", "text_config", *BLOCKS)
"""Where keys of drafting may stand: at the top, in the language model's part, in a block of their own."""
FORMATS = ("eagle3", "eagle3", "eagle3", "eagle3", "eagle", "dflash", "peagle", "mlp")
"""Types of drafts in the format of speculators."""
QUANTISED = ("mxfp4", "mxfp4", "fp8", "awq", "gptq", "compressed-tensors", "modelopt", "quark_mxfp4")
STATES: Mapping[str, tuple[str, ...]] = {
    "qwen3_next": tuple(
        f"linear_{name}"
        for name in ("num_value_heads", "value_head_dim", "key_head_dim", "num_key_heads", "conv_kernel_dim")
    ),
    "no_such": ("num_heads", "head_dim", "short_conv_kernel_size"),
    "nemotron_h": ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
    "bamba": ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
}
"""A type -> the sizes of its recurrent state."""


def kinds() -> list[DraftKind]:
    """What algorithms know of their drafts."""
    return [kind for name in algorithms.names() if (kind := algorithms.needs(name).kind) is not None]


def a_class(rng: random.Random) -> str:
    """A name of ``architectures``: a head's, or another."""
    return rng.choice([rng.choice(sorted(rng.choice(kinds()).classes) or OTHER_CLASSES), rng.choice(OTHER_CLASSES)])


def drafting(rng: random.Random, facts: dict[str, Any]) -> bool:
    """Let a model say something of drafting at any level; return whether nobody can know it."""
    kind, level = rng.choice(kinds()), rng.choice(LEVELS)
    known = {**kind.keys, **{key: values for block in kind.blocks.values() for key, values in block.items()}}
    if level == "text_config":  # which then has all sizes, where no class knows it better
        facts |= {"text_config": {**facts}, "model_type": rng.choice([facts.get("model_type"), "no_such"])}
    elif level and not isinstance(facts.get(level), dict):
        facts[level] = {}
    place = facts[level] if level else facts
    if level == "text_config" and rng.random() < 0.3:
        block: dict[str, Any] = {}
        place[rng.choice(BLOCKS)] = block
        place = block
    for key in rng.sample(sorted(known), rng.choice([0, 1, 2]) if len(known) > 1 else 0):
        place[key] = rng.choice([*known[key], [1, 2, 3], [0, 3], 4, True, False, fact(rng, 1)])
    if rng.random() < 0.6:
        return False
    place[rng.choice(STEMS) + rng.choice(ENDS)] = rng.choice([True, "x", ["y"], [3], {"a": "b"}])
    return True


def state(rng: random.Random, layers: int) -> dict[str, Any]:
    """A hybrid whose layers keep a state of some size: its type, which layers those are, and the sizes."""
    model_type = rng.choice(list(STATES))
    sizes = {name: rng.choice([1, 2, 4, 16, 64, 128]) for name in STATES[model_type]}
    if rng.random() < 0.3:
        sizes[rng.choice(list(sizes))] = rng.choice(ODD)
    recurrent = [index for index in range(1, layers + 1) if index % 4]
    if model_type == "no_such":
        apart = {"kda_layers": recurrent, "full_attn_layers": [4 * index + 4 for index in range(layers // 4)]}
        sizes = {"linear_attn_config": sizes | apart}
    said = {"qwen3_next": {"full_attention_interval": 4}, "bamba": {"attn_layer_indices": [layers - 1]}}
    pattern = {"hybrid_override_pattern": ("MMM*" * layers)[:layers]}
    types = rng.choice([{}, {}, {"mamba_ssm_dtype": rng.choice(["float32", "bfloat16", "auto", "x", *ODD])}])
    return {"model_type": model_type} | sizes | said.get(model_type, pattern) | types


def quantisation(rng: random.Random) -> dict[str, Any]:
    """How weights are quantised, in words that stand for an element type or for none."""
    return {"quantization_config": {"quant_method": rng.choice([*QUANTISED, rng.choice(ODD)]), "bits": 4}}


def in_speculators(rng: random.Random, facts: dict[str, Any]) -> dict[str, Any]:
    """A draft in the format of speculators, whose decoder is what a model says but for what is of the draft."""
    of_draft = {key for key in facts if key == "architectures" or key in BLOCKS or key.startswith(STEMS)}
    decoder: Any = {key: value for key, value in facts.items() if key not in of_draft}
    if rng.random() < 0.1:
        decoder = rng.choice(ODD)
    kind = rng.choice([*FORMATS, rng.choice(ODD)]) if rng.random() < 0.2 else rng.choice(FORMATS)
    methods = [{"proposal_type": "greedy", "speculative_tokens": rng.choice([1, 3, rng.choice(ODD)])}]
    return {key: facts[key] for key in of_draft} | {
        MARK: kind, "transformer_layer_config": decoder, "draft_vocab_size": facts.get("vocab_size"),
        "speculators_config": rng.choice([{"algorithm": kind, "proposal_methods": methods}, rng.choice(ODD)]),
    }  # fmt: skip


def renumbered(rng: random.Random, made: str) -> str:
    """JSON in which one number is another word for one."""
    places = [match.span() for match in re.finditer(r"(?<=[\[ ])-?[\d.]+(?=[,\]}])", made)]
    start, end = rng.choice(places) if places else (len(made), len(made))
    return made[:start] + rng.choice(NUMBERS) + made[end:]


def rope(rng: random.Random) -> dict[str, Any]:
    """What a model may say of its positions."""
    factor = rng.choice([2.0, 8, float("inf"), float("nan"), 1e300, -1.0, 1 << 80, rng.choice(ODD)])
    return {"rope_type": rng.choice(ROPE_TYPES), "factor": factor, "rope_theta": 10000.0}


def fact(rng: random.Random, depth: int) -> Any:
    if depth and rng.random() < 0.1:
        return rope(rng)
    if rng.random() < 0.02:
        return [*range(rng.choice([60_000, 100_000]))]
    if depth and rng.random() < 0.2:
        return {rng.choice(MODEL_KEYS): fact(rng, depth - 1) for _ in range(rng.randint(0, 4))}
    odd = rng.choice([["full_attention", "sliding_attention"] * 2, ["mamba"] * 4, ["linear_attention",
        "full_attention"] * 2,
                      "M*-M", 256, 4, "float16", {"rope_type": "x"}, {"kv_cache_scheme": {"type": [],
                      "num_bits": {}}}])  # fmt: skip
    return rng.choice([rng.choice(ODD), odd])
