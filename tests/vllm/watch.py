"""What happens inside an engine of vLLM between one schedule and the next, seen from outside of its model runner.

Before every step all KV blocks that no request owns are filled with a pattern, in the layers of the target and of the
draft; after it they must hold that pattern still. Who looks must wait for the GPU, which hides what is written too late
or too early: without canaries nothing waits for it that does not without this module.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import torch
from torch import Tensor

PATTERN = -8192.0
"""A number in float types of 16 bits and more, so far from keys and values that a text which reads it is another."""

COUNTED = ("steps", "mixed", "in_row_0", "across_blocks", "short_of_drafts", "preemptions", "graphs")


class Watch:
    """Wraps the scheduler of an engine core that runs in this process."""

    def __init__(self, core: Any, *, canaries: bool = True) -> None:
        """Begin to watch; without `canaries` blocks are neither filled nor compared."""
        self.core = core
        self.canaries = canaries
        self.scheduler = core.scheduler
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self.caches = by_block(self.runner, self.pool.num_gpu_blocks)
        self.accepted: dict[str, list[int]] = defaultdict(list)
        """Tokens that each verification of a request took, the bonus included, by the engine's name of the request."""
        self.counts = Counter(dict.fromkeys(COUNTED, 0))
        self.batches = Counter[int]()
        self.blocks: set[int] = set()
        self.free: list[int] = []
        self._schedule, self._update = self.scheduler.schedule, self.scheduler.update_from_output
        self.scheduler.schedule, self.scheduler.update_from_output = self.schedule, self.update
        self._preempt, self.scheduler._preempt_request = self.scheduler._preempt_request, self.preempt
        if (graphs := self.runner.cudagraph_manager) is not None:
            self._replay, graphs.run_fullgraph = graphs.run_fullgraph, self.replay

    def schedule(self, *given: Any, **named: Any) -> Any:
        """Schedule, and plant the pattern in what is free then.

        With async scheduling that is before the last step's results are read, though it has run.
        """
        self.compare()
        step = self._schedule(*given, **named)
        self.note(step)
        if not self.canaries:
            return step
        pool = self.pool.blocks
        self.free = [block.block_id for block in pool if block.is_null or not (block.ref_cnt or block.block_hash)]
        with torch.inference_mode():
            for cache in self.caches.values():
                cache[self.free] = PATTERN
        return step

    def preempt(self, *given: Any, **named: Any) -> None:
        """Count a request that loses its blocks."""
        self.counts["preemptions"] += 1
        self._preempt(*given, **named)

    def replay(self, *given: Any, **named: Any) -> Any:
        """Count a forward of the target that is a graph."""
        self.counts["graphs"] += 1
        return self._replay(*given, **named)

    def update(self, step: Any, output: Any) -> Any:
        """Look at what a step left behind, and at what it accepted."""
        self.compare()
        for name in step.scheduled_spec_decode_tokens:
            self.accepted[name].append(len(output.sampled_token_ids[output.req_id_to_index[name]]))
        return self._update(step, output)

    def compare(self) -> None:
        """The pattern is where it was planted before the last step. SystemExit when it is not."""
        if self.free and torch.cuda.is_available():
            torch.cuda.synchronize()  # whatever stream a step writes on
        for layer, cache in self.caches.items():
            spoiled = [block for block in self.free if (cache[block] != PATTERN).any()]
            if spoiled:
                raise SystemExit(f"{layer}: blocks {spoiled} were written, which no request owns")
        self.free = []

    def note(self, step: Any) -> None:
        """Count what a step is."""
        scheduled, drafts = step.num_scheduled_tokens, step.scheduled_spec_decode_tokens
        if not scheduled:
            return
        self.counts["steps"] += 1
        rows = self.runner.req_states.req_id_to_index
        prefills = {name for name in scheduled if self.is_prefill(name, scheduled[name], rows.get(name))}
        decodes = scheduled.keys() - prefills
        self.counts["mixed"] += bool(prefills and decodes)
        if not prefills:
            self.batches[len(decodes)] += 1
        for name in decodes:
            self.counts["in_row_0"] += rows[name] == 0
            self.counts["across_blocks"] += self.crosses(name, scheduled[name])
        most = self.scheduler.num_spec_tokens
        self.counts["short_of_drafts"] += sum(len(tokens) < most for tokens in drafts.values())
        for name in scheduled:
            self.blocks.update(*self.scheduler.kv_cache_manager.get_block_ids(name))

    def begin(self, name: str, tokens: int) -> int:
        """The position of the first of the tokens that a request has in the step, at most."""
        return self.scheduler.requests[name].num_computed_tokens - tokens

    def is_prefill(self, name: str, tokens: int, row: int | None) -> bool:
        """Whether a request is in its prompt, or in what it emitted before it was thrown out; `row` is that it has."""
        return row is None or self.begin(name, tokens) + 1 < self.runner.req_states.prefill_len.np[row]

    def crosses(self, name: str, tokens: int) -> bool:
        """Whether the tokens of a step lie in several blocks."""
        size, begin = self.scheduler.block_size, self.begin(name, tokens)
        return begin // size != (begin + tokens - 1) // size

    def report(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            **self.counts,
            "batches": {str(size): count for size, count in sorted(self.batches.items())},
            "blocks": sorted(self.blocks),
            "num_blocks": self.pool.num_gpu_blocks,
            "free_blocks": self.pool.get_num_free_blocks(),
            "layers": sorted(self.caches),
            "async": bool(self.core.async_scheduling),
            "speculator": type(self.runner.speculator).__name__,
        }


def by_block(runner: Any, blocks: int) -> dict[str, Tensor]:
    """The KV cache of every layer, target's and draft's, as views whose first dimension is that of the blocks."""
    context = runner.vllm_config.compilation_config.static_forward_context
    found: dict[str, Tensor] = {}
    for layer, attention in context.items():
        cache = attention.kv_cache
        [dimension] = [place for place, size in enumerate(cache.shape) if size == blocks]
        found[layer] = cache.movedim(dimension, 0)
    return found
