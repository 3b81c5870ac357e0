"""A step is launched before the last one is read: what that must not change, and when anybody waits."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import pytest
import torch
from host_reads import HostReads

from specc.compiler.algorithms import names, needs
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import EngineError, OutOfRoomError, StepFailedError
from specc.lab.engine.serving.requests.request import Completion, StopConditions, TokenEvent
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.entry.result import HostCopy

from .tree_engine import Config, MemoryStep, base_texts, expected, make_engine, program_of

NEW = 24
CUT = 33
SHAPES = [(algorithm, topk) for algorithm in names() for topk in (1, 2) if topk == 1 or needs(algorithm).trees]


def config_of(algorithm: str, topk: int = 1, *, overlap: bool = True) -> Config:
    """A configuration of three steps."""
    return Config(algorithm, topk, 3, 4 if topk == 1 else 6, 16, overlap=overlap, buckets=(1, 2, 4))


def prompts() -> list[tuple[int, ...]]:
    """Three prompts whose texts the heads know."""
    return [text[:CUT] for text in base_texts()]


def begin(engine: Engine, new: int = NEW) -> list[int]:
    """Queue all prompts, and run the steps that prefill them."""
    ids = [engine.add(prompt, StopConditions(new)) for prompt in prompts()]
    assert not engine.step()
    return ids


def finish(engine: Engine) -> dict[int, Completion]:
    """Run all that is left; every text is the target's own, and nothing is held any more."""
    done: dict[int, Completion] = {}
    while engine.has_work:
        done |= {completion.request_id: completion for completion in engine.step()}
    for completion in done.values():
        assert completion.token_ids == expected(completion.prompt_ids)[:NEW]
    expect_idle(engine)
    return done


def expect_idle(engine: Engine) -> None:
    """Only the prefix cache holds pages, and no request holds a row."""
    assert engine.allocator.free_pages + len(engine.prefixes) == engine.allocator.capacity
    assert engine.prefixes.evictable() == len(engine.prefixes)
    assert engine.table.free_rows == engine.plan.size("P") - 1
    assert not engine.table.tensor.any()


@pytest.mark.parametrize(("algorithm", "topk"), SHAPES)
def test_the_same_with_and_without(algorithm: str, topk: int) -> None:
    """Completions, accepted lengths and the stream of every request."""
    conditions = StopConditions(NEW, frozenset(expected(prompts()[1])[7:8]))
    results = []
    for options in ({}, {"overlap": False}):
        events: list[TokenEvent] = []
        engine = make_engine(config_of(algorithm, topk), on_token=events.append, **options)
        results.append((engine.generate(prompts(), conditions), sorted(events, key=lambda event: event.request_id)))
        expect_idle(engine)
    assert results[0] == results[1]


@pytest.mark.parametrize(("algorithm", "topk"), SHAPES)
def test_nobody_waits_for_what_was_just_launched(algorithm: str, topk: int) -> None:
    engine = make_engine(config_of(algorithm, topk))
    log = program_of(engine).log
    begin(engine)
    assert log == [("launch", 0), ("launch", 1), ("wait", 0)]
    steps = 0
    while len(engine.scheduler.running) == 3:
        log.clear()
        engine.step()
        steps += 1
        last = log[0][1]
        assert last == 1 + steps
        assert log == [("launch", last), ("wait", last - 1)]
    assert steps >= 5
    finish(engine)


