"""Modules of multi-token prediction inside their target's directory: what they compute, by plain formulas.

The formulas are those of DeepSeek-V3's report (arXiv 2412.19437) and of the published modelling code.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.program import FakeProgram, make_plan
from published_modules import EXPERTS, HEADS, KINDS, LAYERS, WIDTH, Published, make_published, write_weights
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

from specc.engine.engine import Engine
from specc.engine.models.causal_models import TargetModel
from specc.engine.models.drafts import EagleDraft, MtpDraft
from specc.engine.models.loading import brings_draft, load_draft, load_target
from specc.engine.models.mtp_heads import ModuleHead, MtpHeads
from specc.engine.serving.request import StopConditions
from specc.runtime.plan.plan import Plan
from specc.support.diagnostics import DiagnosticError

from .models_for_tests import VOCAB, make_drafts, make_target

EPS, THETA = 1e-5, 10000.0


def normed(rows: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def turned(rows: Tensor, *, neighbours: bool) -> Tensor:
    """Rows [n, heads, d] of positions 0, 1, ... turned in pairs of neighbours, or of halves."""
    count, _, size = rows.shape
    angles = torch.arange(count)[:, None] * THETA ** (-torch.arange(0, size, 2) / size)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    first, second = (rows[..., 0::2], rows[..., 1::2]) if neighbours else rows.chunk(2, dim=-1)
    found = torch.complex(first, second) * turn
    # in whatever order the results stand, queries and keys have them alike
    return torch.cat((found.real, found.imag), dim=-1)


def attended(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of [n, heads, d] over as many heads: [n, heads * d]."""
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / queries.shape[-1] ** 0.5
    ahead = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(ahead, -torch.inf).softmax(-1), values).flatten(1)


