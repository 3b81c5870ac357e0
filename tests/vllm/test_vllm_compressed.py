"""Models of DeepSeek-V4's kind and of V4.1's, with drafts among their own weights: a module, or stages of blocks.

VLLM has the target of V4 in 16 bits on a CPU, and runs drafts there by what `vllm_testing_compressed` puts in place.
V4.1 runs by what `vllm_testing_engrams` does, without the compressed rows that its target has beside windows.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from compressed_models import PAGE, READ, WINDOW, Sizes, write_compressed, write_later
from engine_prompts import PREAMBLES, TAILS
from head_layouts import EXAMPLES
from text_statistics import surprise
from transformers import AutoTokenizer
from vllm_files import ON_GPU
from vllm_programs import build_program, plugin_wheel
from vllm_server import ROWS, Served, Variant, serve

pytestmark = pytest.mark.skipif(ON_GPU, reason="the models have sizes of kernels for CPUs")
REQUESTS = int(os.environ.get("SPECC_TEST_REQUESTS", "60"))
SLOTS, LATER_SLOTS = 64, 32
"""Tokens of a block of windows, the one kind that layers of drafts have: of V4's, and of V4.1's."""
SIZES = Sizes(experts=64, chosen=6, output=32)
"""What vLLM has kernels for on a CPU."""
ROOM = {
    "block_size": PAGE, "max_model_len": PAGE + 192, "max_num_batched_tokens": 2 * PAGE, "kv_cache_dtype": "fp8",
    "num_gpu_blocks_override": 220,
}  # fmt: skip
"""Blocks are those of all groups of KV caches."""
GRAMS = {"engram_config": {"cpu_offload": False}, "limit_mm_per_prompt": {"image": 0}}
"""V4.1 has tables of n-grams, and sees pictures."""
STAGES = Variant("dspark", "stages", target="stages", half=True, block=SLOTS, ahead=True)
MODULE = Variant("mtp", "module", target="module", half=True, block=SLOTS, ahead=True)
LATER = Variant("dspark", "later", target="later", half=True, block=LATER_SLOTS, ahead=True)
DRAWING = replace(STAGES, program=True, drafting="rejection")
PROGRAMS = [
    replace(STAGES, program=True),
    replace(STAGES, program=True, ahead=False, head="weights"),
    DRAWING,
    replace(MODULE, program=True),
    replace(LATER, program=True),
]
CLOSE = 0.03
"""How far mean accepted lengths may be apart: vLLM adds what a Markov head says in 16 bits, a program in 32."""
LEAST_ACCEPTED = 2.0
PLUGIN = """
def register():
    import vllm_testing_{0}

    vllm_testing_{0}.register()
