"""Where launches begin, and what families that compose nothing take."""

from __future__ import annotations

from programs import run_on

from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Kernel
from specc.compiler.ir.nodes import is_external
from specc.compiler.passes.form_kernels import FormKernels
from specc.compiler.passes.invariants import check_now

INVARIANTS = "established compacted, kv-bound, live, tree-form, typed, verify-selected"


def formed(body: str, *, v: int = 64) -> Module:
    """A module of some lines after the pass."""
    top = f"  {INVARIANTS}\n  dim B : request <= 4\n  dim K : branch = 1\n  dim A : path = 3\n  dim V : vocab = {v}\n"
    return run_on(f"module @program {{\n{top}{body}}}\n", FormKernels())[0]


def launches(module: Module) -> dict[str, list[str]]:
    """The results, or without one the field, of every launch's ops, by its name."""
    results: dict[str, list[str]] = {node.name: [] for node in module.decls_of(Kernel)}
    for op in module.ops():
        if not is_external(op):
            results[str(op.attrs["kernel"])].append(op.results[0].name if op.results else f"@{op.attrs['field']}")
    return results


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


def test_a_sum_comes_with_the_reduction_that_has_its_scales() -> None:
    """Of two draws of the same changed logits, the mass by the scales of one: no change is left for nobody."""
    module = formed("""
  input %rows : i64[B]
  input %x : f32[B, V]
  input %heat : f32[B]
  input %one : f32[B]
  input %other : f32[B]
  input %keys : i64[B]
  phase verify {
    %scaled = sample.scale(%x, %heat) : f32[B, V]
    %first, %bad_first = sample.draw(%scaled, %rows, %keys, %one) {dtype = "i64", keep = ""} : i64[B], i1[B]
    %second, %bad_second = sample.draw(%scaled, %rows, %keys, %other) {dtype = "i64", keep = ""} : i64[B], i1[B]
    %mass = sample.mass(%scaled, %rows, %other, %first) {ahead = 0, keep = ""} : f32[B, 3]
  }
  output first = %first
  output second = %second
  output mass = %mass
  output bad_first = %bad_first
  output bad_second = %bad_second
""")
    check_now(module)
    changes = [op for op in module.ops() if op.opcode == "sample.scale"]
    assert len(changes) == 2
    assert {op.attrs["kernel"] for op in changes} == set(launches(module)) == {"verify_draw_0", "verify_draw_1"}
    assert launches(module)["verify_draw_1"][1:] == ["second", "mass"]


INTERLOCKED = """
  dim N : node = 5
  input %p : i32[B, A]
  input %q : i32[B, A]
  input %lens : i32[B]
  input %x : f32[B, N, 200]
  input %y : f32[B, N, 200]
  phase commit {
    %x1 = commit.last(%x, %p, %lens) : f32[B, 200]
    %y1 = commit.last(%y, %q, %lens) : f32[B, 200]
    %xs = tree.repeat(%x1) : f32[B, K, 200]
    %ys = tree.repeat(%y1) : f32[B, K, 200]
    %x2 = commit.last(%ys, %p, %lens) : f32[B, 200]
    %y2 = commit.last(%xs, %q, %lens) : f32[B, 200]
  }
  output x = %x2
  output y = %y2
"""


def test_clusters_that_wait_for_each_other_are_not_both_formed() -> None:
    """Each of two could be a launch, and not both: the second path's rows are copied one by one."""
    module = formed(INTERLOCKED)
    check_now(module)
    stashes = [ops for name, ops in launches(module).items() if name.startswith("stash")]
    assert sorted(stashes) == [["x1", "x2"], ["y1"], ["y2"]] or sorted(stashes) == [["x1"], ["x2"], ["y1", "y2"]]


def test_a_cluster_does_not_wait_for_itself_by_way_of_what_is_carried() -> None:
    """The second copy is made of what the first has stored: nothing but the field is between them."""
    module = formed("""
  dim N : node = 5
  dim P : pool = 9
  input %index : i32[B, A]
  input %rows : i64[B]
  input %lens : i32[B]
  input %x : f32[B, N, 200]
  carry @kept : f32[B, 200]
  phase commit {
    %first = commit.last(%x, %index, %lens) : f32[B, 200]
    carry.store(%rows, %first) {field = "kept"}
    %again = carry.load(%rows) {field = "kept"} : f32[B, 200]
    %copies = tree.repeat(%again) : f32[B, K, 200]
    %second = commit.last(%copies, %index, %lens) : f32[B, 200]
  }
  output x = %second
""")
    check_now(module)
    launched = {name: set(ops) for name, ops in launches(module).items()}
    assert not any({"first", "second"} <= ops for ops in launched.values())
    assert not any({"@kept", "again"} <= ops for ops in launched.values())


