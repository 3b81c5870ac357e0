"""vLLM's own speculation, and programs in its place: the texts of an engine without, whatever happens."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm_files import ON_GPU, VERSION
from vllm_models import ASSISTANT, GEMMA, SEVERAL
from vllm_programs import BUCKETS, build_program, plugin_wheel, same_program, settings
from vllm_server import GROUPED, MODEL_LEN, PLAIN, ROWS, Served, Variant, serve
from vllm_workload import greedy, is_greedy

SHAPES = (0, 1, 3)
HYBRID = Variant("mtp", "qwen3_next", target="qwen3_next", half=True)
"""Its target keeps recurrent state, which vLLM brings back to the last draft that is accepted."""
BROUGHT_BACK = ON_GPU or VERSION != "0.32.0"
"""Whether vLLM does so: on a CPU 0.32.0 fails to behind steps of fewer drafts, and its own texts are others."""
KEPT = replace(HYBRID, ahead=True, cached=True)
RECURRENT = [HYBRID, KEPT, replace(HYBRID, ahead=True, shapes=SHAPES), replace(KEPT, shapes=SHAPES)]
ASSISTED = Variant("mtp", ASSISTANT, target=GEMMA)
SPECULATING = [
    Variant("draft_model", "standalone"),
    Variant("draft_model", "standalone", ahead=True),
    Variant("eagle", "eagle"),
    Variant("eagle3", "eagle3", ahead=True),
    Variant("eagle3", "eagle3_part", ahead=True),
    Variant("mtp", "mimo", target="mimo"),
    Variant("mtp", "glm", target="glm"),
    Variant("mtp", "glm", target="glm", ahead=True),
    ASSISTED,
    replace(ASSISTED, ahead=True, shapes=SHAPES),
    Variant("dflash", "dflash"),
    Variant("dflash", "dflash", ahead=True),
    Variant("dflash", "dflash_speculators"),
    Variant("dflash", "dflash_windows", ahead=True),
    Variant("dspark", "dspark", ahead=True),
    Variant("dspark", "dspark_anchored"),
    Variant("dspark", "dspark_speculators", ahead=True),
    Variant("ngram"),
    Variant("ngram_gpu", ahead=True),
    Variant("draft_model", "standalone", shapes=SHAPES),
    Variant("eagle", "eagle", ahead=True, shapes=SHAPES),
    Variant("ngram", shapes=SHAPES),
    *(RECURRENT if BROUGHT_BACK else ()),
]
AHEAD = [*dict.fromkeys(replace(variant, ahead=True) for variant in SPECULATING)]
if ON_GPU:
    SPECULATING = [*AHEAD, *(replace(variant, canaries=False) for variant in AHEAD)]
PROGRAMS = [replace(variant, program=True) for variant in SPECULATING]
if ON_GPU:
    PROGRAMS += [replace(variant, program=True, capture="none") for variant in AHEAD[:2]]
HEADS = [
    Variant("draft_model", "standalone", program=True, head="weights"),
    Variant("eagle", "eagle", program=True, ahead=True, head="weights", shapes=SHAPES),
    Variant("eagle3", "eagle3_part", program=True, ahead=True, head="weights"),
    Variant("mtp", "mimo", target="mimo", program=True, head="weights"),
    Variant("mtp", "glm", target="glm", program=True, ahead=True, head="weights"),
    replace(ASSISTED, program=True, ahead=True, head="weights"),
    Variant("dflash", "dflash", program=True, ahead=True, head="weights"),
    Variant("dspark", "dspark", program=True, ahead=True, head="weights"),
]
PROGRAMS += HEADS
CHOOSING = [Variant("eagle", "eagle", program=True, ahead=True, shapes=SHAPES, shape=shape) for shape in ("auto", "1")]
CHOOSING += [replace(KEPT, program=True, shapes=SHAPES, shape="auto")] * BROUGHT_BACK
speculating = pytest.mark.parametrize("variant", [*SPECULATING, *PROGRAMS, *CHOOSING], ids=str)
HALF = Variant("eagle", "eagle", half=True, cached=True, ahead=True)
HALVES = [HALF, replace(HALF, program=True)]
every = pytest.mark.parametrize(
    "variant", [PLAIN, HYBRID.plain, ASSISTED.plain, *SPECULATING, *PROGRAMS, *CHOOSING, *HALVES], ids=str
)
programs = pytest.mark.parametrize("variant", [*PROGRAMS, HALVES[-1]], ids=str)
CACHED = VERSION != "0.32.0"
"""Whether vLLM takes the one block that prompts share: 0.32.0 computes the last of them anew where a head drafts."""
LEAST_ACCEPTED, MADE_UP = 1.3, 1.2
"""Tokens per verification of any of these drafts, or of a made-up one; 1 would be a draft that is always wrong."""
CLOSE, STEP = 1e-3, 0.125
"""How far log-probabilities may be apart in float32, and in bfloat16, where it is a step of logits from 16 to 32."""
LAYERS = {
    None: 4,
    "draft_model": 4 + 2,
    "eagle": 4 + 1,
    "eagle3": 4 + 1,
    "mtp": 4 + 1,
    "dflash": 4 + 2,
    "dspark": 4 + 2,
    "ngram": 4,
    "ngram_gpu": 4,
}
"""With KV caches, which are all watched."""
SPECULATORS = {
    "draft_model": "StandaloneARSpeculator",
    "eagle": "EagleSpeculator",
    "eagle3": "EagleSpeculator",
    "mtp": "MTPSpeculator",
    "glm": "MultiModuleMTPSpeculator",
    ASSISTANT: "Gemma4Speculator",
    "dflash": "DFlashSpeculator",
    "dspark": "DSparkSpeculator",
    "ngram": "NgramGPUSpeculator",
    "ngram_gpu": "NgramGPUSpeculator",
}
"""Of vLLM's own, by draft or method, so that a run without a program is one."""


