"""`specc sglang check`: SGLang's arguments become a configuration that passes `specc check`, or are refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import Result
from programs import config_text
from typer.testing import CliRunner

from specc.cli.main import app
from specc.engines.sglang.check.command_line import ANSWERS
from specc.engines.sglang.check.speculation import ALGORITHMS

from .published_heads import heads
from .sglang_words import MODELS, TREE, config, run, words

__all__ = ["heads"]
EAGLE3 = {"--speculative-algorithm": "EAGLE3", "--speculative-draft-model-path": "eagle3_reduced"}
MAPPED = {
    "--speculative-algorithm": "EAGLE",
    "--speculative-draft-model-path": "eagle",
    "--speculative-token-map": "map.pt",
}
DOCS = Path(__file__).resolve().parents[4] / "docs"
LOOKED_UP = {"--speculative-algorithm": "NGRAM", "--speculative-draft-model-path": None}


def test_a_chain(tmp_path: Path) -> None:
    resolved = config(tmp_path, {"--max-running-requests": "12", "--page-size": "16"})
    assert (resolved.name, resolved.file.engine, resolved.algorithm) == ("sglang_standalone", "sglang", "STANDALONE")
    assert (resolved.file.topk, resolved.num_steps, resolved.num_nodes, resolved.file.page_size) == (1, 3, 4, 16)
    assert (resolved.max_requests, resolved.file.buckets) == (12, [1, 2, 3, 4, 5, 6, 7, 8, 10, 12])
    assert (resolved.target.dtype, resolved.target.kv_dtype, resolved.file.draft_positions) == (
        "float32",
        "float32",
        "shifted",
    )


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, 48),
        ({"--max-running-requests": "33"}, 33),
        ({"--max-running-requests": "32"}, 96),
        ({"--max-running-requests": "12"}, 36),
        ({"--max-running-requests": "12", "--disaggregation-decode-extra-slots": "5"}, 17),
        ({"--max-running-requests": "12", "--disaggregation-decode-extra-slots": "0"}, 12),
    ],
)
def test_a_server_that_decodes_has_rows_for_requests_on_their_way(
    tmp_path: Path, changes: dict[str, str], rows: int
) -> None:
    """A step has those alone that run."""
    resolved = config(tmp_path, changes | {"--disaggregation-mode": "decode"})
    assert resolved.max_requests == rows
    running = int(changes.get("--max-running-requests", 48))
    assert resolved.file.buckets[-1] == running
    written = run("--", *words(changes | {"--disaggregation-mode": "decode"})).stdout
    assert f"and {rows - running} on their way from the server that prefills" in written
    assert config(tmp_path, changes | {"--disaggregation-mode": "null"}).max_requests == running


def test_a_server_that_prefills_is_told_where_the_program_belongs() -> None:
    result = run("--", *words({"--disaggregation-mode": "prefill"}))
    assert "leave --disaggregation-mode out, or write null or decode" in result.stderr


def test_the_width_of_a_chain_is_its_steps_and_one(tmp_path: Path) -> None:
    """SGLang corrects another number, with a warning."""
    assert config(tmp_path, {"--speculative-num-draft-tokens": "9"}).num_nodes == 4


def test_a_tree_on_a_gpu_and_on_a_cpu(tmp_path: Path) -> None:
    resolved = config(tmp_path, TREE)
    assert (resolved.file.topk, resolved.num_nodes, resolved.file.mask, resolved.file.context_length) == (
        4,
        12,
        "full",
        2048 + 8,
    )
    assert config(tmp_path, TREE | {"--context-length": "512"}).file.context_length == 512 + 8
    for backend in ("intel_amx", None):
        resolved = config(tmp_path, TREE | {"--device": "cpu", "--attention-backend": backend})
        assert (resolved.file.mask, resolved.file.context_length) == ("qlen", None)
    chosen = run("--", *words(TREE | {"--device": "cpu", "--attention-backend": None})).stdout
    assert "mask: qlen # what intel_amx attention reads" in chosen, "and not what a GPU's does, which has the same mask"


def test_ranks(tmp_path: Path) -> None:
    """Each has its share of the heads in its pool, or one head that others have as well; one rank is no line."""
    resolved = config(tmp_path, TREE | {"--tensor-parallel-size": "2"})
    assert (resolved.file.tensor_parallel, resolved.file.logits) == (2, "gathered")
    assert resolved.draft is not None
    assert (resolved.target.num_kv_heads, resolved.draft.num_kv_heads) == (2, 1)
    assert (resolved.target.kv_row_bytes, resolved.draft.kv_row_bytes) == (64 * 4, 64 * 4)
    assert config(tmp_path, TREE | {"--tp-size": "4"}).target.kv_row_bytes == 64 * 4
    assert config(tmp_path, TREE).target.kv_row_bytes == 2 * 64 * 4
    assert "tensor_parallel: 2 # --tp-size" in run("--", *words({"--tp": "2"})).stdout
    shared_out = run("--", *words({"--tp": "2", "--ep-size": "2"}))
    assert "tensor_parallel: 2 # --tp-size" in shared_out.stdout
    assert "error" not in shared_out.stderr
    assert "tensor_parallel" not in run("--", *words({"--tp": "1"})).stdout
    result = run("--", *words({"--tp": "3"}))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[config/out-of-range]" in result.stderr


def test_logits_that_stay_with_their_ranks(tmp_path: Path) -> None:
    """The columns are written, as SGLang pads heads; those of one rank are all tokens."""
    resolved = config(tmp_path, TREE | {"--tp-size": "4"}, options=("--logits", "sharded"))
    assert resolved.draft is not None
    assert (resolved.file.tensor_parallel, resolved.file.logits) == (4, "sharded")
    assert (resolved.target.padded_vocab_size, resolved.draft.padded_vocab_size) == (2048, 2048)
    directory = tmp_path / "odd"
    directory.mkdir()
    facts = json.loads((MODELS / "target" / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(facts | {"vocab_size": 2050}))
    odd = {"--model-path": str(directory), "--speculative-draft-model-path": str(directory)}
    for ranks, columns in (("2", 2112), ("1", 2050)):
        result = run("--logits", "sharded", "--", *words(odd | {"--tp-size": ranks}))
        assert result.exit_code == 0, result.output
        expected = f"  padded_vocab_size: {columns} # the head of 2050 tokens, as SGLang pads it for {ranks} ranks\n"
        assert result.stdout.count(expected) == 2
    directory = tmp_path / "part"
    directory.mkdir()
    facts = json.loads(Path("eagle3", "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(facts | {"draft_vocab_size": 1500}))
    part = {"--speculative-algorithm": "EAGLE3", "--speculative-draft-model-path": str(directory), "--tp-size": "2"}
    resolved = config(tmp_path, part, options=("--logits", "sharded"))
    assert resolved.draft is not None
    assert (resolved.target.padded_vocab_size, resolved.draft.padded_vocab_size) == (2048, 1536)
    assert "logits" not in run("--", *words({"--tp-size": "2"})).stdout
    result = run("--logits", "split", "--", *words({"--tp-size": "2"}))
    assert (result.exit_code, "error[config/out-of-range]" in result.stderr) == (1, True)
    result = run("--logits", "sharded", "--verify", "target_only", "--", *words({"--tp-size": "2"}))
    assert (result.exit_code, "verify: target_only with logits: sharded" in result.stderr) == (1, True)


def test_a_token_map_on_several_ranks() -> None:
    """Of an EAGLE head it names rows of the target's, of which each rank has a part; EAGLE3 heads have their own."""
    changes = {"--tp-size": "2", "--speculative-algorithm": "EAGLE", "--speculative-token-map": "map.pt"}
    result = run("--", *words(changes | {"--speculative-draft-model-path": "eagle"}))
    assert result.exit_code == 1
    assert "a token map that names rows of a head of which each rank has a part is not served" in result.stderr
    eagle3 = {"--speculative-algorithm": "EAGLE3", "--speculative-draft-model-path": "eagle3"}
    assert run("--", *words(changes | eagle3)).exit_code == 0


