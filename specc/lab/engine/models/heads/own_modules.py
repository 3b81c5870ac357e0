"""Modules of multi-token prediction as models are published with them: among the weights of their target.

* `deepseek_v3`, `glm4_moe`: `model.layers.N.*` behind the target's N layers, with `enorm`, `hnorm`, `eh_proj` and
  `shared_head.norm`. A pair is embedding, then hidden state.
* `mimo`: `model.mtp_layers.0.*`, with `token_layernorm`, `hidden_layernorm`, `input_proj` and `final_layernorm`. A pair
  is hidden state, then embedding.

A module also has the weights of a decoder layer of its target, the one with experts if there is one. Its embedding and
scores are the target's, of which `embed_tokens` and `shared_head.head` are copies. MiMo's reads a zero for the
embedding at position 0. The target's hidden states are those after its final norm, and what a module gives, scores and
hidden state, is after its own last norm. So SGLang 0.5.23 has it (`deepseek_nextn.py`, `glm4_moe_nextn.py`,
`mimo_mtp.py`); vLLM's modules all start with a zero.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig

from specc.compiler.config.models.config_json import class_for
from specc.compiler.support.files.reading import read_text
from specc.lab.engine.errors import UnsupportedModelError

SAFE, INDEX = "model.safetensors", "model.safetensors.index.json"
COUNT = "num_nextn_predict_layers"
"""The key of config.json that says how many modules there are."""
EXPERTS = "layer.mlp.experts."
PLAIN = "give a checkpoint whose weights are not quantised, in bfloat16, float16 or float32"


@dataclass(frozen=True)
class ModuleLayout:
    """How models of one type are published with a module.

    Attributes:
        prefix: what the names of its weights begin with, for a target of so many `layers`.
        names: its parts beside the decoder layer, as published, by their names in `MtpModule`.
        copies: weights that are copies of the target's.
        settings: of the target's config.json, what is another in the module.
        hidden_first: a pair is the hidden state, then the embedding.
        blank_start: the embedding of the pair at position 0 is zero.

    """

    prefix: str
    names: Mapping[str, str]
    copies: tuple[str, ...] = ()
    settings: Mapping[str, int] = field(default_factory=dict[str, int])
    hidden_first: bool = False
    blank_start: bool = False


_BEHIND = ModuleLayout(
    "model.layers.{layers}.",
    {"embedding_norm": "enorm", "hidden_norm": "hnorm", "fc": "eh_proj", "norm": "shared_head.norm"},
    copies=("embed_tokens.weight", "shared_head.head.weight"),
    settings={"first_k_dense_replace": 0},
)
_MIMO = ModuleLayout(
    "model.mtp_layers.0.",
    {
        "embedding_norm": "token_layernorm",
        "hidden_norm": "hidden_layernorm",
        "fc": "input_proj",
        "norm": "final_layernorm",
    },
    hidden_first=True,
    blank_start=True,
)
LAYOUTS = {"deepseek_v3": _BEHIND, "glm4_moe": _BEHIND, "mimo": _MIMO}
"""By the model_type of config.json."""


def has_modules(content: Mapping[str, Any]) -> bool:
    """Whether the keys of a config.json are those of a model that is published with modules."""
    return str(content.get("model_type")) in LAYOUTS and bool(content.get(COUNT))


def layout_of(config: PretrainedConfig) -> ModuleLayout | None:
    """The layout of a published module's configuration; None for modules of this project."""
    layout = getattr(config, "mtp_module", None)
    return LAYOUTS[layout["model_type"]] if layout else None


