"""Modules of multi-token prediction in vLLM, each of which drafts a token: all run over the same places of a text.

Module s reads at a place the token that is s + 1 places further on, and what the module before it made there. Behind
the accepted text that token is a draft. So where drafts are left out, later modules have kept keys and values of tokens
that the text does not have. vLLM keeps tokens and hidden states of the last S - 1 places of every request, and has all
modules run over as many of them once more as are wrong, in front of those that were accepted. All of these are never
more than the S + 1 places of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from ..._plugin import MisfitError
from ..tables import Blocks
from .forwards import Forwards
from .heads import Head

if TYPE_CHECKING:
    from specc.runtime.entry.callbacks import ExtendModuleCall


@dataclass
class _Window:
    """The places that modules run over in a step, A of every request.

    Attributes:
        places: i64[b, A], where each is among S - 1 that were kept and the A of the step, which follow them.
        select: i64[b], the last of every request's, in rows of all of them.
        attention: the metadata of attention and the slots of every layer.
        tokens: i64[b, S - 1 + A], of which the next module reads those that are one further.
        states: T[b * A, H], which the next module reads.

    """

    places: Tensor
    select: Tensor
    attention: tuple[Any, dict[str, Tensor]]
    tokens: Tensor
    states: Tensor


class Modules(Forwards):
    """The callback `extend_module` of a program, by the modules of one of vLLM's speculators."""

    _window: _Window

    def __init__(self, speculator: Any, requests: int, result: Any, head: Head | None, blocks: Blocks) -> None:
        """As of `Forwards`. MisfitError for modules that read images."""
        super().__init__(speculator, requests, result, head, blocks)
        if speculator.inputs_embeds is not None:
            raise MisfitError("modules of the draft read embeddings of images")
        self._kept = speculator.kept

    def extend_module(self, **call: Unpack[ExtendModuleCall]) -> Any:
        """See `ExtendModuleCall`. A module runs over some places before the path besides.

        Only the first one reads the target's hidden states, the others read what the one before has made.
        """
        step, tokens = call["step"], call["tokens"]
        if step == 0:
            self._window = self._begun(call)
        else:
            kept = self._kept[0].shape[1]
            self._window.tokens = torch.cat((self._window.tokens[:, 1 : 1 + kept], tokens), 1)
        window = self._window
        read = window.tokens.gather(1, window.places)
        last, window.states = self._over(read, window.states, window.attention, module=step)
        return self._returned(last[window.select], window.states[window.select], step)

    def _begun(self, call: ExtendModuleCall) -> _Window:
        """The window of a step, after its places are kept for the next one."""
        tokens, positions, rows, hidden = call["tokens"], call["positions"], call["rows"].long(), call["hidden"]
        (requests, path), kept = tokens.shape, self._kept[0].shape[1]
        request, behind, before = (torch.arange(size, device=tokens.device) for size in (requests, path, kept))
        accepted, ends = (call["select"] - request * path + 1).clamp(1, path), positions[:, 0]
        again = (path - accepted - 1).clamp(min=0).minimum(ends)
        texts, states = (
            torch.cat((table[rows], new), 1) for table, new in zip(self._kept, (tokens, hidden), strict=True)
        )
        for table, of in zip(self._kept, (texts, states), strict=True):
            table[rows] = _at(of, accepted[:, None] + before)
        places = (kept - again)[:, None] + behind
        earlier = self._blocks.slots(rows, (ends[:, None] - kept + before).clamp(min=0))
        where = torch.cat((earlier, call["slots"]), 1).gather(1, places)
        attention = self._attend(rows, (ends - again)[:, None] + behind, where, ahead=0)
        last = request * path + again + accepted - 1
        return _Window(places, last, attention, texts, _at(states, places).flatten(0, 1))


def _at(rows: Tensor, places: Tensor) -> Tensor:
    """The rows T[b, m, ...] of T[b, n, ...] at places i64[b, m]."""
    return rows[torch.arange(len(rows), device=rows.device)[:, None], places]
