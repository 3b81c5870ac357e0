"""From a command line of vLLM to the server that it starts: how it may be written, and what vLLM takes by itself.

`tests/vllm/test_vllm_published.py` compares the same with vLLM's own resolution.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specc.compiler.config.archs import Gpu, cpu, gpu_of
from specc.compiler.config.wanted import Wanted
from specc.compiler.support.diagnostics import DiagnosticError
from specc.engines.vllm.check.asked import SCRIPT, ServerAnswer, ask
from specc.engines.vllm.check.command_line import ANSWERS, COMPILATION, SPECULATION, parse
from specc.engines.vllm.check.defaults import (
    attention,
    block_of,
    buckets_up_to,
    is_captured,
    max_requests,
    most_captured,
)
from specc.engines.vllm.check.server import Started, started
from specc.engines.vllm.check.written import configuration

PLAIN = ["--model", "m", "--tensor-parallel-size", "2"]
VALUES = {"--model": ["m"], "--tensor-parallel-size": ["2"]}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048, "torch_dtype": "bfloat16",
    "max_position_embeddings": 2048, "intermediate_size": 512,
}  # fmt: skip
MODULES = LLAMA | {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_nextn_predict_layers": 2,
}  # fmt: skip
H100 = gpu_of("h100")


@pytest.mark.parametrize(
    "words",
    [
        PLAIN,
        ["vllm", "serve", "m", "-tp", "2"],
        ["/opt/bin/vllm", "serve", "--model", "m", "-tp=2"],
        ["python3", "-m", "vllm.entrypoints.openai.api_server", "\\", *PLAIN, "\\\n"],
        ["CUDA_VISIBLE_DEVICES=0", "vllm", "serve", "m", "--tensor_parallel_size=2"],
        ["docker run --gpus all -e A=1 vllm/vllm-openai:v0.33.0 --model m -tp 2"],
        ["vllm serve m \\\n  --tensor-par 2 # two GPUs"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_forms_of_a_command_line(words: list[str]) -> None:
    arguments = parse(words)
    assert (arguments.values, arguments.findings.errors, arguments.unused) == (VALUES, (), [])


@pytest.mark.parametrize(
    "words",
    [
        [SPECULATION, '{"method": "ngram", "num_speculative_tokens": 4}'],
        ["-sc", '{"method": "ngram", "num-speculative-tokens": 4}'],
        ["--speculative_config.method", "ngram", "-sc.num_speculative_tokens=4"],
        ["--spec-method", "ngram", "--spec-tokens", "4"],
        [f'{SPECULATION}={{"method": "eagle"}}', "-sc.num-speculative-tokens", "4", "-sc.method", "ngram"],
        [SPECULATION, '{"method": "eagle", "a": 1}', "-sc", '{"method": "ngram", "num_speculative_tokens": 4}'],
    ],
)
def test_ways_to_say_how_drafts_are_made(words: list[str]) -> None:
    assert parse(words).block(SPECULATION) == {"method": "ngram", "num_speculative_tokens": 4}


def test_an_object_is_forgotten_where_keys_are_dotted() -> None:
    """As in vLLM, to which the keys together are a later object."""
    words = [SPECULATION, '{"method": "eagle", "model": "m"}', "-sc.method", "ngram", "--spec-tokens", "4"]
    assert parse(words).block(SPECULATION) == {"method": "ngram", "num_speculative_tokens": 4}


def test_blocks_in_blocks() -> None:
    words = ["-cc.pass_config.fuse_norm", "true", "-cc.pass_config.level=2", "-cc.cudagraph_capture_sizes+", "1,2"]
    block = parse(words).block(COMPILATION)
    assert block == {"pass_config": {"fuse_norm": True, "level": 2}, "cudagraph_capture_sizes": ["1", "2"]}


@pytest.mark.parametrize(("words", "on"), [
    (["--enable-dbo"], True), (["--enable-dbo", "--no-enable-dbo"], False), (["--enable-dbo", "--disable-dbo"], False),
    (["--no-enable-dbo"], False), (["--ubatch-size", "2"], True), (["--enable-dbo", "--port", "8000"], True),
])  # fmt: skip
def test_flags_that_are_taken_back(words: list[str], on: bool) -> None:
    assert parse(words).settings()["use_ubatching"] is on


def test_a_file_of_arguments(tmp_path: Path) -> None:
    """Those of the command line go before it."""
    file = tmp_path / "server.yaml"
    file.write_text(
        "model: m\ntensor_parallel_size: 2\nport: 8000\nenable-dbo: true\nenable-eplb: false\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 4}\ncudagraph_capture_sizes: [1, 8]\n"
    )
    arguments = parse(["vllm", "serve", "--config", str(file), "-tp", "4"])
    assert (arguments.text("--model"), arguments.number("--tensor-parallel-size")) == ("m", 4)
    assert arguments.block(SPECULATION) == {"method": "ngram", "num_speculative_tokens": 4}
    assert arguments.block(COMPILATION) == {"cudagraph_capture_sizes": [1, 8]}
    assert (arguments.flag("--enable-dbo"), arguments.flag("--enable-eplb"), arguments.unused) == (
        True,
        False,
        ["--port"],
    )


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "\x00", "[" * 5000])
def test_a_file_that_cannot_be_read(text: str, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    (error,) = parse(["--config", str(file)]).findings.errors
    assert error.code == "config/engine-argument"
    (error,) = parse(["--config", str(tmp_path)]).findings.errors
    assert "cannot be read" in error.message


@pytest.mark.parametrize("written", ["[1]", "3", "{", "", "null", "[" * 5000])
def test_what_is_no_object(written: str) -> None:
    (error,) = parse([SPECULATION, written]).findings.errors
    assert error.message.startswith(f"{SPECULATION} takes a JSON object")


@pytest.mark.parametrize("levels", [17, 1000])
def test_objects_that_are_too_deep(levels: int) -> None:
    """Whether they are written or said behind dots, once or twice: what joins them goes as deep as they do."""
    dotted = COMPILATION + ".a" * levels
    written = '{"a": ' * levels + "1" + "}" * levels
    lists = '{"a": ' + "[" * levels + "]" * levels + "}"
    for words in ([dotted, "1"] * 2, [COMPILATION, written, dotted, "1"], [COMPILATION, lists]):
        errors = parse(words).findings.errors
        assert errors and {error.code for error in errors} == {"config/engine-argument"}
    sixteen = COMPILATION + ".a" * 16
    assert parse([sixteen, "1", sixteen, "2"]).findings.errors == ()


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a target, a draft of its kind, a head, and a target with modules."""
    head = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 512}
    hybrid = json.loads((Path(__file__).parents[3] / "published/Qwen3-Next-80B-A3B-Instruct/config.json").read_text())
    one = LLAMA | {"architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 1}
    configs = {"t": LLAMA, "d": LLAMA, "my-eagle3": LLAMA | head, "one": one, "m": MODULES, "hybrid": hybrid}
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def server(line: str, gpu: Gpu = H100, page_size: int | None = None) -> Started:
    return started(parse([f"vllm serve {line}"]), gpu, page_size)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("line", "method", "algorithm", "steps"), [
    ("t --spec-model d --spec-tokens 2", "draft_model", "STANDALONE", 2),
    ("t --spec-model my-eagle3 --spec-tokens 2", "eagle3", "EAGLE3", 2),
    ("t --spec-model one --spec-method eagle --spec-tokens 2", "eagle", "EAGLE", 2),
    ("m --spec-method deepseek_mtp --spec-tokens 1", "mtp", "EAGLE", 1),
    ("t --spec-model m", "mtp", "MULTI_LAYER_EAGLE", 2),
    ("m --spec-method mtp --spec-tokens 2", "mtp", "MULTI_LAYER_EAGLE", 2),
    ("t --spec-model ngram --spec-tokens 2", "ngram", "NGRAM", 2),
    ("t --spec-method ngram_gpu --spec-tokens 2", "ngram_gpu", "NGRAM", 2),
])  # fmt: skip
def test_methods_that_vllm_settles_on(line: str, method: str, algorithm: str, steps: int) -> None:
    settings = server(line)
    assert (settings.drafting.method.value, settings.algorithm, settings.drafting.num_steps.value) == (
        method,
        algorithm,
        steps,
    )
    assert (settings.facts.modules, settings.facts.rounds) == (steps if algorithm == "MULTI_LAYER_EAGLE" else 1, 1)


