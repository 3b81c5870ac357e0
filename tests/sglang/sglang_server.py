"""Jobs for `serve.py`, each in a process of its own in SGLang's environment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from engine_job import LIMIT_S, run_job
from ports import free_port
from sglang_files import ALONE, BACKEND, DEVICE, DTYPE, GPUS, HERE, ON_GPU, PRECISE, PYTHON
from sglang_models import TOKEN_MAP
from sglang_workload import is_greedy

from specc.compiler.config.rules.shapes import shape_called

PREFILL_CHUNK = 64
SERVER = {"max_running_requests": 8, "chunked_prefill_size": PREFILL_CHUNK}
BUILT = "top_k,top_p,min_p,penalties,logit_bias,grammar"
"""What a program with `samples` is built for."""
SMALL_POOL = {"max_total_tokens": 400, "schedule_conservativeness": 0.1}
"""So few KV slots, and requests taken in so lightly, that some of them must be thrown out and begin anew."""
THROWN_OUT = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "8"}
"""Variables of an engine in which a request begins anew after every few forwards, however many slots there are."""
NCCL_ALONE = {"disable_custom_all_reduce": True, "enforce_disable_flashinfer_allreduce_fusion": True}
"""No kernels of others add up what ranks of a GPU have, which ask more of a machine."""
HEADS = ("EAGLE", "EAGLE3", "NEXTN")
"""Algorithms of SGLang's with which it is asked to draw drafts, and to weigh them by what they were drawn from."""
TURNS = count()
"""Of engines, which GPU each has."""
ADAPTED = HERE / "adaptive.json"
"""How SGLang changes the number of steps, by batches: often."""
PLANNED = "extra_buffer_lazy"
"""States of prefixes are kept at intervals, in a second place alone where a text may cross one."""
BRANCHES_APART = 3
"""Times as many where each branch of a tree begins a page of its own."""


@dataclass(frozen=True)
class Variant:
    """What one engine runs: `algorithm` is None where nothing is speculated, `draft` a model of `write_models`, if any.

    With `overlap` the next forward is launched before the results of the last are read, as on a GPU. With `program`
    a wheel runs its decode steps, with `samples` those of requests that ask for anything that `BUILT` has, too.
    With `token_map` the draft scores the tokens of `write_models`' file alone. `ranks` share out both models, in
    `groups` that have requests of their own each, and with `local_head` make logits of these alone. With `sharded`
    each keeps its columns of logits in the program's steps, with `experts` it has its part of the experts. `target` is
    a model of `write_models`, too. `attention` is the backend where it is not that of CPUs.
    `shapes` are those of a program with several, between which it changes at random at every step; the engine's own
    is the largest of each. So does it between several budgets. `verify` is the key of a program with `samples`, and as
    SGLang is asked to weigh drafts if it can be: on a CPU `block` is asked for as `rejection`, which is the same to all
    but its own draws. `head` is the key of the program's draft, `states` that of its target, and `budget` the program's
    own. `adaptive` has SGLang change the number of steps, among those of `ADAPTED`. With `records` it keeps records of
    a verification's nodes in place of recurrent states. `kept` is which of these it keeps for prefixes, where it does
    not choose.
    """

    algorithm: str | None = None
    draft: str = ""
    topk: int = 1
    num_draft_tokens: int = 4
    overlap: bool = False
    program: bool = False
    samples: bool = False
    token_map: bool = False
    ranks: int = 1
    groups: int = 1
    local_head: bool = False
    sharded: bool = False
    target: str = "target"
    num_steps: int = 3
    attention: str = ""
    page: int = 1
    shapes: str = ""
    verify: str = "target_only"
    head: str = "engine"
    states: str = "engine"
    experts: bool = False
    adaptive: bool = False
    budget: str = ""
    records: bool = False
    kept: str = ""

    def __str__(self) -> str:
        """For the names of tests and files."""
        form = "chain" if self.topk == 1 else "tree"
        named = [
            self.draft or str(self.algorithm).lower(),
            form,
            *["overlap"] * self.overlap,
            *["program"] * self.program,
            *["samples"] * self.samples,
            *["map"] * self.token_map,
            *[f"{self.ranks}ranks"] * (self.ranks > 1),
            *[f"{self.groups}groups"] * (self.groups > 1),
            *["local"] * self.local_head,
            *["sharded"] * self.sharded,
            *["experts"] * self.experts,
            *[self.attention] * bool(self.attention),
            *[f"page{self.page}"] * (self.page > 1),
            *["shapes"] * bool(self.shapes),
            *[self.verify] * (self.verify != "target_only"),
            *["adaptive"] * self.adaptive,
            *["records"] * self.records,
            *[self.kept] * bool(self.kept),
            *[f"budget{self.budget.replace(',', '-')}"] * bool(self.budget),
            *[self.head] * (self.head != "engine"),
            *[self.states] * (self.states != "engine"),
            *[f"{self.num_steps}steps"] * (self.num_steps != 3),
        ]
        return "-".join(named) if self.algorithm else "plain"

    @property
    def changes_to(self) -> set[str]:
        """The names of the shapes of a program that has several; none of one that has not."""
        if self.adaptive:
            entries = json.loads(ADAPTED.read_text()).values()
            return {str(steps) for entry in entries if isinstance(entry, dict) for steps in entry["candidate_steps"]}
        if "," not in self.budget:
            return set(filter(None, self.shapes.split(",")))
        numbers = [rows for rows in self.budget.split(",") if rows != "all"]
        own = f"{self.num_steps}x{self.topk}x{self.num_draft_tokens}" if self.topk > 1 else str(self.num_steps)
        drafted = [next(filter(None, [shape_called(name)])) for name in (self.shapes or own).split(",")]
        limited = {f"{shape}b{rows}" for shape in drafted for rows in numbers if int(rows) < shape.num_nodes}
        return {*map(str, drafted), *limited}

    @property
    def options(self) -> tuple[str, ...]:
        """What of a program's configuration is in no argument of the engine, for `build_program`."""
        shapes = ("--shapes", self.shapes) if self.shapes else ()
        shapes += ("--head", self.head) if self.head != "engine" else ()
        shapes += ("--states", self.states) if self.states != "engine" else ()
        shapes += ("--budget", self.budget) if self.budget else ()
        if self.sharded:
            return ("--logits", "sharded", "--outputs", "logprobs", *shapes)
        drawn = ("--verify", self.verify, "--sampling", BUILT)
        scored = "--outputs", "logprobs", "--best-logprobs", "5"
        return (*drawn, *scored, *shapes) if self.samples else shapes

    def engine(self, models: Path) -> dict[str, Any]:
        """Arguments of the engine."""
        given = {"model_path": str(models / self.target), "tp_size": self.ranks, **SERVER, **SMALL_POOL}
        if ON_GPU:
            given["attention_backend"] = BACKEND
            given |= NCCL_ALONE if self.ranks > 1 else {}
        given |= {"attention_backend": self.attention} if self.attention and not ALONE else {}
        given |= {"page_size": self.page} if self.page > 1 else {}
        given |= {"ep_size": self.ranks} if self.experts else {}
        given |= {"enable_linear_replayssm_spec": True} if self.records else {}
        given |= {"mamba_radix_cache_strategy": self.kept} if self.kept else {}
        if self.groups > 1:
            given |= {name: size * self.groups for name, size in SERVER.items()}
            given |= {"dp_size": self.groups, "enable_dp_attention": True, "enable_dp_lm_head": self.local_head}
        if self.page > 1 and self.topk > 1 and self.algorithm != "DFLASH":
            given["max_total_tokens"] *= BRANCHES_APART
        if self.algorithm in (None, "NEXTN") or ON_GPU:  # on a CPU SGLang turns it off by itself, but for assistants
            given["disable_overlap_schedule"] = not self.overlap
        if self.algorithm is None:
            return given
        given |= {"speculative_algorithm": self.algorithm, "speculative_num_draft_tokens": self.num_draft_tokens}
        if not self.draft:  # looked up
            return given | {"speculative_ngram_max_bfs_breadth": self.topk}
        if self.algorithm in ("DFLASH", "DSPARK"):  # which count the tokens of a block alone
            return given | {"speculative_draft_model_path": str(models / self.draft)}
        weighs = self.verify != "target_only" and self.algorithm in HEADS
        return given | {
            **({"speculative_use_rejection_sampling": True} if weighs else {}),
            "speculative_draft_model_path": str(models / self.draft),
            "speculative_num_steps": self.num_steps,
            "speculative_eagle_topk": self.topk,
            **({"speculative_token_map": str(models / TOKEN_MAP)} if self.token_map else {}),
            **({"speculative_adaptive": True, "speculative_adaptive_config": str(ADAPTED)} if self.adaptive else {}),
        }