@pytest.mark.parametrize(("algorithm", "topk"), SHAPES)
def test_the_host_reads_nothing_but_the_copy_it_waits_for(
    algorithm: str, topk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands for kernels may read, and so may the copy of the step before; no forward does, and nobody else."""
    reads = HostReads(monkeypatch)
    reads.allow(ReferenceBackend, "launch")
    reads.allow(HostCopy, "wait")
    reads.allow(MemoryStep, "_check_room")
    engine = make_engine(config_of(algorithm, topk))
    begin(engine)
    steps = 0
    while len(engine.scheduler.running) == 3:
        with reads:
            engine.step()
        assert reads.found == []
        steps += 1
    assert steps >= 5
    finish(engine)


def test_reads_of_the_host_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.arange(4)
    with HostReads(monkeypatch) as reads:
        assert values[1].item() == values.tolist()[1] == int(values.max()) - 2
        assert bool(values[values > 2])
        values[values > 2] = 0
        assert len(values.nonzero()) == 2
    assert len(reads.found) == 7


@pytest.mark.parametrize("overlap", [False, True])
def test_without_overlap_every_launch_is_waited_for(overlap: bool) -> None:
    engine = make_engine(config_of("EAGLE", overlap=overlap), overlap=False)
    engine.generate(prompts(), StopConditions(NEW))
    log = program_of(engine).log
    assert log == [(event, number) for number in range(len(log) // 2) for event in ("launch", "wait")]


def test_a_program_that_does_not_relay_lengths_cannot_overlap() -> None:
    with pytest.raises(EngineError, match="does not relay lengths"):
        make_engine(config_of("EAGLE", overlap=False), overlap=True)


def test_a_request_that_surely_ends_in_flight_is_not_launched_again() -> None:
    engine = make_engine(config_of("NGRAM"))
    engine.generate([prompts()[0]], StopConditions(1))
    assert (engine.stats.prefills, engine.stats.steps) == (1, 0)


@pytest.mark.parametrize("leave", ["abort", "retract"])
@pytest.mark.parametrize("algorithm", names())
def test_a_request_leaves_while_it_is_in_flight(algorithm: str, leave: str) -> None:
    """Its row goes to a newcomer at once, for whom the result in flight does not count."""
    engine = make_engine(config_of(algorithm))
    first, *others = begin(engine)
    engine.step()
    assert engine._flights
    row = engine.scheduler.running[0].row
    if leave == "abort":
        completion = engine.abort(first)
        assert completion is not None
        assert completion.token_ids == expected(completion.prompt_ids)[: len(completion.token_ids)]
    else:
        engine.scheduler.retract(engine.scheduler.running[0])
    newcomer = engine.add(prompts()[0][:12], StopConditions(NEW))
    done = [completion.request_id for completion in engine.step()]
    assert row in {request.row for request in engine.scheduler.running if request.request_id in (first, newcomer)}
    done += finish(engine)
    assert sorted(done) == sorted([*others, newcomer, *([first] if leave == "retract" else [])])


def test_everybody_leaves_while_in_flight() -> None:
    engine = make_engine(config_of("EAGLE"))
    for request_id in begin(engine):
        engine.abort(request_id)
    assert engine._flights
    assert not engine.has_work
    expect_idle(engine)
    waits = program_of(engine).log.count(("wait", 1))
    begin(engine)
    finish(engine)
    assert program_of(engine).log.count(("wait", 1)) == waits == 0


def test_pages_run_out_while_a_step_is_in_flight() -> None:
    """It is read first: a retracted request has all the tokens that it could have."""
    engine = make_engine(config_of("STANDALONE"), memory=1.6, share_prefixes=False)
    for prompt in prompts():
        engine.add(prompt, StopConditions(NEW))
    finish(engine)
    assert engine.stats.retractions > 0
    log, launched = program_of(engine).log, -1
    drained = 0
    for event, number in log:
        drained += event == "wait" and number == launched
        launched = max(launched, number)
    assert drained >= engine.stats.retractions


CALLS = ("draft", "target", "extend", "assist", "block", "inject", "extend_module")
PREFILLS = ("prefill_target", "prefill_draft", "prefill_module", "prefill_inject")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("algorithm", names())
def test_any_forward_may_fail(algorithm: str, overlap: bool, late: bool) -> None:
    """The step raises, those in it are retried, all others go on, and no text changes."""
    calls = set(make_engine(config_of(algorithm)).plan.callbacks())
    assert calls <= {*CALLS, *PREFILLS}
    for name in sorted(calls):
        engine = make_engine(config_of(algorithm, overlap=overlap))
        faults = program_of(engine).faults
        ids = begin(engine)
        engine.step()
        if name in PREFILLS:
            ids = [engine.add(prompts()[0][:12], StopConditions(NEW))]
        faults.name, faults.late = name, late
        with pytest.raises(StepFailedError, match=f"InjectedError: {name}") as caught:
            engine.step()
        assert caught.value.request_ids == tuple(ids)
        assert faults.hit == [name]
        assert [request.request_id for request in engine.scheduler.waiting] == ids
        assert finish(engine).keys() >= set(ids)
        assert engine.stats.failures == 1
        assert engine.stats.requests == 3 + (name in PREFILLS)


@pytest.mark.parametrize(("algorithm", "topk"), SHAPES)
def test_a_request_without_room_ends_with_an_error(algorithm: str, topk: int) -> None:
    """Whatever made its length what it is: it is not launched for ever, and nobody else notices."""
    engine = make_engine(config_of(algorithm, topk))
    begin(engine)
    lost = engine.scheduler.running[1]
    engine.bound.pools["seq_lens"][lost.row or 0] = 1 << 40
    done: dict[int, Completion] = {}
    while engine.has_work:
        done |= {completion.request_id: completion for completion in engine.step()}
    failed = done.pop(lost.request_id)
    assert failed.finish_reason == "error"
    assert isinstance(failed.error, OutOfRoomError)
    assert str(failed.error) == "no room for a decode step in req_to_token, or in the tree mask"
    assert failed.token_ids == expected(failed.prompt_ids)[: len(failed.token_ids)]
    assert 0 < len(failed.token_ids) < NEW
    for completion in done.values():
        assert (completion.token_ids, completion.error) == (expected(completion.prompt_ids)[:NEW], None)
    assert engine.stats.finished == {"length": len(done), "error": 1}
    assert (engine.stats.health, engine.stats.failures) == ({5: 1}, 0)
    expect_idle(engine)


def test_what_failed_can_be_given_up() -> None:
    engine = make_engine(config_of("EAGLE"))
    begin(engine)
    program_of(engine).faults.name = "extend"
    with pytest.raises(StepFailedError) as caught:
        engine.step()
    for request_id in caught.value.request_ids:
        completion = engine.abort(request_id)
        assert completion is not None
        assert completion.finish_reason == "abort"
    assert not engine.has_work
    expect_idle(engine)


def test_generate_leaves_nothing_behind_when_it_fails() -> None:
    engine = make_engine(config_of("EAGLE"))
    program_of(engine).faults.name = "target"
    with pytest.raises(StepFailedError):
        engine.generate(prompts(), StopConditions(NEW))
    assert not engine.has_work
    expect_idle(engine)
    assert [done.token_ids for done in engine.generate(prompts(), StopConditions(NEW))] == [
        expected(prompt)[:NEW] for prompt in prompts()
    ]


def test_generate_leaves_no_completion_behind_either() -> None:
    """Not even of a request whose last token was heard by a listener that failed."""

    def listen(event: TokenEvent) -> None:
        if event.finish_reason is not None:
            raise KeyboardInterrupt

    engine = make_engine(config_of("EAGLE"), on_token=listen)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts(), StopConditions(1))
    assert not engine.has_work
    assert engine.step() == []


def test_a_listener_may_fail_or_abort() -> None:
    """Every token is handed over once, and no completion is lost."""
    heard: list[TokenEvent] = []

    def listen(event: TokenEvent) -> None:
        heard.append(event)
        if len(heard) % 5 == 0:
            raise KeyboardInterrupt

    engine = make_engine(config_of("EAGLE"), on_token=listen)
    for prompt in prompts():
        engine.add(prompt, StopConditions(NEW))
    done: list[Completion] = []
    while engine.has_work:
        try:
            done += engine.step()
        except KeyboardInterrupt:
            continue
    assert sorted(completion.request_id for completion in done) == [0, 1, 2]
    for completion in done:
        assert tuple(e.token for e in heard if e.request_id == completion.request_id) == completion.token_ids
        assert completion.token_ids == expected(completion.prompt_ids)[:NEW]


@dataclass
class Letters:
    """A tokenizer that has a letter for every token, and raises at some of its calls."""

    fails_at: Container[int]
    calls: int = 0

    def decode(self, ids: Sequence[int], **_: object) -> str:
        self.calls += 1
        if self.calls in self.fails_at:
            raise UnicodeError("no letter")
        return "".join(chr(ord("0") + token) for token in ids)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("every", [7, 16, 23])
def test_a_tokenizer_may_fail(every: int, overlap: bool) -> None:
    """Who has no text waits again and has it then; the others go on, and nobody's tokens and text part."""
    heard: list[TokenEvent] = []
    letters = Letters(range(every, 1000, every))
    engine = make_engine(config_of("EAGLE", overlap=overlap), on_token=heard.append, tokenizer=letters)
    ids = [engine.add(prompt, StopConditions(NEW)) for prompt in prompts()]
    done: list[Completion] = []
    failures: list[tuple[StepFailedError, list[int]]] = []
    while engine.has_work:
        try:
            done += engine.step()
        except StepFailedError as error:
            failures.append((error, [request.request_id for request in engine.scheduler.waiting]))
    assert len(failures) == engine.stats.failures > 0
    for failure, waiting in failures:
        assert isinstance(failure.__cause__, UnicodeError)
        assert set(failure.request_ids) <= set(waiting)
    assert sorted(completion.request_id for completion in done) == ids
    for completion in done:
        assert completion.token_ids == expected(completion.prompt_ids)[:NEW]
        assert completion.text == Letters(()).decode(completion.token_ids)
        of_request = [event for event in heard if event.request_id == completion.request_id]
        assert tuple(event.token for event in of_request) == completion.token_ids
        assert "".join(event.text for event in of_request) == completion.text
        assert sum(completion.accept_lens) < len(completion.token_ids)
    expect_idle(engine)


def test_a_full_mask_holds_the_longest_text() -> None:
    """Close to the context's end lengths are read before the next launch: `make_engine` looks at them."""
    config = Config("STANDALONE", 2, 3, 6, 1, mask="full", overlap=True)
    engine = make_engine(config)
    assert engine.plan.kv.longest is not None
    done = engine.generate(prompts(), StopConditions(engine.plan.kv.longest - CUT))
    assert [completion.token_ids for completion in done] == [expected(prompt) for prompt in prompts()]
    log = program_of(engine).log
    assert any(event == "wait" and log[at - 1] == ("launch", number) for at, (event, number) in enumerate(log))
