"""The search, with times that are made here: what it takes, what it leaves alone, and what it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from specc.compiler.config.chosen import LaunchChoice, Tuning
from specc.compiler.config.resolution.tuning import MAX_BYTES
from specc.compiler.driver.build import build_program
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.tuning.file import Found, Gain, tuning_text
from specc.lab.measure.tuning.tuned import TuningResult, tune
from specc.lab.measure.tuning.variants import Form, described, kernels_of, knobs_of
from specc.runtime.plan.nodes import Launch
from specc.runtime.plan.plan import Plan

from .conftest import CHAIN, TREE, Clock, load

CPU = torch.device("cpu")
HEAD = CHAIN[:-2] + ", head: int8}\n"


def search(text: str, seconds: float = 60.0) -> TuningResult:
    return tune(load(text), CPU, seconds, lambda what, part: None)


def by_launch(tuned: TuningResult) -> dict[str, LaunchChoice]:
    return {choice.launch: choice for depth in tuned.winners for choice in depth.choices}


def test_nothing_is_chosen_where_nothing_is_faster(clock: Clock) -> None:
    tuned = search(CHAIN)
    assert tuned.tuning.choices == () and tuned.steps == {}
    assert clock.asked > 100


def test_a_tile_that_is_faster_is_taken_for_all_launches_of_a_kernel(clock: Clock) -> None:
    clock.cost = lambda name, tile, warps, *_: 0.5 if (tile, warps) == (1024, 8) and "argmax" in name else 1.0
    choices = by_launch(search(CHAIN))
    assert choices.keys() == {"draft_argmax", "verify_argmax", "extend_argmax"}
    assert {(choice.tile, choice.warps) for choice in choices.values()} == {(1024, 8)}


def test_a_split_is_of_a_bucket(clock: Clock) -> None:
    clock.cost = lambda name, tile, warps, bucket, y: 0.5 if (name, bucket, y) == ("draft_argmax", 4, 2) else 1.0
    (choice,) = search(CHAIN).tuning.choices
    assert (choice.launch, choice.tile, choice.warps, choice.split) == ("draft_argmax", None, None, {4: 2})
    clock.cost = lambda name, tile, warps, bucket, y: 0.5 if (name, bucket, y) == ("verify_argmax", 4, 3 * 2) else 1.0
    (choice,) = search(CHAIN).tuning.choices
    assert (choice.launch, choice.split) == ("verify_argmax", {4: 2}), "of every one of its three rows"


def test_what_is_slower_in_one_bucket_is_not_taken_for_the_others(clock: Clock) -> None:
    """A tile is a kernel's, so that no bucket may lose by it; a split that gains is taken instead."""

    def cost(name: str, tile: int | None, warps: int | None, bucket: int, y: int) -> float:
        if name != "extend_argmax":
            return 1.0
        return 0.8 if (tile, bucket, y) == (None, 1, 3) else {1: 0.5, 4: 1.1}[bucket] if tile == 1024 else 1.0

    clock.cost = cost
    (choice,) = search(CHAIN).tuning.choices
    assert (choice.launch, choice.tile, choice.split) == ("extend_argmax", None, {1: 3})


def test_what_is_within_the_noise_is_not_taken(clock: Clock) -> None:
    clock.cost = lambda name, tile, *_: 0.92 if tile == 1024 else 1.0
    assert len(search(CHAIN).tuning.choices) == 3
    clock.noise = 0.1
    assert search(CHAIN).tuning.choices == ()


def test_a_gain_that_a_step_would_not_notice_is_not_taken(clock: Clock) -> None:
    clock.cost = lambda name, tile, *_: 1 / 1.02 if tile == 1024 else 1.0
    assert search(CHAIN).tuning.choices == ()


def test_what_leaves_other_bits_is_not_taken(clock: Clock) -> None:
    clock.cost = lambda name, tile, warps, *_: 0.5 if tile == 1024 else 0.7 if (tile, warps) == (None, 8) else 1.0
    clock.wrong = lambda form, node: form.tile == 1024
    choices = by_launch(search(CHAIN))
    assert {(choice.tile, choice.warps) for choice in choices.values()} == {(None, 8)}


