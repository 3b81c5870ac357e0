"""`specc init --engine`: the configuration of a default server's program, and the command that starts the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.test_init import HEAD, LLAMA, ONE_MODULE, folder, init, model
from ruamel.yaml import YAML

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.config.proposal import name_of
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

__all__ = ["folder"]

EXAMPLES = Path(__file__).parents[4] / "examples" / "models"
HEADS = {"sglang": HEAD, "vllm": HEAD | {"architectures": ["EagleLlamaForCausalLM"]}}
"""A head by the class that each engine has for it."""
SERVED = {"verify": "target_only", "sampling": ["top_k", "top_p"], "archs": ["sm_90"]}


@pytest.mark.parametrize(
    ("words", "expected", "server"),
    [
        (
            ["head", "--engine", "sglang"],
            {
                "algorithm": "EAGLE",
                "topk": 4,
                "num_steps": 5,
                "num_draft_tokens": 8,
                "page_size": 1,
                "max_requests": 48,
            },
            "sglang serve --model-path target --speculative-algorithm EAGLE --speculative-draft-model-path head",
        ),
        (
            ["small", "--engine", "sglang", "--topk", 2],
            {"algorithm": "STANDALONE", "topk": 2, "num_steps": 3, "num_draft_tokens": 8},
            "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 8",
        ),
        (
            ["small", "--engine", "sglang", "--num-steps", 2],
            {"topk": 1, "num_steps": 2, "num_draft_tokens": 3},
            "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3",
        ),
        (
            ["head", "--engine", "vllm", "--num-steps", 2],
            {"algorithm": "EAGLE", "topk": 1, "num_steps": 2, "page_size": 16, "max_requests": 1024},
            "vllm serve target --speculative-config "
            '\'{"method": "eagle", "model": "head", "num_speculative_tokens": 2}\'',
        ),
        (
            ["small", "--engine", "vllm"],
            {"algorithm": "STANDALONE", "num_steps": 3, "draft_sampling": "coupled"},
            '{"method": "draft_model", "model": "small", "num_speculative_tokens": 3}',
        ),
    ],
)
def test_a_server_as_people_start_it(words: list[object], expected: dict[str, Any], server: str) -> None:
    model("head", HEADS[str(words[2])])
    ended = init("target", *words, "--gpu", "h100", "-o", "c.yaml")
    assert ended.exit_code == 0, ended.output
    keys = YAML(typ="safe").load(Path("c.yaml"))
    assert {name: keys[name] for name in expected | SERVED} == expected | SERVED
    assert keys["engine"] == words[2]
    assert keys["name"] == name_of(Path("target"), keys["algorithm"])
    (summary,) = (line for line in ended.stderr.splitlines() if line.startswith("the server: "))
    assert server in summary
    wheel = f"dist/specc_program_{keys['name']}-*.whl"
    built = f'the program: specc build c.yaml -o dist && pip install "$(echo {wheel})[cuda]"'
    assert built in ended.stderr.splitlines()


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("sglang", {"mask": "qlen", "topk": 4, "page_size": 1, "max_requests": 48}),
        (
            "vllm",
            {
                "page_size": 128,
                "max_requests": 128,
                "buckets": [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128],
            },
        ),
    ],
)
def test_a_server_without_a_gpu(engine: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine is installed beside a torch for CPUs, or where `--gpu cpu` says so: no CUDA."""
    model("head", HEADS[engine])
    ways = {"installed": [], "said": ["--gpu", "cpu"]}
    for way, words in ways.items():
        monkeypatch.setattr(
            "specc.compiler.config.archs._is_for_cpus", lambda name, way=way: name == engine and way == "installed"
        )
        ended = init("target", "head", "--engine", engine, "-o", "c.yaml", "--force", *words)
        assert ended.exit_code == 0, ended.output
        keys = YAML(typ="safe").load(Path("c.yaml"))
        assert {name: keys[name] for name in expected} == expected
        assert f" on a CPU: {engine if way == 'installed' else '--gpu cpu'}" in " ".join(ended.stderr.split())
        assert "&& pip install dist/specc_program_target_eagle-*.whl\n" in ended.stderr
    (another,) = HEADS.keys() - {engine}
    model("other", HEADS[another])
    other = init("target", "other", "--engine", another, "-o", "d.yaml")
    assert " on sm_90: no GPU was found here" in " ".join(other.stderr.split())
    ended = init("target", "head", "--engine", engine, "--gpu", "cpu", "--shapes", "auto")
    assert ended.exit_code == 2 and "steps are estimated on a GPU" in ended.stderr