FACTS = {"method": "eagle", "modules": 1, "rounds": 1, "assistant": False, "first_runner": "", "settings": {}}
SAID: dict[str, Any] = {
    "version": "9.9", "facts": FACTS, "num_steps": 2, "max_requests": 1024, "largest_graph": 512, "longest": 131072,
    "dtype": "bfloat16", "page_size": None, "options": {}, "hybrid": False,
}  # fmt: skip
"""What vLLM might say of a server."""
HEAD = "vllm serve t --spec-model one --spec-method eagle --spec-tokens 2"


@pytest.mark.usefixtures("models")
def test_where_vllm_says_another_value_it_is_taken() -> None:
    own = server(HEAD.removeprefix("vllm serve "))
    answers = SAID | {"longest": own.longest and own.longest.value}
    same = started(parse([HEAD]), H100, None, ServerAnswer(answers))
    assert replace(same, read_by=None, runner=own.runner, facts=own.facts) == own, "it says the same"
    assert (same.read_by, same.runner.origin) == ("vLLM 9.9 itself",) * 2
    other = started(parse([HEAD]), H100, None, ServerAnswer(answers | {
        "num_steps": 3, "max_requests": 96, "largest_graph": 64, "longest": 77, "dtype": "float16", "page_size": 528,
    }))  # fmt: skip
    facts = (other.drafting.num_steps, other.max_requests, other.longest, other.dtype, other.page_size)
    assert [fact and (fact.value, fact.origin) for fact in facts] == [
        (value, "vLLM 9.9 itself") for value in (3, 96, 77, "float16", 528)
    ]
    assert other.buckets == ((1, 2, 4, 8, 16), "vLLM's largest graph has 64 tokens, a request 4")
    assert other.captured.origin.startswith("in batches of up to 16: ")
    nothing = started(parse([HEAD]), H100, None, ServerAnswer(answers | {"largest_graph": 0}))
    assert nothing.captured.value == "no graphs"
    assert started(parse([HEAD]), H100, 32, ServerAnswer(answers | {"page_size": 528})).page_size.value == 32


