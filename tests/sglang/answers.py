"""What SGLang says of its arguments and classes, and what it takes by itself.

.sglang/bin/python tests/sglang/answers.py OUT.json
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("SGLANG_USE_CPU_ENGINE", None)

from engine_answers import names_of, write
from engine_classes import classes_written_in, readers_of
from resolved_answers import resolved
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.models import registry
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import _RESERVED_ALIASES, SpeculativeAlgorithm

NUMBER = 77
"""Stands for how many modules a config.json says that there are."""


class Lenient(SimpleNamespace):
    """A configuration that has every attribute: None where nobody has set it."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def arguments() -> list[str]:
    """All arguments of the server."""
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return names_of(parser)


def algorithms() -> list[str]:
    """All names by which its own algorithms of speculation are asked for."""
    return sorted({*SpeculativeAlgorithm.__members__, *_RESERVED_ALIASES} - {"NONE"})


def architectures() -> list[str]:
    """All classes of models, those too whose libraries are not installed here: as their files name them."""
    written = classes_written_in(Path(registry.__file__).parent, "EntryClass")
    return sorted({*written, *registry.ModelRegistry.get_supported_archs()})


def heads(names: list[str]) -> list[str]:
    """The classes that draft from the target's hidden states; SGLang runs any other one as a whole model."""
    folder = Path(registry.__file__).parent
    return sorted(readers_of(folder, "sglang.srt.models", "spec_info", "hidden_states") & {*names})


def modules(architecture: str) -> tuple[str, int | str] | None:
    """The class of the modules that a target of this class drafts with, and how many; None for one without."""
    config = object.__new__(ModelConfig)
    text = Lenient(architectures=[architecture], num_nextn_predict_layers=NUMBER, mtp_local_layer_ids=[])
    whole = Lenient(architectures=[architecture], num_nextn_predict_layers=NUMBER)
    config.__dict__ |= {"is_draft_model": True, "speculative_algorithm": "EAGLE", "sliding_window_size": None}
    config.__dict__ |= {"is_draft_quantization_explicit": False, "quantization": None}
    config.__dict__ |= {"hf_config": whole, "hf_text_config": text}
    config._config_draft_model()
    drafting = config.hf_config.architectures[0]
    count = config.hf_config.num_nextn_predict_layers
    if drafting == architecture:
        return None
    return drafting, "num_nextn_predict_layers" if count == NUMBER else count


def main() -> None:
    """Ask, and write what came out."""
    names = architectures()
    drafting = heads(names)
    with tempfile.TemporaryDirectory() as folder:
        tables = resolved(Path(folder), [name for name in names if name not in drafting])
    said = {
        "arguments": arguments(),
        "algorithms": algorithms(),
        "architectures": names,
        "heads": drafting,
        "modules": {name: of_target for name in names if (of_target := modules(name)) is not None},
        **tables,
    }
    write("sglang", said)


if __name__ == "__main__":
    main()
