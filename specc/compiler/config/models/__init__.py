"""`model:` -> sizes: what a Hugging Face directory says about its model.

One file for each question: what the directory's files are (`config_json`), which layers keep what (`layers`), what a
token leaves in the KV pool (`kv_cache`) and a request in recurrent layers (`states`), what is said of drafts
(`drafting`). This one puts the answers together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from specc.compiler.config.block import Dtype, HiddenSource
from specc.compiler.config.models.attributes import Bare, Fact, attribute, block_of, ratio, value_of
from specc.compiler.config.models.config_json import (
    Directory,
    ModelUnreadableError,
    configuration,
    directory_of,
    in_short,
    language_model,
    language_model_of,
    read_directory,
)
from specc.compiler.config.models.drafting import block_facts, bundled_facts, drafting_facts
from specc.compiler.config.models.known import plain
from specc.compiler.config.models.kv_cache import key_value_facts, kv_dtype
from specc.compiler.config.models.layers import layer_facts
from specc.compiler.config.models.remembered import RememberedFacts, remembered
from specc.compiler.support.speculators import DTYPE_KEYS, MARK

__all__ = ["HANDS_OVER", "Fact", "ModelFacts", "ModelUnreadableError", "directory_of", "facts_of_type", "read_model"]

HANDS_OVER: dict[str, HiddenSource] = {
    "deepseek_v4": "hc_residual",
    "deepseek_v41_text": "hc_residual",
    "qwen4_exp": "hc_residual",
    "qwen4_exp_text": "hc_residual",
    "hy_v4": "collapsed",
}
"""What a model with hyper-connections hands to its draft, by ``model_type``."""

_HC_MULT = ("hc_mult", "hc_count")
_WINDOW = ("sliding_window", "sliding_window_size")


@dataclass(frozen=True)
class ModelFacts:
    """What one model directory says, by configuration key; a key that it does not settle is absent.

    There are more than keys of the configuration: ``aux_layers`` (text, counted from 1), ``context_length``,
    ``draft_vocab_size``, ``num_mtp_modules``, ``language_model`` (a class of transformers'), ``architecture`` (the
    class that the weights are of), ``window`` and ``attention_chunk`` (tokens that some layers see at most),
    ``index_group`` (tokens of which an indexer keeps one key),
    ``whole_num_kv_heads`` and ``whole_head_dim`` (of layers that see the whole text, where others differ),
    ``usual_num_kv_heads`` and ``usual_head_dim`` (what the file names, though some layers may differ),
    ``quant_method``, ``speculators`` (the type of a draft in that format), the sizes of a `RecurrentState` and, in
    words, ``recurrent_state`` and ``index_keys``. Of a draft that fills in blocks there are ``fills_blocks``,
    ``block_size`` (with the token before its places), ``projector`` (how its rows are changed before the head),
    ``own_embedding`` and ``block_window``; of a target that has one among its own weights ``bundles_blocks``, and what
    is said of that draft by names that begin with `BUNDLED` (its block size counts drafts).
    ``known``: whether transformers has a class for the architecture.
    """

    model_type: str
    known: bool
    facts: Mapping[str, Fact]

    @property
    def values(self) -> dict[str, int | str]:
        """The facts without where they come from."""
        return {key: fact.value for key, fact in self.facts.items()}

    @property
    def hands_over(self) -> HiddenSource | None:
        """What this architecture hands over, or None when the table does not know it."""
        return HANDS_OVER.get(self.model_type)


def read_model(directory: Path, written: str) -> ModelFacts:
    """Return the facts of the model in ``directory``; ``written`` is its path as the user spelled it.

    Raises ModelUnreadableError. Nothing is downloaded and no code from the directory is run.
    """
    return facts_of(read_directory(directory, written), written)


def facts_of_type(model_type: str) -> ModelFacts:
    """Return the facts of a type's language model with the sizes that its class has by itself.

    Raises ModelUnreadableError.
    """
    own = language_model_of(model_type)
    content = {"model_type": model_type, "architectures": [own] if own is not None else []}
    return facts_of(Directory(json.dumps(content).encode(), content), model_type)


def facts_of(files: Directory, written: str) -> ModelFacts:
    """Return the facts of a model whose files say this; raises ModelUnreadableError."""

    def ask() -> RememberedFacts:
        try:
            config = configuration(files.content)
            text = config.get_text_config()
        except Exception as error:  # transformers and the code it calls raise anything on odd files
            message = f"transformers cannot read '{written}/config.json': {in_short(error)}"
            raise ModelUnreadableError(message) from error
        return answer_of(config, text, files)

    known = plain(files.content)
    answer = remembered(files.raw, ask) if known is None else answer_of(known, known, files)
    facts = {key: Fact(value, str(origin)) for key, (value, origin) in answer.facts.items()}
    architecture = facts.get("architecture")
    facts |= block_facts(files.content, "" if architecture is None else str(architecture.value))
    facts |= bundled_facts(files.content)
    return ModelFacts(answer.model_type, answer.known, facts)


def answer_of(config: object, text: object, directory: Directory) -> RememberedFacts:
    """Return what a configuration, its language model's part and the directory say together."""
    model_type = str(getattr(text, "model_type", "") or getattr(config, "model_type", ""))
    facts = {key: [fact.value, fact.origin] for key, fact in _facts(config, text, directory).items()}
    return RememberedFacts(model_type, not isinstance(config, Bare), facts)


