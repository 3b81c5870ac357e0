"""Programs as SGLang's decode steps, on stand-ins of its modules: texts, what is left to SGLang, and what follows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from fakes.plans import program_of
from fakes.sglang_blocks import brought
from fakes.sglang_grammars import START, Grammar
from fakes.sglang_modules import SRT, ForwardMode, request
from fakes.sglang_server import PROGRAM, Server, SharedOutput, adapter, engine_of, part
from fakes.sglang_worker import IntelAMXAttnBackend, TritonAttnBackend
from programs import planned
from prometheus_client import REGISTRY
from sampling_oracle import drawn

from specc.engines._plugin import SEEDS
from specc.runtime.batch import Batch
from specc.runtime.plan.plan import Plan
from specc.runtime.step import Step

Serve = Callable[..., Server]
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2], 2: [1]}
ALL = 1 << 30
"""What SGLang has for `top_k` where all tokens are left."""
TREE = (("topk", 3), ("num_draft_tokens", 8))
QLEN, FULL = (*TREE, ("mask", "qlen")), (*TREE, ("mask", "full"), ("context_length", 88))


@cache
def plan_of(algorithm: str, *keys: tuple[str, Any], scored: int | None = None, tokens: int = 96) -> Plan:
    """A program for SGLang; `scored`: how many tokens its draft scores, by SGLang's token map."""
    draft = {"vocab_size": tokens} if scored is None else {"vocab_size": scored, "token_map": "engine"}
    more = {"max_requests": 6, "buckets": [1, 2, 4], "target": {"vocab_size": tokens}, "draft": draft, **dict(keys)}
    return planned(algorithm, engine="sglang", **more)[0]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers."""
    for name in ("SPECC_PROGRAM", "SPECC_PROOF", "SPECC_FALLBACK", "SPECC_CAPTURE"):
        monkeypatch.delenv(name, raising=False)
    with SRT.starting(Server, PROGRAM) as start:
        yield start


def test_all_that_the_adapter_touches_is_there(serve: Serve) -> None:
    serve(plan_of("EAGLE"))
    seam = adapter("seam")
    assert [list(seam.lacking(table)) for table in (seam.MUST, *seam.MAY.values())] == [[]] * (1 + len(seam.MAY))


def counted(
    plan: Plan,
    batches: Sequence[Sequence[int]],
    scored: list[int] | None = None,
    prompts: Mapping[int, list[int]] = PROMPTS,
) -> dict[int, list[int]]:
    """How many tokens each step gives a request, by pool row, of a program that prefills by itself."""
    engine = engine_of(plan, scored)
    engine.prompts |= prompts
    tables = brought(plan) | ({} if scored is None else {"d2t": torch.tensor(scored)})
    step = program_of(plan).bind(engine, engine.table, engine.kv, tables=tables, capture=False)
    tokens = [token for prompt in prompts.values() for token in prompt] if "text" in plan.carry else None
    step.prefill(Batch([*prompts], [len(prompt) for prompt in prompts.values()], prompt_tokens=tokens))
    counts: dict[int, list[int]] = {row: [] for row in prompts}
    for rows in batches:
        for row, count in zip(rows, step.decode(Batch(list(rows))).to_host().accept_lens, strict=True):
            counts[row].append(count)
    return counts


def drawing(server: Server, asked: Mapping[int, Mapping[str, Any]]) -> Callable[[int, list[int]], int]:
    """What an oracle draws behind a text of a request, by pool row, which has asked for this."""

    def says(row: int, text: list[int]) -> int:
        of = {"sampling_seed": 0, "temperature": 1.0, "top_k": 1, "top_p": 1.0} | asked[row]
        heat, top_k = of["temperature"] * (of["top_k"] > 1), of["top_k"] % ALL
        return drawn(server.scores(text).tolist(), of["sampling_seed"] % SEEDS, heat, len(text), top_k, of["top_p"])

    return says


def run(server: Server, batches: Sequence[Sequence[int]], says: Any = None, *, known: bool = True) -> None:
    """Decode these batches; texts are what the target says, its most probable tokens by default."""
    for rows in batches:
        server.decode(rows, known=known)
    server.settle()
    for row, req in server.requests.items():
        assert req.output_ids == server.own_text(row, says)


BATCHES = [[3, 1, 6, 2], [1, 2], [6], [2, 3, 6], [3], [2, 1, 3], [3, 1, 6, 2]]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("algorithm", "keys"), [("EAGLE", ()), ("STANDALONE", ()), ("EAGLE", QLEN), ("EAGLE", FULL)])
def test_texts_are_the_targets_own(serve: Serve, algorithm: str, keys: Any, overlap: bool) -> None:
    plan = plan_of(algorithm, *keys)
    server = serve(plan, overlap=overlap, attention=TritonAttnBackend if keys == FULL else IntelAMXAttnBackend)
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES)
    assert server.relay.written == (2 if overlap else 0), "of the prefill; steps are where the relay has them already"
    assert server.worker.steps.report() == {
        "program": PROGRAM, "version": "0.1.0+p1", "capture": "none", "proof": "passed", "sampling": [],
        "best_logprobs": 0, "on": True, "shape": str(plan.shape), "served": len(BATCHES),
        "expected_tokens_per_second": None, "served_by_shape": {str(plan.shape): len(BATCHES)}, "left": {},
        "idle": 0,
    }  # fmt: skip


SCORED = [token for token in range(54) if token not in (0, 2, 5, 11, 12, 13)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "scored"), [("EAGLE", None), ("STANDALONE", None), ("EAGLE", SCORED)], ids=["eagle", "own", "map"]
)
def test_steps_of_either_go_on_where_the_other_stopped(
    serve: Serve, algorithm: str, scored: list[int] | None, overlap: bool
) -> None:
    """A request with a grammar is SGLang's, and so is every batch that it is in: drafts are as good as in a program."""
    plan = plan_of(algorithm, scored=None if scored is None else len(scored))
    server = serve(plan, overlap=overlap, scored=scored)
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES, scored)
    assert max(max(counts) for counts in server.steps.values()) > 2, "drafts are accepted"
    assert server.worker.steps.tally.left == {"min_new_tokens": sum(6 in rows for rows in BATCHES)}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("verify", ["greedy", "target_only", "rejection", "block"])
