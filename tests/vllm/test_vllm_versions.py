"""Programs in versions of vLLM to come: copies in which something has another name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from engine_copy import changed_copy
from vllm_files import ENVIRONMENT, HERE, ON_GPU, PYTHON, ROOT
from vllm_programs import build_program
from vllm_server import PLAIN, Variant, serve
from vllm_workload import greedy

RENAMED = {"v1/worker/gpu/sample/logit_bias.py": {"self.use_logit_bias": "self.has_logit_bias"}}
"""vLLM goes on as ever, under another name."""
LACKING = """
from specc.adapters.vllm import seam
for table in (seam.MUST, *seam.MAY.values()):
    print(*seam.lacking(table), sep="; ")
"""
PROMPTS = ([5, 6, 7], [9, 4, 4, 1, 30])


def test_nothing_is_left_out_of_this_version() -> None:
    """Of a version that is tested nobody is told what it lacks."""
    result = subprocess.run(
        [str(PYTHON), "-c", LACKING],
        env={**os.environ, **ENVIRONMENT.variables, "PYTHONPATH": f"{ROOT}:{HERE / 'stand_ins'}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result.stdout.strip() == ""


@pytest.mark.skipif(ON_GPU, reason="what is compared is the same on a CPU")
def test_a_changed_vllm_runs_its_own_speculation(models: Path, tmp_path: Path) -> None:
    """What differs stands in the log; texts are those of the target. Where the program must run, the server ends."""
    variant = Variant("eagle", "eagle", program=True)
    wheel = build_program(variant, models, tmp_path / "wheel")
    changed = changed_copy(ENVIRONMENT.site / "vllm", tmp_path / "changed", RENAMED)
    requests = [greedy(prompt, 16) for prompt in PROMPTS]
    plain = serve(PLAIN.engine(models), requests, tmp_path / "plain")

    def settings(job: str) -> dict[str, str]:
        return {"PYTHONPATH": f"{changed}:{tmp_path / job / 'site'}"}

    job = variant.engine(models), requests
    served = serve(*job, tmp_path / "may", wheel=wheel, settings=settings("may") | {"SPECC_PROGRAM": ""})
    reason = "LogitBiasState has no use_logit_bias"
    assert f"RuntimeError: vLLM 0.33.0+cpu: {reason}" in served.log
    assert served.counts is None
    assert served.seen["speculator"] == "EagleSpeculator"
    assert [output["token_ids"] for output in served.outputs] == [output["token_ids"] for output in plain.outputs]
    assert all(max(output["accepted"]) > 1 for output in served.outputs)
    with pytest.raises(RuntimeError, match=reason):
        serve(*job, tmp_path / "must", wheel=wheel, settings=settings("must"))
