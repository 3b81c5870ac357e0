"""Shapes change in the middle of a text, and every step drafts and accepts what its own shape would."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import pytest
from memoryless import emitted

from specc.compiler.algorithms import names, needs
from specc.lab.engine.errors import EngineError, StepFailedError
from specc.lab.engine.observe.step_times import choose_by_times, step_times
from specc.lab.engine.serving.requests.request import Completion, StopConditions
from specc.runtime.capabilities.shape import AcceptanceShape, FixedShape, ShapePolicy
from specc.runtime.plan.nodes import External
from specc.runtime.plan.shape import Shape

from .test_tree_accept import NEW, PROMPTS, lengths_of
from .tree_engine import Config, expected, make_engine, plans_of, shapes_of

CONFIGS = [
    Config("STANDALONE", 1, 4, 5, 1, shallower=(0, 1, 2)),
    Config("EAGLE", 1, 4, 5, 16, shallower=(0, 1, 2)),
    Config("EAGLE3", 1, 3, 4, 1, shallower=(0, 1)),
    Config("FROZEN_KV_MTP", 1, 4, 5, 1, shallower=(0, 1, 2)),
    Config("DFLASH", 1, 4, 5, 16, shallower=(0, 1, 2)),
    Config("DSPARK", 1, 4, 5, 16, shallower=(0, 1, 2)),
    Config("DFLASH2", 1, 4, 5, 16, shallower=(0, 1, 2)),
    Config("NGRAM", 1, 4, 5, 1, shallower=(0, 1, 2)),
    Config("EAGLE", 2, 4, 9, 16, shallower=(0, 1, 2)),
    Config("STANDALONE", 4, 3, 16, 16, shallower=(0, 1, 2)),
    Config("FROZEN_KV_MTP", 4, 3, 12, 1, shallower=(0, 1, 2)),
    Config("NGRAM", 2, 4, 9, 1, shallower=(0, 1, 2)),
    Config("STANDALONE", 4, 3, 12, 16, others=(Shape(4, 1, 5), Shape(2, 2, 5), Shape(0, 1, 1))),
    Config("EAGLE", 1, 4, 5, 1, others=(Shape(3, 4, 16), Shape(3, 2, 7), Shape(1, 1, 2))),
    Config("EAGLE3", 3, 3, 9, 16, others=(Shape(3, 1, 4), Shape(1, 2, 3), Shape(0, 1, 1))),
    Config("FROZEN_KV_MTP", 4, 3, 12, 1, others=(Shape(2, 1, 3), Shape(2, 3, 8))),
    Config("NGRAM", 2, 4, 9, 1, others=(Shape(3, 1, 4), Shape(4, 4, 16), Shape(0, 1, 1))),
]
each_config = pytest.mark.parametrize(
    "config",
    CONFIGS,
    ids=lambda c: f"{c.algorithm.lower()}-{'mixed' if c.others else 'tree' if c.topk > 1 else 'chain'}",
)


class Turns:
    """Shapes one after the other, from the first again after the last."""

    def __init__(self, config: Config, *names: int | str) -> None:
        self.shapes = shapes_of(config, *names)
        self._turns, self.seen = cycle(self.shapes), Counter[Shape]()

    def choose(self, requests: int) -> Shape:
        return next(self._turns)

    def observe(self, shape: Shape, accept_lens: Sequence[int]) -> None:
        self.seen[shape] += len(accept_lens)
        assert all(1 <= length <= shape.num_steps + 1 for length in accept_lens)


class AnyShape(Turns):
    """Whichever shape, drawn anew for every step."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config)
        self._rng = random.Random(seed)

    def choose(self, requests: int) -> Shape:
        return self._rng.choice(self.shapes)


def alone(config: Config, shape: Shape) -> Config:
    """A configuration of one of the shapes and no other."""
    steps, topk, nodes, _ = shape
    return replace(config, steps=steps, topk=topk, nodes=nodes, shallower=(), others=())


def complete(config: Config, policy: ShapePolicy, *, padded: bool = False) -> list[Completion]:
    """Complete the prompts together; the texts are the target's own."""
    engine = make_engine(config, padded=padded, shape=policy)
    completions = engine.generate(PROMPTS, StopConditions(NEW))
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        assert completion.token_ids == expected(prompt)[:NEW]
    return completions


