"""`specc vllm check`: vLLM's arguments become a configuration that passes `specc check`, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from programs import EXAMPLES
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import Config, load_config

from .published_heads import heads_of_vllm

__all__ = ["heads_of_vllm"]

MODELS = EXAMPLES / "models"
TARGET = str(MODELS / "target")
EAGLE = ("--spec-method", "eagle", "--spec-model", "eagle", "--spec-tokens", "3")
FLOAT = ("--dtype", "float32")


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["vllm", "check", *map(str, words)])


def config(tmp_path: Path, *words: str, options: tuple[str, ...] = ()) -> Config:
    """What a run with these arguments writes, after `specc check` has passed it."""
    path = tmp_path / "written.yaml"
    result = run("-o", path, *options, "--", "vllm", "serve", TARGET, *words)
    assert result.exit_code == 0, result.output
    checked = CliRunner().invoke(app, ["check", str(path)])
    assert checked.exit_code == 0, checked.output
    return load_config(path, names(), needs).config


def test_a_head(tmp_path: Path) -> None:
    resolved = config(tmp_path, *EAGLE, *FLOAT, "--max-num-seqs", "12")
    assert (resolved.name, resolved.file.engine, resolved.algorithm) == ("vllm_eagle", "vllm", "EAGLE")
    assert (resolved.file.topk, resolved.num_steps, resolved.file.page_size) == (1, 3, 16)
    assert (resolved.max_requests, resolved.file.buckets) == (12, [1, 2, 4, 8, 12])
    assert (resolved.file.verify, [*resolved.sampling], resolved.file.draft_sampling) == (
        "target_only", ["top_k", "top_p"], "coupled",
    )  # fmt: skip


def test_a_draft_model_in_the_servers_element_type(tmp_path: Path) -> None:
    draft = ("--spec-model", str(MODELS / "standalone"), "--spec-tokens", "2")
    resolved = config(tmp_path, *draft)
    assert resolved.draft is not None
    assert (resolved.algorithm, resolved.target.dtype, resolved.draft.dtype) == ("STANDALONE", "bfloat16", "bfloat16")


def test_a_head_that_the_program_computes(tmp_path: Path) -> None:
    """Of a part of the tokens it scores these alone, and drafts are not drawn by the noise of all."""
    whole = config(tmp_path, *EAGLE, *FLOAT, options=("--head", "int8"))
    assert whole.draft is not None
    assert (whole.draft.head, whole.draft.token_map, whole.file.draft_sampling) == ("int8", None, "coupled")
    shared = config(tmp_path, *EAGLE, *FLOAT, "-tp", "2", options=("--head", "int8"))
    assert shared.draft is not None and shared.draft.padded_vocab_size == 2048
    assert (shared.file.tensor_parallel, shared.file.draft_sampling) == (2, "greedy")
    words = ("--spec-method", "eagle3", "--spec-model", "eagle3_reduced", "--spec-tokens", "3", *FLOAT)
    for head, scored, sampling in (("engine", 2048, "coupled"), ("fp8", 512, "greedy")):
        part = config(tmp_path, *words, options=("--head", head))
        assert part.draft is not None
        assert (part.draft.head, part.draft.vocab_size, part.file.draft_sampling) == (head, scored, sampling)
    (tmp_path / "tokens.json").write_text(str([*range(0, 2048, 3)]))
    mapped = config(tmp_path, *EAGLE, *FLOAT, options=("--head", "int8", "--token-map", str(tmp_path / "tokens.json")))
    assert mapped.draft is not None
    assert (mapped.draft.token_map, mapped.draft.vocab_size) == (str(tmp_path / "tokens.json"), 683)
    assert mapped.file.draft_sampling == "greedy"
    looked_up = ("-sc.method", "ngram", "-sc.num_speculative_tokens", "4", "--max-model-len", "512", *FLOAT)
    result = run("--head", "fp8", "--", "vllm", "serve", TARGET, *looked_up)
    assert result.exit_code == 1
    assert "--head is of a model that drafts, and drafts are looked up" in result.stderr


def test_a_number_of_drafts_that_changes(tmp_path: Path) -> None:
    """With those of vLLM's table, of which none is more than its largest step has room for."""
    table = ("-sc.num_speculative_tokens_per_batch_size", "[[1, 4, 9], [5, 8, 1], [9, 64, 0]]")
    head = ("-sc.method", "eagle", "-sc.model", "eagle", "-sc.num_speculative_tokens", "3")
    resolved = config(tmp_path, *head, *table, *FLOAT)
    assert [str(shape) for shape in resolved.shapes] == ["0", "1", "3"]
    single = config(tmp_path, *head, table[0], "[[1, 64, 3]]", *FLOAT)
    assert [str(shape) for shape in single.shapes] == ["3"]
    for wrong in ("3", "[[1, 2]]", '[[1, 2, "3"]]', "[[1, 2, true]]"):
        result = run("--", "vllm", "serve", TARGET, *head, table[0], wrong, *FLOAT)
        assert result.exit_code == 1
        assert "num_speculative_tokens_per_batch_size takes a list of [first, last, number]" in result.stderr


