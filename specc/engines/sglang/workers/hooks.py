"""What the adapter does around SGLang's results, samples and captured graphs, whatever worker runs."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT

from .. import relay
from ..requests.results import SglangResult

FATAL = {
    "target": "the target's scores hold NaN or are infinite",
    "room": "there is no room for a step in req_to_token, or in the mask of a tree",
}
"""Faults after which nothing of a request is text, or nothing follows, by the program's names of them."""


def receive(processor: Any, batch: Any, result: Any) -> None:
    """Count what was accepted, and end requests whose target returned scores that are no numbers or that lack room."""
    if not isinstance(result, SglangResult) or result.health is None or result.faults is None:
        return
    result.copy_done.synchronize()
    if result.verified is not None:  # of requests that ended, a step that was under way is of nobody
        result.verified([place for place, request in enumerate(batch.reqs) if not request.finished()])
    for request, word in zip(batch.reqs, result.health.tolist(), strict=True):
        reasons = [FATAL[name] for name in result.faults(word) if name in FATAL]
        if reasons and not request.finished():
            message = f"{', and '.join(reasons)} (health word {word})"
            request.to_finish = FINISH_ABORT(message, HTTPStatus.INTERNAL_SERVER_ERROR, "SpeccHealthError")


def sample(original: Any, runner: Any, logits_output: Any, forward_batch: Any) -> Any:
    """SGLang's `ModelRunner.sample`, in which the program draws for those whom it will go on with."""
    steps = relay.offered()
    admission = None if steps is None or runner.is_draft_worker else steps.admission
    sampler = partial(original, runner, logits_output, forward_batch)
    return sampler() if admission is None else admission.first(sampler, logits_output)


def retire(_: Any, runner: Any, *__: Any) -> None:
    """After SGLang captured its own graphs anew, for weights that have moved: the program's hold the old ones."""
    steps = relay.offered()
    if steps is not None and not runner.is_draft_worker:
        steps.retire("graphs captured anew")
