"""Programs in the place of SGLang's blocks, on stand-ins of its modules: drafts, their context, what goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import published_models
import pytest
import torch
from fakes.sglang_blocks import MASK, DSparkWorkerV2, VanillaMarkov
from fakes.sglang_server import SharedOutput, adapter
from fakes.sglang_states import NgramEmbeddingManager
from fakes.sglang_worker import ModelRunner
from programs import planned
from test_sglang_fit import misfits
from test_sglang_worker import ALL, BATCHES, PROMPTS, Serve, counted, drawing, plan_of, run, serve

from specc.compiler.config.models import Fact, ModelFacts, read_model
from specc.compiler.config.presets.contract import Value
from specc.engines.sglang.check.command_line import parse
from specc.engines.sglang.check.models import facts_of
from specc.engines.sglang.kinds.block_drafts import BLOCKS, CORRECTED_BLOCKS, MARKOV, MODE
from specc.engines.sglang.served import ServedModel, refusals
from specc.engines.sglang.served import Server as Facts
from specc.runtime.step import Step

__all__ = ["serve"]
DRAWS = (("verify", "target_only"), ("sampling", ("top_k", "top_p")))
overlapping = pytest.mark.parametrize("overlap", [False, True])


@pytest.fixture(params=["DFLASH", "DFLASH2", "DSPARK", "anchored"])
def algorithm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of blocks in which each draft is told of the one before, those with and without a row that is no draft's."""
    monkeypatch.setattr(DSparkWorkerV2, "anchored", request.param == "anchored")
    return "DSPARK" if request.param == "anchored" else request.param


@pytest.mark.parametrize("steps", [1, 3])
def test_attention_is_prepared_for_the_tokens_of_a_block(serve: Serve, algorithm: str, steps: int) -> None:
    """Those that are verified but, in an anchored block, the last."""
    server = serve(plan_of(algorithm, ("num_steps", steps)))
    (attention,) = server.worker.steps._attention.values()
    sizes = attention._tables.sizes
    assert (sizes.steps, sizes.nodes) == (steps - (algorithm == "DSPARK" and DSparkWorkerV2.anchored), steps + 1)


@overlapping
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_texts_are_the_targets_own(serve: Serve, algorithm: str, overlap: bool, steps: int) -> None:
    """Step by step as by a program that prefills by itself: all of the context is there."""
    plan = plan_of(algorithm, ("num_steps", steps))
    server = serve(plan, overlap=overlap)
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES)
    report = server.worker.steps.report()
    assert (report["served"], report["proof"], report["left"]) == (len(BATCHES), "passed", {})
    assert plan.size("V") > MASK


@overlapping
def test_steps_of_either_go_on_where_the_other_stopped(serve: Serve, algorithm: str, overlap: bool) -> None:
    plan = plan_of(algorithm)
    server = serve(plan, overlap=overlap)
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES)
    assert max(max(counts) for counts in server.steps.values()) > 2, "drafts are accepted"
    assert server.worker.steps.tally.left == {"min_new_tokens": sum(6 in rows for rows in BATCHES)}


@overlapping
def test_requests_that_draw(serve: Serve, algorithm: str, overlap: bool) -> None:
    server = serve(plan_of(algorithm, *DRAWS), overlap=overlap)
    of_all = {"top_k": ALL, "temperature": 1.0}
    asked = {3: {"temperature": 0.8, "top_k": 20, "sampling_seed": 5}, 1: of_all | {"sampling_seed": 7}, 2: {}, 6: {}}
    for row, sampling in asked.items():
        server.begin({row: PROMPTS[row]}, **sampling)
    run(server, BATCHES, drawing(server, asked))
    assert server.worker.steps.tally.left == {}


