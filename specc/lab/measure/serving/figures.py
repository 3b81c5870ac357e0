"""Records of a server with a program and without it: table, JSON and picture are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.serving.client import TimedText
from specc.lab.measure.serving.endpoint import ServerCounts

SWITCHED, BESIDE, APART = "switched", "beside", "apart"
"""One server whose program is switched, two that run, or one that is started with the program and without it."""


@dataclass(frozen=True)
class Turn:
    """One side for the length of some requests, asked by ``clients`` at a time, in ``seconds``."""

    clients: int
    seconds: float
    answers: tuple[TimedText, ...]
    counts: ServerCounts

    @property
    def tokens_per_s(self) -> float:
        """All tokens of all answers over the time of the turn."""
        return sum(answer.tokens for answer in self.answers) / self.seconds


@dataclass(frozen=True)
class SideFigures:
    """One side in all turns of a batch.

    Attributes:
        tokens_per_s: of all requests together, the median of the turns.
        per_token_ms: milliseconds a token behind a request's first, the median of the requests.
        per_token_ms_p90: what nine requests in ten do not exceed.
        first_token_ms: milliseconds to a request's first text, the median.
        accept_length: tokens a verification, those behind a text's end included; None where the server does not tell.
        by_position: which part of the verifications accepted the draft of each position; empty where not told.
        program_steps: which part of the decode steps the program ran, None where the server does not tell.
        tokens: of all answers of all turns.

    """

    tokens_per_s: float
    per_token_ms: float | None
    per_token_ms_p90: float | None
    first_token_ms: float
    accept_length: float | None
    by_position: tuple[float, ...]
    program_steps: float | None
    tokens: int

    @staticmethod
    def of(turns: Sequence[Turn]) -> SideFigures:
        """From at least one turn."""
        answers = [answer for turn in turns for answer in turn.answers]
        counts = ServerCounts()
        for turn in turns:
            counts = counts.plus(turn.counts)
        each = [1000 * answer.per_token_s for answer in answers if answer.per_token_s is not None]
        steps = None if counts.served is None or counts.left is None else counts.served + counts.left
        return SideFigures(
            median(turn.tokens_per_s for turn in turns),
            median(each) if each else None,
            quantiles(each, n=10, method="inclusive")[-1] if len(each) > 1 else None,
            median(1000 * answer.first_s for answer in answers),
            counts.accept_length,
            counts.by_position,
            (counts.served or 0) / steps if steps else None,
            sum(answer.tokens for answer in answers),
        )


@dataclass(frozen=True)
class BatchFigures:
    """Both sides with so many clients at a time. ``ratio`` is the program's tokens/s over the other side's, by turn."""

    clients: int
    requests: int
    program: SideFigures
    other: SideFigures
    ratio: Ratio

    @staticmethod
    def of(clients: int, requests: int, program: Sequence[Turn], other: Sequence[Turn]) -> BatchFigures:
        """From the turns of both sides, as many of each."""
        rates = ([turn.tokens_per_s for turn in side] for side in (program, other))
        return BatchFigures(clients, requests, SideFigures.of(program), SideFigures.of(other), Ratio.of(*rates))


@dataclass(frozen=True)
class Texts:
    """Greedy texts of both sides: how many were compared, and how many part at a near tie of two tokens."""

    compared: int
    near_ties: int

    @property
    def equal(self) -> int:
        """How many are the same to the last character."""
        return self.compared - self.near_ties


@dataclass(frozen=True)
class Served:
    """A server with a program and without it.

    Attributes:
        program: the program's name, None where the server does not tell.
        model: as the server names it.
        how: what the two sides are, `SWITCHED`, `BESIDE` or `APART`.
        addresses: of the side with the program and of the other one; the same where one server runs at a time.
        engines: as the two servers name themselves.
        prompts: what was asked.
        prompt_tokens: the median of the prompts' tokens.
        turns: of each side, in each batch.
        texts: what was compared before anything was timed.
        batches: figures by number of clients.

    """

    program: str | None
    model: str
    how: str
    addresses: tuple[str, str]
    engines: tuple[str, str]
    prompts: str
    prompt_tokens: float
    turns: int
    texts: Texts
    batches: tuple[BatchFigures, ...]

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"texts": asdict(self.texts) | {"equal": self.texts.equal}}
