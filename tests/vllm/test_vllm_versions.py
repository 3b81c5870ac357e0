"""Programs in versions of vLLM to come: copies in which something has another name, or means something else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from engine_copy import changed_copy
from vllm_files import ENVIRONMENT, HERE, ON_GPU, PYTHON, ROOT, VERSION
from vllm_programs import build_program
from vllm_server import PLAIN, Served, Variant, serve
from vllm_workload import greedy

from specc.engines.vllm.server.digests import digests, unknown

STEPS, REASON = 16, "verified by both sides"
"""How many steps a trial has, and why these are vLLM's."""
on_a_cpu = pytest.mark.skipif(ON_GPU, reason="what is compared is the same on a CPU")
Changes = Mapping[str, Mapping[str, str]]
RENAMED = {"v1/worker/gpu/sample/logit_bias.py": {"self.use_logit_bias": "self.has_logit_bias"}}
"""vLLM goes on as ever, under another name."""
LACKING = """
from specc.engines.vllm import seam
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


@on_a_cpu
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
    assert f"RuntimeError: vLLM {VERSION}+cpu: {reason}" in served.log
    assert served.counts is None
    assert served.seen["speculator"] == "EagleSpeculator"
    assert [output["token_ids"] for output in served.outputs] == [output["token_ids"] for output in plain.outputs]
    assert all(max(output["accepted"]) > 1 for output in served.outputs)
    with pytest.raises(RuntimeError, match=reason):
        serve(*job, tmp_path / "must", wheel=wheel, settings=settings("must"))


def test_every_function_of_this_version_is_known() -> None:
    """The meaning of these counts; `print_digests.py` prints those of a version to come that are not known."""
    assert unknown(digests(ENVIRONMENT.site / "vllm")) == []


EAGLE = Variant("eagle", "eagle", program=True)
INPUTS, RUNNER = "v1/worker/gpu/input_batch.py", "v1/worker/gpu/model_runner.py"
HEADS = "v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py"
SAME = {INPUTS: {"total_len + num_sampled)": "num_sampled + total_len)"}}
"""vLLM says the same in other words."""
STORED = "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens"
DRAFT_TABLE = {
    RUNNER: {f"{STORED}\n": f"{STORED} + 1\n"},
    INPUTS: {
        "stride + block,\n            mask=mask,\n        )": "stride + block,\n            mask=mask,\n        ) - 1"
    },
}
"""Its table of drafts has each token's number plus one."""
WRITTEN, READ = "(last_sampled_tokens_ptr + req_state_idx, token_id", "tl.load(last_sampled_{}ptr + req_state_idx)"
LAST_TOKENS = {
    INPUTS: {WRITTEN: f"{WRITTEN} + 1", READ.format("tokens_"): f"{READ.format('tokens_')} - 1"},
    HEADS: {READ.format(""): f"({READ.format('')} - 1)"},
}
"""So does its table of last tokens."""
HIDDEN = {HEADS: {".copy_(hidden_states)": ".copy_(hidden_states.roll(1, 0))"}}
"""Its drafts read the hidden state of the token before."""
DIFFERING = {
    "requests have other tokens in step": DRAFT_TABLE,
    "requests have other last tokens in step": LAST_TOKENS,
    f"drafts are others in step {STEPS}": HIDDEN,
}
LONG = [greedy(prompt, 70) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def eagle_wheel(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of `EAGLE`."""
    return build_program(EAGLE, models, tmp_path_factory.mktemp("eagle") / "wheel")


@pytest.fixture(scope="module")
def texts(models: Path, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Those of `LONG` without speculation."""
    served = serve(PLAIN.engine(models), LONG, tmp_path_factory.mktemp("plain") / "job")
    return [output["token_ids"] for output in served.outputs]


def in_a_copy(changes: Changes, models: Path, wheel: Path, folder: Path, program: str = "") -> Served:
    """What an engine with the program serves in a vLLM with these changes; `program`: it must run."""
    changed = changed_copy(ENVIRONMENT.site / "vllm", folder / "changed", changes)
    settings = {"PYTHONPATH": f"{changed}:{folder / 'job' / 'site'}", "SPECC_PROGRAM": program}
    return serve(EAGLE.engine(models), LONG, folder / "job", wheel=wheel, settings=settings)


@on_a_cpu
@pytest.mark.parametrize("changes", [{}, SAME], ids=["unchanged", "in other words"])
def test_what_means_the_same_passes(
    changes: Changes, models: Path, eagle_wheel: Path, texts: list[list[int]], tmp_path: Path
) -> None:
    """Where a function is not known both sides make the first steps, and the program's count then."""
    served = in_a_copy(changes, models, eagle_wheel, tmp_path)
    assert [output["token_ids"] for output in served.outputs] == texts
    assert served.counts is not None and served.counts["program_steps"] > 0
    begun = "not known of this vLLM: input_batch._post_update_kernel. Both sides make the first"
    passed = f"both sides made {STEPS} steps alike (0 of "
    assert [served.log.count(line) for line in (begun, passed)] == [bool(changes)] * 2
    assert served.counts["vllm_steps"].get(REASON, 0) == (STEPS if changes else 0)


@on_a_cpu
@pytest.mark.parametrize("difference", DIFFERING, ids=["draft table", "last tokens", "hidden states"])
def test_what_means_something_else_is_named(
    difference: str, models: Path, eagle_wheel: Path, texts: list[list[int]], tmp_path: Path
) -> None:
    """vLLM's own speculation goes on, and texts are the target's all the time."""
    served = in_a_copy(DIFFERING[difference], models, eagle_wheel, tmp_path)
    assert [output["token_ids"] for output in served.outputs] == texts
    assert "specc_program_served differs from vLLM's own step: " in served.log and difference in served.log
    assert "no program runs, vLLM's own steps do" in served.log
    assert served.counts is None, "no program is active any more"
    assert all(max(output["accepted"]) > 1 for output in served.outputs)


@on_a_cpu
def test_a_server_in_which_the_program_must_run_ends_with_the_difference(
    models: Path, eagle_wheel: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        RuntimeError, match=r"specc_program_served differs from vLLM's own step: \d of \d requests have other tokens"
    ):
        in_a_copy(DRAFT_TABLE, models, eagle_wheel, tmp_path, "specc_program_served")
