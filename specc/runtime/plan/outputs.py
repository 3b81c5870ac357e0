"""What the outputs of a step mean, one line each, for results and for the pages of a package.

This module imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .plan import BATCH_AXIS, Input, Plan, Value

PROPOSE = "propose"
"""What the outputs of the second half of a rotated step are handed out by."""

MEANINGS = {
    "predict": "i32[b, A]: the tokens of the accepted path, the bonus last; those from `accept_lens` on mean nothing",
    "accept_lens": "i32[b]: how many tokens a request emits; 0 where it was left out",
    "new_seq_lens": "i64[b]: committed lengths after the step",
    "bonus": "i32[b]: the last token that a request emits, not read by the target yet; of a prefill the first",
    "health": "i32[b]: a bit for everything that went wrong, named by `faults`; 0 is healthy",
    "expected_tokens": "f32[b, n]: how many tokens a request is expected to emit at each shape of no more drafts",
    "drafts": "i64[b, S]: what the target is to read behind `bonus` before the next step",
    "accept_index": "i32[b, A]: numbers of the accepted nodes in the batch, b * N + column; -1 from `accept_lens` on",
    "hidden_states": "T[b, A, W]: the target's hidden states along the accepted path",
    "logprobs": "f32[b, A], of a prefill f32[b]: the log-probability of every emitted token",
    "best_tokens": "i32[b, A, n], of a prefill i32[b, n]: the most probable tokens there, the most probable first",
    "best_logprobs": "f32[b, A, n], of a prefill f32[b, n]: their log-probabilities",
    "routed_experts": "i32[b, A, layers, experts_per_token]: the experts that the target's forward chose",
    "indexer_topk": "i32[b, A, layers, index_topk]: the positions that the target's indexer picked",
}
"""By name, of all that a configuration can ask for; a plugin's outputs have none. T is the target's dtype."""


class Typed(NamedTuple):
    """An output of one program: its name, `i32[b, 4]`, and what it means, which is empty for a plugin's."""

    name: str
    type: str
    meaning: str


def typed_outputs(plan: Plan, entry: str) -> Iterator[Typed]:
    """What an entry hands back, with the sizes of the program, in order."""
    for output in plan.outputs:
        if output.entry == entry:
            value = plan.values.get(output.value) or plan.inputs[output.value]
            yield Typed(output.name, spelled(plan, value), MEANINGS.get(output.name, "").partition(": ")[2])


def spelled(plan: Plan, value: Value | Input) -> str:
    """Dtype and shape as `i32[b, 4]`; the batch is `b`, and axes that only the engine sizes keep their names."""
    sizes = [str(plan.dims.get(axis, axis)) if axis != BATCH_AXIS else "b" for axis in value.axes]
    return f"{value.dtype}[{', '.join(sizes)}]"
