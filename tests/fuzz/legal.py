"""Configurations that this version can build, of any shape; nothing of them is tuned to what is known to work."""

from __future__ import annotations

import importlib
import json
import random
import sys
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from specc.compiler import algorithms
from specc.compiler.config import Needs

Keys = dict[str, Any]

DTYPES = ("float32", "bfloat16", "float16")
KV_ROWS: tuple[Keys, ...] = (
    {"num_kv_heads": 1, "head_dim": 1, "kv_dtype": "float32"},
    {"num_kv_heads": 2, "head_dim": 4, "kv_dtype": "float16"},
    {"num_kv_heads": 1, "head_dim": 6, "kv_dtype": "bfloat16"},
    {"num_kv_heads": 1, "head_dim": 20, "kv_dtype": "float8_e4m3fn"},
    {"num_kv_heads": 3, "head_dim": 4, "kv_dtype": "float8_e5m2"},
    {"num_kv_heads": 1, "head_dim": 12, "kv_layout": "mla", "kv_dtype": "float32"},
)
"""Rows of keys and values whose bytes are whole words of 32 bits, which the fake engine fills."""
OUTPUTS = ("accept_index", "hidden_states", "logprobs", "routed_experts", "indexer_topk")
SAMPLING = ("top_k", "top_p", "min_p", "penalties", "logit_bias")
PLUGIN = "ANCHORED"
ONE_DEPTH = "MULTI_LAYER_EAGLE"
"""Whose programs have one shape."""
HEADS = 0.25
"""Of the configurations that may, the part whose program computes the head of its draft."""
ROTATED = 0.15
"""Of all configurations, the part whose target the engine runs."""
_SHARED = ("hidden_size", "hc_mult", "hidden_source", "dtype")