@pytest.mark.parametrize(
    ("algorithm", "draft", "ranks"),
    [("STANDALONE", str(MODELS / "standalone"), "1"), ("EAGLE", "eagle", "1"), ("EAGLE", "eagle", "2")],
)
@pytest.mark.usefixtures("heads")
def test_a_head_of_tokens_that_a_file_names(tmp_path: Path, algorithm: str, draft: str, ranks: str) -> None:
    """Of any draft, on any number of ranks; the server is told where the file is."""
    (file := tmp_path / "tokens.json").write_text(json.dumps([*range(0, 2048, 3)]))
    asked = ("--head", "int8", "--token-map", str(file))
    changes = {"--speculative-algorithm": algorithm, "--speculative-draft-model-path": draft, "--tp-size": ranks}
    resolved = config(tmp_path, changes, options=asked)
    assert resolved.draft is not None and resolved.draft.head == "int8"
    assert (resolved.draft.token_map, resolved.draft.vocab_size, resolved.target.vocab_size) == (str(file), 683, 2048)
    said = run(*asked, "--", *words(changes)).stderr
    assert f"the server is started with SPECC_TOKEN_MAP={file}" in " ".join(said.split())


@pytest.mark.parametrize(
    ("options", "changes", "what"),
    [
        ((), {}, "--token-map is of a head that the program computes"),
        (("--head", "fp8"), EAGLE3, "--token-map is of a draft that scores all tokens, and this one has a map"),
        (("--head", "fp8"), MAPPED, "--token-map and --speculative-token-map both say which tokens are drafted"),
        ((), LOOKED_UP, "--token-map is of a model that drafts, and drafts are looked up"),
    ],
)
@pytest.mark.usefixtures("heads")
def test_a_file_of_tokens_that_nothing_scores(
    tmp_path: Path, options: tuple[str, ...], changes: dict[str, str | None], what: str
) -> None:
    (file := tmp_path / "tokens.json").write_text("[1, 2, 3]")
    (tmp_path / "map.pt").write_text("[1, 2, 3]")
    changes = {key: value and value.replace("map.pt", str(tmp_path / "map.pt")) for key, value in changes.items()}
    result = run(*options, "--token-map", file, "--", *words(changes))
    assert (result.exit_code, what in " ".join(result.stderr.split())) == (1, True), result.stderr