def test_choices_are_taken_back_while_a_step_is_slower(clock: Clock) -> None:
    """First the one that gains least where the step is slowest."""
    gains = {"draft_argmax": 0.9, "verify_argmax": 0.8, "extend_argmax": 0.5}
    clock.cost = lambda name, tile, *_: gains.get(name, 1.0) if tile == 1024 else 1.0

    def step(plan: Plan, rows: int) -> float:
        tiles = {name: kernel.constants.get("BLOCK") for name, kernel in plan.kernels.items()}
        return 1.1 if rows == 4 and 1024 in (tiles["draft_argmax"], tiles["verify_argmax"]) else 1.0

    clock.step = step
    tuned = search(CHAIN)
    assert [choice.launch for choice in tuned.tuning.choices] == ["extend_argmax"]
    assert [gain.bucket for gain in tuned.steps["2"]] == [1, 4]
    clock.step = lambda plan, rows: 1.1 if 1024 in {k.constants.get("BLOCK") for k in plan.kernels.values()} else 1.0
    tuned = search(CHAIN)
    assert tuned.tuning.choices == () and tuned.steps == {}


def test_launches_of_a_kernel_are_timed_once_and_chosen_together(clock: Clock) -> None:
    clock.cost = lambda name, tile, *_: 0.5 if tile == 512 and name == "draft_argmax_0" else 1.0
    tuned = search(CHAIN.replace("num_steps: 2", "num_steps: 4"))
    (finding,) = tuned.winners
    assert [choice.launch for choice in finding.choices] == ["draft_argmax_0", "draft_argmax_1"]


def test_shapes_have_choices_of_their_own(clock: Clock) -> None:
    clock.cost = lambda name, tile, *_: 0.5 if tile == 512 and name == "verify_argmax" else 1.0
    tuned = search(CHAIN.replace("num_steps: 2", "num_steps: [1, 2]").replace("[1, 4]", "[1]"))
    assert [(choice.launch, choice.shape) for choice in tuned.tuning.choices] == [
        ("verify_argmax", "2"),
        ("verify_argmax", "1"),
    ]
    assert list(tuned.steps) == ["2", "1"]
    text = tuning_text(tuned.tuning, tuned.winners, tuned.steps)
    assert "shape 2: 1.00 at 1" in text and text.count("\n    shape: ") == 2


LARGEST = """\
name: largest
algorithm: EAGLE
shapes: [SHAPES]
buckets: BUCKETS
max_requests: 64
context_length: 4096
verify: target_only
verify_rows: lazy
archs: [sm_90]
target: {hidden_size: 64, num_layers: 1, num_kv_heads: 1, head_dim: 64, vocab_size: 25600, dtype: bfloat16}
draft: {hidden_size: 64, num_layers: 1, num_kv_heads: 1, head_dim: 64, vocab_size: 25600, dtype: bfloat16, head: int8}
"""
BUCKETS = [*range(1, 65)]


def largest(shapes: int) -> str:
    """As many steps, buckets and, up to sixteen, shapes as a configuration may have."""
    trees = [f"{{num_steps: 16, topk: {topk}, num_draft_tokens: {24 + topk}}}" for topk in range(2, 2 + shapes)]
    return LARGEST.replace("SHAPES", ", ".join(trees)).replace("BUCKETS", str(BUCKETS))


