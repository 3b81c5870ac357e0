"""EAGLE with a module for each draft (multi-token prediction)."""

from __future__ import annotations

from .. import seam
from ..models.forwards import Forwards
from ..models.modules import ModuleForwards
from .program_steps import ModelSteps


class MultiLayerEagleWorker(ModelSteps, seam.kind(seam.MODULES)):
    """All modules run behind the verification, and what they draft is carried."""

    place = "speculative.multi_layer_eagle_worker_v2.MultiLayerEagleWorkerV2"
    feature = seam.MODULES

    def callbacks(self) -> type[Forwards]:
        """See ProgramSteps."""
        return ModuleForwards
