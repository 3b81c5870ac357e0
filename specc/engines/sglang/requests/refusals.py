"""What a request may ask for that a program does not do: SGLang then runs its steps, or it is turned away."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from ..._plugin import word
from ..server.settings import flag
from .admission import PENALTIES, lacking

FALLBACK = "SPECC_FALLBACK"
"""The environment variable that says what becomes of such requests: `sglang`, the default, or `refuse`."""
ORIGINAL = "SGLANG_RETURN_ORIGINAL_LOGPROB"
"""SGLang's environment variable under which temperatures change no log-probabilities."""
GRAMMAR, LOGPROBS = "grammar", "logprobs"
"""What a program may have been built for that is no parameter: a key of its `sampling`, and an output."""
COUNTS = "sampling_counts"
"""What a program with penalties counts by itself: a field of its carry, no parameter."""
_REASON = "_specc_unserved"


def built_for(plan: Any, *, grammars: bool) -> list[str]:
    """What requests may ask for of a program with this plan, see `Steps`; `grammars`: whether SGLang has bitmasks."""
    given = [field.name for field in plan.carry.values() if field.given]
    parameters = [name.removeprefix("sampling_") for name in given if name != COUNTS]
    parameters += [GRAMMAR] * (plan.restricts and grammars)
    return parameters + [LOGPROBS] * (plan.scores is not None)


def unserved(request: Any, vocabulary: int, parameters: Collection[str] = (), best: int = 0) -> str | None:
    """Why a program does not serve a request of SGLang (a `Req`); None if it does. The same for its whole life.

    `vocabulary`: tokens of the target; `parameters`: what the program was built for, see `Steps`; `best`: how many most
    probable tokens it hands out.
    """
    if not hasattr(request, _REASON):
        setattr(request, _REASON, _unserved(request, parameters, best) or lacking(request, vocabulary, parameters))
    return getattr(request, _REASON)


def unplanned(batch: Any, room: int) -> str | None:
    """Why attention that the host plans cannot be planned for a batch; None if it can.

    `room`: tokens of the longest text that a step has room behind. A request with more is a padding row of the program,
    which only the device finds out: the plan would have its length.
    """
    if batch.seq_lens_cpu is None:
        return "no lengths on the host"
    return "no room for a step" if max(batch.seq_lens_cpu.tolist(), default=0) > room else None


def _unserved(request: Any, parameters: Collection[str], best: int) -> str | None:
    asked = request.sampling_params
    reasons = {
        "a grammar": GRAMMAR not in parameters and request.grammar is not None,
        "min_new_tokens": asked.min_new_tokens,
        "a custom logit processor": request.custom_logit_processor,
        "hidden states": request.return_hidden_states,
        "a sampling mask": request.return_sampling_mask,
        "a watermark": asked.watermark,
    }
    named = (name for name, asked_for in reasons.items() if asked_for)
    return next(named, None) or (_logprobs(request, parameters, best) if request.return_logprob else None)


def _logprobs(request: Any, parameters: Collection[str], best: int) -> str | None:
    """Why the log-probabilities of a request are not a program's: those of emitted tokens in the target's own scores.

    SGLang's are those of the scores that it draws from, before filters.
    """
    asked = request.sampling_params
    reasons = {
        "logprobs": LOGPROBS not in parameters,
        "top logprobs": request.logprob.top_logprobs_num > best or request.logprob.token_ids_logprob is not None,
        "logprobs with a grammar": request.grammar is not None,
        "logprobs with penalties": any(getattr(asked, name) != none for name, none in PENALTIES.items()),
        "logprobs with logit bias": asked.logit_bias,
        "logprobs with a temperature": asked.top_k > 1 and asked.temperature != 1 and not flag(ORIGINAL),
    }
    return next((name for name, asked_for in reasons.items() if asked_for), None)


def refuses_unserved() -> bool:
    """Whether the server is to turn requests away that the program does not serve. ServerError on another word."""
    return word(FALLBACK, ("sglang", "refuse"), "sglang") == "refuse"


def turn_away(scheduler: Any, request: Any, *_: Any, **__: Any) -> None:
    """Before a request is queued: end it where the program does not serve it and the server was told to refuse."""
    steps = getattr(scheduler.draft_worker, "steps", None)
    if steps is None or not steps.refuses_unserved:
        return
    reason = steps.unserved(request)
    if reason is not None and request.to_finish is None:
        message = f"{steps.name} does not serve {reason}, and this server runs nothing else ({FALLBACK}=refuse)"
        request.set_finish_with_abort(message, HTTPStatus.BAD_REQUEST, "SpeccUnservedError")
