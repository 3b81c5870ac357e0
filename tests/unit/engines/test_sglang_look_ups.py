"""Programs in the place of SGLang's look-ups, on stand-ins of its modules: texts, and who knows how long they are."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_look_ups import LONGEST, SHORTEST, NgramVerifyInput
from fakes.sglang_modules import SRT, ForwardMode
from fakes.sglang_server import PROGRAM, Server, adapter
from fakes.sglang_worker import IntelAMXAttnBackend
from programs import planned
from test_sglang_worker import (
    ALL,
    BATCHES,
    PROMPTS,
    Serve,
    controller_of,
    counted,
    drawing,
    plan_attention,
    plan_of,
    run,
    serve,
)

from specc.engines.sglang.kinds.look_ups import LOOK_UPS
from specc.engines.sglang.requests.texts import TextState
from specc.runtime.plan.plan import Plan

__all__ = ["serve"]
OPTIONS = {"longest": LONGEST, "shortest": SHORTEST, "beyond": "last", "window": 64}
"""As the stand-in of SGLang's own looks up."""
TREE = (("topk", 2), ("num_draft_tokens", 7), ("mask", "qlen"))
TOKENS = 3
"""So few that random texts repeat themselves."""
overlapping = pytest.mark.parametrize("overlap", [False, True])


@cache
def looked_up(*keys: tuple[str, Any]) -> Plan:
    """A program for SGLang, a chain by default."""
    return plans_of(**dict(keys))[0]


def plans_of(**keys: Any) -> list[Plan]:
    """Those of one program, the deepest first."""
    sizes = {"max_requests": 6, "buckets": [1, 2, 4], "target": {"vocab_size": TOKENS}, "options": OPTIONS} | keys
    return sorted(planned("NGRAM", engine="sglang", **sizes), key=lambda plan: plan.shape, reverse=True)


PROMPTED = {row: [token % TOKENS for token in prompt] for row, prompt in PROMPTS.items()}


def heard_lengths(server: Server) -> list[bool]:
    """Of each decode step from now on, whether the host knows how long its texts are."""
    forward, known = server.worker.forward_batch_generation, list[bool]()

    def listened(batch: Any, *given: Any) -> Any:
        if batch.forward_mode is ForwardMode.DECODE:
            known.append(batch.seq_lens_cpu is not None)
        return forward(batch, *given)

    server.worker.forward_batch_generation = listened
    return known


def test_all_that_look_ups_touch_is_there(serve: Serve) -> None:
    serve(looked_up())
    seam = adapter("seam")
    assert seam.there(LOOK_UPS.absent)
    assert [name for name in SRT._held if "speculative.ngram" in name] == [
        "sglang.srt.speculative.ngram_info",
        "sglang.srt.speculative.ngram_worker",
    ]


@overlapping
@pytest.mark.parametrize("keys", [(), TREE], ids=["chain", "tree"])
def test_texts_are_the_targets_own(serve: Serve, keys: Any, overlap: bool) -> None:
    plan = looked_up(*keys)
    server = serve(plan, overlap=overlap)
    known = heard_lengths(server)
    server.begin(PROMPTED)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES, prompts=PROMPTED)
    assert max(max(counts) for counts in server.steps.values()) > 2, "drafts are accepted"
    assert server.relay.written == (1 if overlap else 0), "lengths of the prefill: a program's rows have all else"
    assert known == [not overlap] * len(BATCHES), "nobody waits for lengths"
    report = server.worker.steps.report()
    assert (report["served"], report["left"], report["proof"]) == (len(BATCHES), {}, "passed")


