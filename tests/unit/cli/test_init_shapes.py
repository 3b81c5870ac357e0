"""`specc init --shapes`: shapes for a pair of models and a GPU, with their reasons, that every check accepts."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from programs import ROOT
from ruamel.yaml import YAML

from specc.compiler.config.estimate.proposed import BUCKETS

from .test_init import HEAD, HEAD3, LLAMA, folder, init, loaded, model, refused

__all__ = ["folder"]

LARGE = LLAMA | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
ONE_LAYER = {"num_hidden_layers": 1}
DRAFTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "EAGLE": ({}, ONE_LAYER | {"architectures": HEAD["architectures"]}),
    "EAGLE3": ({}, ONE_LAYER | {"architectures": HEAD3["architectures"]}),
    "STANDALONE": ({}, {"num_hidden_layers": 8, "hidden_size": 2048, "num_attention_heads": 16, "head_dim": 128}),
    "DFLASH": ({}, {"num_hidden_layers": 4, "architectures": ["DFlashDraftModel"], "block_size": 8}),
    "FROZEN_KV_MTP": ({}, {"num_hidden_layers": 2, "backbone_hidden_size": 4096}),
    "MULTI_LAYER_EAGLE": ({"num_nextn_predict_layers": 3}, {}),
    "NGRAM": ({}, {}),
}
"""By algorithm: what the target has besides, and what the draft differs in."""


def proposed(algorithm: str, *words: object) -> tuple[dict[str, Any], str, str]:
    """What is written for large models of an algorithm, as data and as text, after a check, and what is said."""
    target, draft = DRAFTS[algorithm]
    if "vllm" in words and algorithm == "EAGLE":
        draft = draft | {"architectures": ["EagleLlamaForCausalLM"]}
    models = [model("target", LARGE | target)]
    if algorithm == "MULTI_LAYER_EAGLE":
        models.append(models[0])
    elif algorithm != "NGRAM":
        models.append(model("draft", LARGE | draft))
    ended = init(*models, "--shapes", "auto", "-o", "c.yaml", "--force", *words)
    assert ended.exit_code == 0, ended.output
    loaded(Path("c.yaml"))
    text = Path("c.yaml").read_text()
    return YAML(typ="safe").load(text), text, " ".join(ended.stderr.split())


def shapes_of(keys: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Steps, topk and nodes of the shapes that are written."""
    written = keys.get("shapes") or [keys]
    steps = [(shape["num_steps"], shape.get("topk", 1), shape.get("num_draft_tokens", 0)) for shape in written]
    return [(step, topk, nodes or step + 1) for step, topk, nodes in steps]


@pytest.mark.parametrize("algorithm", DRAFTS)
@pytest.mark.parametrize("rate", [0.3, 0.79])
@pytest.mark.parametrize("gpu", ["h100", "l4"])
def test_every_algorithm_gets_shapes_with_reasons(algorithm: str, rate: float, gpu: str) -> None:
    keys, text, report = proposed(algorithm, "--rate", rate, "--gpu", gpu)
    assert keys["algorithm"] == algorithm and keys["buckets"] == [*BUCKETS]
    shapes = shapes_of(keys)
    assert max(shapes)[0] > 0
    if "shapes" in keys:
        assert algorithm != "MULTI_LAYER_EAGLE" and not {"topk", "num_steps", "num_draft_tokens"} & keys.keys()
        assert {bucket for shape in keys["shapes"] for bucket in shape["buckets"]} == {*BUCKETS}
        assert shapes == sorted(shapes, reverse=True) and 2 <= len(shapes) <= 5
        for before, after in pairwise(keys["shapes"]):
            assert before["buckets"][0] <= after["buckets"][0] or after["num_steps"] == 0
    words = " ".join(text.replace("#", " ").split())
    assert len(shapes) == words.lower().count(" best at ") + words.count(" the best ")
    assert f"drafts right at {rate:g}" in report and f"of one {gpu.upper()}" in report
    assert ("more than 8 nodes commit is extrapolated" in report) == any(
        nodes > 8 for _, topk, nodes in shapes if topk > 1
    )


