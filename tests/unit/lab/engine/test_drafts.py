"""Drafts of every kind over the paged pools: what they draft is what they would without any KV memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.program import FakeProgram, make_plan, with_model
from memoryless import accepted_lengths, emitted, memoryless
from torch import Tensor

from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import EngineError, UnsupportedModelError
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import DflashDraft, Draft, FrozenKvDraft, MtpDraft
from specc.lab.engine.models.loading import load_corpus, load_draft
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.prompts import PrefillPrompt
from specc.lab.engine.serving.requests.request import Completion, StopConditions

from .models_for_tests import AUX_LAYERS, SHAPES, VOCAB, make_drafts, make_pair, make_target

torch.set_num_threads(1)
HEADS = ("frozen", "mtp", "dflash")
NEW = 16


def make_engine(target: TargetModel, draft: Draft | None, *, tables: Any = None, **plan: Any) -> Engine:
    """Return an engine whose KV memory holds large numbers, so that whatever reads a wrong slot shows."""
    program = FakeProgram(make_plan(target, draft, **plan))
    engine = Engine(program, target, draft, tables=tables, max_context=96)
    generator = torch.Generator().manual_seed(1)
    for pool in engine.pools.values():
        for buffer in pool.buffers:
            buffer.copy_(30 * torch.randn(buffer.shape, generator=generator))
    return engine


def make_prompts(seed: int = 3) -> list[list[int]]:
    """Return random prompts of different lengths, the shortest of one token."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, VOCAB, (length,), generator=generator).tolist() for length in (1, 2, 17, 33)]


@torch.no_grad()
def expect_drafts(engine: Engine, completion: Completion, drafted: list[tuple[int, list[int]]], steps: int) -> None:
    """Compare a text with `generate`, and every step's drafts with those of a draft without KV memory."""
    prompt = completion.prompt_ids
    text = (*prompt, *greedy(engine.target, prompt, NEW + steps + 1))
    assert completion.token_ids == text[len(prompt) :][:NEW]
    assert engine.draft is not None
    alone = memoryless(engine.target, engine.draft, text, shifted=True)
    assert drafted == [(length, alone.chain(length + 1, steps)) for length, _ in drafted]
    lengths = accepted_lengths(engine.target, engine.draft, text, len(prompt), steps, shifted=True)
    assert completion.accept_lens == emitted(lengths, NEW - 1)


@pytest.mark.parametrize(("family", "page_size", "steps"), SHAPES)
@pytest.mark.parametrize("kind", HEADS)
def test_drafts_are_those_of_a_draft_without_kv_memory(kind: str, family: str, page_size: int, steps: int) -> None:
    engine = make_engine(*make_pair(kind, family), steps=steps, page_size=page_size, buckets=(1, 5))
    program: FakeProgram = engine.bound.program
    for row, completion in enumerate(engine.generate(make_prompts(), StopConditions(NEW)), start=1):
        drafted = program.drafted[row]
        assert len(drafted) == len(completion.accept_lens) > 2
        expect_drafts(engine, completion, drafted, steps)
    assert program.padded > 0
    assert len({tuple(drafts) for steps in program.drafted.values() for _, drafts in steps}) > 5


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("kind", HEADS)
def test_shared_pages_are_as_good_as_own_ones(kind: str, page_size: int) -> None:
    """What was prefilled serves whoever begins alike; what modules wrote in between steps serves nobody else."""
    engine = make_engine(*make_pair(kind), steps=3, page_size=page_size)
    drafted = engine.bound.program.drafted
    (first,) = engine.generate([make_prompts()[3]], StopConditions(NEW))
    text = [*first.prompt_ids, *first.token_ids]
    lookahead = {"frozen": 0, "mtp": 3, "dflash": 0}[kind]
    for prompt in (text, text[:40], text[:33], [*text[:20], 5, 6, 7], text[:-1]):
        drafted.clear()
        before = engine.stats.shared_tokens
        (completion,) = engine.generate([prompt], StopConditions(NEW))
        expect_drafts(engine, completion, drafted[1], 3)
        shared = engine.stats.shared_tokens - before
        assert shared % page_size == 0
        assert shared <= min(len(prompt) - 1, len(prompt) - lookahead)
        assert shared > 8


def test_modules_share_what_their_prompts_settle() -> None:
    """A module's keys and values at a position depend on tokens after it: those must be known, and part of the key."""
    engine = make_engine(*make_pair("mtp"), steps=3)
    prompt = make_prompts()[3]
    engine.generate([prompt], StopConditions(NEW))
    assert (engine.plan.serving.lookahead, engine.plan.serving.settled) == (3, False)
    assert len(engine.prefixes) == len(prompt) - 2  # of 34 known tokens all but the last three
    engine.generate([[*prompt[:20], 5, 6, 7]], StopConditions(NEW))
    assert engine.stats.shared_tokens == 17


