"""The program in SGLang's internal state: what it did, and the switch of a running server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..._shapes import Shapes

logger = logging.getLogger(__name__)
SWITCH = "specc"
ON, OFF = "on", "off"
"""Words of the switch, beside `auto` and the names of shapes."""


def tell_state(answer: Any, controller: Any, *_: Any) -> Any:
    """Add what the program did to the server's internal state."""
    steps = getattr(controller.scheduler.draft_worker, "steps", None)
    if steps is not None:
        answer.internal_state[SWITCH] = steps.report()
    return answer


def switch(original: Any, controller: Any, request: Any) -> Any:
    """SGLang's `set_internal_state`, which knows the settings of `wanted`.

    As SGLang's own settings do, one comes alone or with others, and nothing is changed where one of them is refused.
    """
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    others = dict(request.server_args)
    ours = {key: others.pop(key) for key in [*others] if str(key).partition(":")[0] == SWITCH}
    if not ours:
        return original(controller, request)
    steps = getattr(controller.scheduler.draft_worker, "steps", None)
    try:
        if steps is None:
            raise ValueError("no program runs here")
        word = wanted(ours, steps.shapes)
    except ValueError as error:
        logger.warning("Updating %.200r is rejected: %s.", [*ours], error)
        return SetInternalStateReqOutput(updated=False)
    answer = original(controller, type(request)(server_args=others)) if others else None
    if answer is None or answer.updated:
        if word not in (ON, OFF):
            steps.shapes.take(word)
        steps.switch(word != OFF)
        how = "off: SGLang's own steps run" if word == OFF else f"on, with shape {steps.shapes.name}"
        logger.info("specc: %s is %s", steps.name, how)
    return answer or SetInternalStateReqOutput(updated=True)


def wanted(ours: Mapping[Any, Any], shapes: Shapes) -> str:
    """What a setting asks for: `off` leaves all steps to SGLang, `on` has the program serve again.

    The name of a shape has it serve at that shape, `auto` at those that it chooses. SGLang lets through numbers alone,
    and makes a number of a text that is one. So the word is in the key, as in `{"specc:5x4x8": 1}`. In the same process
    it may be the value, as in `{"specc": "5x4x8"}`. The numbers 0 and 1 are `off` and `on`, where no shape's name is
    that number.

    Raises ValueError with the reason for what asks for nothing that is there, or for several things at once.
    """
    [[key, value], *more] = ours.items()
    if more:
        raise ValueError("one of them may be set at a time")
    if key != SWITCH:
        if not (isinstance(value, int | float) and value == 1):
            raise ValueError(f"its value is 1, got {value!r:.60}")
        word: Any = key.partition(":")[2]
    elif isinstance(value, int | float) and value in (0, 1):
        if shapes.knows(str(int(value))):
            raise ValueError(f"{value!r} may be a shape or the switch: write {SWITCH}:{ON}, {SWITCH}:{OFF} or a shape")
        word = ON if value else OFF
    else:
        word = value
    if not (isinstance(word, str) and (word in (ON, OFF) or shapes.knows(word))):
        raise ValueError(f"{word!r:.60} is none of {ON}, {OFF}, {', '.join(shapes.words)}")
    return word
