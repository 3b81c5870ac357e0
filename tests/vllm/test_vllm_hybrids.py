"""Targets that keep recurrent state, in vLLM: it brings the state back to the last token that a program accepts.

`test_vllm.py` has what such a target has in common with others. Here its texts are shown to depend on the state, and
servers run the programs that `specc vllm check` writes for them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_fixtures import side_by_side, started
from engine_job import CONFIG, built, specc
from hybrid_models import VOCAB, decided
from ruamel.yaml import YAML
from test_vllm import BROUGHT_BACK, HYBRID, STEP, determined
from transformers import AutoModelForCausalLM
from vllm_files import DEVICE, ON_GPU, PYTHON
from vllm_models import HYBRIDS
from vllm_programs import build_program, plugin_wheel, same_program
from vllm_server import NUM_STEPS, Served, Variant, graphs, serve
from vllm_workload import greedy

needs_states = pytest.mark.skipif(not BROUGHT_BACK, reason="vLLM itself does not bring states back there")
OTHERS = 24
"""How many tokens follow 64 texts that end in one token, at least."""


@pytest.mark.parametrize("target", HYBRIDS)
def test_texts_depend_on_what_a_state_remembers(target: str, models: Path) -> None:
    """Other tokens follow one token behind other texts, and rounding decides on none of them."""
    model = AutoModelForCausalLM.from_pretrained(models / target, dtype=torch.float32)
    followed, ahead = decided(lambda texts: model(texts).logits)
    assert followed > OTHERS
    assert ahead > 4 * STEP


@needs_states
@pytest.mark.parametrize("variant", [replace(HYBRID, ahead=ON_GPU)], ids=str)
def test_drafts_are_right_about_one_time_in_four(variant: Variant, served: Served) -> None:
    """States are brought back from all places of a step, and most of them from the first."""
    lengths = [length for _, _, output in determined(served) for length in output.get("accepted", [])]
    share = sum(length > 1 for length in lengths) / len(lengths)
    assert 0.15 < share < 0.35
    assert {*lengths} == set(range(1, NUM_STEPS + 2))


FAULTY = """
def register():
    from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

    state = MambaHybridModelState.postprocess_state

    def faulty(self, rows, accepted, *more):
        state(self, rows, {count}, *more)

    MambaHybridModelState.postprocess_state = faulty