def test_a_tree_for_one_request_and_a_chain_for_many() -> None:
    keys, text, report = proposed("EAGLE", "--gpu", "h100")
    tree, chain = keys["shapes"]
    assert tree["topk"] > 1 and "topk" not in chain
    assert tree["buckets"][0] == 1 and chain["buckets"][-1] == 64 and 64 not in tree["buckets"]
    assert keys["archs"] == ["sm_90"]
    assert (
        "# What a step may draft, and for which batches. By an estimate: 3.35 TB/s and 989 Tflop/s of one H100" in text
    )
    name = f"{tree['num_steps']}x{tree['topk']}x{tree['num_draft_tokens']}"
    assert (
        f"{name} a tree of {tree['num_draft_tokens'] - 1} drafts, {tree['num_steps']} deep, best at batches of 1"
        in report
    )
    assert f"compiled for {', '.join(map(str, chain['buckets']))}" in report
    assert "specc tune --shapes measures steps" in report
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_page_shows_what_is_written() -> None:
    _, text, _ = proposed("EAGLE", "--gpu", "h100")
    section = (ROOT / "docs" / "config.md").read_text().partition("### Proposed shapes")[2]
    shown = section.partition("```yaml\n")[2].partition("```")[0]
    assert shown.startswith("# What a step may draft") and shown in text


def test_drafts_that_are_seldom_right_are_few() -> None:
    deepest = [max(shapes_of(proposed("EAGLE", "--rate", rate)[0]))[0] for rate in (0.2, 0.5, 0.79, 0.95)]
    assert deepest == sorted(deepest) and deepest[0] < deepest[-1]


def test_shapes_to_choose_from() -> None:
    keys, _, _ = proposed("EAGLE", "--shapes", "3x4x16, 2,3x4x16", "--gpu", "h100")
    assert shapes_of(keys) == [(3, 4, 16), (2, 1, 3)]
    keys, text, report = proposed("EAGLE", "--shapes", "4,5,0")
    assert "left out 4, 0: gains over these no more than 5%" in report
    assert (keys["num_steps"], keys["topk"], "shapes" in keys) == (5, 1, False)
    assert "A chain of 5 drafts, best at every batch or within 5% of it" in " ".join(text.replace("#", " ").split())
    keys, _, report = proposed("MULTI_LAYER_EAGLE", "--shapes", "2,0")
    assert shapes_of(keys) == [(2, 1, 3)]
    assert "left out 0: there may be one shape" in report


def test_small_models_have_one_shape() -> None:
    """Whose steps wait for the host at every batch, so that a chain is as good as any."""
    model("head", HEAD)
    ended = init("target", "head", "--shapes", "auto", "-o", "c.yaml")
    assert ended.exit_code == 0, ended.output
    keys = YAML(typ="safe").load(Path("c.yaml"))
    assert "shapes" not in keys and keys["topk"] == 1
    assert "best at every batch or within 5% of it" in " ".join(ended.stderr.split())


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "STANDALONE"])
@pytest.mark.parametrize("gpu", ["h100", "b200"])
def test_a_server_of_sglang(algorithm: str, gpu: str) -> None:
    keys, text, report = proposed(algorithm, "--engine", "sglang", "--gpu", gpu)
    shapes = shapes_of(keys)
    command = shlex.split(report.rpartition("the server: ")[2])
    own = [int(command[command.index(f"--speculative-{name}") + 1]) for name in ("num-steps", "eagle-topk")]
    assert own == [max(steps for steps, _, _ in shapes), max(topk for _, topk, _ in shapes)]
    assert command[command.index("--speculative-num-draft-tokens") + 1] == str(max(nodes for _, _, nodes in shapes))
    if gpu == "b200":  # whose usual attention prepares no steps of several shapes
        assert "shapes" not in keys and keys["topk"] == 1 and "--attention-backend" not in command
        return
    assert command[command.index("--attention-backend") + 1] == "fa3" and keys["mask"] == "slots"
    assert {bucket for shape in keys["shapes"] for bucket in shape["buckets"]} == {*keys["buckets"]}
    assert text.count("best at ") == len(shapes)


