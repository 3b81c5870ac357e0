"""What a config.json says of drafts: the modules that a target brings, the rows of a target that a draft reads.

Files say it in their language model's part, beside it, or in a block of its own; what is found first counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from specc.compiler.config.block import SELECTOR
from specc.compiler.config.models.attributes import Fact, attribute, block_of, value_of
from specc.compiler.support.speculators import LAYERS

_T = TypeVar("_T")
MODULES = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
    "num_mtp_layers",
    "mtp_num_layers",
    "n_predict",
)
"""Names for the number of modules of multi-token prediction that a model brings along."""
_AUX_LAYERS = (
    ("eagle_config", "eagle_aux_hidden_state_layer_ids"),
    ("dflash_config", "target_layer_ids"),
    ("dflash_config", LAYERS),
)
_RANK = "markov_rank"
BUNDLED = "bundled_"
"""How the names of facts begin that are of a draft of blocks among a target's own weights."""
_OF_BUNDLED = "dspark_"
_BUNDLED = tuple(f"{_OF_BUNDLED}{key}" for key in ("block_size", _RANK, "noise_token_id", "target_layer_ids"))
"""What a target says whose files have a draft of blocks among their own weights."""
_READS_INPUTS = "deepseek_v41"
"""The ``model_type`` of targets of whose layers such a draft reads what goes into them, the output of the one before.
"""
_PLACES = {"mask_token_id", "target_layer_ids"}
"""Keys by both of which a draft has places to fill, and rows of its target."""
_TARGET_WIDTH = ("target_hidden_size", "backbone_hidden_size")


def drafting_facts(config: object, text: object, first_layer: int) -> dict[str, Fact | None]:
    """Return what a model says of modules, and of rows of a target; ``aux_layers`` is text, counted from 1.

    ``first_layer`` is the number by which the directory calls the first layer of its target.
    """
    levels = (text, config)
    facts: dict[str, Fact | None] = {
        "num_mtp_modules": _anywhere(levels, MODULES) or _in_block(levels, "mtp_config", MODULES[0]),
        "target_hidden_size": _anywhere(levels, _TARGET_WIDTH),
        "num_aux_layers": _anywhere(levels, ("num_aux_hidden_states",)),
        "draft_vocab_size": _anywhere(levels, ("draft_vocab_size",)),
        **{key: _anywhere(levels, (key,)) or _in_block(levels, "dflash_config", key) for key in (_RANK, *SELECTOR)},
    }
    if any(block_of(level, "eagle_config").get("use_aux_hidden_state") is False for level in levels):
        return facts | {"num_aux_layers": Fact(0, "eagle_config.use_aux_hidden_state")}
    read = _layers(*_aux_layer_ids(levels), first_layer)
    return facts | read | {"num_aux_layers": facts["num_aux_layers"] or read.get("num_aux_layers")}


def block_facts(content: Mapping[str, Any], architecture: str) -> dict[str, Fact]:
    """Return what a draft that fills in blocks says of these; nothing of any other model."""
    block = content.get("dflash_config")
    fills = content.keys() >= _PLACES or _RANK in content or "dflash" in architecture.lower()
    if not isinstance(block, dict) and not fills:
        return {}
    options = {**content, **(cast("dict[str, Any]", block) if isinstance(block, dict) else {})}
    size, projector, kinds = options.get("block_size"), options.get("projector_type"), options.get("layer_types")
    windows = isinstance(kinds, list) and "sliding_attention" in kinds
    there = {
        "fills_blocks": Fact(1, "dflash_config" if isinstance(block, dict) else "architectures"),
        "block_size": Fact(size, "block_size") if type(size) is int else None,
        "projector": Fact(projector, "projector_type") if isinstance(projector, str) else None,
        "own_embedding": Fact(1, "has_embed_tokens") if options.get("has_embed_tokens") is True else None,
        "block_window": Fact(1, "layer_types") if windows else None,
    }
    return {key: fact for key, fact in there.items() if fact is not None}


def bundled_facts(content: Mapping[str, Any]) -> dict[str, Fact]:
    """Return what a target says of a draft of blocks among its own weights; nothing of most."""
    text = content.get("text_config")
    options = {**(cast("dict[str, Any]", text) if isinstance(text, dict) else {}), **content}
    said = [key for key in _BUNDLED if options.get(key) is not None]
    if not said:
        return {}
    sizes = {key.removeprefix(_OF_BUNDLED): (key, options.get(key)) for key in _BUNDLED[:2]}
    first = int(content.get("model_type") == _READS_INPUTS)
    read = _layers(_BUNDLED[-1], options.get(_BUNDLED[-1]), first)
    layers = {"num_layers": read["num_aux_layers"]} if read else {}
    there = {name: Fact(size, key) for name, (key, size) in sizes.items() if type(size) is int}
    bundled = {"fills_blocks": Fact(1, said[0]), **there, **read, **layers}
    return {"bundles_blocks": Fact(1, said[0]), **{f"{BUNDLED}{name}": fact for name, fact in bundled.items()}}


def of_bundled(facts: Mapping[str, _T]) -> dict[str, _T]:
    """Return what is said of the draft of blocks among a target's own weights, by the names that a draft's facts have.

    It has a layer for each layer of the target that it reads.
    """
    return {name.removeprefix(BUNDLED): fact for name, fact in facts.items() if name.startswith(BUNDLED)}


def _layers(key: str, layers: object, first_layer: int) -> dict[str, Fact]:
    """Return which layers of the target a draft reads, and how many; nothing of what is no list of layers."""
    if not isinstance(layers, list) or not layers or any(type(layer) is not int for layer in cast("list[Any]", layers)):
        return {}
    counted = [layer + 1 - first_layer for layer in cast("list[int]", layers)]
    return {
        "aux_layers": Fact(" ".join(map(str, counted)), f"{key}, which counts from {first_layer}"),
        "num_aux_layers": Fact(len(counted), f"entries of {key}"),
    }


def _anywhere(levels: Sequence[object], names: Iterable[str]) -> Fact | None:
    """Return the first of the attributes that is a positive integer, of the first part that has one."""
    listed = tuple(names)
    return next((fact for level in levels if (fact := attribute(level, listed)) is not None), None)


def _in_block(levels: Sequence[object], holder: str, key: str) -> Fact | None:
    """Return a positive integer that a block of keys says, such as the number of modules of Inkling."""
    numbers = (block_of(level, holder).get(key) for level in levels)
    return next((Fact(number, key) for number in numbers if type(number) is int and number > 0), None)


def _aux_layer_ids(levels: Sequence[object]) -> tuple[str, object]:
    """Return the first key that lists layers of the target, and its value."""
    for level in levels:
        for holder, key in _AUX_LAYERS:
            layers = block_of(level, holder).get(key) or value_of(level, key)
            if layers is not None:
                return key, layers
    return "", None