def test_a_file_that_a_server_does_not_read(tmp_path: Path) -> None:
    """Though a build does: torch has saved it; and what is none at all, or none of the target's."""
    torch.save([1, 2, 3], tmp_path / "tokens.pt")
    (tmp_path / "tokens.json").write_text("[3, 2, 1]")
    expected = {
        "tokens.pt": "is no JSON array, which alone a server reads",
        "missing": "cannot read",
        "tokens.json": "3",
    }
    for name, what in expected.items():
        result = run("--head", "fp8", "--token-map", tmp_path / name, "--", *words({}))
        assert result.exit_code == 1
        assert "error[map/" in result.stderr and what in " ".join(result.stderr.split())


def test_nextn_is_eagle(tmp_path: Path) -> None:
    changes = {"--speculative-algorithm": "nextn", "--speculative-draft-model-path": "eagle"}
    assert config(tmp_path, changes).algorithm == "EAGLE"


def test_dtypes(tmp_path: Path) -> None:
    resolved = config(tmp_path, {"--dtype": None})
    assert (resolved.target.dtype, resolved.target.kv_dtype) == ("float16", "float16")
    resolved = config(tmp_path, {"--dtype": "half", "--kv-cache-dtype": "fp8_e4m3"})
    assert resolved.draft is not None
    assert (resolved.target.dtype, resolved.target.kv_dtype, resolved.draft.kv_dtype) == (
        "float16",
        *["float8_e4m3fn"] * 2,
    )
    changes = {"--kv-cache-dtype": "fp8_e5m2", "--speculative-draft-kv-cache-dtype": "bf16"}
    resolved = config(tmp_path, changes)
    assert resolved.draft is not None
    assert (resolved.target.kv_dtype, resolved.draft.kv_dtype) == ("float8_e5m2", "bfloat16")


