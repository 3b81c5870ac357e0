"""Modules of multi-token prediction inside their target's directory: what they compute, by plain formulas.

The formulas are those of DeepSeek-V3's report (arXiv 2412.19437) and of the published modelling code.
"""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.program import FakeProgram, make_plan, with_model
from memoryless import accepted_lengths, emitted
from published_modules import EXPERTS, HEADS, KINDS, WIDTH, Published, make_published, write_weights
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM

from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.engine.engine import Engine
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import EagleDraft, MtpDraft
from specc.lab.engine.models.heads.mtp_heads import ModuleHead, MtpHeads
from specc.lab.engine.models.loading import brings_draft, load_draft, load_target
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions
from specc.runtime.plan.plan import Plan

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
    rotated = torch.complex(first, second) * turn
    # in whatever order the results stand, queries and keys have them alike
    return torch.cat((rotated.real, rotated.imag), dim=-1)


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
    outputs = gated(of, "mlp.shared_experts.", rows)
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
            outputs[place] += share * gated(of, f"mlp.experts.{expert}.", row)
    return outputs


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


def plan_for(published: Published, *, modules: bool = False, dtype: torch.dtype = torch.float32) -> Plan:
    """The plan of a program for a target and its module, an EAGLE head or, of `modules`, one for its only step."""
    target = TargetModel(AutoModelForCausalLM.from_config(copy.deepcopy(published.model.config)).to(dtype))
    head = (MtpHeads if modules else ModuleHead).from_directory(published.path, target.model)
    return make_plan(target, MtpDraft(head) if modules else EagleDraft(head), steps=1 if modules else 3)


@torch.no_grad()
@pytest.mark.parametrize("shards", [1, 3])
def test_a_module_is_what_its_formula_says(kind: str, shards: int, tmp_path: Path) -> None:
    published = make_published(kind, tmp_path, vocab=VOCAB, shards=shards)
    tokens, hidden = torch.randint(VOCAB, (9,)), torch.randn(9, WIDTH)
    expected, places = by_formula(kind, published, tokens, hidden), torch.arange(9)[None]
    head = ModuleHead.from_directory(tmp_path, published.model)
    outputs = head(tokens[None], hidden[None], places)
    torch.testing.assert_close(outputs[0], expected, rtol=1e-4, atol=1e-4)
    scores = expected @ published.model.get_parameter("lm_head.weight").T
    torch.testing.assert_close(head.logits(outputs)[0], scores, rtol=1e-4, atol=1e-3)
    alike = MtpHeads.from_directory(tmp_path, published.model)(0, tokens[None], hidden[None], places)
    torch.testing.assert_close(alike, outputs)


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
    draft = load_draft(published.path, plan, target)
    engine = Engine(program, target, draft)
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
    whole = [*prompt, *greedy(target, prompt, 12 + steps)]
    lengths = accepted_lengths(target, draft, whole, len(prompt), steps, shifted=True)
    assert done.accept_lens == emitted(lengths, 12 - 1)


def settings(path: Path, **changes: Any) -> None:
    """Change keys of a config.json."""
    content = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(content | changes))


def refusal(path: Path, plan: Plan, target: TargetModel) -> tuple[str, str]:
    """Code and message of the diagnostic that loading the module raises."""
    with pytest.raises(DiagnosticError) as caught:
        load_draft(path, plan, target)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.hint
    return diagnostic.code, diagnostic.message


