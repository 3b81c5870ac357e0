"""How many tokens a step of a shape commits, expected from how often a draft is right.

Three numbers stand for how models draft. They were chosen by what SpecForge publishes of an EAGLE-3 head of
Llama-3.1-8B (bench/sglang/accepted.json): chains of 3 and 5 drafts and two small trees. Of large trees nothing was
published, and texts, heads and temperatures differ more than shapes do.
"""

from __future__ import annotations

import heapq

from specc.runtime.plan.shape import Shape

RATE = 0.79
"""How often a draft is right, of those whose predecessors were."""
PUBLISHED_NODES = 8
"""Nodes of the largest tree of which a length is published."""
_NEXT = 0.5
"""How often the next candidate of a place is right, of the times that all better ones were wrong, in times of the
first one's."""
_CONFIDENCE = 0.7
"""The draft's own probability of its best candidate, in times of how often that is right: it spreads trees out."""


def expected_tokens(shape: Shape, rate: float = RATE) -> float:
    """Return the tokens that a step of a shape commits on average, the target's own one among them: at least 1.

    The nodes of a tree are those that its draft thinks most likely, of up to K branches at every depth. With a budget
    every request has its even part of the rows, as where all requests draft alike; where they do not, more is accepted.

    Args:
        shape: what is drafted.
        rate: how often a draft is right whose predecessors were, from 0 to 1.

    """
    places = range(shape.topk)
    later = _NEXT * rate
    right = [rate if place == 0 else (1 - rate) * later * (1 - later) ** (place - 1) for place in places]
    sure = _CONFIDENCE * rate
    likely = [sure * (1 - sure) ** place for place in places]
    waiting = [(-likely[place], 1, right[place]) for place in places] if shape.num_steps else []
    heapq.heapify(waiting)
    tokens, grown = 1.0, [0] * (shape.num_steps + 1)
    for _ in range(shape.rows - 1):
        if not waiting:  # look-ups may have more nodes than a tree that is grown step by step
            break
        thought, depth, chance = heapq.heappop(waiting)
        tokens += chance
        grown[depth] += 1
        if depth < shape.num_steps and grown[depth] <= shape.topk:
            for place in places:
                heapq.heappush(waiting, (thought * likely[place], depth + 1, chance * right[place]))
    return tokens
