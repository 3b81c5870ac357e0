"""Programs in versions of SGLang to come: copies in which something has another name, or another meaning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from engine_copy import changed_copy
from sglang_files import ENVIRONMENT, VERSION
from sglang_models import most_probable
from sglang_programs import build_program
from sglang_server import Variant, serve

RENAMED = {"srt/managers/overlap_utils.py": {"topk_index_buf": "draft_tokens_buf"}}
"""SGLang's own relay goes on as ever, under another name."""
OTHER_MEANING = {
    "srt/model_executor/forward_batch_info.py": {
        "    seq_lens_sum: int\n": "    seq_lens_sum: int\n    sees_prefix: int = 0\n",
        "        ret = cls(\n": "        ret = cls(\n            sees_prefix=1,\n",
    },
    "srt/layers/attention/intel_amx_backend.py": {
        "forward_batch.seq_lens + num_draft_tokens": (
            "forward_batch.seq_lens * forward_batch.sees_prefix + num_draft_tokens"
        )
    },
}
"""A field more, without which nodes do not see the text: SGLang sets it, and no signature shows that others must."""


PROMPTS = ("import os\n", "class Node:")


@pytest.mark.parametrize(
    ("changes", "overlap", "reason"),
    [
        pytest.param(RENAMED, True, f"SGLang {VERSION}: FutureMap has no topk_index_buf", id="renamed"),
        pytest.param(
            OTHER_MEANING, False, "(SPECC_PROOF) of the shape 3 is not SGLang's own: the target's scores", id="meaning"
        ),
    ],
)
def test_a_changed_sglang_runs_its_own_steps(
    models: Path, tmp_path: Path, changes: Mapping[str, Mapping[str, str]], overlap: bool, reason: str
) -> None:
    """What differs stands in the log; texts are those that SGLang itself makes, and right."""
    variant = Variant("EAGLE", "eagle", overlap=overlap, program=True)
    wheel = build_program(variant.engine(models), tmp_path / "wheel")
    changed = changed_copy(ENVIRONMENT.site / "sglang", tmp_path / "changed", changes)
    paths = f"{changed}:{tmp_path / 'job' / 'site'}"
    sampling = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
    served = serve(
        variant.engine(models),
        [{"text": text, "sampling": sampling} for text in PROMPTS],
        tmp_path / "job",
        overlap=overlap,
        wheel=wheel,
        settings={"PYTHONPATH": paths, "SPECC_PROGRAM": ""},
    )
    assert reason in served.log
    assert "specc" not in served.state
    for request, output in zip(served.requests, served.outputs, strict=True):
        assert output["spec_verify_ct"] > 0
        assert most_probable(request["text"], output["token_ids"]) == output["token_ids"]
