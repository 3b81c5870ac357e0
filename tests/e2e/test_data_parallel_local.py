"""Three ranks in one process, whose forwards wait for each other: what each has to do, and what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from specc.compiler.algorithms import names, needs
from specc.lab.engine.data_parallel import LockStep, Peers
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import LockStepError, StepFailedError
from specc.lab.engine.serving.requests.request import Completion, StopConditions

from .ranks import Meeting, run_ranks
from .tree_engine import Config, InjectedError, Launched, base_texts, expected, make_engine, program_of

NEW = 14
SHAPES = [(algorithm, topk) for algorithm in names() for topk in (1, 2) if topk == 1 or needs(algorithm).trees]
WITHOUT_OVERLAP = [("STANDALONE", 1, False), ("EAGLE", 2, False), ("DFLASH", 1, False)]
QUEUES = ((33, 12, 17, 5, 40, 1), (20,), ())
"""Lengths of the prompts of each rank: more than a batch holds, one, and none at all."""

Prompts = Sequence[tuple[int, ...]]


def config_of(algorithm: str, topk: int = 1, *, overlap: bool = True) -> Config:
    """A configuration of three steps."""
    return Config(algorithm, topk, 3, 4 if topk == 1 else 6, 4, overlap=overlap, buckets=(1, 2, 4))


def prompts_of(rank: int) -> Prompts:
    """What a rank is asked for."""
    return [base_texts()[rank][:length] for length in QUEUES[rank]]


def meeting(engine: Engine, peers: Peers) -> Meeting:
    """Let an engine's forwards wait for those of the other ranks."""
    faults = program_of(engine).faults
    faults.callbacks = Meeting(faults.callbacks, peers)
    return faults.callbacks


def add(engine: Engine, prompts: Prompts, new: int = NEW) -> None:
    """Queue prompts, each of which may emit one token more than the one before."""
    for index, prompt in enumerate(prompts):
        engine.add(prompt, StopConditions(new + index))


def check(engine: Engine, done: Sequence[Completion], prompts: Prompts) -> None:
    """Every text is the target's own, and nothing is held any more."""
    assert sorted(completion.prompt_ids for completion in done) == sorted(prompts)
    for completion in done:
        assert completion.token_ids == expected(completion.prompt_ids)[: len(completion.token_ids)]
        assert len(completion.token_ids) == NEW + prompts.index(completion.prompt_ids)
    assert not engine.has_work
    assert engine.allocator.free_pages + len(engine.prefixes) == engine.allocator.capacity
    assert engine.table.free_rows == engine.plan.size("P") - 1


def serve(engine: Engine, prompts: Prompts, peers: Peers, forwards: Peers) -> Meeting:
    """A rank from its beginning to the end of all of them; its forwards."""
    met = meeting(engine, forwards)
    add(engine, prompts)
    with LockStep(engine, peers) as ranks:
        check(engine, list(ranks.run()), prompts)
        assert not ranks.has_work
    return met


def works(engines: Sequence[Engine], what: Callable[..., Any] = serve) -> list[Callable[[Peers, Peers], Any]]:
    """What each rank does."""
    return [partial(what, engine, prompts_of(rank)) for rank, engine in enumerate(engines)]


@pytest.mark.parametrize(("algorithm", "topk", "overlap"), [*((*shape, True) for shape in SHAPES), *WITHOUT_OVERLAP])
def test_ranks_call_the_same_forwards(algorithm: str, topk: int, overlap: bool) -> None:
    engines = [make_engine(config_of(algorithm, topk, overlap=overlap)) for _ in QUEUES]
    met = run_ranks(works(engines))
    assert not [result for result in met if isinstance(result, Exception)]
    assert met[0].calls == met[1].calls == met[2].calls
    assert {rows for name, _, rows in met[2].calls if not name.startswith("prefill")} >= {2, 4}
    launches = [engine.stats.prefills + engine.stats.steps for engine in engines]
    assert launches[0] == launches[1] == launches[2] == engines[2].stats.idle
    assert engines[0].stats.idle < engines[1].stats.idle < launches[1]
    if overlap:
        assert program_of(engines[2]).log == [("launch", number) for number in range(launches[2])]


