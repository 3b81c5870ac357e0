"""Every pass from infer-types to form-kernels preserves what a program computes, by the reference semantics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import load, passes_to
from session import RECURRENT, Trace, assert_same, equal, interpret_script, script
from strategies import ESTIMATED, configs, to_yaml

from specc.compiler.algorithms import names, needs
from specc.compiler.config import Config, LoadedConfig, load_text
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.core import Module
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.pass_manager.manager import BaseInstrument, run_passes
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.passes.invariants import CheckEach


class Snapshots(BaseInstrument):
    """A copy of the module after each pass from infer-types on."""

    def __init__(self) -> None:
        self.found: dict[str, Module] = {}

    def after(self, module: Module, step: Pass) -> None:
        """Copy, through the text."""
        if "typed" in module.established:
            self.found[step.name] = parse_module(print_module(module))


def stages(loaded: LoadedConfig) -> dict[str, Module]:
    """The module after each pass up to form-kernels."""
    snapshots = Snapshots()
    run_passes(start_module(loaded), passes_to("form-kernels", loaded), Context(loaded), [CheckEach(), snapshots])
    return snapshots.found


@settings(max_examples=30)
@given(configs(), st.integers(0, 1 << 16))
def test_passes_preserve_the_program(keys: dict[str, Any], seed: int) -> None:
    torch.set_num_threads(1)
    loaded = load_text(to_yaml(keys), Path("random.yaml"), names(), needs)
    todo = script(loaded.config, seed)
    modules = stages(loaded)
    base = interpret_script(modules.pop("infer-types"), loaded.config, todo)
    for name, module in modules.items():
        trace = interpret_script(module, loaded.config, todo)
        if name == "rotate-step" and loaded.config.file.step == "rotated":
            assert_rotated(base, trace)
            base = trace
        if name == "select-budgets" and loaded.config.shape.budget is not None:
            base = seen_less(base, trace)
        assert_same(base, trace, f"after {name}")
    assert set(module.carries) == carried(loaded.config)


def seen_less(whole: Trace, packed: Trace) -> Trace:
    """A trace with the health of a target that has fewer rows: what it has no row for is not found bad."""
    for before, after in zip(whole.outputs, packed.outputs, strict=True):
        assert not (after["health"] & ~before["health"]).any()
        assert torch.equal(before["health"] & ~OF_TARGET, after["health"] & ~OF_TARGET)
    healths = [outputs["health"] for outputs in packed.outputs]
    outputs = [before | {"health": health} for before, health in zip(whole.outputs, healths, strict=True)]
    return replace(whole, outputs=outputs)


OF_TARGET = 1 << 1
"""The bit of health that a target raises."""
LATER = 1
"""The bit of health that a rotated step raises of its drafts, and a whole one before they are verified."""


def assert_rotated(whole: Trace, rotated: Trace) -> None:
    """Step for step a rotated module does what a whole one does; its drafts are those of the whole one's next step."""
    for index, (before, after) in enumerate(zip(whole.outputs, rotated.outputs, strict=True)):
        for name in before.keys() - {"health"}:
            assert equal(before[name], after[name]), f"rotated: output {name} of run {index}"
        health = after["health"] | after.get("propose.health", 0)
        assert torch.equal(before["health"] & ~LATER, health & ~LATER), f"rotated: health of run {index}"
    for index, (before, after) in enumerate(zip(whole.kv, rotated.kv, strict=True)):
        for key, words in before.items():
            assert all(map(torch.equal, words, after[key])), f"rotated: KV rows of {key} after run {index}"
    seen, wanted = ([call for call in trace.calls if call[0] == "target"] for trace in (rotated, whole))
    for (*_, operands), (*_, wanted_operands) in zip(seen, wanted, strict=True):
        assert all(
            torch.equal(operands[name], wanted_operands[name]) for name in ("tokens", "positions", "rows", "seq_lens")
        )


CARRIED = {
    "STANDALONE": {"bonus", "topk_index"},
    "EAGLE": {"bonus", "topk_index", "hidden"},
    "EAGLE3": {"bonus", "topk_index", "hidden"},
    "FROZEN_KV_MTP": {"bonus", "hidden"},
    "MULTI_LAYER_EAGLE": {"bonus", "topk_index"},
    "DFLASH": {"bonus"},
    "DSPARK": {"bonus"},
    "DFLASH2": {"bonus"},
    "NGRAM": {"text"},
}


