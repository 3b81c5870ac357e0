"""How vLLM's requests are sampled, in a program's terms."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from .._plugin import HOTTEST, SEEDS
from .penalties import PENALTIES, Counts, unserved
from .tables import AHEAD

COUNTS = "sampling_counts"
"""What a program with penalties counts by itself: a field of its carry, no parameter."""
PROCESSED = "penalties, biases or other processors of logits"


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


class Admission:
    """Tells a program how the requests are sampled whose rows of vLLM's tables it meets.

    vLLM writes what a request asks for, and a seed, into arrays of the host's when the request gets its row. The
    program is told when it serves a row in which something changed: once for every request.

    Attributes:
        parameters: what requests may be sampled with, `temperature` among them; nothing where the program is greedy.
        greedily: whether the program is told of every request that it is greedy, with the penalties that it asks for.

    """

    def __init__(self, package: Any, step: Any, processors: Processors) -> None:
        """Nobody was told of. `step` is the package's program, bound; `processors` are those that are known."""
        self._package, self._step, self._processors = package, step, processors
        given = [field.name for field in package.plan.carry.values() if field.given]
        self.parameters = [name.removeprefix("sampling_") for name in given if name != COUNTS]
        self._none = {"top_k": package.plan.size("V"), "top_p": 1.0, "min_p": 0.0}
        self._counts = Counts(step.pools[COUNTS]) if COUNTS in given else None
        self._told: dict[str, Any] = {}
        self.greedily = False

    def refuses(self, sampler: Any, rows: Any) -> str | None:
        """Why the program does not sample for requests in these rows, an array of numpy's; None if it does."""
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

    def say(self, sampler: Any, rows: Any) -> None:
        """Write into the program's rows what has changed in these of vLLM's."""
        if not self.parameters:
            return
        now = {name: getattr(sampler.sampling_states, name).np for name in ("temperature", "seeds", *self._none)}
        if self._counts is not None:
            now |= {name: getattr(sampler.penalties_state, name).np for name in PENALTIES}
        if not self._told:
            self._told = {name: array.copy() for name, array in now.items()}
            self._told["temperature"].fill(float("nan"))
        changed = (self._told[name][rows] != array[rows] for name, array in now.items())
        new = rows[functools.reduce(operator.or_, changed)]
        if len(new):
            asked = [self._asked({name: array[row].item() for name, array in now.items()}) for row in new.tolist()]
            self._step.set_sampling((new + AHEAD).tolist(), asked, [((), ())] * len(new))
            for name, array in now.items():
                self._told[name][new] = array[new]
        if self._counts is not None:
            self._counts.bring(sampler.penalties_state, rows)

    def forget(self) -> None:
        """Tell the program of every request anew."""
        self._told = {}

    def left(self, rows: Any) -> None:
        """Take note of a step that vLLM runs for requests in these rows."""
        if self._counts is not None:
            self._counts.left(rows)

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

    def _asked(self, row: dict[str, Any]) -> Any:
        """The parameters in a row, as the program has them."""
        heat = 0.0 if self.greedily else min(row["temperature"], HOTTEST)
        asked = {name: row[name] for name, none in self._none.items() if heat > 0 and row[name] != none}
        asked |= {name: row[name] for name in PENALTIES if name in row}
        return self._package.Sampling(temperature=heat, seed=row["seeds"] % SEEDS, **asked)
