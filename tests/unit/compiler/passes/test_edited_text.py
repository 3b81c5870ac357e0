"""Text of modules that somebody changed: what no pass could work on is refused by name, and no pass crashes on it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from programs import compile_to, load

from specc.compiler.ir.core import Module
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.invariants import CheckEach, check_now
from specc.compiler.passes.pipeline import default_passes, parse_pipeline
from specc.compiler.support.diagnostics import DiagnosticError

CHAIN = {"num_steps": 2}
TREE = {"num_steps": 2, "topk": 2, "num_draft_tokens": 4, "page_size": 4}
FULL = {**TREE, "mask": "full", "context_length": 40}


def text_after(last: str, keys: dict[str, Any]) -> str:
    """The text of a small program after a pass."""
    return print_module(compile_to(last, load("EAGLE", **keys)))


def take(text: str, passes: str) -> Module:
    """The module of a text after some passes, checked before and after each."""
    module = parse_module(text, "m.specir")
    check_now(module)
    run_passes(module, parse_pipeline(passes), Context(), [CheckEach()])
    return module


def what_is_wrong(text: str, passes: str) -> list[str]:
    """Code and message of every finding about a text, before the passes or while they run."""
    with pytest.raises(DiagnosticError) as raised:
        take(text, passes)
    return [f"{diagnostic.code}: {diagnostic.message}" for diagnostic in raised.value.diagnostics]


LATER = ",".join(step.name for step in default_passes()[2:])
LATER_TYPED = f"infer-types,{LATER}"
PLANS = "assign-layouts,specialize-buckets,plan-memory,plan-graphs"

EDITS = [
    # what a line declares
    ("infer-types", CHAIN, r"dim V : vocab = \d+", "dim V : vocab = 0", LATER, "axis vocab has from 1 to"),
    ("infer-types", TREE, "dim K : branch = 2", f"dim K : branch = {1 << 64}", LATER, "axis branch has from 1 to 16"),
    ("infer-types", CHAIN, r"dim P : pool = \d+", "dim P : pool", LATER, "only the engine's axes have no size"),
    ("infer-types", CHAIN, r"buckets = \[.*?\]", "buckets = []", LATER, "buckets must ascend"),
    ("infer-types", TREE, "page_size = 4", "page_size = 0", LATER, "page_size is from 1 to 65536, not 0"),
    ("infer-types", TREE, r"(kvpool @draft .*)layers = \d+", r"\1layers = 0", LATER, "layers, buffers and row_bytes"),
    ("form-kernels", CHAIN, r"( *kernel @prepare_rows .*\n)", r"\1\1", PLANS, "kernel @prepare_rows is declared twice"),
    # what passes look for
    ("select-tree-form", CHAIN, "dim K : branch = 1", "dim K : branch = 7", LATER, "needs a size of dimension N"),
    ("infer-types", FULL, "longest = 40", "longest = 41", LATER, "%mask is too narrow for texts of .* 41 tokens"),
    ("infer-types", FULL, "longest = 40", "longest = -1", LATER, "%mask is too narrow for texts"),
    ("expand-algorithm", FULL, "width = 176", "width = 175", LATER_TYPED, "%mask is too narrow for .* 40 tokens"),
    ("infer-types", TREE, r" *kvpool @draft .*\n", "", LATER, "needs a kvpool declaration of the draft"),
    ("infer-types", CHAIN, r"output health = %\w+", "output health = %kv_target", LATER, "output health is a state"),
    # attributes and operands
    ("infer-types", CHAIN, r"\{bit = \d+\}", "{bit = 99999999999999999999}", LATER, "bit must be int from 0 to 30"),
    ("infer-types", TREE, "page = 4", "page = 0", LATER, "page must be int from 1 to 65536, got 0"),
    (
        "infer-types",
        {"num_steps": 3},
        r"(model.draft\(.*)step = 1",
        r"\1step = 0",
        LATER,
        "model.draft is node draft_0",
    ),
    ("infer-types", TREE, r"(tree.select\(.*)steps = 2", r"\1steps = 64", LATER, "tree.select: takes 192 operands"),
    (
        "expand-algorithm",
        CHAIN,
        r"logits_dtype = \"\w+\"",
        'logits_dtype = "greedy"',
        "infer-types",
        "logits is made of",
    ),
    ("expand-algorithm", CHAIN, r"axis = \"A\"", 'axis = "Z"', "infer-types", "dimension Z is not declared"),
    ("expand-algorithm", CHAIN, r'extras = ""', 'extras = "x: i32[B, ?m]"', "infer-types", "5 results|x is i32"),
    ("infer-types", CHAIN, r"output health = %\w+", "output health = %depth", LATER, "a chain has no tree.select"),
    (
        "infer-types",
        CHAIN,
        r"(?s)(\n +)(%\w+ = commit\.path.*)output health = %\w+",
        r'\1%depths = commit.path(%depth, %accept_index) : i64[B, A] loc("x":1:1)\1\2output health = %depths',
        LATER,
        "a chain has no tree.select",
    ),
    (
        "expand-algorithm",
        CHAIN,
        r"output health = %\w+",
        "output health = %kv_target",
        LATER_TYPED,
        "health is a state",
    ),
    # what a stage promises
    ("form-kernels", CHAIN, "established clustered, ", "established ", PLANS, "and the module is not clustered"),
    ("form-kernels", CHAIN, "live, ", "", PLANS, "not clustered: it is not live"),
    ("form-kernels", CHAIN, 'family = "rows"', 'family = "repair"', PLANS, "family repair, which does not exist"),
    (
        "form-kernels",
        CHAIN,
        'family = "rows"',
        'family = "compact"',
        PLANS,
        "kernel prepare_rows are nothing that compact",
    ),
    (
        "assign-layouts",
        CHAIN,
        r"(layout @tokens .*)owner = \"\w+\"",
        r'\1owner = "x"',
        PLANS,
        "not laid-out: the layout of",
    ),
    ("assign-layouts", CHAIN, r"( *layout @)health_out( .*\n)", r"\1health\2\1rest\2", PLANS, "%rest has a layout"),
    ("plan-memory", CHAIN, r"(buffer @relay.bonus .*)last = \d+", r"\1last = 0", "plan-graphs", "relay.bonus is not"),
    ("plan-memory", CHAIN, r"alignment = 256", "alignment = 0", "plan-graphs", "buffer .* is not Buffer"),
    ("plan-memory", CHAIN, r" *buffer @relay.bonus .*\n", "", "plan-graphs", "relay.bonus is not planned"),
    # passes that come too late
    ("form-kernels", CHAIN, "^", "", "bind-kv-layout", "bind-kv-layout comes before a module is kv-bound"),
    ("form-kernels", CHAIN, "^", "", "cse", "cse comes before a module is clustered"),
    ("plan-memory", CHAIN, "^", "", "plan-memory", "plan-memory comes before a module is memory-planned"),
]


@pytest.mark.parametrize(("last", "keys", "old", "new", "passes", "message"), EDITS)
def test_refused_by_name(last: str, keys: dict[str, Any], old: str, new: str, passes: str, message: str) -> None:
    text = text_after(last, keys)
    assert re.search(old, text), "nothing to change"
    messages = what_is_wrong(re.sub(old, new, text, count=1), passes)
    assert any(re.search(message, finding) for finding in messages), messages
    assert all(finding.startswith(("ir/", "type/")) for finding in messages), messages


def test_hidden_states_that_only_an_output_read_are_no_longer_captured() -> None:
    """An output that is gone leaves a forward without its hidden states, whichever pass finds out."""
    text = print_module(compile_to("select-compaction", load("STANDALONE", num_steps=2, outputs=["hidden_states"])))
    gone = re.sub(r" *output hidden_states = .*\n", "", text)
    assert gone != text
    module = take(gone, "bind-kv-layout,cse,canonicalize")
    assert {op.attrs["capture"] for op in module.find("model.target")} == {"null"}


def test_an_input_that_is_handed_out_stays() -> None:
    text = text_after("infer-types", CHAIN).replace("  output health", "  output same = %mine\n  output health")
    text = text.replace("  input ", "  input %mine : i64[B]\n  input ", 1)
    module = take(text, "prune-dead-dataflow")
    assert print_module(parse_module(print_module(module))) == print_module(module)


SLOTS = """module @m {
  established live, tree-form, typed
  dim B : request <= 4
  dim P : pool = 5
  dim C : context
  dim D : forward = 2
  dim K : branch = 2
  input %table : i32[P, C]
  input %rows : i64[B]
  input %lens : i64[B]
  phase prepare {
    %slots = kv.draft_slots(%table, %rows, %lens) {offset = 0, page = 4, room = 2} : i64[D, B, K]
  }
  output slots = %slots
}
"""


def test_slots_of_branches_that_no_forward_writes() -> None:
    (message,) = what_is_wrong(SLOTS, "bind-kv-layout")
    assert message == "ir/invalid: %slots are slots of branches, and no forward writes keys and values to them"