@overlapping
def test_ngrams_are_looked_up_behind_what_is_text(serve: Serve, overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each step SGLang is told which nodes are, up to the token that is verified next."""
    manager = NgramEmbeddingManager("hasher")
    monkeypatch.setattr(ModelRunner, "ngram_embedding_manager", manager, raising=False)
    server = serve(plan_of("DSPARK"), overlap=overlap)
    server.begin(PROMPTS)
    run(server, BATCHES)
    texts: dict[int, list[int]] = {row: [] for row in PROMPTS}
    for step in manager.committed:
        for nodes, row, length in zip(*step, strict=True):
            texts[row] += nodes[:length]
    assert texts == {row: request.output_ids[:-1] for row, request in server.requests.items()}
    assert max(map(len, texts.values())) > len(BATCHES), "drafts are accepted"


def test_drafts_lie_where_the_target_s_scores_will(
    serve: Serve, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a server that captures: in SGLang's buffer, as many rows as there are places to fill. Graphs are left out."""
    monkeypatch.setattr(Step, "capture", lambda *_: None)
    shared = SharedOutput(rows=16)
    server = serve(plan_of(algorithm), shared=shared)
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(server.plan, BATCHES)
    assert server.worker.steps.report()["capture"] == "graph"
    assert shared.given == {96}


def test_steps_of_a_length_that_is_wanted(serve: Serve) -> None:
    server = serve(plan_of("DFLASH", tokens=128), simulated=2.0)
    server.begin(PROMPTS)
    for _ in range(3):
        server.decode([*PROMPTS])
    server.settle()
    assert {length for counts in server.steps.values() for length in counts} == {2}
    assert server.worker.steps.proof == "simulated"


@overlapping
def test_the_target_s_processor_is_left_as_it_was(serve: Serve, overlap: bool) -> None:
    server = serve(plan_of("DFLASH"), overlap=overlap)
    assert server.worker.target_worker.model_runner.model.processor.defer_verify_gather


def test_what_goes_from_step_to_step_is_one_token(serve: Serve) -> None:
    server = serve(plan_of("DFLASH"))
    state, pools = server.worker.steps.state, server.worker.steps.step.pools
    assert type(state).__name__ == "BonusState"
    assert sorted(pools) == ["bonus", "seq_lens"]
    left = state.blank(3)
    assert [len(part) for part in (left.bonus_tokens, left.new_seq_lens, left.topk_p, left.hidden_states)] == [3] * 4
    assert adapter("parts.runners").scored_tokens(server.worker) is None


@pytest.mark.parametrize("algorithm", ["DFLASH", "DSPARK"])
def test_a_block_has_one_size(serve: Serve, algorithm: str) -> None:
    """Whatever SGLang has for its number of steps, which is 1."""
    server = serve(plan_of(algorithm), speculative_num_steps=1)
    assert misfits(server) == []
    server = serve(plan_of(algorithm), speculative_num_steps=1, speculative_num_draft_tokens=5)
    assert misfits(server) == ["num_draft_tokens is 4 in the program, 5 in the server"]


def test_the_target_scores_drafts_by_one_processor(serve: Serve) -> None:
    server = serve(plan_of("DFLASH"))
    model = server.worker.target_worker.model_runner.model
    model.modules = lambda: [model]
    assert misfits(server) == ["the target has not one logits processor, by which blocks of drafts are scored"]


def test_the_targets_head_scores_whole(serve: Serve) -> None:
    """So logits are whole, as `check` has it."""
    server = serve(plan_of("DFLASH"))
    server.plan = plan_of("DFLASH", ("logits", "sharded"), ("tensor_parallel", 2))
    (problem,) = misfits(server)
    assert problem == "logits that are sharded are not served with a draft that the target's head scores"


@pytest.mark.parametrize("by", ["DFLASH", "DSPARK"])
def test_a_program_computes_the_targets_head_for_a_draft(serve: Serve, by: str) -> None:
    """On one rank, where a server has such a head; the draft of the second has it as well."""
    server = serve(plan_of(by))
    sizes = {"vocab_size": 96}
    server.plan = planned(by, engine="sglang", target=sizes, draft=sizes | {"head": "int8"})[0]
    target, draft = server.worker.target_worker.model_runner, server.worker.draft_worker.draft_runner
    assert misfits(server) == ["the draft has no head that one logits processor multiplies by"]
    width = int(server.plan.tables()["draft_head"].axes[-1])
    model = draft.model if by == "DSPARK" else target.model
    model.lm_head = SimpleNamespace(weight=torch.zeros(96, width, dtype=draft.dtype), tp_size=1)
    assert misfits(server) == []
    vars(target.model.processor).update(final_logit_softcapping=30.0, logit_scale=2.0)
    changed = ["the logits of the draft have a scale", "the logits of the draft have a cap"]
    assert misfits(server) == [f"{what}, and the program computes a product" for what in changed if by == "DFLASH"]


PLAIN, CORRECTED = "DFlashDraftModel", "Qwen3DSparkModel"


def refused(draft: ServedModel | None = None, **facts: Any) -> list[str]:
    """What is refused of a server on a GPU whose draft fills in blocks."""
    given: dict[str, Any] = {"attention": {"draft": "fa3", "verify": "triton"}, **facts}
    server = Facts(ServedModel(), draft or ServedModel(), BLOCKS, **given)
    return [str(refusal) for refusal in refusals(server)]


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        ({}, []),
        ({"draft": ServedModel(window=True)}, []),
        (
            {"draft": ServedModel(window=True), "attention": {"draft": "flashinfer", "verify": "flashinfer"}},
            ["flashinfer attention with sliding windows (draft) is not served"],
        ),
        (
            {"draft": ServedModel("swa", window=True)},
            ["a second KV pool for windows of a draft that fills in blocks is not served"],
        ),
        ({"adapters": True}, []),
        (
            {"groups": 2},
            ["attention under data parallelism with a draft that fills in blocks is not served"],
        ),
        ({"ranks": 2}, []),
        ({"attention": {"draft": "triton", "verify": "fa3"}}, ["triton attention over blocks (draft) is not served"]),
        ({"attention": {"draft": "flashinfer", "verify": "flashinfer"}}, []),
        (
            {"settings": {"disaggregation_mode": "decode"}},
            ["a draft that fills in blocks on a server of texts that another one prefills is not served"],
        ),
    ],
)
def test_what_is_refused(facts: dict[str, Any], what: list[str]) -> None:
    assert refused(**facts) == what


