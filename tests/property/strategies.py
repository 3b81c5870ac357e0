"""Random configurations, valid and not, and random modules that mean nothing but can be written down."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from programs import MODEL

from specc.compiler.algorithms import names, needs
from specc.compiler.ir.core import PHASES, CarriedValue, Module
from specc.compiler.ir.declarations import DECLS, Decl, KvPool, Options
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import AXES, DTYPES, LARGEST, UNBOUNDED, Dim, StateType, TensorType, Type
from specc.compiler.support.location import Location

# --- configurations -------------------------------------------------------------------------------------------------

DTYPE_NAMES = ["float32", "bfloat16", "float16"]


KV_ROWS = st.sampled_from(
    [
        {"num_kv_heads": 2, "head_dim": 4},
        {"num_kv_heads": 1, "head_dim": 3, "kv_dtype": "bfloat16"},
        {"num_kv_heads": 1, "head_dim": 20, "kv_dtype": "float8_e4m3fn"},
        {"num_kv_heads": 1, "head_dim": 12, "kv_layout": "mla"},
    ]
)
"""Rows of a KV pool: of several lengths, element sizes and layouts."""

HEADS = ["weights", "int8", "fp8"]
OUTPUTS = ["accept_index", "hidden_states", "logprobs", "routed_experts", "indexer_topk"]
ESTIMATED = ("STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "DFLASH", "DSPARK", "DFLASH2")
"""Algorithms that say how probable drafts are."""
CONTEXT = 64
"""Tokens that a mask over the whole text has room for; more than any scenario writes."""


@st.composite
def models(draw: st.DrawFn, vocab: int) -> dict[str, Any]:
    """One tiny model."""
    return MODEL | {
        "hidden_size": draw(st.integers(1, 9)),
        "hc_mult": draw(st.sampled_from([1, 1, 2])),
        "hidden_source": draw(st.sampled_from(["collapsed", "hc_residual"])),
        "vocab_size": vocab,
        "dtype": draw(st.sampled_from(DTYPE_NAMES)),
        "logits_dtype": draw(st.sampled_from(DTYPE_NAMES)),
        "num_layers": draw(st.integers(1, 3)),
        **draw(KV_ROWS),
    }


SAME = ("hidden_size", "hc_mult", "hidden_source", "dtype")
KV = ("num_kv_heads", "head_dim", "kv_layout", "kv_dtype")


@st.composite
def pairs(draw: st.DrawFn, algorithm: str, vocab: int, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A target, and a draft that was made for it."""
    target, draft = draw(models(vocab)), draw(models(vocab))
    if algorithm in ("EAGLE", "MULTI_LAYER_EAGLE"):
        draft |= {key: target[key] for key in SAME}
    if algorithm == "MULTI_LAYER_EAGLE":
        draft |= {"num_layers": steps + draw(st.integers(0, 2))}
    if algorithm == "DSPARK":
        draft |= {"markov_rank": draw(st.integers(1, 40))}
    if algorithm == "DFLASH2":
        most = min(16, draft.get("vocab_size", vocab))
        draft |= {"selector_rank": draw(st.integers(1, 40)), "selector_top_k": draw(st.integers(1, most))}
    if algorithm in ("EAGLE3", "DFLASH", "DFLASH2", "DSPARK"):
        layers = sorted(draw(st.sets(st.integers(1, target["num_layers"]), min_size=1)))
        target |= {"hidden_source": "aux", "aux_layers": layers}
        draft |= {"target_hidden_size": target["hidden_size"], "num_aux_layers": len(layers)}
    if algorithm == "FROZEN_KV_MTP":
        draft = {key: value for key, value in draft.items() if key not in KV} | {
            k: target[k] for k in KV if k in target
        }
        draft |= {"target_hidden_size": width(target), "dtype": target["dtype"]}
    return target, draft


def width(model: dict[str, Any]) -> int:
    """Elements of a row that a model hands over."""
    if model["hidden_source"] == "aux":
        return model["hidden_size"] * len(model["aux_layers"])
    return model["hidden_size"] * (model["hc_mult"] if model["hidden_source"] == "hc_residual" else 1)