@pytest.mark.usefixtures("models")
def test_what_vllm_says_is_what_is_refused() -> None:
    facts = FACTS | {"first_runner": "by its own word", "settings": {"data_parallel_size": 2, "watermark_config": "W"}}
    arguments = parse([HEAD])
    settings = started(arguments, H100, None, ServerAnswer(SAID | {"facts": facts}))
    assert settings.runner.value == "V1"
    assert [error.message.split(", ", 1)[1] for error in arguments.findings.errors] == [
        "vLLM's first model runner (by its own word) is not served",
        "data parallelism (data_parallel_size 2) is not served",
        "watermarks (watermark_config W) is not served",
    ]


@pytest.mark.usefixtures("models")
def test_look_ups_as_vllm_says() -> None:
    words, said = "vllm serve t --spec-method ngram --spec-tokens 2", {"longest": 7, "shortest": 3}
    answer = ServerAnswer(SAID | {"facts": FACTS | {"method": "ngram_gpu"}, "options": said})
    drafting = started(parse([words]), H100, None, answer).drafting
    assert (drafting.method.value, drafting.options) == ("ngram_gpu", said)


def python(folder: Path, script: str) -> Path:
    """Something that stands for the Python of another environment; it is given a script, a job and where to answer."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_vllm_is_asked_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "said.json").write_text(json.dumps([SAID]))
    other = python(tmp_path, f'cp "$2" {tmp_path}/job.json; cp "$1" {tmp_path}/script.py; cp {tmp_path}/said.json "$3"')
    arguments = parse(["A=b VLLM_USE_V2_MODEL_RUNNER=0 vllm serve t --port 8000"])
    answer = ask(arguments, H100, other)
    assert answer is not None and answer.values == SAID
    (asked,) = json.loads((tmp_path / "job.json").read_text())
    assert asked == {
        "words": ["t", "--port", "8000"], "arch": "sm_90", "memory": 80,
        "environment": {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    }  # fmt: skip
    assert (tmp_path / "script.py").read_text() == SCRIPT.read_text()


@pytest.mark.parametrize(("script", "message"), [
    ("""echo '[{"error": "one   two"}]' > "$3" """, "refuses these arguments: one two"),
    ("echo Traceback >&2; echo No module named vllm >&2; exit 1", "refuses these arguments: Traceback No module named"),
    ("echo '[{}]' > \"$3\"; exit 3", "refuses these arguments: it ended with 3"),
])  # fmt: skip
def test_vllm_that_refuses(script: str, message: str, tmp_path: Path) -> None:
    arguments = parse(["vllm serve t"])
    assert ask(arguments, H100, python(tmp_path, script)) is None
    (error,) = arguments.findings.errors
    assert (error.code, message in error.message) == ("config/engine-argument", True), error.message


def test_a_class_that_vllm_cannot_import(tmp_path: Path) -> None:
    said = "Model architectures ['A'] failed to be inspected. Please check the logs"
    arguments = parse(["vllm serve t"])
    assert (
        ask(arguments, H100, python(tmp_path, f"""echo '[{{"error": "{said.replace("'", "")}"}}]' > "$3" """)) is None
    )
    (error,) = arguments.findings.errors
    assert error.hint == "ask on a machine that serves this model, or leave --exact out"


