"""Loading: defaults, derived values, places, YAML's own features, examples."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from ruamel.yaml.scanner import RoundTripScanner

from specc.compiler.algorithms import names, needs
from specc.compiler.config import Needs, load_config, load_text
from specc.compiler.support.diagnostics import DiagnosticError

from .conftest import VALID, Load

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").glob("*.yaml"))

SHORT = """\
name: short
algorithm: standalone
target: &sizes
  hidden_size: 256
  num_layers: 4
  num_kv_heads: 2
  head_dim: 64
  vocab_size: 2048
  dtype: float32
draft:
  <<: *sizes
  hidden_size: 128
"""


def test_defaults(load: Load) -> None:
    config = load(SHORT).config
    assert (config.file.topk, config.num_steps, config.num_nodes, config.file.page_size) == (1, 3, 4, 1)
    assert (config.file.buckets, config.file.outputs, config.max_requests) == ([1, 2, 4, 8], [], 8)
    assert config.file.verify == "greedy"
    assert (config.file.overlap, config.file.disaggregation, config.archs) == (True, False, ("sm_90",))
    assert (config.file.draft_positions, config.target.kv_layout, config.target.hc_mult) == ("auto", "mha", 1)
    assert (config.target.hidden_source, config.target.model) == ("collapsed", None)
    assert (config.file.mask, config.mask_width, config.file.context_length) == ("qlen", 0, None)
    target = config.target
    assert (target.kv_dtype, target.experts_per_token, target.index_topk) == ("float32", None, None)


def test_derived(load: Load) -> None:
    config = load(SHORT).config
    assert (config.algorithm, config.chain, config.num_nodes, config.path_slots) == ("STANDALONE", True, 4, 4)
    assert (config.pool_rows, config.max_batch) == (9, 8)
    assert (config.target.spec_width, config.draft.spec_width) == (256, 128)


@pytest.mark.parametrize(
    ("mask", "nodes", "width"),
    [
        ("qlen", 37, 0),
        ("none", 37, 0),
        ("slots", 37, 0),
        ("bitpacked", 2, 1),
        ("bitpacked", 8, 1),
        ("bitpacked", 9, 2),
        ("bitpacked", 17, 4),
        ("bitpacked", 33, 8),
        ("full\ncontext_length: 1000", 37, 37 * 1037),
    ],
)
def test_masks(load: Load, mask: str, nodes: int, width: int) -> None:
    """Bytes of a node's word, and entries of a request in the flat mask."""
    config = load(f"{SHORT}topk: 4\nnum_draft_tokens: {nodes}\nmask: {mask}\n").config
    assert (config.chain, config.num_nodes, config.path_slots, config.mask_width) == (False, nodes, 4, width)


@pytest.mark.parametrize(
    ("written", "size"),
    [("", 4), ("kv_dtype: float32", 4), ("kv_dtype: bfloat16", 2), ("kv_dtype: float8_e4m3fn", 1)],
)
def test_keys_and_values_may_be_narrower_than_the_model(load: Load, written: str, size: int) -> None:
    config = load(SHORT.replace("  dtype:", f"  {written}\n  dtype:")).config
    assert config.target.kv_row_bytes == config.draft.kv_row_bytes == 2 * 64 * size
    assert config.target.dtype == "float32"


def test_logits_may_have_another_dtype_than_hidden_states(load: Load) -> None:
    config = load(SHORT).config
    assert (config.target.logits_dtype, config.draft.logits_dtype) == ("float32", "float32")
    config = load(SHORT.replace("  dtype: float32", "  dtype: bfloat16\n  logits_dtype: float32")).config
    assert {(model.dtype, model.logits_dtype) for model in config.models.values()} == {("bfloat16", "float32")}


@pytest.mark.parametrize(("source", "width"), [("hc_residual", 1024), ("collapsed", 256)])
def test_spec_width(load: Load, source: str, width: int) -> None:
    text = SHORT.replace("hidden_size: 256", f"hidden_size: 256\n  hc_mult: 4\n  hidden_source: {source}")
    loaded = load(text)
    assert loaded.config.target.spec_width == width
    assert not loaded.warnings


def test_unknown_hyper_connections_warn(load: Load) -> None:
    loaded = load(SHORT.replace("num_layers", "hc_mult: 2\n  num_layers"))
    assert loaded.config.target.spec_width == 512
    assert {d.code for d in loaded.warnings} == {"config/hc-mult-default"}
    assert {d.severity for d in loaded.warnings} == {"warning"}


def test_merge_keys(load: Load) -> None:
    loaded = load(SHORT)
    assert (loaded.config.draft.hidden_size, loaded.config.draft.num_layers) == (128, 4)
    assert str(loaded.location("draft", "num_layers")) == "c.yaml:5:15"
    assert str(loaded.location("draft", "hidden_size")) == "c.yaml:12:16"


@pytest.mark.parametrize(("word", "value"), [("true", "true"), ("'true'", "true"), ("shifted", "shifted")])
def test_draft_positions(load: Load, word: str, value: str) -> None:
    assert load(f"{SHORT}draft_positions: {word}\n").config.file.draft_positions == value


def test_numbers_in_other_bases(load: Load) -> None:
    assert load(f"{SHORT}max_requests: 0x10\nnum_steps: 0o2\npage_size: 1_6\n").config.max_requests == 16


