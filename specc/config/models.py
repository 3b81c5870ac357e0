"""`model:` -> sizes: what a Hugging Face directory says about its model, read through transformers.

transformers is imported only when a configuration has a `model:` key. Its own configuration classes know the
defaults that a config.json leaves out, so they are asked instead of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, get_args

from specc.config.remembered import Facts, remembered
from specc.config.resolved import Dtype, HiddenSource

HANDS_OVER: dict[str, HiddenSource] = {
    "deepseek_v4": "hc_residual",
    "qwen4_exp": "hc_residual",
    "qwen4_exp_text": "hc_residual",
    "hy_v4": "collapsed",
}
"""What a model with hyper-connections hands to its draft, by ``model_type``."""

_HC_MULT = ("hc_mult", "hc_count")
_DTYPE = ("dtype", "torch_dtype")


class _Pretrained(Protocol):
    """The part of a transformers configuration that is used by name."""

    def get_text_config(self) -> object:
        """Return the language model's part; the whole where there is only that."""
        ...


@dataclass(frozen=True)
class Fact:
    """A value and the words for where it comes from, such as ``num_key_value_heads``."""

    value: int | str
    origin: str


@dataclass(frozen=True)
class ModelFacts:
    """What one model directory says, by configuration key; a key that it does not settle is absent."""

    model_type: str
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
    content = _check_directory(directory, written)

    def ask() -> tuple[str, Facts]:
        try:
            config = _auto_config(directory)
            text = config.get_text_config()
        except Exception as error:  # transformers and the code it calls raise anything on odd files
            message = f"transformers cannot read '{written}/config.json': {_first_line(error)}"
            raise ModelUnreadableError(message) from error
        model_type = str(getattr(text, "model_type", "") or getattr(config, "model_type", ""))
        return model_type, {key: [fact.value, fact.origin] for key, fact in _facts(config, text).items()}

    model_type, facts = remembered(content, ask)
    return ModelFacts(model_type, {key: Fact(value, str(origin)) for key, (value, origin) in facts.items()})


def _check_directory(directory: Path, written: str) -> bytes:
    """Return the config.json of the directory; raises ModelUnreadableError unless it is a JSON object."""
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
    if "model_type" not in content:
        raise ModelUnreadableError(f"'{written}/config.json' has no model_type")
    return raw


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
        **_key_value_facts(text),
    }
    return {key: fact for key, fact in facts.items() if fact is not None}


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
    head_dim = _attribute(text, ("head_dim",))
    if head_dim is None and queries and hidden:
        head_dim = Fact(int(hidden.value) // int(queries.value), "hidden_size / num_attention_heads")
    return {"num_kv_heads": _attribute(text, ("num_key_value_heads",)) or queries, "head_dim": head_dim}


def _attribute(config: object, names: Iterable[str]) -> Fact | None:
    """Return the first of the attributes that is a positive integer."""
    for name in names:
        value = getattr(config, name, None)
        if type(value) is int and value > 0:
            return Fact(value, name)
    return None


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
