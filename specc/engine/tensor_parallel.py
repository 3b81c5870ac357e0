"""Tensor parallel: the engines of several ranks serve the same requests, with one model between them.

docs/tensor-parallel.md shows how to run them.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from specc.engine.data_parallel import LockStep, Round
from specc.engine.errors import LockStepError
from specc.engine.serving.request import Request

_WORDS = {
    "prefill": "the rows to prefill",
    "decode": "the rows to decode",
    "num_steps": "the draft steps",
    "working": "whether there is work",
}


class SameStep(LockStep):
    """One rank's engine, which launches what all others launch, of the same requests in the same rows.

    Whoever adds or aborts a request does so on every rank, between the same two steps. A round in which ranks differ
    launches nothing: each of them raises LockStepError that says in what.
    """

    def _agree(self, mine: Round, fresh: Sequence[Request], due: Sequence[Request]) -> Round:
        """See `LockStep`; the numbers must be the same on all ranks, and the requests, which are compared by a sum."""
        told = (*mine, crc32(repr([_of(request) for request in (*fresh, *due)]).encode()))
        try:
            with self._or_over():
                found = self.peers.largest([*told, *(-number for number in told)])
                most, least = found[: len(told)], [-number for number in found[len(told) :]]
                agreed = Round(*most[:-1])
                if agreed.leaving:
                    raise LockStepError(f"rank {agreed.leaving - 1} has left")
                for name, low, high in zip(Round._fields, least, most, strict=False):
                    if low != high:
                        raise LockStepError(f"the ranks disagree about the step: {_WORDS[name]}: {low} and {high}")
                if least[-1] != most[-1]:
                    raise LockStepError("the ranks disagree about the step: its requests, their rows or their tokens")
        except BaseException:
            self.engine.scheduler.expel(fresh)
            raise
        return agreed


def _of(request: Request) -> tuple[object, ...]:
    """What must be the same of a request on all ranks."""
    return request.request_id, request.row, request.stay, request.sampling, request.ids
