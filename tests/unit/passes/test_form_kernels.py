"""Which launch computes which op, on small modules and over configurations."""

from __future__ import annotations

from programs import compile_to, load, run_on

from specc.ir.core import Module
from specc.ir.nodes import is_external
from specc.ir.plan import Kernel, Reference
from specc.passes.form_kernels import MOST_ELEMENTS, FormKernels

INVARIANTS = "established compacted, kv-bound, live, tree-form, typed, verify-selected"


def formed(body: str, *, v: int = 64) -> Module:
    """A module of some lines after the pass."""
    top = f"  {INVARIANTS}\n  dim B : request <= 4\n  dim K : branch = 1\n  dim A : path = 3\n  dim V : vocab = {v}\n"
    return run_on(f"module @program {{\n{top}{body}}}\n", FormKernels())[0]


def launches(module: Module) -> dict[str, list[str]]:
    """The results, or without one the field, of every launch's ops, by its name."""
    found: dict[str, list[str]] = {node.name: [] for node in module.decls_of(Kernel | Reference)}
    for op in module.ops():
        if not is_external(op):
            found[str(op.attrs["kernel"])].append(op.results[0].name if op.results else f"@{op.attrs['field']}")
    return found


def test_an_op_joins_the_first_launch_that_can_compute_it() -> None:
    """Not the one of its own phase, nor the last: one less launch waits for it."""
    module = formed("""
  input %rows : i64[B]
  input %lens : i64[B]
  input %x : f32[B, V]
  input %y : f32[B, V]
  phase prepare {
    %positions = kv.positions(%lens) {axis = "K", offset = 0, stride = 0} : i64[B, K]
  }
  phase draft {
    %a, %bad_a = vocab.argmax(%x, %rows) {dtype = "i32", keep = ""} : i32[B], i1[B]
    %b, %bad_b = vocab.argmax(%y, %rows) {dtype = "i32", keep = ""} : i32[B], i1[B]
  }
  phase commit {
    %health = health.clear(%rows) : i32[B]
    %later = health.raise(%health, %bad_a) {bit = 0} : i32[B]
    %further = kv.advance(%positions) : i64[B, K]
    %last = health.raise(%later, %bad_b) {bit = 1} : i32[B]
  }
  output a = %a
  output b = %b
  output further = %further
  output health = %last
""")
    first = ["positions", "a", "health", "later", "further"]
    assert launches(module) == {"draft_argmax_0": first, "draft_argmax_1": ["b", "last"]}


def test_a_launch_begins_where_a_reduction_waits_for_rows() -> None:
    """What logits' rows come from is a launch before; what follows from the logits is not."""
    module = formed("""
  dim P : pool = 9
  input %pool : i64[B]
  input %x : f32[B, V]
  carry @rows : i64[B]
  phase prepare {
    %rows = carry.load(%pool) {field = "rows"} : i64[B]
    %health = health.clear(%rows) : i32[B]
  }
  phase verify {
    %a, %bad = vocab.argmax(%x, %rows) {dtype = "i32", keep = ""} : i32[B], i1[B]
    %raised = health.raise(%health, %bad) {bit = 1} : i32[B]
    carry.store(%pool, %rows) {field = "rows"}
  }
  output a = %a
  output health = %raised
""")
    assert launches(module) == {"prepare_rows": ["rows", "health"], "verify_argmax": ["a", "raised", "@rows"]}


def test_ops_that_a_reduction_waits_for_are_one_launch_before_it() -> None:
    """All that can be known by then is, so that nothing else waits; a log-probability belongs to its argmax."""
    module = compile_to("form-kernels", load(outputs=["logprobs"]))
    found = launches(module)
    assert list(found) == [
        *("prefill_argmax_0", "prefill_argmax_1", "prepare_rows"),
        *("draft_argmax_0", "draft_argmax_1", "verify_argmax", "extend_argmax"),
    ]
    assert found["draft_argmax_1"] == ["draft_token_1", "tokens_3", "health_draft_1"]
    assert "node_logprobs" in found["verify_argmax"]


