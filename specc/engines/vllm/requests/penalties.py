"""Penalties of vLLM's requests: which of them a program knows, and its counts of texts beside those that vLLM keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..tables import AHEAD

PENALTIES = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
"""The penalties by vLLM's and the program's names, and what each of them is where it changes nothing."""
REPETITION = (2.0**-10, 2.0**10)
"""The least and the highest repetition penalty of programs; vLLM takes any above 0."""
WORD = 32
"""Tokens in a word of vLLM's masks of prompts."""


def unserved(state: Any, rows: Any) -> str | None:
    """Why a program with penalties does not change logits as vLLM does in these rows; None if it does.

    `state` is vLLM's PenaltiesState. vLLM scales logits before it subtracts, a program after: the two differ where a
    request asks for both.
    """
    repetition, frequency, presence = (getattr(state, name).np[rows] for name in PENALTIES)
    repeats = repetition != PENALTIES["repetition_penalty"]
    if (repeats & ((frequency != 0) | (presence != 0))).any():
        return "a repetition penalty beside others"
    least, most = REPETITION
    return "a repetition penalty out of range" if ((repetition < least) | (repetition > most)).any() else None


class Counts:
    """What a program with penalties has counted, which is what vLLM has counted by itself.

    The program counts the tokens of its own steps, and vLLM those of all. A row is copied from vLLM's tables before a
    step of the program if vLLM has run the last one of its request, the prefill included. So a request that takes the
    row of another is copied, too.
    """

    def __init__(self, pool: Tensor) -> None:
        """Nothing is counted. `pool` are the program's rows i32[P, V], see the op `sample.penalize`."""
        self._pool = pool
        self._counted = torch.zeros(len(pool) - AHEAD, dtype=torch.bool).numpy()

    def left(self, rows: Any) -> None:
        """Take note of a step of vLLM's for requests in these rows, an array of numpy's."""
        self._counted[rows] = False

    def bring(self, state: Any, rows: Any) -> None:
        """Before a step of the program for these rows: copy what is missing of vLLM's PenaltiesState."""
        missing = rows[state.use_penalty[rows] & ~self._counted[rows]]
        self._counted[rows] = True
        if not len(missing):
            return
        at = torch.from_numpy(missing).long().to(self._pool.device, non_blocking=True)
        places = torch.arange(WORD, dtype=torch.int32, device=self._pool.device)
        prompt = (state.prompt_bin_mask[at][..., None] >> places & 1).flatten(1)[:, : self._pool.shape[1]]
        self._pool.index_copy_(0, at + AHEAD, 2 * state.output_bin_counts[at] + prompt)