def test_each_rank_emits_what_it_does_alone() -> None:
    """The same drafts are accepted, step by step."""
    ranks, alone = ([make_engine(config_of("EAGLE", 2)) for _ in QUEUES] for _ in range(2))
    accepted: dict[tuple[int, ...], tuple[int, ...]] = {}

    def serve_and_note(engine: Engine, prompts: Prompts, peers: Peers, forwards: Peers) -> None:
        meeting(engine, forwards)
        add(engine, prompts)
        with LockStep(engine, peers) as lock:
            accepted.update({done.prompt_ids: done.accept_lens for done in lock.run()})

    assert run_ranks(works(ranks, serve_and_note)) == [None] * len(QUEUES)
    for rank, engine in enumerate(alone):
        done = engine.generate(prompts_of(rank), StopConditions(NEW + len(QUEUES[0])))
        for completion in done:
            lens = accepted[completion.prompt_ids]
            assert lens[:-1] == completion.accept_lens[: len(lens) - 1]


@pytest.mark.parametrize("seed", range(4))
def test_requests_come_while_others_run(seed: int) -> None:
    """Some ranks have nothing for a while, or too few pages for what they have; one of them does not overlap."""
    rng = random.Random(seed)
    algorithm, topk = rng.choice(SHAPES)
    memory = [8.0, 1.3, 2.2]
    config = config_of(algorithm, topk)
    engines = [make_engine(config, memory=memory[rank], overlap=rank != 1) for rank in range(3)]
    arrivals = [sorted(rng.randrange(25) for _ in queue) for queue in ((0,) * 6, (0,) * 4, (0,) * 2)]

    def serve_in_time(rank: int, peers: Peers, forwards: Peers) -> list[tuple[str, int | None, int]]:
        engine, left = engines[rank], list(arrivals[rank])
        prompts = [base_texts()[rank][: 3 + 7 * index] for index in range(len(left))]
        met, done = meeting(engine, forwards), list[Completion]()
        with LockStep(engine, peers) as ranks:
            for turn in range(200):
                while left and left[0] == turn:
                    index = len(prompts) - len(left)
                    engine.add(prompts[index], StopConditions(NEW + index))
                    left.pop(0)
                done += ranks.step()
        check(engine, done, prompts)
        return met.calls

    calls = run_ranks([partial(serve_in_time, rank) for rank in range(3)])
    assert not [rank_calls for rank_calls in calls if isinstance(rank_calls, Exception)]
    assert calls[0] == calls[1] == calls[2]


def test_nobody_starves_while_prompts_keep_coming() -> None:
    """Every other round may decode, though a rank always has something to prefill."""
    engines = [make_engine(config_of("NGRAM")) for _ in range(2)]

    def ask(peers: Peers, forwards: Peers) -> int:
        meeting(engines[0], forwards)
        (prompt,) = prompts_of(1)
        engines[0].add(prompt, StopConditions(NEW))
        with LockStep(engines[0], peers) as ranks:
            return next(turn for turn in range(100) if ranks.step())

    def flood(peers: Peers, forwards: Peers) -> None:
        meeting(engines[1], forwards)
        with LockStep(engines[1], peers) as ranks:
            while True:
                engines[1].add(prompts_of(0)[1], StopConditions(1))
                ranks.step()

    turns, left = run_ranks([ask, flood])
    assert turns <= 2 * NEW + 3
    assert isinstance(left, LockStepError)
    assert engines[1].stats.prefills >= turns // 2


def finish_alone(engine: Engine, done: Sequence[Completion], prompts: Prompts) -> None:
    """Lock-step is over, but what was asked of the engine is not lost."""
    faults = program_of(engine).faults
    faults.callbacks = faults.callbacks.callbacks
    done = list(done)
    while engine.has_work:
        done += engine.step()
    check(engine, done, prompts)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["prefill_target", "prefill_draft", "draft", "target", "extend"])
