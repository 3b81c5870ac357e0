"""What SGLang makes of a model, from what its directory says: the facts on which it hangs whether programs serve it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from specc.compiler.config.models.drafting import of_bundled
from specc.compiler.config.presets.contract import OWN_HEADS, EngineNeeds, Value
from specc.engines.answers import answers_of
from specc.engines.sglang.served import KINDS, TESTED, KindOfDraft, ServedModel, Server, kind_of, refusals

_WINDOWED = re.compile(
    r"Afmoe|Beam|Cohere2|DeepseekV4|Dots3|EmbeddingGemma2|Exaone|Gemma[234]|GptOss|Granite(Moe)?SWA|IQuest(Q1|LoopCoder)"
    r"|Inkling|JetNemotron|Laguna|Llama4|Mellum|MiMoV2|Muse|Olmo[23]|Spark2_5|Step3p|UnlimitedOCR"
)
"""Architectures of which SGLang reads ``sliding_window``. Of others, such as Mistral and Phi, it takes no notice."""

_OWN_CACHES = re.compile(r"DiffusionGemma|Dots3|Inkling|MiniMaxM3Sparse|UnlimitedOCR")
"""Architectures with a KV cache of a kind of their own."""

_COMPRESSED = re.compile(r"DeepseekV4")
"""Architectures whose KV cache has entries that several tokens share, beside a window."""

_OWN_ATTENTION: Mapping[str, str] = {"Qwen4Exp": "qsa"}
"""How the names of architectures begin whose layers have attention of their own, whatever is written -> its name, which
is that of the layout of its KV cache, too."""

_BLOCKS_ATTENTION: Mapping[str, str] = {"DeepseekV4ForCausalLMDSpark": "dsv4"}
"""Classes of drafts of blocks that have attention of their own, whatever is written -> its name."""

_CLASSES: Mapping[str, str] = {"DeepseekV41ForCausalLM": "DeepseekV4ForCausalLM"}
"""Classes that directories name -> that as which SGLang reads them."""

_TWO_POOLS = re.compile(
    r"Beam|EmbeddingGemma2|Gemma4|GptOss|Granite(Moe)?SWA|IQuestQ1|Laguna|Llama4|Mellum|MiMoV2|Muse|Spark2_5|Step3p"
)
"""Architectures whose windows SGLang keeps in a KV pool of their own, beside that of layers that see the whole text."""


_STARTED_WITH: Mapping[str, tuple[str, ...]] = {
    "DeepseekV41": ("DSPARK",),
    "DeepseekV4": ("EAGLE", "DSPARK"),
    "Qwen4Exp": ("EAGLE", "NEXTN"),
}
"""How the names of classes begin for which drafts are by some algorithms alone -> these; the first one counts.

SGLang starts no others, or they end with the first step, or have run nowhere (a draft of its own over Qwen4-Exp)."""

_CHUNKED = ("Llama4ForConditionalGeneration",)
"""Architectures whose layers see a chunk of the text alone; of others SGLang takes ``attention_chunk_size`` for a
window, if at all."""


def facts_of(values: Mapping[str, Value], kind: KindOfDraft | None = None) -> ServedModel:
    """Return the facts of a model in SGLang; ``values`` is what its directory says, by key.

    With ``kind`` a server's draft is of that, whatever its directory says, which may be the target's.
    """
    values = values if kind is None else {**values, **as_draft(values, kind)}
    written = str(values.get("drafts_for", _written(values)))
    architecture, cache = architecture_of(values), str(values.get("kv_layout", "mha"))
    if cache == "mla" and "index_topk" in values:
        cache = "dsa"
    kind = kind if kind is not None and kind.blocks else marked(values) or kind
    blocks = kind is not None and kind.blocks and _COMPRESSED.match(architecture) is None
    windowed = "block_window" in values if blocks else "window" in values and _WINDOWED.match(architecture) is not None
    embeds = "own_embedding" in values
    stateless = kind is not None and kind.stateless
    chunked = "attention_chunk" in values and architecture in _CHUNKED
    if (windowed or chunked) and not blocks and _TWO_POOLS.match(architecture):
        cache = "swa"
    cache = own_attention(values) or cache
    if _COMPRESSED.match(architecture):
        cache = "compressed"
    return ServedModel(
        cache=f"that of {written}" if _OWN_CACHES.match(written) else cache,
        window=windowed or "attention_chunk" in values,
        chunk=chunked,
        state=str(values.get("state_kind", "unknown")) if "recurrent_state" in values and not stateless else "",
        beside="" if kind is None else kind.beside(architecture, str(values.get("projector", "")), embeds=embeds),
    )


def _written(values: Mapping[str, Value]) -> str:
    """Return the class that a model's directory names; an empty text where it names none."""
    return str(values.get("architecture", ""))


def architecture_of(values: Mapping[str, Value]) -> str:
    """Return the class by which SGLang knows a model; an empty text where its directory does not name it."""
    return _CLASSES.get(_written(values), _written(values))