@cache
def install_plugin() -> None:
    """The example plugin, as if it were installed."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "plugin" / "src"))
    importlib.import_module("specc_anchored")
    point = EntryPoint(PLUGIN.lower(), f"specc_anchored:{PLUGIN}", "specc.algorithms")
    points = [*algorithms.entry_points(group=point.group), point]
    algorithms.entry_points = lambda group: [entry for entry in points if entry.group == group]  # type: ignore[assignment]


def _model(rng: random.Random, vocab: int) -> Keys:
    return {
        "hidden_size": rng.randint(2, 9),
        "hc_mult": rng.choice([1, 1, 2]),
        "hidden_source": rng.choice(["collapsed", "hc_residual"]),
        "num_layers": rng.randint(1, 3),
        "vocab_size": vocab,
        "dtype": rng.choice(DTYPES),
        "logits_dtype": rng.choice(DTYPES),
        **rng.choice(KV_ROWS),
    }


def _width(model: Keys) -> int:
    if model["hidden_source"] == "aux":
        return model["hidden_size"] * len(model["aux_layers"])
    return model["hidden_size"] * (model["hc_mult"] if model["hidden_source"] == "hc_residual" else 1)


def _pair(rng: random.Random, algorithm: str, vocab: int, steps: int) -> tuple[Keys, Keys]:
    """A target, and a draft that was made for it."""
    target, draft = _model(rng, vocab), _model(rng, vocab)
    if algorithm in ("EAGLE", ONE_DEPTH, PLUGIN):
        draft |= {key: target[key] for key in _SHARED}
    if algorithm == ONE_DEPTH:
        draft["num_layers"] = steps + rng.randint(0, 2)
    if algorithm == "DSPARK":
        draft["markov_rank"] = _near(rng, 40)
    if algorithm == "DFLASH2":
        draft |= {"selector_rank": _near(rng, 40), "selector_top_k": _near(rng, min(16, vocab))}
    if algorithm in ("EAGLE3", "DFLASH", "DFLASH2", "DSPARK"):
        layers = sorted(rng.sample(range(1, target["num_layers"] + 1), rng.randint(1, target["num_layers"])))
        target |= {"hidden_source": "aux", "aux_layers": layers}
        draft |= {"target_hidden_size": target["hidden_size"], "num_aux_layers": len(layers)}
    if algorithm == "FROZEN_KV_MTP":
        kv = {"num_kv_heads", "head_dim", "kv_layout", "kv_dtype"}
        draft = {key: value for key, value in draft.items() if key not in kv}
        draft |= {key: target[key] for key in kv if key in target}
        draft |= {"target_hidden_size": _width(target), "dtype": target["dtype"]}
    if draft.get("vocab_size", 1) > 1 and rng.random() < 0.25:
        draft |= {"vocab_size": _near(rng, vocab - 1), "token_map": "engine"}
    return target, draft


def _compute_head(rng: random.Random, keys: Keys) -> None:
    """Let the program compute the head of its draft, where it may, and ranks share it out."""
    if "draft" not in keys or keys.get("engine") == "vllm" or keys["algorithm"].upper() == PLUGIN:
        return
    keys["draft"] |= {"head": rng.choice(["weights", "int8", "fp8"]), "logits_dtype": "float32"}
    drawn = keys.get("verify") in ("rejection", "block") or keys.get("draft_sampling") == "coupled"
    if not drawn and "engine" not in keys and "logits" not in keys and rng.random() < 0.4:
        keys["tensor_parallel"] = rng.choice([2, 4, 8, 16])


def _near(rng: random.Random, most: int) -> int:
    """A size from 1 to ``most``, as often as not at a bound or next to a power of two."""
    edges = {
        1,
        2,
        most,
        most - 1,
        *(1 << i for i in range(9)),
        *((1 << i) + 1 for i in range(9)),
        *((1 << i) - 1 for i in range(9)),
    }
    if rng.random() < 0.5:
        return rng.choice([edge for edge in sorted(edges) if 1 <= edge <= most])
    return rng.randint(1, most)


def _shard(rng: random.Random, keys: Keys, models: list[Keys]) -> None:
    """Let logits be sharded, on columns that are as many as the tokens where that is possible, or more."""
    ranks = rng.choice([1, 2, 4, 8, 16])
    keys |= {"logits": "sharded", "tensor_parallel": ranks}
    for model in models:
        more = rng.choice([0, 0, 1, rng.randint(0, 40)])
        model["padded_vocab_size"] = (-(-model["vocab_size"] // ranks) + more) * ranks


def _sample(rng: random.Random, keys: Keys, draft: Keys, *, drafts: bool) -> None:
    """Let tokens be drawn; ``drafts`` is whether a chain's drafts may be, too."""
    keys["verify"] = "target_only"
    if drafts and rng.random() < 0.5:
        keys["verify"] = rng.choice(["rejection", "block"])
    elif rng.random() < 0.6:
        keys["verify_rows"] = rng.choice(["eager", "lazy", "lazy"])
    keys["sampling"] = rng.sample(SAMPLING, rng.choice([0, 0, 1, 2, 3, 5]))
    keys["sampling"] += rng.choice([[], ["grammar"]])
    if "penalties" in keys["sampling"] and rng.random() < 0.3:
        keys["penalties"] = "committed"


def _tree(rng: random.Random, keys: Keys, most: int) -> None:
    """The nodes of a tree, of which it can have so many, and their mask."""
    keys["num_draft_tokens"] = max(2, _near(rng, min(most, 512 if rng.random() < 0.02 else 40)))
    small = ["none", "qlen", "bitpacked", "full", "slots"]
    keys["mask"] = rng.choice(small if keys["num_draft_tokens"] <= 64 else ["qlen", "slots"])
    if keys["mask"] == "full":
        keys["context_length"] = rng.randint(24, 200)


FIELDS = ("bonus", "drafts", "seq_lens", "text")
"""Carried fields of rotated programs that may live in tables of the engine's."""
BLOCKS = (48, 528)
"""Sizes of blocks in engines that keep states of recurrent layers in them."""
ENGINES_OWN = {"engine": "vllm"}
"""What stands for all that an engine says of programs whose target it runs."""