def carried(config: Config) -> set[str]:
    """Fields that are left of a configuration."""
    rotated = config.file.step == "rotated"
    fields = {"bonus", "drafts"} | ({"text"} & CARRIED[config.algorithm]) if rotated else CARRIED[config.algorithm]
    fields = fields | ({"seq_lens"} if config.file.overlap else set())
    fields |= {"sampling_seed", "sampling_temperature"} if config.file.verify != "greedy" else set()
    if config.file.verify in ("rejection", "block"):
        count = {"FROZEN_KV_MTP": 0, "DFLASH": 0, "DFLASH2": 0, "DSPARK": 0, "MULTI_LAYER_EAGLE": config.num_steps}.get(
            config.algorithm, 1
        )
        fields |= {f"draft_{name}{i}" for i in range(count) for name in ("logits", "mass")}
    fields |= {"agreement"} if config.file.budget else set()
    if config.algorithm in RECURRENT and not rotated:
        fields |= set() if config.chain and not config.file.budget else {"topk_p"}
        fields -= set() if config.num_steps > 1 else {"hidden"}
    return fields


TREE = {"topk": 2, "num_draft_tokens": 6, "page_size": 4, "num_steps": 3, "mask": "qlen"}


BITS = {"FROZEN_KV_MTP": {0, 1}, "MULTI_LAYER_EAGLE": {1, 2, 3}, "NGRAM": {1}}
BITS |= {name: {0, 1} for name in ("DFLASH", "DFLASH2", "DSPARK")}
"""Health bits that a program can raise at all, if not those of a draft, the target, extend and prefill."""
SCENARIOS = [(name, {"num_steps": 4}) for name in names()] + [(name, TREE) for name in names() if needs(name).trees]
SCENARIOS += [(name, {"num_steps": 4, "draft": {"head": "int8"}}) for name in ("STANDALONE", "EAGLE")]
SCENARIOS += [(name, {"num_steps": 4, "budget": 3}) for name in ESTIMATED]
SCENARIOS += [("STANDALONE", {"num_steps": 4, "budget": 3, "verify": "rejection"})]
SCENARIOS += [("DFLASH", {"num_steps": 4, "budget": 3, "verify": "block"})]
SCENARIOS += [("EAGLE", {"num_steps": 4, "budget": [2, 3]}), ("DFLASH", {"num_steps": 4, "budget": [2, "all"]})]
OPTIONS = {"NGRAM": {"options": {"window": 64, "corpus": "notes.txt"}}}


@pytest.mark.parametrize(("algorithm", "shape"), SCENARIOS)
def test_the_scenarios_are_not_trivial(algorithm: str, shape: dict[str, Any]) -> None:
    """Drafts are accepted and rejected, padding rows occur, and health bits are raised."""
    loaded = load(algorithm, max_requests=6, **shape, **OPTIONS.get(algorithm, {}))
    module = stages(loaded)["canonicalize"]
    lengths, bits, padded = set[int](), set[int](), 0
    for seed in range(12):
        todo = script(loaded.config, seed)
        padded += sum(0 in batch for batch in todo.batches)
        for outputs in interpret_script(module, loaded.config, todo).outputs:
            lengths |= set(outputs.get("accept_lens", torch.tensor([0])).tolist())
            bits |= {bit for word in outputs["health"].tolist() for bit in range(32) if word >> bit & 1}
    assert {0, 1, 2, 3} <= lengths
    assert bits == BITS.get(algorithm, {0, 1, 2, 3})
    assert padded


MUTANTS = [
    ("offset = 1, stride = 1", "offset = 0, stride = 1"),
    ('axis = "A", offset = 1}', 'axis = "A", offset = 0}'),
    ("column = 2", "column = 1"),
    ("bit = 0", "bit = 1"),
    ("relay.publish(%admitted_rows, %new_seq_lens)", "relay.publish(%admitted_rows, %lens)"),
    ("carry.store(%admitted_rows, %bonus)", "carry.store(%admitted_rows, %root)"),
    ("commit.extend_ids(%node_predict", "commit.extend_ids(%accept_index"),
]


TREE_MUTANTS = [
    ("offset = 1, page = 4, room = 3} : i64", "offset = 0, page = 4, room = 3} : i64"),
    ("offset = 1, page = 4, room = 3} : i64", "offset = 1, page = 4, room = 5} : i64"),
    ("offset = 1, page = 4, room = 3} : !kv", "offset = 0, page = 4, room = 3} : !kv"),
    ("offset = 1, page = 4, room = 3} : !kv", "offset = 1, page = 1, room = 3} : !kv"),
    ("kv.move(%verify_slots,", "kv.move(%tokens,"),
    ("tree.mask(%admitted_lens, %parent)", "tree.mask(%admitted_lens, %depth)"),
    ("tree.positions(%admitted_lens, %depth)", "tree.positions(%admitted_lens, %parent)"),
    ("tree.grow(%scores1, %p1, %index1)", "tree.grow(%topk_p, %p1, %index1)"),
    ("%candidates1, %candidates2,", "%candidates2, %candidates1,"),
    ("%index0, %index1, %kept1", "%index1, %index0, %kept1"),
    ("%index1, %kept1) {steps", "%index1, %kept2) {steps"),
    ("verify.greedy(%tokens, %target_argmax, %admitted_rows, %parent)",
     "verify.greedy(%tokens, %target_argmax, %admitted_rows, %depth)"),
    ("carry.store(%admitted_rows, %next_topk_p)", "carry.store(%admitted_rows, %topk_p)"),
    ("commit.extend_ids(%predict", "commit.extend_ids(%accept_index"),
]  # fmt: skip