def test_steps_of_either_weigh_drafts_that_the_other_has_drawn(serve: Serve, verify: str, overlap: bool) -> None:
    """What drafts were drawn from goes along, of greedy programs, too: then all of it is the draft."""
    plan = plan_of("EAGLE", ("verify", verify))
    server = serve(plan, overlap=overlap, speculative_use_rejection_sampling=True)
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, BATCHES)
    assert max(max(counts) for counts in server.steps.values()) > 2, "drafts are accepted"
    assert server.worker.steps.tally.left == {"min_new_tokens": sum(6 in rows for rows in BATCHES)}


DRAWS = (("verify", "target_only"), ("sampling", ("top_k", "top_p")))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE"])
def test_texts_that_are_drawn(serve: Serve, algorithm: str, overlap: bool) -> None:
    """From their first token on by the program, whatever SGLang samples there; who is greedy has SGLang's."""
    server = serve(plan_of(algorithm, *DRAWS), overlap=overlap)
    asked: dict[int, dict[str, Any]] = {
        3: {"sampling_seed": 7, "temperature": 1.5, "top_k": ALL}, 1: {}, 2: {"sampling_seed": -3, "top_k": 20},
        6: {"sampling_seed": 9, "temperature": 0.7, "top_k": ALL, "top_p": 0.9},
    }  # fmt: skip
    for row in PROMPTS:
        server.begin({row: PROMPTS[row]}, **asked[row])
    run(server, BATCHES, drawing(server, asked))
    assert server.worker.steps.tally.left == {}
    assert server.worker.steps.parameters == ["seed", "temperature", "top_k", "top_p"]


