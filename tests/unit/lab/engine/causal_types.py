"""Every causal language model that transformers knows, small and random: what becomes of it in the engine.

A type is right when the engine writes the text of `generate`, and refused when the engine says so before the first
token. Run as a program (`make models`), this writes the list that docs/models.md shows.
"""

from __future__ import annotations

import copy
import json
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from fakes.program import FakeProgram, make_plan
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.models import causal_models
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import StandaloneDraft
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions

TYPES = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
LARGEST = 40_000_000
"""Parameters of a model that still counts as small."""
PROMPTS = ((5, 9, 2, 30, 11), tuple(range(40, 75)), (7, 7, 8, 6, 5, 4, 4, 4, 9, 12, 14))
NEW_TOKENS = 24

LIST = Path(causal_models.__file__).with_name("causal_types.json")
PAGE = Path(__file__).parents[4] / "docs" / "models.md"
HEADING = "## What the reference engine runs"
SAID = {"right": "are right", "refused": "are refused", "not built": "cannot be made small here"}
INTRODUCTION = """\
All {} types of causal language models in transformers {} were tried, each as a small random model. The engine's text is
that of `generate`, or the engine refuses the model before the first token. A type that is right here may be refused
with other options in its configuration: whatever is loaded is checked as these are. `make models` writes this list
anew.
"""
HEAD = ("| refused | because |", "|---|---|")
LONGEST_REASON = 200

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "emb_dim", "embedding_dim", "attention_hidden_size"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "decoder_ffn_dim", "dff"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "dim_ff", "shared_intermediate_size", "intermediate_size_mlp"), 48),
    **dict.fromkeys(("shared_expert_intermediate_size", "moe_intermediate_size", "expert_ffn_hidden_size"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 4),
    **dict.fromkeys(("encoder_layers", "num_decoder_layers", "num_encoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "num_decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "kv_channels", "dim_head"), 8),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size"), 97),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_target_positions"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "start_token_id"), 1),
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "rotary_dim": 4,
    "sliding_window": 8,
    "use_sliding_window": True,
    "max_window_layers": 2,
}
"""Sizes by the names that configurations have for them."""

LATENT, CAUSAL = {"num_key_value_heads": 4}, {"is_decoder": True}
STATES = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
HYBRID = ["linear_attention", "full_attention"] * 2
ALTERNATE = ["sliding_attention", "full_attention"] * 2
INPUTS = {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2, "layer_types": ALTERNATE}
GEMMA4 = {**INPUTS, "per_layer_config": {}}
ALL_SHARED = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 4}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"), LATENT),
    **dict.fromkeys(("glm_moe_dsa", "longcat_flash", "minicpm3", "youtu"), LATENT),
    **dict.fromkeys(("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie"), CAUSAL),
    **dict.fromkeys(("megatron-bert", "rembert", "roberta", "roberta-prelayernorm", "roformer"), CAUSAL),
    **dict.fromkeys(("xlm-roberta", "xlm-roberta-xl"), CAUSAL),
    "bailing_hybrid": {**LATENT, "layer_group_size": 2},
    "bamba": {**STATES, "attn_layer_indices": [1, 3]},
    "cohere_compass_text": {"rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), ROPE)},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2}},
    "dots1": {"n_shared_experts": 1},
    "gemma3n_text": {**INPUTS, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4": {"text_config": GEMMA4},
    "gemma4_text": GEMMA4,
    "gemma4_unified": {"text_config": GEMMA4},
    "gemma4_unified_text": GEMMA4,
    "gemma4_assistant": {"text_config": {**GEMMA4, **ALL_SHARED, "model_type": "gemma4_text"}},
    "gemma4_unified_assistant": {"text_config": {**GEMMA4, **ALL_SHARED, "model_type": "gemma4_unified_text"}},
    "dots3_note": {"text_config": LATENT},
    "dots3_note_text": LATENT,
    "qwen4_exp": {"text_config": {"indexer_budget": 8, "indexer_compress_ratio": 4}},
    "qwen4_exp_text": {"indexer_budget": 8, "indexer_compress_ratio": 4},
    "kimi_linear": {**LATENT, "linear_head_dim": 8, "linear_num_heads": 4, "layer_types": HYBRID},
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8},
    "granitemoehybrid": {**STATES, "layer_types": HYBRID},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"head_dim": 16},
    "reformer": {**CAUSAL, "axial_pos_embds_dim": [8, 24], "axial_pos_shape": [8, 16], "attention_head_size": 8},
    "roc_bert": {**CAUSAL, "shape_vocab_size": 50, "pronunciation_vocab_size": 50},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
"""What a type needs besides, or instead."""


def small_config(kind: str, **more: Any) -> PretrainedConfig:
    """A small configuration of a type."""
    return _shrunk(CONFIG_MAPPING[kind], {**OWN.get(kind, {}), **more})


def _shrunk(cls: type[PretrainedConfig], own: dict[str, Any]) -> PretrainedConfig:
    """A configuration with the small sizes that it has names for, and those of its parts."""
    sizes = {field.name: SIZES[field.name] for field in fields(cls) if field.name in SIZES}
    for name, part in cls.sub_configs.items():
        if part is AutoConfig:
            model_type = own.get(name, {}).get("model_type")
            part = CONFIG_MAPPING[model_type] if model_type else type(getattr(cls(), name, None))
        if issubclass(part, PretrainedConfig):
            sizes[name] = _shrunk(part, own.get(name, {}))
    return cls(**{**sizes, **{name: value for name, value in own.items() if name not in cls.sub_configs}})