@pytest.mark.parametrize(
    ("changes", "buckets", "requests"),
    [
        ({}, (*range(1, 9), *range(10, 33, 2), 40, 44, 48), 48),
        ({"--cuda-graph-bs-decode": "4 2 100", "--max-running-requests": "20"}, (2, 4, 20), 20),
        ({"--cuda-graph-bs-decode": "4 2", "--max-running-requests": "20"}, (2, 4), 20),
        ({"--cuda-graph-max-bs-decode": "4", "--max-running-requests": "20"}, (1, 2, 3, 4), 20),
        ({"--cuda-graph-max-bs-decode": "64", "--max-running-requests": "20"}, (*range(1, 9), *range(10, 21, 2)), 20),
        ({"--max-running-requests": "1"}, (1,), 1),
    ],
)
def test_buckets_are_no_larger_than_the_servers_graphs(
    tmp_path: Path, changes: dict[str, str | None], buckets: tuple[int, ...], requests: int
) -> None:
    resolved = config(tmp_path, changes)
    assert (tuple(resolved.file.buckets), resolved.max_requests) == (buckets, requests)


def test_spellings_of_the_command_line(tmp_path: Path) -> None:
    """An equals sign, other names, unique beginnings; what the program does not depend on is told."""
    changes = {"--model-path": None, "--attention-backend": None, "--speculative-draft-model-path": None}
    draft = ("--speculative-draft-model", str(MODELS / "standalone"))
    more = (f"--model={MODELS / 'target'}", "--attention-b=triton", *draft, "--tp", "1")
    assert config(tmp_path, changes, *more).name == "sglang_standalone"
    result = run("--name", "mine", "--", *words({}), "--port", "3000", "--enable-metrics")
    assert result.exit_code == 0, result.output
    assert "say nothing about the program: --enable-metrics, --port\n" in result.stderr
    assert "name: mine\n" in result.stdout


def sampled(*options: str, **changes: str) -> Result:
    """A run with options of its own, and thresholds of SGLang's."""
    thresholds = {f"--speculative-accept-threshold-{name}": value for name, value in changes.items()}
    return run(*options, "--", *words({**thresholds}))


def test_how_tokens_are_verified() -> None:
    """Greedily, unless it is asked for otherwise; and who will be served is told."""
    result = sampled()
    assert "verify" not in result.stdout
    assert "serves greedy requests; SGLang's own step serves all others, those that sample among" in result.stderr
    result = sampled("--verify", "target_only", single="1.0", acc="1")
    assert '\nverify: "target_only" # --verify\n' in result.stdout
    assert "sampling:" not in result.stdout
    assert "serves greedy requests and those with temperature, sampling_seed; SGLang's own" in result.stderr
    result = sampled("--verify", "target_only", "--sampling", "min_p, top_k")
    assert '\nsampling: ["min_p", "top_k"] # --sampling\n' in result.stdout
    assert "serves greedy requests and those with temperature, sampling_seed, top_k, min_p;" in result.stderr


