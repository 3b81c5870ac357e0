"""The forward of an assistant in vLLM, which reads the target's keys and values, as a callback of programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from ..tables import NO_SLOT
from .forwards import Forwards

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import AssistCall


class AssistantForwards(Forwards):
    """The callback `assist` of a program, in the place of `extend` and `draft`.

    All forwards of a step stand at one place of the text, the last that has keys and values, and attend alike.
    """

    _attention: tuple[Any, dict[str, Tensor]]

    def assist(self, **call: Unpack[AssistCall]) -> Any:
        """See `AssistCall`. Padding, whose text is empty, stands at its first place."""
        tokens, step = call["tokens"], call["step"]
        if step == 0:
            places = call["positions"].view(len(tokens), 1).clamp(min=0)
            self._attention = self._attend(call["rows"], places, torch.full_like(places, NO_SLOT), ahead=0)
        return self._returned(*self._over(tokens, call.get("hidden"), self._attention), step, *tokens.shape[1:])
