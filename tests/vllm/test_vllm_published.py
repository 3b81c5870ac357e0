"""`specc vllm check` against vLLM itself: command lines of published models, on GPUs that the machine is said to have.

What it says of a server is what vLLM's own argument code and configuration say, and it refuses what the adapter does.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import published_models
import pytest
import served
from typer.testing import CliRunner
from vllm_files import ENVIRONMENT, HERE, ON_GPU, PYTHON, VERSION

from specc.cli.main import app
from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.config.archs import gpu_of
from specc.compiler.config.wanted import Wanted
from specc.compiler.driver.compile import check_config
from specc.compiler.support.diagnostics import DiagnosticError
from specc.engines.vllm.check.asked import ServerAnswer, case_of
from specc.engines.vllm.check.command_line import Arguments, parse
from specc.engines.vllm.check.server import ANSWERS, Started, started
from specc.engines.vllm.check.written import configuration
from specc.engines.vllm.served import ALGORITHMS, refusals

pytestmark = pytest.mark.skipif(ON_GPU, reason="the machine is said to have other GPUs")


def by(**keys: Any) -> str:
    """How drafts are made, as JSON."""
    return f"--speculative-config '{json.dumps(keys)}'"


EAGLE3, LLAMA = "EAGLE3-LLaMA3.1-Instruct-8B", "vllm serve Llama-3.1-8B-Instruct"
SEVERAL = "GLM-4.5-of-three-modules"
"""GLM-4.5 as it would be with more modules than the one that it has."""
COMMANDS = {
    "Llama 8B, EAGLE": f"""{LLAMA} --port 8000 \\
        {by(method="eagle", model="EAGLE-LLaMA3.1-Instruct-8B", num_speculative_tokens=5)}""",
    "Llama 8B, EAGLE3 by its name": f"{LLAMA} --max-num-seqs 64 {by(model=EAGLE3, num_speculative_tokens=3)}",
    "Llama 8B, n-grams": f"""{LLAMA} --dtype half --performance-mode throughput \\
        {by(method="ngram", num_speculative_tokens=5, prompt_lookup_max=4)}""",
    "Llama 8B, n-grams on the GPU": f"{LLAMA} -sc.method ngram_gpu -sc.num-speculative-tokens 2 --enforce-eager",
    "Llama 8B, few tokens at once": f"""{LLAMA} --max-num-batched-tokens 200 \\
        {by(model=EAGLE3, num_speculative_tokens=2)}""",
    "Llama 70B, EAGLE3": f"""vllm serve Llama-3.3-70B-Instruct --tensor_parallel_size 4 \\
        {by(method="eagle3", model="Llama-3.3-70B-Instruct-EAGLE3", num_speculative_tokens=3)}""",
    "Qwen3 8B, a draft model": """vllm serve Qwen3-8B --spec-method draft_model --spec-model Qwen3-0.6B \\
        --spec-tokens 4 --max-model-len 16k --block-size 32""",
    "Qwen3 30B, EAGLE3": f"""python3 -m vllm.entrypoints.openai.api_server --model Qwen3-30B-A3B \\
        {by(method="eagle3", model="Qwen3-30B-A3B-EAGLE3", num_speculative_tokens=4)}""",
    "DeepSeek V3": f"vllm serve DeepSeek-V3 -tp 8 {by(method='deepseek_mtp', num_speculative_tokens=1)}",
    "DeepSeek V3, some drafts of one module": f"vllm serve DeepSeek-V3 {by(method='mtp', num_speculative_tokens=3)}",
    "DeepSeek V3.2": f"vllm serve DeepSeek-V3.2 --kv-cache-dtype fp8 {by(method='mtp', num_speculative_tokens=1)}",
    "GLM 4.5": f"vllm serve GLM-4.5 -tp 8 -ep --enable-eplb {by(method='glm4_moe_mtp', num_speculative_tokens=1)}",
    "several modules": f"vllm serve {SEVERAL} -tp 8 {by(method='mtp', num_speculative_tokens=2)}",
    "several modules, twice": f"vllm serve {SEVERAL} {by(method='mtp', num_speculative_tokens=6)}",
    "Kimi K2, EAGLE3": f"""vllm serve Kimi-K2-Instruct -dp 8 -ep --enable-dbo --max-num-seqs 64 \\
        --all2all-backend deepep_low_latency \\
        {by(method="eagle3", model="Kimi-K2-Instruct-EAGLE3", num_speculative_tokens=3)}""",
    "gpt-oss, EAGLE3": f"""vllm serve gpt-oss-120b --max-cudagraph-capture-size 256 \\
        {by(method="eagle3", model="gpt-oss-120b-EAGLE3", num_speculative_tokens=3)}""",
    "MiMo 7B": f"vllm serve MiMo-7B-Base {by(method='mimo_mtp', num_speculative_tokens=1)}",
    "Qwen3-Next": f"""vllm serve Qwen3-Next-80B-A3B-Instruct --max-model-len 8192 \\
        {by(method="qwen3_next_mtp", num_speculative_tokens=2)}""",
    **{
        f"Qwen3-Next, {words}": f"""vllm serve Qwen3-Next-80B-A3B-Instruct -tp 4 {words} \\
        {by(method="mtp", num_speculative_tokens=drafts)}"""
        for words, drafts in {
            "--block-size 48": 2,
            "--block-size 128": 2,
            "--no-enable-prefix-caching": 1,
            "--gdn-prefill-backend triton": 2,
            "--mamba-ssm-cache-dtype float32": 2,
            "--kv-cache-dtype fp8": 2,
        }.items()
    },
    "Llama 8B, batches in parts": f"""{LLAMA} -tp 2 --enable-batch-sharded-sampling \\
        {by(method="eagle3", model=EAGLE3, num_speculative_tokens=3)}""",
    "drafts that are drawn": f"""{LLAMA} {
        by(
            method="eagle3",
            model=EAGLE3,
            num_speculative_tokens=3,
            draft_sample_method="probabilistic",
            rejection_sample_method="block",
        )
    }""",
    "drafts in one forward": f"""VLLM_LOGGING_LEVEL=INFO {LLAMA} \\
        {by(method="eagle3", model=EAGLE3, num_speculative_tokens=3, parallel_drafting=True)}""",
}
GPUS = ("sm_90", "sm_100", "sm_80")
SERVED = {str(server): server for server in served.servers() if server.engine == "vllm"}
"""What people serve."""
LINES = COMMANDS | {name: server.line("served") for name, server in SERVED.items()}
CASES = [
    *((name, "sm_90") for name in COMMANDS),
    *((name, gpu) for name in ("Llama 8B, EAGLE", "Qwen3 8B, a draft model") for gpu in GPUS[1:]),
    *((name, server.gpu) for name, server in SERVED.items()),
]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the models."""
    folder = tmp_path_factory.mktemp("published")
    published_models.write(folder)
    served.write_models(folder / "served")
    (folder / SEVERAL).mkdir()
    config = json.loads((folder / "GLM-4.5/config.json").read_text()) | {"num_nextn_predict_layers": 3}
    (folder / SEVERAL / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def answers(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[Any, Any]:
    """What vLLM makes of every case."""
    jobs: list[dict[str, Any]] = []
    for name, gpu in CASES:
        jobs.append(case_of(parse([LINES[name]]), gpu_of(gpu)))
    folder = tmp_path_factory.mktemp("jobs")
    given, out = folder / "job.json", folder / "out.json"
    given.write_text(json.dumps(jobs))
    subprocess.run(
        [str(PYTHON), str(HERE / "resolve.py"), str(given), str(out)],
        cwd=published,
        env={**os.environ, **ENVIRONMENT.variables, "PYTHONPATH": f"{HERE / 'stand_ins'}:{HERE / 'resolvable'}"},
        check=True,
        timeout=570,
    )
    return dict(zip(CASES, json.loads(out.read_text()), strict=True))


def refused(resolved: Mapping[str, Any]) -> bool:
    """Whether no program runs in the server of an answer."""
    return any(refusals(ServerAnswer(resolved).facts))


def settings_of(
    name: str, gpu: str, published: Path, monkeypatch: pytest.MonkeyPatch, exact: ServerAnswer | None = None
) -> tuple[Started, Arguments]:
    """The server of a command line, by `check`."""
    monkeypatch.chdir(published)
    arguments = parse([LINES[name]])
    return started(arguments, gpu_of(gpu), None, exact), arguments


@pytest.mark.parametrize("exact", [False, True], ids=["by its table", "exact"])
@pytest.mark.parametrize(("name", "gpu"), CASES, ids=[", ".join(case) for case in CASES])
def test_the_server_is_vllms(
    name: str, gpu: str, exact: bool, published: Path, answers: Mapping[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = answers[name, gpu]
    if name in SERVED and "error" in resolved:
        with pytest.raises(DiagnosticError):
            configuration(*reversed(settings_of(name, gpu, published, monkeypatch)), Wanted())
        return
    assert "error" not in resolved, resolved
    answer = ServerAnswer(resolved)
    if answer.facts.algorithm is None:
        with pytest.raises(DiagnosticError, match=f"the method {answer.facts.method} is not served"):
            settings_of(name, gpu, published, monkeypatch)
        return
    settings, arguments = settings_of(name, gpu, published, monkeypatch, answer if exact else None)
    assert settings.runner.value == ("V1" if answer.facts.first_runner else "V2")
    assert settings.drafting.method.value == answer.facts.method
    assert settings.drafting.num_steps.value == resolved["num_steps"]
    assert settings.max_requests.value == resolved["max_requests"]
    assert settings.dtype.value == resolved["dtype"]
    assert settings.longest is not None and settings.longest.value == resolved["longest"]
    width = int(settings.drafting.num_steps.value) + 1
    largest = resolved["largest_graph"] // width if resolved["largest_graph"] else 256
    assert settings.buckets[0][-1] == min(resolved["max_requests"], largest)
    if resolved["page_size"] is not None:
        assert settings.page_size.value == resolved["page_size"]
    if settings.drafting.draft is None:
        assert settings.drafting.options == resolved["options"]
    target = settings.models["target"][1]
    hybrid = target.values.get("architecture") in ANSWERS.hybrid and "recurrent_state" in target.facts
    assert hybrid == resolved["hybrid"]
    refused = sorted(refusal.about for refusal in refusals(answer.facts))
    assert sorted(refusal.about for refusal in refusals(settings.facts)) == refused
    assert len(arguments.findings.errors) == len(refused)
    assert exact == (settings.read_by == f"vLLM {VERSION}+cpu itself")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_served_has_a_program(
    name: str, published: Path, answers: Mapping[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration passes all checks, and has vLLM's method; of all others there is none."""
    settings, arguments = settings_of(name, "sm_90", published, monkeypatch)
    wanted = Wanted(verify="target_only", sampling="top_k, top_p")
    if refused(answers[name, "sm_90"]):
        with pytest.raises(DiagnosticError):
            configuration(arguments, settings, wanted)
        return
    loaded = load_text(configuration(arguments, settings, wanted), Path("vllm.yaml"), names(), needs)
    check_config(loaded)
    assert settings.facts.algorithm == loaded.config.algorithm
    assert settings.facts.method in ALGORITHMS[loaded.config.algorithm]


def test_some_are_served_and_some_are_not(answers: Mapping[Any, Any]) -> None:
    """So that neither list is empty."""
    left = [case for case in CASES if "error" in answers[case] or refused(answers[case])]
    assert len(left) > 4
    assert len(CASES) - len(left) > 8


def test_blocks_of_a_recurrent_state_need_not_be_said(
    published: Path, answers: Mapping[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command itself, which asks the vLLM of another environment."""
    monkeypatch.chdir(published)
    monkeypatch.setenv("PYTHONPATH", str(HERE / "stand_ins"))
    result = CliRunner().invoke(
        app, ["vllm", "check", "--gpu", "h100", "--exact", str(PYTHON), "--", COMMANDS["Qwen3-Next"]]
    )
    assert result.exit_code == 0, result.output
    assert f"page_size: {answers['Qwen3-Next', 'sm_90']['page_size']} # vLLM {VERSION}+cpu itself\n" in result.stdout
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in result.stderr.splitlines() if line.split()}
    assert lines["arguments"] == f"read by vLLM {VERSION}+cpu itself"
    assert lines["requests"] == "up to 1024 at once: vLLM's default for 80 GiB of GPU memory", "as it says, too"


def test_what_vllm_refuses(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(published)
    monkeypatch.setenv("PYTHONPATH", str(HERE / "stand_ins"))
    words = ["vllm", "check", "--exact", str(PYTHON), "--", f"{LLAMA} --no-such-argument 3 -sc.model {EAGLE3}"]
    result = CliRunner().invoke(app, [*words, "-sc.num_speculative_tokens=3"])
    assert result.exit_code == 1
    assert "refuses these arguments" in result.stderr
