"""What SGLang takes where a command line says nothing: tables of its own resolution, for every class on every GPU."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

from asked_servers import BACKENDS, OF_DRAFT, Asked, asked_of, published
from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.speculative.adaptive_spec_params import _load_adaptive_config

ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}
CHAIN = TREE | {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
PAGE = 32
"""Tokens per page that no class has by itself."""
PAGES = (5, 1, 16, 32, 64, 128, 256)
"""Those that are asked for; nobody has the first."""
USUAL = {"mha": "LlamaForCausalLM", "mla": "DeepseekV2ForCausalLM"}
"""Classes that insist on no pages, by the layout of their KV cache."""
DRAFTS: Mapping[str, Mapping[str, int]] = {
    "unwritten": {},
    "chain": CHAIN,
    "paged chain": CHAIN | {"page_size": PAGE},
    "tree": TREE,
}
"""What is known of the drafts when SGLang chooses: `specc.engines.sglang.check.defaults` has the same names."""
HEADS = ("EAGLE", "EAGLE3", "STANDALONE", "DFLASH", "DSPARK")
"""Algorithms whose draft has attention of its own."""
WRITTEN = "written"
"""What stands in the place of a shape that has to be written: `specc.engines.sglang.check.defaults` reads it."""
SHAPED = ("EAGLE", "EAGLE3", "STANDALONE")
"""Algorithms of which SGLang says steps, topk and nodes."""
FROM_RANKS, UP_TO_GIB, MOST_CAPTURED = (1, 2, 3, 4, 8, 16), 320, 1 << 16
"""Ranks of which the largest graph is asked, the most memory of a GPU, and the most requests of a graph."""
OTHER_KERNELS = {"DeepseekV41ForCausalLM": "DSPARK"}
"""Classes that directories name for which SGLang may take other kernels by itself, and an algorithm of each."""
INDEXED = {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
"""What a config.json has more where attention reads some of the rows: the cache is then called `dsa`."""


def part(argument: str) -> str:
    """Return in a word whose attention an argument gives."""
    return argument.removeprefix("speculative_").partition("_")[0]


def attention(asked: Asked, gpu: str, **arguments: Any) -> str | dict[str, Any] | None:
    """Return the attention backends of a server: a name, or fields of `Default`; None where SGLang says none.

    Some classes have pages only where no states of prefixes are kept: SGLang is asked of such a server then.
    """

    def answer(**more: Any) -> dict[str, Any]:
        return asked.chosen(gpu, **arguments | more)

    found = answer()
    if BACKENDS[0] not in found:
        arguments = {**arguments, "disable_radix_cache": True}
        found = answer()
    if BACKENDS[0] not in found:
        return None
    said: dict[str, Any] = {"backend": found[BACKENDS[0]]}
    said |= {part(name): found[name] for name in BACKENDS[1:] if name in found}
    if OF_DRAFT in found:
        by_algorithm = {name: answer(algorithm=name).get(OF_DRAFT) for name in HEADS}
        said["draft"] = {name: backend for name, backend in by_algorithm.items() if backend is not None}
    if "page_size" in found:
        other = arguments.get("page_size", 1 if "speculative_eagle_topk" in arguments else PAGE)
        forced, kept = answer(page_size=other), answer(**{BACKENDS[0]: said["backend"]})
        said |= {"page_size": found["page_size"], "forced": "page_size" in forced or BACKENDS[0] not in forced}
        said |= {"kept": "page_size" in kept}
    return said["backend"] if len(said) == 1 else said


def row(asked: Asked, gpu: str) -> dict[str, Any]:
    """Return the attention of a class on a GPU: what is usual, and by what is known of the drafts where it is not."""
    plain = {name: attention(asked, gpu, **words) for name, words in DRAFTS.items()}
    same = {name: attention(asked, gpu, enable_deterministic_inference=True, **words) for name, words in DRAFTS.items()}
    if same == plain:
        return usually(plain)
    usual, *others = usually({f"{name}, deterministic": answer for name, answer in same.items()}).items()
    return usually(plain) | {"deterministic": usual[1], **dict(others)}


def usually(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer that is given most often, and those to other questions."""
    usual = most_frequent(answers.values())
    return {"usual": usual} | {name: answer for name, answer in answers.items() if answer != usual}


def most_frequent(answers: Iterable[Any]) -> Any:
    """Return the answer that is given most often, the first of several."""
    return json.loads(Counter(map(json.dumps, answers)).most_common(1)[0][0])