def determined(served: Served) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    """The requests whose text is determined, with their answers."""
    for number, (request, output) in enumerate(zip(served.requests, served.outputs, strict=True)):
        if is_greedy(request):
            yield number, request, output


@pytest.mark.parametrize("variant", [PLAIN, HYBRID.plain, ASSISTED.plain], ids=str)
def test_without_speculation_texts_are_the_targets_own(variant: Variant, served: Served, models: Path) -> None:
    """Against transformers: each token is the most probable after the prompt and those before it."""
    model = AutoModelForCausalLM.from_pretrained(models / variant.target, dtype=torch.float32)
    for number, request, output in determined(served):
        prompt, answer = request["prompt"], output["token_ids"]
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == answer, number


@speculating
def test_texts_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    """Those of aborted requests as far as they go."""
    for number, request, output in determined(served):
        expected = plain.outputs[number]
        if "abort_after" in request:
            assert output["finish_reason"] == "abort"
            assert request["abort_after"] <= len(output["token_ids"]) < len(expected["token_ids"]), number
            assert output["token_ids"] == expected["token_ids"][: len(output["token_ids"])], number
        else:
            assert output["token_ids"] == expected["token_ids"], number
            assert output["finish_reason"] == expected["finish_reason"], number


@speculating
def test_logprobs_are_those_without_speculation(variant: Variant, served: Served, plain: Served) -> None:
    asked = [number for number, request, _ in determined(served) if "logprobs" in request["sampling"]]
    assert asked
    for number in asked:
        logprobs, expected = (run.outputs[number]["logprobs"] for run in (served, plain))
        assert logprobs == pytest.approx(expected, abs=STEP if variant.half else CLOSE), number


@speculating
def test_drafts_are_accepted(variant: Variant, served: Served) -> None:
    lengths = [length for output in served.outputs for length in output.get("accepted", [])]
    made_up = variant.recurrent or variant.draft == "dspark_anchored"
    assert sum(lengths) / len(lengths) > (MADE_UP if made_up else LEAST_ACCEPTED)


