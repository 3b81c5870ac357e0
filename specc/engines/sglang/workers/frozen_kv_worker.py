"""FROZEN_KV_MTP."""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import seam
from ..models.assisted import AssistedForwards
from ..models.forwards import Forwards
from .program_steps import ModelSteps


class FrozenKvWorker(ModelSteps, seam.kind(seam.ASSISTANTS)):
    """An assistant drafts, which reads the target's keys and values."""

    place = "speculative.frozen_kv_mtp_worker_v2.FrozenKVMTPWorkerV2"
    feature = seam.ASSISTANTS

    def callbacks(self) -> type[Forwards]:
        """See ProgramSteps."""
        return AssistedForwards

    def forward_batch_generation(
        self, batch: Any, on_publish: Any = None, grammar_barrier: Any = None, pp_proxy_tensors: Any = None
    ) -> Any:
        """See FrozenKVMTPWorkerV2, which knows no `pp_proxy_tensors`: SGLang gives them without overlap."""
        own = partial(super(ModelSteps, self).forward_batch_generation, batch, on_publish, grammar_barrier)
        return self._generated(own, batch, on_publish, grammar_barrier)
