"""Every code of the areas `config` and `legal` is provoked, at the right line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.compiler.support.diagnostics import CODES, Diagnostic, DiagnosticError

from .conftest import VALID, Find

STATE = "  state: {kind: GDN, heads: 4, rows: 8, columns: 16, groups: 2, kernel: 4}\n"


def edit(old: str, new: str) -> str:
    """Return the valid configuration with the first ``old`` replaced."""
    assert old in VALID
    return VALID.replace(old, new, 1)


def pointed(form: str) -> str:
    """Return the configuration of a target whose states have another form."""
    return edit("target:\n", f"target:\n  state_layers: 3\n  state_form: {form}\n")


def folds(old: str, new: str) -> str:
    """Return the configuration of a target whose states the program advances, changed."""
    changed = STATE if not old else STATE.replace(old, new)
    return edit("target:\n", f"target:\n  state_layers: 3\n  state_form: fold\n{changed}")


def tree(topk: int, nodes: int, more: str) -> str:
    """Return the valid configuration as a tree, with other keys in place of `verify`."""
    return edit("topk: 1", f"topk: {topk}").replace("tokens: 4", f"tokens: {nodes}").replace("verify: greedy", more)


def sharded(columns: int) -> str:
    """Return the valid configuration with logits sharded over four ranks, and so many columns of the draft."""
    return edit("verify: greedy", "logits: sharded\ntensor_parallel: 4") + f"  padded_vocab_size: {columns}\n"


def rotated(more: str) -> str:
    """Return the valid configuration with a rotated step, and other keys before it in place of `verify`."""
    return edit("verify: greedy", f"{more}\nstep: rotated")


def alone(options: str, **keys: str) -> str:
    """Return the valid configuration for an algorithm without a draft, with its options in lines 19 and later."""
    text = VALID[: VALID.index("draft:")].replace("EAGLE", "NGRAM")
    for key, value in keys.items():
        text = text.replace(f"{key}: ", f"{key}: {value} # ", 1)
    return f"{text}options:\n{options}"


CASES: list[tuple[str, str | bytes, int, int]] = [
    # code, text, line, column
    ("config/not-yaml", edit("[1, 8, 64]", "[1, 8"), 9, 7),
    ("config/not-yaml", edit("  hidden_size", "\thidden_size"), 13, 1),
    ("config/not-yaml", "a: 1\n---\nb: 2\n", 2, 1),
    ("config/not-yaml", "a: *nowhere\n", 1, 4),
    ("config/not-yaml", "name: 'abc\n", 1, 11),
    ("config/not-yaml", "name: a\x07b\n", 1, 8),
    ("config/not-yaml", "a: " + "[" * 3000, 1, 69),
    ("config/not-yaml", "a: &x [*x]\n", 1, 4),
    ("config/encoding", b"name: caf\xe9\n", 1, 10),
    ("config/encoding", b"name: ok\ntopk: \xff\xfe\n", 2, 7),
    ("config/not-a-mapping", "", 1, 1),
    ("config/not-a-mapping", "# nothing but a comment\n", 1, 1),
    ("config/not-a-mapping", "- 1\n", 1, 1),
    ("config/not-a-mapping", "just words\n", 1, 1),
    ("config/not-a-mapping", VALID[: VALID.index("draft:")] + "draft: small\n", 19, 8),
    ("config/duplicate-key", edit("topk: 1", "topk: 1\ntopk: 1"), 4, 1),
    ("config/unknown-key", edit("page_size", "pagesize"), 6, 1),
    ("config/unknown-key", edit("  num_layers", "  topk: 1\n  num_layers"), 14, 3),
    ("config/missing-key", edit("name: my_config", "# no name"), 2, 1),
    ("config/missing-key", edit("  vocab_size: 32000\n", ""), 12, 1),
    ("config/wrong-type", edit("topk: 1", "topk: true"), 3, 7),
    ("config/wrong-type", edit("topk: 1", "topk: 1.0"), 3, 7),
    ("config/wrong-type", edit("topk: 1", "topk: .nan"), 3, 7),
    ("config/wrong-type", edit("topk: 1", "topk: '1'"), 3, 7),
    ("config/wrong-type", edit("topk: 1", "topk:"), 3, 1),
    ("config/wrong-type", edit("topk: 1", "topk: null"), 3, 7),
    ("config/wrong-type", edit("topk: 1", "topk: !mine 1"), 3, 7),
    ("config/wrong-type", edit("topk: 1", "topk: !!int one"), 3, 7),
    ("config/wrong-type", edit("topk: 1", "topk: {a: 1}"), 3, 7),
    ("config/wrong-type", edit("topk: 1", f"topk: {'9' * 50}"), 3, 7),
    ("config/wrong-type", edit("topk: 1", "? [a, b]\n: 1"), 3, 3),
    ("config/wrong-type", edit("my_config", "12"), 1, 7),
    ("config/wrong-type", edit("[1, 8, 64]", "8"), 8, 10),
    ("config/wrong-type", edit("[1, 8, 64]", "[1, x, 64]"), 8, 14),
    ("config/wrong-type", edit("verify: greedy", "overlap: yes"), 9, 10),
    ("config/wrong-type", edit("topk: 1", "<<: 7"), 3, 5),
    ("config/wrong-type", edit("topk: 1", '"\\ud800": 1'), 3, 1),
    ("config/wrong-type", edit("my_config", '"\\ud800"'), 1, 7),
    ("config/out-of-range", edit("num_steps: 3", "num_steps: 17"), 4, 12),
    ("config/out-of-range", edit("topk: 1", "topk: -1"), 3, 7),
    ("config/out-of-range", edit("page_size: 16", "page_size: 0"), 6, 12),
    ("config/out-of-range", edit("verify: greedy", "verify: greedily"), 9, 9),
    ("config/out-of-range", edit("bfloat16", "bf16"), 18, 10),
    ("config/out-of-range", edit("[sm_90, sm_100]", "[]"), 11, 8),
    ("config/out-of-range", edit("sm_100", "sm_90"), 11, 16),
    ("config/out-of-range", edit("head_dim: 128", "head_dim: 8192\n  kv_layout: mla"), 15, 17),
    ("config/out-of-range", edit("num_kv_heads: 8", "num_kv_heads: 4096"), 16, 13),
    ("config/out-of-range", edit("verify: greedy", "draft_positions: no"), 9, 18),
    ("config/wrong-type", edit("verify: greedy", "draft_positions: false"), 9, 18),
    ("config/bad-name", edit("my_config", "my-config"), 1, 7),
    ("config/bad-name", edit("my_config", "class"), 1, 7),
    ("config/bad-name", edit("my_config", "../../etc"), 1, 7),
    ("config/bad-name", edit("my_config", '"ok\\n"'), 1, 7),
    ("config/bad-name", edit("my_config", "a" * 64), 1, 7),
    ("config/unknown-algorithm", edit("EAGLE", "EAGEL"), 2, 12),
    ("config/unknown-arch", edit("sm_100", "sm_91"), 11, 16),
    ("config/unknown-output", edit("accept_index", "accept"), 10, 11),
    ("config/buckets", edit("[1, 8, 64]", "[]"), 8, 10),
    ("config/buckets", tree(2, 5, "mask: full\ncontext_length: 64").replace("[1, 8, 64]", "[]"), 8, 10),
    ("config/buckets", edit("[1, 8, 64]", "[1, 8, 8]"), 8, 17),
    ("config/buckets", edit("[1, 8, 64]", "[0, 8]"), 8, 11),
    ("config/buckets", edit("[1, 8, 64]", "[1, 65]"), 8, 14),
    ("config/buckets", edit("64\nbuckets: [1, 8, 64]", "4"), 7, 15),
    (
        "config/model-unreadable",
        edit("topk: 1", "topk: 1").replace("  hidden_size: 4096", "  model: nowhere", 1),
        13,
        10,
    ),
    ("config/hc-mult-default", edit("  num_layers", "  hc_mult: 4\n  num_layers"), 14, 12),
    ("legal/verify", edit("verify: greedy", "verify: rejection").replace("topk: 1", "topk: 2"), 9, 9),
    ("legal/verify", edit("EAGLE", "NGRAM").replace("verify: greedy", "verify: block").split("draft:\n")[0], 9, 9),
    ("legal/verify", edit("verify: greedy", "verify_rows: lazy"), 9, 14),
    ("legal/budget", edit("verify: greedy", "budget: 4"), 9, 9),
    ("config/not-yet", edit("verify: greedy", "budget: 2\nverify: target_only"), 9, 9),
    ("legal/draft-sampling", edit("verify: greedy", "draft_sampling: coupled"), 9, 17),
    (
        "legal/draft-sampling",
        edit("verify: greedy", "draft_sampling: coupled\nverify: target_only").replace("topk: 1", "topk: 2"),
        9,
        17,
    ),
    (
        "legal/draft-sampling",
        edit("EAGLE", "NGRAM")
        .replace("verify: greedy", "draft_sampling: coupled\nverify: target_only")
        .split("draft:\n")[0],
        9,
        17,
    ),
    ("legal/sampling", edit("verify: greedy", "sampling: [top_p]"), 9, 11),
    ("legal/logprobs", edit("verify: greedy", "logprobs: processed"), 9, 11),
    ("legal/logprobs", edit("verify: greedy", "best_logprobs: 2"), 9, 16),
    (
        "legal/logprobs",
        edit("verify: greedy", "best_logprobs: 9").replace("32000", "8") + "outputs: [logprobs]\n",
        9,
        16,
    ),
    ("legal/sampling", edit("verify: greedy", "penalties: committed"), 9, 12),
    ("config/not-yet", VALID.replace("draft:\n", "draft:\n  hidden_source: aux\n"), 20, 18),
    ("config/missing-key", edit("num_layers: 32", "num_layers: 6\n  hidden_source: aux"), 12, 1),
    ("config/out-of-range", edit("  num_layers", "  aux_layers: [1, 33]\n  num_layers"), 14, 15),
    ("config/out-of-range", edit("  num_layers", "  aux_layers: [0, 2]\n  num_layers"), 14, 15),
    ("config/out-of-range", edit("  num_layers", "  aux_layers: [2, 2]\n  num_layers"), 14, 15),
    (
        "config/out-of-range",
        edit("  num_layers", "  aux_layers: [2]\n  hidden_source: collapsed\n  num_layers"),
        14,
        15,
    ),
    ("config/unknown-key", edit("  num_layers", "  num_aux_layers: 3\n  num_layers"), 14, 3),
    ("config/unknown-key", VALID.replace("draft:\n", "draft:\n  aux_layers: [1]\n"), 20, 3),
    ("config/out-of-range", edit("verify: greedy", "engine: sglong"), 9, 9),
    ("config/engine-conflict", edit("verify: greedy", "engine: sglang\noverlap: false"), 10, 10),
    ("config/engine-unsupported", edit("sm_100", "gfx942").replace("verify: greedy", "engine: sglang"), 11, 16),
    ("legal/chain-width", edit("num_draft_tokens: 4", "num_draft_tokens: 5"), 5, 19),
    ("legal/tree-size", edit("topk: 1", "topk: 2").replace("tokens: 4", "tokens: 12"), 5, 19),
    ("legal/tree-size", edit("topk: 1", "topk: 2").replace("tokens: 4", "tokens: 1"), 5, 19),
    ("legal/tree-size", edit("topk: 1", "topk: 8").replace("  vocab_size: 32000", "  vocab_size: 7"), 3, 7),
    ("config/out-of-range", edit("topk: 1", "topk: 17"), 3, 7),
    ("config/out-of-range", edit("num_draft_tokens: 4", "num_draft_tokens: 513"), 5, 19),
    ("config/out-of-range", edit("verify: greedy", "mask: triangle"), 9, 7),
    ("config/out-of-range", edit("  num_layers", "  kv_dtype: int8\n  num_layers"), 14, 13),
    ("config/missing-key", edit("topk: 1", "topk: 2").replace("num_draft_tokens: 4\n", ""), 3, 7),
    ("config/missing-key", edit("accept_index", "accept_index, routed_experts"), 10, 25),
    ("config/missing-key", edit("accept_index", "indexer_topk"), 10, 11),
    ("config/missing-key", tree(8, 64, "mask: full"), 9, 7),
    ("legal/mask", tree(8, 65, "mask: bitpacked"), 9, 7),
    ("legal/state-form", edit("target:\n", "target:\n  state_form: select\n"), 13, 15),
    ("legal/state-form", folds("groups: 2", "groups: 3"), 15, 10),
    ("config/missing-key", folds("kind: GDN, ", ""), 15, 10),
    ("config/missing-key", folds(STATE, ""), 14, 15),
    ("config/out-of-range", folds("GDN", "gdn"), 15, 17),
    ("config/out-of-range", folds("kernel: 4", "kernel: 1"), 15, 73),
    ("config/wrong-type", folds("heads: 4", "heads: true"), 15, 29),
    ("config/unknown-key", folds("heads: 4", "heads: 4, head: 4"), 15, 32),
    ("config/not-a-mapping", folds("{kind: GDN, heads: 4, rows: 8, columns: 16, groups: 2, kernel: 4}", "7"), 15, 10),
    ("config/engine-unsupported", folds("", "").replace("verify: greedy", "engine: sglang"), 14, 15),
    ("config/engine-unsupported", folds("", "").replace("verify: greedy", "engine: vllm"), 14, 15),
    ("config/engine-unsupported", pointed("point").replace("verify: greedy", "engine: sglang"), 14, 15),
    ("config/engine-unsupported", pointed("auto").replace("verify: greedy", "engine: vllm"), 14, 15),
    ("legal/state-form", pointed("point").replace("verify: greedy", "step: rotated"), 14, 15),
    ("config/unknown-key", VALID.replace("draft:\n", f"draft:\n{STATE}"), 20, 3),
    ("legal/head", VALID + "  head: int8\n  logits_dtype: bfloat16\n", 27, 17),
    ("legal/head", edit("sm_100", "sm_86") + "  head: fp8\n", 11, 16),
    ("legal/mask", tree(8, 64, "mask: full\ncontext_length: 1048576"), 10, 17),
    ("legal/chain-only", edit("EAGLE", "DFLASH2").replace("topk: 1", "topk: 2"), 3, 7),
    ("legal/chain-only", edit("EAGLE", "MULTI_LAYER_EAGLE").replace("topk: 1", "topk: 16"), 3, 7),
    ("legal/no-draft", edit("EAGLE", "ngram"), 19, 1),
    ("config/missing-key", VALID[: VALID.index("draft:")], 1, 1),
    ("config/missing-key", VALID[: VALID.index("draft:")].replace("EAGLE", "FROZEN_KV_MTP"), 1, 1),
    ("legal/tree-size", alone("  window: 64", topk="2", num_draft_tokens="8"), 5, 19),
    ("config/unknown-key", edit("verify: greedy", "options:\n  window: 64"), 10, 3),
    ("config/unknown-key", alone("  windows: 64"), 20, 3),
    ("config/wrong-type", alone("  longest: 4\n  window: '64'"), 21, 11),
    ("config/wrong-type", alone("  corpus: 7"), 20, 11),
    ("config/wrong-type", alone("  corpus:"), 20, 3),
    ("config/not-a-mapping", edit("verify: greedy", "options: 4"), 9, 10),
    ("config/out-of-range", alone("  window: 63"), 20, 11),
    ("config/out-of-range", alone("  window: 1048577"), 20, 11),
    ("config/out-of-range", alone("  longest: 33"), 20, 12),
    ("config/out-of-range", alone("  corpus: ''"), 20, 11),
    ("config/duplicate-key", alone("  window: 64\n  window: 64"), 21, 3),
    ("config/out-of-range", edit("verify: greedy", "tensor_parallel: 3"), 9, 18),
    ("config/out-of-range", edit("verify: greedy", "tensor_parallel: 32"), 9, 18),
    ("config/not-yet", edit("verify: greedy", "tables: {slots: block_table}"), 9, 17),
    ("config/not-yet", edit("verify: greedy", "tables: {padding_slot: -1}"), 9, 24),
    ("config/not-yet", edit("verify: greedy", "tables: {carry: {bonus: {}}}"), 9, 17),
    ("config/not-a-mapping", rotated("tables: {carry: {bonus: engine}}"), 9, 25),
    ("config/out-of-range", rotated("tables: {carry: {bonus: {dtype: int8}}}"), 9, 33),
    ("config/out-of-range", edit("page_size: 16", "page_size: 65537"), 6, 12),
    ("config/out-of-range", rotated("tables: {slots: block_table}").replace("size: 16", "size: 65552"), 6, 12),
    ("config/unknown-key", rotated("tables: {carry: {bonus: {stride: 8}}}"), 9, 26),
    (
        "config/not-yet",
        rotated("verify: rejection").replace("steps: 3", "steps: [1, 3]").replace("num_draft_tokens", "# "),
        9,
        9,
    ),
    ("config/not-yet", rotated("engine: sglang"), 10, 7),
    ("config/not-yet", rotated("verify: target_only\nsampling: [top_k, grammar]"), 10, 19),
    ("config/not-yet", rotated("logits: sharded\ntensor_parallel: 4"), 9, 9),
    ("config/not-yet", rotated("verify: greedy").replace("[accept_index]", "[hidden_states]"), 11, 11),
    (
        "config/not-yet",
        rotated("verify: greedy").replace("steps: 3", "steps: [1, 3]").replace("num_draft_tokens", "# "),
        4,
        12,
    ),
    ("config/not-yet", tree(2, 6, "step: rotated"), 3, 7),
    ("config/not-yet", edit("verify: greedy", "verify: target_only\nlogits: sharded"), 9, 9),
    ("config/not-yet", edit("[accept_index]", "[logprobs]\nbest_logprobs: 2\nlogits: sharded"), 11, 16),
    ("config/not-yet", edit("verify: greedy", "verify: rejection\ntensor_parallel: 2") + "  head: int8\n", 27, 9),
    (
        "config/not-yet",
        edit("verify: greedy", "draft_sampling: coupled\nverify: target_only\ntensor_parallel: 2") + "  head: int8\n",
        28,
        9,
    ),
    ("legal/shards", sharded(32002), 27, 22),
    ("legal/shards", sharded(32002).replace("logits: sharded\n", "") + "  head: int8\n", 26, 22),
    ("legal/shards", rotated("verify: greedy").replace("\ndraft:", "\n  padded_vocab_size: 31999\ndraft:"), 20, 22),
    ("legal/shards", rotated("verify: greedy") + "  padded_vocab_size: 32064\n", 27, 22),
    ("legal/shards", sharded(31996), 27, 22),
    ("legal/shards", sharded(32000).replace("logits: sharded", "logits: gathered"), 27, 22),
    ("legal/shards", sharded(32000).replace("vocab_size: 32000", "vocab_size: 31999", 1), 18, 15),
]

ELSEWHERE = {
    "config/unreadable",
    "config/engine-argument",
    "config/model-contradiction",
    "config/model-override",
    "config/more-state",
    "config/no-gpu",
    "config/no-kv",
    "config/unknown-architecture",
    "config/unknown-draft",
}
"""Codes with tests of their own: below, in test_models.py, test_architectures.py, test_archs.py, test_layers.py,
test_draft_kinds.py, and in tests/unit/engines/command_line/test_sglang_unreadable.py."""

ALGORITHMS_OWN = {"legal/vocab-mismatch", "legal/modules", "legal/kv-mismatch", "legal/shapes"}
"""Codes of rules that algorithms bring; tests/unit/compiler/algorithms provokes them."""


@pytest.mark.parametrize("key", ["slots: block_table", "padding_slot: -1", "carry: {bonus: {}}"])
@pytest.mark.parametrize("inside", ["", "draft"])
def test_keys_of_tables_written_elsewhere(find: Find, key: str, inside: str) -> None:
    """One finding, which says where the key belongs: at the top, where it stood before, and inside a model."""
    text = edit("draft:", f"draft:\n  {key}") if inside else rotated(key)
    (found,) = find(text)
    assert found.code == "config/unknown-key"
    assert found.hint == f"'{key.partition(':')[0]}' belongs inside tables:"


def test_keys_of_others_inside_tables(find: Find) -> None:
    hints = [found.hint for found in find(rotated("tables: {page_size: 4, dtype: int32, slot: block_table}"))]
    wanted = [
        "'page_size' belongs at the top level",
        "'dtype' belongs inside target: or draft:",
        "did you mean 'slots'?",
    ]
    assert hints == wanted


def test_pages_have_any_length(find: Find) -> None:
    """A chain has, a tree, and a program that looks slots up in blocks."""
    for text in (VALID, tree(4, 16, "mask: none"), rotated("tables: {slots: block_table}")):
        for page in (1, 3, 16, 48, 80, 528, 1024, 2096, 65536):
            assert not find(text.replace("page_size: 16", f"page_size: {page}")), page
        for page in (0, 65537):
            (found,) = find(text.replace("page_size: 16", f"page_size: {page}"))
            assert found.code == "config/out-of-range"


PASSES_OWN = {"config/unknown-field", "legal/carry"}
"""Codes of rules about what only the passes know; tests/filecheck/place-carry provokes them."""


def for_an_engine(text: str | bytes) -> list[pytest.MarkDecorator]:
    """Return the mark of a text that is for a serving engine."""
    return [pytest.mark.engines] if isinstance(text, str) and "engine: sglang" in text else []


@pytest.mark.parametrize(
    ("code", "text", "line", "column"), [pytest.param(*case, marks=for_an_engine(case[1])) for case in CASES]
)
def test_code_and_place(find: Find, code: str, text: str | bytes, line: int, column: int) -> None:
    found = [(d.code, d.location.line, d.location.column) for d in find(text) if d.location]
    assert (code, line, column) in found


def test_every_code_has_a_case() -> None:
    owned = {code for code in CODES if code.startswith(("config/", "legal/"))}
    assert owned == {case[0] for case in CASES} | ELSEWHERE | ALGORITHMS_OWN | PASSES_OWN


@pytest.mark.parametrize("name", ["missing.yaml", ".", "nul\0byte.yaml", "big.yaml"])
def test_unreadable(tmp_path: Path, name: str) -> None:
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 17) + b"\n")
    with pytest.raises(DiagnosticError) as raised:
        load_config(tmp_path / name, names(), needs)
    assert [d.code for d in raised.value.diagnostics] == ["config/unreadable"]


def test_one_mistake_is_one_finding(find: Find) -> None:
    """A wrong value does not bring rules about it, or its absence, along."""
    for old, new in [
        ("topk: 1", "topk: x"),
        ("num_steps: 3", "num_steps: null"),
        ("[1, 8, 64]", "[1, x]"),
        ("  vocab_size: 32000", "  vocab_size: x"),
        ("name: my_config", "name: null"),
    ]:
        assert [d.code for d in find(edit(old, new))] == ["config/wrong-type"], new


def test_one_mistake_about_the_algorithm_is_one_finding(find: Find) -> None:
    """Whatever does not go with an algorithm is told once; and nothing, if it is not known which one is meant."""
    bare = VALID[: VALID.index("draft:")]
    for text, code in [
        (edit("EAGLE", "DFLASH2").replace("topk: 1", "topk: 4"), "legal/chain-only"),
        (edit("EAGLE", "DFLASH2").replace("topk: 1", "topk: 4\nmask: full"), "legal/chain-only"),
        (edit("EAGLE", "NGRAM"), "legal/no-draft"),
        (bare, "config/missing-key"),
        (f"{bare}draft: null\n", "config/wrong-type"),
        (f"{bare}options: {{window: 64}}\n".replace("EAGLE", "NGRAMM"), "config/unknown-algorithm"),
        (alone("  window: 0"), "config/out-of-range"),
        (edit("verify: greedy", "options: [1]"), "config/not-a-mapping"),
    ]:
        assert [d.code for d in find(text)] == [code], text


def test_options_are_those_of_the_algorithm(find: Find) -> None:
    (close,) = find(alone("  windows: 64"))
    assert (close.message, close.hint) == ("unknown key 'windows'", "did you mean 'window'?")
    (far,) = find(alone("  xyz: 64"))
    assert far.hint == "keys here: window, longest, shortest, beyond, corpus"
    (none,) = find(edit("verify: greedy", "options: {window: 64}"))
    assert none.hint == "the algorithm has no options"
    (low,) = find(alone("  window: 63"))
    assert low.message == "'options.window' must be at least 64, and this is 63"
    every = alone("  window: x\n  longest: 0\n  shorter: 1\n  corpus: [a]")
    assert [(d.code, d.location and d.location.line) for d in find(every)] == [
        ("config/wrong-type", 20),
        ("config/out-of-range", 21),
        ("config/unknown-key", 22),
        ("config/wrong-type", 23),
    ]


def test_what_does_not_go_with_the_algorithm_shows_both_lines(find: Find) -> None:
    for text in (edit("EAGLE", "DFLASH2").replace("topk: 1", "topk: 2"), edit("EAGLE", "NGRAM")):
        found = only(find(text))
        assert [str(note.location) for note in found.notes] == ["c.yaml:2:12"]


def test_all_errors_in_one_run(find: Find) -> None:
    text = (
        edit("my_config", "my-config")
        .replace("page_size", "pagesize")
        .replace("topk: 1", "topk: 1.5")
        .replace("[1, 8, 64]", "[8, 1]")
        .replace("sm_90", "sm_9")
        .replace("dtype: bfloat16\ndraft", "dtype: bfloat\ndraft")
    )
    found = [(d.code, d.location.line if d.location else 0) for d in find(text)]
    assert found == [
        ("config/bad-name", 1),
        ("config/wrong-type", 3),
        ("config/unknown-key", 6),
        ("config/buckets", 8),
        ("config/unknown-arch", 11),
        ("config/out-of-range", 18),
    ]


def only(found: tuple[Diagnostic, ...]) -> Diagnostic:
    """Return the one finding."""
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("page_size", "pagesize", "did you mean 'page_size'?"),
        ("page_size: 16", "hidden_size: 16", "'hidden_size' belongs inside target: or draft:"),
        ("  num_layers", "  topk: 1\n  num_layers", "'topk' belongs at the top level"),
        ("my_config", "My-Config", "write 'my_config'"),
        ("EAGLE", "standalon", "did you mean 'STANDALONE'?"),
        ("bfloat16", "bf16", "did you mean 'bfloat16'?"),
        ("topk: 1", "topk: 1.0", "write 1"),
        ("topk: 1", "topk: '1'", "write 1 without quotes"),
        ("[1, 8, 64]", "8", "write [8]"),
        ("verify: greedy", "overlap: no", "YAML 1.2 spells it false"),
        ("num_draft_tokens: 4", "num_draft_tokens: 5", "write num_draft_tokens: 4, or leave the key out"),
        ("[1, 8, 64]", "[8, 1, 8]", "write [1, 8]"),
        ("  hidden_size", "\thidden_size", "indent with blanks; YAML does not allow tabs there"),
    ],
)
def test_hints(find: Find, old: str, new: str, hint: str) -> None:
    assert find(edit(old, new))[0].hint == hint


def test_trees_of_every_legal_size(find: Find) -> None:
    """From two nodes to all that can be drafted, with any mask that fits them."""
    for topk, most in ((2, 11), (4, 37), (8, 137)):
        for nodes in (2, most):
            assert find(tree(topk, nodes, "mask: none")) == ()
        (found,) = find(tree(topk, most + 1, "mask: none"))
        assert found.message == f"a tree with topk {topk} and num_steps 3 has 2 to {most} nodes, and not {most + 1}"
    for more in ("mask: qlen", "mask: bitpacked", "mask: full\ncontext_length: 4096", "mask: slots"):
        assert find(tree(8, 64, more)) == ()
    assert find(edit("verify: greedy", "mask: full")) == (), "a chain has no mask, whatever is written"


def test_outputs_that_the_target_hands_over_need_their_size(find: Find) -> None:
    every = "accept_index, hidden_states, logprobs, routed_experts, indexer_topk"
    sized = edit("  num_layers", "  experts_per_token: 8\n  index_topk: 64\n  num_layers")
    assert find(sized.replace("accept_index", every)) == ()
    found = find(edit("accept_index", every))
    assert [d.hint for d in found] == [f"add '{key}:' inside target:" for key in ("experts_per_token", "index_topk")]


def test_notes_show_the_other_place(find: Find) -> None:
    chain = only(find(edit("num_draft_tokens: 4", "num_draft_tokens: 5")))
    assert [str(note.location) for note in chain.notes] == ["c.yaml:4:12"]
    twice = only(find(edit("topk: 1", "topk: 1\ntopk: 2")))
    assert [str(note.location) for note in twice.notes] == ["c.yaml:3:1"]


def test_missing_keys_of_a_block_are_one_finding(find: Find) -> None:
    found = only(find(edit("  num_layers: 32\n  num_kv_heads: 8\n", "")))
    assert found.message == "'target' lacks num_layers, num_kv_heads"