def module_config(content: Mapping[str, Any]) -> PretrainedConfig:
    """The configuration of the module, a model of one layer, from the keys of the target's config.json.

    Raises:
        UnsupportedModelError: there are several, or they are quantised.

    """
    kind = str(content["model_type"])
    if content[COUNT] != 1:
        message = f"it has {content[COUNT]} modules ({COUNT}), each of which goes on from what the one before gave"
        raise UnsupportedModelError(message, "this engine runs models that are published with one module")
    if (scheme := content.get("quantization_config")) is not None:
        method = scheme.get("quant_method") if isinstance(scheme, dict) else scheme
        raise UnsupportedModelError(f"its weights are quantised (quantization_config: {str(method)[:60]})", PLAIN)
    layout, known = LAYOUTS[kind], class_for(kind)
    left = {key: value for key, value in content.items() if key not in ("auto_map", "layer_types")}
    config: Any = CONFIG_MAPPING[str(known)].from_dict(
        {**left, "model_type": known, "num_hidden_layers": 1, **layout.settings}
    )
    config.mtp_module = {"model_type": kind, "prefix": _prefix(content)}
    return config


def module_weights(path: Path, prefix: str) -> dict[str, Tensor]:
    """The weights of a directory whose names begin so, by their rests, from one file or from several with an index.

    Raises what the readers of files raise, and UnsupportedModelError for elements that are quantised.
    """
    files = [SAFE]
    if (path / INDEX).exists():
        places = json.loads(read_text(path / INDEX))["weight_map"]
        files = sorted({Path(file).name for name, file in places.items() if name.startswith(prefix)})
    weights: dict[str, Tensor] = {}
    for file in files:
        with safe_open(path / file, "pt") as opened:
            names = [name for name in set(opened.keys()) if name.startswith(prefix)]
            weights |= {name.removeprefix(prefix): opened.get_tensor(name) for name in names}
    for name, value in weights.items():
        if value.dtype.itemsize == 1:
            raise UnsupportedModelError(f"its weights are quantised ({prefix}{name} is {value.dtype})", PLAIN)
    return weights


def adapted(config: PretrainedConfig, weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Published weights by the names of `MtpModule`, whose own are `wanted`, experts put together.

    Raises ValueError that names what is missing, or else what nobody knows.
    """
    layout, prefix = layout_of(config), config.mtp_module["prefix"]
    assert layout is not None  # whoever has none keeps its weights
    sources = {name: _sources(layout, name, len(value)) for name, value in wanted.items()}
    read = {source for rows in sources.values() for row in rows for source in row}
    known = read | {*layout.copies}
    problems = {"no weights for": read - weights.keys(), "weights unknown here:": weights.keys() - known}
    for problem, names in problems.items():
        if names:
            raise ValueError(f"the module has {problem} {', '.join(prefix + name for name in sorted(names)[:3])}")
    parts = {name: [torch.cat([weights[cell] for cell in row]) for row in rows] for name, rows in sources.items()}
    return {name: torch.stack(rows) if name.startswith(EXPERTS) else rows[0] for name, rows in parts.items()}


def _sources(layout: ModuleLayout, name: str, count: int) -> list[list[str]]:
    """What a weight of `MtpModule` is made of: rows for `count` experts, or one; what is side by side in each."""
    if name.startswith(EXPERTS):
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[name.removeprefix(EXPERTS)]
        return [[f"mlp.experts.{expert}.{part}.weight" for part in parts] for expert in range(count)]
    part, _, end = name.partition(".")
    return [[end if part == "layer" else f"{layout.names[part]}.{end}"]]


@contextmanager
def left_out(content: Mapping[str, Any]) -> Iterator[None]:
    """Let transformers load the model of a config.json without a word about the module's weights, which it leaves out.

    Its classes list names of published depths alone (61, or 92 and 46 layers), or none.
    """
    if not has_modules(content):
        yield
        return
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[str(class_for(str(content["model_type"])))]]
    before = kind._keys_to_ignore_on_load_unexpected
    kind._keys_to_ignore_on_load_unexpected = [*(before or ()), f"^{re.escape(_prefix(content))}"]
    try:
        yield
    finally:
        kind._keys_to_ignore_on_load_unexpected = before


def _prefix(content: Mapping[str, Any]) -> str:
    return LAYOUTS[content["model_type"]].prefix.format(layers=content["num_hidden_layers"])
