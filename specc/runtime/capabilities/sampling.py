"""How a request is sampled: what the engine says of it when it admits it, and where the program finds it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..batch import check_rows, integers
from ..errors import BatchError, CarryError, SamplingError
from ..plan.parameters import (
    COUNTS,
    HOTTEST,
    LEAST_TEMPERATURE,
    LOGIT_BIAS,
    MOST_BIAS,
    MOST_KEPT,
    MOST_PENALTY,
    MOST_REPETITION,
    PARAMETERS,
    PENALTIES,
    PREFIX,
    SEEDS,
    TOKENWISE,
)
from ..plan.plan import Plan
from ..semantics.carry import carry_count
from ..semantics.convention import DTYPES
from ..state.carry import Carry

BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0, HOTTEST),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (1 / MOST_REPETITION, MOST_REPETITION),
    "frequency_penalty": (-MOST_PENALTY, MOST_PENALTY),
    "presence_penalty": (-MOST_PENALTY, MOST_PENALTY),
}
"""The least and the most that parameters which are no integers may be."""

Text: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""The tokens of a request: its prompt, and what has been emitted."""
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
        repetition_penalty: logits of tokens of prompt or output are divided by it where they are above 0, else
            multiplied, from 2^-10 to 2^10; 1: none.
        frequency_penalty: a token's logit is less by so much for every time that it is in the output, from -2 to 2.
        presence_penalty: a token's logit is less by so much if it is in the output, from -2 to 2.
        logit_bias: by token what is added to its logit, from -100 to 100; kept as pairs in ascending order. It and the
            penalties hold for greedy requests as well.
        json_schema, regex: what the text must match, a JSON schema or a regular expression as text; at most one of the
            two. The engine's host makes masks of it.

    """

    temperature: float = 1.0
    seed: int | None = None
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    json_schema: str | None = None
    regex: str | None = None

    def __post_init__(self) -> None:
        """Raise SamplingError for what is no number or out of range."""
        for name, (least, most) in BOUNDS.items():
            if not _within(value := getattr(self, name), least, most):
                raise SamplingError(f"{name} is from {least} to {most}, not {value!r}")
        seed: Any = self.seed
        if seed is not None and not (type(seed) is int and 0 <= seed < SEEDS):
            raise SamplingError(f"seed is an integer from 0 to 2^63 - 2, not {seed!r}")
        count: Any = self.top_k
        if not (type(count) is int and 0 <= count < MOST_KEPT):
            raise SamplingError(f"top_k is an integer from 0 to {MOST_KEPT - 1}, not {count!r}")
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        for name, source in self.grammar.items():
            given: Any = source
            if not isinstance(given, str):
                raise SamplingError(f"{name} is text, not {given!r:.80}")
        if len(self.grammar) > 1:
            raise SamplingError(f"a text matches one grammar, not {' and '.join(self.grammar)}")

    @property
    def plain(self) -> bool:
        """Whether it is greedy, and the target's logits stay as they are."""
        changes = (*PENALTIES, LOGIT_BIAS, *GRAMMARS)
        return self.temperature < LEAST_TEMPERATURE and all(getattr(self, n) == getattr(GREEDY, n) for n in changes)

    @property
    def grammar(self) -> dict[str, str]:
        """The source of the request's grammar by its kind; empty without one."""
        return {name: source for name in GRAMMARS if (source := getattr(self, name)) is not None}

    def seeded(self) -> Sampling:
        """The same with a seed."""
        return replace(self, seed=secrets.randbelow(SEEDS)) if self.seed is None else self


def _within(value: object, least: float, most: float) -> bool:
    """Whether something is a number from `least` to `most`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _biases(given: Any) -> tuple[tuple[int, float], ...]:
    """The biases of some tokens in ascending order of these, those of 0 left out. SamplingError for others."""
    try:
        biases = dict(given)
    except (TypeError, ValueError):
        raise SamplingError(f"logit_bias has a number for each of some tokens, and is {given!r}") from None
    for token, bias in biases.items():
        if type(token) is not int or token < 0 or not _within(bias, -MOST_BIAS, MOST_BIAS):
            raise SamplingError(f"logit_bias is from -{MOST_BIAS} to {MOST_BIAS} of a token, not {token!r}: {bias!r}")
    return tuple(sorted((token, bias) for token, bias in biases.items() if bias))


NAMES = tuple(field.name for field in fields(Sampling))
GREEDY = Sampling(temperature=0.0, seed=0)
"""The largest logit, always; nothing else is asked for."""


def carried(carry: Carry) -> Sampling:
    """How the only request of a carry is sampled. CarryError when it says nothing of that, or not of one request."""
    names = [name for name in NAMES if f"{PREFIX}{name}" in carry.fields]
    if len(carry) != 1 or not {"seed", "temperature"} <= {*names}:
        raise CarryError(f"a carry of {len(carry)} requests that does not say how one is sampled")
    rows = {name: carry.fields[f"{PREFIX}{name}"][0] for name in names}
    values: dict[str, Any] = {name: row.item() for name, row in rows.items() if name != LOGIT_BIAS}
    if (row := rows.get(LOGIT_BIAS)) is not None:
        values[LOGIT_BIAS] = [(token, row[token].item()) for token in row.nonzero()[:, 0].tolist()]
    return Sampling(**values)


def check_built(plan: Plan, sampling: Sampling) -> None:
    """SamplingError, which names it, for what the program was built without, or for a token that it does not know.

    A greedy request asks for nothing but penalties, biases and a grammar.
    """
    names = (*PENALTIES, LOGIT_BIAS, *GRAMMARS) if sampling.temperature < LEAST_TEMPERATURE else NAMES
    asked = [name for name in names if name != "seed" and getattr(sampling, name) != getattr(GREEDY, name)]
    built = {field.removeprefix(PREFIX) for field in plan.carry} | ({*GRAMMARS} if plan.restricts else set[str]())
    if lacking := [name for name in asked if name not in built]:
        key = "verify" if "temperature" in lacking else "sampling"
        raise SamplingError(f"the program was built without {', '.join(lacking)}, see {key!r} in its configuration")
    _check_tokens(plan, "logit_bias", list(dict(sampling.logit_bias)))


def _check_tokens(plan: Plan, what: str, tokens: Sequence[int]) -> None:
    """SamplingError when one is no token of the target's."""
    if wrong := [token for token in tokens if not 0 <= token < plan.size("V")]:
        raise SamplingError(f"{what} has token {wrong[0]}, and the target has {plan.size('V')} tokens")


