"""Types whose config.json is read without transformers: random files of a type, and what its class says of them.

Run as a program (`make known`), this writes `known_types.json` anew: every type of which both say the same.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import random
from typing import Any

import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specc.compiler.config import models
from specc.compiler.config.models import known
from specc.compiler.config.models.config_json import _ALSO_KNOWN_AS, Directory, configuration
from specc.compiler.config.models.remembered import RememberedFacts

CASES = 1000
"""Files of a type, all of which have to be read alike for it to be known."""
_BASE = set(inspect.signature(transformers.PreTrainedConfig).parameters)
_DERIVED = ("num_key_value_heads", "head_dim")
_SIZES = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers")


def entry(kind: str) -> known.Known | None:
    """What a type's class adds to a file; None for one of several parts."""
    name = _ALSO_KNOWN_AS.get(kind, kind)
    if name not in CONFIG_MAPPING:
        return None
    cls: Any = CONFIG_MAPPING[name]
    if not dataclasses.is_dataclass(cls) or getattr(cls, "sub_configs", None):
        return None
    made, fields = cls(), {field.name: field.default for field in dataclasses.fields(cls)}
    derived = tuple(name for name in _DERIVED if fields.get(name) is None and getattr(made, name, None) is not None)
    more = {name: value for name, value in vars(made).items() if name not in fields and name not in derived}
    defaults = {
        name: value
        for name, value in (more | fields).items()
        if name not in _BASE and (value is None or type(value) in (int, bool))
        if not name.startswith("_") and not name.endswith("token_id")
    }
    names = {name: own for name, own in cls.attribute_map.items() if name != own}
    own = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    own = own if isinstance(own, str) else None
    return known.Known(cls.model_type, own, defaults, names, derived)


def drawn(kind: str, known_type: known.Known, rng: random.Random) -> dict[str, Any]:
    """A file of a type: as published, or with sizes, scaling, kinds of layers and other keys left out or odd."""
    heads, width = rng.choice([1, 2, 4, 8, 12]), rng.choice([4, 8, 64])
    content: dict[str, Any] = {
        "hidden_size": heads * width, "num_attention_heads": heads, "num_hidden_layers": rng.choice([1, 2, 5]),
        "num_key_value_heads": rng.choice([1, heads, None]), "head_dim": rng.choice([width, 16, None]),
        "vocab_size": rng.choice([97, 2048]), "max_position_embeddings": rng.choice([128, 4096]),
        "sliding_window": rng.choice([16, None]), "use_sliding_window": rng.choice([True, False]),
        "dtype": rng.choice(["bfloat16", "float32", "x"]), "torch_dtype": "float16",
        "rope_parameters": _rope(rng), "rope_scaling": _rope(rng), "rope_theta": 10000.0,
        "architectures": [rng.choice([known_type.language_model, "OtherModel"])],
        "quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {"type": "float", "num_bits": 8}},
        "num_nextn_predict_layers": rng.choice([1, 2]), "draft_vocab_size": 50, "index_topk": 8, "index_head_dim": 16,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}, "num_experts_per_tok": rng.choice([1, 2]),
        "target_hidden_size": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "v_head_dim": rng.choice([width, 8]),
        "attention_chunk_size": 64, "num_kv_shared_layers": 1, "hc_mult": 2, "text_config": {"hidden_size": 4},
    }  # fmt: skip
    layers = content["num_hidden_layers"]
    listed = rng.choice(["full_attention", "sliding_attention", "mamba", "linear_attention"])
    content["layer_types"] = [listed] * rng.choice([layers, layers, layers + 1])
    content = {key: value for key, value in content.items() if rng.random() < (0.9 if key in _SIZES else 0.3)}
    for key in rng.sample(sorted(known_type.defaults), min(len(known_type.defaults), rng.choice([0, 0, 1, 2]))):
        content[key] = rng.choice([1, 2, 4, 8, None, True, False])
    for name, own in known_type.names.items():
        if name in content and rng.random() < 0.9:
            content[own] = content.pop(name)
    return {"model_type": kind} | (content if rng.random() < 0.95 else {})


def _rope(rng: random.Random) -> Any:
    kind, factor = rng.choice(["linear", "dynamic", "yarn", "default", "x"]), rng.choice([2, 2.5, 8.0, "2", None])
    more: dict[str, Any] = rng.choice([{"rope_theta": 10000.0}, {}, {"mrope_section": [1, 1, 2]}])
    return rng.choice([None, {rng.choice(["rope_type", "type"]): kind, "factor": factor} | more, {}])


def said_by_class(content: dict[str, Any]) -> RememberedFacts | None:
    """What a type's class says of a file; None where it refuses it."""
    try:
        config = configuration(content)
        text = config.get_text_config()
    except Exception:
        return None
    return models.answer_of(config, text, Directory(b"", content))


def said_by_table(content: dict[str, Any]) -> RememberedFacts | None:
    """What the table says of it; None where it asks the class."""
    known_type = known.plain(content)
    return None if known_type is None else models.answer_of(known_type, known_type, Directory(b"", content))


def differ(kind: str, known_type: known.Known, seed: str, cases: int) -> str | None:
    """The first of some random files of which class and table say something else."""
    for number in range(cases):
        content = drawn(kind, known_type, random.Random(f"{seed}/{kind}/{number}"))
        by_table, by_class = said_by_table(content), said_by_class(content)
        if by_table is not None and by_class is not None and by_table != by_class:
            return f"{json.dumps(content)}\n  table {by_table}\n  class {by_class}"
    return None


def main() -> None:
    """Write the table."""
    import sys

    transformers.utils.logging.set_verbosity_error()
    types: dict[str, known.Known] = {}
    for kind in sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *_ALSO_KNOWN_AS}):
        known_type = entry(kind)
        if known_type is None:
            continue
        known.known_types = lambda known_type=known_type, kind=kind: {kind: known_type}  # type: ignore[assignment]
        reason = differ(kind, known_type, "types", CASES)
        if reason is None:
            types[kind] = known_type
        else:
            print(kind, reason, file=sys.stderr)
    lines = [
        f'  "{kind}": {json.dumps(dataclasses.asdict(known_type), sort_keys=True)}'
        for kind, known_type in types.items()
    ]
    head = f'{{"transformers": "{transformers.__version__}", "types": {{\n'
    known.TABLE.write_text(head + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
