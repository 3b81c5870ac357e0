"""The part of `watch.py` that is in every worker of an engine: vLLM makes workers with it (`worker_extension_cls`).

Several ranks have a process each. So what the process of `serve.py` prepares for its own worker is done here, too.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from triton_interpreter import lighten

PATTERN = 0xC6
"""A byte. Numbers of it, in 16 bits and more, are so far from others that a text which reads them is another."""


class Watched:
    """Methods that a worker has more, by the names that `collective_rpc` calls."""

    model_runner: Any

    def watched_begin(self, blocks: int) -> dict[str, Any]:
        """Begin to watch so many blocks: the names of their layers, and of the speculator's class."""
        if self.model_runner.device.type == "cpu":
            lighten()
        self.watched_caches = by_block(self.model_runner, blocks)
        self.watched_graphs = 0
        self.watched_warmed_up = steps()
        self.watched_stored = self.watched_updated = 0
        update = self.model_runner.postprocess_sampled

        def updating(rows: Tensor, tokens: Tensor, *given: Any, **named: Any) -> None:
            steps = getattr(self.model_runner.speculator, "steps", None)
            self.watched_updated += steps is not None and steps.updated is tokens
            update(rows, tokens, *given, **named)

        self.model_runner.postprocess_sampled = updating
        kind = type(self.model_runner.req_states.draft_tokens)
        if kind is not Tensor:
            store = kind.__setitem__

            def noted(table: Any, *given: Any) -> None:
                store(table, *given)
                self.watched_stored += table.stored is not None

            kind.__setitem__ = noted
        if (graphs := self.model_runner.cudagraph_manager) is not None:
            replay = graphs.run_fullgraph

            def counted(*given: Any, **named: Any) -> Any:
                self.watched_graphs += 1
                return replay(*given, **named)

            graphs.run_fullgraph = counted
        return {"layers": sorted(self.watched_caches), "speculator": type(self.model_runner.speculator).__name__}

    def watched_plant(self, free: list[int]) -> None:
        """Fill blocks with the pattern, in every layer."""
        with torch.inference_mode():
            for cache in (cache for caches in self.watched_caches.values() for cache in caches):
                cache[free] = PATTERN

    def watched_spoiled(self, free: list[int]) -> list[str]:
        """In which layers which of these blocks do not hold the pattern any more."""
        if free and torch.cuda.is_available():
            torch.cuda.synchronize()  # whatever stream a step writes on
        spoiled = {
            layer: [block for block in free if any((cache[block] != PATTERN).any() for cache in caches)]
            for layer, caches in self.watched_caches.items()
        }
        return [
            f"{layer}: blocks {blocks} were written, which no request owns"
            for layer, blocks in spoiled.items()
            if blocks
        ]

    def watched_rows(self) -> dict[str, Any]:
        """By request the row that it has in vLLM's tables, and how many tokens of it are prefilled."""
        states = self.model_runner.req_states
        return {
            name: (row, int(states.prefill_len.np[row])) for name, row in states.req_id_to_index.items()
        }  # fmt: skip

    def watched_state(self) -> str:
        """A digest of drafts, last tokens, lengths, seeds and accepted tokens of all requests: of ranks the same."""
        states, sampler = self.model_runner.req_states, self.model_runner.sampler
        rows = sorted(states.req_id_to_index.values())
        tables = [states.last_sampled_tokens, states.num_computed_tokens.gpu, states.draft_tokens]
        if (accepted := getattr(self.model_runner.model_state, "num_accepted_tokens_gpu", None)) is not None:
            tables.append(accepted)
        digest = hashlib.sha256(sampler.sampling_states.seeds.np[rows].tobytes())
        for table in tables:
            digest.update(table[rows].cpu().numpy().tobytes())
        return digest.hexdigest()

    def watched_end(self) -> dict[str, Any]:
        """What was counted, see `counts`."""
        counted = counts(self.watched_warmed_up)
        return {
            "graphs": self.watched_graphs, "stored": self.watched_stored, "updated": self.watched_updated,
            "counts": counted,
        }  # fmt: skip


def by_block(runner: Any, blocks: int) -> dict[str, list[Tensor]]:
    """Return the KV cache of every layer, target's and draft's, or its recurrent states, in bytes u8[blocks, ...].

    Layers of several groups of KV caches share memory, of which each block is one group's.
    """
    context = runner.vllm_config.compilation_config.static_forward_context
    caches: dict[str, list[Tensor]] = {}
    for layer in (name for group in runner.kv_cache_config.kv_cache_groups for name in group.layer_names):
        cache = context[layer].kv_cache
        caches[layer] = [bytes_of(part, blocks) for part in (cache if isinstance(cache, tuple | list) else [cache])]
    return caches


def bytes_of(cache: Tensor, blocks: int) -> Tensor:
    """Return a cache of so many blocks in bytes, its blocks first."""
    [dimension] = [place for place, size in enumerate(cache.shape) if size == blocks]
    return cache.movedim(dimension, 0).view(torch.uint8)


def samples(name: str) -> list[Any]:
    """Of a metric of this process."""
    from prometheus_client import REGISTRY

    return [sample for metric in REGISTRY.collect() for sample in metric.samples if sample.name == name]


def steps() -> Counter[tuple[str, ...]]:
    """How many steps the program ran and how many it left to vLLM, by who, why and shape, as its metrics have them."""
    counted = samples("specc:decode_steps_total")
    return Counter(
        {tuple(sample.labels[name] for name in ("by", "reason", "shape")): int(sample.value) for sample in counted}
    )


def counts(before: Counter[tuple[str, ...]]) -> dict[str, Any] | None:
    """The steps since `before`, which vLLM warms up with on a GPU, and what is captured; None without a program."""
    active = samples("specc:program_active")
    if not any(sample.value for sample in active):
        return None
    since = steps() - before
    left = {reason: count for (by, reason, _), count in since.items() if by != "program"}
    ran = {shape: count for (by, _, shape), count in since.items() if by == "program"}
    [captured] = [sample.labels["capture"] for sample in active if sample.value]
    return {"program_steps": sum(ran.values()), "by_shape": ran, "vllm_steps": left, "captured": captured}