def _rotate(rng: random.Random, keys: Keys) -> None:
    """Leave the target to the engine, which has tables of its own, or is one that is known."""
    steps = keys["num_steps"]
    keys |= {"step": "rotated", "topk": 1, "disaggregation": False}
    keys["num_steps"] = rng.choice([*filter(None, steps)]) if isinstance(steps, list) else steps
    if keys["algorithm"].upper() == ONE_DEPTH:
        keys["draft"]["num_layers"] = max(keys["draft"]["num_layers"], keys["num_steps"])
    for name in ("num_draft_tokens", "mask", "context_length", "logits", "tensor_parallel"):
        keys.pop(name, None)
    for model in (keys["target"], keys.get("draft", {})):
        model.pop("padded_vocab_size", None)
    if keys.get("verify") in ("rejection", "block"):
        keys["verify"] = "target_only"
    keys["outputs"] = [name for name in keys["outputs"] if name in ("accept_index", "logprobs")]
    keys["sampling"] = [name for name in keys.get("sampling", []) if name != "grammar"]
    served = keys["algorithm"].upper() in ("STANDALONE", "EAGLE", "EAGLE3") and "token_map" not in keys["draft"]
    if served and "verify" not in keys and rng.random() < 0.3:
        _leave_to_engine(rng, keys)
        return
    tables: Keys = rng.choice([{"slots": "req_to_token"}, {"slots": "block_table"}])
    if tables["slots"] == "block_table":
        tables |= {"padding_slot": -1} if rng.random() < 0.5 else {}
        keys["page_size"] = rng.choice([keys["page_size"], *BLOCKS])
    if rng.random() < 0.6:
        vocab = keys["target"]["vocab_size"]
        keys["target"]["padded_vocab_size"] = vocab + rng.choice([0, 1, 7, rng.randint(0, 70), -vocab % 64])
    keys["tables"] = tables | {"carry": _places(rng, keys) if rng.random() < 0.8 else {}}


def _places(rng: random.Random, keys: Keys) -> Keys:
    """Some carried fields, in tables of any integers, which either side writes; an appended one as it is."""
    known = [name for name in FIELDS if name != ("text" if keys["algorithm"].upper() != "NGRAM" else "")]
    known = [name for name in known if name != "seq_lens" or keys["overlap"]]
    places: Keys = {}
    for name in known:
        own = name != "text"
        dtype = rng.choice([{}, {"dtype": "int32"}, *[{"dtype": "int64"}] * own])
        writer = rng.choice([{}, {"written_by": "program"}, *[{"written_by": "engine"}] * (3 * own)])
        places |= {name: dtype | writer} if rng.random() < 0.7 else {}
    return places


def _leave_to_engine(rng: random.Random, keys: Keys) -> None:
    """Let an engine say what it does in one way only."""
    keys |= ENGINES_OWN
    keys["outputs"] = [name for name in keys["outputs"] if name == "accept_index"]
    for name in ("step", "disaggregation", "overlap", "draft_positions", "best_logprobs", "logprobs", "sampling"):
        keys.pop(name, None)
    keys["page_size"] = rng.choice([keys["page_size"], *BLOCKS])
    keys |= rng.choice([{}, {"step": "rotated"}, {"tables": {"slots": "block_table"}}, {"overlap": True}])