def test_places(load: Load) -> None:
    loaded = load(VALID)
    assert str(loaded.location("topk")) == "c.yaml:3:7"
    assert str(loaded.location("buckets")) == "c.yaml:8:10"
    assert str(loaded.location("buckets", 2)) == "c.yaml:8:17"
    assert loaded.location("buckets", 2).length == 2
    assert str(loaded.location("target", "dtype")) == "c.yaml:18:10"
    assert str(loaded.location("target", "hc_mult")) == "c.yaml:12:1"  # the block
    assert str(loaded.location("overlap")) == "c.yaml:1:1"  # the file
    assert str(loaded.locations.key("target", "dtype")) == "c.yaml:18:3"


def test_locations_do_not_show_directories(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(VALID)
    loaded = load_config(path, names(), needs)
    assert loaded.file == "c.yaml"
    assert loaded.paths == {"c.yaml": str(path)}
    assert loaded.sources == {"c.yaml": VALID}


def test_same_text_same_config(load: Load, tmp_path: Path) -> None:
    assert load(VALID).config == load_text(VALID, tmp_path / "elsewhere.yaml", names(), needs).config


def test_config_is_frozen(load: Load) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load(VALID).config.max_requests = 2  # type: ignore[misc]


def test_byte_order_mark_and_windows_lines(load: Load) -> None:
    loaded = load(b"\xef\xbb\xbf" + VALID.replace("\n", "\r\n").encode())
    assert str(loaded.location("buckets", 1)) == "c.yaml:8:14"


def test_injected_algorithms(tmp_path: Path) -> None:
    loaded = load_text(VALID.replace("EAGLE", "mine"), tmp_path / "c.yaml", ("EAGLE", "Mine"), lambda name: Needs())
    assert loaded.config.algorithm == "Mine"


def test_alias_bomb_is_stopped(load: Load) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(Exception, match="more than 1024 values"):
        load("\n".join(lines))


DEEP = {
    "lists": "topk: " + "[" * 60_000,
    "closed lists": "topk: " + "[" * 60_000 + "]" * 60_000,
    "mappings": "topk: " + "{" * 60_000,
    "mappings of mappings": "topk: " + "{a: " * 30_000,
    "keys": "? " * 60_000,
    "entries": "- " * 60_000,
    "blocks": "\n".join(" " * level + "a:" for level in range(500)),
    "blocks of entries": "\n".join(" " * level + "-" for level in range(500)),
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_deep_nesting_is_refused_where_it_is_too_deep(load: Load, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: what is read of the text, in tokens, does not depend on how deep it goes on."""
    tokens: list[object] = []
    fetch = RoundTripScanner.fetch_more_tokens
    monkeypatch.setattr(RoundTripScanner, "fetch_more_tokens", lambda self: (tokens.append(self), fetch(self))[1])
    with pytest.raises(DiagnosticError) as raised:
        load(text)
    (diagnostic,) = raised.value.diagnostics
    assert (diagnostic.code, diagnostic.message) == ("config/not-yaml", "the text is nested too deeply")
    assert diagnostic.location is not None
    assert max(diagnostic.location.line, diagnostic.location.column) > 64
    assert len(tokens) < 500


LONG = {"a list": "topk: [" + "1," * 60_000, "entries": "topk:\n" + "- 1\n" * 30_000, "keys": "a: 1\n" * 20_000}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_text_is_given_up_on_where_it_is_too_long(
    load: Load, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: what is read of the text, in words, is what that many values may take."""
    words: list[object] = []
    fetch = RoundTripScanner.fetch_more_tokens
    monkeypatch.setattr(RoundTripScanner, "fetch_more_tokens", lambda self: (words.append(self), fetch(self))[1])
    with pytest.raises(DiagnosticError, match="more than 1024 values"):
        load(text)
    assert len(words) <= 8 * 1024


def test_all_values_that_a_text_may_have_are_read_whatever_stands_around_them(load: Load) -> None:
    """Anchors, comments and blanks are no values."""
    listed = "".join(f"  # the next one\n\n  - &a{number} {number + 1} # here\n" for number in range(64))
    text = VALID.replace("buckets: [1, 8, 64]", "buckets:\n" + listed + "# nothing\n" * 10_000)
    assert load(text).config.buckets == tuple(range(1, 65))


@pytest.mark.parametrize("line", ["topk: 1", "[1]: 1"])
def test_findings_of_one_kind_end(load: Load, line: str) -> None:
    """A file of thousands of mistakes is given up on."""
    with pytest.raises(DiagnosticError) as raised:
        load(f"{line}\n" * 10_000)
    assert len(raised.value.diagnostics) <= 1026
    assert "more than 1024 values, counting what aliases repeat" in {d.message for d in raised.value.diagnostics}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load(path: Path) -> None:
    for directory in re.findall(r"^ +model: (\S+)", path.read_text(), re.MULTILINE):
        pytest.importorskip("transformers")
        if not (path.parent / directory).exists():
            pytest.skip(f"{directory} is not made yet")
    loaded = load_config(path, names(), needs)
    assert not loaded.warnings
    assert loaded.config.name == path.stem.replace("-", "_")


def test_model_dir(load: Load, tmp_path: Path) -> None:
    assert load(VALID).model_dir("target") is None
    pytest.importorskip("transformers")
    example = next(path for path in EXAMPLES if path.stem == "eagle-chain")
    assert load_config(example, names(), needs).model_dir("draft") == example.parent / "models/eagle"
