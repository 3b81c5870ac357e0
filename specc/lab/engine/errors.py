"""Errors of the engine itself. What is wrong with a user's input is a `DiagnosticError` instead."""

from __future__ import annotations

from collections.abc import Sequence

HINT = "the engine does not run this model; programs compiled for it serve engines that have their own code for it"
"""What to do about a model whose own code is the obstacle."""


class EngineError(Exception):
    """The base of all errors that the engine raises."""


class OutOfPagesError(EngineError):
    """The KV pool has fewer free pages than were asked for; nothing was allocated."""

    def __init__(self, needed: int, free: int) -> None:
        """Record how many pages were needed and how many were free."""
        super().__init__(f"the KV pool has {free} free pages, {needed} are needed")
        self.needed = needed
        self.free = free


class OutOfRowsError(EngineError):
    """Every row of the request table is taken."""


class RequestTooLongError(EngineError):
    """A request could never finish: its context is longer than the engine can hold."""


class BadPromptError(EngineError):
    """A prompt is no text: it has half of a character, which no tokenizer takes."""


class UnknownTokenError(EngineError):
    """A prompt has a token id that is not in the target's vocabulary, or is no whole number at all."""

    def __init__(self, place: int, token: object, vocab_size: int) -> None:
        """Record the id and where in the prompt it is, counted from 0."""
        long = isinstance(token, int) and token.bit_length() > 64  # Python makes no text of very long ones
        shown = "of more than 64 bits" if long else f"{token!r:.60}"
        super().__init__(f"token {shown} at place {place} of the prompt is not in the vocabulary of {vocab_size}")
        self.place = place
        self.token = token


class UnsupportedModelError(EngineError):
    """The engine cannot run a model, or not as its program wants it.

    Attributes:
        hint: what would help; None where nothing does.

    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        """Record both."""
        super().__init__(message)
        self.hint = hint


class StepFailedError(EngineError):
    """A prefill or a decode step failed, for the reason that is this error's cause.

    The requests in it wait again, with all they had emitted: step again to retry them, or abort them.

    Attributes:
        request_ids: of the requests.
        ended: it was a single one, which has failed too often and is not retried.

    """

    def __init__(self, what: str, request_ids: Sequence[int], cause: BaseException, *, ended: bool = False) -> None:
        """Record the ids of the requests that were in it."""
        ids = ", ".join(map(str, request_ids))
        then = "again and again, it is given up" if ended else "they wait to be retried"
        whose = f"of requests {ids} failed, {then}" if ids else "without requests failed"
        super().__init__(f"{what} {whose}: {type(cause).__name__}: {cause}")
        self.request_ids = tuple(request_ids)
        self.ended = ended


class OutOfRoomError(EngineError):
    """A decode step left a request out, because its row of `req_to_token` or the tree mask ends too early."""


class ContractError(EngineError):
    """The compiled program and the engine disagree about the state of a request."""


class GrammarError(EngineError):
    """A grammar that cannot be compiled, or a text that has left its grammar."""


class LockStepError(EngineError):
    """The ranks of a data-parallel group do not step together, or do not any more.

    What waits and runs stays in the engine, to go on alone or in another group.
    """


class TransferError(EngineError):
    """A request that cannot move from the machine that prefills to the one that decodes.

    Attributes:
        request: its name; None where no single request is meant.
        reason: what went wrong.

    """

    def __init__(self, request: str | None, reason: str) -> None:
        """Record both."""
        super().__init__(reason if request is None else f"request {request!r}: {reason}")
        self.request = request
        self.reason = reason


def first_line(error: BaseException) -> str:
    """Return type and first line of an exception."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
