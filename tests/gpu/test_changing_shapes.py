"""A program of several shapes on a GPU: any shape after any other, captured or not, and the text is the target's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any

import pytest
import torch

from .conftest import EXAMPLES, Built

PROMPTS = ("def main():\n", "import os\nimport sys\n\n", "class Node:\n", "x")
NEW = 64
TEXT = """
name: {name}
algorithm: {algorithm}
{shapes}
page_size: 16
buckets: [1, 2, 4]
target: {{model: models/target}}
draft: {{model: models/{draft}}}
"""
SHAPES = {
    "tree": "topk: 4\nnum_steps: [1, 2, 4]\nnum_draft_tokens: 12",
    "mixed": "shapes: [{num_steps: 4, topk: 4, num_draft_tokens: 12}, {num_steps: 2, topk: 2, num_draft_tokens: 6},"
    " {num_steps: 3}, {num_steps: 0}]",
}


class Turns:
    """One shape after the other, over and over; `seen` has the lengths that each committed."""

    def __init__(self, shapes: Sequence[Any]) -> None:
        """Begin with the first."""
        self.turns: Iterator[Any] = cycle(shapes)
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def choose(self, requests: int) -> Any:
        """Return the next shape."""
        return next(self.turns)

    def observe(self, shape: Any, accept_lens: Sequence[int]) -> None:
        """Note what was accepted."""
        self.seen.append((str(shape), tuple(accept_lens)))


@pytest.fixture(params=["chain", "eagle tree", "standalone tree", "eagle mixed", "standalone mixed"])
def several(
    request: pytest.FixtureRequest, build: Callable[..., Built], example: Callable[[str], Built], arch: str
) -> tuple[Built, str]:
    """Return a program of several shapes, and the directory of its draft."""
    if request.param == "chain":
        return example("eagle-chain-adaptive"), "eagle"
    draft, form = request.param.split()
    text = TEXT.format(name=f"{draft}_{form}", algorithm=draft.upper(), draft=draft, shapes=SHAPES[form])
    return build(text, (arch,)), draft


def test_any_shape_after_any_other(several: tuple[Built, str], device: torch.device) -> None:
    pytest.importorskip("transformers")
    from specc.lab.engine.engine import Engine
    from specc.lab.engine.models.loading import load_draft, load_target
    from specc.lab.engine.reference import greedy
    from specc.lab.engine.serving.requests.request import StopConditions

    def run(place: torch.device, capture: Any) -> list[tuple[str, tuple[int, ...]]]:
        program = several[0].load_module().load(place)
        target = load_target(EXAMPLES / "models" / "target", program.plan, str(place))
        draft = load_draft(EXAMPLES / "models" / several[1], program.plan, target)
        turns = Turns([min(program.plans), *program.plans])
        engine = Engine(program, target, draft, max_context=256, capture=capture, shape=turns)
        for completion in engine.generate(PROMPTS, StopConditions(NEW)):
            assert completion.token_ids == greedy(target, completion.prompt_ids, NEW)
        assert engine.stats.unhealthy == 0
        assert {name for name, _ in turns.seen} == set(map(str, program.plans))
        assert (engine.replays.replayed > 0) is (capture is not False)
        return turns.seen

    captured, eager, segments = (run(device, capture) for capture in (None, False, "segments"))
    reference = run(torch.device("cpu"), False)
    assert captured == eager == segments
    tokens = [sum(sum(lengths) for _, lengths in found) for found in (captured, reference)]
    steps = [sum(len(lengths) for _, lengths in found) for found in (captured, reference)]
    assert abs(tokens[0] / steps[0] - tokens[1] / steps[1]) < 0.1 * tokens[1] / steps[1]