def test_look_ups(tmp_path: Path) -> None:
    """They are as long as the server says, and draw no drafts."""
    words = ("-sc.method", "ngram", "-sc.num_speculative_tokens", "4", "-sc.prompt_lookup_max", "3", *FLOAT)
    resolved = config(tmp_path, *words, "--max-model-len", "512")
    options = {name: resolved.file.options[name] for name in ("window", "longest", "shortest")}
    assert (resolved.algorithm, options) == ("NGRAM", {"window": 512, "longest": 3, "shortest": 3})
    result = run("--", TARGET, *words)
    assert result.exit_code == 1
    assert f"'{TARGET[:60]}' is the value of no argument" in result.stderr
    result = run("--", "vllm", "serve", TARGET, *words, "--max-model-len", "auto")
    assert result.exit_code == 1
    assert "drafts are looked up in as many tokens as a text may have, and nothing says how many" in result.stderr


def test_how_tokens_are_verified() -> None:
    """Requests of a default server draw, and so does the program, unless it is asked for otherwise."""
    served = ("vllm", "serve", TARGET, *EAGLE, *FLOAT)
    result = run("--name", "mine", "--", *served)
    assert "serves greedy requests and those with temperature, top_k, top_p; vLLM's own step serves" in result.stderr
    assert "\nname: mine\n" in f"\n{result.stdout}"
    result = run("--verify", "greedy", "--", *served)
    assert (result.exit_code, "verify" in result.stdout, "coupled" in result.stdout) == (0, False, False)
    assert "serves greedy requests; vLLM's own step serves all others, those that sample among" in result.stderr
    result = run("--sampling", "top_k", "--", *served)
    assert '\nsampling: ["top_k"] # --sampling\n' in result.stdout
    result = run("--verify", "rejection", "--", *served)
    assert "--verify rejection beside --speculative-config.draft_sample_method greedy is not served" in result.stderr
    assert (
        'hint: write --speculative-config.draft_sample_method "probabilistic", for the server as well' in result.stderr
    )


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_drafts_that_are_drawn_are_weighed_as_the_server_does(verify: str) -> None:
    drawn = ["-sc.draft_sample_method=probabilistic"] + ["-sc.rejection_sample_method=block"] * (verify == "block")
    served = ("vllm", "serve", TARGET, *EAGLE, *FLOAT, *drawn)
    result = run("--", *served)
    origin = {"rejection": "draft_sample_method", "block": "rejection_sample_method"}[verify]
    assert f'\nverify: "{verify}" # --speculative-config.{origin}\n' in result.stdout
    assert '\nsampling: ["top_k", "top_p"] # --sampling\n' in result.stdout
    assert "draft_sampling" not in result.stdout
    assert "serves greedy requests and those with temperature, top_k, top_p; vLLM's own step serves" in result.stderr
    for refused, hint in ((("--verify", "target_only"), "--verify"), (("--head", "int8"), "--head")):
        result = run(*refused, "--", *served)
        assert f"error[config/engine-unsupported]: with vLLM 0.33.0, {' '.join(refused)} beside" in result.stderr
        assert f"hint: leave {hint} out" in result.stderr


