"""From a command line of SGLang to the server that it starts: how it may be written, and what SGLang takes by itself.

`tests/sglang/test_published_servers.py` compares the same with SGLang's own resolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from specc.compiler.config import archs
from specc.compiler.config.archs import Gpu, gpu_of
from specc.engines.sglang.check import server
from specc.engines.sglang.check.command_line import ANSWERS, parse
from specc.engines.sglang.check.defaults import (
    CHAIN,
    PAGED,
    TREE,
    UNWRITTEN,
    Default,
    captured,
    default,
    drafts,
    max_requests,
    most_captured,
    pages_of,
    shape,
)
from specc.engines.sglang.check.server import MOST_BUCKETS, started

PUBLISHED = Path(__file__).parents[3] / "published"
PLAIN = ["--model-path", "m", "--tp", "2"]
VALUES = {"--model-path": ["m"], "--tp-size": ["2"]}


@pytest.mark.parametrize(
    ("written", "forced", "deciding", "page"),
    [
        (None, False, {}, (64, "SGLang's choice with triton attention")),
        (None, True, {}, (64, "SGLang's choice with triton attention")),
        (32, False, {}, (32, "--page-size")),
        (32, True, {}, (64, "SGLang's choice with triton attention")),
        (None, False, {"trtllm_mla": (64, 32)}, (64, "SGLang's choice with triton attention")),
        (32, False, {"trtllm_mla": (64, 32)}, (32, "--page-size")),
        (16, False, {"trtllm_mla": (64, 32)}, (64, "what trtllm_mla attention takes")),
    ],
)
def test_pages_that_come_with_a_default(
    written: int | None, forced: bool, deciding: Mapping[str, Sequence[int]], page: tuple[int, str]
) -> None:
    """They hold where none are written, or whatever is."""
    row = Default("triton", page_size=64, forced=forced)
    fact = server._page(written, row, deciding)
    assert (fact.value, fact.origin) == page


@pytest.mark.parametrize(
    ("words", "attention", "page"),
    [
        (
            ["--attention-backend", "tokenspeed_mla"],
            ("cutedsl_mla", "trtllm_mla"),
            (64, "what cutedsl_mla attention takes"),
        ),
        (
            ["--decode-attention-backend", "cutedsl_mla", "--page-size", "32"],
            ("cutedsl_mla", "trtllm_mla"),
            (32, "--page-size"),
        ),
        (
            ["--attention-backend", "flashmla", "--page-size", "32"],
            ("flashmla",) * 2,
            (64, "what flashmla attention takes"),
        ),
        (
            ["--attention-backend", "fa3", "--prefill-attention-backend", "cutedsl_mla"],
            ("fa3", "cutedsl_mla"),
            (64, "what cutedsl_mla attention takes"),
        ),
        (
            ["--attention-backend", "fa3", "--prefill-attention-backend", "flashmla"],
            ("fa3", "flashmla"),
            (1, "SGLang's default"),
        ),
    ],
)
def test_backends_that_bring_pages_and_another_for_prefill(
    words: list[str], attention: tuple[str, str], page: tuple[int, str]
) -> None:
    """A latent cache on a B200: the backends of the draft and of verification."""
    arguments = parse(["--model-path", str(PUBLISHED / "DeepSeek-V3"), "--speculative-algorithm", "EAGLE", *words])
    found = server.started(arguments, gpu_of("b200", "sglang"))
    assert (found.attention["draft"].value, found.attention["verify"].value) == attention
    assert (found.page_size.value, found.page_size.origin) == page


@pytest.mark.parametrize(
    "words",
    [
        PLAIN,
        ["python", "-m", "sglang.launch_server", *PLAIN],
        ["/usr/bin/python3.12", "-m", "sglang.launch_server", "\\", *PLAIN, "\\\n"],
        ["sglang", "serve", *PLAIN],
        ["/opt/bin/sglang", "serve", "m", "--tp", "2"],
        ["nohup", "CUDA_VISIBLE_DEVICES=0", "python3", "python/sglang/launch_server.py", *PLAIN],
        ["python3 -m sglang.launch_server \\\n  --model-path m \\ \n  --tp 2 # two GPUs"],
        ['  sglang serve "m" --tp=2\n'],
        ["--model-path m --tp 2"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_forms_of_a_command_line(words: list[str]) -> None:
    arguments = parse(words)
    assert (arguments.values, arguments.findings.errors, arguments.unused) == (VALUES, (), [])


def test_variables_in_front() -> None:
    """Are noted, and count where one is of the settings that are asked for."""
    arguments = parse(["A=1", "SGLANG_IS_IN_CI=true", "python", "-m", "sglang.launch_server", *PLAIN])
    assert arguments.environment == {"A": "1", "SGLANG_IS_IN_CI": "true"}
    assert arguments.settings() == {"SGLANG_IS_IN_CI": True}
    assert parse(["SGLANG_IS_IN_CI=0", *PLAIN]).settings() == {}
    assert parse(["B=x y", *PLAIN]).values == VALUES


def test_a_text_that_no_shell_could_read() -> None:
    (error,) = parse(["sglang serve 'm --tp 2"]).findings.errors
    assert (error.code, error.hint) == ("config/engine-argument", "close what is quoted")


def test_settings_have_the_type_of_what_is_served() -> None:
    words = ["--pp-size", "2", "--enable-eplb", "--disaggregation-mode", "null", "--speculative-draft-window-size=9"]
    assert parse(words).settings() == {
        "pp_size": 2,
        "enable_eplb": True,
        "disaggregation_mode": "null",
        "speculative_draft_window_size": "9",
    }
    assert parse(["--dp-size", "many"]).settings() == {"dp_size": "many"}


@pytest.mark.parametrize(
    ("asked", "backend"),
    [
        (("sm_90", "mha", "LlamaForCausalLM", UNWRITTEN), "fa3"),
        (("sm_90", "mha", "LlamaForCausalLM", CHAIN), "fa3"),
        (("sm_90", "mha", "LlamaForCausalLM", PAGED), "flashinfer"),
        (("sm_90", "mha", "LlamaForCausalLM", TREE), "flashinfer"),
        (("sm_100", "mha", "LlamaForCausalLM", UNWRITTEN), "flashinfer"),
        (("sm_103", "mha", "LlamaForCausalLM", CHAIN), "trtllm_mha"),
        (("sm_89", "mha", "LlamaForCausalLM", CHAIN), "flashinfer"),
        (("sm_120", "mha", "LlamaForCausalLM", CHAIN), "flashinfer"),
        (("sm_90", "mla", "Glm4MoeLiteForCausalLM", TREE), "fa3"),
        (("sm_100", "mla", "Glm4MoeLiteForCausalLM", CHAIN), "flashinfer"),
        (("sm_100", "mla", "DeepseekV3ForCausalLM", CHAIN), "trtllm_mla"),
        (("sm_80", "mla", "DeepseekV3ForCausalLM", CHAIN), "triton"),
        (("sm_90", "dsa", "DeepseekV32ForCausalLM", CHAIN), "dsa"),
        (("sm_80", "mha", "GptOssForCausalLM", CHAIN), "triton"),
        (("sm_90", "swa", "Step3p5ForCausalLM", TREE), "fa3"),
        (("sm_90", "mha", "", CHAIN), "fa3"),
    ],
)
def test_the_backend_that_sglang_takes(asked: tuple[str, str, str, str], backend: str) -> None:
    row = default(*asked, deterministic=False)
    assert row is not None and row.backend == backend


def test_deterministic_servers() -> None:
    def of(arch: str, cache: str = "mha", architecture: str = "LlamaForCausalLM") -> str:
        row = default(arch, cache, architecture, TREE, deterministic=True)
        return "" if row is None else row.backend

    assert (of("sm_90"), of("sm_80"), of("sm_100"), of("sm_100", "mla")) == ("fa3", "fa3", "flashinfer", "flashinfer")
    assert of("sm_100", "mla", "Glm4MoeLiteForCausalLM") == "triton"


def test_what_sglang_was_not_asked_or_has_not_said() -> None:
    for architecture in ("OfNobodyForCausalLM", "LlamaForCausalLMEagle3"):
        assert default("sm_90", "mha", architecture, CHAIN, deterministic=False) is None
    assert default("sm_90", "mha", "IQuestQ1ForCausalLM", CHAIN, deterministic=False) == Default("fa3")
    assert default("sm_90", "mha", "IQuestQ1ForCausalLM", TREE, deterministic=False) is None


def test_every_class_has_a_row_of_every_gpu() -> None:
    """Of every layout of the KV cache, whatever is known of the drafts; of few SGLang has not said anything."""
    gpus, caches = [arch for arch in archs.ARCHS if arch.startswith("sm_")], ("mha", "swa", "mla", "dsa")
    known = [UNWRITTEN, CHAIN, PAGED, TREE]
    unsaid: set[str] = set()
    for architecture in ANSWERS.architectures - ANSWERS.heads:
        for arch, cache, of_drafts, same in product(gpus, caches, known, (False, True)):
            row = default(arch, cache, architecture, of_drafts, deterministic=same)
            assert row is None or row.backend
            unsaid |= {architecture} if row is None else set()
    assert len(unsaid) < 8


def test_what_is_known_of_drafts() -> None:
    assert (drafts(None, 64), drafts(1, None), drafts(1, 1), drafts(1, 16)) == (UNWRITTEN, CHAIN, CHAIN, PAGED)
    assert (drafts(4, None), drafts(4, 16)) == (TREE, TREE)


def test_pages_that_backends_have() -> None:
    """By what each is of: the first instead of any other."""

    def of(arch: str = "sm_100", cache: str = "mha", known: str = CHAIN, **parts: str) -> dict[str, list[int]]:
        return pages_of(parts, arch, cache, known)

    assert of(attention="trtllm_mha") == of(draft="trtllm_mha", attention="fa3") == {"trtllm_mha": [64, 16, 32, 128]}
    assert of(cache="mla", decode="trtllm_mla") == {"trtllm_mla": [64, 32]}
    assert of(cache="mla", prefill="trtllm_mla") == of(attention="fa3") == of(attention="of nobody") == {}
    assert of(attention="fa4", cache="swa") == {"fa4": [128]}
    assert of(attention="fa4", cache="mla") == of(attention="fa4", known=TREE) == of("sm_90", attention="fa4") == {}


def test_shapes_and_requests() -> None:
    assert shape("EAGLE", "LlamaForCausalLM") == shape("FROZEN_KV_MTP", "LlamaForCausalLM") == (5, 4, 8)
    assert shape("STANDALONE", "LlamaForCausalLM") == shape("EAGLE3", "Qwen3ForCausalLM") == (3, 1, 4)
    assert (max_requests("DeepseekV4ForCausalLM"), max_requests("")) == (256, 48)


def test_batches_that_are_captured() -> None:
    assert captured(12) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
    assert captured(11) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]
    assert captured(320)[-5:] == [256, 272, 288, 304, 320]
    assert [most_captured(Gpu("", "sm_90", ""), ranks) for ranks in (1, 2, 4, 8)] == [256, 256, 512, 512]
    small = (("", "sm_100"), ("l40s", "sm_89"), ("", "sm_89"))
    assert [most_captured(Gpu(*gpu, ""), 1) for gpu in small] == [512, 32, 48]


@pytest.mark.parametrize(
    ("model", "words", "page"),
    [
        ("DeepSeek-V3.2", "", (64, "SGLang's choice with dsa attention")),
        ("DeepSeek-V3.2", "--attention-backend dsa", (64, "SGLang's choice with dsa attention")),
        ("Qwen3-Next-80B-A3B-Instruct", "", (64, "SGLang's choice with trtllm_mha attention")),
        ("Qwen3-Next-80B-A3B-Instruct", "--attention-backend triton", (1, "SGLang's default")),
    ],
)
def test_pages_that_are_kept_where_attention_is_written(model: str, words: str, page: tuple[int, str]) -> None:
    published = Path(__file__).parents[3] / "published"
    path = next(path for path in (published / model, published / "served" / model) if path.is_dir())
    line = f"--model-path {path} --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
    server = started(parse([f"{line} {words}"]), gpu_of("b200"))
    assert (server.page_size.value, server.page_size.origin) == page


def test_as_many_buckets_as_there_may_be() -> None:
    arguments = parse(["--cuda-graph-max-bs-decode", "1024"])
    buckets, _ = server._buckets(arguments, 1024, 512)
    assert len(buckets) <= MOST_BUCKETS
    assert (buckets[:8], buckets[-1]) == ((1, 2, 3, 4, 5, 6, 7, 8), 1024)
    assert {*buckets} <= {*captured(1024)}


def test_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [gpu_of(word).arch for word in ("h100", "B200", "sm_89", "l40s")] == ["sm_90", "sm_100", "sm_89", "sm_89"]
    assert (gpu_of("L40S").name, gpu_of("sm_89").name) == ("l40s", "")
    with pytest.raises(ValueError, match="did you mean 'h100'"):
        gpu_of("h101")
    for here, arch in (([("A100", "sm_80")], "sm_80"), ([("V100", "sm_70")], "sm_90"), ([], "sm_90")):
        monkeypatch.setattr(archs, "gpus", lambda here=here: here)
        assert gpu_of(None).arch == arch

    def none() -> list[tuple[str, str]]:
        raise archs.NoGpuError("there is none")

    monkeypatch.setattr(archs, "gpus", none)
    assert gpu_of(None).arch == "sm_90"


def test_an_engine_beside_a_torch_for_cpus_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`packaging` is installed everywhere, in the place of an engine."""
    monkeypatch.setattr(archs, "gpus", list)
    for cuda, hip, engine, is_cpu in (
        (None, None, "packaging", True),
        ("13.0", None, "packaging", False),
        (None, "7.0", "packaging", False),
        (None, None, "no-such-engine", False),
        (None, None, None, False),
    ):
        monkeypatch.setattr("torch.version.cuda", cuda)
        monkeypatch.setattr("torch.version.hip", hip)
        gpu = gpu_of(None, engine)
        assert (gpu.is_cpu, gpu.arch, "CPUs" in gpu.origin) == (is_cpu, "sm_90", is_cpu)
    monkeypatch.setattr(archs, "gpus", lambda: [("A100", "sm_80")])
    monkeypatch.setattr("torch.version.cuda", None)
    assert gpu_of(None, "packaging").arch == "sm_80" and gpu_of("CPU").is_cpu
