"""A request that fails whenever it runs is found and ended; who ran with it has the target's own text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import StepFailedError, TransferError
from specc.lab.engine.serving.requests.request import HOPELESS, SUSPECT, Completion, StopConditions

from .local_pair import CHAIN, PROMPTS, expect_text, outcomes_of
from .test_overlap import config_of, expect_idle, prompts
from .tree_engine import InjectedError, expected, make_engine, program_of

NEW = 16


def failing(engine: Engine, name: str, wrong: Callable[[set[int]], bool]) -> None:
    """Let a forward fail for the requests it runs, as they say."""
    faults = program_of(engine).faults
    call = faults._call

    def flaky(called: str, callback: Callable[..., Any], **arguments: Any) -> Any:
        if called == name:
            rows = set(arguments["rows"].tolist()) - {0}
            if wrong({request.request_id for request in engine.scheduler.running if request.row in rows}):
                raise InjectedError(name)
        return call(called, callback, **arguments)

    faults._call = flaky


def run(engine: Engine) -> tuple[dict[int, Completion], list[StepFailedError]]:
    """Step until nothing is left, however often that fails."""
    done: dict[int, Completion] = {}
    failures: list[StepFailedError] = []
    while engine.has_work:
        try:
            done |= {completion.request_id: completion for completion in engine.step()}
        except StepFailedError as error:
            failures.append(error)
            assert len(failures) < 50
    expect_idle(engine)
    return done, failures


def add_all(engine: Engine, count: int = 7) -> list[int]:
    """More requests than fit into a batch."""
    texts = prompts()
    return [engine.add(texts[i % 3][: 9 + 3 * i], StopConditions(NEW)) for i in range(count)]


def expect_others(done: dict[int, Completion], ids: list[int]) -> None:
    """They have their texts, and no error."""
    for request_id in ids:
        completion = done.pop(request_id)
        assert completion.error is None
        assert completion.token_ids == expected(completion.prompt_ids)[:NEW]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["prefill_target", "prefill_draft"])
@pytest.mark.parametrize("place", [0, 6])
def test_one_that_always_fails_is_ended(name: str, place: int, overlap: bool) -> None:
    engine = make_engine(config_of("EAGLE", overlap=overlap))
    ids = add_all(engine)
    bad = ids.pop(place)
    failing(engine, name, lambda batch: bad in batch)
    done, failures = run(engine)
    expect_others(done, ids)
    (completion,) = done.values()
    assert (completion.request_id, completion.finish_reason) == (bad, "error")
    assert completion.error is failures[-1]
    assert completion.token_ids == expected(completion.prompt_ids)[: len(completion.token_ids)]
    assert [failure.ended for failure in failures] == [False] * (HOPELESS - 1) + [True]
    assert failures[-1].request_ids == (bad,)
    assert isinstance(failures[-1].__cause__, InjectedError)
    assert engine.stats.finished["error"] == 1
    assert engine.stats.failures == HOPELESS


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["draft", "extend"])
def test_one_whose_decode_always_fails_gets_on_by_prefills(name: str, overlap: bool) -> None:
    """Alone, while every other time the others run, as if it were not there."""
    engine = make_engine(config_of("EAGLE", overlap=overlap))
    ids = add_all(engine)
    bad, others = ids[1], [ids[0], *ids[2:]]
    together: list[set[int]] = []

    def wrong(batch: set[int]) -> bool:
        if bad in batch:
            together.append(batch)
        return bad in batch

    failing(engine, name, wrong)
    order: list[int] = []
    done: dict[int, Completion] = {}
    while engine.has_work:
        try:
            finished = {completion.request_id: completion for completion in engine.step()}
        except StepFailedError:
            continue
        order += finished
        done |= finished
    expect_idle(engine)
    expect_others(done, others)
    expect_others(done, [bad])
    assert order.index(bad) >= 3
    assert [len(batch) > 1 for batch in together] == [True] * SUSPECT + [False] * (len(together) - SUSPECT)


def test_several_that_always_fail_are_all_found() -> None:
    engine = make_engine(config_of("EAGLE"))
    ids = add_all(engine)
    bad = {ids.pop(5), ids.pop(1), ids.pop(0)}
    failing(engine, "prefill_target", lambda batch: bool(bad & batch))
    done, _ = run(engine)
    expect_others(done, ids)
    assert done.keys() == bad
    assert all(completion.finish_reason == "error" for completion in done.values())


def test_who_fails_only_together_is_not_ended() -> None:
    """As where memory lacks: alone each of them gets on."""
    engine = make_engine(config_of("EAGLE"))
    ids = add_all(engine)
    failing(engine, "target", lambda batch: len(batch) > 1)
    done, _ = run(engine)
    expect_others(done, ids)
    assert done == {}


def test_what_failed_now_and_then_is_forgiven() -> None:
    """Failures count that follow each other, without a decode step in between."""
    engine = make_engine(config_of("EAGLE", overlap=False))
    ids = [engine.add(prompts()[0], StopConditions(NEW))]
    calls = iter(range(1000))
    failing(engine, "target", lambda batch: next(calls) % 3 != 2)
    done, failures = run(engine)
    expect_others(done, ids)
    assert len(failures) > HOPELESS


def test_when_everything_fails_everything_ends() -> None:
    engine = make_engine(config_of("EAGLE"))
    ids = add_all(engine)
    failing(engine, "prefill_target", lambda batch: True)
    done, _ = run(engine)
    assert done.keys() == set(ids)
    assert all(completion.finish_reason == "error" and not completion.token_ids for completion in done.values())


def test_a_tokenizer_that_always_fails() -> None:
    class Mute:
        def decode(self, *_: Any, **__: Any) -> str:
            raise UnicodeError

    engine = make_engine(config_of("EAGLE"), tokenizer=Mute(), on_token=lambda _: None)
    ids = [engine.add(prompt, StopConditions(NEW)) for prompt in prompts()]
    done, _ = run(engine)
    assert done.keys() == set(ids)
    assert all(completion.finish_reason == "error" for completion in done.values())


@pytest.mark.parametrize("prefilling", [False, True])
def test_the_peer_of_one_that_always_fails_learns_it(prefilling: bool) -> None:
    """Where it is prefilled, or where it is decoded; all others have their text."""
    bad = "12 tokens"
    engine = make_engine(CHAIN)
    gone: dict[str, Any] = {}

    def until_done(step: Callable[[], Any]) -> Any:
        for _ in range(HOPELESS + 1):
            try:
                return step()
            except StepFailedError:
                continue
        raise AssertionError("it is retried for ever")

    def work(worker: Any) -> None:
        if prefilling:
            failing(worker.engine, "prefill_target", lambda ids: any(worker.names[i] == bad for i in ids))
        for name, prompt in PROMPTS.items():
            worker.add(name, prompt, StopConditions(20))
        while worker.has_work:
            gone.update(until_done(worker.step))
        worker.close()

    if not prefilling:
        for name in ("target", "prefill_target"):
            failing(engine, name, lambda ids: any(_prompt(engine, i) == PROMPTS[bad] for i in ids))
        step = engine.step
        engine.step = lambda: until_done(step)
    outcomes = outcomes_of(engine, work, CHAIN)
    failed = outcomes.pop(bad).error
    assert isinstance(failed, TransferError if prefilling else StepFailedError)
    assert "InjectedError" in str(failed)
    assert {name for name, error in gone.items() if error} == ({bad} if prefilling else set())
    assert outcomes.keys() == PROMPTS.keys() - {bad}
    for outcome in outcomes.values():
        expect_text(outcome)


def _prompt(engine: Engine, request_id: int) -> tuple[int, ...]:
    return next(r.prompt_ids for r in engine.scheduler.running if r.request_id == request_id)