def grouped_attention(of: dict[str, Tensor], rows: Tensor, kind: str) -> Tensor:
    """GLM's, half of whose elements turn, under norms of queries and keys, and Qwen2's."""
    parts = []
    for part in "qkv":
        made = rows @ of[f"self_attn.{part}_proj.weight"].T + of[f"self_attn.{part}_proj.bias"]
        made = made.unflatten(-1, (-1, 16 if kind == "glm4_moe" else 8))
        if part != "v" and kind == "glm4_moe":
            made = normed(made, of[f"self_attn.{part}_norm.weight"])
            made = torch.cat((turned(made[..., :8], neighbours=False), made[..., 8:]), dim=-1)
        elif part != "v":
            made = turned(made, neighbours=False)
        parts.append(made.repeat_interleave(HEADS // made.shape[1], dim=1))
    return attended(*parts) @ of["self_attn.o_proj.weight"].T


def latent_attention(of: dict[str, Tensor], rows: Tensor) -> Tensor:
    """DeepSeek's: keys and values come of a latent row, a part of every key that turns is that of all heads."""
    narrow = normed(rows @ of["self_attn.q_a_proj.weight"].T, of["self_attn.q_a_layernorm.weight"], 1e-6)
    queries = (narrow @ of["self_attn.q_b_proj.weight"].T).unflatten(-1, (HEADS, 12))
    latent, shared = (rows @ of["self_attn.kv_a_proj_with_mqa.weight"].T).split([16, 4], dim=-1)
    latent = normed(latent, of["self_attn.kv_a_layernorm.weight"], 1e-6)
    keys, values = (latent @ of["self_attn.kv_b_proj.weight"].T).unflatten(-1, (HEADS, 20)).split([8, 12], dim=-1)
    shared = turned(shared[:, None], neighbours=True).expand(-1, HEADS, -1)
    queries = torch.cat((queries[..., :8], turned(queries[..., 8:], neighbours=True)), dim=-1)
    return attended(queries, torch.cat((keys, shared), dim=-1), values) @ of["self_attn.o_proj.weight"].T


def gated(of: dict[str, Tensor], prefix: str, rows: Tensor) -> Tensor:
    gate, up, down = (of[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down"))
    return (silu(rows @ gate.T) * (rows @ up.T)) @ down.T


def experts(of: dict[str, Tensor], rows: Tensor, groups: int) -> Tensor:
    """Two experts of the best group, by scores with a bias, weighed by scores without; one is shared by all rows."""
    found = gated(of, "mlp.shared_experts.", rows)
    for place, row in enumerate(rows):
        scores = (of["mlp.gate.weight"] @ row).sigmoid()
        biased = scores + of["mlp.gate.e_score_correction_bias"]
        best = max(biased.view(groups, -1).sort(descending=True).values[:, :2].sum(-1).tolist())
        for group in biased.view(groups, -1):
            if group.sort(descending=True).values[:2].sum().item() < best:
                group.fill_(-torch.inf)
        chosen = biased.topk(2).indices
        for expert in chosen.tolist():
            share = 1.5 * scores[expert] / scores[chosen].sum()
            found[place] += share * gated(of, f"mlp.experts.{expert}.", row)
    return found


def by_formula(kind: str, published: Published, tokens: Tensor, hidden: Tensor) -> Tensor:
    """What a module makes of the pairs of tokens [n] and hidden rows [n, W] from position 0 on: rows [n, W]."""
    of = published.module
    embedded = published.model.get_parameter("model.embed_tokens.weight")[tokens].detach().clone()
    if kind == "mimo":
        embedded[0] = 0
        parts = [normed(hidden, of["hidden_layernorm.weight"]), normed(embedded, of["token_layernorm.weight"])]
        stream = torch.cat(parts, dim=-1) @ of["input_proj.weight"].T
    else:
        parts = [normed(embedded, of["enorm.weight"]), normed(hidden, of["hnorm.weight"])]
        stream = torch.cat(parts, dim=-1) @ of["eh_proj.weight"].T
    rows = normed(stream, of["input_layernorm.weight"])
    stream = stream + (latent_attention(of, rows) if kind == "deepseek_v3" else grouped_attention(of, rows, kind))
    rows = normed(stream, of["post_attention_layernorm.weight"])
    if kind == "mimo":
        return normed(stream + gated(of, "mlp.", rows), of["final_layernorm.weight"])
    return normed(stream + experts(of, rows, 2 if kind == "deepseek_v3" else 1), of["shared_head.norm.weight"])


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def published(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Published:
    return make_published(kind, tmp_path_factory.mktemp(kind), vocab=VOCAB, eos=None)


def plan_for(published: Published, *, steps: int = 3, modules: bool = False, dtype: torch.dtype = torch.float32) -> Plan:
    """The plan of a program for a target and its module, an EAGLE head or, of `modules`, one for its only step."""
    target = TargetModel(AutoModelForCausalLM.from_config(copy.deepcopy(published.model.config)).to(dtype))
    head = (MtpHeads if modules else ModuleHead).from_directory(published.path, target.model)
    return make_plan(target, MtpDraft(head) if modules else EagleDraft(head), steps=1 if modules else steps)


@torch.no_grad()
@pytest.mark.parametrize("shards", [1, 3])
def test_a_module_is_what_its_formula_says(kind: str, shards: int, tmp_path: Path) -> None:
    published = make_published(kind, tmp_path, vocab=VOCAB, shards=shards)
    tokens, hidden = torch.randint(VOCAB, (9,)), torch.randn(9, WIDTH)
    expected, places = by_formula(kind, published, tokens, hidden), torch.arange(9)[None]
    head = ModuleHead.from_directory(tmp_path, published.model)
    found = head(tokens[None], hidden[None], places)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)
    scores = expected @ published.model.get_parameter("lm_head.weight").T
    torch.testing.assert_close(head.logits(found)[0], scores, rtol=1e-4, atol=1e-3)
    alike = MtpHeads.from_directory(tmp_path, published.model)(0, tokens[None], hidden[None], places)
    torch.testing.assert_close(alike, found)


def drafts_by_formula(kind: str, published: Published, text: list[int], steps: int) -> list[int]:
    """The tokens drafted after a text, all but whose last token the target has read."""
    out = published.model(input_ids=torch.tensor([text]), output_hidden_states=True)
    rows = out.hidden_states[-1][0, : len(text) - 1]  # after the last norm
    torch.testing.assert_close(rows @ published.model.get_parameter("lm_head.weight").T, out.logits[0, :-1])
    tokens = text[1:]
    for _ in range(steps):
        made = by_formula(kind, published, torch.tensor(tokens), rows)
        tokens.append(int((made[-1] @ published.model.get_parameter("lm_head.weight").T).argmax()))
        rows = torch.cat((rows, made[-1:]))
    return tokens[len(text) - 1 :]


@torch.no_grad()
@pytest.mark.parametrize("modules", [False, True])
def test_an_engine_drafts_what_the_formula_says(kind: str, published: Published, *, modules: bool) -> None:
    """Over paged memory, from the target's rows after its last norm, then from the module's own."""
    plan = plan_for(published, modules=modules)
    target = load_target(published.path, plan)
    program = FakeProgram(plan)
    engine = Engine(program, target, load_draft(published.path, plan, target))
    prompt, steps = [5, 17, 80, 3, 44], plan.size("S")
    (done,) = engine.generate([prompt], StopConditions(12))
    own = published.model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0].tolist()
    text = [*prompt, *done.token_ids]
    assert text == own
    ((_, drafted),) = program.drafted.items()
    assert len(drafted) > 3
    for known, tokens in drafted:
        if known < len(text):
            assert tokens == drafts_by_formula(kind, published, text[: known + 1], steps), known
