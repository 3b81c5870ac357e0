"""Command lines of published models: `specc sglang check` and SGLang's own resolution agree on which server starts.

And on what is in the way of programs: `check`, which reads two config.json, finds what the adapter does, which
reads SGLang's model configurations, pools and windows.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import published_models
import pytest
import served
import yaml
from sglang_files import HERE, NEWEST, ON_GPU, ROOT, environment

from specc.compiler.config.archs import gpu_of
from specc.compiler.config.presets.contract import EngineNeeds
from specc.compiler.config.wanted import Wanted
from specc.compiler.support.diagnostics import DiagnosticError
from specc.engines.sglang.check.command_line import Arguments, parse
from specc.engines.sglang.check.models import own_attention, unserved
from specc.engines.sglang.check.server import Started, roles, started
from specc.engines.sglang.check.written import configuration
from specc.engines.sglang.served import refusals

pytestmark = pytest.mark.skipif(ON_GPU, reason="the machine is said to have other GPUs")
LAUNCH = "python3 -m sglang.launch_server"
CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
COMMANDS = {
    "Llama 8B, EAGLE3, a tree": f"""{LAUNCH} --model Llama-3.1-8B-Instruct --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path EAGLE3-LLaMA3.1-Instruct-8B --speculative-num-steps 3 \\
        --speculative-eagle-topk 4 --speculative-num-draft-tokens 16 --mem-fraction 0.75 --dtype float16 \\
        --log-level warning""",
    "Llama 8B, EAGLE": f"""{LAUNCH} --model-path Llama-3.1-8B-Instruct --speculative-algorithm EAGLE \\
        --speculative-draft-model-path sglang-EAGLE-LLaMA3-Instruct-8B --dtype float16""",
    "Llama 70B, EAGLE3": f"""{LAUNCH} --model-path Llama-3.3-70B-Instruct --tp 4 --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path Llama-3.3-70B-Instruct-EAGLE3 {CHAIN} --max-running-requests 64""",
    "Qwen3 8B, EAGLE3": f"""{LAUNCH} --model Qwen3-8B --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path Qwen3-8B-EAGLE3 --speculative-num-steps 6 --speculative-eagle-topk 10 \\
        --speculative-num-draft-tokens 32 --mem-fraction 0.9 --dtype bfloat16""",
    "Qwen3 8B, DFlash": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm DFLASH \\
        --speculative-draft-model-path Qwen3-8B-DFlash-b16 --dtype bfloat16""",
    "Qwen3 8B, DFlash, shorter, under other attention": f"""{LAUNCH} --model-path Qwen3-8B \\
        --speculative-algorithm DFLASH --speculative-draft-model-path Qwen3-8B-DFlash-b16 --dtype bfloat16 \\
        --speculative-dflash-block-size 8 --attention-backend triton --speculative-draft-attention-backend fa3""",
    "Qwen3 8B, DSpark": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm DSPARK --dtype bfloat16 \\
        --speculative-draft-model-path Qwen3-8B-DSpark-block7""",
    "Qwen3 8B, DSpark, shorter, under other attention": f"""{LAUNCH} --model-path Qwen3-8B --dtype bfloat16 \\
        --speculative-algorithm DSPARK --speculative-draft-model-path Qwen3-8B-DSpark-block7 \\
        --speculative-dspark-block-size 3 --attention-backend triton --speculative-draft-attention-backend fa3""",
    "Qwen3 8B, Domino": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm DFLASH --dtype bfloat16 \\
        --speculative-draft-model-path Qwen3-8B-Domino --enable-lora --lora-target-modules all --max-lora-rank 8""",
    "Qwen3 8B, DFlash 2": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm DFLASH --dtype bfloat16 \\
        --speculative-draft-model-path Qwen3-8B-DFlash2 --speculative-draft-window-size 64""",
    "Qwen3 8B, DFlash 2, served": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm DFLASH --dtype bfloat16 \\
        --speculative-draft-model-path Qwen3-8B-DFlash2""",
    "Qwen3 30B, EAGLE3": f"""SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 {LAUNCH} --model-path Qwen3-30B-A3B --tp 4 \\
        --speculative-algorithm EAGLE3 --speculative-draft-model Qwen3-30B-A3B-EAGLE3""",
    "DeepSeek V3": "sglang serve DeepSeek-V3 --tp 8 --trust-remote-code --speculative-algorithm EAGLE",
    "DeepSeek R1": f"{LAUNCH} --model-path DeepSeek-V3 --tp 8 --speculative-algorithm NEXTN {CHAIN}",
    "DeepSeek V3.2": f"{LAUNCH} --model DeepSeek-V3.2 --tp 8 --speculative-algorithm EAGLE {CHAIN}",
    "GLM 4.5": f"""{LAUNCH} --model-path GLM-4.5 --tp-size 8 --tool-call-parser glm45 --reasoning-parser glm45 \\
        --speculative-algorithm EAGLE {CHAIN} --mem-fraction-static 0.7 --served-model-name glm-4.5 \\
        --host 0.0.0.0 --port 8000""",
    "GLM 4.7 Flash": f"{LAUNCH} --model-path GLM-4.7-Flash --tp-size 4 --speculative-algorithm EAGLE {CHAIN}",
    "Kimi K2, EAGLE3": f"""{LAUNCH} --model-path Kimi-K2-Instruct --tp-size 8 --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path Kimi-K2-Instruct-EAGLE3 {CHAIN}""",
    "gpt-oss, EAGLE3": f"""{LAUNCH} --model-path gpt-oss-120b --tp 8 --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path gpt-oss-120b-EAGLE3 {CHAIN}""",
    "Gemma 3, EAGLE3": f"""{LAUNCH} --model-path gemma-3-27b-it --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path gemma-3-27b-it-EAGLE3 --tp 2""",
    "Qwen3-Next": f"""{LAUNCH} --model-path Qwen3-Next-80B-A3B-Instruct --port 30000 --tp-size 4 \\
        --context-length 32768 --mem-fraction-static 0.8 --speculative-algo NEXTN {CHAIN} \\
        --speculative-draft-model-path Qwen3-Next-80B-A3B-Instruct""",
    "MiMo 7B": f"""{LAUNCH} --model-path MiMo-7B-Base --trust-remote-code --speculative-algorithm EAGLE \\
        --speculative-draft-model-path MiMo-7B-Base --speculative-num-steps 1 --speculative-eagle-topk 1 \\
        --speculative-num-draft-tokens 2 --mem-fraction 0.5""",
    "MiniMax M2, EAGLE3": f"""{LAUNCH} --model-path MiniMax-M2 --tp-size 4 --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path MiniMax-M2-EAGLE3 {CHAIN} --page-size 64""",
    "one that decodes": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm STANDALONE \\
        --speculative-draft-model-path Qwen3-0.6B {CHAIN} --disaggregation-mode decode""",
    "one that decodes a few": f"""{LAUNCH} --model-path Llama-3.1-8B-Instruct --speculative-algorithm EAGLE3 \\
        --speculative-draft-model-path EAGLE3-LLaMA3.1-Instruct-8B --disaggregation-mode decode \\
        --disaggregation-transfer-backend nixl --max-running-requests 24""",
    "one that decodes more, with room": f"""{LAUNCH} --model-path DeepSeek-V3 --tp 8 --speculative-algorithm EAGLE \\
        {CHAIN} --disaggregation-mode decode --disaggregation-decode-extra-slots 7 --max-running-requests 40""",
    "one that prefills": f"""{LAUNCH} --model-path DeepSeek-V3 --tp 8 --speculative-algorithm EAGLE {CHAIN} \\
        --disaggregation-mode prefill""",
    "one with backends written": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm STANDALONE \\
        --speculative-draft-model-path Qwen3-0.6B {CHAIN} --prefill-attention-backend fa3 \\
        --decode-attention-backend flashinfer --speculative-attention-mode decode""",
    "one with a backend of the draft's": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm STANDALONE \\
        --speculative-draft-model-path Qwen3-0.6B {CHAIN} --attention-backend flashinfer \\
        --speculative-draft-attention-backend triton --cuda-graph-bs-decode 1 2 4""",
    "a cache of E5M2": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm STANDALONE \\
        --speculative-draft-model-path Qwen3-0.6B {CHAIN} --kv-cache-dtype fp8_e5m2""",
    "a deterministic one": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm STANDALONE \\
        --speculative-draft-model-path Qwen3-0.6B {CHAIN} --enable-deterministic-inference""",
    "drafts that are looked up": f"{LAUNCH} --model-path Qwen3-8B --speculative-algorithm NGRAM",
    "a chain that is looked up": f"""{LAUNCH} --model-path Kimi-K2-Instruct --tp-size 8 --speculative-algorithm NGRAM \\
        --speculative-num-draft-tokens 8 --speculative-ngram-max-bfs-breadth 1 --max-running-requests 16""",
    "a tree that is looked up": f"""{LAUNCH} --model-path Llama-3.1-8B-Instruct --speculative-algorithm NGRAM \\
        --speculative-num-draft-tokens 9 --speculative-ngram-max-bfs-breadth 4""",
    "pages, looked up": f"""{LAUNCH} --model-path Qwen3-8B --speculative-algorithm NGRAM --page-size 64 \\
        --speculative-ngram-max-bfs-breadth 1""",
}
GPUS = ("sm_90", "sm_100", "sm_80")
SHAPES = {
    "as it comes": "",
    "a chain": CHAIN,
    "a tree": CHAIN.replace("topk 1", "topk 4").replace("tokens 4", "tokens 8"),
}


def held_out() -> dict[str, str]:
    """The command line of every model with a head, and with modules of its own, in every shape."""
    lines: dict[str, str] = {}
    for name, config in sorted(published_models.targets().items()):
        drafts = {"EAGLE3": f"{name}-EAGLE3"} | ({"EAGLE": name} if config.get("num_nextn_predict_layers") else {})
        for algorithm, draft in drafts.items():
            for shape, words in SHAPES.items():
                line = f"{LAUNCH} --model-path {name} --dtype bfloat16 {words} --speculative-algorithm {algorithm}"
                lines[f"{name}, {algorithm}, {shape}"] = f"{line} --speculative-draft-model-path {draft}"
    return lines


HELD_OUT = held_out()
SERVED = {str(server): (server.line("served"), server.gpu) for server in served.servers() if server.engine == "sglang"}
"""What people serve, and on what."""
CASES = [
    *((line, gpu) for line in COMMANDS.values() for gpu in GPUS),
    *((line, "sm_90") for line in HELD_OUT.values()),
    *SERVED.values(),
]
NAMES = [*(f"{name}, {gpu}" for name in COMMANDS for gpu in GPUS), *HELD_OUT, *SERVED]
APART = {"16: GLM-5.3-Flash EAGLE h200 first": "check takes dsa for the target, SGLang fa3"}
"""Where check is known to differ from SGLang, and how."""


def cases(names: Iterable[str], apart: Collection[str] = ()) -> list[Any]:
    """The cases of these names, of which those that are apart have to fail."""
    marks = {name: pytest.mark.xfail(reason=APART[name], strict=True) for name in apart}
    known = dict(zip(NAMES, CASES, strict=True))
    return [pytest.param(*known[name], id=name, marks=marks.get(name, ())) for name in names]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the models."""
    folder = tmp_path_factory.mktemp("published")
    published_models.write(folder)
    served.write_models(folder / "served")
    return folder