def small_model(kind: str, **more: Any) -> PreTrainedModel:
    """A small random model of a type, whose scores depend on all it has; raises what its own code raises."""
    config = small_config(kind, **more)
    with torch.device("meta"):
        count = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(config).parameters())
    if count > LARGEST:
        raise ValueError(f"{count} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(0, 1.5 * weight.shape[-1] ** -0.5)
        else:
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def noisy(model: PreTrainedModel) -> PreTrainedModel:
    """The same model with a little noise, which drafts some tokens right."""
    twin = copy.deepcopy(model)
    for weight in twin.parameters():
        weight.add_(0.05 * weight.std(correction=0) * torch.randn_like(weight))
    return twin


@dataclass(frozen=True)
class Verdict:
    """What becomes of a type in the engine, and why."""

    status: str
    reason: str = ""


def verdict(kind: str, **more: Any) -> Verdict:
    """Try a type, with `more` in its configuration: see `SAID`, or `wrong`."""
    try:
        model = small_model(kind, **more)
    except Exception as error:
        return Verdict("not built", f"{type(error).__name__}: {_first_line(str(error))}")
    twin = noisy(model)
    try:
        target = TargetModel(model)
        engine = looking_up(target) if target.facts.states else drafting(target, StandaloneDraft(twin))
    except UnsupportedModelError as error:
        return Verdict("refused", _first_line(str(error).removeprefix("the target model cannot be run: ")))
    texts = [done.token_ids for done in engine.generate(PROMPTS, StopConditions(NEW_TOKENS))]
    expected = [greedy(target, prompt, NEW_TOKENS) for prompt in PROMPTS]
    return Verdict("right") if texts == expected else Verdict("wrong", f"{texts} instead of {expected}")


def drafting(target: TargetModel, draft: StandaloneDraft) -> Engine:
    """An engine with a draft."""
    return Engine(FakeProgram(make_plan(target, draft, page_size=4)), target, draft, max_context=96)


def looking_up(target: TargetModel) -> Engine:
    """An engine for a target that keeps a recurrent state, which no draft may; its texts are looked up.

    One token of five is another one where they are looked up.
    """
    corpus: list[int] = []
    for prompt in PROMPTS:
        text = [*prompt, *greedy(target, prompt, NEW_TOKENS)]
        others = ((token + (place % 5 == 0)) % target.facts.vocab_size for place, token in enumerate(text))
        corpus += [-1, *others]
    program = FakeProgram(make_plan(target, None, page_size=4, corpus=True))
    tables = {"corpus": torch.tensor(corpus, dtype=torch.int32)}
    return Engine(program, target, tables=tables, max_context=96)


def _first_line(text: str) -> str:
    """The beginning of a reason: without what is measured, and without what differs between machines."""
    line = text.strip().partition("\n")[0].partition(": after")[0]
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON].rpartition(' ')[0]} ..."


def read_list() -> tuple[str, dict[str, Verdict]]:
    """The version of transformers that the committed list was made with, and the verdicts by type."""
    content = json.loads(LIST.read_text(encoding="utf-8"))
    return content["transformers"], {kind: Verdict(*columns) for kind, columns in content["types"].items()}


def rendered(version: str, verdicts: Mapping[str, Verdict]) -> str:
    """The list as docs/models.md shows it, heading included."""
    refused = {kind: outcome.reason for kind, outcome in verdicts.items() if outcome.status == "refused"}
    listed: list[str] = []
    for status, phrase in SAID.items():
        kinds = [f"`{kind}`" for kind, outcome in verdicts.items() if outcome.status == status]
        listed.append(_wrapped(f"* {len(kinds)} {phrase}: {', '.join(kinds)}.", "  "))
    because: list[str] = []
    for reason, _ in Counter(refused.values()).most_common():
        kinds = ", ".join(f"`{kind}`" for kind, outcome in refused.items() if outcome == reason)
        because.append(f"| {kinds} | {reason.replace('|', '/')} |")
    introduction = _wrapped(INTRODUCTION.format(len(verdicts), version).rstrip())
    return "\n".join((HEADING, "", introduction, "", *listed, "", *HEAD, *because, ""))


def _wrapped(text: str, indent: str = "") -> str:
    """A paragraph in lines of a page; those after the first are indented."""
    return textwrap.fill(
        " ".join(text.split()), 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def in_page(page: str) -> tuple[int, int]:
    """Where the list begins and ends in docs/models.md: from its heading to the next."""
    begin = page.find(HEADING)
    end = page.find("\n## ", begin + 1)
    return begin, len(page) if end < 0 else end + 1


def main() -> None:
    """Try every type, and write the list and the page that shows it."""
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    verdicts: dict[str, Verdict] = {}
    for kind in TYPES:
        verdicts[kind] = verdict(kind)
        print(kind, verdicts[kind].status, verdicts[kind].reason)
    wrong = [kind for kind, outcome in verdicts.items() if outcome.status == "wrong"]
    if wrong:
        raise SystemExit(f"accepted and wrong: {', '.join(wrong)}")
    types = {kind: [outcome.status, outcome.reason] for kind, outcome in verdicts.items()}
    content = {"transformers": transformers.__version__, "types": types}
    LIST.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    begin, end = in_page(page)
    PAGE.write_text(page[:begin] + rendered(transformers.__version__, verdicts) + page[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