def as_draft(values: Mapping[str, Value], kind: KindOfDraft) -> dict[str, Value]:
    """Return what SGLang reads otherwise of a directory whose draft of a kind is among the weights of its target."""
    drafts = kind.bundled.get(architecture_of(values))
    if drafts is None or "bundles_blocks" not in values:
        return {}
    return {"architecture": drafts, **of_bundled(values), "drafts_for": _written(values)}


def own_attention(values: Mapping[str, Value]) -> str | None:
    """Return the attention that a model's layers have whatever is written; None for most."""
    architecture = architecture_of(values)
    return next((kind for begin, kind in _OWN_ATTENTION.items() if architecture.startswith(begin)), None)


def draft_in(target: Path, kind: KindOfDraft) -> Path | None:
    """Return the folder among a target's files where SGLang finds a draft of a kind; None where there is none."""
    folder = target / kind.folder
    return folder if kind.folder and (folder / "config.json").is_file() else None


def blocks_attention(values: Mapping[str, Value]) -> str | None:
    """Return the attention that a draft of blocks has whatever is written; None for most."""
    return _BLOCKS_ATTENTION.get(architecture_of(values))


def marked(values: Mapping[str, Value]) -> KindOfDraft | None:
    """Return the kind of which a draft is that says this of itself; None for one that may be of several."""
    architecture = architecture_of(values)
    return next((kind for kind in KINDS if kind.marks in values or kind.of_draft(architecture)), None)


def unread_draft(values: Mapping[str, Value], algorithm: str | None) -> str | None:
    """Return what of a draft SGLang cannot draft with, in words; None where it has a class for it."""
    if "speculators" in values:
        return "a head in the format of speculators"
    architecture = architecture_of(values)
    known = answers_of("sglang", TESTED[-1])
    if OWN_HEADS.fullmatch(architecture):  # which is refused of any engine
        return None
    if architecture and architecture not in known.architectures | known.modules.keys():
        return f"a draft of the class {architecture}, which SGLang does not have,"
    own = known.modules.get(architecture)
    drafting = architecture if own is None else own.architecture
    if architecture and is_head(algorithm) and drafting not in known.heads:
        return f"{algorithm} with a draft of the class {architecture}, which SGLang runs as a whole model,"
    return None


def unstarted(values: Mapping[str, Value], algorithm: str | None) -> str | None:
    """Return the algorithm and a target for which SGLang does not draft by it, in words; None where it does."""
    alone = algorithms_of(values)
    return f"{algorithm} for {_written(values)}" if alone and algorithm is not None and algorithm not in alone else None


def too_wide(values: Mapping[str, Value], nodes: int) -> str | None:
    """Return what SGLang does not verify of so many nodes of a request in a target, in words; None where it does.

    It keeps the last tokens' index keys where those of as many later ones go, as many as one key has.
    """
    group = values.get("index_group")
    wide = own_attention(values) is not None and isinstance(group, int) and nodes > group
    return f"a step of {nodes} nodes over index keys of {group} tokens" if wide else None


def algorithms_of(values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the algorithms by which alone SGLang drafts for a target; none where it drafts by any."""
    return next((of for begin, of in _STARTED_WITH.items() if _written(values).startswith(begin)), ())


def is_head(algorithm: str | None) -> bool:
    """Return whether drafts read the target's hidden states; SGLang does not look whether a draft's class does."""
    kind = kind_of(algorithm)
    return kind is not None and kind.head


def unserved(asked: EngineNeeds) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return what of a configuration no server of SGLang's has a program run: the path of its key, and it in words."""
    values, layouts = asked.models.get("draft", {}), asked.layouts
    of_target, written = architecture_of(asked.models.get("target", {})), kind_of(asked.algorithm)
    # A draft that is known by its class alone is none that is not known.
    kind = marked(values) or (None if written is not None and written.drafts else written)
    target = _of(asked.models.get("target"), layouts.get("target"))
    draft = _of(asked.models.get("draft"), layouts.get("draft"), kind)
    server = Server(target, draft, kind, topk=asked.topk, ranks=asked.ranks, head_rows=asked.head_rows)
    paths = {"topk": ("topk",), "head_rows": ("draft", "token_map")}
    if written is not None and written.targets and "target" in asked.models and not written.of_target(of_target):
        yield ("algorithm",), f"{written.each_step} of {of_target or 'such a target'}"
    if (alone := unstarted(asked.models.get("target", {}), asked.algorithm)) is not None:
        yield ("algorithm",), alone
    if (unread := unread_draft(values, asked.algorithm)) is not None:
        yield ("draft", "model"), unread
    for refusal in refusals(server):
        yield paths.get(refusal.about, (refusal.about, "model")), refusal.what


def _of(values: Mapping[str, Value] | None, layout: str | None, kind: KindOfDraft | None = None) -> ServedModel:
    """Return the facts of a model whose directory says this, or whose layout is written."""
    model = facts_of(values, kind) if values is not None else ServedModel()
    return model if layout is None or layout == model.cache else replace(model, cache=layout)