@pytest.mark.parametrize(("name", "what"), [("fa3", []), ("flashinfer", ["blocks under flashinfer attention"])])
def test_what_has_blocks_of_one_size_alone(name: str, what: list[str]) -> None:
    assert Facts(kind=BLOCKS, attention={"draft": name, "verify": name}).single == what


@pytest.mark.parametrize(
    ("of", "what"),
    [
        *(((name, "", False), "") for name in (PLAIN, "DFlashLagunaForCausalLM", "MuseGlimmerAssistantModel")),
        ((PLAIN, "domino", False), "with a domino projector"),
        ((PLAIN, "", True), "with an embedding of its own"),
        (("DFlash2DraftModel", "", False), "of the class DFlash2DraftModel"),
    ],
)
def test_drafts_that_are_no_plain_ones(of: tuple[str, str, bool], what: str) -> None:
    assert BLOCKS.beside(of[0], of[1], embeds=of[2]) == what
    named = [f"a draft that fills in blocks, {what}, is not served"] if what else []
    assert refused(ServedModel(beside=what)) == named


def test_what_a_draft_says_of_itself(tmp_path: Path) -> None:
    """Of each the facts that programs depend on, and the size of its blocks."""
    plain = published_models.block_draft()
    assistant = {**plain, "mask_token_id": 7, "target_layer_ids": [1, 3]} | {
        "architectures": ["MuseGlimmerAssistantModel"],
        "layer_types": ["sliding_attention"] * 5,
        "sliding_window": 512,
        "dflash_config": None,
    }
    published = {
        "plain": plain,
        "windows": plain | {"layer_types": ["full_attention"] * 4 + ["sliding_attention"], "sliding_window": 512},
        "unread window": plain | {"architectures": ["MuseGlimmerAssistantModel"], "sliding_window": 512},
        "no block of its own": assistant,
        "domino": published_models.BLOCK_DRAFTS["Qwen3-8B-Domino"],
        "embeds": plain | {"has_embed_tokens": True},
        "selected": published_models.BLOCK_DRAFTS["Qwen3-8B-DFlash2"],
        "another": published_models.block_draft("DFlash2BeamDraftModel", selector_rank=64, selector_top_k=8),
        "no draft of blocks": {**plain, "architectures": ["Qwen3ForCausalLM"], "dflash_config": None},
        "has a mask": {**plain, "architectures": ["Qwen3ForCausalLM"], "dflash_config": None, "mask_token_id": 7},
    }
    published_models.write(tmp_path, published)
    said = {name: read_model(tmp_path / name, name).values for name in published}
    assert [values.get("block_size") for values in said.values()] == [16] * 8 + [None] * 2
    assert {name: facts_of(values) for name, values in said.items()} == {
        "plain": ServedModel(),
        "windows": ServedModel(window=True),
        "unread window": ServedModel(),
        "no block of its own": ServedModel(window=True),
        "domino": ServedModel(beside="with a domino projector"),
        "embeds": ServedModel(beside="with an embedding of its own"),
        "selected": ServedModel(),
        "another": ServedModel(beside="of the class DFlash2BeamDraftModel"),
        "no draft of blocks": ServedModel(),
        "has a mask": ServedModel(),
    }
    bundled: dict[str, Value] = {"architecture": "DeepseekV4ForCausalLMDSpark", "window": 128}
    of_compressed = facts_of(bundled, CORRECTED_BLOCKS)
    assert (of_compressed.cache, of_compressed.window) == ("compressed", True)