@every
def test_everything_that_was_meant_to_happen_happened(variant: Variant, served: Served, plain: Served) -> None:
    seen, outputs = served.seen, served.outputs
    # vLLM has graphs of a hybrid for all drafts alone: where numbers of drafts take turns, fewer steps have one.
    part = 5 if variant.recurrent and variant.shapes and not variant.program else 3
    assert seen["graphs"] > seen["steps"] / part if ON_GPU else not seen["graphs"], "steps whose target is a CUDA graph"
    own = SPECULATORS.get(variant.draft) or SPECULATORS.get(variant.method or "", "NoneType")
    assert variant.program or seen["speculator"] == own
    assert seen["async"] == variant.ahead
    assert seen["mixed"] > 3, "steps in which some requests are prefilled and others decode"
    assert seen["in_row_0"] > 3, "steps of a request that decodes in the tables' row 0"
    assert all(seen["batches"].get(str(size), 0) > 0 for size in range(1, ROWS + 1)), seen["batches"]
    full = [number for number, request, _ in determined(served) if request["sampling"]["max_tokens"] is None]
    ends = [len(served.requests[number]["prompt"]) + len(outputs[number]["token_ids"]) for number in full]
    assert len(ends) > 1 and set(ends) == {MODEL_LEN}
    assert any(output["finish_reason"] == "stop" for output in outputs)
    assert any(not is_greedy(request) for request in served.requests)
    assert any(output["cached_tokens"] for output in outputs) == (variant.cached and CACHED)
    if variant.method is not None:
        assert seen["preemptions"] > 0 or variant.method.startswith("ngram"), "n-grams need no room for drafts"
        assert seen["across_blocks"] > 3, "steps whose tokens lie in several blocks"
        assert seen["short_of_drafts"] > 0, "verifications of fewer drafts, close to the model's length"


@every
def test_every_block_is_free_at_the_end(variant: Variant, served: Served) -> None:
    """All but block 0, which vLLM keeps. That no other was written is looked at after every step.

    Where states are kept at the ends of blocks, block 0 stands for those in between, and for those behind a window.
    """
    seen = served.seen
    assert seen["free_blocks"] == seen["num_blocks"] - 1
    windows = variant.windowed or variant.draft in GROUPED
    assert (0 in seen["blocks"]) == (windows or (variant.recurrent and variant.cached))
    assert {*seen["blocks"], 0} == set(range(seen["num_blocks"]))
    more = (SEVERAL - 1) * (variant.draft == "glm") + variant.windowed + (variant.draft == ASSISTANT)
    assert len(seen["layers"]) == LAYERS[variant.method] + more


@programs
def test_the_program_ran_the_steps_that_it_serves(variant: Variant, served: Served) -> None:
    """And vLLM the others, in the same server."""
    assert served.counts is not None
    assert served.counts["program_steps"] > served.seen["steps"] / 3
    assert {"a prefill in the batch", "sampling"} <= set(served.counts["vllm_steps"])
    assert served.seen["stored"] > served.counts["program_steps"] / (6 if variant.shapes else 2), "by the program"
    assert served.seen["updated"] == served.counts["program_steps"], "in the verification"
    assert served.counts["captured"] == (variant.capture or "drafts" if ON_GPU else "none")


@programs
def test_the_program_accepts_what_vllms_own_step_does(
    variant: Variant, served: Served, running: Mapping[Variant, Future[Served]]
) -> None:
    """At every verification of every request; so what they sample, in steps that are left to vLLM, is equal, too."""
    own = running[variant.own].result()
    for number, (output, expected) in enumerate(zip(served.outputs, own.outputs, strict=True)):
        assert output.get("accepted") == expected.get("accepted"), number
        assert output["token_ids"] == expected["token_ids"], number


@pytest.mark.parametrize("variant", CHOOSING, ids=str)
def test_the_program_says_how_many_drafts_there_are(variant: Variant, served: Served) -> None:
    """One number, or any that its policy tries; what else there was of a step is vLLM's."""
    assert served.counts is not None
    assert served.counts["program_steps"] > served.seen["steps"] / 3
    ran = {int(shape) for shape, steps in served.counts["by_shape"].items() if steps}
    assert ran <= {*SHAPES} if variant.shape == "auto" else ran == {int(variant.shape)}
    most = max(length for output in served.outputs for length in output.get("accepted", [1]))
    assert most <= max(ran) + 1


