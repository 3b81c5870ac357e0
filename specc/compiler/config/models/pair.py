"""Two model directories, as an algorithm sees them when it is asked whether their draft is one of its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from specc.compiler.config.models import ModelFacts, directory_of, read_model
from specc.compiler.config.models.config_json import read_directory
from specc.compiler.support.speculators import MARK

_MODULE = re.compile(r"MTP|NextN", re.IGNORECASE)
"""What the classes of modules of multi-token prediction have in their names, where these have a directory."""

_OF_HEADS = {"eagle_config", "dflash_config", "backbone_hidden_size", "draft_vocab_size", MARK}
"""Keys that heads have in their config.json, and language models do not."""


@dataclass(frozen=True)
class Described:
    """A model directory.

    Attributes:
        written: its path as the user spelled it.
        said: what decides sizes.
        content: the keys of config.json; of a head in the format of speculators, those of its decoder with its own.

    """

    written: str
    said: ModelFacts
    content: Mapping[str, Any]

    def number(self, key: str) -> int | None:
        """A size by its key in a configuration; None where the directory does not settle it."""
        fact = self.said.facts.get(key)
        return int(fact.value) if fact is not None and type(fact.value) is int else None

    def block(self, key: str) -> Mapping[str, Any]:
        """A block of keys of config.json; an empty one where there is none."""
        value = self.content.get(key)
        return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}

    def named(self, pattern: str) -> str | None:
        """The first class of ``architectures`` in whose name a regular expression is found, in any case."""
        return next((name for name in self.classes if re.search(pattern, name, re.IGNORECASE)), None)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of ``architectures``."""
        names = self.content.get("architectures")
        listed = cast("list[object]", names) if isinstance(names, list) else []
        return tuple(name for name in listed if isinstance(name, str))

    @property
    def model_type(self) -> str:
        """The ``model_type`` of the whole, of which that of the language model's part may differ."""
        return str(self.content.get("model_type", ""))

    @property
    def language_model(self) -> str | None:
        """The class of a language model that transformers has; None for anything else."""
        fact = self.said.facts.get("language_model")
        return str(fact.value) if fact is not None else None

    @property
    def plain(self) -> bool:
        """Whether it says of itself that it is a language model, and nothing that only heads say."""
        return self.language_model is not None and not self.content.keys() & _OF_HEADS

    @property
    def modules(self) -> int:
        """How many modules of multi-token prediction are in it: said, or its layers where its class is one of them."""
        count = self.number("num_mtp_modules")
        return count or (self.number("num_layers") or 0 if self.named(_MODULE.pattern) else 0)


@dataclass(frozen=True)
class Pair:
    """A target, and the draft that is given for it; None is the target's own directory, which may have modules."""

    target: Described
    draft: Described | None = None

    @property
    def modules(self) -> Described | None:
        """The directory of modules to draft with; None where there are none."""
        if self.draft is None:
            return self.target if self.target.number("num_mtp_modules") else None
        return self.draft if self.draft.named(_MODULE.pattern) else None

    @property
    def blocks(self) -> Described | None:
        """The target's own directory, where a draft of blocks is among its weights; None where there is none."""
        return self.target if self.draft is None and "bundles_blocks" in self.target.said.facts else None

    @property
    def one_layer_as_wide(self) -> bool:
        """Whether the draft is a single layer of the target's width."""
        draft, width = self.draft, self.target.number("hidden_size")
        return draft is not None and draft.number("num_layers") == 1 and draft.number("hidden_size") == width


@dataclass(frozen=True)
class Fit:
    """Why a draft is one of an algorithm's kind, in words, and how many steps it was made for, where it says that."""

    why: str
    num_steps: int | None = None


def described(target: str, draft: str, folder: Path) -> Pair | None:
    """Return two models by their paths from a folder; None where both are the same directory.

    Raises ModelUnreadableError.
    """
    of_target, of_draft = directory_of(target, folder), directory_of(draft, folder)
    if of_target == of_draft:
        return None
    return Pair(describe(of_target, target), describe(of_draft, draft))


def describe(directory: Path, written: str) -> Described:
    """Read the model in ``directory``; ``written`` is its path as the user spelled it.

    Raises ModelUnreadableError.
    """
    return Described(written, read_model(directory, written), read_directory(directory, written).content)