def _facts(config: object, text: object, directory: Directory) -> dict[str, Fact]:
    """Return the facts that the configuration settles."""
    facts = {
        "hidden_size": attribute(text, ("hidden_size",)),
        "vocab_size": attribute(text, ("vocab_size",)),
        "hc_mult": attribute(text, _HC_MULT),
        "dtype": _dtype(text) or _dtype(config),
        "kv_dtype": kv_dtype(config, text, directory.quantization),
        "experts_per_token": attribute(text, ("num_experts_per_tok", "num_experts_per_token")),
        "index_topk": attribute(text, ("index_topk",)),
        "index_group": attribute(text, ("indexer_compress_ratio",)),
        "context_length": _context_length(text),
        "language_model": Fact(own, "architectures") if (own := language_model(directory.content)) else None,
        "architecture": _architecture(directory.content),
        "window": attribute(text, _WINDOW),
        "attention_chunk": attribute(text, ("attention_chunk_size",)),
        "quant_method": _quant_method(config, text),
        "speculators": Fact(str(directory.content[MARK]), MARK) if MARK in directory.content else None,
        **layer_facts(text),
        **drafting_facts(config, text, directory.first_layer),
        **key_value_facts(text),
    }
    return {key: fact for key, fact in facts.items() if fact is not None}


def _architecture(content: Mapping[str, Any]) -> Fact | None:
    """Return the first name of ``architectures``."""
    names = content.get("architectures")
    named = isinstance(names, list) and bool(names) and isinstance(names[0], str)
    return Fact(str(cast("list[object]", names)[0]), "architectures") if named else None


def _quant_method(config: object, text: object) -> Fact | None:
    """Return how the weights are quantised, by the word that the model has for it."""
    block = block_of(config, "quantization_config") or block_of(text, "quantization_config")
    word = block.get("quant_method")
    return Fact(word, "quantization_config.quant_method") if isinstance(word, str) else None


def _context_length(text: object) -> Fact | None:
    """Return how many positions a text may have; rotary scaling by a plain factor multiplies what was trained on."""
    trained, rope = attribute(text, ("max_position_embeddings",)), value_of(text, "rope_parameters")
    if trained is None or not isinstance(rope, dict):
        return trained
    scaling = cast("dict[str, object]", rope)
    factor = ratio(scaling.get("factor"))
    if scaling.get("rope_type") not in ("linear", "dynamic") or factor is None:
        return trained
    return Fact(int(int(trained.value) * factor), f"{trained.origin} * {factor}")


def _dtype(config: object) -> Fact | None:
    """Return the element type, if a configuration can name it; the older name is asked where there is no other."""
    name = next((key for key in DTYPE_KEYS if hasattr(config, key)), "dtype")
    word = str(getattr(config, name, None)).removeprefix("torch.")
    return Fact(word, name) if word in get_args(Dtype) else None
