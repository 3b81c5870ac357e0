"""What happens inside an engine of vLLM between one schedule and the next, seen from outside of its model runners.

Before every step all KV blocks that no request owns are filled with a pattern, in the layers of the target and of the
draft; after it they must hold that pattern still. Who looks must wait for the GPU, which hides what is written too late
or too early: without canaries nothing waits for it that does not without this module. All ranks are looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

COUNTED = ("steps", "mixed", "in_row_0", "across_blocks", "short_of_drafts", "preemptions")


class Watch:
    """Wraps the scheduler of an engine core that runs in this process."""

    def __init__(self, core: Any, *, canaries: bool = True) -> None:
        """Begin to watch; without `canaries` blocks are neither filled nor compared."""
        self.core = core
        self.canaries = canaries
        self.scheduler = core.scheduler
        self.pool = self.scheduler.kv_cache_manager.block_pool
        groups = self.scheduler.kv_cache_config.kv_cache_groups
        self.block_size = min(group.kv_cache_spec.block_size for group in groups)
        self.ranks = [dict(rank) for rank in self.ask("watched_begin", self.pool.num_gpu_blocks)]
        self.accepted: dict[str, list[int]] = defaultdict(list)
        """Tokens that each verification of a request took, the bonus included, by the engine's name of the request."""
        self.counts = Counter(dict.fromkeys(COUNTED, 0))
        self.batches = Counter[int]()
        self.blocks: set[int] = set()
        self.free: list[int] = []
        self._schedule, self._update = self.scheduler.schedule, self.scheduler.update_from_output
        self.scheduler.schedule, self.scheduler.update_from_output = self.schedule, self.update
        self._preempt, self.scheduler._preempt_request = self.scheduler._preempt_request, self.preempt

    def ask(self, method: str, *given: Any) -> list[Any]:
        """What a method of `Watched` answers, on every rank."""
        return self.core.model_executor.collective_rpc(method, args=given)

    def same(self, method: str, *given: Any) -> Any:
        """The same, which all ranks answer alike. SystemExit where they do not."""
        first, *others = answers = self.ask(method, *given)
        if any(answer != first for answer in others):
            raise SystemExit(f"{method} of ranks: {answers}")
        return first

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
        self.ask("watched_plant", self.free)
        return step

    def preempt(self, *given: Any, **named: Any) -> None:
        """Count a request that loses its blocks."""
        self.counts["preemptions"] += 1
        self._preempt(*given, **named)

    def update(self, step: Any, output: Any) -> Any:
        """Look at what a step left behind, and at what it accepted."""
        self.compare()
        for name in step.scheduled_spec_decode_tokens:
            self.accepted[name].append(len(output.sampled_token_ids[output.req_id_to_index[name]]))
        return self._update(step, output)

    def compare(self) -> None:
        """The pattern is where it was planted before the last step, and ranks are alike. SystemExit where not."""
        spoiled = [problem for rank in self.ask("watched_spoiled", self.free) for problem in rank] if self.free else []
        if spoiled:
            raise SystemExit("; ".join(dict.fromkeys(spoiled)))
        if len(self.ranks) > 1:
            self.same("watched_state")
        self.free = []

    def note(self, step: Any) -> None:
        """Count what a step is."""
        scheduled, drafts = step.num_scheduled_tokens, step.scheduled_spec_decode_tokens
        if not scheduled:
            return
        self.counts["steps"] += 1
        rows = self.same("watched_rows")
        prefills = {name for name in scheduled if self.is_prefill(name, scheduled[name], rows.get(name))}
        decodes = scheduled.keys() - prefills
        self.counts["mixed"] += bool(prefills and decodes)
        if not prefills:
            self.batches[len(decodes)] += 1
        for name in decodes:
            self.counts["in_row_0"] += rows[name][0] == 0
            self.counts["across_blocks"] += self.crosses(name, scheduled[name])
        most = self.scheduler.num_spec_tokens
        self.counts["short_of_drafts"] += sum(len(tokens) < most for tokens in drafts.values())
        for name in scheduled:
            self.blocks.update(*self.scheduler.kv_cache_manager.get_block_ids(name))

    def begin(self, name: str, tokens: int) -> int:
        """The position of the first of the tokens that a request has in the step, at most."""
        return self.scheduler.requests[name].num_computed_tokens - tokens

    def is_prefill(self, name: str, tokens: int, row: tuple[int, int] | None) -> bool:
        """Whether a request is in its prompt, or in what it emitted before it was thrown out; `row`: see `Watched`."""
        return row is None or self.begin(name, tokens) + 1 < row[1]

    def crosses(self, name: str, tokens: int) -> bool:
        """Whether the tokens of a step lie in several blocks."""
        size, begin = self.block_size, self.begin(name, tokens)
        return begin // size != (begin + tokens - 1) // size

    def report(self) -> dict[str, Any]:
        """All of it, for JSON: `counts` are those of the steps by rank, see `Watched`."""
        ended = self.ask("watched_end")
        return {
            **self.counts,
            "graphs": ended[0]["graphs"],
            "stored": ended[0]["stored"],
            "updated": ended[0]["updated"],
            "counts": [rank["counts"] for rank in ended],
            "batches": {str(size): count for size, count in sorted(self.batches.items())},
            "blocks": sorted(self.blocks),
            "num_blocks": self.pool.num_gpu_blocks,
            "free_blocks": self.pool.get_num_free_blocks(),
            "layers": self.ranks[0]["layers"],
            "async": bool(self.core.async_scheduling),
            "speculator": self.ranks[0]["speculator"],
            "speculators": [rank["speculator"] for rank in self.ranks],
        }
