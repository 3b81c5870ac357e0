"""`specc sglang check --budget`: programs whose requests share the target's rows out."""

from __future__ import annotations

from pathlib import Path

import pytest

from .published_heads import heads
from .sglang_words import TREE, config, run, words

__all__ = ["heads"]
HEAD: dict[str, str | None] = {"--speculative-algorithm": "EAGLE", "--speculative-draft-model-path": "eagle"}


def test_a_budget_is_written(tmp_path: Path) -> None:
    assert config(tmp_path, HEAD, options=("--budget", "2")).shape.budget == 2
    assert config(tmp_path, HEAD).file.budget is None
    assert "budget: 2 # --budget" in run("--budget", "2", "--", *words(HEAD)).stdout


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"--attention-backend": "flashinfer"}, "flashinfer attention"),
        ({"--tp-size": "2", "--enable-dp-attention": "", "--dp-size": "2"}, "attention under data parallelism"),
        ({"--enable-lora": ""}, "LoRA"),
        (
            {"--speculative-use-rejection-sampling": "", "--enable-deterministic-inference": ""},
            "drafts that are drawn in a deterministic server",
        ),
    ],
)
def test_what_a_server_has_that_a_budget_is_not_served_with(changes: dict[str, str | None], what: str) -> None:
    result = run("--budget", "2", "--", *words(HEAD | changes))
    assert result.exit_code == 1
    assert f"error[config/engine-unsupported]: with SGLang 0.5.23, --budget with {what} is not served" in result.stderr
    assert ("or write --attention-backend triton or fa3" in result.stderr) == ("--attention-backend" in changes)


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_drafts_may_be_drawn(tmp_path: Path, verify: str) -> None:
    """As a server is asked to, or as the program is."""
    asked = {"--speculative-use-rejection-sampling": ""} if verify == "rejection" else {}
    options = () if asked else ("--verify", verify)
    resolved = config(tmp_path, HEAD | asked, options=("--budget", "2,3,all", "--sampling", "top_k", *options))
    assert (resolved.file.verify, [str(shape) for shape in resolved.shapes]) == (verify, ["3b2", "3b3", "3"])


def test_a_deterministic_server_has_budgets_of_other_drafts(tmp_path: Path) -> None:
    """A seed draws the same from the target, whichever drafts have rows."""
    changes = HEAD | {"--enable-deterministic-inference": "", "--attention-backend": "fa3"}
    assert config(tmp_path, changes, options=("--budget", "2", "--verify", "target_only")).shape.budget == 2


def test_a_budget_of_as_many_rows_as_are_drafted_is_none() -> None:
    result = run("--budget", "9", "--", *words(HEAD))
    assert result.exit_code == 1
    assert "error[legal/budget]" in result.stderr


def test_several_budgets_are_shapes(tmp_path: Path) -> None:
    """They have the server's own number of drafts, or are of chains with fewer as well."""
    resolved = config(tmp_path, HEAD, options=("--budget", "2,3,all"))
    assert [str(shape) for shape in resolved.shapes] == ["3b2", "3b3", "3"]
    assert 'budget: [2, 3, "all"] # --budget' in run("--budget", "2,3,all", "--", *words(HEAD)).stdout
    resolved = config(tmp_path, HEAD, options=("--budget", "2,all", "--shapes", "3,2,0"))
    assert [str(shape) for shape in resolved.shapes] == ["0", "2b2", "2", "3b2", "3"]


def test_a_tree_has_a_budget_where_fa3_verifies(tmp_path: Path) -> None:
    hopper = TREE | {"--attention-backend": "fa3"}
    resolved = config(tmp_path, HEAD | hopper, options=("--budget", "4,8,all"))
    assert [str(shape) for shape in resolved.shapes] == ["3x4x12b4", "3x4x12b8", "3x4x12"]
    assert resolved.file.mask == "slots"
    result = run("--budget", "4", "--", *words(HEAD | TREE | {"--attention-backend": "triton"}))
    assert "--budget with trees under triton attention is not served" in result.stderr
    assert "write --attention-backend fa3" in result.stderr


def test_trees_beside_other_shapes_have_no_budgets() -> None:
    result = run("--budget", "2", "--shapes", "3x4x12,3", "--", *words(HEAD | TREE))
    assert "--budget with a tree beside other --shapes is not served" in result.stderr


def test_a_word_that_is_no_budget_is_found_in_the_file() -> None:
    result = run("--budget", "2,most", "--", *words(HEAD))
    assert result.exit_code == 1
    assert "error[config/wrong-type]: 'budget[1]' takes an integer" in result.stderr
