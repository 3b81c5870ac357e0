"""Depths change in the middle of a text, and every step drafts and accepts what its own depth would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import pytest

from specc.algorithms import names, needs
from specc.config.resolved import Depth
from specc.engine.errors import StepFailedError
from specc.engine.observe.step_times import choose_by_times, step_times
from specc.engine.serving.request import Completion, StopConditions
from specc.runtime.capabilities.depth import AcceptanceDepth, DepthPolicy, FixedDepth
from specc.runtime.plan.nodes import External

from .test_tree_accept import NEW, PROMPTS, lengths_of
from .tree_engine import Config, expected, make_engine, plans_of

CONFIGS = [
    Config("STANDALONE", 1, 4, 5, 1, shallower=(0, 1, 2)),
    Config("EAGLE", 1, 4, 5, 16, shallower=(0, 1, 2)),
    Config("EAGLE3", 1, 3, 4, 1, shallower=(0, 1)),
    Config("FROZEN_KV_MTP", 1, 4, 5, 1, shallower=(0, 1, 2)),
    Config("DFLASH", 1, 4, 5, 16, shallower=(0, 1, 2)),
    Config("NGRAM", 1, 4, 5, 1, shallower=(0, 1, 2)),
    Config("EAGLE", 2, 4, 9, 16, shallower=(0, 1, 2)),
    Config("STANDALONE", 4, 3, 16, 16, shallower=(0, 1, 2)),
    Config("FROZEN_KV_MTP", 4, 3, 12, 1, shallower=(0, 1, 2)),
    Config("NGRAM", 2, 4, 9, 1, shallower=(0, 1, 2)),
]
each_config = pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.algorithm.lower()}-{'tree' if c.topk > 1 else 'chain'}"
)


class Turns:
    """Depths one after the other, from the first again after the last."""

    def __init__(self, depths: Sequence[int]) -> None:
        self._turns, self.seen = cycle(depths), Counter[int]()

    def choose(self, requests: int) -> int:
        return next(self._turns)

    def observe(self, num_steps: int, accept_lens: Sequence[int]) -> None:
        self.seen[num_steps] += len(accept_lens)
        assert all(1 <= length <= num_steps + 1 for length in accept_lens)


def nodes_at(config: Config, steps: int) -> int:
    """What a step of a depth verifies: no more than it can draft."""
    largest = needs(config.algorithm).most_nodes(config.topk, steps)
    return steps + 1 if config.topk == 1 else min(config.nodes, largest)


def alone(config: Config, steps: int) -> Config:
    """A configuration of one of the depths and no other."""
    return replace(config, steps=steps, nodes=nodes_at(config, steps), shallower=())


def complete(config: Config, depth: DepthPolicy, *, padded: bool = False) -> list[Completion]:
    """Complete the prompts together; the texts are the target's own."""
    engine = make_engine(config, padded=padded, depth=depth)
    completions = engine.generate(PROMPTS, StopConditions(NEW))
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        assert completion.token_ids == expected(prompt)[:NEW]
    return completions


@each_config
def test_a_depth_is_as_good_as_a_program_of_its_own(config: Config) -> None:
    for steps in (*filter(None, config.shallower), config.steps):
        one = complete(alone(config, steps), FixedDepth(steps))
        several = complete(config, FixedDepth(steps))
        assert [c.accept_lens for c in several] == [c.accept_lens for c in one]


@each_config
@pytest.mark.parametrize("overlap", [False, True])
def test_every_step_accepts_what_a_draft_without_kv_memory_gets_right(config: Config, overlap: bool) -> None:
    """Whatever the depth of the step before: state and keys and values of the draft fit every depth."""
    turns = [config.steps, config.shallower[0], config.steps, config.shallower[-1], config.shallower[0]]
    policy = Turns(turns)
    completions = complete(replace(config, overlap=overlap), policy, padded=overlap)
    depths = [Depth(steps, nodes_at(config, steps)) for steps in turns]
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        assert list(completion.accept_lens) == lengths_of(config, prompt, depths)
    assert set(policy.seen) == set(turns)
    assert max(max(completion.accept_lens) for completion in completions) > 2


def test_the_engine_chooses_by_acceptance_unless_told() -> None:
    """All depths are offered to the policy of its own, and each step is counted under what it chose."""
    config = Config("EAGLE", 1, 4, 5, 1, shallower=(1, 2))
    engine = make_engine(config)
    assert isinstance(engine.depth, AcceptanceDepth)
    assert engine.depth.choose(3) == 4
    completions = engine.generate(PROMPTS, StopConditions(NEW))
    assert engine.stats.depths.total() == sum(len(completion.accept_lens) for completion in completions)
    assert set(engine.stats.depths) <= {1, 2, 4}


def test_a_depth_that_was_not_compiled_is_refused() -> None:
    engine = make_engine(Config("EAGLE", 1, 4, 5, 1, shallower=(1, 2)), depth=FixedDepth(3))
    with pytest.raises(StepFailedError, match=r"BindError.* for num_steps 3; there is 1, 2, 4"):
        engine.generate(PROMPTS[:1], StopConditions(NEW))


def test_steps_are_timed_on_padding_rows_alone() -> None:
    """Of every depth in every bucket, in the middle of texts, which stay as they are."""
    config = Config("EAGLE", 1, 4, 5, 1, shallower=(0, 2))
    engine = make_engine(config, padded=True)
    for prompt in PROMPTS:
        engine.add(prompt, StopConditions(NEW))
    engine.step()
    counted = dict(engine.stats.decodes)
    times = step_times(engine, repeats=2)
    assert set(times) == {0, 2, 4}
    assert all(set(by_bucket) == set(engine.plan.buckets) for by_bucket in times.values())
    assert all(time > 0 for by_bucket in times.values() for time in by_bucket.values())
    assert dict(engine.stats.decodes) == counted
    choose_by_times(engine)
    assert isinstance(engine.depth, AcceptanceDepth)
    done = dict[int, Completion]()
    while engine.has_work:
        done |= {completion.request_id: completion for completion in engine.step()}
    texts = [done[number].token_ids for number in sorted(done)]
    assert texts == [expected(prompt)[:NEW] for prompt in PROMPTS]


@pytest.mark.parametrize("algorithm", [name for name in names() if name != "MULTI_LAYER_EAGLE"])
def test_a_step_without_drafts_has_no_launch_for_them(algorithm: str) -> None:
    """A tree has no forward of the draft phase, no tree, no mask and no compaction either; its carry is the same."""
    trees = needs(algorithm).trees
    config = Config(algorithm, 2 if trees else 1, 3, 6 if trees else 4, 16, shallower=(0,))
    deep, plain = plans_of(config)
    nodes = plain.nodes("step")
    forwards = [node.callback for node in nodes if isinstance(node, External)]
    opcodes = {op.op for node in nodes for op in node.ops}
    assert forwards[0] == "target"
    assert len(forwards) <= 2, "the target, and what keeps the draft's keys up to date"
    assert not [name for name in opcodes if name.startswith(("tree.", "ngram.", "kv.move", "kv.draft", "kv.branch"))]
    assert plain.carry == deep.carry
