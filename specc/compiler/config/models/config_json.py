"""The files of a model directory -> its configuration, as transformers' own class or as it stands.

transformers is imported only here, and only when its answer is not remembered. Its configuration classes know the
defaults that a config.json leaves out, so they are asked instead of the file. The file itself is read where there is
no class for the model; then nothing stands for what it leaves out. No code of the directory is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from specc.compiler.config.models.attributes import MOST_RATIO, Bare, TooLargeError, decimal_number, ratio, whole_number
from specc.compiler.config.models.hub import hint_for, model_path
from specc.compiler.config.models.known import known_types
from specc.compiler.support.files.paths import PathError
from specc.compiler.support.files.reading import read_regular
from specc.compiler.support.speculators import MARK, merged

_ALSO_KNOWN_AS = {"kimi_k2": "deepseek_v3", "mimo": "qwen2"}
"""Published types that transformers does not know, and the type whose configuration they use unchanged."""

_MOST_LAYERS = 1 << 17
"""Classes of transformers make lists of as many entries before anyone asks whether the number is in its range."""

_SCALING = ("rope_scaling", "rope_parameters")
"""Blocks that say how positions are scaled, as a whole or for layers of a kind."""


class ModelUnreadableError(Exception):
    """The directory does not describe a model; the message says why, ``hint`` what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        """Take the message for the user and optional advice."""
        super().__init__(message)
        self.hint = hint


class Pretrained(Protocol):
    """The part of a transformers configuration that is used by name."""

    def get_text_config(self) -> object:
        """Return the language model's part; the whole where there is only that."""
        ...


@dataclass(frozen=True)
class Directory:
    """What the files of a model directory say.

    Attributes:
        raw: the bytes of the files, by which an answer about them is remembered.
        content: the keys of config.json; of a head in the format of speculators, those of its decoder with its own.
        quantization: the keys of hf_quant_config.json, if it is there.
        first_layer: the number by which the directory calls the first layer of its target.

    """

    raw: bytes
    content: Mapping[str, Any]
    quantization: Mapping[str, Any] = field(default_factory=dict[str, Any])
    first_layer: int = 0


def directory_of(written: str, folder: Path = Path()) -> Path:
    """Return the path of a model directory, see `model_path`; raises ModelUnreadableError for what can be none."""
    try:
        return model_path(written, folder)
    except PathError as error:
        raise ModelUnreadableError(f"'{written[:80]}' is not a path: {error}", hint_for(written)) from error


def read_directory(directory: Path, written: str) -> Directory:
    """Return what the directory says; raises ModelUnreadableError unless it is of a model."""
    problem = ""
    try:
        if not directory.is_dir():
            problem = "is a file, not a directory" if directory.exists() else "does not exist"
    except OSError as error:  # a name longer than the file system takes, or a folder above that may not be entered
        problem = f"cannot be read: {error.strerror or error}"
    if problem:
        raise ModelUnreadableError(f"model directory '{written[:80]}' {problem}", hint_for(written))
    keys = _keys(directory, written, "config.json")
    if keys is None:
        raise ModelUnreadableError(f"model directory '{written}' has no config.json", hint_for(written))
    raw, content = keys
    first_layer = 0
    if MARK in content:
        try:
            content, first_layer = merged(content), 1
        except ValueError as error:
            raise ModelUnreadableError(f"'{written}' is {error}") from error
    if not isinstance(content.get("model_type"), str):
        raise ModelUnreadableError(f"'{written}/config.json' has no model_type")
    if (key := _endless(content)) is not None:
        raise ModelUnreadableError(f"'{written}/config.json': {key[:60]} is more than {_MOST_LAYERS}")
    if (wrong := _no_scaling(content)) is not None:
        raise ModelUnreadableError(f"'{written}/config.json': {wrong}")
    more = _keys(directory, written, "hf_quant_config.json")
    return Directory(b"\0".join([raw, *(more[:1] if more else ())]), content, more[1] if more else {}, first_layer)


def _keys(directory: Path, written: str, name: str) -> tuple[bytes, dict[str, Any]] | None:
    """Return a JSON file's bytes and keys, None where there is none; raises ModelUnreadableError."""
    try:
        raw = read_regular(directory / name)
        content = json.loads(raw, parse_int=whole_number, parse_float=decimal_number)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelUnreadableError(f"cannot read '{written}/{name}': {error.strerror or error}") from error
    except TooLargeError as error:
        raise ModelUnreadableError(f"'{written}/{name}' has {error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelUnreadableError(f"'{written}/{name}' is not JSON: {in_short(error)}") from error
    if not isinstance(content, dict):
        raise ModelUnreadableError(f"'{written}/{name}' is not a JSON object")
    return raw, cast("dict[str, Any]", content)


def _endless(content: Mapping[str, Any]) -> str | None:
    """Return the first key, of the model or of a part of it, with more layers than any model has; None without one."""
    for block in _blocks(content):
        for key, value in block.items():
            if key.endswith(("layers", "n_layer")) and isinstance(value, int) and value > _MOST_LAYERS:
                return key
    return None


def _no_scaling(content: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a number that positions are scaled by, wherever it stands; None where nothing is."""
    for block in _blocks(content):
        for part in _blocks({name: block[name] for name in _SCALING if isinstance(block.get(name), dict)}):
            if (factor := part.get("factor")) is not None and ratio(factor) is None:
                return f"positions are scaled by {factor!r:.60}, which is no number above 0 up to {MOST_RATIO}"
    return None


def _blocks(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a block of keys, and all blocks in it."""
    waiting = [content]
    while waiting:
        yield (block := waiting.pop())
        waiting += [cast("dict[str, Any]", value) for value in block.values() if isinstance(value, dict)]


def configuration(content: Mapping[str, Any]) -> Pretrained:
    """Return the configuration by its class, or as it stands; raises anything, as transformers does on odd files."""
    from transformers import CONFIG_MAPPING

    known = class_for(str(content["model_type"]))
    if known is None:
        return Bare(**content)
    return cast("Pretrained", CONFIG_MAPPING[known].from_dict({**content, "model_type": known}))


def class_for(model_type: str) -> str | None:
    """Return the type whose class of transformers reads configurations of this type; None where there is none."""
    from transformers import CONFIG_MAPPING

    return next((name for name in (model_type, _ALSO_KNOWN_AS.get(model_type)) if name in CONFIG_MAPPING), None)


_SEES = "ForConditionalGeneration"
"""How classes of transformers end whose models see pictures, or hear; transformers is asked for no others."""


def language_model(content: Mapping[str, Any]) -> str | None:
    """Return the class of ``architectures`` that is transformers' own language model of the type; None without one.

    One that sees pictures is the type's, too.
    """
    model_type, classes = str(content["model_type"]), content.get("architectures")
    if not isinstance(classes, list):
        return None
    if (own := language_model_of(model_type)) in classes:
        return own
    if not any(str(name).endswith(_SEES) for name in cast("list[object]", classes)):
        return None
    sees = _seeing_model_of(model_type)
    return sees if sees in classes else None


def language_model_of(model_type: str) -> str | None:
    """Return the class of transformers that is the language model of a type."""
    if model_type in known_types():
        return known_types()[model_type].language_model
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)


def _seeing_model_of(model_type: str) -> str | None:
    """Return the class of transformers that is the language model of a type behind pictures."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(model_type)


def in_short(error: BaseException) -> str:
    """Return an exception's message in one line of at most 300 characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
