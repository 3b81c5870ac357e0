"""NGRAM."""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import seam
from .program_steps import ProgramSteps


class NgramWorker(ProgramSteps, seam.kind(seam.LOOK_UPS)):
    """Drafts are looked up, so there is no draft worker; grammars have followed the step before."""

    place = "speculative.ngram_worker.NGRAMWorker"
    feature = seam.LOOK_UPS

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None) -> Any:
        """See NGRAMWorker."""
        own = partial(super().forward_batch_generation, batch, on_publish, pp_proxy_tensors)
        return self._generated(own, batch, on_publish, None)
