"""The first steps in a vLLM whose functions are not all known: both sides make them, and vLLM's own count.

vLLM verifies, updates its tables and drafts as it does without a program. The program verifies and drafts beside it,
for the same rows. What it writes into vLLM's tables is put back, and vLLM's draft writes its keys and values last,
where the program's were. So texts are vLLM's own, whatever the program does.

No two sides draw alike. So the program is told that all requests are greedy, and where vLLM has drawn, the only score
that is left is that of the token drawn. It must then accept the same drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..tables import AHEAD
from . import parallel

logger = logging.getLogger("vllm.specc")

STEPS = 16
"""How many steps both sides make."""
OTHERS = 0.25
"""The part of drafts that may be others. Rounding makes some: of a head in 8 bits, or of batches of another form."""
REASON = "verified by both sides"
"""Why steps of a trial are vLLM's own."""


class TrialDifference(RuntimeError):
    """The program does something else than vLLM; ranks agree on that before it is raised."""


class Trial:
    """Compares the first steps of a program with those of vLLM's own.

    `verify`, `draft` and `compare` are called in turn for a step, around vLLM's own halves of it. On several ranks all
    of them call these.

    Attributes:
        over: whether all steps are made; from then on the program's count.

    """

    def __init__(
        self, steps: Any, fields: Mapping[str, Tensor], new: Sequence[str], kept: Sequence[Tensor] = ()
    ) -> None:
        """Take a program's `Steps`, and vLLM's tables by the program's names, see `carried`; new: see `unknown`.

        `kept` are tables T[P, ...] of vLLM's in which drafts leave something for those of the next step.
        """
        self.over = False
        self._steps, self._fields, self._kept = steps, fields, kept
        self._new = ", ".join(".".join(place.split(".")[-2:]) for place in new)
        self._made = self._drafts = self._others = 0
        steps.sample_greedily(True)

    def verify(self, own: Any, batch: Any, sampler: Any, scores: Callable[[], Tensor]) -> None:
        """Have the program verify an InputBatch of which vLLM has made `own`, a SamplerOutput.

        scores: makes the target's logits T[b * A, V] once more, with the masks of grammars. Raises `TrialDifference`.
        """
        if not self._made and parallel.is_first():
            text = (
                "specc: not known of this vLLM: %s. Both sides make the first %d steps, vLLM writes its tables in all"
            )
            logger.info(text, self._new, STEPS)
        rows = batch.idx_mapping.long() + AHEAD
        before = {name: table[rows] for name, table in self._fields.items()}
        try:
            logits = scores().unflatten(0, (batch.num_reqs, -1))
            sound = logits.isnan().flatten(1).any(1).logical_not()
            drawn = torch.from_numpy(sampler.sampling_states.temperature.np[batch.idx_mapping_np] > 0)
            _leave(logits, own, drawn.to(logits.device))
            mine = self._steps.commit(logits.flatten(0, 1), batch, sampler)
        finally:
            for name, values in before.items():
                self._fields[name][rows] = values
        self._steps.leave(batch, REASON)
        lengths, (tokens, emitted) = own.num_sampled, _emitted(own, mine.sampled_token_ids.shape[1])
        differ = (lengths != mine.num_sampled) | ((tokens != mine.sampled_token_ids) & emitted).any(1)
        self._demand({"other tokens": differ & sound})
        last = tokens.gather(1, (lengths.long() - 1).clamp(min=0)[:, None])[:, 0]
        self._verified = rows, before["seq_lens"] + lengths, last

    def draft(self, drafts: int, *hidden: Tensor) -> Tensor:
        """The program's drafts for the same batch, see `Steps.draft`, before vLLM's. Raises `TrialDifference`.

        vLLM has updated its tables by then, from which the program goes on: of that nothing was compared before.
        """
        rows, ends, last = self._verified
        differ = {"other lengths": self._fields["seq_lens"][rows] != ends}
        differ["other last tokens"] = self._fields["bonus"][rows] != last
        if "text" in self._fields:
            ended = self._fields["text"][rows].gather(1, ends.long()[:, None])[:, 0]
            differ["another end of the text"] = ended != last
        self._demand(differ)
        before = [table[rows] for table in self._kept]
        made: Tensor = self._steps.draft(drafts, *hidden)
        for table, values in zip(self._kept, before, strict=True):
            table[rows] = values
        return made

    def compare(self, mine: Tensor, own: Tensor) -> None:
        """Compare the program's drafts i64[b, n] with vLLM's own, which ends the step. Raises `TrialDifference`."""
        right = (mine == own).long().cumprod(1).sum(1)  # behind another draft all others may be
        most = own.shape[1]
        drafts, others = torch.stack(((right + 1).clamp(max=most).sum(), (right < most).sum())).tolist()
        self._made, self._drafts, self._others = self._made + 1, self._drafts + drafts, self._others + others
        if self._made < STEPS or not self._drafts:
            return
        many = self._others > OTHERS * self._drafts
        self._agree(f"{self._others} of {self._drafts} drafts are others" if many else "")
        self.over = True
        self._steps.sample_greedily(False)
        if parallel.is_first():
            text = "specc: both sides made %d steps alike (%d of %d drafts are others): the program's count from now on"
            logger.info(text, self._made, self._others, self._drafts)

    def _demand(self, differ: Mapping[str, Tensor]) -> None:
        """Raise `TrialDifference` if any of the requests bool[b] has what it is named for."""
        counts = torch.stack([of.sum() for of in differ.values()]).tolist()
        shares = [f"{count} of {len(next(iter(differ.values())))} requests have" for count in counts]
        self._agree("; ".join(f"{some} {what}" for some, what, n in zip(shares, differ, counts, strict=True) if n))

    def _agree(self, what: str) -> None:
        """Raise `TrialDifference` if there is one, on any rank."""
        if what := parallel.disagreement({"what differs": what}) or what:
            step = f"step {min(self._made + 1, STEPS)} of {STEPS} that both sides make"
            raise TrialDifference(
                f"{self._steps.name} differs from vLLM's own step: {what} in {step}. New are {self._new}"
            )


def _emitted(own: Any, width: int) -> tuple[Tensor, Tensor]:
    """The first tokens i64[b, width] of a SamplerOutput, 0 where there are none, and where bool[b, width] there are."""
    tokens = own.sampled_token_ids[:, :width]
    emitted = torch.arange(width, device=tokens.device) < own.num_sampled[:, None]
    return torch.where(emitted, tokens, 0), emitted  # behind its tokens vLLM has whatever was there


def _leave(logits: Tensor, own: Any, drawn: Tensor) -> None:
    """Leave in logits T[b, A, V] the tokens alone that were emitted, for requests bool[b] that have drawn."""
    tokens, emitted = _emitted(own, logits.shape[1])
    alone, token = (emitted & drawn[:, None])[..., None], tokens[..., None]
    kept = torch.where(alone, 0, logits.gather(2, token))
    logits.masked_fill_(alone, -torch.inf).scatter_(2, token, kept)
