"""Which models are served, and how: a row for every type of language model that transformers has.

Each cell is asked of what refuses: the list of types that the reference engine was tried with, and the rules by which
adapters and configurations for an engine refuse a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files

from specc.compiler.config.models import ModelFacts, ModelUnreadableError, facts_of_type
from specc.compiler.config.models.config_json import language_model_of
from specc.compiler.config.presets import PRESETS
from specc.compiler.config.presets.contract import EngineNeeds, Preset

FORMS = "chain, tree"
_IN_A_WORD = {
    "a recurrent state": "recurrent state",
    "sparse attention": "sparse attention",
    "no keys and values to a cache": "no KV cache",
    "counts positions itself": "positions of its own",
    "differ from": "scores of its own",
}
"""What a reason of the reference engine says, and it in a word or two."""


def rows() -> Iterator[dict[str, str]]:
    """The type, its class, and what the reference engine and every other serve of it, in order."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    for model_type, (status, reason) in _tried().items():
        try:
            model = facts_of_type(model_type)
        except ModelUnreadableError:
            model = None
        yield {
            "model_type": model_type,
            "architecture": language_model_of(model_type) or "",
            "specc run": _reference(status, reason),
            **{preset.title: _engine(preset, model) for preset in PRESETS.values()},
        }


def _tried() -> dict[str, tuple[str, str]]:
    """What became of every type in the reference engine, and why."""
    text = files("specc.lab.engine.models").joinpath("causal_types.json").read_text(encoding="utf-8")
    return {kind: (status, reason) for kind, (status, reason) in json.loads(text)["types"].items()}


def _reference(status: str, reason: str) -> str:
    """What the reference engine serves of a type."""
    if status == "right":
        return FORMS
    return "untried" if status != "refused" else f"no: {_in_a_word(reason)}"


def _in_a_word(reason: str) -> str:
    return next((word for part, word in _IN_A_WORD.items() if part in reason), "code of its own")


def _engine(preset: Preset, model: ModelFacts | None) -> str:
    """What an engine's adapter serves of a type, if a program is compiled for it."""
    if model is not None and model.values.get("num_layers") == 0:
        return "no: no KV cache"
    if model is None or not {"num_layers", "head_dim", "num_kv_heads"} <= model.facts.keys():
        return "sizes to be written"
    asked = EngineNeeds(algorithm=None, models={"target": model.values}, layouts={}, topk=1, ranks=1, head_rows=False)
    chain, tree = ([what for _, what in preset.unserved(replace(asked, topk=topk))] for topk in (1, 2))
    if chain:
        return f"no: {', '.join(map(_short, chain))}"
    return "chain" if tree or not preset.tree_masks else FORMS


def _short(what: str) -> str:
    """What is not served, without whose it is."""
    return what.replace(" of the target", "").removeprefix("a ").removeprefix("the ").rstrip(",")
