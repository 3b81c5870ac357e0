"""Which models are served, and how: a row for every type of language model that transformers has.

Each cell is asked of what refuses: the list of types that the reference engine was tried with, and the rules by which
adapters and configurations for an engine refuse a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files

from specc.adapters.sglang.served import Server, refusals
from specc.config.models import ModelFacts, ModelUnreadableError, facts_of_type
from specc.config.models.config_json import language_model_of
from specc.config.presets import PRESETS
from specc.config.presets.sglang_models import facts_of
from specc.config.vllm.defaults import attention

BOTH = "chain, tree"
_IN_A_WORD = {
    "a recurrent state": "recurrent state",
    "sparse attention": "sparse attention",
    "no keys and values to a cache": "no KV cache",
    "counts positions itself": "positions of its own",
    "differ from": "scores of its own",
}
"""What a reason of the reference engine says, and it in a word or two."""


def rows() -> Iterator[dict[str, str]]:
    """The type, its class, and what the reference engine, SGLang and vLLM serve of it, in order."""
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
            PRESETS["sglang"].title: _unread(model) or _sglang(model),
            PRESETS["vllm"].title: _unread(model) or _vllm(model),
        }


def _tried() -> dict[str, tuple[str, str]]:
    """What became of every type in the reference engine, and why."""
    text = files("specc.engine.models").joinpath("causal_types.json").read_text(encoding="utf-8")
    return {kind: (status, reason) for kind, (status, reason) in json.loads(text)["types"].items()}


def _reference(status: str, reason: str) -> str:
    """What the reference engine serves of a type."""
    if status == "right":
        return BOTH
    return "untried" if status != "refused" else f"no: {_in_a_word(reason)}"


def _in_a_word(reason: str) -> str:
    return next((word for part, word in _IN_A_WORD.items() if part in reason), "code of its own")


def _unread(model: ModelFacts | None) -> str:
    """Why no program is compiled for a model, if so."""
    if model is None or "num_layers" not in model.facts:
        return "sizes to be written"
    if model.facts["num_layers"].value == 0:
        return "no: no KV cache"
    return "" if "head_dim" in model.facts and "num_kv_heads" in model.facts else "sizes to be written"


def _sglang(model: ModelFacts) -> str:
    """What SGLang's adapter serves of a model: as refused with a chain, or else with a tree."""
    chain, tree = ([*refusals(Server(facts_of(model.values), topk=topk))] for topk in (1, 2))
    if chain:
        return f"no: {', '.join(_short(refusal.what) for refusal in chain)}"
    return "chain" if tree else BOTH


def _short(what: str) -> str:
    """What is not served, without whose it is."""
    return what.replace(" of the target", "").removeprefix("a ").removeprefix("the ").rstrip(",")


def _vllm(model: ModelFacts) -> str:
    """What vLLM's adapter serves of a model; which it refuses by its server alone, not by its model."""
    said, needed = model.values, list[str]()
    cache = str(said.get("kv_layout", "mha"))
    cache = "dsa" if cache == "mla" and "index_topk" in said else cache
    if "recurrent_state" in said:
        needed.append("--page-size")
    if attention("sm_90", cache, "bfloat16", str(said.get("architecture", "")), small_cache=False) is None:
        needed.append("--attention-backend")
    return "chain" + (f", with {' and '.join(needed)}" if needed else "")
