"""`specc sglang check` of servers whose attention is data parallel: what a group of ranks has, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .published_heads import heads
from .sglang_words import config, run, words

__all__ = ["heads"]

EAGLE: dict[str, str | None] = {"--speculative-algorithm": "EAGLE", "--speculative-draft-model-path": "eagle"}
GROUPS = EAGLE | {"--tp-size": "4", "--dp-size": "2", "--enable-dp-attention": ""}


@pytest.mark.parametrize(
    ("changes", "ranks"),
    [
        (GROUPS, 2),
        (EAGLE | {"--tp-size": "4", "--attn-dp-size": "2"}, 2),
        (EAGLE | {"--tp": "4", "--attention-data-parallel-size": "4"}, 1),
        (GROUPS | {"--dp-size": "4"}, 1),
        (GROUPS | {"--dp-size": "1"}, 4),
    ],
)
def test_a_group_has_its_part_of_the_requests_and_shares_attention_out(
    tmp_path: Path, changes: dict[str, str | None], ranks: int
) -> None:
    groups = 4 // ranks
    resolved = config(tmp_path, changes | {"--max-running-requests": "24"})
    assert resolved.file.tensor_parallel == ranks
    assert (resolved.max_requests, resolved.file.buckets[-1]) == (24 // groups, 24 // groups)
    written = run("--", *words(changes)).stdout
    assert f"max_requests: {48 // groups} # SGLang's default with speculation" in written
    assert (f", of which a group of ranks has one in {groups}" in written) == (groups > 1)
    assert ("tensor_parallel" in written) == (ranks > 1)
    assert config(tmp_path, changes | {"--max-running-requests": "1"}).max_requests == 1


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"--speculative-algorithm": "STANDALONE"}, (), "attention under data parallelism with STANDALONE"),
        ({"--enable-lora": ""}, (), "LoRA under data parallelism"),
        ({"--disaggregation-mode": "decode"}, (), "prefill and decode on two servers under data parallelism"),
        ({"--enable-return-routed-experts": ""}, (), "experts as results under data parallelism"),
        ({"--attention-backend": "flashinfer"}, (), "flashinfer attention under data parallelism (draft)"),
        ({}, ("--logits", "sharded"), "--logits sharded under data parallelism"),
        ({}, ("--head", "weights"), "--head weights under data parallelism"),
        ({}, ("--shapes", "3,0"), "--shapes with attention under data parallelism"),
        ({"--pp-size": "2"}, (), "pipeline parallelism (pp_size 2)"),
    ],
)
def test_what_is_not_served_beside_it(changes: dict[str, str | None], options: tuple[str, ...], message: str) -> None:
    """And is by itself, but for a pipeline and `--shapes` that need no server of groups to be refused."""
    result = run(*options, "--", *words(GROUPS | changes))
    assert (result.exit_code, result.stdout) == (1, "")
    errors = re.findall(r"error\[(.*?)\]: with SGLang \d+\.\d+\.\d+, (.*) is not served", result.stderr)
    assert ("config/engine-unsupported", message) in [(code, text.partition(" (disagg")[0]) for code, text in errors]
    alone = run(*options, "--", *words(EAGLE | changes))
    assert message not in alone.stderr or "--pp-size" in changes


def test_one_module_is_not_asked_to_be_several() -> None:
    """Beside it as without."""
    changes = GROUPS | {"--speculative-algorithm": "STANDALONE", "--enable-multi-layer-eagle": ""}
    result = run("--", *words(changes))
    assert result.exit_code == 1
    assert "multi-layer EAGLE of another algorithm is not served" in result.stderr


def test_experts_may_be_shared_out_beside_it() -> None:
    result = run("--", *words(GROUPS | {"--ep-size": "4"}))
    assert result.exit_code == 0
    assert "error" not in result.stderr


def test_what_is_served_instead_of_flashinfer_is_planned_by_nobody() -> None:
    result = run("--", *words(GROUPS | {"--attention-backend": "flashinfer"}))
    served = re.search(r"served here: (.*) \(--attention-backend\)", result.stderr)
    assert served is not None
    assert "flashinfer" not in served[1] and "fa3" in served[1]


@pytest.mark.parametrize("variable", ["SGLANG_SCHEDULER_SKIP_ALL_GATHER", "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"])
def test_variables_of_the_environment_that_are_in_the_way_beside_it_alone(variable: str) -> None:
    for changes, refused in ((GROUPS, True), (EAGLE, False)):
        command = [f"{variable}=1", "sglang", "serve", *words(changes)]
        result = run("--", *command)
        assert (variable in result.stderr or "under data parallelism" in result.stderr) == refused, result.stderr