def test_a_python_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        arguments = parse(["vllm serve t"])
        assert ask(arguments, H100, path) is None
        (error,) = arguments.findings.errors
        assert error.message.startswith("--exact: ") and error.hint == "give the Python of an environment with vLLM"


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("line", "message"), [
    ("t", "--speculative-config is missing: nothing is drafted"),
    ("t --spec-model d", "--speculative-config.num_speculative_tokens is missing"),
    ("t --spec-method ngram", "--speculative-config.num_speculative_tokens is missing"),
    ("t --spec-method eagle --spec-tokens 2", "--speculative-config.model is missing"),
    ("t --spec-method what --spec-model d --spec-tokens 2", "--speculative-config.method 'what' is unknown"),
    ("t --spec-method mtp --spec-tokens 2", "vLLM has no modules of multi-token prediction for LlamaForCausalLM"),
    ("m --spec-method mtp --spec-tokens 3", "--speculative-config.num_speculative_tokens is no multiple of"),
    ("t --spec-model d --spec-tokens x", "--spec-tokens takes a positive integer, and this is 'x'"),
    ("t -sc.model d -sc.num_speculative_tokens x", "--speculative-config.num_speculative_tokens takes a positive"),
    ("t -sc.model 3 -sc.num_speculative_tokens 2", "--speculative-config.model takes a text, and this is 3"),
    ("t -sc.method ngram --spec-tokens 2 -sc.prompt_lookup_max 2 -sc.prompt_lookup_min 3", "--speculative-config.prom"),
    ("t --spec-model d --spec-tokens 2 --dtype int8", "--dtype 'int8' is unknown"),
    ("org/model --spec-method ngram --spec-tokens 2", "--model: model directory 'org/model' does not exist"),
    ("hybrid --kv-cache-dtype int4 --spec-method mtp --spec-tokens 2", "blocks of a model with recurrent state are"),
])  # fmt: skip
def test_what_is_missing_or_cannot_be_read(line: str, message: str) -> None:
    with pytest.raises(DiagnosticError) as raised:
        server(line)
    assert raised.value.diagnostics[0].message.startswith(message)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("line", "message"), [
    ("t -pp 2 --spec-model d --spec-tokens 2", "pipeline parallelism (pipeline_parallel_size 2)"),
    ("t -tp 2 --enable-batch-sharded-sampling --spec-model d --spec-tokens 2", "sampling in which each rank has a"),
    ("t --enable-eplb --spec-model d --spec-tokens 2", "experts that move between ranks (enable_eplb)"),
    ("t --spec-method suffix --spec-tokens 2", "the method suffix"),
    ("m --spec-method mtp --spec-tokens 4", "drafting by 2 modules more than once in a step"),
    ("t -sc.draft_sample_method probabilistic --spec-method ngram --spec-tokens 2", "drafts that are drawn with the m"),
    ("t -sc.rejection_sample_method fly --spec-model d --spec-tokens 2", "another rejection sampler (rejection_sam"),
    ("t -sc.use_heterogeneous_vocab true --spec-model d --spec-tokens 2", "vLLM's first model runner (use_hetero"),
    ("t --hf-overrides {\"a\":1} --spec-model d --spec-tokens 2", "a model other than its config.json says"),
    ("t --watermark-config {} --spec-model d --spec-tokens 2", "watermarks (watermark_config)"),
])  # fmt: skip
def test_what_is_refused_by_name(line: str, message: str) -> None:
    arguments = parse(["vllm", "serve", *line.split(" ")])
    try:
        started(arguments, H100)
    except DiagnosticError:
        assert "suffix" in line
    assert any(error.message.startswith(f"with vLLM 0.33.0, {message}") for error in arguments.findings.errors)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("more", "count"), [("", 1), ("-tp 1", 1), ("-tp 2", 2), ("--tensor-parallel-size 4", 4)])
