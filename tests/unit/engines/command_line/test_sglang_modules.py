"""`specc sglang check` of servers whose draft has a module for each step, and the commands that `specc init` prints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from cli.test_init import LLAMA, folder, init, model
from ruamel.yaml import YAML

from .sglang_words import config, run, words

__all__ = ["folder"]
MIMO: dict[str, Any] = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "mimo_v2_flash",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "head_dim": 96,
    "v_head_dim": 64,
    "swa_head_dim": 96,
    "swa_v_head_dim": 64,
    "sliding_window": 128,
    "vocab_size": 2048,
    "dtype": "bfloat16",
}
"""As published: keys are wider than values, windows have more heads, and how many modules there are is not said."""
STEP = LLAMA | {"architectures": ["Step3p5ForCausalLM"], "num_nextn_predict_layers": 2, "sliding_window": 128}
"""One that says it."""
SERVED: dict[str, str | None] = {
    "--model-path": "mimo",
    "--speculative-algorithm": "EAGLE",
    "--speculative-draft-model-path": "mimo",
    "--attention-backend": "fa3",
    "--dtype": None,
}


@pytest.fixture(autouse=True)
def models(folder: Path) -> None:
    model("mimo", MIMO)
    model("step", STEP)


def test_a_draft_has_a_module_for_each_step(tmp_path: Path) -> None:
    """And a chain is written of layers that have keys and values of several sizes: it moves none of them."""
    resolved = config(tmp_path, SERVED | {"--speculative-num-steps": "2"})
    assert (resolved.algorithm, resolved.name) == ("MULTI_LAYER_EAGLE", "sglang_multi_layer_eagle")
    assert (resolved.num_steps, resolved.num_nodes, resolved.draft and resolved.draft.num_layers) == (2, 3, 2)
    assert (resolved.target.num_kv_heads, resolved.target.head_dim) == (1, 96)
    written = run("--", *words(SERVED | {"--speculative-num-steps": "2"}))
    assert "algorithm: MULTI_LAYER_EAGLE # --speculative-algorithm EAGLE" in written.stdout
    assert "  num_layers: 2 # a module for each step" in written.stdout
    assert written.stdout.count("  head_dim: 96 # head_dim; other layers differ, and a chain moves none of it") == 2
    assert "attention  fa3: --attention-backend" in written.stderr


def test_sglang_takes_modules_by_itself_under_one_name_of_the_algorithm(tmp_path: Path) -> None:
    """Under the other one where it is told to: else the first module is a head that runs at every step."""
    step = {"--model-path": "step", "--speculative-draft-model-path": "step", "--speculative-num-steps": "2"}
    nextn = SERVED | step | {"--speculative-algorithm": "NEXTN"}
    assert config(tmp_path, nextn | {"--enable-multi-layer-eagle": ""}).algorithm == "MULTI_LAYER_EAGLE"
    assert "algorithm: EAGLE # --speculative-algorithm NEXTN" in run("--", *words(nextn)).stdout


def test_groups_of_ranks_run_all_modules(tmp_path: Path) -> None:
    """Each over its own requests, with as many rows as the others; the same is written of one module."""
    groups = {"--tp": "8", "--dp": "2", "--enable-dp-attention": "", "--enable-dp-lm-head": ""}
    resolved = config(tmp_path, SERVED | groups | {"--max-running-requests": "24", "--speculative-num-steps": "3"})
    assert (resolved.algorithm, resolved.num_steps, resolved.file.tensor_parallel) == ("MULTI_LAYER_EAGLE", 3, 4)
    assert (resolved.max_requests, resolved.file.buckets[-1]) == (12, 12)


def test_a_draft_says_how_many_modules_it_has(tmp_path: Path) -> None:
    step = SERVED | {"--model-path": "step", "--speculative-draft-model-path": "step"}
    resolved = config(tmp_path, step | {"--speculative-num-steps": "2"})
    assert resolved.draft is not None and resolved.draft.num_layers == 2
    assert "other layers differ" not in (tmp_path / "written.yaml").read_text()
    more = run("--", *words(step | {"--speculative-num-steps": "3"}))
    assert more.exit_code == 1
    assert "error[legal/modules]" in more.stderr


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"--speculative-eagle-topk": "2", "--speculative-num-draft-tokens": "4"}, (), "a tree of several modules"),
        ({"--enable-lora": ""}, (), "LoRA beside a draft of several modules"),
        (
            {"--disaggregation-mode": "decode"},
            (),
            "a draft of several modules behind a server that prefills",
        ),
        ({"--tp-size": "2", "--attn-dp-size": "2", "--enable-lora": ""}, (), "LoRA under data parallelism"),
        (
            {"--model-path": "step", "--speculative-draft-model-path": "step", "--speculative-num-steps": "2"}
            | {"--tp-size": "2", "--attn-dp-size": "2"},
            (),
            "attention under data parallelism with modules whose embedding all ranks share out",
        ),
        ({"--attention-backend": "triton"}, (), "triton attention with sliding windows (extend)"),
        ({"--speculative-token-map": "map.pt"}, (), "--speculative-token-map of MULTI_LAYER_EAGLE"),
        ({}, ("--head", "weights"), "--head weights with a draft of several modules"),
        ({"--tp-size": "2"}, ("--logits", "sharded"), "--logits sharded with a draft of several modules"),
    ],
)
def test_what_is_not_served_with_modules(
    changes: dict[str, str | None], options: tuple[str, ...], message: str
) -> None:
    result = run(*options, "--", *words(SERVED | changes))
    assert result.exit_code == 1
    assert f"{message} is not served" in result.stderr
    assert "error[internal" not in result.stderr


def test_init_prints_the_server_of_as_many_modules_as_there_are() -> None:
    """Of targets that SGLang runs all of; others have a head in their first one, or no server."""
    ended = init("step", "--engine", "sglang", "--gpu", "h100", "-o", "c.yaml")
    assert ended.exit_code == 0, ended.output
    keys = YAML(typ="safe").load(Path("c.yaml"))
    assert (keys["algorithm"], keys["num_steps"]) == ("MULTI_LAYER_EAGLE", 2)
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("the server: "))
    drafts = "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3"
    start = "sglang serve --model-path step --speculative-algorithm EAGLE"
    assert line == f"the server: {start} {drafts}"
    assert run("--", *shlex.split(line)[2:]).exit_code == 0
    model("other", LLAMA | {"num_nextn_predict_layers": 2})
    other = init("other", "--engine", "sglang")
    assert other.exit_code == 1
    assert "a module for each step of LlamaForCausalLM is not served" in other.stderr