CHANGES = {
    "": {},
    "of the class Other": {"of": "Other"},
    "with an embedding of its own": {"is_nemotron_35_draft": True},
    "with a domino projector": {"projector_type": "domino"},
    "with a Markov head of the class GatedMarkovHead": {"head": "GatedMarkovHead"},
    f"of which some drafts are verified ({MODE})": {"confidence_head": object()},
}


@pytest.mark.parametrize("what", CHANGES)
def test_models_that_are_corrected_otherwise(what: str) -> None:
    """SGLang's heads derive from each other, and so do its drafts."""
    of = {"of": CORRECTED, "head": "VanillaMarkov", **CHANGES[what]}
    plain = {"is_nemotron_35_draft": False, "projector_type": None, "confidence_head": None}
    head = type(of.pop("head"), (VanillaMarkov,), {})({})
    model = type(of.pop("of"), (SimpleNamespace,), {})(**plain | of | {"markov_head": head})
    assert CORRECTED_BLOCKS.model_beside(model) == what


def test_tables_are_those_that_a_program_reads(serve: Serve) -> None:
    """They are the server's own memory, which other weights may come into."""
    plan = plan_of("DSPARK")
    server = serve(plan)
    head = server.worker.draft_model.markov_head
    assert tuple(sorted(plan.tables())) == MARKOV
    for name, table in CORRECTED_BLOCKS.tables(server.worker.draft_model).items():
        assert table.data_ptr() == getattr(head, name).weight.data_ptr()
    assert BLOCKS.tables(server.worker.draft_model) == {}


SAYS = ModelFacts("qwen3", True, {"block_size": Fact(8, "block_size")})
SILENT = ModelFacts("qwen3", True, {})


@pytest.mark.parametrize(
    ("words", "draft", "size"),
    [
        ([], SAYS, 8),
        ([], SILENT, 16),
        (["--speculative-dflash-block-size", "5"], SAYS, 5),
        (["--speculative-num-draft-tokens", "6", "--speculative-num-steps", "3"], SAYS, 6),
        (["--speculative-num-draft-tokens", "6", "--speculative-dflash-block-size", "6"], SILENT, 6),
    ],
)
def test_a_program_drafts_all_of_a_block_but_its_first_token(words: list[str], draft: ModelFacts, size: int) -> None:
    arguments = parse(["--model-path", "m", *words])
    assert [value for value, _ in BLOCKS.shape(arguments, draft.facts)] == [size - 1, 1, size]
    assert arguments.findings.errors == ()


