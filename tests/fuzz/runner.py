"""Running cases: one, alone; or all generators in parallel processes, for a time or up to a count."""

from __future__ import annotations

import multiprocessing
import queue
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .generators import GENERATORS
from .outcome import Failure

CASE_SECONDS = 30
"""Longest that one case may take."""
STARVED = 4
"""How many times as long where other processes leave it less than half of a processor."""
GRACE_SECONDS = 30
"""How much longer until its process is ended from outside."""
CASE_BYTES = 1 << 29
"""Most memory by which one case may make a process grow."""
SLICE_SECONDS = 2.0
SHOWN = 40
"""Most failures that are shown of a generator."""


def outcome_of(name: str, seed: str, number: int) -> str:
    """Run one case and say its outcome; raises what is a failure."""
    ignored: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, ignored.append
    before = _peak()
    try:
        with warnings.catch_warnings(), _limited():
            warnings.simplefilter("error")
            outcome = GENERATORS[name].case(seed, random.Random(f"{name}/{seed}/{number}"))
    finally:
        sys.unraisablehook = hook
    if ignored:
        raise Failure(f"an exception was ignored: {ignored[0]}")
    if _peak() - before > CASE_BYTES:
        raise Failure(f"the process grew by {(_peak() - before) >> 20} MiB")
    return outcome


def reproducer(name: str, seed: str, number: int) -> str:
    """The command that runs one case alone."""
    return f"python -m tests.fuzz {name} --seed {seed} --case {number}"


def _peak() -> int:
    """Most memory that this process has taken so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@contextmanager
def _limited() -> Iterator[None]:
    """Failure when what is inside takes too long; a timer that runs already goes on afterwards.

    A process that others keep from running gets more time.
    """

    def late(*_: object) -> None:
        waited = time.monotonic() - start
        if time.process_time() - worked < waited / 2 and waited < STARVED * CASE_SECONDS:
            signal.setitimer(signal.ITIMER_REAL, CASE_SECONDS)
            return
        failures.append(Failure(f"it took longer than {waited:.0f} seconds"))
        raise failures[0]

    failures: list[Failure] = []
    start, worked, handler = time.monotonic(), time.process_time(), signal.signal(signal.SIGALRM, late)
    left, every = signal.setitimer(signal.ITIMER_REAL, CASE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - start), 0.001), every)
    if failures:  # what was inside took it for an error of a file
        raise failures[0]


# --- many -------------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of a generator's cases."""

    cases: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, tally: Tally) -> None:
        """Count another tally in."""
        self.cases += tally.cases
        self.seconds += tally.seconds
        self.outcomes += tally.outcomes
        self.failures |= tally.failures


def attempt(name: str, seed: str, number: int, tally: Tally) -> None:
    """Run one case and count what became of it."""
    start = time.perf_counter()
    try:
        tally.outcomes[outcome_of(name, seed, number)] += 1
    except Exception as error:
        tally.outcomes["FAILURE"] += 1
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:300]}  [{where.filename.rsplit('/', 1)[-1]}:{where.lineno}]"
        tally.failures[number] = text
    tally.cases += 1
    tally.seconds += time.perf_counter() - start


def work(
    index: int, jobs: int, names: list[str], seed: str, until: float, count: int, state: Any, results: Any
) -> None:
    """A process: slices of every generator in turn, of the cases ``index``, ``index + jobs``, ...

    ``state`` is shared with the parent: the case under way (generator, number, when), then the next number of each.
    """
    import torch

    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the parent, and reach its whole group
        signal.signal(number, signal.SIG_IGN)
    left = set(range(len(names)))
    while left and time.time() < until:
        for place in sorted(left):
            name = names[place]
            tally, start = Tally(), time.time()
            while time.time() - start < SLICE_SECONDS * GENERATORS[name].share and time.time() < until:
                number = state[3 + place]
                if count and number * GENERATORS[name].inputs >= count:
                    left.discard(place)
                    break
                state[0], state[1], state[2] = place, number, int(time.time())
                state[3 + place] = number + jobs
                attempt(name, seed, number, tally)
            state[2] = 0
            results.put((name, tally))
    results.put((None, index))


def run(names: list[str], seed: str, jobs: int, seconds: float, count: int, first: int = 0) -> dict[str, Tally]:
    """All generators in parallel, from a case on; with a count as long as that takes.

    A process that hangs or dies is a failure.

    A signal to end, SIGINT or SIGTERM, ends all of them: what was counted so far is what is known.
    """
    context = multiprocessing.get_context("spawn")
    tallies = {name: Tally() for name in names}
    until = time.time() + seconds
    results = context.Queue()
    states = [context.Array("q", 3 + len(names), lock=False) for _ in range(jobs)]
    for index, state in enumerate(states):
        state[3:] = [first + index] * len(names)

    def start(index: int) -> Any:
        arguments = index, jobs, names, seed, until, count, states[index], results
        process = context.Process(target=work, args=arguments, daemon=True)
        process.start()
        return process

    workers = {index: start(index) for index in range(jobs)}
    shown, ended = time.time(), False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    handlers = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    while workers and not ended:
        try:
            name, tally = results.get(timeout=1.0)
        except queue.Empty:
            name, tally = "", None
        if name is None:
            workers.pop(tally).join()
        elif name:
            tallies[name].add(tally)
        for index, process in list(workers.items()):
            place, number, since = states[index][:3]
            hangs = since and time.time() - since > STARVED * CASE_SECONDS + GRACE_SECONDS
            if hangs or process.exitcode not in (None, 0):
                process.kill()
                process.join()
                what = "hangs" if hangs else f"ends its process with {process.exitcode}"
                tallies[names[place]].failures[number] = what
                tallies[names[place]].outcomes["FAILURE"] += 1
                states[index][2] = 0
                workers[index] = start(index)
        if time.time() - shown > 30:
            shown = time.time()
            print(", ".join(f"{name} {tally.cases}" for name, tally in tallies.items()), flush=True)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for process in workers.values():
        process.kill()
    return tallies


def report(tallies: dict[str, Tally], seed: str, jobs: int) -> int:
    """Print rates, outcomes, and reproducers last; 1 if anything failed, else 0."""
    for name, tally in tallies.items():
        inputs = tally.cases * GENERATORS[name].inputs
        rate = inputs / tally.seconds if tally.seconds else 0.0
        print(f"\n{name}: {inputs} inputs in {tally.cases} cases, {rate:.0f} a second and core ({jobs} jobs)")
        for outcome, cases in tally.outcomes.most_common():
            print(f"  {cases:8d}  {outcome}")
    failed = 0
    for name, tally in tallies.items():
        kinds = Counter(tally.failures.values())
        for number, text in sorted(tally.failures.items())[:SHOWN]:
            print(f"\n{reproducer(name, seed, number)}\n  {text}")
        if len(tally.failures) > SHOWN:
            print(f"\n{name}: {len(tally.failures)} failures of {len(kinds)} kinds, the first {SHOWN} are shown")
        failed += len(tally.failures)
    print(f"\nseed {seed}: {failed} failures" if failed else f"\nseed {seed}: no third outcome")
    return 1 if failed else 0
