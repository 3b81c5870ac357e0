"""Jobs for `serve.py`, each in a process of its own in vLLM's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_job import run_job
from vllm_files import DEVICE, HERE, ON_GPU, PYTHON
from vllm_models import GEMMA, HOT, HYBRIDS, SPACES

NUM_STEPS = 3
ROWS = 4
BLOCK = 32
"""Tokens of a block, the fewest on a CPU."""
MODEL_LEN = 160
SERVER = {
    "max_num_seqs": ROWS,
    "max_num_batched_tokens": 64,
    "max_model_len": MODEL_LEN,
    "block_size": BLOCK,
    "num_gpu_blocks_override": 14,
}
"""So few blocks that four long requests do not fit, and prompts that come in pieces."""
ON = {
    "cpu": {"enforce_eager": True},
    "cuda": {
        "attention_backend": "TRITON_ATTN",
        "gpu_memory_utilization": 0.02,
        "kv_cache_memory_bytes": 64 << 20,
    },
}
"""Several engines run beside each other, so none may measure how much memory is free."""
LIMIT_S = int(os.environ.get("SPECC_TEST_VLLM_S") or (240 if ON_GPU else 600))
"""For one engine, its start included."""

CACHED = {"enable_prefix_caching": True}
STATES = {False: 24, True: 46}
"""Blocks where a target keeps recurrent state: with speculation it keeps one behind every token of a step."""
WINDOWED = {"num_gpu_blocks_override": 24, "limit_mm_per_prompt": {"image": 0, "video": 0, "audio": 0}}
"""Where most layers see a window: a text has blocks of several groups. Nobody shows pictures."""
GROUPED = {"dflash_windows": 70}
"""Blocks by draft whose layers are in several groups of KV caches: there a layer takes blocks of its own."""
ALIGNED = {"mamba_cache_mode": "align"}
"""With prefix caching states are kept where blocks end."""
NGRAM = {"prompt_lookup_max": 4, "prompt_lookup_min": 1}
"""How many tokens n-grams have."""


@dataclass(frozen=True)
class Variant:
    """What one engine runs: `method` is vLLM's word, None where nothing is speculated.

    `target` and `draft` are models of `write_models`. With `program` a wheel runs steps. With `half` both models are in
    bfloat16. With `cached` prompts that begin alike share blocks. With `ahead` a step is scheduled before the results
    of the last are read. With `drafting` the program draws from the target, and chooses drafts so (`draft_sampling`);
    with `rejection` and `block` it draws them, and weighs them by what they were drawn from, as the engine then does.
    `canaries` watch the blocks that no request has. `capture` is what of a program is captured where vLLM
    captures graphs, by the word of its variable. A block has `block` tokens. Models are shared out over `ranks`.
    `shapes` are numbers of drafts, of which another one is asked for in every step; without any it is always the same.
    With `shape` it is the program that asks, by this word of its variable. With `head` the program computes the
    draft's, in that way (`draft.head`), with `token_map` of the tokens in `TOKEN_MAP` alone. With `adaptive` vLLM
    chooses how many drafts of each request are verified.
    """

    method: str | None = None
    draft: str = ""
    program: bool = False
    target: str = "target"
    half: bool = False
    cached: bool = False
    ahead: bool = False
    drafting: str = ""
    canaries: bool = True
    capture: str = ""
    block: int = BLOCK
    ranks: int = 1
    shapes: tuple[int, ...] = ()
    shape: str = ""
    head: str = ""
    token_map: bool = False
    adaptive: bool = False

    def __str__(self) -> str:
        """For the names of tests and files."""
        drafts = self.draft or self.method or ("plain" if self.target == "target" else f"plain-{self.target}")
        options = {"half": self.half, "cached": self.cached, "ahead": self.ahead}
        options |= {"unwatched": not self.canaries, "adaptive": self.adaptive}
        options["program"] = self.program
        words = [drafts, *(word for word, so in options.items() if so)]
        words += [self.drafting] if self.weighs or (self.adaptive and self.drafting) else []
        words += [f"head_{self.head}"] if self.head else []
        words += ["map"] if self.token_map else []
        words += [f"capture_{self.capture}"] if self.capture else []
        words += [f"blocks_{self.block}"] if self.block != BLOCK else []
        words += [f"shape_{self.shape}"] if self.shape else []
        words += [f"shapes_{'_'.join(map(str, self.shapes))}"] if self.shapes else []
        return "-".join([*words, f"ranks_{self.ranks}"] if self.ranks > 1 else words)

    @property
    def num_steps(self) -> str:
        """The key of the program's configuration."""
        return str([*self.shapes] or NUM_STEPS)

    @property
    def weighs(self) -> bool:
        """Say whether drafts are weighed by what they were drawn from."""
        return self.drafting in ("rejection", "block")

    @property
    def recurrent(self) -> bool:
        """Say whether the target keeps recurrent state."""
        return self.target in (*HYBRIDS, SPACES)

    @property
    def windowed(self) -> bool:
        """Say whether most layers of the target see a window of the text."""
        return self.target == GEMMA

    @property
    def plain(self) -> Variant:
        """Return the same target without speculation."""
        return Variant(target=self.target, half=self.recurrent, ahead=ON_GPU)

    @property
    def own(self) -> Variant:
        """The same without a program: vLLM's own steps."""
        draft = self.draft + HOT * self.token_map
        return replace(self, program=False, draft=draft, head="", token_map=False, capture="", shape="")

    def engine(self, models: Path) -> dict[str, Any]:
        """Arguments of the engine."""
        given = {"model": str(models / self.target), **SERVER, **ON[DEVICE]}
        given |= {"dtype": "bfloat16"} if self.half else {}
        given |= {"num_gpu_blocks_override": STATES[self.method is not None]} if self.recurrent else {}
        given |= WINDOWED if self.windowed else {}
        given |= {"num_gpu_blocks_override": GROUPED[self.draft]} if self.draft in GROUPED else {}
        given |= {"gdn_prefill_backend": "triton"} if self.recurrent and ON_GPU else {}
        given |= CACHED | (ALIGNED if self.recurrent else {}) if self.cached else {}
        given |= {"async_scheduling": self.ahead, "block_size": self.block, "tensor_parallel_size": self.ranks}
        if ON_GPU:
            given["compilation_config"] = graphs(ROWS if self.method is None else ROWS * (NUM_STEPS + 1))
        if self.method is None:
            return given
        drafts = {"model": str(models / self.draft)} if self.draft else NGRAM
        config = {"method": self.method, "num_speculative_tokens": NUM_STEPS, **drafts}
        config |= {"enable_adaptive_verification": True} if self.adaptive else {}
        if self.weighs:
            weighing = "block" if self.drafting == "block" else "standard"
            config |= {"draft_sample_method": "probabilistic", "rejection_sample_method": weighing}
        return given | {"speculative_config": config}