def test_kernels_do_not_wait_for_each_other() -> None:
    """Grouped by letters these ops would be two kernels that each wait for the other."""
    module = formed("""
  input %first : i64[B, K]
  input %second : i64[B, K]
  phase prepare {
    %a1 = kv.advance(%first) : i64[B, K]
    %b1 = kv.advance(%second) : i64[B, K]
    %a2 = kv.advance(%b1) : i64[B, K]
    %b2 = kv.advance(%a1) : i64[B, K]
  }
  output a = %a2
  output b = %b2
""")
    assert launches(module) == {"prepare_rows": ["a1", "b1", "a2", "b2"]}


ROWS_OF_THE_LAST = """
  dim N : node = 5
  input %rows : i64[B]
  input %index : i32[B, A]
  input %x : f32[B, N, 200]
  input %y : f32[B, N, 200]
  phase commit {
    %px = commit.compact(%x, %index) : f32[B, A, 200]
    %py = commit.compact(%y, %{second}) : f32[B, A, 200]
  }
  output x = %px
  output y = %py
"""


def test_a_family_that_composes_nothing_takes_what_it_can_at_once() -> None:
    """Copies along one path are one launch; along two paths they are two, numbered."""
    both = formed(ROWS_OF_THE_LAST.replace("{second}", "index"))
    assert launches(both) == {"compact": ["px", "py"]}
    apart = ROWS_OF_THE_LAST.replace("{second}", "other").replace(
        "  input %x", "  input %other : i32[B, A]\n  input %x"
    )
    assert launches(formed(apart)) == {"compact_0": ["px"], "compact_1": ["py"]}


def test_a_cluster_that_waits_for_itself_is_not_formed() -> None:
    """Rows of one path are copied together, but not if one copy is made of another's result."""
    module = formed("""
  dim N : node = 5
  input %index : i32[B, A]
  input %lens : i32[B]
  input %x : f32[B, N, 200]
  phase commit {
    %first = commit.last(%x, %index, %lens) : f32[B, 200]
    %copies = tree.repeat(%first) : f32[B, K, 200]
    %second = commit.last(%copies, %index, %lens) : f32[B, 200]
  }
  output x = %second
""")
    assert launches(module) == {"stash_0": ["first"], "commit_rows": ["copies"], "stash_1": ["second"]}


def test_a_launch_takes_no_more_blocks_than_its_registers_hold() -> None:
    width = 512
    count = MOST_ELEMENTS // width + 1
    lines = [
        f'    %p{n} = kv.positions(%lens) {{axis = "W", offset = {n}, stride = 1}} : i64[B, W]' for n in range(count)
    ]
    outputs = [f"  output p{n} = %p{n}" for n in range(count)]
    top = [f"  dim W : path = {width}", "  input %lens : i64[B]", "  phase prepare {"]
    found = launches(formed("\n".join([*top, *lines, "  }", *outputs, ""])))
    assert {name: len(ops) for name, ops in found.items()} == {"prepare_rows_0": count - 1, "prepare_rows_1": 1}


def test_an_op_that_nothing_can_compute_runs_as_its_reference() -> None:
    """A log-probability of tokens that no argmax of these logits gave. What reads it is a launch again."""
    module = formed("""
  dim P : pool = 9
  input %rows : i64[B]
  input %index : i32[B]
  input %x : f32[B, V]
  carry @p : f32[B]
  phase prepare {
    %old = carry.load(%rows) {field = "p"} : f32[B]
  }
  phase verify {
    %p = vocab.logprob(%x, %rows, %index) : f32[B]
    carry.store(%rows, %p) {field = "p"}
  }
  output old = %old
""")
    (reference,) = module.decls_of(Reference)
    assert (reference.name, reference.phase) == ("torch_vocab_logprob", "verify")
    assert launches(module) == {"prepare_rows": ["old"], "torch_vocab_logprob": ["p"], "verify_rows": ["@p"]}