@pytest.mark.parametrize("overlap", [False, True])
def test_log_probabilities_are_those_of_emitted_tokens(serve: Serve, overlap: bool) -> None:
    server = serve(plan_of("EAGLE", ("outputs", ("logprobs",)), ("best_logprobs", 3)), overlap=overlap)
    wanted = {3: 2, 1: 0, 6: 3}
    for row, best in wanted.items():
        server.begin({row: PROMPTS[row]}, return_logprob=True, top_logprobs_num=best)
    server.begin({2: PROMPTS[2]})
    run(server, BATCHES)
    assert server.requests[2].scores == []
    for row, best in wanted.items():
        text, scores = [*PROMPTS[row], *server.requests[row].output_ids], server.requests[row].scores
        assert len(scores) == len(server.requests[row].output_ids) - 1
        for end, (logprob, tokens, others) in enumerate(scores, len(PROMPTS[row]) + 1):
            own = server.scores(text[:end]).log_softmax(-1)
            values, indices = (of[:best] for of in own.sort(descending=True, stable=True))
            assert logprob == pytest.approx(float(own[text[end]]))
            assert (tokens, others) == (indices.tolist(), pytest.approx(values.tolist()))


def plan_attention(server: Server) -> list[list[int]]:
    """Have attention ask for plans, as some on GPUs does, which are compared with what steps run with."""
    (attention,) = server.worker.steps._attention.values()
    (backend,) = attention._backends
    plans = list[list[int]]()

    class Planned(type(backend)):
        plans = True

        def plan(self, rows: int, lengths: Sequence[int]) -> None:
            assert rows == len(lengths)
            plans.append([*lengths])

        def begin(self, batch: Any) -> None:
            assert plans.pop() == batch.seq_lens.tolist()

    backend.__class__ = Planned
    return plans


@pytest.mark.parametrize("overlap", [False, True])
def test_attention_is_planned_for_the_lengths_of_a_step(serve: Serve, overlap: bool) -> None:
    """Which the host has to know."""
    server = serve(plan_of("EAGLE"), overlap=overlap)
    plans = plan_attention(server)
    server.begin(PROMPTS)
    run(server, BATCHES)
    run(server, [[3], [6, 2]], known=False)
    assert server.worker.steps.tally.left == {"no lengths on the host": 2}
    assert plans == []


@pytest.mark.parametrize("keys", [(), QLEN])
def test_a_text_without_room_for_a_step_is_not_planned(serve: Serve, keys: Any) -> None:
    """It is a padding row of the program, of length 0, so the host leaves exactly such to SGLang."""
    plan, columns = plan_of("EAGLE", *keys), 40
    server, refused = serve(plan, columns=columns), list[int]()
    plan_attention(server)
    steps = server.worker.steps
    for length in range(columns - 12, columns + 1):
        server.begin({4: [1] * length})
        rows, lengths = torch.tensor([4]), torch.tensor([length])
        batch = server._batch([4], ForwardMode.DECODE, lengths)
        batch.seq_lens_cpu = lengths
        steps._begin(plan.shape, lengths.tolist() if (reason := steps.refuses(batch)) is None else [0])
        decoded = steps.step.decode(Batch(rows)).to_host()
        assert ("room" in decoded.faults(0)) == (reason == "no room for a step")
        refused += [length] * (reason is not None)
    assert refused == list(range(columns - plan.kv.window + 1, columns + 1))


