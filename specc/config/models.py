"""`model:` -> sizes: what a Hugging Face directory says about its model, read through transformers.

transformers is imported only when a configuration has a `model:` key. Its own configuration classes know the
defaults that a config.json leaves out, so they are asked instead of the file. The file itself is read where
transformers has no class for the model; then nothing stands for what it leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast, get_args

from specc.config.remembered import Answer, remembered
from specc.config.resolved import Dtype, HiddenSource

HANDS_OVER: dict[str, HiddenSource] = {
    "deepseek_v4": "hc_residual",
    "qwen4_exp": "hc_residual",
    "qwen4_exp_text": "hc_residual",
    "hy_v4": "collapsed",
}
"""What a model with hyper-connections hands to its draft, by ``model_type``."""

_HC_MULT = ("hc_mult", "hc_count")
_AUX_LAYER_IDS = (("eagle_config", "eagle_aux_hidden_state_layer_ids"), ("dflash_config", "target_layer_ids"))
_TARGET_WIDTH = ("target_hidden_size", "backbone_hidden_size")
_DTYPE = ("dtype", "torch_dtype")


class _Pretrained(Protocol):
    """The part of a transformers configuration that is used by name."""

    def get_text_config(self) -> object:
        """Return the language model's part; the whole where there is only that."""
        ...


class _Bare(SimpleNamespace):
    """A config.json without a class of its own: what it says, by attribute."""

    def get_text_config(self) -> object:
        """As `_Pretrained`."""
        text = getattr(self, "text_config", None)
        return _Bare(**cast("dict[str, Any]", text)) if isinstance(text, dict) else self


@dataclass(frozen=True)
class Fact:
    """A value and the words for where it comes from, such as ``num_key_value_heads``."""

    value: int | str
    origin: str


@dataclass(frozen=True)
class ModelFacts:
    """What one model directory says, by configuration key; a key that it does not settle is absent.

    ``known``: whether transformers has a class for the architecture.
    """

    model_type: str
    known: bool
    facts: Mapping[str, Fact]

    @property
    def hands_over(self) -> HiddenSource | None:
        """What this architecture hands over, or None when the table does not know it."""
        return HANDS_OVER.get(self.model_type)