PLAIN = Variant()


@dataclass(frozen=True)
class Served:
    """What came out of a job: answers in the order of its requests, SGLang's state at the end, its log."""

    requests: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    state: Mapping[str, Any]
    log: str


def greedy(served: Served) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    """The requests whose text is determined, with their answers."""
    for number, (request, output) in enumerate(zip(served.requests, served.outputs, strict=True)):
        if is_greedy(request):
            yield number, request, output


def accept_length(served: Served, beside: Served | None = None) -> float:
    """Tokens per verification, of requests whose drafts SGLang accepts by the same rule on every device.

    With `beside`, of those alone that got the same tokens there: in 16 bits a near tie may go either way, and another
    text has other drafts.
    """
    ended = [
        output
        for number, _, output in greedy(served)
        if output.get("spec_verify_ct")
        and (beside is None or output["token_ids"] == beside.outputs[number]["token_ids"])
    ]
    tokens, verifications = (sum(output[key] for output in ended) for key in ("completion_tokens", "spec_verify_ct"))
    return tokens / verifications


def serve(
    engine: Mapping[str, Any],
    requests: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    overlap: bool = False,
    wheel: Path | None = None,
    settings: Mapping[str, str] | None = None,
    limit_s: int = LIMIT_S,
) -> Served:
    """Run one engine for a list of requests, both as `serve.py` has them, with a program's wheel or without.

    `settings` are environment variables. For what is left behind and raised see `run_job`; an engine that finds a leak
    dies of it.
    """
    script = (str(PYTHON), str(HERE / "serve.py"))
    asked = {"SPECC_TEST_OVERLAP": "1" if overlap else "0", **(PRECISE if ALONE else {}), **(settings or {})}
    apart = {"port": free_port()} if engine.get("enable_dp_attention") else {}  # others are beside it, which ranks hold
    if engine.get("tp_size", 1) == 1 < GPUS:
        apart["base_gpu_id"] = next(TURNS) % GPUS
    job = {"device": DEVICE, "engine": {"dtype": DTYPE, **engine, **apart}, "requests": list(requests)}
    answer, log = run_job(script, job, folder, wheel=wheel, settings=asked, limit_s=limit_s)
    return Served(requests, answer["outputs"], answer["state"], log)