def test_a_server_of_vllm_has_chains_and_a_table_of_them() -> None:
    keys, _, report = proposed("EAGLE", "--engine", "vllm", "--gpu", "h100", "--shapes", "1,7", "--rate", 0.65)
    assert keys["num_steps"] == [1, 7] and keys["topk"] == 1
    command = shlex.split(report.rpartition("the server: ")[2])
    speculation = json.loads(command[command.index("--speculative-config") + 1])
    table = speculation["num_speculative_tokens_per_batch_size"]
    assert speculation["num_speculative_tokens"] == 7
    assert [number for _, _, number in table] == [7, 1] and table[0][0] == 1
    assert all(before[1] + 1 == after[0] for before, after in pairwise(table))
    again = init("target", "draft", "--engine", "vllm", "--gpu", "h100", "--shapes", "3", "-o", "d.yaml")
    assert "num_speculative_tokens_per_batch_size" not in again.stderr
    assert YAML(typ="safe").load(Path("d.yaml"))["num_steps"] == 3


@pytest.mark.parametrize("algorithm", ["EAGLE", "EAGLE3", "STANDALONE", "NGRAM"])
def test_every_server_of_vllm_passes_a_check(algorithm: str) -> None:
    keys, _, _ = proposed(algorithm, "--engine", "vllm", "--gpu", "h100")
    assert keys["topk"] == 1


MISTAKES = [
    (["--shapes", "no"], "'no' is not the name of a shape: names are such as 3, 0 and 5x4x24"),
    (["--shapes", ","], "there is none"),
    (["--shapes", "17"], "17 has more than 16 steps or branches, or none"),
    (["--shapes", "3x0x4"], "3x0x4 has more than 16 steps or branches, or none"),
    (["--shapes", "3x1x5"], "3x1x5 has one branch: write 3"),
    (["--shapes", "3x2x12"], "3x2x12: a tree of so many steps and branches has 2 to 11 nodes"),
    (["--shapes", "0x2x5"], "0x2x5: a tree of so many steps and branches has 2 to 1 nodes"),
    (["--shapes", "3", "--topk", 2], "leave --topk and --num-steps out"),
    (["--shapes", "auto", "--num-steps", 2], "leave --topk and --num-steps out"),
    (["--rate", 0.5], "it is for --shapes"),
    (["--shapes", "auto", "--rate", 1.5], "Input should be less than or equal to 0.99"),
    (["--shapes", "3x2x8", "--engine", "vllm"], "3x2x8 is a tree, and STANDALONE drafts chains alone there"),
    (["--shapes", "auto", "--gpu", "h1000"], "unknown GPU"),
    (["--shapes", "0"], "error[init/no-estimate]: none of the shapes 0 drafts = hint: add one such as 3"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_mistakes(words: list[object], message: str) -> None:
    report = refused("target", "small", *words)
    assert message in " ".join(report.replace("│", " ").split())


def test_a_model_that_does_not_say_its_sizes() -> None:
    model("target", LLAMA | {"model_type": "no_such"}, "num_key_value_heads", "head_dim")
    report = refused("target", "small", "--shapes", "auto", "--algorithm", "STANDALONE")
    assert "error[init/no-estimate]: no step can be estimated: 'target/config.json' does not say its" in report
    assert "leave --shapes out, and write shapes by hand" in report


def test_the_line_of_a_hint_has_the_shapes() -> None:
    model("head", HEAD)
    report = refused("head", "target", "--shapes", "3,0", "--rate", 0.5)
    assert "type: specc init target head --shapes 3,0 --rate 0.5" in report