def in_folder(line: str, folder: Path) -> list[str]:
    """The words of a command line, with the directories of its models."""
    words = shlex.split(line.replace("\\\n", " "))
    return [str(folder / word) if (folder / word).is_dir() else word for word in words]


@pytest.fixture(scope="session")
def answers(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """What SGLang makes of every case."""
    folder = tmp_path_factory.mktemp("resolved")
    launchers = ("sglang.launch_server", "serve")
    job: list[dict[str, Any]] = []
    for line, gpu in CASES:
        words = in_folder(line, published)
        begin = next(index for index, word in enumerate(words) if word in launchers)
        known = gpu_of(gpu)
        job.append({"words": words[begin + 1 :], "gpu": known.arch, "memory_gib": known.memory})
    (folder / "job.json").write_text(json.dumps(job))
    command = [str(environment(NEWEST).python), str(HERE / "resolve.py"), "job.json", "out.json"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(zip(CASES, json.loads((folder / "out.json").read_text()), strict=True))


def settings_of(line: str, gpu: str, folder: Path) -> tuple[Started, Arguments]:
    """What `specc sglang check` makes of a command line."""
    arguments = parse(in_folder(line, folder))
    return started(arguments, gpu_of(gpu)), arguments


@pytest.mark.parametrize(("line", "gpu"), cases([name for name in NAMES if name not in HELD_OUT], APART))
def test_which_server_starts(
    line: str, gpu: str, published: Path, answers: Mapping[tuple[str, str], Mapping[str, Any]]
) -> None:
    """Backends by role, page, shape, draft, and sizes of batches, which are no larger than those captured."""
    answer = answers[line, gpu]
    if (line, gpu) in SERVED.values() and answer.get("refusals") != []:
        pytest.skip("no program runs there")
    settings, arguments = settings_of(line, gpu, published)
    assert "error" not in answer, answer
    resolved = answer["server"]
    mode = arguments.text("--speculative-attention-mode", "prefill")
    given_out = roles(resolved["prefill"], resolved["decode"], resolved["draft"], mode)
    # What layers have whatever is written is asked by `test_what_is_refused`, of SGLang's own objects.
    if (of_layers := own_attention(settings.models["target"][1].values)) is not None:
        given_out = dict.fromkeys(given_out, of_layers)
    mine = {role: fact.value for role, fact in settings.attention.items()}
    shape = [settings.num_steps.value, settings.topk.value, settings.num_draft_tokens.value]
    if settings.kind.model_less:  # a program's form is its own, and no forward is a draft's
        assert mine == {"verify": given_out["verify"]}
        assert shape[1] <= resolved["shape"][1] and shape[2] == resolved["shape"][2]
    elif settings.kind.blocks:  # of which SGLang counts the tokens, and has no extend
        drafted = {"draft": resolved["draft"], "verify": given_out["verify"]}
        assert (mine, shape, resolved["shape"][1:]) == (drafted, [shape[2] - 1, 1, shape[2]], shape[1:])
    else:
        absent = "draft" if shape[0] == 1 and not settings.kind.borrows else ""
        drafted = {role: given_out[role] for role in settings.kind.roles if role != absent}
        assert (mine, shape) == (drafted, resolved["shape"])
    assert [*settings.facts.candidates] == resolved["candidates"]
    assert settings.page_size.value == resolved["page_size"]
    rows = resolved["max_requests"] + resolved["on_their_way"]
    assert (settings.algorithm, settings.max_requests.value) == (resolved["algorithm"], rows)
    paths = {role: str(model[0]) for role, model in settings.models.items()}
    own = None if settings.kind.model_less else paths["target"]  # which SGLang takes where nothing is written
    assert paths.get("draft") == (resolved["draft_path"] or own)
    captured = [size for size in resolved["captured"] if size <= resolved["max_requests"]]
    assert list(settings.buckets) == captured
    for part in (f"{settings.page_size.value}: {settings.page_size.origin}", resolved["decode"]):
        assert any(part in description for _, description in settings.described())


@pytest.mark.parametrize(("line", "gpu"), cases(NAMES))
def test_what_is_refused(
    line: str, gpu: str, published: Path, answers: Mapping[tuple[str, str], Mapping[str, Any]]
) -> None:
    """By `check`, what the adapter refuses; and by a build for the engine, what of that hangs on the models alone."""
    answer = answers[line, gpu]
    settings, arguments = settings_of(line, gpu, published)
    if "error" in answer:
        assert arguments.findings.errors, answer
        return
    assert [[refusal.about, refusal.what] for refusal in refusals(settings.facts)] == answer["refusals"]
    assert len(arguments.findings.errors) == len(answer["refusals"])
    of_models = [what for about, what in answer["refusals"] if about in ("target", "draft", "topk", "head_rows")]
    models = {role: facts.values for role, (_, facts) in settings.models.items()}
    asked = EngineNeeds(
        settings.algorithm, models, {}, topk=int(settings.topk.value), ranks=settings.facts.ranks, head_rows=False
    )
    assert [what for _, what in unserved(asked)] == of_models


def test_most_are_served_and_some_are_not(answers: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """So that neither list is empty."""
    refused = {line for (line, _), answer in answers.items() if answer.get("refusals")}
    fine = {line for (line, _), answer in answers.items() if answer.get("refusals") == []}
    assert len(fine) > 20
    assert len(refused) > 20


@pytest.mark.parametrize("name", COMMANDS)
def test_element_types(name: str, published: Path, answers: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Those that are written are SGLang's."""
    settings, arguments = settings_of(COMMANDS[name], "sm_90", published)
    try:
        text = configuration(arguments, settings, Wanted())
    except DiagnosticError:
        return
    written = yaml.load(text, Loader=yaml.CSafeLoader)
    for role, dtype in answers[COMMANDS[name], "sm_90"]["dtypes"].items():
        own = settings.models[role][1].values.get("dtype")
        assert written[role].get("dtype", own) == dtype