@pytest.mark.parametrize(
    ("words", "draft", "drafts", "origin"),
    [
        ([], SAYS, 8, "block_size"),
        ([], SILENT, 7, "SGLang's default"),
        (["--speculative-dspark-block-size", "5"], SAYS, 5, "--speculative-dspark-block-size"),
        (["--speculative-num-draft-tokens", "6"], SILENT, 5, "--speculative-num-draft-tokens 6"),
        (["--speculative-num-draft-tokens", "9", "--speculative-num-steps", "3"], SAYS, 8, "block_size"),
    ],
)
def test_a_program_drafts_all_of_a_corrected_block(
    words: list[str], draft: ModelFacts, drafts: int, origin: str
) -> None:
    arguments = parse(["--model-path", "m", *words])
    shape = CORRECTED_BLOCKS.shape(arguments, draft.facts)
    assert [value for value, _ in shape] == [drafts, 1, drafts + 1]
    assert shape[0][1] == f"all drafts of a block: {origin}"
    assert arguments.findings.errors == ()


@pytest.mark.parametrize(
    ("words", "draft", "hint"),
    [
        (["--speculative-num-draft-tokens", "1"], SILENT, "write --speculative-dspark-block-size 1 or more"),
        (["--speculative-num-draft-tokens", "8"], SAYS, "leave --speculative-num-draft-tokens out"),
    ],
)
def test_corrected_blocks_that_are_none(words: list[str], draft: ModelFacts, hint: str) -> None:
    arguments = parse(["--model-path", "m", *words])
    CORRECTED_BLOCKS.shape(arguments, draft.facts)
    (error,) = arguments.findings.errors
    assert error.hint is not None and hint in error.hint


@pytest.mark.parametrize(("mode", "refused"), [("", False), ("static", False), ("compact", True), ("cap-accept", True)])
def test_all_drafts_of_a_block_are_verified(mode: str, refused: bool) -> None:
    """Where SGLang verifies some, no program runs."""
    arguments = parse([f"{MODE}={mode} sglang serve --model-path m"] if mode else ["--model-path", "m"])
    CORRECTED_BLOCKS.check(arguments, (1, ""), "fa3")
    what = [f"with SGLang 0.5.23, verification of some drafts of a block ({MODE}={mode}) is not served"]
    assert [error.message for error in arguments.findings.errors] == (what if refused else [])


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--speculative-num-draft-tokens", "6", "--speculative-dflash-block-size", "5"], "write one of them"),
        (["--speculative-num-draft-tokens", "1"], "write --speculative-num-draft-tokens 2 or more"),
    ],
)
def test_blocks_that_are_none(words: list[str], hint: str) -> None:
    arguments = parse(["--model-path", "m", *words])
    BLOCKS.shape(arguments, SAYS.facts)
    (error,) = arguments.findings.errors
    assert error.hint is not None and hint in error.hint


@pytest.mark.parametrize(
    ("written", "prefill", "gpu", "taken"),
    [
        ("", "fa3", "sm_90", "fa3"),
        ("fa3", "triton", "sm_90", "fa3"),
        ("", "trtllm_mha", "sm_100", "fa4"),
        ("", "trtllm_mha", "sm_90", "flashinfer"),
        ("", "flashmla", "sm_100", "flashinfer"),
        ("", "flashmla", "sm_90", "flashinfer"),
        ("", "intel_amx", "cpu", "intel_amx"),
    ],
)
def test_the_draft_s_attention(written: str, prefill: str, gpu: str, taken: str) -> None:
    """Of corrected blocks trtllm_mha, too."""
    of_draft, corrected = (
        kind.attention(written, (prefill, "it"), newest=gpu == "sm_100", on_cpu=gpu == "cpu")
        for kind in (BLOCKS, CORRECTED_BLOCKS)
    )
    assert of_draft[0] == taken
    assert corrected == ((prefill, "it") if prefill == "trtllm_mha" else of_draft)
