"""One request: its tokens, when it stops, and what is handed back at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from specc.lab.engine.errors import GrammarError, StepFailedError
from specc.lab.engine.serving.handover import Handover
from specc.lab.engine.serving.prompts import PrefillPrompt
from specc.lab.engine.serving.requests.grammar import Matcher
from specc.lab.engine.serving.requests.text import StopText
from specc.runtime import Score as Score
from specc.runtime.capabilities.sampling import GREEDY
from specc.runtime.capabilities.sampling import Sampling as Sampling
from specc.runtime.errors import SamplingError as SamplingError

LENGTH, EOS, STOP, ABORT, ERROR = "length", "eos", "stop", "abort", "error"
"""Why a request finished: max_new_tokens reached, an EOS token, a stop string, the caller gave it up, or it failed."""

SUSPECT, HOPELESS = 2, 5
"""How often in a row a request fails until it runs alone, and until, if it fails then too, it is ended."""


@dataclass(frozen=True)
class StopConditions:
    """When a request ends, whichever comes first.

    The EOS token, and the token that completes a stop string, are the last tokens kept. The text ends before
    the stop string.
    """

    max_new_tokens: int = 64
    eos_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject what can never be met; raises ValueError."""
        if self.max_new_tokens < 1:
            raise ValueError("max_new_tokens must be at least 1")
        if "" in self.stop:
            raise ValueError("a stop string must not be empty")


FIRST = StopConditions(max_new_tokens=2)
"""What a request runs under that is handed over after its prefill: its first token never ends it."""


@dataclass(frozen=True)
class TokenEvent:
    """One emitted token, as streamed. `text` is what it adds to the text, often "" while a word is open.

    `score`: what the program says of it, if it was built for that.
    """

    request_id: int
    token: int
    text: str
    finish_reason: str | None
    score: Score | None = None