def test_requests_whose_scores_are_no_numbers_are_ended(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is on the host once it was waited for; all others go on."""
    server = serve(plan_of("EAGLE"), overlap=True)
    server.begin(PROMPTS)
    run(server, [[3, 1, 6, 2]])
    target, engine = server.engine.target, server.engine

    def spoiled(**given: Any) -> Any:
        scored = target(**given)
        scored.logits[given["rows"] == 6] = torch.nan
        return scored

    monkeypatch.setattr(engine, "target", spoiled, raising=False)
    run(server, [[3, 1, 6, 2], [1, 2], [3, 2, 1]])
    ended = {row: req.to_finish for row, req in server.requests.items() if req.to_finish is not None}
    assert ended.keys() == {6}
    assert "the target's scores hold NaN or are infinite (health word" in ended[6].message
    assert all(len(server.requests[row].output_ids) > 4 for row in (3, 1, 2))


@pytest.mark.parametrize("overlap", [False, True])
def test_after_graphs_were_captured_anew_steps_are_sglangs(serve: Serve, overlap: bool) -> None:
    server = serve(plan_of("EAGLE"), overlap=overlap)
    server.begin(PROMPTS)
    run(server, BATCHES[:3])
    server.worker.draft_worker.draft_runner.recapture_decode_cuda_graph()
    run(server, BATCHES[3:4])
    server.worker.target_worker.model_runner.recapture_decode_cuda_graph()
    run(server, BATCHES[4:])
    assert server.steps == counted(server.plan, BATCHES)
    report = controller_of(server).get_internal_state(None).internal_state["specc"]
    assert report == server.worker.steps.report()
    assert (report["served"], report["left"]) == (4, {"graphs captured anew": len(BATCHES) - 4})


def controller_of(server: Server) -> Any:
    """What answers questions about a server's state and changes it."""
    return part("managers.scheduler_components.internal_state.SchedulerInternalStateController")(server.scheduler)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_program_is_switched_off_and_on_in_a_running_server(serve: Serve, overlap: bool) -> None:
    server = serve(plan_of("EAGLE"), overlap=overlap)
    controller, asked = controller_of(server), part("managers.io_struct.SetInternalStateReq")

    def switched(**settings: float) -> bool:
        return controller.set_internal_state(asked(server_args=settings)).updated

    server.begin(PROMPTS)
    run(server, BATCHES[:2])
    assert switched(specc=0, pp_max_micro_batch_size=3)
    assert controller.settings == {"pp_max_micro_batch_size": 3}
    assert not server.worker.steps.report()["on"]
    run(server, BATCHES[2:4])
    assert not switched(specc=1, unknown=1)
    assert not switched(specc=2)
    assert not server.worker.steps.report()["on"]
    assert switched(pp_max_micro_batch_size=4)
    assert switched(specc=1)
    assert controller.settings == {"pp_max_micro_batch_size": 4}
    run(server, BATCHES[4:])
    assert server.steps == counted(server.plan, BATCHES)
    report = server.worker.steps.report()
    assert (report["on"], report["served"], report["left"]) == (True, len(BATCHES) - 2, {"switched off": 2})
    server.worker.steps = None
    assert not switched(specc=0)


def test_while_a_program_is_off_sglang_samples(serve: Serve) -> None:
    """The first token, too: the stand-in's own sampler takes the most probable tokens of those who want a draw."""
    server = serve(plan_of("EAGLE", *DRAWS))
    server.worker.steps.switch(on=False)
    server.begin(PROMPTS, sampling_seed=7, temperature=1.5, top_k=ALL)
    run(server, BATCHES)
    assert server.worker.steps.tally.left == {"switched off": len(BATCHES)}


def test_batches_that_are_no_steps_of_a_programs(serve: Serve) -> None:
    server = serve(plan_of("EAGLE", ("buckets", (1, 2))))
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.worker.steps.tally.left == {"more than 2 requests": sum(len(rows) > 2 for rows in BATCHES)}
    idle = server._batch([], ForwardMode.IDLE, torch.tensor([]))
    assert server.worker.forward_batch_generation(idle).next_token_ids is None
    marked = server._batch([3], ForwardMode.DECODE, torch.tensor([3]))
    marked.sampling_info.has_watermark_candidates = True
    assert server.worker.steps.refuses(marked) == "a watermark"


def test_a_server_that_refuses_turns_requests_away(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_FALLBACK", "refuse")
    server = serve(plan_of("EAGLE"))
    served, sampled = request(), request(top_k=ALL)
    for req in (served, sampled):
        server.scheduler._add_request_to_queue(req)
    assert (served.to_finish, sampled.to_finish.err_type) == (None, "SpeccUnservedError")
    assert f"{PROGRAM} does not serve sampling" in sampled.to_finish.message


@pytest.mark.parametrize("overlap", [False, True])
def test_a_server_that_no_program_fits_runs_sglangs_steps(
    serve: Serve, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(plan_of("EAGLE"), overlap=overlap, speculative_num_draft_tokens=5)
    assert server.worker.steps is None
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(server.plan, BATCHES), "of the same drafts"
    monkeypatch.setenv("SPECC_PROGRAM", PROGRAM)
    with pytest.raises(RuntimeError, match=f"SPECC_PROGRAM={PROGRAM}: this server has no step that a program runs"):
        part("managers.overlap_utils.FutureMap")(server.worker.req_to_token_pool)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("keys", [(), QLEN])
def test_forwards_leave_logits_where_sglangs_graphs_have_them(
    serve: Serve, keys: Any, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one buffer for all of them, in a server that captures graphs. The graphs are left out here."""
    monkeypatch.setattr(Step, "capture", lambda *_: None)
    shared = SharedOutput(rows=16)
    server = serve(plan_of("EAGLE", *keys), overlap=overlap, shared=shared)
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(server.plan, BATCHES)
    assert server.worker.steps.report()["capture"] == "graph"
    assert shared.given == {96}


RESTRICTS = (("verify", "target_only"), ("sampling", ("grammar", "top_k")))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("keys", [(), QLEN])
def test_texts_that_grammars_allow(serve: Serve, keys: Any, overlap: bool) -> None:
    """Of those who have one, whether they are greedy or not; grammars follow one step behind."""
    server = serve(plan_of("EAGLE", *keys, *RESTRICTS), overlap=overlap)
    grammars, drawing = {row: Grammar(row) for row in (3, 2, 6)}, {6, 1}
    for row in PROMPTS:
        how = {"top_k": ALL, "sampling_seed": row} if row in drawing else {}
        server.begin({row: PROMPTS[row]}, grammar=grammars.get(row), **how)

    def says(row: int, text: list[int]) -> int:
        last = text[-1] if len(text) > len(PROMPTS[row]) else START
        scores = server.scores(text).tolist()
        if row in grammars:
            scores = [s if grammars[row].allows(last, token) else -math.inf for token, s in enumerate(scores)]
        return drawn(scores, row, 1.0 if row in drawing else 0.0, len(text))

    run(server, BATCHES, says)
    assert (server.worker.steps.tally.left, server.worker.steps.parameters[-1]) == ({}, "grammar")


@pytest.mark.parametrize("keys", [(), QLEN, FULL])
def test_steps_of_a_length_that_is_wanted(serve: Serve, keys: Any) -> None:
    """The same for all requests of a step, as SGLang simulates it; between two lengths some steps are of either."""
    attention = TritonAttnBackend if keys == FULL else IntelAMXAttnBackend
    server = serve(plan_of("EAGLE", *keys, tokens=128), attention=attention, simulated=2.5)
    server.begin(PROMPTS)
    lengths = list[int]()
    for _ in range(12):
        server.decode([*PROMPTS])
        (length,) = {counts[-1] for counts in server.steps.values()}
        lengths.append(length)
    assert {*lengths} == {2, 3}
    assert server.worker.steps.proof == "simulated"


def test_steps_are_counted(serve: Serve) -> None:
    def counts() -> list[float]:
        by = {"program": ("", "3"), "sglang": ("min_new_tokens", "")}
        names = [
            {"program": PROGRAM, "by": name, "reason": reason, "shape": shape} for name, (reason, shape) in by.items()
        ]
        return [REGISTRY.get_sample_value("specc:decode_steps_total", name) or 0 for name in names]

    server, before = serve(plan_of("EAGLE"), metrics=True), counts()
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, BATCHES)
    left = sum(6 in rows for rows in BATCHES)
    assert [now - was for now, was in zip(counts(), before, strict=True)] == [len(BATCHES) - left, left]


def test_what_is_accepted_is_counted(serve: Serve) -> None:
    """As vLLM counts it: a verification is a draft, and what a text gained beyond one token is accepted."""
    names = ("drafts", "draft_tokens", "accepted_tokens")

    def counts() -> list[float]:
        of_program = {"program": PROGRAM, "shape": "3"}
        totals = [REGISTRY.get_sample_value(f"specc:spec_decode_num_{name}_total", of_program) or 0 for name in names]
        by_place = "specc:spec_decode_num_accepted_tokens_per_pos_total"
        return totals + [
            REGISTRY.get_sample_value(by_place, of_program | {"position": str(place)}) or 0 for place in range(3)
        ]

    server, before = serve(plan_of("EAGLE"), metrics=True), counts()
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    lengths = list[int]()
    for _ in range(6):
        seen = {row: len(row_steps) for row, row_steps in server.steps.items()}
        server.decode([3, 1, 2])
        lengths += [length for row in (3, 1, 2) for length in server.steps[row][seen.get(row, 0) :]]
    drafts, tokens, accepted, *places = (now - was for now, was in zip(counts(), before, strict=True))
    assert (drafts, tokens) == (len(lengths), 3 * len(lengths))
    assert accepted == sum(lengths) - len(lengths) == sum(places) > 0
    assert places == [sum(length > place + 1 for length in lengths) for place in range(3)]
