"""Programs that draw, in vLLM: their texts are distributed as those that transformers draws."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_prompts import PREAMBLES, TAILS
from head_layouts import EXAMPLES
from text_statistics import Texts, surprise
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_models import ASSISTANT, GEMMA
from vllm_programs import build_program
from vllm_server import ROWS, Served, Variant, serve

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 1.2},
    "filters": {"temperature": 0.8, "top_k": 6, "top_p": 0.9},
    "penalties": {"temperature": 1.2, "repetition_penalty": 1.4},
}
"""The next wave arrives behind the last of these, which is accepted least."""
LEFT: dict[str, dict[str, Any]] = {
    "a seed": {"temperature": 0.8, "seed": 3},
    "a repetition penalty beside others": {"temperature": 0.8, "repetition_penalty": 1.4, "presence_penalty": 0.5},
}
"""Requests that vLLM draws for by itself, by what it is said to be."""
TOKENS = 4
WAVE = 4 * ROWS
"""Requests that arrive together: they are prefilled in one step, and those behind it are the program's."""
WAVES = 20
EXPECTED = 5_000
"""Texts that transformers draws, of each kind."""
SERVER = {"max_num_seqs": WAVE, "max_num_batched_tokens": 512}
BLOCKS = {False: 64, True: 192}
"""Of targets whose layers all see the whole text, and of others."""
IMPROBABLE = 1e-4
VARIANTS = [
    Variant("eagle", "eagle", program=True, drafting="greedy"),
    Variant("draft_model", "standalone", ahead=True, program=True, drafting="coupled"),
    Variant("eagle", "eagle", ahead=True, program=True, drafting="coupled", shapes=(0, 1, 3)),
    Variant("mtp", "qwen3_next", target="qwen3_next", half=True, ahead=True, program=True, drafting="coupled"),
    Variant("mtp", ASSISTANT, target=GEMMA, ahead=True, program=True, drafting="coupled"),
    Variant("eagle", "eagle", ahead=True, program=True, drafting="rejection"),
    Variant("draft_model", "standalone", ahead=True, program=True, drafting="rejection"),
    Variant("eagle3", "eagle3", ahead=True, program=True, drafting="block"),
    Variant("mtp", "mimo", target="mimo", ahead=True, program=True, drafting="rejection"),
    Variant("mtp", "glm", target="glm", ahead=True, program=True, drafting="block"),
    Variant("dflash", "dflash", ahead=True, program=True, drafting="rejection"),
    Variant("dspark", "dspark", ahead=True, program=True, drafting="block"),
]


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: f"{variant}-{variant.drafting}")
def drawing(request: pytest.FixtureRequest) -> Variant:
    """What runs."""
    made: Variant = request.param
    return made


@pytest.fixture(scope="module")
def drawn(drawing: Variant, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A server that was asked for texts of all kinds behind one prompt, in turn, and for some that vLLM draws."""
    folder = tmp_path_factory.mktemp("drawn")
    wheel = build_program(drawing, models, folder / "wheel", buckets=(ROWS, WAVE))
    given = drawing.engine(models) | SERVER | {"num_gpu_blocks_override": BLOCKS[drawing.recurrent or drawing.windowed]}
    return serve(given, requests(), folder / "job", wheel=wheel, drafts=drawing.shapes)


@pytest.fixture(scope="module")
def target(drawing: Variant, models: Path) -> Path:
    """The model whose texts these are."""
    return models / drawing.target


def requests() -> list[dict[str, Any]]:
    """See `serve.py`: each wave arrives when the last one's last request has its tokens; then those of `LEFT`."""
    kinds = list(KINDS)
    made = [asked(kinds[number % len(kinds)], number // WAVE) for number in range(WAVE * WAVES)]
    left = [
        {"prompt": prompt(), "sampling": {"max_tokens": 12, "ignore_eos": True, **request}} for request in LEFT.values()
    ]
    for request in left:
        request["after"] = [len(made) - 1, TOKENS]
        made.append(request)
    return made


def asked(kind: str, wave: int) -> dict[str, Any]:
    """A request of a kind."""
    request = {"prompt": prompt(), "sampling": {"max_tokens": TOKENS, "ignore_eos": True, **KINDS[kind]}}
    return request | ({"after": [WAVE * wave - 1, TOKENS]} if wave else {})


def prompt() -> list[int]:
    """One that the target has several ideas of how to go on behind."""
    return AutoTokenizer.from_pretrained(EXAMPLES / "target")(PREAMBLES[2] + TAILS[0]).input_ids


def texts(served: Served, kind: str) -> Texts:
    """What was answered to requests of a kind."""
    numbers = range(list(KINDS).index(kind), WAVE * WAVES, len(KINDS))
    return [served.outputs[number]["token_ids"] for number in numbers]


@functools.cache
def expected(kind: str, target: Path) -> Texts:
    """What transformers draws of a kind, or of a greedy request its only text."""
    given = KINDS[kind]
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    ids = torch.tensor([prompt()])
    mask = torch.ones_like(ids)
    if not given["temperature"]:
        made = model.generate(ids, attention_mask=mask, max_new_tokens=TOKENS, eos_token_id=None, do_sample=False)
    else:
        torch.manual_seed(5)
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=TOKENS, eos_token_id=None, do_sample=True,
            num_return_sequences=EXPECTED, **{"top_k": 0, **given},
        )  # fmt: skip
    return made[:, ids.shape[1] :].tolist()


def test_texts_are_distributed_as_those_that_transformers_draws(drawing: Variant, drawn: Served, target: Path) -> None:
    """All kinds in the same batches; the first token is vLLM's, which prefills.

    Transformers has scores in 32 bits. In 16 bits several tokens have the same one, and filters cut between others.
    """
    kinds = KINDS.keys() - {"greedy", "filters" if drawing.half else ""}
    surprises = {kind: surprise((texts(drawn, kind), expected(kind, target))) for kind in kinds}
    assert min(surprises.values()) > IMPROBABLE, surprises


def test_what_is_drawn_depends_on_how(drawn: Served, target: Path) -> None:
    """The comparison tells the kinds apart, of whichever there are more texts."""
    kinds = ("temperature", "filters"), ("filters", "temperature")
    across_kinds = [surprise((texts(drawn, one), expected(other, target))) for one, other in kinds]
    assert min(across_kinds) < IMPROBABLE, across_kinds


def test_greedy_requests_in_the_same_batches_are_greedy(drawn: Served, target: Path) -> None:
    (only,) = expected("greedy", target)
    assert {tuple(text) for text in texts(drawn, "greedy")} == {tuple(only)}


def test_the_program_drew_them(drawn: Served) -> None:
    """But where others are prefilled in the same step, and what programs do not do."""
    assert drawn.counts is not None
    assert drawn.counts["program_steps"] > 2 * WAVES
    assert "sampling" not in drawn.counts["vllm_steps"]
    assert set(LEFT) & set(drawn.counts["vllm_steps"]), drawn.counts
