"""Two engines in one process with a channel between their threads: everything that can go wrong on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from fakes.channel import LocalChannel
from torch import Tensor

from specc.lab.engine.disaggregation import Channel, DecodeWorker, PrefillWorker
from specc.lab.engine.disaggregation import prefill as prefill_module
from specc.lab.engine.disaggregation.messages import STATE, Message, Patience, send
from specc.lab.engine.errors import ContractError, EngineError, RequestTooLongError, StepFailedError, TransferError
from specc.lab.engine.serving.handover import Places
from specc.lab.engine.serving.requests.request import StopConditions
from specc.runtime.errors import FieldError, RecordError, SchemaMismatchError
from specc.runtime.state.carry import Carry

from .local_pair import CHAIN, NEW, PROMPTS, QUICK, TREE, expect_empty, expect_text, outcomes_of, prefilling, send_all
from .tree_engine import CONTEXT, Config, expected, kv_buffers, make_engine

OVERLAPPING = replace(CHAIN, overlap=True)


@pytest.mark.parametrize("config", [CHAIN, TREE, replace(CHAIN, overlap=True)], ids=["chain", "tree", "overlap"])
@pytest.mark.parametrize("memory", [9, 1.2])
def test_text_and_steps_as_if_nothing_had_moved(config: Config, memory: float) -> None:
    """With few pages requests are retracted, and prefilled again where they are decoded."""
    stayed = make_engine(config).generate(PROMPTS.values(), StopConditions(NEW))
    engine = make_engine(config, padded=True, memory=memory)
    outcomes = outcomes_of(engine, send_all, config)
    assert outcomes.keys() == PROMPTS.keys()
    for name, completion in zip(PROMPTS, stayed, strict=True):
        expect_text(outcomes[name])
        if memory == 9:
            assert outcomes[name].completion == replace(completion, request_id=outcomes[name].completion.request_id)
    assert (engine.stats.retractions > 0) is (memory < 2)
    assert (engine.stats.prefills > 0) is (memory < 2)
    assert engine.stats.requests == len(PROMPTS)


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE", "NGRAM"])
def test_many_branches(algorithm: str) -> None:
    """Nothing bounds how many branches a request brings."""
    config = Config(algorithm, topk=16, steps=2, nodes=20, page_size=1, overlap=True)
    stayed = make_engine(config).generate(PROMPTS.values(), StopConditions(NEW))
    outcomes = outcomes_of(make_engine(config), send_all, config)
    for name, completion in zip(PROMPTS, stayed, strict=True):
        expect_text(outcomes[name])
        assert outcomes[name].completion.accept_lens == completion.accept_lens


def test_pages_that_are_there_already_are_shared() -> None:
    """Rows of shared positions are not written: somebody may be reading them."""
    engine = make_engine(CHAIN)
    engine.generate([PROMPTS["33 tokens"]], StopConditions(2))
    slots = engine.allocator.slots_of(engine.prefixes.match(PROMPTS["33 tokens"]))
    for buffer in kv_buffers(engine):
        buffer[slots] *= 1 + 1e-6
    before = [buffer[slots].clone() for buffer in kv_buffers(engine)]
    outcomes = outcomes_of(engine, lambda worker: send_all(worker, {"33 tokens": PROMPTS["33 tokens"]}), CHAIN)
    expect_text(outcomes["33 tokens"])
    assert engine.stats.shared_tokens == len(slots) == 32
    assert all(torch.equal(buffer[slots], rows) for buffer, rows in zip(kv_buffers(engine), before, strict=True))


@pytest.mark.parametrize("new", [1, 2])
def test_the_first_token_may_be_the_last(new: int) -> None:
    outcomes = outcomes_of(make_engine(CHAIN), lambda worker: send_all(worker, new=new), CHAIN)
    for outcome in outcomes.values():
        expect_text(outcome, new)


def test_nothing_to_send() -> None:
    def work(worker: PrefillWorker) -> None:
        assert worker.step() == {}
        worker.close()

    assert outcomes_of(make_engine(CHAIN), work, CHAIN) == {}


def test_several_peers_share_a_batch() -> None:
    engine, peers = make_engine(CHAIN), {"left": LocalChannel.pair(), "right": LocalChannel.pair()}
    worker = DecodeWorker(engine, QUICK)
    left, right = (prefilling(make_engine(CHAIN), there, send_all) for _, there in peers.values())
    with left, right:
        for name, (here, _) in peers.items():
            worker.connect(here, name)
        outcomes = list(worker.serve())
    assert sorted((o.peer, o.request) for o in outcomes) == sorted((peer, name) for peer in peers for name in PROMPTS)
    for outcome in outcomes:
        expect_text(outcome)
    expect_empty(engine)


@dataclass
class Spoiling:
    """What a worker sends, but the state of one request is another."""

    spoil: Callable[[Message], Message]
    name: str = "5 tokens"
    seen: list[str] = field(default_factory=list)

    def __call__(self, channel: Channel, message: Message, patience: Patience) -> None:
        if message.kind == STATE and message.request == self.name:
            message = self.spoil(message)
        send(channel, message, patience)


def without(message: Message, name: str) -> Message:
    return replace(message, tensors={key: rows for key, rows in message.tensors.items() if key != name})


def flipped(message: Message) -> Message:
    record = message.tensors["record"].clone()
    record[-1] ^= 1
    return replace(message, tensors=dict(message.tensors) | {"record": record})


def holding(**values: float) -> Callable[[Message], Message]:
    """A state whose record is whole, and says of its own fields something else; others are the message's own."""

    def spoil(message: Message) -> Message:
        layout = make_engine(OVERLAPPING).program.record_layout
        record = message.tensors["record"].clone()[None]
        carried = {each.name: each.view(record) for each in layout.fields}
        for name in values.keys() & carried.keys():
            carried[name].view(-1)[-1] = values[name]
        changes = {key: value for key, value in values.items() if key in message.fields}
        tensors = dict(message.tensors) | {"record": layout.pack(Carry(carried))[0]}
        return replace(message, fields=dict(message.fields) | changes, tensors=tensors)

    return spoil