def test_a_window_slides_for_those_who_look_too() -> None:
    """Layers of the target that forget show their draft no more than they see themselves."""
    target, draft = make_pair("frozen", of_target="mistral", sliding_window=6)
    assert target.sliding_window(1) == 6
    engine = make_engine(target, draft, steps=3)
    (completion,) = engine.generate([make_prompts()[3]], StopConditions(NEW))
    expect_drafts(engine, completion, engine.bound.program.drafted[1], 3)
    kinds = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    mixed, _ = make_pair("frozen", of_target="gemma3_text", sliding_window=6, layer_types=kinds)
    assert [mixed.sliding_window(layer) for layer in range(4)] == [6, None, None, 6]
    assert make_target("llama").sliding_window(0) is None


@pytest.mark.parametrize("branches", [1, 4])
@torch.no_grad()
def test_branches_ask_side_by_side(branches: int) -> None:
    target, draft = make_pair("frozen")
    engine = make_engine(target, draft, steps=3)
    prompts = make_prompts()[1:]
    for prompt in prompts:
        engine.add(prompt, StopConditions(1 + NEW))
    for request in engine.scheduler.admit():
        engine._prompts[request.row] = PrefillPrompt(tuple(request.ids))
    rows, lens = torch.tensor([1, 0, 2, 3]), torch.tensor([len(prompts[0]), 0, *map(len, prompts[1:])])
    engine.callbacks.prefill_target(rows=rows[rows > 0], seq_lens=lens[rows > 0], capture="last")
    generator = torch.Generator().manual_seed(branches)
    tokens = torch.randint(2, VOCAB, (4, branches), generator=generator)
    hidden = torch.randn(4, branches, 32, generator=generator)
    positions = (lens - 1).clamp(min=0)[:, None].expand(-1, branches).contiguous()
    for step, take in ((1, slice(None)), (0, 0)):
        result = engine.callbacks.assist(
            step=step,
            tokens=tokens[:, take].contiguous(),
            positions=positions[:, take].contiguous(),
            rows=rows,
            seq_lens=lens,
            capture="last",
            hidden=hidden[:, take].contiguous(),
        )
        assert result.logits.shape == (*tokens[:, take].shape, VOCAB)
        assert result.hidden.shape == hidden[:, take].shape
        for b, row in enumerate(rows.tolist()):
            if row:
                text = [*prompts[row - 1], 2]
                alone = memoryless(target, draft, text, shifted=True)
                for branch, (token, state) in enumerate(zip(tokens[b].tolist(), hidden[b], strict=True)):
                    scores, given = alone.run(len(text), [(token, state)])
                    if step or not branch:
                        logits, rest = ((x[b, branch] if step else x[b]) for x in (result.logits, result.hidden))
                        torch.testing.assert_close(logits, scores, rtol=1e-4, atol=1e-4)
                        torch.testing.assert_close(rest, given, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("capture", ["null", "last", "full"])
@pytest.mark.parametrize("kind", ["frozen", "dflash"])
def test_what_a_prefill_hands_over(kind: str, capture: str) -> None:
    target, draft = make_pair(kind)
    engine = make_engine(target, draft)
    prompts = make_prompts()
    engine.generate([prompts[3]], StopConditions(2))  # whose pages the second request shares
    for prompt in (prompts[1], prompts[3]):
        engine.add(prompt, StopConditions(2))
    for request in engine.scheduler.admit():
        engine._prompts[request.row] = PrefillPrompt(tuple(request.ids), request.shared)
    lengths = [len(prompts[1]), len(prompts[3])]
    out = engine.callbacks.prefill_target(rows=torch.tensor([1, 2]), seq_lens=torch.tensor(lengths), capture=capture)
    assert [int(token) for token in out.logits.argmax(-1)] == [greedy(target, prompts[i], 1)[0] for i in (1, 3)]
    if capture == "null":
        assert out.hidden is None
        return
    rows = [memoryless(target, draft, prompts[i], shifted=True).hidden for i in (1, 3)]
    shared = engine._prompts[2].shared
    assert shared > 0
    if capture == "last":
        wanted = torch.stack([row[-1] for row in rows])
    else:
        wanted = torch.cat((rows[0], torch.zeros_like(rows[1][:shared]), rows[1][shared:]))
    torch.testing.assert_close(out.hidden, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("corpus", [None, [7, 9, 5], "text"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_program_without_draft_model(page_size: int, corpus: Any) -> None:
    target = make_target()
    prompts = make_prompts()
    corpus_tokens = [*prompts[2], *greedy(target, prompts[2], 40)] if corpus == "text" else corpus
    tables = {} if corpus_tokens is None else {"corpus": torch.tensor(corpus_tokens, dtype=torch.int32)}
    engine = make_engine(target, None, tables=tables, page_size=page_size, corpus=corpus_tokens is not None)
    assert engine.pools.keys() == {"target"}
    assert engine.callbacks.capturable
    for _ in range(2):
        for prompt, completion in zip(prompts, engine.generate(prompts, StopConditions(NEW)), strict=True):
            assert completion.token_ids == greedy(target, prompt, NEW)
    assert engine.stats.shared_tokens > 0
    assert (max(engine.stats.accept_lens) == 4) or corpus != "text"


def test_models_and_tables_must_be_those_of_the_program() -> None:
    target = make_target()
    draft = make_drafts(target)["twin"]
    words = {"corpus": torch.tensor([1], dtype=torch.int32)}
    cases: list[tuple[Callable[[], Engine], str]] = [
        (lambda: Engine(FakeProgram(make_plan(target, draft)), target), "has a draft model"),
        (lambda: Engine(FakeProgram(make_plan(target, None)), target, draft), "has no draft model"),
        (lambda: Engine(FakeProgram(make_plan(target, None, corpus=True)), target), "reads a table 'corpus'"),
        (lambda: Engine(FakeProgram(make_plan(target, None)), target, tables=words), "reads no table 'corpus'"),
    ]
    for make, message in cases:
        with pytest.raises(EngineError, match=message):
            make()


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("frozen", "assist"),
        ("mtp", "extend_module, prefill_module"),
        ("dflash", "block, inject, prefill_inject"),
    ],
)
def test_a_draft_of_another_kind(kind: str, calls: str) -> None:
    target, draft = make_pair(kind)
    plan = make_plan(target, draft)
    twin = make_drafts(target)["twin"]
    twin_plan = make_plan(target, twin)
    plan = replace(plan, kv_pools=twin_plan.kv_pools, models=twin_plan.models)
    with pytest.raises(UnsupportedModelError, match=f"calls {calls}, which"):
        Engine(FakeProgram(plan), target, twin)


@pytest.mark.parametrize(("kind", "wrap"), [("frozen", FrozenKvDraft), ("mtp", MtpDraft), ("dflash", DflashDraft)])
def test_the_forwards_decide_what_is_loaded(kind: str, wrap: type, tmp_path: Path) -> None:
    target, draft = make_pair(kind)
    draft.head.save(tmp_path)
    plan = with_model(make_plan(target, draft), "target", aux_layers=tuple(target.aux_layers))
    loaded = load_draft(tmp_path, plan, target)
    assert isinstance(loaded, wrap)
    for name, value in draft.head.state_dict().items():
        assert torch.equal(value, loaded.head.state_dict()[name])
    plan = with_model(plan, "draft", num_layers=plan.models["draft"].num_layers + 1)
    with pytest.raises(DiagnosticError, match=r"run/model-mismatch.*num_layers"):
        load_draft(tmp_path, plan, target)


@pytest.mark.parametrize("layers", [[2, 3], [1, 2, 3], []])
def test_a_block_over_other_layers_than_it_was_trained_on(layers: list[int], tmp_path: Path) -> None:
    target, draft = make_pair("dflash")
    draft.head.save(tmp_path)
    plan = with_model(make_plan(target, draft), "target", aux_layers=tuple(layers))
    with pytest.raises(DiagnosticError, match=r"run/model-mismatch.*reads layers 1, 3"):
        load_draft(tmp_path, plan, target)
    assert AUX_LAYERS == (1, 3)


def test_a_corpus_is_tokenised_by_the_target(tmp_path: Path) -> None:
    target = make_target()
    target.tokenizer = lambda text, add_special_tokens: {"input_ids": [ord(letter) for letter in text]}
    path = tmp_path / "corpus.txt"
    path.write_text("a b\n", encoding="utf-8")
    tokens = load_corpus(path, target)
    assert (tokens.tolist(), tokens.dtype) == ([97, 32, 98, 10], torch.int32)
    for bad in (tmp_path / "none", tmp_path):
        with pytest.raises(DiagnosticError, match=r"config/unreadable.*cannot read the corpus"):
            load_corpus(bad, target)


def test_unknown_drafts_have_no_reference() -> None:
    class Other:
        def logits(self, hidden: Tensor) -> Tensor:
            return hidden

    unknown: Any = Other()
    with pytest.raises(TypeError, match="no reference for a draft of type Other"):
        memoryless(make_target(), unknown, [1, 2], shifted=True)