class SamplingRows:
    """The pool rows of the fields that requests are sampled with, of one binding at all its shapes."""

    def __init__(self, plan: Plan, pools: Mapping[str, Tensor], rows: int) -> None:
        """Find `plan`'s fields in `pools`, of which requests use the first `rows` rows; none is set."""
        self._plan, self._rows = plan, rows
        given = [field for field in plan.carry.values() if field.given]
        tables = {field.name.removeprefix(PREFIX): (pools[field.name], DTYPES[field.dtype]) for field in given}
        self._fields = {name: field for name, field in tables.items() if name in PARAMETERS}
        self._tokenwise = {name: pool for name, (pool, _) in tables.items() if name in TOKENWISE}
        self._fresh = set[int]()

    def set(self, rows: Sequence[int], params: Sequence[Sampling], texts: Sequence[Text] | None = None) -> None:
        """Write params[i] into row rows[i]; BatchError or SamplingError, and no change, if it cannot.

        texts[i]: what the request has, where its penalties or others' ask for it, see `Step.set_sampling`.
        """
        checked = check_rows(rows, self._rows)
        if not isinstance(params, Sequence):
            raise SamplingError(f"a {type(params).__name__} is not one Sampling for each of the pool rows")
        if len(params) != len(checked):
            raise SamplingError(f"{len(params)} parameters for {len(checked)} pool rows")
        seeded = [_own(param) for param in params]
        for param in seeded:
            check_built(self._plan, param)
        counted = self._counted(seeded, texts)
        index = torch.tensor(checked, dtype=torch.int64)
        for name, (pool, dtype) in self._fields.items():
            values = torch.tensor([getattr(param, name) for param in seeded], dtype=dtype)
            sent = (part.to(pool.device, non_blocking=True) for part in (index, values))  # nobody waits for the device
            pool.index_copy_(0, *sent)
        for row, param, text in zip(checked, seeded, counted, strict=True):
            self._write_biases(row, param)
            self._write_counts(row, text)
        self._fresh.update(checked)

    def _counted(self, params: Sequence[Sampling], texts: Sequence[Text] | None) -> list[Text]:
        """The texts that are counted, one for each request: of those without penalties none."""
        penalized = [any(getattr(param, name) != getattr(GREEDY, name) for name in PENALTIES) for param in params]
        if not any(penalized):
            return [((), ())] * len(params)
        try:
            pairs = [(prompt, output) for (prompt, output), _ in zip(texts or (), params, strict=True)]
        except (TypeError, ValueError):
            raise SamplingError("penalties need the text of every request, its prompt and its output so far") from None
        counted = [(_listed(prompt), _listed(output)) for prompt, output in pairs]
        for prompt, output in counted:
            _check_tokens(self._plan, "a text", [*prompt, *output])
        return [text if on else ((), ()) for text, on in zip(counted, penalized, strict=True)]

    def _write_biases(self, row: int, sampling: Sampling) -> None:
        """What is added to the logits of all tokens."""
        if (pool := self._tokenwise.get(LOGIT_BIAS)) is not None:
            pool[row].zero_()
            biases = dict(sampling.logit_bias)
            tokens = torch.tensor(list(biases), dtype=torch.int64)
            values = torch.tensor(list(biases.values()), dtype=pool.dtype)
            pool[row, tokens.to(pool.device)] = values.to(pool.device)

    def _write_counts(self, row: int, text: Text) -> None:
        """Bit 0 of tokens of the prompt, and what is above it for every one that was emitted."""
        if (pool := self._tokenwise.get(COUNTS)) is not None:
            prompt, output = (torch.tensor(tokens, dtype=torch.int64, device=pool.device) for tokens in text)
            pool[row].zero_().index_fill_(0, prompt, 1)
            pool[row].index_add_(0, output, torch.full_like(output, 2, dtype=pool.dtype))

    def count(self, rows: Tensor, tokens: Tensor, lengths: Tensor | None) -> None:
        """Count tokens as output of the requests in rows, see `Step.count`."""
        if (pool := self._tokenwise.get(COUNTS)) is not None:
            counted = (rows, tokens) if lengths is None else (rows, tokens, lengths)
            pool.index_copy_(0, rows, carry_count(counted, pool))

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


def _listed(tokens: Sequence[int]) -> list[int]:
    """Tokens of a text. SamplingError unless they are integers."""
    try:
        return integers(tokens, "tokens of a text")
    except BatchError as error:
        raise SamplingError(str(error)) from error