@pytest.mark.parametrize("modules", [False, True])
def test_weights_are_named_as_they_are_published(kind: str, tmp_path: Path, *, modules: bool) -> None:
    """Those that are missing, that nobody knows, or that have another shape; a copy of the target's is not read."""
    published = make_published(kind, tmp_path, vocab=VOCAB)
    plan, weights = plan_for(published, modules=modules), load_file(tmp_path / "model.safetensors")
    target = load_target(tmp_path, plan)
    needed = [name for name in published.module if name not in ("embed_tokens.weight", "shared_head.head.weight")]
    for name in (needed[0], *[name for name in needed if name.endswith(f"experts.{EXPERTS - 1}.up_proj.weight")]):
        write_weights(tmp_path, {key: value for key, value in weights.items() if key != published.prefix + name})
        code, message = refusal(tmp_path, plan, target)
        assert code == "run/model-unreadable"
        assert message.endswith(f"the module has no weights for {published.prefix}{name}")
    write_weights(tmp_path, weights | {f"{published.prefix}self_attn.sinks": torch.zeros(HEADS)})
    code, message = refusal(tmp_path, plan, target)
    assert code == "run/model-unreadable"
    assert message.endswith(f"the module has weights unknown here: {published.prefix}self_attn.sinks")
    name = "input_layernorm.weight"
    write_weights(tmp_path, weights | {published.prefix + name: torch.ones(WIDTH + 1)})
    code, message = refusal(tmp_path, plan, target)
    assert code == "run/model-unreadable"
    assert f"size mismatch for {'layers.0' if modules else 'module'}.layer.{name}" in message
    copies = {name for name in published.module if name not in needed}
    assert len(copies) == (0 if kind == "mimo" else 2)
    without = {key: value for key, value in weights.items() if key.removeprefix(published.prefix) not in copies}
    write_weights(tmp_path, without | {f"{published.prefix}self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    assert load_draft(tmp_path, plan, target).facts.num_layers == 1


def test_quantised_and_several_modules_are_refused(kind: str, tmp_path: Path) -> None:
    published = make_published(kind, tmp_path, vocab=VOCAB)
    plan, weights = plan_for(published), load_file(tmp_path / "model.safetensors")
    target = load_target(tmp_path, plan)
    settings(tmp_path, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    expected = "the draft model cannot be run: its weights are quantised (quantization_config: fp8)"
    assert refusal(tmp_path, plan, target) == ("run/model-unsupported", expected)
    settings(tmp_path, quantization_config=None)
    name = published.prefix + "input_layernorm.weight"
    write_weights(tmp_path, weights | {name: weights[name].to(torch.float8_e4m3fn)})
    expected = f"the draft model cannot be run: its weights are quantised ({name} is torch.float8_e4m3fn)"
    assert refusal(tmp_path, plan, target) == ("run/model-unsupported", expected)
    settings(tmp_path, num_nextn_predict_layers=2)
    code, message = refusal(tmp_path, plan, target)
    assert code == "run/model-unsupported"
    assert "it has 2 modules (num_nextn_predict_layers)" in message


@pytest.mark.parametrize("shards", [1, 2])
def test_the_target_is_loaded_without_a_word(
    kind: str, shards: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers' classes know published depths alone; what is no module's is still told, and nothing is left."""
    published = make_published(kind, tmp_path, vocab=VOCAB, shards=shards)
    plan = plan_for(published)
    before = type(published.model)._keys_to_ignore_on_load_unexpected
    caplog.set_level(logging.WARNING, "transformers")
    target = load_target(tmp_path, plan)
    assert caplog.text == ""
    loaded = target.model.state_dict()
    assert loaded.keys() == published.model.state_dict().keys()
    for name, value in published.model.state_dict().items():
        assert torch.equal(loaded[name], value), name
    assert [warning.code for warning in target.warnings] == (["run/own-code"] if kind == "mimo" else [])
    if shards == 1:
        weights = load_file(tmp_path / "model.safetensors")
        write_weights(tmp_path, weights | {"model.layers.7.enorm.weight": torch.ones(WIDTH)})
        load_target(tmp_path, plan)
        assert "model.layers.7.enorm.weight" in caplog.text
        assert published.prefix not in caplog.text
    assert type(published.model)._keys_to_ignore_on_load_unexpected == before


def test_a_type_that_another_class_reads_is_loaded_by_that(tmp_path: Path) -> None:
    """Kimi-K2 is a DeepSeek-V3 by another name, without modules."""
    published = make_published("deepseek_v3", tmp_path, vocab=VOCAB)
    plan = plan_for(published)
    settings(tmp_path, model_type="kimi_k2", num_nextn_predict_layers=0)
    weights = load_file(tmp_path / "model.safetensors")
    write_weights(tmp_path, {name: weights[name] for name in weights if not name.startswith(published.prefix)})
    loaded = load_target(tmp_path, plan).model
    assert type(loaded) is type(published.model)
    for name, value in published.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_buffers_keep_their_dtype(kind: str, published: Published) -> None:
    """Frequencies, and the bias of the choice of experts: in bf16 positions and experts would be others."""
    plan = plan_for(published, dtype=torch.bfloat16)
    target = load_target(published.path, plan)
    head: Any = load_draft(published.path, plan, target).head
    assert {value.dtype for value in head.parameters()} == {torch.bfloat16}
    assert {name.rpartition(".")[2] for name, _ in head.named_buffers()} >= {"inv_freq"}
    assert {value.dtype for _, value in head.named_buffers()} == {torch.float32}
    exact = ModuleHead.from_directory(published.path, published.model)
    for name, value in exact.named_buffers():
        assert torch.equal(value, head.get_buffer(name)), name
    chosen = target.model.config._experts_implementation
    assert head.config._experts_implementation == chosen


def test_a_target_brings_its_draft(kind: str, published: Published, tmp_path: Path) -> None:
    """To programs that draft with a module, and only if it has one."""
    plan = plan_for(published)
    assert brings_draft(published.path, plan)
    assert brings_draft(published.path, plan_for(published, modules=True))
    assert not brings_draft(published.path, with_model(plan, "target", aux_layers=(1, 2)))
    plain = make_target()
    for draft in ("twin", "stranger"):
        assert not brings_draft(published.path, make_plan(plain, make_drafts(plain)[draft]))
    (tmp_path / "config.json").write_text((published.path / "config.json").read_text())
    for changes in ({"num_nextn_predict_layers": 0}, {"num_nextn_predict_layers": 1, "model_type": []}):
        settings(tmp_path, **changes)
        assert not brings_draft(tmp_path, plan)
    assert not brings_draft(tmp_path / "none", plan)