def test_ranks(more: str, count: int) -> None:
    """Each runs the program; the configuration says how many there are, so that heads are shared out among them."""
    line = f"t --spec-model d --spec-tokens 2 {more}".strip()
    arguments = parse(["vllm", "serve", *line.split(" ")])
    settings = started(arguments, H100)
    assert (settings.ranks, arguments.unused) == (count, [])
    written = configuration(arguments, settings, Wanted("ranks"))
    assert ("tensor_parallel: " in written) == any(what == "ranks" for what, _ in settings.described()) == (count > 1)
    assert count == 1 or f"\ntensor_parallel: {count} #" in written


@pytest.mark.usefixtures("models")
def test_the_runner() -> None:
    line = "t --spec-model d --spec-tokens 2"
    assert server(line).runner.value == "V2"
    for variable, runner in (("0", "V1"), ("1", "V2")):
        settings = started(parse([f"VLLM_USE_V2_MODEL_RUNNER={variable} vllm serve {line}"]), H100)
        assert (settings.runner.value, variable in settings.runner.origin) == (runner, True)
    assert server(f"{line} --enable-dbo").runner.value == "V1"


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("more", "largest", "captured"), [
    ("", 170, True), ("--max-num-seqs 32", 32, True), ("--enforce-eager", 256, False), ("-O0", 256, False),
    ("-O3", 170, True), ("-cc.cudagraph_mode NONE", 256, False), ("--max-cudagraph-capture-size 64", 21, True),
    ("--cudagraph-capture-sizes 1 2 30", 10, True), ("-cc.cudagraph_capture_sizes+ 1,2,30", 10, True),
     ("-sc.attention_backend FLASHINFER", 170, False),
    ("--attention-backend triton_attn", 170, True), ("--performance-mode throughput --enforce-eager", 256, False),
    ("--max-num-batched-tokens 300", 100, True), ("--max-num-batched-tokens 8k", 170, True),
    ("--max-num-batched-tokens 300 --max-cudagraph-capture-size 64", 21, True),
])  # fmt: skip
def test_batches_and_what_is_captured(more: str, largest: int, captured: bool) -> None:
    """A request has three tokens in a step here."""
    settings = server(f"t --spec-model d --spec-tokens 2 {more}")
    assert settings.buckets[0][-1] == largest
    assert (settings.captured.value == "drafts are one graph") is captured
    assert len(settings.buckets[0]) <= 64


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("more", "most"), [
    ("", 1024), ("--max-num-seqs 12", 12), ("--performance-mode throughput", 2048),
    ("--performance-mode balanced", 1024), ("--max-num-batched-tokens 8k", 1024), ("--max-num-batched-tokens 200", 200),
])  # fmt: skip
def test_requests_at_once(more: str, most: int) -> None:
    assert server(f"t --spec-model d --spec-tokens 2 {more}").max_requests.value == most