def test_standard_output_is_no_file_to_build() -> None:
    ended = init("target", "small", "--engine", "sglang", "-o", "-")
    assert ended.exit_code == 0, ended.output
    assert "the server: " in ended.stderr and "the program: " not in ended.stderr


def test_a_module_of_the_targets_own_needs_no_draft_in_a_server() -> None:
    model("target", ONE_MODULE | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"})
    ended = init("target", "--engine", "vllm")
    assert '{"method": "mtp", "num_speculative_tokens": ' in ended.stderr
    assert YAML(typ="safe").load(Path("target_eagle.yaml"))["target"] is not None


OWN = {path.parent.name: json.loads(path.read_text()) for path in sorted(EXAMPLES.glob("*/config.json"))}


@pytest.mark.parametrize("example", OWN)
def test_a_head_that_no_server_loads_is_refused(example: str) -> None:
    """All example models but language models have classes that the reference engine alone has."""
    (name,) = OWN[example]["architectures"]
    model("draft", LLAMA | {"architectures": [name]})
    sizes = "num_steps: 2\npage_size: 1\nbuckets: [1]\narchs: [sm_90]\ntarget: {model: target}\ndraft: {model: draft}"
    text = f"name: c\nengine: sglang\nalgorithm: STANDALONE\n{sizes}\n"
    errors: tuple[Diagnostic, ...] = ()
    try:
        load_text(text, Path("c.yaml"), names(), needs)
    except DiagnosticError as error:
        errors = error.diagnostics
    own = [error.message for error in errors if "a head of the reference engine's own" in error.message]
    assert own == [f"with SGLang 0.5.23, a head of the reference engine's own ({name}) is not served"] * (
        name != "LlamaForCausalLM"
    )


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_init_refuses_such_a_head(engine: str) -> None:
    model("head", HEAD | {"architectures": ["EagleHead"]})
    ended = init("target", "head", "--engine", engine, "-o", "c.yaml")
    assert ended.exit_code == 1
    assert "error[config/engine-unsupported]" in ended.stderr
    assert "a head of the reference engine's own (EagleHead) is not served" in ended.stderr
    assert "a head as people publish it (docs/models.md)" in ended.stderr
    assert not Path("c.yaml").exists() and "the server: " not in ended.stderr


@pytest.mark.parametrize("architecture", ["DeepseekV3ForCausalLM", "MiMoForCausalLM"])
def test_sglang_looks_for_modules_by_itself(architecture: str) -> None:
    model("target", ONE_MODULE | {"architectures": [architecture]})
    ended = init("target", "--engine", "sglang", "-o", "c.yaml")
    assert ended.exit_code == 0, ended.output
    assert "the server: " in ended.stderr and "--speculative-draft-model-path" not in ended.stderr


@pytest.mark.parametrize("words", [["target"], ["target", "whole"]])
def test_sglang_runs_no_whole_model_as_a_head(words: list[str]) -> None:
    """Modules of a target whose class it does not know to have any, and a layer of the class of a language model."""
    model("target", ONE_MODULE)
    model("whole", LLAMA | {"num_hidden_layers": 1})
    ended = init(*words, "--engine", "sglang", "--algorithm", "EAGLE", "-o", "c.yaml")
    assert ended.exit_code == 1
    refused = "EAGLE with a draft of the class LlamaForCausalLM, which SGLang runs as a whole model, is not served"
    assert refused in ended.stderr


def test_what_a_server_has_not_is_refused() -> None:
    model("head", HEAD)
    ended = init("target", "head", "--engine", "vllm", "--topk", 2)
    assert ended.exit_code == 2
    assert "vLLM drafts chains alone" in ended.stderr
    ended = init("target", "head", "--gpu", "h100")
    assert ended.exit_code == 2
    assert "it is the server's" in ended.stderr
    ended = init("target", "head", "--engine", "llm")
    assert ended.exit_code == 2
    assert "no engine 'llm' is known" in ended.stderr
    ended = init("target", "head", "--engine", "sglang", "--algorithm", "MULTI_LAYER_EAGLE")
    assert "error[config/engine-unsupported]" in ended.stderr
    assert "a module for each step of LlamaForCausalLM is not served" in ended.stderr