def test_what_may_be_written_of_the_largest_program_is_read(tmp_path: Path) -> None:
    """Everything chosen of every launch; one shape is compiled, and the others have as many."""
    names = [str(shape.config.shape) for shape in load(largest(15)).shapes()]
    (built,) = build_program(load(largest(1))).shapes
    winners = list[Found]()
    for nodes in kernels_of(built).values():
        knobs = knobs_of(built, nodes[0].name)
        form = Form(*(known[-1] if known else None for known in (knobs.tiles, knobs.warps, knobs.stages)))
        split = dict.fromkeys(BUCKETS, knobs.split) if knobs.split else {}
        gains = tuple(Gain(bucket, Ratio(1.25, 1.2, 1.3), 0.02) for bucket in BUCKETS)
        instead = described(built, nodes[0].name)
        for name in names:
            chosen = tuple(LaunchChoice(node.name, name, *form, split) for node in nodes)
            winners.append(Found(chosen, instead, gains))
    choices = [choice for winner in winners for choice in winner.choices]
    assert len(choices) > 700
    text = tuning_text(Tuning("sm_90", "a GPU", "0.1.0", "3.6.0", tuple(choices)), winners, {})
    assert 2 * len(text) < MAX_BYTES
    (tmp_path / "t.yaml").write_text(text)
    read = load(largest(15) + "tuning: t.yaml\n", tmp_path).config.tuning
    assert read is not None
    assert [replace(choice, location=None) for choice in read.choices] == choices
    lines = text.splitlines()
    for choice in read.choices:
        assert choice.location is not None
        assert lines[choice.location.line - 1][choice.location.column - 1 :].startswith(choice.launch)


def test_no_time_tries_nothing_but_what_there_is(clock: Clock) -> None:
    clock.cost = lambda name, tile, *_: 0.5 if tile else 1.0
    assert search(CHAIN, seconds=0.0).tuning.choices == ()


def test_a_tree_is_searched_where_it_does_not_add(clock: Clock, tmp_path: Path) -> None:
    """What is found is read by a build, and reaches the launches."""
    copies = "compact", "prepare_rows"
    clock.cost = lambda name, tile, warps, *_: 0.5 if warps == 2 and name in copies else 1.0
    tuned = search(TREE)
    assert {choice.launch for choice in tuned.tuning.choices} == {"compact", "prepare_rows"}
    (tmp_path / "t.yaml").write_text(tuning_text(tuned.tuning, tuned.winners, tuned.steps))
    plan = build_program(load(TREE + "tuning: t.yaml\n", tmp_path)).plan
    warps = {node.name: plan.kernels[node.kernel].num_warps for node in plan.nodes("step") if isinstance(node, Launch)}
    assert warps["compact"] == warps["prepare_rows"] == 2 != warps["verify_argmax"]


def test_a_head_is_searched_where_it_does_not_add(clock: Clock, tmp_path: Path) -> None:
    """Its tile, warps and stages reach the kernel, and its split the grid."""
    clock.cost = lambda name, tile, warps, bucket, y: 0.8 if (tile, warps, bucket, y) in {(128, 8, 4, 24)} else 1.0
    clock.staged = lambda name, stages: 0.9 if stages == 5 and name.startswith("head") else 1.0
    tuned = search(HEAD)
    choices = by_launch(tuned)
    assert choices.keys() == {"head_0", "head_1"}
    for choice in choices.values():
        assert (choice.tile, choice.warps, choice.stages, choice.split[4]) == (128, 8, 5, 24)
    (tmp_path / "t.yaml").write_text(tuning_text(tuned.tuning, tuned.winners, tuned.steps))
    plan = build_program(load(HEAD + "tuning: t.yaml\n", tmp_path)).plan
    for node in (node for node in plan.nodes("step") if isinstance(node, Launch) and node.name in choices):
        kernel = plan.kernels[node.kernel]
        assert (kernel.constants["BN"], kernel.num_warps, kernel.num_stages) == (128, 8, 5)
        assert node.grid[4] == (4, 24, 1)


def test_what_is_searched_of_a_head_that_adds() -> None:
    """A top-k: exponentials are added in the order of tiles and warps, not in that of loads or of programs."""
    (built,) = build_program(load(TREE[:-2] + ", head: int8}\n")).shapes
    knobs = knobs_of(built, "head_0")
    assert (knobs.tiles, knobs.warps, knobs.stages, knobs.split) == ((), (), (2, 3, 4, 5), 512)
    assert described(built, "head_0") == "3 stages, split 512 at 1, 128 at 4"
