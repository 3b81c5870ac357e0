"""Published models: `specc check` gives their true sizes or refuses them by name, as the table in docs/models.md says.

The files under tests/published have the published fields that decide the sizes; what is expected is written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, ModelConfig, load_text
from specc.compiler.driver.compile import check_config
from specc.compiler.support.diagnostics import DiagnosticError

ROOT = Path(__file__).parents[4]
PUBLISHED = ROOT / "tests/published"
HEADING = "## Published configurations"

Sizes = tuple[int, int, int, str, str, int, int]
"""Layers, heads, elements of a head, layout and element type of the pool; hidden size; vocabulary."""


@dataclass(frozen=True)
class Case:
    """A pair of models, what is expected of each, or the code and a part of the message of its refusal."""

    target: str
    draft: str | None
    algorithm: str
    expected: tuple[Sizes, Sizes | None] | tuple[str, str]
    steps: int = 3
    dtype: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Both models, the algorithm and the depth."""
        return f"{self.target}, {self.draft}, {self.algorithm}, {self.steps}"


LLAMA: Sizes = (32, 8, 128, "mha", "bfloat16", 4096, 128256)
QWEN: Sizes = (36, 8, 128, "mha", "bfloat16", 4096, 151936)
QWEN_SMALL: Sizes = (28, 8, 128, "mha", "bfloat16", 1024, 151936)
DEEPSEEK: Sizes = (61, 1, 576, "mla", "bfloat16", 7168, 129280)
DEEPSEEK_MODULE: Sizes = (1, *DEEPSEEK[1:])
GLM: Sizes = (92, 8, 128, "mha", "bfloat16", 5120, 151552)
MIMO: Sizes = (36, 8, 128, "mha", "bfloat16", 4096, 151680)
GPT_OSS: Sizes = (36, 8, 64, "mha", "bfloat16", 2880, 201088)
QWEN_NEXT: Sizes = (12, 2, 256, "mha", "bfloat16", 2048, 151936)
GEMMA: Sizes = (62, 16, 128, "mha", "bfloat16", 5376, 262208)
SCOUT: Sizes = (48, 8, 128, "mha", "bfloat16", 5120, 202048)
KIMI: Sizes = (61, 1, 576, "mla", "bfloat16", 7168, 163840)
MORE = "config/more-state"
SAYS_NOT = "does not say how many modules draft"

LLAMA_8B, QWEN_80B, KIMI_K2 = "Llama-3.1-8B-Instruct", "Qwen3-Next-80B-A3B-Instruct", "Kimi-K2-Instruct"
CASES = [
    Case(LLAMA_8B, "EAGLE-LLaMA3.1-Instruct-8B", "EAGLE", (LLAMA, (1, *LLAMA[1:])), dtype="bfloat16"),
    Case(LLAMA_8B, "sglang-EAGLE-LLaMA3-Instruct-8B", "EAGLE", (LLAMA, (1, *LLAMA[1:])), dtype="bfloat16"),
    Case(
        LLAMA_8B,
        "EAGLE3-LLaMA3.1-Instruct-8B",
        "EAGLE3",
        (LLAMA, (1, *LLAMA[1:-1], 32000)),
        dtype="bfloat16",
    ),
    Case("Qwen3-8B", "Qwen3-0.6B", "STANDALONE", (QWEN, QWEN_SMALL)),
    Case("Qwen3-8B-FP8", "Qwen3-0.6B", "STANDALONE", (QWEN, QWEN_SMALL)),
    Case("DeepSeek-V3", "DeepSeek-V3", "EAGLE", (DEEPSEEK, DEEPSEEK_MODULE)),
    Case("DeepSeek-V3", "DeepSeek-V3", "MULTI_LAYER_EAGLE", (DEEPSEEK, DEEPSEEK_MODULE), steps=1),
    Case("DeepSeek-V3", "DeepSeek-V3", "MULTI_LAYER_EAGLE", ("legal/modules", "every step needs a module of its own")),
    Case("GLM-4.5", "GLM-4.5", "EAGLE", (GLM, (1, *GLM[1:]))),
    Case("GLM-4.5", "GLM-4.5", "MULTI_LAYER_EAGLE", ("legal/modules", "every step needs a module of its own")),
    Case("MiMo-7B-Base", "MiMo-7B-Base", "EAGLE", (MIMO, (1, *MIMO[1:]))),
    Case("MiMo-7B-Base", "MiMo-7B-Base", "MULTI_LAYER_EAGLE", (MIMO, (1, *MIMO[1:])), steps=1),
    Case("MiMo-7B-Base", "MiMo-7B-Base", "MULTI_LAYER_EAGLE", ("legal/modules", "every step needs a module"), steps=2),
    Case("gpt-oss-120b", None, "NGRAM", (GPT_OSS, None), dtype="bfloat16"),
    Case(QWEN_80B, None, "NGRAM", (QWEN_NEXT, None)),
    Case(QWEN_80B, QWEN_80B, "EAGLE", ("config/missing-key", SAYS_NOT)),
    Case("gemma-3-27b-it", None, "NGRAM", (GEMMA, None)),
    Case("Llama-4-Scout-17B-16E-Instruct", None, "NGRAM", (SCOUT, None)),
    Case(KIMI_K2, None, "NGRAM", (KIMI, None)),
    Case(KIMI_K2, KIMI_K2, "EAGLE", ("config/missing-key", SAYS_NOT)),
]