@overlapping
def test_steps_of_either_go_on_where_the_other_stopped(serve: Serve, overlap: bool) -> None:
    """SGLang's own know the whole text on the host, what the last step has emitted as well, and its length."""
    server = serve(looked_up(), overlap=overlap)
    known = heard_lengths(server)
    server.begin({row: PROMPTED[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTED[6]}, min_new_tokens=2)
    run(server, BATCHES)
    assert server.steps == counted(server.plan, BATCHES, prompts=PROMPTED)
    own = [6 in rows for rows in BATCHES]
    assert server.worker.steps.tally.left == {"min_new_tokens": sum(own)}
    assert known == (own if overlap else [True] * len(BATCHES))


@overlapping
def test_a_program_is_switched_off_and_on(serve: Serve, overlap: bool) -> None:
    server = serve(looked_up(), overlap=overlap)
    controller = controller_of(server)
    server.begin(PROMPTED)
    for start in range(len(BATCHES)):
        controller.scheduler.draft_worker.steps.switch(on=start % 2 == 0)
        run(server, BATCHES[start : start + 1])
    assert server.steps == counted(server.plan, BATCHES, prompts=PROMPTED)
    assert server.worker.steps.tally.left == {"switched off": len(BATCHES) // 2}


@overlapping
def test_texts_that_are_drawn(serve: Serve, overlap: bool) -> None:
    server = serve(looked_up(("verify", "target_only"), ("sampling", ("top_k", "top_p"))), overlap=overlap)
    asked: dict[int, dict[str, Any]] = {
        3: {"sampling_seed": 7, "temperature": 1.5, "top_k": ALL},
        1: {},
        6: {"sampling_seed": 9, "temperature": 0.7, "top_k": ALL, "top_p": 0.9},
        2: {"sampling_seed": -3, "top_k": 2},
    }
    for row in PROMPTED:
        server.begin({row: PROMPTED[row]}, **asked[row])
    run(server, BATCHES, drawing(server, asked))
    assert server.worker.steps.tally.left == {}


@pytest.mark.parametrize("drafts", [(5, 3, 0), (3, 0)])
@overlapping
def test_steps_of_several_shapes(
    serve: Serve, drafts: Sequence[int], overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that drafts nothing, which begins with the last token that SGLang's step or prefill has left."""
    monkeypatch.setenv("SPECC_SHAPE", str(drafts[0]))
    plans = plans_of(num_steps=[*drafts][::-1])
    server = serve(plans[0], overlap=overlap, others=plans[1:])
    steps, turn = server.worker.steps, itertools.cycle(plan.shape for plan in plans[::-1])
    monkeypatch.setattr(steps.shapes, "choose", lambda _: next(turn))
    server.begin(PROMPTED)
    turns = len(plans) + 1
    for place, rows in enumerate([[3, 1, 6, 2]] * 3 * turns):  # behind SGLang's step comes the one without drafts
        steps.switch(on=place % turns < len(plans))
        run(server, [rows])
    assert steps.tally.served == {plan.shape: 3 for plan in plans}
    assert steps.tally.left == {"switched off": 3}


def test_a_tree_beside_a_longer_chain(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values are moved where any shape is a tree, not the deepest alone."""
    shapes = [{"num_steps": 5}, {"num_steps": 3, "topk": 2, "num_draft_tokens": 7}]
    chain, tree = plans_of(shapes=shapes, mask="qlen")
    monkeypatch.setenv("SPECC_SHAPE", str(tree.shape))
    server = serve(chain, others=[tree])
    server.begin(PROMPTED)
    run(server, BATCHES)
    assert server.worker.steps.tally.served == {tree.shape: len(BATCHES)}


@overlapping
def test_attention_that_is_planned_has_the_host_wait(serve: Serve, overlap: bool) -> None:
    server = serve(looked_up(), overlap=overlap)
    plans, known = plan_attention(server), heard_lengths(server)
    server.begin(PROMPTED)
    run(server, BATCHES)
    assert plans == [] and all(known)
    assert server.worker.steps.tally.left == {}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"speculative_eagle_topk": 10, "speculative_num_steps": 1}, ""),
        ({"speculative_num_draft_tokens": 12}, "num_draft_tokens is 4 in the program, 12 in the server"),
        ({"speculative_ngram_external_corpus_path": "a.jsonl"}, "a corpus of the server's that drafts are looked up"),
        ({"speculative_algorithm": "EAGLE"}, "algorithm is NGRAM in the program, EAGLE in the server"),
    ],
)
def test_servers_that_a_program_fits(serve: Serve, settings: dict[str, Any], reason: str) -> None:
    """Whatever breadth SGLang's tree has; its own number of steps says nothing."""
    server = serve(looked_up(), **settings)
    misfits = adapter("server.fit").misfits({server.plan.shape: server.plan}, server.worker)
    assert (server.worker.steps is None) == bool(misfits) == bool(reason)
    assert reason in "; ".join(misfits)


def test_a_tree_needs_the_servers_breadth(serve: Serve) -> None:
    server = serve(looked_up(*TREE), speculative_eagle_topk=1)
    assert server.worker.steps is None
    [reason] = adapter("server.fit").misfits({server.plan.shape: server.plan}, server.worker)
    assert reason == "topk is 2 in the program, 1 in the server"


class Sized(IntelAMXAttnBackend):
    """Attention that knows the server's sizes."""

    def __init__(self, step: int = 0) -> None:
        super().__init__(step)
        self.topk, self.num_draft_tokens, self.speculative_num_steps = 10, 4, 1


Sized.__name__ = "IntelAMXAttnBackend"


def test_attention_has_the_sizes_of_the_program(serve: Serve) -> None:
    """Which share all memory with the server's own, whose breadth is another; no forward is a draft's."""
    server = serve(looked_up(), attention=Sized, speculative_eagle_topk=10, speculative_num_steps=1)
    (attention,) = server.worker.steps._attention.values()
    (backend,) = attention._backends
    verify, own = backend._roles.verify, server.worker.target_worker.model_runner.attn_backend
    assert (verify.topk, verify.speculative_num_steps, verify.num_draft_tokens) == (1, 3, 4)
    assert (own.topk, own.speculative_num_steps, own.num_draft_tokens) == (10, 1, 4)
    assert (backend._roles.extend, backend._roles.draft, backend._roles.named()) == (None, [], {"verify": "intel_amx"})
    assert attention._tables.sizes.steps == 1
    server.begin(PROMPTED)
    run(server, BATCHES)


def test_a_chain_runs_over_windows_whatever_the_servers_breadth(serve: Serve) -> None:
    server = serve(looked_up(), speculative_eagle_topk=10)
    server.worker.target_worker.model_runner.sliding_window_size = 16
    fit = adapter("server.fit")
    assert fit.misfits({server.plan.shape: server.plan}, server.worker) == []
    tree = looked_up(*TREE)
    assert "a tree over sliding windows of the target is not served" in fit.misfits({tree.shape: tree}, server.worker)


def test_a_dry_step_need_not_find_drafts(serve: Serve) -> None:
    """Which in short texts nothing is long enough for; where it is, they are the right ones."""
    server = serve(plans_of(options=OPTIONS | {"longest": 16, "shortest": 16})[0])
    assert server.worker.steps.proof == "passed"
    server.begin(PROMPTED)
    run(server, BATCHES)


@pytest.mark.parametrize("field", ["text", "seq_lens"])
def test_a_dry_step_leaves_rows_as_they_were(serve: Serve, field: str) -> None:
    server = serve(looked_up())
    assert not server.worker.steps.step.pools[field].any()


def test_texts_that_another_server_prefills_are_sglangs(serve: Serve) -> None:
    server = serve(looked_up(), mode="decode")
    assert server.worker.steps is None


@pytest.mark.parametrize(("compiled", "started"), [("NGRAM", "EAGLE"), ("EAGLE", "NGRAM")])
def test_a_program_of_another_kind_does_not_fit(serve: Serve, compiled: str, started: str) -> None:
    """And says so, where one of them has a draft."""
    server, other = serve(plan_of(started)), plan_of(compiled)
    misfits = adapter("server.fit").misfits({other.shape: other}, server.worker)
    assert f"algorithm is {compiled} in the program, {started} in the server" in misfits


def test_without_sglangs_worker_other_algorithms_are_served(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    held = SRT._held["sglang.srt.speculative.ngram_worker"]
    monkeypatch.delitem(held, "NGRAMWorker")
    server = serve(plan_of("EAGLE"))
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.worker.steps.tally.left == {}


# --- the rows of texts ------------------------------------------------------------------------------------------------

VOCABULARY, NODES = 50, 4


class Rows:
    """Rows of texts, poisoned, and what holds them."""

    def __init__(self, window: int) -> None:
        self.pools = {"text": torch.full((6, window), 77, dtype=torch.int32), "seq_lens": torch.full((6,), 77)}
        worker = SimpleNamespace(kind=LOOK_UPS, draft_token_num=NODES)
        self.window, self.texts = window, TextState(None, self, worker, SimpleNamespace(count=VOCABULARY), None)

    def known(self, row: int, length: int) -> list[int]:
        """The last tokens of a row up to position `length`."""
        first = max(0, length + 1 - self.window)
        return [int(self.pools["text"][row, place % self.window]) for place in range(first, length + 1)]


@pytest.fixture
def rows() -> Any:
    with SRT.installed(PROGRAM):
        yield Rows


def batch_of(lengths: dict[int, int], requests: Sequence[Any], **more: Any) -> Any:
    ends = torch.tensor([*lengths.values()])
    given = {"reqs": requests, "req_pool_indices": torch.tensor([*lengths]), "seq_lens": ends, "seq_lens_cpu": ends}
    return SimpleNamespace(**given, **more)


@pytest.mark.parametrize("seed", range(20))
def test_a_prefill_begins_texts_and_steps_go_on(rows: Any, seed: int) -> None:
    """Of windows shorter and longer than texts, of chunks, of requests that begin anew; no other row changes."""
    draw = random.Random(seed)
    kept = rows(draw.choice((8, 16, 64)))
    whole = {row: [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 40))] for row in (4, 1)}
    split = {row: draw.randint(1, len(text)) for row, text in whole.items()}
    requests = [
        SimpleNamespace(origin_input_ids=text[: split[row]], output_ids=text[split[row] :])
        for row, text in whole.items()
    ]
    chunk = {row: draw.randint(1, len(text)) for row, text in whole.items()}
    for ends in (chunk, {row: len(text) for row, text in whole.items()}):
        batch = batch_of(ends, requests)
        kept.texts.begin(batch)
        first = torch.tensor([draw.randrange(VOCABULARY) for _ in ends])
        ones = torch.ones(2, dtype=torch.int32)
        result = SimpleNamespace(next_token_ids=first, accept_lens=ones, new_seq_lens=batch.seq_lens)
        kept.texts.take(batch, result, relayed=False)
        for place, (row, end) in enumerate(ends.items()):
            text = [*whole[row][:end], int(first[place])]
            assert kept.known(row, end) == text[-kept.window :]
            assert kept.pools["seq_lens"][row] == end
    texts = {row: [*text, int(first[place])] for place, (row, text) in enumerate(whole.items())}
    for _ in range(5):
        counts = torch.tensor([draw.randint(1, NODES) for _ in texts], dtype=torch.int32)
        tokens = torch.tensor([[draw.randrange(VOCABULARY) for _ in range(NODES)] for _ in texts])
        ends = torch.tensor([len(text) - 1 for text in texts.values()]) + counts
        batch = batch_of(dict(zip(texts, ends.tolist(), strict=True)), requests)
        result = SimpleNamespace(next_token_ids=tokens.flatten(), accept_lens=counts, new_seq_lens=ends)
        kept.texts.take(batch, result, relayed=True)
        for place, text in enumerate(texts.values()):
            text += tokens[place, : counts[place]].tolist()
        for row, text in texts.items():
            assert kept.known(row, len(text) - 1) == text[-kept.window :]
    others = [row for row in range(6) if row not in whole]
    assert all((pool[others] == 77).all() for pool in kept.pools.values())


def test_what_stands_for_a_picture_is_no_token(rows: Any) -> None:
    kept = rows(16)
    request = SimpleNamespace(origin_input_ids=[3, 1 << 40, -7, VOCABULARY, VOCABULARY - 1], output_ids=[])
    kept.texts.begin(batch_of({2: 5}, [request]))
    assert kept.pools["text"][2, :5].tolist() == [3, -1, -1, -1, VOCABULARY - 1]


@pytest.mark.parametrize("late", [0, 1, 3])
def test_what_the_host_does_not_know_is_handed_over(rows: Any, late: int) -> None:
    """Under the overlap schedule; without it the host knows all, and nothing is changed."""
    kept, text = rows(16), [*range(30)]
    request = SimpleNamespace(origin_input_ids=text[:20], output_ids=[])
    kept.pools["text"][3] = torch.tensor([text[-16:][(place - 14) % 16] for place in range(16)])
    request.output_ids = text[20 : 30 - late]
    own = NgramVerifyInput(NODES, torch.zeros(1))
    batch = batch_of({3: 29}, [request], spec_info=own)
    kept.texts.lend(batch, relayed=False)
    assert own.accept_tokens is None
    kept.texts.lend(batch, relayed=True)
    assert own.accept_lens is not None and own.accept_tokens is not None
    assert own.accept_lens.tolist() == [late]
    assert own.accept_tokens.tolist()[:late] == text[30 - late :]
    assert own.accept_tokens.shape == (NODES,)


def test_what_stands_for_texts_is_filtered_and_merged(rows: Any) -> None:
    """As SGLang does between steps."""
    kept = rows(16)
    some, more = kept.texts.blank(3), kept.texts.blank(2)
    some.filter_batch(torch.tensor([2, 0]))
    some.merge_batch(more)
    assert some.accept_tokens.reshape(-1, NODES).shape == (4, NODES)
    assert len(some.accept_lens) == len(some.new_seq_lens) == 4


@pytest.mark.parametrize("keys", [(), TREE])
def test_steps_of_a_length_that_is_wanted(serve: Serve, keys: Any) -> None:
    """Though what ends a step is looked up behind what began an earlier one: no more of it is accepted."""
    server = serve(plans_of(target={"vocab_size": 128}, **dict(keys))[0], simulated=2.0)
    server.begin(PROMPTS)
    for _ in range(12):
        server.decode([*PROMPTS])
    server.settle()
    assert {length for counts in server.steps.values() for length in counts} == {2}