@st.composite
def look_ups(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a look-up in the text."""
    shortest = draw(st.integers(1, 4))
    options = {"window": draw(st.integers(64, 90)), "shortest": shortest, "longest": shortest + draw(st.integers(0, 4))}
    options["beyond"] = draw(st.sampled_from(["period", "last"]))
    return options | draw(st.sampled_from([{}, {"corpus": "notes.txt"}]))


@st.composite
def configs(draw: st.DrawFn, algorithms: Sequence[str] = names(), *, rotates: bool | None = None) -> dict[str, Any]:
    """A configuration that this version can build: about half are trees, where the algorithm has any.

    ``rotates``: whether it leaves the target to the engine, None for one of four.
    """
    keys = draw(whole_configs(algorithms, **({"topk": 1} if rotates else {})))
    if draw(st.sampled_from([False, False, False, True])) if rotates is None else rotates:
        return draw(rotated(keys))
    return keys


def whole_of(keys: dict[str, Any]) -> dict[str, Any]:
    """The keys of the whole-step program that does what a rotated one does."""
    own = ("step", "tables", "engine")
    target = {key: value for key, value in keys["target"].items() if key != "padded_vocab_size"}
    return {key: value for key, value in keys.items() if key not in own} | {"target": target}


def budgets(steps: int) -> st.SearchStrategy[int | list[int | str]]:
    """Budgets of a chain: a number, or several, of which the last may be all rows."""
    several = st.sets(st.integers(2, steps), min_size=1, max_size=3).map(sorted)
    return st.integers(2, steps) | st.builds(
        lambda some, every: [*some, *every], several, st.sampled_from([[], ["all"]])
    )


WHOLE_KEYS = ("num_draft_tokens", "mask", "context_length", "budget")
OF_VLLM = ("STANDALONE", "EAGLE", "EAGLE3")


@st.composite
def rotated(draw: st.DrawFn, keys: dict[str, Any]) -> dict[str, Any]:
    """The same, with the target left to the engine, whose tables are of any integers, or as vLLM's are."""
    keys = {key: value for key, value in keys.items() if key not in WHOLE_KEYS} | {"topk": 1}
    keys["outputs"] = [name for name in keys["outputs"] if name in ("accept_index", "logprobs")]
    keys["verify"] = {"rejection": "target_only", "block": "target_only"}.get(keys["verify"], keys["verify"])
    if keys["algorithm"] in OF_VLLM and keys["verify"] == "greedy" and draw(st.booleans()):
        outputs = [name for name in keys["outputs"] if name != "logprobs"]
        keys["draft"] = keys["draft"] | {"head": "engine"}  # the others are not yet
        return keys | {"engine": "vllm", "overlap": True, "draft_positions": "auto", "outputs": outputs}
    blocks = {"slots": "block_table"}
    slots = draw(st.sampled_from([{}, blocks, blocks | {"padding_slot": -1}]))
    keys |= {"step": "rotated"}
    if draw(st.booleans()):
        more = draw(st.sampled_from([0, 1, 8, 64]))
        keys["target"] = keys["target"] | {"padded_vocab_size": keys["target"]["vocab_size"] + more}
    known = ["bonus", "drafts", *(["seq_lens"] if keys["overlap"] else [])]
    tables = st.fixed_dictionaries({"written_by": st.sampled_from(["program", "engine"])}, optional={"dtype": INTEGERS})
    history = {"text": st.just({"dtype": "int32"})} if keys["algorithm"] == "NGRAM" else {}
    carry = draw(st.fixed_dictionaries({}, optional=dict.fromkeys(known, tables) | history))
    keys["tables"] = slots | {"carry": carry}
    return keys


INTEGERS = st.sampled_from(["int32", "int64"])


@st.composite
def whole_configs(draw: st.DrawFn, algorithms: Sequence[str], topk: int | None = None) -> dict[str, Any]:
    """A configuration whose program runs the target; ``topk``: how many branches, None for any number."""
    algorithm, vocab = draw(st.sampled_from(algorithms)), draw(st.integers(1, 40))
    needed = needs(algorithm)
    steps = draw(st.integers(1, 5))
    most = draw(st.sampled_from([1, 1, 1, 2, 3, 4])) if topk is None else topk
    topk = min(vocab, most) if needed.trees else 1
    target, draft = draw(pairs(algorithm, vocab, steps))
    if topk == 1:  # the sums of scores, of a tree or of an estimate, are added in another order then
        draft |= draw(st.sampled_from([*[{}] * 4, *({"head": form, "logits_dtype": "float32"} for form in HEADS)]))
    buckets = sorted(draw(st.sets(st.integers(1, 5), min_size=1, max_size=3)))
    verified = draw(st.sampled_from(verifications(chain=needed.draft and topk == 1)))
    outputs = draw(st.lists(st.sampled_from(OUTPUTS), unique=True, max_size=4))
    able = algorithm in ESTIMATED and topk == 1 < steps and "head" not in draft
    plain = [{"verify": rule} for rule in ("greedy", "target_only", "rejection", "block")]
    if able and verified in plain and draw(st.booleans()):
        verified = verified | {"budget": draw(budgets(steps))}
        outputs = [name for name in outputs if name in ("hidden_states", "logprobs")]
    return {
        "name": "random",
        "algorithm": algorithm,
        "num_steps": steps,
        "topk": topk,
        "page_size": draw(st.sampled_from([1, 16])),
        "max_requests": buckets[-1] + draw(st.integers(0, 2)),
        "buckets": buckets,
        "outputs": outputs,
        **verified,
        "overlap": draw(st.booleans()),
        "draft_positions": draw(st.sampled_from(["auto", "true", "shifted"])),
        "target": target | {"experts_per_token": draw(st.integers(1, 2)), "index_topk": 3},
        **({"draft": draft} if needed.draft else {}),
        **({"options": draw(look_ups())} if algorithm == "NGRAM" else {}),
        **(draw(trees(topk, needed.most_nodes(topk, steps))) if topk > 1 else {}),
    }


def verifications(*, chain: bool) -> list[dict[str, str]]:
    """How drafts may be verified, and drawn; ``chain``: that a model draws."""
    modes = [{"verify": mode} for mode in ("greedy", "target_only", *(("rejection", "block") if chain else ()))]
    return [*modes, *([{"verify": "target_only", "draft_sampling": "coupled"}] if chain else [])]


@st.composite
def trees(draw: st.DrawFn, topk: int, largest: int) -> dict[str, Any]:
    """What only a tree says: how many nodes, and the mask."""
    mask = draw(st.sampled_from(["none", "qlen", "bitpacked", "full", "slots"]))
    nodes = {"num_draft_tokens": draw(st.integers(2, min(largest, 20))), "mask": mask}
    return nodes | ({"context_length": CONTEXT} if mask == "full" else {})


def to_yaml(keys: dict[str, Any]) -> str:
    """The text of a configuration: JSON values are YAML."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())


WRONG = [
    None,
    True,
    -1,
    0,
    1,
    2,
    3,
    7,
    17,
    65,
    1 << 21,
    1.5,
    "",
    "x",
    "EAGLE",
    "DFLASH",
    "NGRAM",
    "greedy",
    "target_only",
    "block",
    "sm_90",
    "rotated",
    "block_table",
    "vllm",
    {"drafts": {"written_by": "engine"}},
    {"seq_lens": {"dtype": "int32"}, "bonus": {}},
    [],
    [0],
    [2, 1],
    [[1]],
    {},
]


MORE = ["topk", "num_draft_tokens", "verify", "mask", "context_length", "kv_dtype", "kv_layout", "index_topk"]
MORE += ["step", "tables", "slots", "carry", "engine", "padded_vocab_size"]
MORE += ["aux_layers", "target_hidden_size", "num_aux_layers", "algorithm", "options", "window", "corpus"]


@st.composite
def changed_configs(draw: st.DrawFn) -> dict[str, Any]:
    """A configuration with a few values replaced by anything at all, or left out: most are wrong."""
    keys = draw(configs())
    for _ in range(draw(st.integers(1, 3))):
        blocks = [keys, *(keys[name] for name in ("target", "draft", "options") if name in keys)]
        block = draw(st.sampled_from([block for block in blocks if isinstance(block, dict)]))
        name = draw(st.sampled_from([*sorted(set(block) - {"target", "draft"}), *MORE]))
        if draw(st.booleans()):
            block[name] = draw(st.sampled_from(WRONG))
        else:
            block.pop(name, None)
    return keys


# --- modules --------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.\-]{0,8}", fullmatch=True)
ATTRS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=8) | st.integers() | st.booleans(), max_size=3
)
LOCATIONS = st.none() | st.builds(Location, st.text(max_size=8), st.integers(1, 999), st.integers(1, 99))
TENSORS = st.builds(
    TensorType,
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.sampled_from(["B", "K", "N", "A"]) | st.integers(0, 4096), max_size=3).map(tuple),
)
TYPES: st.SearchStrategy[Type] = TENSORS | st.builds(StateType, st.sampled_from(["target", "draft"]))
LIMITS = st.none() | st.integers(0, 1 << 62) | st.sampled_from(["K", "N"])
FIELD_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int": st.integers(),
    "int | None": st.none() | st.integers(0),
    "tuple[int, int]": st.tuples(st.integers(), st.integers()),
    "str": st.text(max_size=6),
    "tuple[int, ...]": st.lists(st.integers(), max_size=3).map(tuple),
    "tuple[str, ...]": st.lists(st.text(max_size=4), max_size=3).map(tuple),
}

COUNTS = st.integers(1, 1 << 40)
TAKEN: dict[tuple[type[Decl], str], st.SearchStrategy[Any]] = {
    (Options, "buckets"): st.sets(COUNTS, min_size=1, max_size=3).map(lambda counts: tuple(sorted(counts))),
    (Options, "page_size"): st.integers(1, 1024),
    **{(KvPool, name): COUNTS for name in ("layers", "buffers", "row_bytes")},
}


@st.composite
def decls(draw: st.DrawFn) -> Decl:
    """A declaration with fields of the right types and any values that it takes."""
    kind: Any = DECLS[draw(st.sampled_from(sorted(DECLS)))].record
    rest = [field for field in dataclasses.fields(kind) if field.name != "name"]
    return kind(draw(NAMES), *[draw(TAKEN.get((kind, field.name), FIELD_VALUES[str(field.type)])) for field in rest])


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """A module that can be written down; it need not satisfy the checker."""
    module = Module(draw(NAMES))
    module.established = set(draw(st.lists(st.sampled_from(["typed", "kv-bound", "live"]), max_size=3)))
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        axis = draw(st.sampled_from(sorted(AXES)))
        sizes = st.integers(1, LARGEST.get(axis, 1 << 31))
        size = draw(st.none() | sizes if axis in UNBOUNDED else sizes)
        dynamic = size is not None and draw(st.booleans())
        module.dims[name] = Dim(name, axis, size, dynamic)
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        module.add_input(name, draw(TYPES))
    for name in draw(st.lists(NAMES, max_size=2, unique=True)):
        kept, given = draw(st.booleans()), draw(st.booleans())
        module.carries[name] = CarriedValue(name, draw(TENSORS), draw(LOCATIONS), kept, draw(LIMITS), given)
    for phase in draw(
        st.lists(st.sampled_from(PHASES), max_size=6).map(lambda phases: sorted(phases, key=PHASES.index))
    ):
        values = list(module.values())
        operands = draw(st.lists(st.sampled_from(values), max_size=3)) if values else []
        results = draw(st.lists(st.tuples(NAMES, st.none() | TYPES), max_size=2))
        opcode = draw(st.sampled_from(sorted(OPS)) | NAMES)
        module.add_op(phase, opcode, operands, results, draw(ATTRS), draw(LOCATIONS))
    for name in draw(st.lists(NAMES, max_size=2, unique=True)):
        if values := list(module.values()):
            module.outputs[name] = draw(st.sampled_from(values))
    module.decls = draw(st.lists(decls(), max_size=2, unique_by=lambda decl: (type(decl), decl.name)))
    return module