@pytest.mark.usefixtures("models")
def test_a_server_on_a_cpu() -> None:
    """It captures nothing, and has a block of its own; what is written counts."""
    line, here = "t --spec-model d --spec-tokens 2", cpu("here")
    settings = server(line, here)
    assert {role: fact.value for role, fact in settings.attention.items()} == dict.fromkeys(
        ("target", "draft"), "CPU_ATTN"
    )
    assert (settings.page_size.value, settings.max_requests.value, settings.buckets[0][-1]) == (128, 128, 128)
    assert (settings.captured.value, settings.dtype.value) == ("no graphs", "bfloat16")
    assert "on a CPU: here" in dict(settings.described())["server"]
    settings = server(f"{line} -tp 2 --block-size 32 --max-cudagraph-capture-size 64", here)
    assert (settings.page_size.value, settings.max_requests.value, settings.buckets[0][-1]) == (32, 256, 256)
    arguments = parse([f"vllm serve {line}"])
    assert ask(arguments, here, Path("python")) is None
    assert "--exact asks what vLLM does on a GPU" in arguments.findings.errors[0].message


@pytest.mark.usefixtures("models")
def test_pages() -> None:
    line = "t --spec-model d --spec-tokens 2"
    assert server(line).page_size.value == 16
    assert server(f"{line} --block-size 32").page_size.value == 32
    assert server("hybrid --spec-method mtp --spec-tokens 2", page_size=64).page_size.value == 64
    assert block_of({"FLASH_ATTN", "FLASHMLA"}, H100) == 64
    assert (block_of({"FLASHINFER_MLA"}, gpu_of("b200")), block_of({"WHO_KNOWS"}, H100)) == (32, 16)


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("more", "tokens"), [
    ("-tp 4", 320), ("-tp 4 --no-enable-prefix-caching", 288), ("-tp 4 --gdn-prefill-backend triton", 288),
    ("-tp 4 --mamba-ssm-cache-dtype float32", 576), ("-tp 4 --kv-cache-dtype fp8", 576), ("", 576),
    ("-tp 4 --block-size 128", 384), ("-tp 4 --block-size 48", 384),
    ("-tp 4 --no-enable-prefix-caching --spec-tokens 1", 272),
])  # fmt: skip
def test_pages_beside_a_recurrent_state(more: str, tokens: int) -> None:
    """Qwen3-Next: 16 and 32 heads of 128, a convolution over four tokens; two heads of 256 of keys and values.

    On a quarter of it a request leaves 8 * 128 * 128 + 2048 * (3 + 2) elements in a layer, a token 2 * 256.
    """
    assert server(f"hybrid --spec-method mtp --spec-tokens 2 {more}").page_size.value == tokens


def test_modules_are_those_of_a_class_or_else_of_a_type() -> None:
    types = ANSWERS.modules.keys() - ANSWERS.architectures
    for name, of_name in ANSWERS.modules.items():
        assert ANSWERS.modules_of(name, "deepseek_v3") == of_name == ANSWERS.modules_of("NoSuchForCausalLM", name)
    assert types, "some are known by their type"
    assert ANSWERS.modules_of("NoSuchForCausalLM", "no_such") is None


