"""What a request may ask for that a program does not do: SGLang then runs its steps, or it is turned away."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Any

from .admission import lacking
from .settings import word

FALLBACK = "SPECC_FALLBACK"
"""The environment variable that says what becomes of such requests: `sglang`, the default, or `refuse`."""
_REASON = "_specc_unserved"


def unserved(request: Any, vocabulary: int, parameters: Collection[str] = ()) -> str | None:
    """Why a program does not serve a request of SGLang (a `Req`); None if it does. The same for its whole life.

    `vocabulary`: tokens of the target; `parameters`: what the program was built to sample with.
    """
    if not hasattr(request, _REASON):
        setattr(request, _REASON, _unserved(request) or lacking(request, vocabulary, parameters))
    return getattr(request, _REASON)


def _unserved(request: Any) -> str | None:
    asked = request.sampling_params
    penalties = asked.frequency_penalty or asked.presence_penalty or asked.repetition_penalty != 1.0
    found = {
        "a grammar": asked.json_schema or asked.regex or asked.ebnf or asked.structural_tag,
        "penalties": penalties or asked.min_new_tokens,
        "logit bias": asked.logit_bias,
        "a custom logit processor": request.custom_logit_processor,
        "logprobs": request.return_logprob,
        "hidden states": request.return_hidden_states,
        "a sampling mask": request.return_sampling_mask,
        "a watermark": asked.watermark,
    }
    return next((name for name, asked_for in found.items() if asked_for), None)


def refuses() -> bool:
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