@pytest.mark.parametrize("variant", CHOOSING, ids=str)
def test_it_is_measured_how_long_steps_take_where_a_policy_chooses(variant: Variant, served: Served) -> None:
    lines = [line for line in served.log.splitlines() if "specc: milliseconds of a step" in line]
    assert len(lines) == (variant.shape == "auto")
    for line in lines:
        times = ast.literal_eval(line[line.index("{") :])
        assert {name: tuple(of) for name, of in times.items()} == {str(shape): BUCKETS for shape in SHAPES}
        assert all(time > 0 for of in times.values() for time in of.values())


MEASURING = """
import sys
from types import SimpleNamespace

def register():
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from watched import by_block

    sample, ran = GPUModelRunner.sample_tokens, []

    def measuring(self, *operands, **named):
        done = sample(self, *operands, **named)
        ran.append(done)
        if len(ran) % 10 == 0:
            caches = by_block(self, self.kv_cache_config.num_blocks).values()
            states = [state for layer in caches if len(layer) > 1 for state in layer]
            nobodys = [state[0].clone() for state in states]
            (times,) = (sys.modules[name] for name in [*sys.modules] if name.endswith("._vllm.server.times"))
            assert times.measured(SimpleNamespace(model_runner=self))
            for state, before in zip(states, nobodys):
                state[0] = before  # dummy runs of vLLM's on a CPU keep their recurrent state in block 0
            print("measured beside requests")
        return done

    GPUModelRunner.sample_tokens = measuring
"""


@pytest.mark.skipif(ON_GPU, reason="it takes long beside others, and blocks and tables are the same")
@pytest.mark.parametrize("variant", [variant for variant in CHOOSING if variant.shape == "auto"], ids=str)
def test_measuring_changes_nothing_of_requests_that_run(
    variant: Variant, models: Path, tmp_path: Path, plain: Served
) -> None:
    """So nothing of a server that starts: texts are those without speculation, and no block of nobody is written."""
    wheel = plugin_wheel(MEASURING, tmp_path, [build_program(same_program(variant), models, tmp_path / "program")])
    served = serve(
        variant.engine(models), plain.requests, tmp_path / "job", wheel=wheel, settings=settings(variant, models)
    )
    assert served.log.count("measured beside requests") > 2
    for number, _, output in determined(served):
        assert output["token_ids"] == plain.outputs[number]["token_ids"], number
    assert served.counts is not None and served.counts["program_steps"] > served.seen["steps"] / 3


CARELESS = """
def register():
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner
    from watched import by_block

    sample = GPUModelRunner.sample_tokens

    def careless(self, *operands, **named):
        done = sample(self, *operands, **named)
        caches = by_block(self, self.kv_cache_config.num_blocks)
        caches["draft_model.model.layers.1.self_attn.attn"][0][-1, ..., -1] = 7
        return done

    GPUModelRunner.sample_tokens = careless
"""


def test_a_write_into_a_block_of_nobody_fails_the_job(models: Path, tmp_path: Path) -> None:
    """So a wheel's plugin runs in the engine, and what it spoils in a single layer of the draft is seen."""
    job = SPECULATING[0].engine(models), [greedy([5, 6, 7], 8)], tmp_path / "job"
    with pytest.raises(RuntimeError, match=r"draft_model.*: blocks \[13\] were written, which no request owns"):
        serve(*job, wheel=plugin_wheel(CARELESS, tmp_path))


@pytest.mark.skipif(ON_GPU, reason="what a server is compared with is the same on a CPU")
@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (PLAIN, "this server has no step that a program runs"),
        (Variant("eagle", "eagle"), "the program is of STANDALONE, the server's method is eagle"),
    ],
    ids=str,
)
def test_a_server_that_a_program_must_run_in_and_cannot_ends(
    engine: Variant, message: str, models: Path, tmp_path: Path
) -> None:
    wheel = build_program(Variant("draft_model", "standalone", program=True), models, tmp_path / "wheel")
    job = engine.engine(models), [greedy([5, 6, 7], 4)]
    with pytest.raises(RuntimeError, match=message):
        serve(*job, tmp_path / "must", wheel=wheel)
    if engine != PLAIN:
        served = serve(*job, tmp_path / "may", wheel=wheel, settings={"SPECC_PROGRAM": ""})
        assert message in served.log
        assert served.counts is None
