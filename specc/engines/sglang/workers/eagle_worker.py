"""EAGLE and EAGLE3."""

from __future__ import annotations

from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

from .program_steps import ModelSteps


class EagleWorker(ModelSteps, EAGLEWorkerV2):
    """A head drafts from hidden states of the target."""

    place = "speculative.eagle_worker_v2.EAGLEWorkerV2"