SAMPLED = {"verify": "target_only"}
REJECTED = {"verify": "rejection", "num_steps": 3}
BLOCK = {"verify": "block", "num_steps": 3}
HEAD = {"draft": {"head": "fp8"}}
OTHERS = [
    ("FROZEN_KV_MTP", 'axis = "", offset = -1', 'axis = "", offset = 0', {}),
    ("FROZEN_KV_MTP", 'axis = "K", offset = -1', 'axis = "K", offset = 0', {}),
    ("FROZEN_KV_MTP", "carry.store(%admitted_rows, %last_hidden)",
     "carry.store(%admitted_rows, %carried_hidden)", {}),
    ("FROZEN_KV_MTP", "%seed_p, %candidates1", "%scores1, %candidates1", TREE),
    ("MULTI_LAYER_EAGLE", "%extend_tokens1, %accept_lens, %draft2", "%extend_tokens1, %accept_lens, %draft1", {}),
    ("MULTI_LAYER_EAGLE", "%draft2) {column = 1}", "%draft1) {column = 1}", {}),
    ("MULTI_LAYER_EAGLE", "%prefill_draft3) {column = 2}", "%prefill_draft3) {column = 1}", {}),
    ("MULTI_LAYER_EAGLE", "bit = 3", "bit = 2", {}),
    ("DFLASH", 'axis = "A", offset = 0}', 'axis = "A", offset = 1}', {}),
    ("DFLASH", "model.inject(%block_positions, %block_slots,", "model.inject(%block_slots, %block_slots,", {}),
    ("DFLASH", "carry.store(%admitted_rows, %bonus)", "carry.store(%admitted_rows, %root)", {}),
    ("STANDALONE", "kind = 0, offset = 1", "kind = 0, offset = 0", SAMPLED),
    ("STANDALONE", ", %sample_keys, ", ", %verify_positions, ", SAMPLED),
    ("STANDALONE", 'axis = "K", offset = 4294967296', 'axis = "K", offset = 0', REJECTED),
    ("STANDALONE", "{kind = 2, offset = 0}", "{kind = 1, offset = 0}", REJECTED),
    ("STANDALONE", "%carried_draft_logits0, %draft_logits0,", "%draft_logits0, %draft_logits0,", REJECTED),
    ("EAGLE", "%next_place = kv.positions(%new_seq_lens)", "%next_place = kv.positions(%admitted_lens)", BLOCK),
    ("MULTI_LAYER_EAGLE", 'carry.store(%admitted_rows, %extend_logits1) {field = "draft_logits1"}',
     'carry.store(%admitted_rows, %extend_logits0) {field = "draft_logits1"}', BLOCK),
    ("DFLASH", 'axis = "S", offset = 0, stride = 4294967296', 'axis = "S", offset = 0, stride = 1', BLOCK),
    ("EAGLE", "head.halves(%draft_states1)", "head.halves(%draft_states0)", HEAD),
    ("STANDALONE", "head.halves(%draft_states1)", "head.halves(%draft_states0)", REJECTED | HEAD),
    ("NGRAM", "longest = 8, shortest = 1", "longest = 8, shortest = 3", {}),
    ("NGRAM", 'beyond = "period"', 'beyond = "last"', {}),
    ("NGRAM", "%admitted_lens, %text, %corpus)", "%admitted_lens, %text)", {}),
    ("NGRAM", "carry.append(%admitted_rows, %admitted_lens,", "carry.append(%admitted_rows, %new_seq_lens,", {}),
    ("NGRAM", "tree.comb(%admitted_rows) {steps = 3}", "tree.comb(%admitted_rows) {steps = 2}", TREE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "old", "new", "shape"),
    [
        *[("STANDALONE", old, new, {}) for old, new in MUTANTS],
        *[("STANDALONE", old, new, TREE) for old, new in TREE_MUTANTS],
        *OTHERS,
    ],
)
def test_a_pass_that_changes_the_program_is_noticed(algorithm: str, old: str, new: str, shape: dict[str, Any]) -> None:
    """The test itself: a program that is wrong in one place must show."""
    loaded = load(algorithm, **shape, **OPTIONS.get(algorithm, {}))
    module = stages(loaded)["canonicalize"]
    text = print_module(module)
    assert old in text
    broken = parse_module(text.replace(old, new))
    scripts = [script(loaded.config, seed) for seed in range(4)]
    pairs = [[interpret_script(which, loaded.config, todo) for which in (module, broken)] for todo in scripts]
    assert any(differ(whole, mutated) for whole, mutated in pairs)


def differ(first: Trace, second: Trace) -> bool:
    """Whether two runs can be told apart."""
    try:
        assert_same(first, second, "mutant")
    except AssertionError:
        return True
    return False