def resolved(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the tables of what SGLang takes by itself, of classes of models and of GPUs."""
    by_cache: dict[str, dict[str, dict[str, Any]]] = {}
    shapes: dict[str, dict[str, Any]] = {algorithm: {} for algorithm in SHAPED}
    requests: dict[str, Any] = {}
    for name in names:
        asked = asked_of(folder, name)
        of_cache = by_cache.setdefault(asked.layout, {})
        of_cache[f"{name} dsa" if asked.layout == "dsa" else name] = {arch: row(asked, arch) for arch in ARCHS}
        if asked.layout == "mla":
            indexed = Asked(
                folder, f"{name}-indexed", {**json.loads((asked.model / "config.json").read_text()), **INDEXED}
            )
            if indexed.layout == "dsa":
                by_cache.setdefault("dsa", {})[f"{name} dsa"] = {arch: row(indexed, arch) for arch in ARCHS}
        for algorithm, by_class in shapes.items():
            by_class[name] = shape(asked, algorithm)
        requests[name] = resolved_view(asked.server("sm_90", **CHAIN)).max_running_requests
    return {
        "attention": dict(sorted(exceptions(by_cache))),
        "shapes": dict(entry for algorithm, by_class in shapes.items() for entry in unusual(by_class, algorithm)),
        "max_requests": dict(unusual(requests)),
        "pages": dict(sorted(pages({kind: asked_of(folder, name) for kind, name in USUAL.items()}))),
        **graphs(asked_of(folder, USUAL["mha"])),
        "kernels": dict(kernels(folder)),
        "candidates": {str(size): entry["candidate_steps"] for size, entry in _load_adaptive_config(None)[1].items()},
    }


def shape(asked: Asked, algorithm: str) -> list[int | None] | str:
    """Return steps, topk and nodes that nobody wrote; `WRITTEN` where SGLang starts a server by written ones alone."""
    if not asked.starts("sm_90", algorithm) and asked.starts("sm_90", algorithm, **CHAIN):
        return WRITTEN
    view = resolved_view(asked.server("sm_90", algorithm=algorithm))
    return [getattr(view, argument) for argument in TREE]


def exceptions(by_cache: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """Return the rows of every cache that most of its classes have, and those of a class where it has others."""
    for cache_layout, classes in sorted(by_cache.items()):
        usual = {arch: most_frequent(rows[arch] for rows in classes.values()) for arch in ARCHS}
        yield from by_archs(cache_layout, usual)
        for name, rows in sorted(classes.items()):
            yield from by_archs(name, {arch: said for arch, said in rows.items() if said != usual[arch]})


def by_archs(name: str, rows: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the rows of a name, each once, by it and all GPUs that have it."""
    for said in {json.dumps(said): said for said in rows.values()}.values():
        yield f"{name} on {' '.join(arch for arch, other in rows.items() if other == said)}", said


def unusual(answers: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, Any]]:
    """Return what most names have, and what others have; nothing of a name of which SGLang says nothing."""
    said = {name: answer for name, answer in answers.items() if answer is not None and answer != [None] * len(TREE)}
    usual, *others = usually(dict(sorted(said.items()))).items()
    yield of or usual[0], usual[1]
    yield from ((f"{name} {of}".rstrip(), answer) for name, answer in others)


def pages(asked: Mapping[str, Asked]) -> Iterator[tuple[str, Any]]:
    """Return which pages attention backends have, the first of them instead of another, and as whose they decide."""
    for backend in ATTENTION_BACKEND_CHOICES:
        rows = {
            arch: usually({
                f"{kind} {shape}": sizes(of, arch, backend, drafts)
                for kind, of in asked.items()
                for shape, drafts in (("chain", CHAIN), ("tree", TREE))
            })
            for arch in ARCHS
        }  # fmt: skip
        yield from by_archs(backend, {arch: said for arch, said in rows.items() if said != {"usual": None}})


def sizes(asked: Asked, gpu: str, backend: str, drafts: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the pages that an attention backend has, and as whose; None where it takes any."""

    def page(written: int | None, argument: str = BACKENDS[0]) -> int:
        words = {BACKENDS[0]: "triton", argument: backend} | ({} if written is None else {"page_size": written})
        return resolved_view(asked.server(gpu, **drafts, **words)).page_size

    parts = [name for name in (*BACKENDS, OF_DRAFT) if page(PAGES[0], name) != PAGES[0]]
    if BACKENDS[0] not in parts:
        return None
    usual = page(None)
    return {
        "sizes": [usual, *(size for size in PAGES if size != usual and page(size) == size)],
        "as": [part(name) for name in parts],
    }


def from_ranks(said: Mapping[int, Any]) -> dict[str, Any]:
    """Return what holds from so many ranks on, of what is said for all of `FROM_RANKS`."""
    starts = [1, *(ranks for before, ranks in pairwise(FROM_RANKS) if said[ranks] != said[before])]
    return {str(ranks): said[ranks] for ranks in starts}


def kernels(folder: Path) -> Iterator[tuple[str, Any]]:
    """Return by which kernels each of `OTHER_KERNELS` attends over compressed keys, from so many ranks on."""
    for name, algorithm in OTHER_KERNELS.items():
        asked = Asked(folder, name, published()[name][0])
        rows: dict[str, dict[str, str]] = {}
        for arch in ARCHS:
            with patch("sglang.srt.utils.common.is_sm100_supported", lambda arch=arch: arch in ("sm_100", "sm_103")):
                views = {n: resolved_view(asked.server(arch, algorithm=algorithm, tp_size=n)) for n in FROM_RANKS}
            said = {ranks: view.dsv4_attn_backend for ranks, view in views.items()}
            rows[arch] = from_ranks(said)
        yield from by_archs(name, rows)


def graphs(asked: Asked) -> dict[str, dict[str, Any]]:
    """Return the largest captured batch by GiB and by ranks, each from so many on, and the steps of sizes."""

    def decode(memory: int, **arguments: Any) -> Any:
        return resolved_view(asked.server("sm_90", memory, **arguments)).cuda_graph_config.decode

    most: dict[str, Any] = {}
    for memory in range(1, UP_TO_GIB + 1):
        by_ranks = {ranks: decode(memory, tp_size=ranks).max_bs for ranks in FROM_RANKS}
        said = from_ranks(by_ranks)
        if [*most.values()][-1:] != [said]:
            most[str(memory)] = said
    captured = decode(80, cuda_graph_max_bs_decode=MOST_CAPTURED).bs
    steps = {str(second): second - first for first, second in pairwise([0, *captured])}
    changes = [size for size, after in pairwise(steps) if steps[size] != steps[after]]
    return {"most_captured": most, "captured_steps": {size: steps[size] for size in [*changes, str(captured[-1])]}}
