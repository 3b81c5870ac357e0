"""How a request is sampled: what the engine says of it when it admits it, and where the program finds it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from .batch import check_rows
from .errors import CarryError, SamplingError
from .plan.parameters import HOTTEST, MOST_KEPT, PREFIX, SEEDS
from .plan.plan import Plan
from .semantics.convention import DTYPES
from .semantics.reference_sample import LEAST_TEMPERATURE
from .state.carry import Carry

GRAMMARS = ("json_schema", "regex")
"""The kinds of grammars; a program that was built with `grammar` takes both."""


@dataclass(frozen=True)
class Sampling:
    """How one request is sampled.

    Attributes:
        temperature: from 0 to 2^20; below 1e-6 the request is greedy.
        seed: from 0 to 2^63 - 2, of all randomness of the request: with the same seed and the same logits it has the
            same text. None: one that nobody else has is drawn when the request is admitted.
        top_k: draw from so many most probable tokens, and those as probable as the last of them; 0: from all.
        top_p: draw from the most probable tokens that have this share together, of those that top_k leaves; 1: all.
        min_p: draw from tokens that are at least this times as probable as the most probable one; 0: from all.
        json_schema, regex: what the text must match, a JSON schema or a regular expression as text; at most one of the
            two. The engine's host makes masks of it.

    """

    temperature: float = 1.0
    seed: int | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    json_schema: str | None = None
    regex: str | None = None

    def __post_init__(self) -> None:
        """Raise SamplingError for what is no number or out of range."""
        for name, most in (("temperature", HOTTEST), ("top_p", 1), ("min_p", 1)):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
                raise SamplingError(f"{name} is from 0 to {most}, not {value!r}")
        seed: Any = self.seed
        if seed is not None and not (type(seed) is int and 0 <= seed < SEEDS):
            raise SamplingError(f"seed is an integer from 0 to 2^63 - 2, not {seed!r}")
        count: Any = self.top_k
        if not (type(count) is int and 0 <= count < MOST_KEPT):
            raise SamplingError(f"top_k is an integer from 0 to {MOST_KEPT - 1}, not {count!r}")

        for name, source in self.grammar.items():
            given: Any = source
            if not isinstance(given, str):
                raise SamplingError(f"{name} is text, not {given!r:.80}")
        if len(self.grammar) > 1:
            raise SamplingError(f"a text matches one grammar, not {' and '.join(self.grammar)}")

    @property
    def grammar(self) -> dict[str, str]:
        """The source of the request's grammar by its kind; empty without one."""
        return {name: source for name in GRAMMARS if (source := getattr(self, name)) is not None}

    def seeded(self) -> Sampling:
        """The same with a seed."""
        return replace(self, seed=secrets.randbelow(SEEDS)) if self.seed is None else self


NAMES = tuple(field.name for field in fields(Sampling))
GREEDY = Sampling(temperature=0.0, seed=0)
"""The largest logit, always; nothing else is asked for."""


def carried(carry: Carry) -> Sampling:
    """How the only request of a carry is sampled. CarryError when it says nothing of that, or not of one request."""
    names = [name for name in NAMES if f"{PREFIX}{name}" in carry.fields]
    if len(carry) != 1 or not {"seed", "temperature"} <= {*names}:
        raise CarryError(f"a carry of {len(carry)} requests that does not say how one is sampled")
    found: dict[str, Any] = {name: carry.fields[f"{PREFIX}{name}"][0].item() for name in names}
    return Sampling(**found)


def check_built(plan: Plan, sampling: Sampling) -> None:
    """SamplingError, which names it, for what the program was built without; a greedy request has a grammar at most."""
    asked = [name for name in NAMES if name != "seed" and getattr(sampling, name) != getattr(GREEDY, name)]
    if sampling.temperature < LEAST_TEMPERATURE:
        asked = list(sampling.grammar)
    built = {field.removeprefix(PREFIX) for field in plan.carry} | ({*GRAMMARS} if plan.restricts else set[str]())
    if lacking := [name for name in asked if name not in built]:
        key = "verify" if "temperature" in lacking else "sampling"
        raise SamplingError(f"the program was built without {', '.join(lacking)}, see {key!r} in its configuration")


class SamplingRows:
    """The pool rows of the fields that requests are sampled with, of one binding at all its depths."""

    def __init__(self, plan: Plan, pools: Mapping[str, Tensor], rows: int) -> None:
        """Of `plan`'s fields in `pools`, of which requests use the first `rows` rows; none is set."""
        self._plan, self._rows = plan, rows
        given = [field for field in plan.carry.values() if field.given]
        self._fields = {field.name.removeprefix(PREFIX): (pools[field.name], DTYPES[field.dtype]) for field in given}
        self._fresh = set[int]()

    def set(self, rows: Sequence[int], params: Sequence[Sampling]) -> None:
        """Write params[i] into row rows[i]; BatchError or SamplingError, and no change, if it cannot."""
        checked = check_rows(rows, self._rows)
        if not isinstance(params, Sequence):
            raise SamplingError(f"a {type(params).__name__} is not one Sampling for each of the pool rows")
        if len(params) != len(checked):
            raise SamplingError(f"{len(params)} parameters for {len(checked)} pool rows")
        seeded = [_own(one) for one in params]
        for one in seeded:
            check_built(self._plan, one)
        index = torch.tensor(checked, dtype=torch.int64)
        for name, (pool, dtype) in self._fields.items():
            values = torch.tensor([getattr(one, name) for one in seeded], dtype=dtype)
            pool.index_copy_(0, index.to(pool.device), values.to(pool.device))
        self._fresh.update(checked)

    def check(self, rows: list[int] | Tensor) -> None:
        """SamplingError unless all `rows` were set since their last prefill; of a tensor nothing is checked."""
        if self._fields and isinstance(rows, list) and (missing := sorted({*rows} - self._fresh)):
            raise SamplingError(f"nobody said how pool row {missing[0]} is sampled: call set_sampling before prefill")

    def used(self, rows: list[int] | Tensor) -> None:
        """Take note of a prefill: the next request of a row is another one."""
        if isinstance(rows, list):
            self._fresh.difference_update(rows)


def _own(sampling: Sampling) -> Sampling:
    """The parameters, this package's or another's, with a seed."""
    if not all(hasattr(sampling, name) for name in NAMES):
        raise SamplingError(f"a {type(sampling).__name__} does not say how to sample")
    return Sampling(**{name: getattr(sampling, name) for name in NAMES}).seeded()