def checked(case: Case) -> LoadedConfig:
    """Return the configuration of a case as `specc check` sees it; raises DiagnosticError."""
    dtype = f", dtype: {case.dtype}" if case.dtype else ""
    text = f"name: published\nalgorithm: {case.algorithm}\nnum_steps: {case.steps}\n"
    text += "".join(
        f"{role}: {{model: {model}{dtype}}}\n"
        for role, model in (("target", case.target), ("draft", case.draft))
        if model
    )
    loaded = load_text(text, PUBLISHED / "published.yaml", names(), needs)
    check_config(loaded)
    return loaded


def sizes(model: ModelConfig) -> Sizes:
    """Return what is compared of a model."""
    pool = (model.num_layers, model.num_kv_heads, model.head_dim, model.kv_layout, model.kv_dtype)
    return (*pool, model.hidden_size, model.vocab_size)


def row(case: Case) -> str:
    """Return the line of the table, from what a check says."""
    draft = {None: "none", case.target: "its own modules"}.get(case.draft, f"`{case.draft}`")
    try:
        models = checked(case).config.models
        result = "; ".join(
            f"{role} {layers} × {heads} × {length}, {layout}, {dtype}, hidden {hidden}, vocabulary {vocabulary}"
            for role, model in models.items()
            for layers, heads, length, layout, dtype, hidden, vocabulary in (sizes(model),)
        )
    except DiagnosticError as error:
        result = f"refused, `{error.diagnostics[0].code}`"
    return f"| `{case.target}` | {draft} | `{case.algorithm}`, {case.steps} | {result} |"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_published(case: Case) -> None:
    if isinstance(case.expected[0], str):
        with pytest.raises(DiagnosticError) as error:
            checked(case)
        (diagnostic,) = (diagnostic for diagnostic in error.value.diagnostics if diagnostic.severity == "error")
        code, message = case.expected
        assert diagnostic.code == code
        assert str(message) in diagnostic.message
        return
    loaded = checked(case)
    target, draft = case.expected
    assert sizes(loaded.config.target) == target
    assert (sizes(loaded.config.draft) if loaded.config.draft is not None else None) == draft
    assert {warning.code for warning in loaded.warnings} == set(case.warnings)


def test_every_published_model_has_a_case() -> None:
    named = {model for case in CASES for model in (case.target, case.draft)}
    assert {path.parent.name for path in PUBLISHED.glob("*/config.json")} == named - {None}


def test_the_table_says_what_a_check_says() -> None:
    """One row for each case, in order."""
    section = (ROOT / "docs/models.md").read_text().partition(HEADING)[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("| `")]
    assert table == [row(case) for case in CASES]