def test_experts_that_tokens_went_to(tmp_path: Path) -> None:
    """They are handed out where the server returns them, and nowhere else."""
    facts = json.loads((MODELS / "target" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(facts | {"num_experts_per_tok": 2}))
    routed, returned = {"--model-path": str(tmp_path)}, {"--enable-return-routed-experts": ""}
    for options, outputs in (
        ((), '["routed_experts"] # --enable-return-routed-experts'),
        (("--outputs", "routed_experts"), '["routed_experts"] # --enable-return-routed-experts'),
        (("--outputs", "logprobs"), '["logprobs", "routed_experts"] # --outputs, --enable-return-routed-experts'),
    ):
        result = run(*options, "--", *words(routed | returned))
        assert result.exit_code == 0, result.output
        assert f"outputs: {outputs}\n" in result.stdout
        assert "say nothing" not in result.stderr
    result = run("--outputs", "routed_experts", "--", *words(routed))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--outputs routed_experts is for a server with --enable-return-routed-experts" in result.stderr
    result = run("--", *words(returned))
    assert (result.exit_code, "error[config/missing-key]" in result.stderr) == (1, True)


def test_what_is_handed_out() -> None:
    result = run("--outputs", "logprobs", "--", *words({}))
    assert '\noutputs: ["logprobs"] # --outputs\n' in result.stdout
    assert "serves greedy requests and those with return_logprob; SGLang's own step serves all others" in result.stderr
    result = run(
        "--outputs", "logprobs", "--verify", "target_only", "--sampling", "penalties, grammar", "--", *words({})
    )
    known = "temperature, sampling_seed, penalties, grammar, return_logprob"
    assert f"serves greedy requests and those with {known}; SGLang's own step serves all others\n" in result.stderr
    assert "outputs" not in run("--", *words({})).stdout
    result = run("--outputs", "logprobs", "--best-logprobs", "5", "--", *words({}))
    assert "\nbest_logprobs: 5 # --best-logprobs\n" in result.stdout
    assert "those with return_logprob, top_logprobs_num up to 5; SGLang's own" in result.stderr


@pytest.mark.parametrize("backend", ["outlines", "none"])
def test_grammars_that_make_no_bitmasks(backend: str) -> None:
    """Are nothing to a program without grammars."""
    arguments = words({"--grammar-backend": backend})
    result = run("--verify", "target_only", "--sampling", "grammar", "--", *arguments)
    assert result.exit_code == 1
    assert f"--grammar-backend {backend} with grammars is not served" in result.stderr
    assert run("--verify", "target_only", "--", *arguments).exit_code == 0
    fine = words({"--grammar-backend": "xgrammar"})
    assert run("--verify", "target_only", "--sampling", "grammar", "--", *fine).exit_code == 0


def test_thresholds_below_one_are_for_greedy_programs() -> None:
    """SGLang then accepts more than its target samples; greedy requests know nothing of it."""
    assert sampled(single="0.5", acc="0.9").exit_code == 0
    result = sampled("--verify", "target_only", single="0.5", acc="0.9")
    assert result.exit_code == 1
    assert "error[config/engine-unsupported]" in result.stderr
    assert "--speculative-accept-threshold-single 0.5 with sampling is not served" in result.stderr
    assert "--speculative-accept-threshold-acc 0.9 with sampling is not served" in result.stderr


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--verify", "sometimes"), "config/out-of-range"),
        (("--verify", "target_only", "--sampling", "top_q"), "config/out-of-range"),
        (("--sampling", "top_k"), "legal/sampling"),
    ],
)
def test_how_tokens_cannot_be_verified(options: tuple[str, ...], code: str) -> None:
    result = sampled(*options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"error[{code}]" in result.stderr
    assert f"# {options[-2]}" in result.stderr, "the line that was written"


def test_every_algorithm_of_sglang_is_served_or_named_as_not_served() -> None:
    text = (DOCS / "sglang.md").read_text(encoding="utf-8")
    served, own = set(ALGORITHMS) | {"NEXTN"}, ANSWERS.algorithms
    assert served <= own
    listed = text.partition("* of SGLang's own algorithms:\n")[2].partition("* of models:")[0]
    assert {name for name in own if re.search(rf"\b{name}\b", listed)} == own - served


def test_an_algorithm_that_is_unknown_to_sglang() -> None:
    result = run("--", *words({"--speculative-algorithm": "EAGLE4"}))
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.findall(r"error\[(.*?)\]: (.*)", result.stderr) == [
        ("config/engine-argument", "--speculative-algorithm EAGLE4 is none of SGLang 0.5.23's own")
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--speculative-algorithm": "UNO"}, "--speculative-algorithm UNO is not served"),
        (
            {"--lora-backend": "triton_v2"},
            "LoRA with graphs of its own for batches without adapters (lora_backend triton_v2)",
        ),
        ({"--speculative-algorithm": "STANDALONE", "--enable-lora": ""}, "LoRA with STANDALONE"),
        ({"--moe-a2a-backend": "deepep"}, "expert parallelism by all-to-all (moe_a2a_backend deepep)"),
        ({"--speculative-draft-window-size": "512"}, "a window of the draft's (speculative_draft_window_size 512)"),
        (
            {"--json-model-override-args": '{"a":1}'},
            "a model other than its config.json says (--json-model-override-args)",
        ),
        (
            {"--speculative-algorithm": "STANDALONE", "--speculative-token-map": "map.pt"},
            "--speculative-token-map of STANDALONE",
        ),
        ({"--enable-multi-layer-eagle": ""}, "multi-layer EAGLE of another algorithm"),
        (
            {"--speculative-algorithm": "EAGLE", "--enable-multi-layer-eagle": ""},
            "a module for each step of LlamaForCausalLM",
        ),
        ({"--speculative-use-rejection-sampling": ""}, "--speculative-use-rejection-sampling with STANDALONE"),
        ({"--pp-size": "2"}, "pipeline parallelism (pp_size 2)"),
        ({"--moe-dense-tp-size": "1"}, "hidden states that are scattered over ranks (moe_dense_tp_size 1)"),
        ({"--enable-eplb": ""}, "experts that are balanced while the server runs"),
        ({"--data-parallel-size": "2"}, "data parallelism (dp_size 2)"),
        ({"--enable-layernorm-sp": ""}, "hidden states that are scattered over ranks"),
        ({"--disaggregation-mode": "prefill"}, "a server that only prefills (disaggregation_mode prefill)"),
        ({"--enable-pd-role-switch": ""}, "prefill and decode that change places while servers run"),
        ({"--attention-backend": "hpc_ops"}, "hpc_ops attention on cuda (draft)"),
        ({"--attention-backend": "trtllm_mha", **TREE}, "a tree with trtllm_mha attention (draft)"),
        ({"--attention-backend": "flashmla"}, "flashmla attention over a KV cache of the layout mha (extend)"),
        ({"--attention-backend": "intel_amx"}, "intel_amx attention on cuda (verify)"),
        ({"--device": "npu"}, "--device npu"),
        ({"--kv-cache-dtype": "nvfp4"}, "--kv-cache-dtype nvfp4"),
    ],
)
def test_what_is_not_served(changes: dict[str, str | None], message: str) -> None:
    """Once for each role where it is of attention."""
    result = run("--", *words(changes))
    assert result.exit_code == 1
    assert result.stdout == ""
    errors = re.findall(r"error\[(.*?)\]: with SGLang \d+\.\d+\.\d+, (.*)", result.stderr)
    expected = message if message.endswith("served") else f"{message} is not served"
    assert ("config/engine-unsupported", expected) in errors
    assert (
        len(errors) == result.stderr.count("error[") == (3 if re.search(r"\((draft|verify|extend)\)", message) else 1)
    )


