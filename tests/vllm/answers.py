"""What vLLM says of its arguments and model classes, and what it takes by itself.

.vllm/bin/python tests/vllm/answers.py OUT.json
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from engine_answers import names_of, write
from engine_classes import derived_from

sys.path.append(str(Path(__file__).parents[2] / "specc/engines/vllm/check"))

import resolved_answers  # vLLM finds the GPUs that it says there are
import vllm
from transformers import CONFIG_MAPPING, PretrainedConfig
from vllm.config.speculative import MTPModelTypes, SpeculativeConfig
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.model_executor.models.registry import ModelRegistry
from vllm.transformers_utils.config import _CONFIG_REGISTRY
from vllm.utils.argparse_utils import FlexibleArgumentParser

KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
"""Keys of config.json by which models say how many modules they bring."""
NUMBERS: Mapping[str, int] = {key: 101 + place for place, key in enumerate(KEYS)}
"""Stands for how many a key says that there are."""
NOBODY = "Nobody"
"""A class, and a type, that vLLM does not know."""


class Written(PretrainedConfig):
    """A config.json that says all that is asked of it."""


def written(model_type: str, architecture: str) -> Written:
    """One of a class and a type, with another of a language model in it."""
    one, text = Written(), Written()
    for config in (one, text):
        config.update({**NUMBERS, "hc_count": 1, "num_attention_heads": 1, "layer_types": ["x"], "num_experts": 1})
        config.update({"mtp_num_experts": 1, "mtp_num_experts_per_tok": 1, "linear_attn_config": {}})
        config.update({"mtp_config": {KEYS[0]: NUMBERS[KEYS[0]]}, "architectures": [architecture]})
        config.model_type = model_type
    one.text_config = text
    return one


def modules(model_type: str, architecture: str) -> tuple[str | None, int | str | None] | None:
    """The class of the modules of such a target, and how many; None for one without."""
    made = SpeculativeConfig.hf_config_override(written(model_type, architecture))
    if made.model_type not in get_args(MTPModelTypes):
        return None
    by_number = {number: key for key, number in NUMBERS.items()}
    count, drafting = getattr(made, "n_predict", None), made.architectures[0]
    return None if drafting == architecture else drafting, by_number.get(count, count)


def all_modules() -> dict[str, tuple[str | None, int | str | None]]:
    """Those of all classes and types."""
    types, names = {*CONFIG_MAPPING, *_CONFIG_REGISTRY}, ModelRegistry.get_supported_archs()
    asked = [(name, ("nobody", name)) for name in sorted(names)] + [(name, (name, NOBODY)) for name in sorted(types)]
    return {name: found for name, of in asked if (found := modules(*of)) is not None}


def arguments() -> list[str]:
    """All arguments of `vllm serve`."""
    parser = ServeSubcommand().subparser_init(FlexibleArgumentParser().add_subparsers(dest="subparser"))
    return names_of(parser)


def hybrid(architectures: list[str]) -> list[str]:
    """Those of the classes that vLLM's interface says are hybrid, whatever library is not installed here."""
    derived = derived_from(Path(vllm.__file__).parent, "IsHybrid")
    return [name for name in architectures if ModelRegistry.models[name].class_name in derived]


def main() -> None:
    """Ask, and write what came out."""
    names = sorted(ModelRegistry.get_supported_archs())
    said = {
        "arguments": arguments(),
        "architectures": names,
        "modules": all_modules(),
        "hybrid": hybrid(names),
        **resolved_answers.resolved(),
    }
    write("vllm", said)


if __name__ == "__main__":
    main()