@each_config
def test_a_shape_is_as_good_as_a_program_of_its_own(config: Config) -> None:
    for shape in (shape for shape in shapes_of(config) if shape.num_steps):
        single = complete(alone(config, shape), FixedShape(shape))
        several = complete(config, FixedShape(shape))
        assert [c.accept_lens for c in several] == [c.accept_lens for c in single]


@each_config
@pytest.mark.parametrize("overlap", [False, True])
def test_every_step_accepts_what_a_draft_without_kv_memory_gets_right(config: Config, overlap: bool) -> None:
    """Whatever the shape of the step before: state and keys and values of the draft fit every shape."""
    deepest, *others = map(str, shapes_of(config))
    policy = Turns(config, deepest, others[-1], deepest, *others, others[-1])
    completions = complete(replace(config, overlap=overlap), policy, padded=overlap)
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        assert completion.accept_lens == emitted(lengths_of(config, prompt, policy.shapes), NEW - 1)
    assert set(policy.seen) == set(shapes_of(config))
    assert max(max(completion.accept_lens) for completion in completions) > 2


def test_the_engine_chooses_by_acceptance_unless_told() -> None:
    """All shapes are offered to the policy of its own, and each step is counted under what it chose."""
    config = Config("EAGLE", 1, 4, 5, 1, shallower=(1, 2))
    engine = make_engine(config)
    assert isinstance(engine.shape, AcceptanceShape)
    assert engine.shape.choose(3).num_steps == 4
    completions = engine.generate(PROMPTS, StopConditions(NEW))
    assert engine.stats.depths.total() == sum(len(completion.accept_lens) for completion in completions)
    assert set(engine.stats.depths) <= {1, 2, 4}


@pytest.mark.parametrize("chooses", ["by acceptance", "by times", "the tree", "none"])
def test_a_batch_runs_at_a_shape_that_was_compiled_for_it(chooses: str) -> None:
    """Whatever chooses; texts are the target's, of more requests than the deepest shape holds."""
    others = Shape(3, 1, 4), Shape(0, 1, 1)
    config = Config("EAGLE", 4, 3, 12, 16, others=others, shares=((1, 2), (2, 4), (4, 8)), buckets=(1, 2, 4, 8))
    fixed = {"the tree": "3x4x12", "none": 0}
    engine = make_engine(config, padded=True, shape=fixed.get(chooses))
    if chooses == "by times":
        choose_by_times(engine, step_times(engine, repeats=1))
    prompts = [*PROMPTS, *PROMPTS[:3]][:6]
    assert engine.scheduler.max_batch == 8
    completions = engine.generate(prompts, StopConditions(NEW)) + engine.generate(prompts[:1], StopConditions(NEW))
    assert [c.token_ids for c in completions] == [expected(prompt)[:NEW] for prompt in (*prompts, prompts[0])]
    buckets = engine.program.buckets
    ran = {(rows, shape) for rows, shape in engine.stats.decodes}
    assert all(rows <= buckets[shape][-1] for rows, shape in ran)
    assert {rows for rows, _ in ran} >= {1, 6}
    if chooses in fixed:
        shape = shapes_of(config, fixed[chooses])[0]
        assert {at for rows, at in ran if rows <= buckets[shape][-1]} == {shape}


def test_a_shape_that_was_not_compiled_is_refused() -> None:
    config = Config("EAGLE", 1, 4, 5, 1, shallower=(1, 2))
    engine = make_engine(config, shape=FixedShape(Shape(3, 1, 4)))
    with pytest.raises(StepFailedError, match=r"BindError.* for the shape .*; there is 1, 2, 4"):
        engine.generate(PROMPTS[:1], StopConditions(NEW))
    with pytest.raises(EngineError, match="the program has no shape 3; there is 1, 2, 4"):
        make_engine(config, shape=3)


def test_steps_are_timed_on_padding_rows_alone() -> None:
    """Of every shape in every bucket, in the middle of texts, which stay as they are."""
    config = Config("EAGLE", 1, 4, 5, 1, shallower=(0, 2))
    engine = make_engine(config, padded=True)
    for prompt in PROMPTS:
        engine.add(prompt, StopConditions(NEW))
    engine.step()
    counted = dict(engine.stats.decodes)
    times = step_times(engine, repeats=2)
    assert set(times) == set(shapes_of(config))
    assert all(set(by_bucket) == set(engine.plan.buckets) for by_bucket in times.values())
    assert dict(engine.stats.decodes) == counted
    choose_by_times(engine, times)
    assert isinstance(engine.shape, AcceptanceShape)
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
