"""A target with state spaces (Mamba-2), in vLLM: what it keeps of them on a CPU with drafts is by a stand-in.

vLLM's own kernels for CPUs go on from all drafts, whether they were accepted or not. Its kernel for prompts there fails
where states are kept for prefixes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nemotron_models import write_nemotron_h
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_files import NEWEST, ON_GPU, VERSION
from vllm_models import SPACES
from vllm_programs import build_program, plugin_wheel, same_program
from vllm_server import Served, Variant, serve
from vllm_workload import is_greedy, workloads

pytestmark = [
    pytest.mark.skipif(ON_GPU, reason="the stand-in is a CPU's"),
    pytest.mark.skipif(VERSION != NEWEST, reason="the stand-in is that of what the newest calls"),
]
PLUGIN = """
def register():
    import vllm_testing_spaces

    vllm_testing_spaces.register()
"""
OWN = Variant("mtp", SPACES, target=SPACES, half=True)
"""Its module is right about one time in four."""
VARIANTS = [replace(OWN, program=True), replace(OWN, program=True, ahead=True, shapes=(0, 1, 3))]
each = pytest.mark.parametrize("variant", VARIANTS, ids=str, scope="module")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the target."""
    folder = tmp_path_factory.mktemp("spaces")
    write_nemotron_h(folder / SPACES, wide=8)
    return folder


@pytest.fixture(scope="module")
def runs(variant: Variant, models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, Served]:
    """What vLLM's own steps answer, and the program's, to the same requests."""
    made, jobs = AutoTokenizer.from_pretrained(models / SPACES), tmp_path_factory.mktemp("jobs")
    requests = workloads(lambda text: made(text).input_ids, (4, 5))

    def run(of: Variant) -> Served:
        folder = jobs / str(of)
        wheels = [build_program(same_program(of), models, folder / "program")] if of.program else []
        (folder / "plugin").mkdir(parents=True)
        wheel = plugin_wheel(PLUGIN, folder / "plugin", wheels)
        return serve(of.engine(models), requests, folder / "job", wheel=wheel, drafts=of.shapes)

    return run(variant.own), run(variant)


@each
def test_texts_are_the_targets_own(variant: Variant, models: Path, runs: tuple[Served, Served]) -> None:
    """Against transformers: each token is the most probable after the prompt and those before it."""
    model = AutoModelForCausalLM.from_pretrained(models / SPACES, dtype=torch.float32)
    for served in runs:
        for number, (request, output) in enumerate(zip(served.requests, served.outputs, strict=True)):
            if not is_greedy(request):
                continue
            prompt, answer = request["prompt"], output["token_ids"]
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
            assert logits.argmax(-1).tolist() == answer, number


@each
def test_the_program_accepts_what_vllms_own_step_does(variant: Variant, runs: tuple[Served, Served]) -> None:
    own, served = runs
    lengths = [output.get("accepted") for output in served.outputs]
    assert lengths == [output.get("accepted") for output in own.outputs]
    accepted = [length for of in lengths for length in of or ()]
    assert sum(accepted) > 1.15 * len(accepted) > 100


@each
def test_the_program_ran_the_steps_that_it_serves(variant: Variant, runs: tuple[Served, Served]) -> None:
    """Each of them has updated vLLM's tables in its verification; every block is free in the end."""
    own, served = runs
    assert served.counts is not None
    assert served.seen["updated"] == served.counts["program_steps"] > served.seen["steps"] / 3
    assert len([shape for shape, steps in served.counts["by_shape"].items() if steps]) == max(1, len(variant.shapes))
    for of in runs:
        assert of.seen["free_blocks"] == of.seen["num_blocks"] - 1
        assert of.seen["speculator"].startswith("MTPSpeculator") == (of is own)