def test_attention_that_sglang_was_not_asked_for(tmp_path: Path) -> None:
    """Is told of a class that the release does not have, and is none where the server's own is written."""
    facts = json.loads((MODELS / "target" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(facts | {"architectures": ["OfNobodyForCausalLM"]}))
    result = run("--gpu", "h100", "--", *words({"--model-path": str(tmp_path), "--attention-backend": None}))
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.search(
        r"error\[config/engine-argument\]: SGLang \S+ has not said which attention it takes", result.stderr
    )
    assert "on sm_90 for OfNobodyForCausalLM" in result.stderr and "write --attention-backend" in result.stderr
    assert run("--gpu", "h100", "--", *words({"--model-path": str(tmp_path)})).exit_code == 0


@pytest.mark.parametrize(
    ("shapes", "changes", "message"),
    [
        (",", {}, "--shapes ',' is not the name of a shape"),
        ("3,x", {}, "--shapes 'x' is not the name of a shape"),
        ("\uff13", {}, "--shapes '\uff13' is not the name of a shape"),
        ("1", {}, "the server's own shape is not the largest of --shapes"),
        ("3,0", {"--enable-lora": ""}, "--shapes with LoRA is not served"),
        ("3,0", {"--lora-paths": "terse=adapter"}, "--shapes with LoRA is not served"),
    ],
)
def test_shapes_that_no_server_has(shapes: str, changes: dict[str, str | None], message: str) -> None:
    result = run("--shapes", shapes, "--", *words(changes))
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr


@pytest.mark.parametrize("command", ["check", "explain", "report", "build"])
def test_an_engine_beside_the_file(tmp_path: Path, command: str) -> None:
    """Commands that compile take the engine on the command line; an unknown one is a usage error."""
    path, more = tmp_path / "small.yaml", ["-o", str(tmp_path), "--emit", "plan"] if command == "build" else []
    more = ["-o", str(tmp_path / "page.html")] if command == "report" else more
    path.write_text(config_text("STANDALONE", draft_positions="shifted", buckets=[1]))
    result = CliRunner().invoke(app, [command, str(path), "--engine", "sglang", *more])
    assert result.exit_code == 0, result.output
    if command == "build":
        assert json.loads((tmp_path / "plan.json").read_text())["engine"] == "sglang"
    path.write_text(config_text("STANDALONE", overlap=False))
    result = CliRunner().invoke(app, [command, str(path), "--engine", "sglang", *more])
    assert (result.exit_code, "config/engine-conflict" in result.stderr) == (1, True)
    result = CliRunner().invoke(app, [command, str(path), "--engine", "unknown", *more])
    assert (result.exit_code, "there are sglang" in result.stderr) == (2, True)


LINES = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029")
"""What ends a line, for YAML or for anybody."""


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("key", ["architectures", "model_type", "torch_dtype", "quantization_config"])
def test_what_a_model_says_makes_no_lines(engine: str, key: str, tmp_path: Path) -> None:
    """The configuration has the keys, and as many lines, that it has of a model that says something plain."""
    written = dict[str, list[str]]()
    for ending in ("", *LINES):
        word = f"Other{ending}verify: target_only{ending}# "
        says = {"architectures": [word], "quantization_config": {"quant_method": word}}.get(key, word)
        models = {name: json.loads((MODELS / name / "config.json").read_text()) for name in ("target", "standalone")}
        for name, keys in models.items():
            (tmp_path / name).mkdir(exist_ok=True)
            refused = name == "standalone" and key == "architectures"  # a draft of a class that no engine has
            (tmp_path / name / "config.json").write_text(json.dumps(keys | ({} if refused else {key: says})))
        target, draft = (str(tmp_path / name) for name in models)
        server = {
            "sglang": ["--model-path", target, "--speculative-algorithm", "STANDALONE", "--attention-backend", "triton",
                       "--speculative-draft-model-path", draft, "--dtype", "float16"],
            "vllm": ["--model", target, "--spec-model", draft, "--spec-tokens", "2", "--dtype", "float16"],
        }[engine]  # fmt: skip
        result = CliRunner().invoke(app, [engine, "check", "--gpu", "h100", "--", *server])
        assert result.exit_code in (0, 1), result.output
        written[ending] = [line.partition(":")[0] for line in result.stdout.splitlines() if not line.startswith("#")]
        assert len(result.stdout.splitlines()) == result.stdout.count("\n")
        assert not any(line.startswith("verify: target_only#") for line in result.stdout.splitlines())
    assert len({tuple(keys) for keys in written.values()}) == 1
    assert key not in ("architectures", "quantization_config") or written["\n"]
