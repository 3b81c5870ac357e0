"""STANDALONE."""

from __future__ import annotations

from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

from .program_steps import ModelSteps


class StandaloneWorker(ModelSteps, StandaloneWorkerV2):
    """A model of its own drafts."""

    place = "speculative.standalone_worker_v2.StandaloneWorkerV2"