HELD: dict[str, tuple[dict[str, float], type[Exception], str]] = {
    "a first token that is none": ({"first": 10**9}, ContractError, "the first token is 1000000000"),
    "a negative first token": ({"first": -1}, ContractError, "the first token is -1"),
    "a health word that is none": ({"health": -1}, ContractError, "the health word is -1"),
    "a root that is none": ({"bonus": 10**9}, FieldError, "'bonus' holds 1000000000"),
    "a draft that is none": ({"topk_index": 10**9}, FieldError, "'topk_index' holds 1000000000"),
    "a negative draft": ({"topk_index": -1}, FieldError, "'topk_index' holds -1"),
    "a length of another prompt": ({"seq_lens": 6}, ContractError, "not that of one prompt of 5 tokens"),
    "a negative length": ({"seq_lens": -1}, FieldError, "'seq_lens' holds -1"),
}


@pytest.mark.parametrize("held", HELD)
def test_a_value_that_cannot_be_fails_alone(held: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is emitted, no step fails, and the peer's other requests have their text."""
    values, error, message = HELD[held]
    monkeypatch.setattr(prefill_module, "send", Spoiling(holding(**values)))
    events: list[int] = []
    engine = make_engine(OVERLAPPING, on_token=lambda event: events.append(event.token))
    outcomes = outcomes_of(engine, send_all, OVERLAPPING)
    failed = outcomes.pop("5 tokens")
    assert type(failed.error) is error
    assert message in str(failed.error)
    if isinstance(failed.error, FieldError):
        assert failed.error.request == "5 tokens"
    assert outcomes.keys() == PROMPTS.keys() - {"5 tokens"}
    for outcome in outcomes.values():
        expect_text(outcome)
    assert len(events) == NEW * len(outcomes)
    assert engine.stats.failures == 0


SPOILT: dict[str, tuple[Callable[[Message], Message], type[Exception], str]] = {
    "damaged": (flipped, RecordError, "is damaged"),
    "kv missing": (lambda m: without(m, "kv.target.1"), ContractError, "a prompt of 5 tokens"),
    "no draft kv": (lambda m: without(without(m, "kv.draft.0"), "kv.draft.1"), ContractError, "a prompt of 5 tokens"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_request_whose_state_is_wrong_fails_alone(spoilt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil, error, message = SPOILT[spoilt]
    monkeypatch.setattr(prefill_module, "send", Spoiling(spoil))
    outcomes = outcomes_of(make_engine(CHAIN), send_all, CHAIN)
    failed = outcomes.pop("5 tokens")
    assert type(failed.error) is error
    assert message in str(failed.error)
    assert outcomes.keys() == PROMPTS.keys() - {"5 tokens"}
    for outcome in outcomes.values():
        expect_text(outcome)


@dataclass
class Breaking:
    """A channel that breaks when it has sent so many tensors; what was sent arrives."""

    channel: Any
    left: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)

    def send(self, tensor: Tensor, timeout: float) -> None:
        if self.left == 0:
            self.channel.close()
            raise ConnectionError("cut")
        self.left -= 1
        self.channel.send(tensor, timeout)


@pytest.mark.parametrize("sent", range(2, 60, 5))
def test_wherever_the_connection_breaks(sent: int) -> None:
    """Each request has its text or an error, on both sides; what arrived runs on."""
    gone: dict[str, Any] = {}

    def work(worker: PrefillWorker) -> None:
        for name, prompt in PROMPTS.items():
            try:
                worker.add(name, prompt, StopConditions(NEW))
            except TransferError as error:
                gone[name] = error
        while worker.has_work:
            gone.update(worker.step())
        worker.close()

    outcomes = outcomes_of(make_engine(CHAIN), work, CHAIN, lambda channel: Breaking(channel, sent))
    assert gone.keys() == PROMPTS.keys()
    for name, error in gone.items():
        assert error is None or error.request == name
        if name in outcomes and outcomes[name].error is None:
            expect_text(outcomes[name])
        elif name in outcomes:
            assert isinstance(outcomes[name].error, TransferError)
            assert outcomes[name].error.request == name
        assert error is not None or outcomes[name].error is None
    assert any(gone.values())


def test_a_peer_that_says_nothing_is_given_up() -> None:
    """After its announcement it falls silent."""
    here, there = LocalChannel.pair()
    engine = make_engine(CHAIN)
    with prefilling(make_engine(CHAIN), there, lambda worker: worker.add("silent", (2, 3), StopConditions(4))):
        worker = DecodeWorker(engine, Patience(idle=1.0, moving=0.5))
        worker.connect(here)
        (outcome,) = worker.serve()
    assert isinstance(outcome.error, TransferError)
    assert "nothing came for 1.0 seconds" in str(outcome.error)
    expect_empty(engine)


def test_programs_that_differ_are_refused_on_both_sides() -> None:
    here, there = LocalChannel.pair()
    worker = DecodeWorker(make_engine(replace(CHAIN, page_size=16)), QUICK)
    refusal = pytest.raises(SchemaMismatchError, match="page_size is 16 here, 4 there")
    with prefilling(make_engine(CHAIN), there, send_all) as raised, refusal:
        worker.connect(here)
    (refused,) = raised
    assert isinstance(refused, SchemaMismatchError)
    assert "page_size is 4 here, 16 there" in str(refused)


def test_what_can_never_fit_is_refused() -> None:
    def work(worker: PrefillWorker) -> None:
        with pytest.raises(RequestTooLongError, match="the peer's context holds"):
            worker.add("long", (2,) * 70, StopConditions(CONTEXT - 69))
        with pytest.raises(RequestTooLongError, match="the engine's context holds"):
            worker.add("long", (2,) * (CONTEXT - 1), StopConditions(1))
        worker.close()

    assert outcomes_of(make_engine(CHAIN), work, CHAIN) == {}


def test_pages_of_the_side_that_decodes_may_be_too_few() -> None:
    outcomes = outcomes_of(make_engine(CHAIN, memory=0.5), send_all, CHAIN)
    refused = outcomes.pop("33 tokens")
    assert isinstance(refused.error, RequestTooLongError)
    for outcome in outcomes.values():
        expect_text(outcome)


def test_two_requests_of_one_name() -> None:
    def work(worker: PrefillWorker) -> None:
        worker.add("5 tokens", PROMPTS["5 tokens"], StopConditions(NEW))
        with pytest.raises(EngineError, match="waits already"):
            worker.add("5 tokens", PROMPTS["4 tokens"], StopConditions(NEW))
        worker.step()
        worker.close()

    expect_text(outcomes_of(make_engine(CHAIN), work, CHAIN)["5 tokens"])


def test_who_comes_in_with_a_handover_that_fails_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing runs that was admitted and not prefilled."""
    moved, own = PROMPTS["17 tokens"], PROMPTS["33 tokens"]
    first, engine = make_engine(CHAIN), make_engine(CHAIN)
    first.add(moved, StopConditions(NEW))
    (request,) = first.prefill()
    handovers = {moved: first.hand_over(request), own: None}
    ids = [engine.add(prompt, StopConditions(NEW), handover=handover) for prompt, handover in handovers.items()]
    with monkeypatch.context() as patch:
        patch.setattr(Places, "put", None)
        with pytest.raises(StepFailedError, match="a handover of requests 0, 1") as caught:
            engine.step()
    assert caught.value.request_ids == tuple(ids)
    assert [waiting.request_id for waiting in engine.scheduler.waiting] == ids
    done = {completion.request_id: completion for _ in range(NEW + 1) for completion in engine.step()}
    assert [done[number].token_ids for number in ids] == [expected(prompt)[:NEW] for prompt in (moved, own)]
    assert engine.stats.prefills == 1
