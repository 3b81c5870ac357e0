"""One engine whose program has several shapes: shaped.py RESULT.json JOB.json

Its program runs at each shape, then at those that it chooses itself. JOB has the keys of `Job`; RESULT has, as
one.py's, what was measured, and is written anew after every part.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import one
from one import SHORT, Result, Server, random_prompts

AUTO = "auto"
PAUSE = 1.0
"""Seconds after which a change of the load counts as past."""
CONTEXT = 256
"""Tokens of a prompt of the load."""


@dataclass(frozen=True)
class Job(one.Job):
    """What is asked of an engine beside `points`, at each of its `sides`.

    Attributes:
        settled: tokens of each request before those that are timed, where the program chooses the shape.
        load: clients at a time, one number after the other.
        phase: seconds of each number.

    """

    settled: int = 256
    load: list[int] = field(default_factory=list)
    phase: float = 3.0


class Shaped(Server):
    """A server that tells which shapes its steps had."""

    async def state(self) -> Result:
        """What the program did since the server was started."""
        states = await self.engine.tokenizer_manager.get_internal_state()
        state: Result = json.loads(json.dumps(states[0]["specc"]))
        return state

    def wait(self, work: Any) -> Any:
        """What a coroutine gives."""
        return self.engine.loop.run_until_complete(work)

    async def ask(self, prompt: list[int], tokens: int) -> Any:
        """The answer to a prompt beside others."""
        wanted = self._sampling | {"max_new_tokens": tokens}
        return await self.engine.async_generate(input_ids=prompt, sampling_params=wanted)

    def served(self) -> Counter[str]:
        """Steps by shape."""
        return Counter(self.wait(self.state())["served_by_shape"])


def chosen(server: Shaped, prompts: list[list[int]], job: Job) -> Result:
    """Time of steps whose shapes the program chooses, and how many had which: of a long generation less a short one."""
    server.generate(prompts, job.settled)
    samples = []
    for _ in range(job.repeats):
        steps = [server.served()]
        _, short = server.generate(prompts, SHORT)
        steps.append(server.served())
        _, long = server.generate(prompts, job.tokens)
        steps.append(server.served())
        few, many = (after - before for before, after in pairwise(steps))
        many.subtract(few)
        samples.append({"ms": 1e3 * (long - short), "steps": dict(many)})
    return {
        "samples": samples,
        "ms_per_step": statistics.median(sample["ms"] / sum(sample["steps"].values()) for sample in samples),
    }


async def risen_and_fallen(server: Shaped, job: Job) -> Result:
    """A load of as many clients as `load` says, one phase after the other; each asks again when it was answered."""
    prompts, wanted, over = random_prompts(CONTEXT, max(job.load)), 0, False
    answered, short = 0, 0

    async def client(number: int) -> None:
        nonlocal answered, short
        while not over:
            if number >= wanted:
                await asyncio.sleep(0.01)
                continue
            answer = await server.ask(prompts[number], job.tokens)
            answered += 1
            short += answer["meta_info"]["completion_tokens"] != job.tokens

    clients = [asyncio.ensure_future(client(number)) for number in range(len(prompts))]
    begin, phases = await server.state(), []
    for wanted in job.load:
        await asyncio.sleep(PAUSE)
        before = await server.state()
        await asyncio.sleep(job.phase - PAUSE)
        phases.append({"clients": wanted, "steps": passed(before, await server.state(), "served_by_shape")})
    over = True
    await asyncio.gather(*clients)
    end = await server.state()
    whole = {"steps": passed(begin, end, "served_by_shape"), "left": passed(begin, end, "left")}
    return {"phases": phases, "answered": answered, "short": short} | whole


def passed(before: Result, after: Result, name: str) -> dict[str, int]:
    """What was counted in between."""
    counts: Counter[str] = Counter(after[name])
    counts.subtract(before[name])
    return {key: count for key, count in counts.items() if count}


def run(job: Job, label: str, result: Result, save: Callable[[], None]) -> None:
    """Shapes in turn, then what the program chooses."""
    begin = time.perf_counter()
    server = Shaped(job)
    result["up_s"] = round(time.perf_counter() - begin, 1)
    result |= server.about()
    save()
    for context, batch in job.points:
        prompts = random_prompts(context, batch)
        if fixed := [side for side in job.sides if side != AUTO]:
            turn = server.switch if len(job.sides) > 1 else lambda side: None
            result[f"{context}x{batch}"] = one.rates(server, prompts, replace(job, sides=fixed), turn)
            save()
    if AUTO in job.sides:
        server.switch(AUTO)
        result[AUTO] = {}
        for context, batch in job.points:
            result[AUTO][f"{context}x{batch}"] = chosen(server, random_prompts(context, batch), job)
            save()
    if job.load:
        server.switch(AUTO)
        result["load"] = server.wait(risen_and_fallen(server, job))
    result |= server.about()
    server.engine.shutdown()


if __name__ == "__main__":
    sys.exit(one.main(Path(sys.argv[1]), Job(**json.loads(Path(sys.argv[2]).read_text())), run))