"""


@needs_states
@pytest.mark.skipif(ON_GPU, reason="texts show the same on a CPU")
@pytest.mark.parametrize("count", ["1", "(accepted - 1).clamp(min=1)", "(accepted + 1).clamp(max=4)"])
def test_a_state_that_is_of_another_token_is_another_text(count: str, models: Path, tmp_path: Path) -> None:
    """It is that of the first token, of the one before the last that is accepted, or of the one behind it."""
    requests = [greedy(list(range(5 + number, 25 + number)), 24) for number in range(4)]
    variant = replace(HYBRID, program=True)
    wheel = plugin_wheel(
        FAULTY.format(count=count), tmp_path, [build_program(same_program(variant), models, tmp_path / "program")]
    )
    served = serve(variant.engine(models), requests, tmp_path / "job", wheel=wheel)
    model = AutoModelForCausalLM.from_pretrained(models / variant.target, dtype=torch.float32)
    prompts = torch.tensor([request["prompt"] for request in requests])
    with torch.inference_mode():
        texts = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=24, do_sample=False, eos_token_id=None
        )[:, prompts.shape[1] :].tolist()
    same = [output["token_ids"] == text for output, text in zip(served.outputs, texts, strict=True)]
    assert sum(same) < len(same) / 2


LENGTHS = (17, 33, 64, 5, 200, 90, 128, 31, 47, 300, 12, 77, 150, 260, 41, 99, 23, 68, 180, 29, 51, 240, 14, 110)
SHARED = 208
"""Tokens that the prompts of the last requests begin with."""
AGAIN, TOKENS, SEATS = 4, 160, 16
TARGET = "qwen3_next_wide"
SERVER = {"max_model_len": 512, "max_num_seqs": SEATS, "max_num_batched_tokens": 512}
BESIDE = {
    "cpu": {"block_size": 32},
    "cuda": {"gdn_prefill_backend": "triton", "compilation_config": graphs(SEATS * (NUM_STEPS + 1))},
}
"""More arguments of a server: on a CPU a block has 128 tokens by default, which is more than a state needs."""
ON = {
    "cpu": {"enforce_eager": True},
    "cuda": {"gpu_memory_utilization": 0.02, "kv_cache_memory_bytes": 1 << 30},
}
"""What tests need beside the arguments of a server."""
SIZED = re.compile(r"Setting attention block size to (\d+) tokens")
"""What the log of a server says of its blocks where a state does not fit into those that are asked for."""
FLASHINFER = 64
"""Of how many tokens a block is a multiple where FlashInfer prefills and prefixes are kept."""
MTP = {"method": "mtp", "num_speculative_tokens": NUM_STEPS}
UNCACHED = {"enable_prefix_caching": False}
RUNS = {
    "plain": UNCACHED,
    "own": {"speculative_config": MTP, **UNCACHED},
    "program": {"speculative_config": MTP, **UNCACHED},
    "own-default": {"speculative_config": MTP},
    "program-default": {"speculative_config": MTP},
}
"""By default prefixes are kept, and states at the ends of blocks."""
WITHIN = 0.02
"""How far mean accepted lengths may be from each other."""


def long_requests() -> list[dict[str, Any]]:
    """Return requests that are more than the server has rows, the last of which come behind others."""
    draw = random.Random(3)
    begin = [draw.randrange(VOCAB) for _ in range(SHARED)]
    prompts = [[draw.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]
    made = [greedy(prompt, TOKENS) for prompt in prompts]
    for number in range(AGAIN):
        made.append(greedy([*begin, *prompts[number]], TOKENS) | {"after": [number, TOKENS // (2 - number % 2)]})
    return made


def command(models: Path, engine: Mapping[str, Any]) -> list[str]:
    """Return the command that starts a server with these arguments of `vllm.EngineArgs`."""
    words = ["vllm", "serve", str(models / TARGET)]
    for name, value in engine.items():
        flag = name.replace("_", "-")
        switch = {True: [f"--{flag}"], False: [f"--no-{flag}"]}
        text = json.dumps(value) if isinstance(value, dict) else str(value)
        words += switch[value] if isinstance(value, bool) else [f"--{flag}", text]
    return words


def engine_of(models: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of an engine; what `serve.py` would say of prefixes is left to vLLM."""
    more = {"enable_prefix_caching": None, "dtype": "bfloat16", **ON[DEVICE]}
    return {"model": str(models / TARGET), **more, **given}


def block(log: str) -> int:
    """Return how many tokens a block has by a server's log."""
    [size] = {int(match[1]) for match in SIZED.finditer(log)}
    return size


def checked(models: Path, given: Mapping[str, Any], place: Path, *asked: str) -> int:
    """Write what `check` does for a server, with these options, into a new folder, and return its tokens of a block."""
    place.mkdir()
    words = ("--verify", "greedy", "--name", "long", "-o", str(place / CONFIG))
    specc("vllm", "check", *asked, *words, "--", *command(models, given))
    size: int = YAML(typ="safe").load(place / CONFIG)["page_size"]
    return size


