"""The program in SGLang's internal state: what it did, and the switch of a running server."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)
SWITCH = "specc"


def tell_state(answer: Any, controller: Any, *_: Any) -> Any:
    """Add what the program did to the server's internal state."""
    steps = getattr(controller.scheduler.draft_worker, "steps", None)
    if steps is not None:
        answer.internal_state[SWITCH] = steps.report()
    return answer


def switch(original: Any, controller: Any, request: Any) -> Any:
    """SGLang's `set_internal_state`, which knows `specc`: 0 leaves all steps to SGLang, 1 has the program serve again.

    The name of a shape has it serve at that shape, `auto` at those that it chooses.
    As SGLang's own settings do, it comes alone or with others, and nothing is changed where one of them is refused.
    """
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    settings = dict(request.server_args)
    if SWITCH not in settings:
        return original(controller, request)
    on, steps = settings.pop(SWITCH), getattr(controller.scheduler.draft_worker, "steps", None)
    if steps is None or not (on in (0, 1) or steps.shapes.knows(on)):
        what = "no program runs here" if steps is None else f"{on!r} is neither 0 nor 1, nor the name of a shape"
        logger.warning("Updating %s is rejected: %s.", SWITCH, what)
        return SetInternalStateReqOutput(updated=False)
    answer = original(controller, type(request)(server_args=settings)) if settings else None
    if answer is None or answer.updated:
        if isinstance(on, str):
            steps.shapes.take(on)
        steps.switch(on != 0)
        how = f"on, with shape {steps.shapes.name}" if on != 0 else "off: SGLang's own steps run"
        logger.info("specc: %s is %s", steps.name, how)
    return answer or SetInternalStateReqOutput(updated=True)