def draw(
    rng: random.Random, *, algorithm: str | None = None, small: bool = False, rotated: bool | None = None,
    several: bool = False,
) -> Keys:  # fmt: skip
    """The keys of one configuration.

    Args:
        rng: all randomness.
        algorithm: by default any.
        small: few steps, and few children of a node.
        rotated: whether the engine runs the target, None for now and then.
        several: let it have several shapes, and draw tokens.

    """
    install_plugin()
    known = [name for name in algorithms.names() if not several or name != ONE_DEPTH]
    algorithm = algorithm or rng.choice(known)
    needs = algorithms.needs(algorithm)
    vocab = rng.choice([1, 2, 2, 3, 5, 9, 31, 64, 65, 300, rng.randint(2, 300)])
    depths = sorted(rng.sample(range(1, 9), rng.choice([2, 2, 3] if several else [1, 1, 1, 2, 3])))
    if algorithm == ONE_DEPTH or (not several and rng.random() < 0.4):
        depths = [_near(rng, 4 if small else 8)]
    if len(depths) > 1 and rng.random() < 0.4:
        depths[0] = 0
    target, draft = _pair(rng, algorithm, vocab, depths[-1])
    scored = draft["vocab_size"] if needs.draft else vocab
    topk = _near(rng, min(scored, 3 if small else 8)) if needs.trees and rng.random() < (0.3 if several else 0.6) else 1
    buckets = sorted(rng.sample(range(1, 9), rng.randint(1, 3)))
    page = rng.choice([1, 1, 2, 3, 16, 48])
    keys: Keys = {
        "name": "fuzzed",
        "algorithm": rng.choice([algorithm, algorithm.lower()]),
        "num_steps": depths if len(depths) > 1 else rng.choice([depths, depths[0]]),
        "topk": topk,
        "page_size": page,
        "max_requests": buckets[-1] + rng.randint(0, 3),
        "buckets": buckets,
        "outputs": rng.sample(OUTPUTS, rng.choice([0, 0, 1, 2, 5])),
        "overlap": rng.random() < 0.5,
        "disaggregation": rng.random() < 0.2,
        "draft_positions": rng.choice(["auto", "auto", "true", "shifted"]),
        "target": target | {"experts_per_token": rng.randint(1, 2), "index_topk": rng.randint(1, 3)},
    }
    if several or rng.random() < 0.5:
        _sample(rng, keys, draft, drafts=topk == 1 and needs.draft and algorithm != PLUGIN)
    if "logprobs" in keys["outputs"]:
        keys["best_logprobs"] = rng.choice([0, rng.randint(0, min(vocab, 20))])
        keys["logprobs"] = rng.choice(["raw", "processed"])
    if "verify" not in keys and not keys.get("best_logprobs") and rng.random() < 0.25:
        _shard(rng, keys, [keys["target"], draft])
    if needs.draft:
        keys["draft"] = draft
    if algorithm == "NGRAM":
        shortest = rng.randint(1, 4)
        keys["options"] = {"window": rng.randint(64, 90), "shortest": shortest, "longest": shortest + rng.randint(0, 4)}
        keys["options"] |= rng.choice([{}, {"corpus": "notes.txt"}])
        keys["options"]["beyond"] = rng.choice(["period", "last"])
    if topk > 1:
        _tree(rng, keys, needs.most_nodes(topk, depths[-1]))
    drawn = keys.get("verify") == "target_only" and topk == 1 and needs.draft and "token_map" not in draft
    if drawn and rng.random() < 0.3:
        keys["draft_sampling"] = "coupled"
    if rng.random() < ROTATED if rotated is None else rotated:
        _rotate(rng, keys)
    elif algorithm not in (ONE_DEPTH, PLUGIN) and rng.random() < (0.7 if several else 0.3):
        _list_shapes(rng, keys, depths, topk, needs)
    if rng.random() < HEADS:
        _compute_head(rng, keys)
    return keys


def _list_shapes(rng: random.Random, keys: Keys, depths: list[int], most: int, needs: Needs) -> None:
    """Put shapes of these depths, up to so wide, in place of the keys of one; the deepest may be a chain."""
    drafted = {name: keys.pop(name, None) for name in ("num_steps", "topk", "num_draft_tokens")}
    shapes: dict[tuple[int, ...], Keys] = {}
    for depth in (*depths, *rng.choices(depths[-1:], k=rng.randint(0, 2))):
        topk = rng.randint(1, most) if depth else 1
        shape = {"num_steps": depth} | ({"topk": topk} if topk > 1 or rng.random() < 0.3 else {})
        if topk > 1:
            largest = needs.most_nodes(topk, depth)
            shape["num_draft_tokens"] = rng.randint(2, min(largest, drafted["num_draft_tokens"] or 40))
        shapes.setdefault(tuple(shape.get(name, 1) for name in drafted), shape)
    listed = rng.sample(list(shapes.values()), len(shapes))
    if rng.random() < 0.6:
        _share_buckets(rng, listed, keys["buckets"])
    keys["shapes"] = listed


def _share_buckets(rng: random.Random, shapes: list[Keys], buckets: list[int]) -> None:
    """Give shapes some of the buckets, so that each bucket has one of them; all of them may go unsaid."""
    shares = [rng.sample(buckets, rng.randint(1, len(buckets))) for _ in shapes]
    for bucket in buckets:
        rng.choice(shares).append(bucket)
    for shape, share in zip(shapes, shares, strict=True):
        if len(set(share)) < len(buckets) or rng.random() < 0.5:
            shape["buckets"] = sorted(set(share))


def to_yaml(keys: Keys) -> str:
    """The text of a configuration: JSON values are YAML."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())
