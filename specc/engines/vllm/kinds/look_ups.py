"""Drafts that are looked up in texts, by no model: NGRAM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .kind import KindOfDraft, Method

USUAL_LENGTH = 5
"""Tokens that are looked up, where nothing says how many."""
LONGEST, SHORTEST = "prompt_lookup_max", "prompt_lookup_min"
"""VLLM's keys of these."""


@dataclass(frozen=True, eq=False)
class _TextLookUps(KindOfDraft):
    def settled(self, written: Mapping[str, int | None], wrong: Callable[[str], None]) -> Mapping[str, int]:
        """Return both lengths: one stands for the other that is not given."""
        usual = written["longest"] or written["shortest"] or USUAL_LENGTH
        lengths = {name: length or usual for name, length in written.items()}
        if lengths["longest"] < lengths["shortest"]:
            wrong(f"{SHORTEST} is more than {LONGEST}")
        return lengths


LOOK_UPS = _TextLookUps(
    algorithms={
        "NGRAM": (Method("ngram", model_less=True, in_place=True), Method("ngram_gpu", model_less=True)),
    },
    needs="""
v1.worker.gpu.spec_decode.ngram.speculator.NgramGPUSpeculator(vllm_config device req_states): max_model_len
""",
    absent="drafts that are looked up are vLLM's own",
    digests={
        "v1.worker.gpu.spec_decode.ngram.speculator.NgramGPUSpeculator": {
            "propose": "f0c077e4dac1",
        },
        "v1.worker.gpu.spec_decode.ngram.speculator": {
            "_ngram_scan_kernel": "99ec0ac3ce30",
            "_ngram_finalize_kernel": "2717d360d8d2",
        },
    },
    drafts="drafts.ProgramDrafts",
    options={"beyond": "last", "corpus": None},
    written={"longest": LONGEST, "shortest": SHORTEST},
    origin="prompt_lookup_max, _min",
    whole_text="window",
)