def graphs(most: int) -> dict[str, Any]:
    """Full CUDA graphs of decode steps for powers of two up to `most` tokens, so that a batch of three is padded."""
    sizes = [2**power for power in range(most.bit_length())]
    return {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}


PLAIN = Variant().plain


@dataclass(frozen=True)
class Served:
    """What came out of a job: answers in the order of its requests, what was seen on the way, the log.

    Of a program also how many steps it ran, how many were left to vLLM by reason, and what is captured; None without
    one.
    """

    requests: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    seen: Mapping[str, Any]
    log: str
    counts: Mapping[str, Any] | None


def serve(
    engine: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    wheel: Path | None = None,
    settings: Mapping[str, str] | None = None,
    canaries: bool = True,
    drafts: Sequence[int] = (),
) -> Served:
    """Run one engine for a list of requests, both as `serve.py` has them, with a program's wheel or without.

    For what is left behind and raised see `run_job`; an engine in which memory is written that no request owns dies.
    """
    script = (str(PYTHON), str(HERE / "serve.py"))
    job = {"device": DEVICE, "canaries": canaries, "engine": dict(engine), "requests": list(requests)}
    job["drafts"] = list(drafts)
    answer, log = run_job(script, job, folder, wheel=wheel, settings=settings, limit_s=LIMIT_S)
    return Served(requests, answer["outputs"], answer["seen"], log, answer["counts"])
