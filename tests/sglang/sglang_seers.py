"""Small models of Qwen3.5's kind: the Qwen3-Next of `hybrid_models`, in classes that see pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from head_layouts import write
from hybrid_models import CODE, CONFIG, EXPERTS, HIDDEN, LAYERS, ROTARY, parted_weights_of
from sglang_vision import MERGED, PATCH, PREPROCESSOR, WORDS
from torch import Tensor
from transformers import Qwen3_5VisionConfig, Qwen3_5VisionModel

UNUSED = ("Ń", "ł", "Ł", "ŀ")
"""Bytes that no text has, whose tokens stand for pictures instead."""
SECTIONS = [6, 5, 5]
"""How many pairs of a head turn with time, height and width."""
EYE, FAINT = 32, 0.3
"""How wide the tower is that looks at pictures, and what its outputs are multiplied with."""
CLASSES = {
    False: ("Qwen3_5ForConditionalGeneration", "qwen3_5"),
    True: ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
}
"""The class and the type of a model by whether its layers have experts."""


def joined(made: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in which all experts of a layer are two tensors."""
    for before in {name.partition("experts.")[0] for name in made if ".experts." in name}:
        parts = [f"{before}experts.{number}." for number in range(EXPERTS)]
        gates, ups, downs = ([made.pop(f"{part}{of}_proj.weight") for part in parts] for of in ("gate", "up", "down"))
        made[f"{before}experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(gates, ups, strict=True)])
        made[f"{before}experts.down_proj"] = torch.stack(downs)
    return made


def write_seer(folder: Path, wide: int, *, experts: bool = False) -> None:
    """Write the model and its module, with experts in all layers or in none."""
    made = joined(parted_weights_of(wide, () if experts else range(LAYERS + 2)))
    of_language = {re.sub(r"^model\.", "model.language_model.", name): weights for name, weights in made.items()}
    write(folder, of_language | tower(), about(wide, experts=experts))
    see(folder)


def tower() -> dict[str, Tensor]:
    """Return what looks at pictures, of random weights."""
    torch.manual_seed(5)
    model = Qwen3_5VisionModel(Qwen3_5VisionConfig(**EYES))
    made = {f"model.visual.{name}": weights.detach().clone() for name, weights in model.state_dict().items()}
    made["model.visual.merger.linear_fc2.weight"] *= FAINT
    return {name: weights.bfloat16() for name, weights in made.items()}


def about(wide: int, *, experts: bool) -> dict[str, Any]:
    """Return the configuration."""
    architecture, kind = CLASSES[experts]
    sizes = {"linear_key_head_dim": wide, "linear_value_head_dim": wide, "model_type": f"{kind}_text"}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": ROTARY / (ROTARY + CODE)}
    text = {name: value for name, value in CONFIG.items() if "rope" not in name and name not in OTHERS}
    if not experts:
        text = {name: value for name, value in text.items() if "expert" not in name and "moe" not in name}
    text |= sizes | {"rope_parameters": {**rope, "mrope_section": SECTIONS, "mrope_interleaved": True}}
    places = dict(zip(("vision_start", "vision_end", "image", "video"), range(257, 253, -1), strict=True))
    return {
        "architectures": [architecture],
        "model_type": kind,
        "text_config": text | {"mtp_num_hidden_layers": 1},
        "vision_config": {**EYES, "model_type": kind, "deepstack_visual_indexes": []},
        **{f"{name}_token_id": place for name, place in places.items()},
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def see(folder: Path) -> None:
    """Let some tokens of a model's tokenizer stand for pictures, and write what prepares these.

    Releases of transformers take another class for one that is not named, and texts are then other tokens.
    """
    name_places(folder)
    path = folder / "tokenizer_config.json"
    about_tokens = json.loads(path.read_text())
    kind = {"pad_token": about_tokens["eos_token"], "tokenizer_class": "Qwen2Tokenizer"}
    path.write_text(json.dumps(about_tokens | kind))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR | {"processor_class": "Qwen3VLProcessor"}))


def name_places(folder: Path) -> None:
    """Let some tokens of a model's tokenizer stand for pictures."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    for word, unused in zip(WORDS, UNUSED, strict=True):
        token = tokenizer["model"]["vocab"].pop(unused)
        tokenizer["model"]["vocab"][word] = token
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({"id": token, "content": word, **flags, "special": True})
    path.write_text(json.dumps(tokenizer))


OTHERS = ("architectures", "model_type", "decoder_sparse_step", "norm_topk_prob", "num_nextn_predict_layers")
"""Keys of Qwen3-Next's that these models do not have, or say otherwise."""
EYES: dict[str, Any] = {
    "depth": 1,
    "hidden_size": EYE,
    "intermediate_size": 2 * EYE,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": PATCH,
    "spatial_merge_size": MERGED,
    "temporal_patch_size": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 144,
    "initializer_range": 0.2,
}