def test_no_launch_loads_what_it_has_stored() -> None:
    """A launch stores last: what is loaded behind that is loaded by another."""
    module = formed("""
  dim P : pool = 9
  input %rows : i64[B]
  input %lens : i64[B]
  carry @kept : i64[B]
  phase prepare {
    %old = carry.load(%rows) {field = "kept"} : i64[B]
    carry.store(%rows, %lens) {field = "kept"}
    %new = carry.load(%rows) {field = "kept"} : i64[B]
  }
  output old = %old
  output new = %new
""")
    assert launches(module) == {"prepare_rows_0": ["old", "@kept"], "prepare_rows_1": ["new"]}


TWO_SCORES = """
  input %rows : i64[B]
  input %x : f32[B, V]
  input %token : i32[B]
  phase verify {
    %best, %probabilities = vocab.best(%x, %rows) {count = 2} : i32[B, 2], f32[B, 2]
    %logprob = vocab.logprob(%x, %rows, %token) : f32[B]
  }
  output best = %best
  output probabilities = %probabilities
  output logprob = %logprob
"""


def test_scores_of_one_row_are_one_launch_in_either_order() -> None:
    module = formed(TWO_SCORES)
    check_now(module)
    assert launches(module) == {"score": ["best", "logprob"]}


SUM = """
  input %rows : i64[B]
  input %x : f32[B, V]
  input %y : f32[B, V]
  input %heat : f32[B]
  input %keys : i64[B]
  phase verify {
    %scaled = sample.scale(%x, %heat) : f32[B, V]
    %drawn, %bad_drawn = sample.draw(%scaled, %rows, %keys, %heat) {dtype = "i64", keep = ""} : i64[B], i1[B]
    ENTRY
    %mass = sample.mass(%scaled, %rows, %heat, %entry) {ahead = 0, keep = ""} : f32[B, 3]
  }
  output drawn = %drawn
  output bad = %bad_drawn
  output mass = %mass
"""


def test_a_sum_is_made_besides_once_all_that_it_reads_is_there() -> None:
    """A token that another reduction finds later is found before the launch of the draw that sums for it."""
    entry = '%entry, %bad_entry = vocab.argmax(%y, %rows) {dtype = "i64", keep = ""} : i64[B], i1[B]'
    module = formed(SUM.replace("ENTRY", entry) + "  output bad_entry = %bad_entry\n")
    check_now(module)
    assert launches(module) == {"verify_argmax": ["entry"], "verify_draw": ["scaled", "drawn", "mass"]}


def test_a_sum_that_waits_for_its_draw_has_changed_logits_of_its_own() -> None:
    """What torch sums then it also changes; the draw keeps the change that it scans with."""
    entry = '%half = carry.convert(%drawn) {dtype = "i32"} : i32[B]\n'
    entry += '    %entry = carry.convert(%half) {dtype = "i64"} : i64[B]'
    module = formed(SUM.replace("ENTRY", entry))
    check_now(module)
    of_draw = [op.opcode for op in module.ops() if op.attrs["kernel"] == "verify_draw"]
    assert of_draw == ["sample.scale", "sample.draw", "carry.convert", "carry.convert"]
    (mass,) = module.find("sample.mass")
    (change,) = [op for op in module.find("sample.scale") if op.attrs["kernel"] != "verify_draw"]
    assert change.attrs["kernel"] == mass.attrs["kernel"] == "torch_sample_mass"


def test_a_reduction_does_not_wait_for_itself_by_way_of_a_table_that_it_reads_in_place() -> None:
    """The noise comes from the table's new rows: torch adds the old ones, which the draw cannot read any more."""
    module = formed("""
  dim P : pool = 9
  input %rows : i64[B]
  input %x : f32[B, V]
  input %new : f32[B, V]
  input %heat : f32[B]
  carry @bias : f32[B, V]
  phase verify {
    %old = carry.load(%rows) {field = "bias"} : f32[B, V]
    %biased = sample.bias(%x, %old) : f32[B, V]
    carry.store(%rows, %new) {field = "bias"}
    %again = carry.load(%rows) {field = "bias"} : f32[B, V]
    %keys, %bad_keys = vocab.argmax(%again, %rows) {dtype = "i64", keep = ""} : i64[B], i1[B]
    %drawn, %bad_drawn = sample.draw(%biased, %rows, %keys, %heat) {dtype = "i64", keep = ""} : i64[B], i1[B]
  }
  output drawn = %drawn
  output bad_keys = %bad_keys
  output bad_drawn = %bad_drawn
""")
    check_now(module)
    kernels = {op.opcode: op.attrs["kernel"] for op in module.find("sample.bias", "vocab.argmax", "sample.draw")}
    assert list(kernels.values()) == ["torch_sample_bias", "verify_argmax", "verify_draw"]