def test_a_verification_of_blocks_without_draws_is_that_of_the_target_alone() -> None:
    """Greedy drafts are accepted as the target draws, whether one after the other or all together."""
    result = run("--", "vllm", "serve", TARGET, *EAGLE, *FLOAT, "-sc.rejection_sample_method=block")
    assert '\nverify: "target_only" # --verify\n' in result.stdout


def test_the_server_is_told() -> None:
    result = run("--gpu", "b200", "--", f"vllm serve {TARGET} --port 8000 {' '.join(EAGLE)} --dtype bfloat16")
    assert result.exit_code == 0, result.output
    settings = {line.split()[0]: " ".join(line.split()[1:]) for line in result.stderr.splitlines() if line.split()}
    assert settings["server"] == "vLLM 0.33.0 on sm_100: --gpu b200"
    assert settings["runner"] == "V2: vLLM's default, and nothing here that it lacks"
    assert settings["attention"] == "FLASHINFER: vLLM's choice on sm_100 for mha in bfloat16"
    assert settings["batches"].startswith("up to 256, ")
    assert settings["captured"].startswith("drafts are one graph: in batches of up to 256")
    assert settings["requests"] == "up to 1024 at once: vLLM's default for 180 GiB of GPU memory"
    assert settings["sampling"].startswith("requests that say nothing of it draw with temperature")
    assert "say nothing about the program: --port\n" in result.stderr


def test_what_is_not_served_is_told_with_the_server() -> None:
    result = run("--", "vllm", "serve", TARGET, *EAGLE, *FLOAT, "-pp", "2", "-sc.rejection_sample_method=fly")
    assert result.exit_code == 1, "keys behind dots replace none of those with an argument of their own"
    assert result.stdout == ""
    assert "runner" in result.stderr
    for refusal in (
        "pipeline parallelism (pipeline_parallel_size 2)",
        "another rejection sampler (rejection_sample_meth",
    ):
        assert f"error[config/engine-unsupported]: with vLLM 0.33.0, {refusal}" in result.stderr
    assert "hint: leave --pipeline-parallel-size out, or write 1" in result.stderr
    assert "leave --speculative-config.rejection_sample_method out, or write standard or block" in result.stderr


def test_an_unknown_gpu_is_wrong_usage() -> None:
    assert run("--gpu", "h101", "--", "vllm", "serve", TARGET).exit_code == 2


ADAPTIVE = ("-sc.enable_adaptive_verification", "true")
DRAFTED = ("-sc.method", "eagle", "-sc.model", "eagle", "-sc.num_speculative_tokens", "3", *ADAPTIVE, *FLOAT)


def test_a_server_that_verifies_adaptively_gives_rows(tmp_path: Path) -> None:
    for verify in ("target_only", "greedy"):
        written = config(tmp_path, *DRAFTED, options=("--gpu", "h100", "--verify", verify))
        assert (written.rows_given, written.file.verify) == (True, verify)
    assert not config(tmp_path, *DRAFTED[:-4], *FLOAT, options=("--gpu", "h100")).rows_given


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (("--enforce-eager",), (), "vLLM: Adaptive verification requires full CUDA graphs"),
        (("-cc.cudagraph_mode", "PIECEWISE"), (), "vLLM: Adaptive verification requires full CUDA graphs"),
        (("--enable-lora",), (), "vLLM: Adaptive verification is not currently compatible with LoRA"),
        (("--attention-backend", "FLASHINFER"), (), "vLLM: FLASHINFER: device-cpu query lens mismatch not supported"),
        (
            ("-sc.num_speculative_tokens_per_batch_size", "[[1, 4, 3], [5, 64, 1]]"), (),
            "adaptive verification beside num_speculative_tokens_per_batch_size is not served",
        ),
        ((), ("--head", "int8"), "--head int8 beside adaptive verification is not served"),
        (("-sc.method", "dflash"), (), "adaptive verification with the method dflash is not served"),
    ],
)  # fmt: skip
def test_what_is_not_served_where_a_server_verifies_adaptively(
    words: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    result = run("--gpu", "h100", *options, "--", "vllm", "serve", TARGET, *DRAFTED, *words)
    assert result.exit_code == 1
    assert message in result.stderr, result.stderr