def test_a_forward_fails(name: str, late: bool) -> None:
    """The rank where it fails ends its lock-step, the others fail in the collective where it is missing."""
    engines = [make_engine(config_of("EAGLE")) for _ in QUEUES]
    program_of(engines[1]).faults.name, program_of(engines[1]).faults.late = name, late

    def serve_until_it_fails(engine: Engine, prompts: Prompts, peers: Peers, forwards: Peers) -> None:
        meeting(engine, forwards)
        add(engine, prompts)
        done: list[Completion] = []
        with LockStep(engine, peers) as ranks:
            try:
                done += ranks.run()
            finally:
                with pytest.raises(LockStepError, match="over"):
                    ranks.step()
                finish_alone(engine, done, prompts)

    first, failing, last = run_ranks(works(engines, serve_until_it_fails))
    assert isinstance(failing, StepFailedError)
    assert isinstance(failing.__cause__, InjectedError)
    for error in (first, last):
        assert isinstance(error, StepFailedError | LockStepError)
        assert isinstance(error.__cause__, ConnectionError)
    assert engines[1].stats.failures == 1


@pytest.mark.parametrize("number", [0, 3])
def test_results_cannot_be_read(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens between forwards, so the others do not even notice."""
    engines = [make_engine(config_of("STANDALONE")) for _ in QUEUES]
    wait = Launched.wait

    def fail_once(self: Launched) -> Any:
        if self.program is program_of(engines[0]) and self.number == number:
            raise InjectedError("wait")
        return wait(self)

    monkeypatch.setattr(Launched, "wait", fail_once)
    raised: list[StepFailedError] = []

    def serve_on(engine: Engine, prompts: Prompts, peers: Peers, forwards: Peers) -> list[Any]:
        met, done = meeting(engine, forwards), list[Completion]()
        add(engine, prompts)
        with LockStep(engine, peers) as ranks:
            while ranks.has_work:
                try:
                    done += ranks.step()
                except StepFailedError as error:
                    raised.append(error)
        check(engine, done, prompts)
        return met.calls

    calls = run_ranks(works(engines, serve_on))
    assert calls[0] == calls[1] == calls[2]
    assert len(raised) == 1
    assert raised[0].request_ids


@pytest.mark.parametrize("rounds", [0, 1, 2, 9])
def test_a_rank_leaves(rounds: int) -> None:
    """The others learn it in the same round, and requests that they were about to prefill wait again."""
    engines = [make_engine(config_of("EAGLE")) for _ in QUEUES]
    ends: list[int] = []

    def leave(peers: Peers, forwards: Peers) -> None:
        meeting(engines[2], forwards)
        with LockStep(engines[2], peers) as ranks:
            for _ in range(rounds):
                assert not ranks.step()

    def stay(engine: Engine, prompts: Prompts, peers: Peers, forwards: Peers) -> None:
        meeting(engine, forwards)
        add(engine, prompts)
        done: list[Completion] = []
        with LockStep(engine, peers) as ranks:
            with pytest.raises(LockStepError, match="rank 2 has left"):
                done += ranks.run()
            ends.append(engine.stats.prefills + engine.stats.steps)
        finish_alone(engine, done, prompts)

    assert run_ranks([*works(engines[:2], stay), leave]) == [None] * 3
    assert ends == [rounds, rounds]


def test_programs_that_differ_cannot_step_together() -> None:
    configs = [config_of("EAGLE"), config_of("EAGLE", 2), config_of("EAGLE")]

    def join(config: Config, peers: Peers, forwards: Peers) -> None:
        with pytest.raises(LockStepError, match="other forwards"):
            LockStep(make_engine(config), peers)

    assert run_ranks([partial(join, config) for config in configs]) == [None] * 3


def test_ranks_draft_as_deep_as_any_of_them_wants() -> None:
    """A rank without requests wants nothing; what each would do alone is of no interest to the others' forwards."""
    config = replace(config_of("EAGLE"), shallower=(1, 2))
    engines = [make_engine(config, shape=wanted) for wanted in (1, 2, 3)]
    met = run_ranks(works(engines))
    assert not [result for result in met if isinstance(result, Exception)]
    assert met[0].calls == met[1].calls == met[2].calls
    for engine in engines:
        assert {shape.num_steps for _, shape in engine.stats.decodes} == {
            1,
            2,
        }  # as long as the second rank has work, and afterwards


def test_programs_of_other_shapes_do_not_meet() -> None:
    engines = [make_engine(replace(config_of("EAGLE"), shallower=steps)) for steps in ((1, 2), (2,))]
    for error in run_ranks([partial(serve, engine, ()) for engine in engines]):
        assert isinstance(error, LockStepError)