class ModelUnreadableError(Exception):
    """The directory does not describe a model; the message says why, ``hint`` what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        """Take the message for the user and optional advice."""
        super().__init__(message)
        self.hint = hint


def read_model(directory: Path, written: str) -> ModelFacts:
    """Return the facts of the model in ``directory``; ``written`` is its path as the user spelled it.

    Raises ModelUnreadableError. Nothing is downloaded and no code from the directory is run.
    """
    raw, content = _check_directory(directory, written)

    def ask() -> Answer:
        try:
            config = _auto_config(directory) if _known(content["model_type"]) else _Bare(**content)
            text = config.get_text_config()
        except Exception as error:  # transformers and the code it calls raise anything on odd files
            message = f"transformers cannot read '{written}/config.json': {_first_line(error)}"
            raise ModelUnreadableError(message) from error
        model_type = str(getattr(text, "model_type", "") or getattr(config, "model_type", ""))
        facts = {key: [fact.value, fact.origin] for key, fact in _facts(config, text).items()}
        return Answer(model_type, not isinstance(config, _Bare), facts)

    answer = remembered(raw, ask)
    facts = {key: Fact(value, str(origin)) for key, (value, origin) in answer.facts.items()}
    return ModelFacts(answer.model_type, answer.known, facts)


def _check_directory(directory: Path, written: str) -> tuple[bytes, dict[str, Any]]:
    """Return the config.json of the directory and what it says; raises ModelUnreadableError unless it is of a model."""
    advice = "write the path of a local directory, relative to this file; a model of the Hub is downloaded first"
    try:
        if not directory.is_dir():
            what = "is a file, not a directory" if directory.exists() else "does not exist"
            raise ModelUnreadableError(f"model directory '{written}' {what}", advice)
        raw = (directory / "config.json").read_bytes()
        content = json.loads(raw)
    except FileNotFoundError:
        raise ModelUnreadableError(f"model directory '{written}' has no config.json", advice) from None
    except OSError as error:
        raise ModelUnreadableError(f"cannot read '{written}': {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelUnreadableError(f"'{written}/config.json' is not JSON: {_first_line(error)}") from error
    if not isinstance(content, dict):
        raise ModelUnreadableError(f"'{written}/config.json' is not a JSON object")
    if not isinstance(content.get("model_type"), str):
        raise ModelUnreadableError(f"'{written}/config.json' has no model_type")
    return raw, cast("dict[str, Any]", content)


def _known(model_type: str) -> bool:
    """Whether transformers has a class for configurations of this type."""
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def _auto_config(directory: Path) -> _Pretrained:
    """Return the transformers configuration; raises what transformers raises."""
    from transformers import AutoConfig

    read = AutoConfig.from_pretrained  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return cast("_Pretrained", read(str(directory), local_files_only=True, trust_remote_code=False))


def _facts(config: object, text: object) -> dict[str, Fact]:
    """Return the facts that the configuration settles."""
    facts = {
        "hidden_size": _attribute(text, ("hidden_size",)),
        "num_layers": _attribute(text, ("num_hidden_layers",)),
        "vocab_size": _attribute(text, ("vocab_size",)),
        "hc_mult": _attribute(text, _HC_MULT),
        "dtype": _dtype(text) or _dtype(config),
        "experts_per_token": _attribute(text, ("num_experts_per_tok", "num_experts_per_token")),
        "index_topk": _attribute(text, ("index_topk",)),
        "draft_vocab_size": _attribute(text, ("draft_vocab_size",)),
        **_aux_facts(config, text),
        **_key_value_facts(text),
    }
    return {key: fact for key, fact in facts.items() if fact is not None}


def _aux_facts(config: object, text: object) -> dict[str, Fact | None]:
    """Return what a draft says of the rows of its target that it reads; ``aux_layers`` is text, counted from 1.

    Drafts say it beside their language model's part or in it.
    """
    key, layers = _aux_layer_ids(text)
    said: dict[str, Fact | None] = {
        "target_hidden_size": _attribute(text, _TARGET_WIDTH) or _attribute(config, _TARGET_WIDTH),
        "num_aux_layers": _attribute(text, ("num_aux_hidden_states",)),
    }
    if isinstance(layers, list) and layers and all(type(layer) is int for layer in layers):
        counted = [int(layer) + 1 for layer in layers]
        said["aux_layers"] = Fact(" ".join(map(str, counted)), f"{key}, which counts from 0")
        said["num_aux_layers"] = said["num_aux_layers"] or Fact(len(counted), f"entries of {key}")
    return said


def _aux_layer_ids(text: object) -> tuple[str, object]:
    """Return the first key that lists layers of the target, and its value; the keys count from 0."""
    for holder, key in _AUX_LAYER_IDS:
        nested = getattr(text, holder, None)
        layers = nested.get(key) if isinstance(nested, dict) else getattr(text, key, None)
        if layers is not None:
            return key, layers
    return "", None


def _key_value_facts(text: object) -> dict[str, Fact | None]:
    """Return heads, head length and layout of the KV pool."""
    latent = _attribute(text, ("kv_lora_rank",))
    if latent is not None:
        rotary = _attribute(text, ("qk_rope_head_dim",))
        width = int(latent.value) + (int(rotary.value) if rotary else 0)
        return {
            "kv_layout": Fact("mla", "kv_lora_rank"),
            "num_kv_heads": Fact(1, "one latent row per token (kv_lora_rank)"),
            "head_dim": Fact(width, "kv_lora_rank + qk_rope_head_dim"),
        }
    queries = _attribute(text, ("num_attention_heads",))
    hidden = _attribute(text, ("hidden_size",))
    head_dim, heads = _attribute(text, ("head_dim",)), _attribute(text, ("num_key_value_heads",))
    if _goes_without(text, "head_dim") and queries and hidden:
        head_dim = Fact(int(hidden.value) // int(queries.value), "hidden_size / num_attention_heads")
    if _goes_without(text, "num_key_value_heads"):
        heads = queries
    return {"num_kv_heads": heads, "head_dim": head_dim}


def _goes_without(text: object, name: str) -> bool:
    """Whether an architecture does not have this size, so that the usual rule holds; a bare file may leave it out."""
    return not isinstance(text, _Bare) and _value(text, name) is None


def _attribute(config: object, names: Iterable[str]) -> Fact | None:
    """Return the first of the attributes that is a positive integer."""
    for name in names:
        value = _value(config, name)
        if type(value) is int and value > 0:
            return Fact(value, name)
    return None


_VARIES = "another in every layer"


def _value(config: object, name: str) -> object:
    """Return an attribute; None if there is none, `_VARIES` if transformers gives it by layer only (Gemma 4)."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return _VARIES


def _dtype(config: object) -> Fact | None:
    """Return the element type, if it is one that a configuration can name."""
    for name in _DTYPE:
        word = str(getattr(config, name, None)).removeprefix("torch.")
        if word in get_args(Dtype):
            return Fact(word, name)
    return None


def _first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, at most 200 characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
