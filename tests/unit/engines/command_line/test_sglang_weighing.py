"""`specc sglang check` of servers that weigh drafts by what they were drawn from (`--speculative-use-...`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from .published_heads import heads
from .sglang_words import MODELS, TREE, config, run, words

__all__ = ["heads"]
REJECTION, BLOCK = "--speculative-use-rejection-sampling", "--speculative-use-block-verification"
HEAD: dict[str, str | None] = {"--speculative-algorithm": "EAGLE", "--speculative-draft-model-path": "eagle"}


@pytest.mark.parametrize(
    ("flags", "verify"),
    [((REJECTION,), "rejection"), ((BLOCK,), "block"), ((REJECTION, BLOCK), "block"), ((), "greedy")],
)
def test_drafts_are_weighed_as_the_server_is_asked_to(tmp_path: Path, flags: tuple[str, ...], verify: str) -> None:
    changes = HEAD | dict.fromkeys(flags, "")
    assert config(tmp_path, changes).file.verify == verify
    result = run("--", *words(changes))
    origin = [BLOCK if verify == "block" else REJECTION] * bool(flags)
    assert [line for line in result.stdout.splitlines() if line.startswith("verify")] == [
        f'verify: "{verify}" # {name}' for name in origin
    ]
    sampled = config(tmp_path, changes, options=("--sampling", "top_k")) if flags else None
    assert sampled is None or sampled.sampling == ("top_k",)


@pytest.mark.parametrize("verify", ["greedy", "target_only", "block"])
def test_another_way_may_be_written(tmp_path: Path, verify: str) -> None:
    """Steps of either side go on with any draft of the other."""
    assert config(tmp_path, {**HEAD, REJECTION: ""}, options=("--verify", verify)).file.verify == verify
    assert config(tmp_path, HEAD, options=("--verify", verify)).file.verify == verify


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({REJECTION: "", **TREE}, f"{REJECTION} with a tree"),
        ({BLOCK: "", **TREE}, f"{BLOCK} with a tree"),
        ({BLOCK: "", "--device": "cpu", "--attention-backend": "intel_amx"}, f"{BLOCK} on a CPU"),
        ({REJECTION: "", "--speculative-token-map": "map.pt"}, f"{REJECTION} with a draft that scores a part of the"),
        (
            {REJECTION: "", "--speculative-algorithm": "EAGLE3", "--speculative-draft-model-path": "eagle3_reduced"},
            f"{REJECTION} with a draft that scores a part of the tokens",
        ),
        ({REJECTION: "", "--disaggregation-mode": "decode"}, "drafts that are drawn, on two servers, is not served"),
        ({REJECTION: "", "--speculative-adaptive": ""}, "adaptive speculation with drafts that are drawn"),
        ({REJECTION: "", "--tp-size": "2", "--enable-dp-attention": "", "--dp-size": "2"}, "rejection sampling under"),
        ({REJECTION: "", **dict.fromkeys(HEAD), "--speculative-algorithm": "STANDALONE",
          "--speculative-draft-model-path": str(MODELS / "standalone")}, f"{REJECTION} with STANDALONE"),
        ({BLOCK: "", **dict.fromkeys(HEAD), "--speculative-algorithm": "NGRAM"}, f"{BLOCK} with NGRAM"),
    ],
)  # fmt: skip
def test_what_sglang_does_not_start_is_named(changes: dict[str, str | None], message: str) -> None:
    result = run("--", *words(HEAD | changes))
    assert result.exit_code == 1
    assert f"error[config/engine-unsupported]: with SGLang 0.5.23, {message}" in result.stderr


def test_drafts_of_some_tokens_are_not_drawn(tmp_path: Path) -> None:
    """SGLang's first draft behind a prompt may be another one."""
    file = tmp_path / "hot.json"
    file.write_text("[1, 2, 3]")
    result = run("--head", "weights", "--token-map", file, "--", *words({**HEAD, REJECTION: ""}))
    message = f"--token-map with drafts that are drawn ({REJECTION} rejection) is not served"
    assert f"error[config/engine-unsupported]: with SGLang 0.5.23, {message}" in result.stderr


def test_what_sglang_leaves_aside_says_nothing(tmp_path: Path) -> None:
    """Look-ups draw nothing, whatever is written."""
    changes = {"--speculative-algorithm": "NGRAM", "--speculative-draft-model-path": None, REJECTION: ""}
    assert config(tmp_path, changes).file.verify == "greedy"


def test_thresholds_are_in_the_way(tmp_path: Path) -> None:
    result = run("--", *words({**HEAD, REJECTION: "", "--speculative-accept-threshold-acc": "0.9"}))
    assert "--speculative-accept-threshold-acc 0.9 with sampling is not served" in result.stderr