@dataclass(frozen=True)
class Completion:
    """The result of a request. `text` is None without tokenizer; `accept_lens`: emitted tokens of each decode step.

    `scores`: what the program says of each emitted token, if it was built for that. `error`: what ended it, if the
    finish reason is ERROR; it has what was emitted before.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: str
    accept_lens: tuple[int, ...] = ()
    retractions: int = 0
    error: Exception | None = None
    scores: tuple[Score, ...] = ()


@dataclass(eq=False)
class Request:
    """A request inside the engine.

    `sampling`: with its seed. `ids`: prompt and everything emitted. `row` is set while it runs. `stay`: how often it
    has left a row, so that what was computed for it in one is not taken for another's. `shared`: how many tokens at the
    beginning had their keys and values in the pools already when it was last admitted. `health`: the health word of its
    last prefill. `handover`: what another machine prefilled of it, until that is in the pools. `failures`: how many
    launches that it was in have failed since its last decode step. `error`: what has ended it. `matcher`: where it is
    in its grammar, if it has one. `resumes`: whether a prefill gives the last emitted token again, and no new one.
    `scores`: of each emitted token, of a program that hands them out.
    """

    request_id: int
    prompt_ids: tuple[int, ...]
    conditions: StopConditions
    text: StopText | None = None
    sampling: Sampling = GREEDY
    ids: list[int] = field(default_factory=list)
    row: int | None = None
    stay: int = 0
    shared: int = 0
    finish_reason: str | None = None
    accept_lens: list[int] = field(default_factory=list)
    retractions: int = 0
    health: int = 0
    handover: Handover | None = None
    failures: int = 0
    error: Exception | None = None
    matcher: Matcher | None = None
    resumes: bool = False
    scores: list[Score] = field(default_factory=list[Score])

    def __post_init__(self) -> None:
        """Start with the prompt."""
        self.ids = list(self.prompt_ids)

    @property
    def generated(self) -> Sequence[int]:
        """The emitted tokens."""
        return self.ids[len(self.prompt_ids) :]

    @property
    def known(self) -> int | None:
        """The token after what a prefill reads, of a request that has emitted some: none is drawn in its place."""
        return self.ids[-1] if self.resumes and self.generated else None

    @property
    def unread(self) -> list[int]:
        """What a prefill reads: all tokens, but for the one that is known after it."""
        return self.ids if self.known is None else self.ids[:-1]

    @property
    def prompt(self) -> PrefillPrompt:
        """What is prefilled of it in its row."""
        return PrefillPrompt(tuple(self.unread), self.shared, self.known)

    @property
    def committed(self) -> int:
        """Tokens with target KV while the request runs: all but the last emitted, the next step's root."""
        return len(self.ids) - 1

    @property
    def suspect(self) -> bool:
        """Whether it may be to blame for what fails, so that it runs alone until a decode step of it succeeds."""
        return self.failures >= SUSPECT

    @property
    def remaining(self) -> int:
        """Most tokens that it may still emit."""
        return self.conditions.max_new_tokens - len(self.ids) + len(self.prompt_ids)

    def got_on(self, *, is_prefill: bool) -> None:
        """Forget the failures of one that has new tokens; by those of a prefill it does not cease to be suspect."""
        self.failures = min(self.failures, SUSPECT) if is_prefill else 0

    def accept(self, tokens: Iterable[int], scores: Sequence[Score] = (), *, streamed: bool = True) -> list[TokenEvent]:
        """Take the tokens of one step, with their scores, up to where the request stops; the surplus is dropped.

        Unless somebody watches the stream or a stop string may appear, the text is made in one go at the end, and the
        events before have none. When the tokenizer raises, the request is as it was before.
        """
        kept, scored, text = len(self.ids), len(self.scores), self.text
        watched = streamed or bool(self.conditions.stop)
        if watched and text is not None:
            self.text = text.copy()
        events: list[TokenEvent] = []
        try:
            for token, score in zip_longest(tokens, scores):
                if self.finish_reason is not None:
                    break
                events.append(replace(self._take(int(token), watched), score=score))
                self.scores += [] if score is None else [score]
        except BaseException:
            del self.ids[kept:], self.scores[scored:]
            self.text, self.finish_reason = text, None
            raise
        return events

    def _take(self, token: int, watched: bool) -> TokenEvent:
        """Append one token and decide whether it is the last."""
        self.ids.append(token)
        if token in self.conditions.eos_token_ids:
            self.finish_reason = EOS
        elif self.remaining <= 0:
            self.finish_reason = LENGTH
        added = ""
        if self.text is not None and (watched or self.finish_reason is not None):
            if not watched:
                self.text = self.text.copy()
            added = self.catch_up()
            if self.text.stopped and self.finish_reason != EOS:
                self.finish_reason = STOP
            if self.finish_reason is not None:
                added += self.text.close()
        return TokenEvent(self.request_id, token, added, self.finish_reason)

    def catch_up(self) -> str:
        """Make the text of all tokens that have none yet; returns what it adds."""
        if self.text is None:
            return ""
        return self.text.push(self.ids[len(self.prompt_ids) + self.text.tokens :])

    def obey(self) -> None:
        """Let its matcher follow what was emitted; a text that has left its grammar ends."""
        if self.matcher is not None:
            try:
                self.matcher.follow(self.generated)
            except GrammarError as error:
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """End with what it has emitted, for something that went wrong."""
        with suppress(Exception):  # of the tokenizer, which may be what fails
            self.catch_up()
        self.finish_reason, self.error = ERROR, error

    def completion(self) -> Completion:
        """Return the result of a finished request."""
        return Completion(
            request_id=self.request_id,
            prompt_ids=self.prompt_ids,
            token_ids=tuple(self.generated),
            text=self.text.text if self.text is not None else None,
            finish_reason=self.finish_reason or LENGTH,
            accept_lens=tuple(self.accept_lens),
            retractions=self.retractions,
            error=self.error,
            scores=tuple(self.scores),
        )


def blame(what: str, requests: Sequence[Request], cause: Exception) -> StepFailedError:
    """What to raise for requests that were in something that failed; one that is surely the cause is ended."""
    for request in requests:
        request.failures += 1
    ended = len(requests) == 1 and requests[0].failures >= HOPELESS
    failure = StepFailedError(what, [request.request_id for request in requests], cause, ended=ended)
    if ended:
        requests[0].fail(failure)
    return failure