"""
WAVE, WAVES, TOKENS = 4 * ROWS, 20, 4
"""Requests that arrive together and are drawn, how often, and how many tokens they have."""
HOT, COLDER = 2.0, 1.4
"""Temperatures of these: scores are far apart in such models."""
IMPROBABLE = 1e-4
each_program = pytest.mark.parametrize("variant", PROGRAMS, ids=str)


class Servers:
    """Those of variants, each asked once for greedy texts and once for texts that are drawn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "target")
        self.tokens: Callable[[str], list[int]] = lambda text: tokenizer(text).input_ids
        write_compressed(folder / STAGES.target, sizes=SIZES, blocks=True, n_mtp_layers=len(READ))
        write_compressed(folder / MODULE.target, sizes=SIZES)
        write_later(folder / LATER.target, SIZES)
        self.greedy: Callable[[Variant], Served] = functools.cache(lambda of: self.run(of, self.stream(4), ROWS))
        self.drawn: Callable[[Variant, float], Served] = functools.cache(
            lambda of, temperature: self.run(of, self.waves(temperature), WAVE)
        )

    def run(self, variant: Variant, given: list[dict[str, Any]], rows: int) -> Served:
        """What a server answers, whose draft is named by its method alone."""
        engine: dict[str, Any] = variant.engine(self.folder) | ROOM | {"max_num_seqs": rows}
        later = variant.target == LATER.target
        engine |= GRAMS if later else {}
        if variant.method is not None:
            engine["speculative_config"].pop("model")
        name = f"{variant.target}-{variant}-{rows}-{given[0]['sampling']['temperature']}"
        folder, code = self.folder / "served" / name, PLUGIN.format("engrams" if later else "compressed")
        wheels = [build_program(variant, self.folder, folder / "wheel", (1, 2, rows))] if variant.program else []
        (folder / "plugin").mkdir(parents=True)
        return serve(engine, given, folder / "job", wheel=plugin_wheel(code, folder / "plugin", wheels))

    def stream(self, seed: int) -> list[dict[str, Any]]:
        """Greedy requests that join and end at any time, some behind texts that are longer than a page."""
        random, made = Random(seed), list[dict[str, Any]]()
        for number in range(REQUESTS):
            text = "".join(random.choices(PREAMBLES, k=random.choice((1, 2, 4, 10)))) + random.choice(TAILS)
            tokens = random.choice((3, random.randint(8, 24), random.randint(40, 60)))
            request: dict[str, Any] = {"prompt": self.tokens(text)[-PAGE - 90 :]}
            request["sampling"] = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
            if number:
                request["after"] = [max(0, number - random.randint(1, ROWS)), random.choice((0, 1, 6))]
            made.append(request)
        return made

    def waves(self, temperature: float) -> list[dict[str, Any]]:
        """Requests that are drawn behind one prompt, each wave when the last one has its tokens."""
        prompt = self.tokens(PREAMBLES[2] + TAILS[0])
        asked = {"temperature": temperature, "max_tokens": TOKENS, "ignore_eos": True}
        made: list[dict[str, Any]] = []
        for number in range(WAVE * WAVES):
            behind = {"after": [number // WAVE * WAVE - 1, TOKENS]} if number >= WAVE else {}
            made.append({"prompt": prompt, "sampling": asked} | behind)
        return made


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Servers:
    """All that these tests ask."""
    return Servers(tmp_path_factory.mktemp("compressed"))


def alone(variant: Variant) -> Variant:
    """The same target without speculation."""
    return Variant(target=variant.target, half=True, block=variant.block)


def own(variant: Variant) -> Variant:
    """VLLM's own steps."""
    return replace(variant, program=False, head="", ahead=True)


def accepted(served: Served) -> float:
    """The mean accepted length."""
    lengths = [length for output in served.outputs for length in output.get("accepted", [])]
    return sum(lengths) / len(lengths)


@pytest.mark.parametrize("variant", [*PROGRAMS, *dict.fromkeys(map(own, PROGRAMS))], ids=str)
def test_texts_are_those_without_speculation(variant: Variant, servers: Servers) -> None:
    """Of vLLM's own steps, too."""
    served, plain = servers.greedy(variant), servers.greedy(alone(variant))
    for number, (output, expected) in enumerate(zip(served.outputs, plain.outputs, strict=True)):
        assert output["token_ids"] == expected["token_ids"], number
    ends = [
        len(request["prompt"]) + len(output["token_ids"])
        for request, output in zip(served.requests, plain.outputs, strict=True)
    ]
    assert max(ends) > PAGE > WINDOW
    assert served.seen["mixed"] > 3 and served.seen["in_row_0"] > 3
    assert all(served.seen["batches"].get(str(size), 0) > 0 for size in range(1, ROWS + 1)), served.seen["batches"]


@each_program
def test_as_much_is_accepted_as_of_vllm_s_own_drafts(variant: Variant, servers: Servers) -> None:
    mine, vllms = accepted(servers.greedy(variant)), accepted(servers.greedy(own(variant)))
    assert mine == pytest.approx(vllms, rel=CLOSE)
    assert vllms > LEAST_ACCEPTED


@each_program
def test_the_program_ran_the_steps_that_it_serves(variant: Variant, servers: Servers) -> None:
    served = servers.greedy(variant)
    assert served.counts is not None
    assert served.counts["program_steps"] > served.seen["steps"] / 3
    assert served.counts["vllm_steps"].keys() <= {"a prefill in the batch", "no blocks for drafts", "short of drafts"}


def test_drafts_that_are_drawn_leave_the_distribution_as_it_is(servers: Servers) -> None:
    """That of vLLM's texts without speculation, which texts of another temperature do not have."""
    texts = {
        temperature: [output["token_ids"] for output in servers.drawn(alone(DRAWING), temperature).outputs]
        for temperature in (HOT, COLDER)
    }
    served = servers.drawn(DRAWING, HOT)
    drawn = [output["token_ids"] for output in served.outputs]
    assert surprise((drawn, texts[HOT])) > IMPROBABLE > surprise((drawn, texts[COLDER]))
    assert served.counts is not None and served.counts["program_steps"] > 2 * WAVES
    assert "sampling" not in served.counts["vllm_steps"]
