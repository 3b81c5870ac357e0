"""Two engines in one process, one that prefills in a thread and one that decodes, with a channel between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fakes.channel import LocalChannel

from specc.lab.engine.disaggregation import Channel, DecodeWorker, Outcome, PrefillWorker
from specc.lab.engine.disaggregation.messages import Patience
from specc.lab.engine.disaggregation.prefill import FIRST
from specc.lab.engine.engine import Engine
from specc.lab.engine.serving.handover import Handover
from specc.lab.engine.serving.requests.request import Completion, Sampling, StopConditions

from .tree_engine import Config, base_texts, expected, make_engine

CHAIN = Config("EAGLE", topk=1, steps=3, nodes=4, page_size=4)
TREE = Config("STANDALONE", topk=2, steps=3, nodes=6, page_size=4)
QUICK = Patience(idle=20, moving=20)
NEW = 20
PROMPTS = {f"{length} tokens": base_texts()[0][:length] for length in (1, 4, 5, 12, 17, 33)}


@contextmanager
def prefilling(engine: Engine, channel: Channel, work: Callable[[PrefillWorker], None]) -> Iterator[list[Any]]:
    """Let a worker do something in a thread of its own; what it raised."""
    raised: list[Any] = []

    def run() -> None:
        try:
            work(PrefillWorker(engine, channel, QUICK))
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield raised
    thread.join(30)
    assert not thread.is_alive()


def send_all(worker: PrefillWorker, prompts: dict[str, tuple[int, ...]] = PROMPTS, new: int = NEW) -> None:
    """Prefill and send prompts, then end."""
    for name, prompt in prompts.items():
        worker.add(name, prompt, StopConditions(new))
    gone: dict[str, Any] = {}
    while worker.has_work:
        gone |= worker.step()
    assert gone == dict.fromkeys(prompts)
    worker.close()


def outcomes_of(
    engine: Engine,
    work: Callable[[PrefillWorker], None],
    config: Config,
    channel: Callable[[Channel], Channel] = lambda x: x,
) -> dict[str, Outcome]:
    """What becomes of the requests that a worker sends over a channel; neither engine keeps anything."""
    here, there = LocalChannel.pair()
    peer = make_engine(config)
    with prefilling(peer, channel(there), work) as raised:
        worker = DecodeWorker(engine, QUICK)
        worker.connect(here)
        outcomes = {outcome.request: outcome for outcome in worker.serve()}
    assert raised == []
    for each in (engine, peer):
        expect_empty(each)
    return outcomes


def completions_of(config: Config, requests: Iterable[tuple[tuple[int, ...], Sampling]], new: int) -> list[Completion]:
    """What requests say that are prefilled elsewhere, all at once."""
    jobs = {f"{number}": request for number, request in enumerate(requests)}

    def work(worker: PrefillWorker) -> None:
        for name, (prompt, sampling) in jobs.items():
            worker.add(name, prompt, StopConditions(new), sampling=sampling)
        while worker.has_work:
            worker.step()
        worker.close()

    outcomes = outcomes_of(make_engine(config), work, config)
    completions = [outcomes[name].completion for name in jobs]
    assert None not in completions, [outcomes[name].error for name in jobs]
    return [completion for completion in completions if completion is not None]


def expect_empty(engine: Engine) -> None:
    """Nobody holds a row or a page."""
    assert not engine.has_work
    engine.prefixes.clear()
    assert engine.allocator.free_pages == engine.allocator.capacity
    assert engine.table.free_rows == engine.plan.size("P") - 1
    assert not engine.table.tensor.any()


def expect_text(outcome: Outcome, new: int = NEW) -> None:
    """The text of a request is that of the target alone."""
    assert outcome.error is None
    assert outcome.completion
    assert outcome.completion.token_ids == expected(PROMPTS[outcome.request])[:new]


def handed_over(config: Config, prompts: Iterable[tuple[int, ...]]) -> list[tuple[tuple[int, ...], Handover]]:
    """Prompts with what another engine prefilled of them."""
    prefiller = make_engine(config)
    for prompt in prompts:
        prefiller.add(prompt, FIRST)
    return [(request.prompt_ids, prefiller.hand_over(request)) for request in prefiller.prefill()]
