"""How vLLM's requests are sampled, in a program's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from ..._plugin import HOTTEST, SEEDS
from ..tables import AHEAD
from .penalties import PENALTIES, Counts, unserved

COUNTS = "sampling_counts"
"""What a program with penalties counts by itself: a field of its carry, no parameter."""
PROCESSED = "penalties, biases or other processors of logits"
NEW, ALONE, SHARED, REFUSED = range(-1, 3)
"""What is known of the request in a row: nothing yet, that nobody else is to see its scores, that somebody is, and from
`REFUSED` on why it is vLLM's."""


class Processor(NamedTuple):
    """What one of vLLM's processors of logits does, in the rows of all requests.

    Attributes:
        changes: the rows in which it changes logits as no program does.
        masks: those in which it does nothing but forbid tokens, which vLLM's own kernel does for a program, too.

    """

    changes: Callable[[Any], Any]
    masks: Callable[[Any], Any]


Processors: TypeAlias = Mapping[type, Processor]
"""By their classes."""
Refusal: TypeAlias = Callable[[Any, Any], str | None]
"""Why the program does not serve requests in rows, by vLLM's sampler; None if it does."""


class Admission:
    """Tells a program how the requests are sampled whose rows of vLLM's tables it meets.

    vLLM writes what a request asks for, and a seed, into arrays of the host's when the request gets its row. They are
    looked at, and the program is told of them, when the row is met for the first time behind that.

    Attributes:
        parameters: what requests may be sampled with, `temperature` among them; nothing where the program is greedy.
        greedily: whether the program is told of every request that it is greedy, with the penalties that it asks for.

    """

    def __init__(self, package: Any, step: Any, processors: Processors, scores: Refusal, rows: int) -> None:
        """Nobody was told of, in so many rows. `step` is the package's program, bound; `processors` are known ones.

        `scores` says what the request in a row is to be told of scores that do not exist here, if it is.
        """
        self._package, self._step, self._processors, self._scores = package, step, processors, scores
        given = [field.name for field in package.plan.carry.values() if field.given]
        self.parameters = [name.removeprefix("sampling_") for name in given if name != COUNTS]
        self._none = {"top_k": package.plan.size("V"), "top_p": 1.0, "min_p": 0.0}
        self._counts = Counts(step.pools[COUNTS]) if COUNTS in given else None
        self._kinds, self._reasons = torch.full((rows,), NEW, dtype=torch.int16).numpy(), list[str]()
        self.greedily = False

    def join(self, rows: Sequence[int]) -> None:
        """Take note of rows that have other requests now."""
        self._kinds[rows] = NEW

    def forget(self) -> None:
        """Look at every request anew."""
        self._kinds.fill(NEW)

    def refuses(self, sampler: Any, rows: Any) -> str | None:
        """Why the program does not sample for requests in these rows, an array of numpy's; None if it does."""
        if not (kinds := self._kinds[rows]).any():
            return None
        self._meet(sampler, rows[kinds == NEW])
        worst = self._kinds[rows].max()
        return self._reasons[worst - REFUSED] if worst >= REFUSED else None

    def shares(self, rows: Any) -> bool:
        """Whether vLLM's kernels are to see or to change scores of requests in these rows, which were not refused."""
        return bool(self._kinds[rows].any())

    def masks(self, sampler: Any, rows: Any) -> list[Any]:
        """The processors of logits that forbid tokens to requests in these rows."""
        if not sampler.needs_logits_processing[rows].any():
            return []
        known = ((processor, self._processors.get(type(processor))) for processor in sampler.logits_processors)
        return [processor for processor, what in known if what is not None and what.masks(processor)[rows].any()]

    def bring(self, sampler: Any, rows: Any) -> None:
        """Before a step of the program for these rows: let it have what vLLM has counted by itself."""
        if self._counts is not None:
            self._counts.bring(sampler.penalties_state, rows)

    def left(self, rows: Any) -> None:
        """Take note of a step that vLLM runs for requests in these rows."""
        if self._counts is not None:
            self._counts.left(rows)

    def _meet(self, sampler: Any, rows: Any) -> None:
        """Find out what the requests in rows are, and tell the program how those are sampled that it serves."""
        for place, row in enumerate(rows):
            self._kinds[row] = self._kind(sampler, rows[place : place + 1])
        served = rows[self._kinds[rows] < REFUSED].tolist()
        if served and self.parameters:
            asked = [self._asked(sampler, row) for row in served]
            self._step.set_sampling([row + AHEAD for row in served], asked, [((), ())] * len(served))

    def _kind(self, sampler: Any, row: Any) -> int:
        """What the request in a row, an array of one, is: `ALONE`, `SHARED`, or by its reason."""
        reason = self._refuses(sampler, row) or self._scores(sampler, row)
        if reason is None:
            return SHARED if sampler.get_logprobs_dims(row) is not None or self.masks(sampler, row) else ALONE
        if reason not in self._reasons:
            self._reasons.append(reason)
        return REFUSED + self._reasons.index(reason)

    def _refuses(self, sampler: Any, rows: Any) -> str | None:
        """Why the program does not sample for the request in a row, the only one of these."""
        states = sampler.sampling_states
        drawn = states.temperature.np[rows] > 0
        if drawn.any() and not self.parameters:
            return "sampling"
        if any(self._processed(sampler, rows, drawn)):
            return PROCESSED
        if self._counts is not None and (reason := unserved(sampler.penalties_state, rows)):
            return reason
        if (states.seeds_set[rows] & drawn).any():
            return "a seed"  # its text is that of vLLM's noise, whoever runs which step
        asked = {name: drawn & (getattr(states, name).np[rows] != none) for name, none in self._none.items()}
        return next((name for name, by in asked.items() if name not in self.parameters and by.any()), None)

    def _processed(self, sampler: Any, rows: Any, drawn: Any) -> Iterator[bool]:
        """Whether more than what the program does itself changes the logits of requests in these rows.

        `drawn`: whose temperature and filters change them as well.
        """
        needs = sampler.needs_logits_processing[rows]
        if needs.any():  # all the same to vLLM: what filters, and what changes logits before
            served = drawn
            for processor in sampler.logits_processors:
                if self._counts is not None and processor is sampler.penalties_state:
                    served = served | processor.use_penalty[rows]
                    continue
                known = self._processors.get(type(processor))
                yield known is None or known.changes(processor)[rows].any()  # of another one nobody knows
                if known is not None:
                    served = served | known.masks(processor)[rows]
            yield (needs & ~served).any()
            budget = sampler.thinking_budget_state
            yield budget.enabled and budget.use_thinking_budget[rows].any()

    def _asked(self, sampler: Any, row: int) -> Any:
        """The parameters in a row, as the program has them."""
        states = sampler.sampling_states
        heat = 0.0 if self.greedily else min(states.temperature.np[row].item(), HOTTEST)
        cuts = {name: getattr(states, name).np[row].item() for name in self._none}
        asked = {name: value for name, value in cuts.items() if heat > 0 and value != self._none[name]}
        if self._counts is not None:
            asked |= {name: getattr(sampler.penalties_state, name).np[row].item() for name in PENALTIES}
        return self._package.Sampling(temperature=heat, seed=states.seeds.np[row].item() % SEEDS, **asked)
