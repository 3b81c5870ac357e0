"""Servers of which SGLang is asked: what its resolution of arguments makes of a class of models on a GPU.

A class stands for a model of its own: as one is published (`tests/published`), or as transformers' defaults of it are,
or else as a config.json that has what most classes read. Its weights do not matter, and nothing is run on a GPU.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import published_models
from said_machine import machine
from sglang.srt.arg_groups import overrides, pipeline
from sglang.srt.configs.model_config import AttentionArch, is_deepseek_dsa
from sglang.srt.server_args import ServerArgs
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

logging.disable(logging.WARNING)
pipeline.record_fields = cache(pipeline.record_fields)  # half of the time that SGLang takes for a server
BACKENDS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
OF_DRAFT = "speculative_draft_attention_backend"
PLAIN: Mapping[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000,
    "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "sliding_window": 4096, "sliding_window_pattern": 4,
    "layer_types": ["full_attention"] * 4, "vision_vocab_size": 100, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
ALIKE = {"MiMoV2FlashForCausalLM": "MiMoV2ForCausalLM"}
"""Classes whose attention hangs on more than their name, and of which another one's config.json is published."""


class Asked:
    """A config.json in a folder, of whose servers SGLang is asked."""

    def __init__(self, folder: Path, name: str, content: Mapping[str, Any]) -> None:
        self.model, self.draft = folder / name, folder / "draft"
        for path, written in (
            (self.model, content),
            (self.draft, {**PLAIN, "architectures": ["LlamaForCausalLMEagle"]}),
        ):
            path.mkdir(exist_ok=True)
            (path / "config.json").write_text(json.dumps(written))
        self._config: Any = None

    def server(self, gpu: str, memory_gib: int = 80, algorithm: str = "EAGLE", **arguments: Any) -> ServerArgs:
        """Return what SGLang resolves on such GPUs, as far as it comes where it starts no such server."""
        return self._resolved(gpu, memory_gib, algorithm, arguments)[0]

    def starts(self, gpu: str, algorithm: str, **arguments: Any) -> bool:
        """Return whether SGLang's resolution of such a server ends without an error."""
        return self._resolved(gpu, 80, algorithm, arguments)[1]

    def _resolved(
        self, gpu: str, memory_gib: int, algorithm: str, arguments: Mapping[str, Any]
    ) -> tuple[ServerArgs, bool]:
        ended = False
        with machine(gpu, memory_gib):
            server = ServerArgs(
                model_path=str(self.model), speculative_draft_model_path=str(self.draft), device="cuda",
                speculative_algorithm=algorithm, **arguments,
            )  # fmt: skip
            if self._config is not None:  # as one that is read again is
                server._model_config = self._config
            with suppress(Exception, SystemExit):  # SGLang raises anything
                server.resolve_once()
                ended = True
        self._config = getattr(server, "_model_config", None)
        return server, ended

    def chosen(self, gpu: str, **arguments: Any) -> dict[str, Any]:
        """Return what is chosen of attention before drafts are looked at; a page where the class insists on one."""
        found: dict[str, Any] = {}
        passes = {of.__qualname__ for of in overrides.POST_PROCESS_PASSES}
        for source, fields in getattr(self.server(gpu, **arguments), "_resolved_overrides", ()):
            if source == "handle_speculative_decoding":
                break
            names = (*BACKENDS, OF_DRAFT, *(() if source in passes else ("page_size",)))
            found |= {name: fields[name] for name in names if name in fields}
        return found

    @property
    def layout(self) -> str:
        """That of the KV cache, by what SGLang makes of the config.json."""
        if self._config is None:
            self.server("sm_90")
        if self._config is None or self._config.attention_arch != AttentionArch.MLA:
            return "mha"
        return "dsa" if is_deepseek_dsa(self._config.hf_config) else "mla"


def contents(name: str) -> Iterator[Mapping[str, Any]]:
    """Return what a config.json of a class may say, the most like a published one first."""
    yield from published().get(ALIKE.get(name, name), ())
    for kind in types().get(name, ()):
        with suppress(Exception):  # a class that does not write itself down as it is
            yield json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False)) | {"torch_dtype": "bfloat16"}
    yield PLAIN


@cache
def published() -> dict[str, list[dict[str, Any]]]:
    """Return the first published config.json of every class that has one."""
    files = sorted(published_models.PUBLISHED.glob("served/*/config.json"))
    configs = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    found: dict[str, list[dict[str, Any]]] = {}
    for content in (*published_models.targets().values(), *configs):
        for name in content.get("architectures") or ():
            found.setdefault(name, [content])
    return found


@cache
def types() -> dict[str, list[str]]:
    """Return transformers' type of every class that it has one of."""
    found: dict[str, list[str]] = {}
    for table in (value for name, value in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES")):
        for kind, names in table.items():
            for name in (names,) if isinstance(names, str) else names:
                if kind in CONFIG_MAPPING:
                    found.setdefault(name, [kind])
    return found


def asked_of(folder: Path, name: str) -> Asked:
    """Return a class with the first config.json of which SGLang says an attention backend; or else the last."""
    for content in contents(name):
        asked = Asked(folder, name, {**content, "architectures": [name]})
        if BACKENDS[0] in asked.chosen("sm_90"):
            break
    return asked
