"""DFLASH."""

from __future__ import annotations

from typing import Any

from .. import seam
from ..models.forwards import Forwards
from .program_steps import ModelSteps


class DflashWorker(ModelSteps, seam.kind(seam.BLOCKS)):
    """A model fills in a block of drafts at once, over keys and values made of hidden states of the target."""

    place = "speculative.dflash_worker_v2.DFlashWorkerV2"
    feature = seam.BLOCKS

    def callbacks(self) -> type[Forwards]:
        """See ProgramSteps."""
        from ..models.block_forwards import BlockForwards

        return BlockForwards

    @property
    def req_to_token_pool(self) -> Any:
        """The target's, which workers of other kinds are given."""
        return self.target_worker.model_runner.req_to_token_pool
