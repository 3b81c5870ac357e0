"""The command that starts a server of vLLM's for a target and what drafts for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specc.compiler.config.archs import Gpu
from specc.compiler.config.estimate.choice import ProposedShape
from specc.compiler.config.models.pair import Pair
from specc.compiler.config.proposal import Drafting, steps_of
from specc.compiler.config.wanted import Limits
from specc.engines.vllm.check.command_line import SPECULATION, parse
from specc.engines.vllm.check.server import started
from specc.engines.vllm.check.speculation import TABLE
from specc.engines.vllm.served import ALGORITHMS


def command(pair: Pair, chosen: Drafting, topk: int | None, num_steps: int | None) -> list[str]:
    """Return its words. ValueError for a tree, which vLLM drafts with no method."""
    if topk is not None and topk > 1:
        raise ValueError("vLLM drafts chains alone")
    return _words(pair, chosen, {"num_speculative_tokens": steps_of(chosen, num_steps)[0]})


def command_of(pair: Pair, chosen: Drafting, shapes: Sequence[ProposedShape], gpu: Gpu) -> list[str]:
    """Return the words for a program of these chains: vLLM's own table says which batches have how many drafts.

    A batch has the chain that is the best of its bucket, on any GPU.
    """
    numbers = {bucket: shape.shape.num_steps for shape in shapes for bucket in shape.best}
    table: list[list[int]] = []
    for bucket, number in sorted(numbers.items()):
        if table and table[-1][2] == number:
            table[-1][1] = bucket
        else:
            table.append([table[-1][1] + 1 if table else 1, bucket, number])
    most = max(shape.shape.num_steps for shape in shapes)
    drafted: dict[str, Any] = {"num_speculative_tokens": most}
    return _words(pair, chosen, drafted | ({TABLE: table} if {*numbers.values()} != {most} else {}))


def limits(pair: Pair, chosen: Drafting, gpu: Gpu) -> Limits:
    """Return what a server on this GPU can have. DiagnosticError for one that has no program at all."""
    return Limits(started(parse(command(pair, chosen, None, None)), gpu).buckets[0], trees=False, several=True)


def _words(pair: Pair, chosen: Drafting, drafted: Mapping[str, Any]) -> list[str]:
    """Return the words for what is drafted, as keys of the speculation."""
    draft, methods = chosen.draft, ALGORITHMS.get(chosen.algorithm, (chosen.algorithm.lower(),))
    speculation: dict[str, Any] = {"method": methods[-1 if draft is not None and draft.modules else 0]}
    if draft is not None and draft is not pair.target:
        speculation["model"] = draft.written
    return ["vllm", "serve", pair.target.written, SPECULATION, json.dumps({**speculation, **drafted})]