@pytest.mark.usefixtures("models")
def test_prefixes_of_a_recurrent_state_need_chunks() -> None:
    line = "hybrid --spec-method mtp --spec-tokens 2 --no-enable-chunked-prefill"
    with pytest.raises(DiagnosticError, match="does not start without chunked prefill"):
        server(line)
    assert server(f"{line} --no-enable-prefix-caching").page_size.value == 560
    assert server(line.replace("hybrid", "m")).page_size.value == 16


def test_what_a_request_samples_with(models: Path) -> None:
    """Of a request that says nothing of it: what the model says, or else vLLM."""
    line = "t --spec-model d --spec-tokens 2"
    assert server(line).sampled.value == "requests that say nothing of it draw with temperature 1.0"
    (models / "t" / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "eos_token_id": 3}')
    assert server(line).sampled.value == "requests that say nothing of it draw with temperature 0.6, top_k 20"
    assert server(f"{line} --generation-config vllm").sampled.origin == "vLLM's default"
    more = "--override-generation-config.temperature 0"
    assert server(f"{line} {more}").sampled.value == "requests that say nothing of it are greedy"


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("written", "longest"), [
    ("", 2048), ("--max-model-len 512", 512), ("--max-model-len 1k", 1000), ("--max-model-len 1K", 1024),
    ("--max-model-len auto", None), ("--max-model-len -1", None),
])  # fmt: skip
def test_how_long_a_text_may_be(written: str, longest: int | None) -> None:
    length = server(f"t --spec-model d --spec-tokens 2 {written}").longest
    assert (length.value if length is not None else None) == longest


def test_what_vllm_takes_by_itself() -> None:
    """Attention by GPU, requests by its memory, graphs by both."""

    def taken(arch: str, cache: str = "mha", dtype: str = "bfloat16", small: bool = False, of: str = "") -> str | None:
        return attention(Gpu("", arch, ""), cache, dtype, of, small_cache=small)

    assert [taken(arch) for arch in ("sm_80", "sm_90", "sm_120")] == ["FLASH_ATTN"] * 3
    assert [taken(arch) for arch in ("sm_100", "sm_103")] == ["FLASHINFER"] * 2
    assert [taken(arch, "mla") for arch in ("sm_80", "sm_90", "sm_100")] == [
        "TRITON_MLA", "FLASH_ATTN_MLA", "FLASHINFER_MLA",
    ]  # fmt: skip
    assert (taken("sm_90", dtype="float32"), taken("sm_90", of="GptOssForCausalLM")) == ("TRITON_ATTN", "FLASH_ATTN")
    assert (taken("sm_80", of="GptOssForCausalLM"), taken("sm_80", small=True)) == ("TRITON_ATTN", "FLASHINFER")
    assert taken("sm_80", "dsa") is None
    assert [attention(cpu(""), cache, "bfloat16", "", small_cache=False) for cache in ("mha", "mla")] == [
        "CPU_ATTN",
        None,
    ]
    assert [is_captured("FLASHINFER", gpu_of(word)) for word in ("h100", "b200")] == [False, True]
    assert not is_captured("WHO_KNOWS", H100)
    memories = [max_requests(gpu_of(word)) for word in ("h100", "b200", "a100", "l40s", "rtxpro6000")]
    assert memories == [1024, 1024, 256, 256, 1024]
    assert [most_captured(*of) for of in ((1024, 4, H100), (16, 4, H100), (1024, 4, gpu_of("b200")))] == [
        512,
        128,
        1024,
    ]
    assert most_captured(16, 4, H100, "GptOssForCausalLM") == 1024
    assert buckets_up_to(20) == [1, 2, 4, 8, 16, 20]
    assert buckets_up_to(1) == [1]
    assert len(buckets_up_to(1024)) <= 64