@pytest.fixture(scope="module")
def long_runs(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Served]]]:
    """Start servers without speculation, with vLLM's own, and with programs of configurations by `check`."""
    folder, requests = tmp_path_factory.mktemp("long"), long_requests()

    def program(name: str, given: Mapping[str, Any]) -> Path:
        """Build what `check` writes. On a GPU it knows how many tokens a block has, on a CPU a log says that."""
        asked = []
        if not ON_GPU:
            own = runs[name.replace("program", "own")].result()
            asked = ["--gpu", "cpu", "--page-size", str(block(own.log))]
        checked(models, given, folder / f"{name}-program", *asked)
        return built(folder / f"{name}-program")

    def run(name: str) -> Served:
        given = SERVER | BESIDE[DEVICE] | RUNS[name]
        wheel = program(name, given) if name.startswith("program") else None
        return serve(engine_of(models, given), requests, folder / name, wheel=wheel, canaries=False)

    with side_by_side(len(RUNS) if ON_GPU else 2) as pool:
        runs = started(pool, RUNS, run)
        yield runs


def differences(served: Served, plain: Served) -> int:
    """Count the texts that are not those without speculation."""
    pairs = zip(served.outputs, plain.outputs, strict=True)
    return sum(one["token_ids"] != other["token_ids"] for one, other in pairs)


def accepted(served: Served) -> float:
    """Return the mean accepted length."""
    lengths = [length for output in served.outputs for length in output["accepted"]]
    return sum(lengths) / len(lengths)


def row(name: str, served: Served, plain: Served) -> str:
    """Return the figures of a server as a row of a table."""
    texts, cached = len(plain.outputs), sum(bool(output["cached_tokens"]) for output in served.outputs)
    counts = f"{(served.counts or {}).get('program_steps', 0)} of {served.seen['steps']}"
    length = f"{accepted(served):.3f}"
    return (
        f"| {name} | {block(served.log)} | {differences(served, plain)} of {texts} | {length} | {cached} | {counts} |"
    )


HEAD = "| server | tokens of a block | texts that differ | accepted | prompts of kept prefixes | steps of the program |"


@needs_states
@pytest.mark.parametrize("kept", ["", "-default"])
def test_long_texts_of_a_program_that_check_has_written(kept: str, long_runs: Mapping[str, Future[Served]]) -> None:
    """No more of them differ from those without speculation than with vLLM's own, and as many drafts are accepted."""
    plain, own, served = (long_runs[name].result() for name in ("plain", f"own{kept}", f"program{kept}"))
    print("", HEAD, "|---" * 6 + "|", row(f"own{kept}", own, plain), row(f"program{kept}", served, plain), sep="\n")
    assert {len(output["token_ids"]) for output in plain.outputs} == {TOKENS}
    assert differences(served, plain) <= differences(own, plain)
    assert accepted(served) == pytest.approx(accepted(own), rel=WITHIN)
    assert served.counts is not None and served.counts["program_steps"] > served.seen["steps"] / 2
    for run in (own, served):
        assert any(output["cached_tokens"] for output in run.outputs) == bool(kept)


@pytest.mark.skipif(not ON_GPU, reason="check says how many tokens a block has on a GPU alone")
@pytest.mark.parametrize("prefill", ["triton", "default"])
def test_check_knows_the_blocks_of_a_server_by_default(prefill: str, models: Path, tmp_path: Path) -> None:
    """The server's log says the same, once it has loaded its models, and `check` with vLLM's own word and without.

    FlashInfer is not in the environment. Where vLLM would prefill with it, the engine may end behind that.
    """
    given = SERVER | BESIDE[DEVICE] | RUNS["own-default"]
    if prefill == "default":
        del given["gdn_prefill_backend"]
    with suppress(RuntimeError):
        serve(engine_of(models, given), [], tmp_path / "job", canaries=False)
    size = block((tmp_path / "job" / "log.txt").read_text(errors="replace"))
    for name, words in {"its table": (), "vLLM's own word": ("--exact", str(PYTHON))}.items():
        said = checked(models, given, tmp_path / name.replace(" ", "-"), *words)
        print(f"| blocks, prefill by {prefill} | {size} by the log | {said} by check and {name} |")
        assert said == size
    assert prefill == "triton" or size % FLASHINFER == 0
