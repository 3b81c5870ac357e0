"""One rank of programs with sharded logits: takes jobs as JSON, runs them with the others, and answers."""

from __future__ import annotations

import json
import os
import random
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fakes.drafts import Engine
from fakes.memory import scattered
from fakes.models import Model
from fakes.shards import Sharded
from fakes.tables import wild_models
from torch import Tensor

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.collective import GroupCollective, check_ranks
from specc.runtime.errors import SpeccError
from specc.runtime.plan.draft_head import HEAD
from specc.runtime.plan.files.plan_json import read_plan
from specc.runtime.plan.plan import TOKEN_MAP, Plan
from specc.runtime.step import Step

from .gloo import leave

PATIENCE = timedelta(seconds=60)
CPU = torch.device("cpu")
COLUMNS, STEPS = 96, 6


def run(job: dict[str, Any], rank: int, group: Any) -> dict[str, Any]:
    """Serve the job's requests: all that is handed out, and what is carried in the end, by bits; or how it ended."""
    config = load_text(job["config"], Path("ranks.yaml"), names(), needs).config
    plan, rng = read_plan(job["plan"]), random.Random(job["seed"])
    models, table = wild_models(config, rng, odd=[0.25]), scattered(config.pool_rows, COLUMNS, job["seed"])
    where = {"first": plan.kv.first_draft_position, "room": plan.kv.branch_room}
    engine = Engine.of_config(config, models, table, plan.kv_pools, **where)
    if job.get("dies") == rank:
        engine.on_call = lambda name, operands: os._exit(0) if name == "target" else None
    callbacks = Sharded(engine, config, rank) if config.file.logits == "sharded" else engine
    try:
        collective = GroupCollective(group) if plan.ranks > 1 else None
        if collective is not None:
            digest = ("b" if job.get("other") == rank else "a") * 64
            check_ranks(collective, plan.ranks, digest, CPU)
        given = plan, ReferenceBackend(), CPU, callbacks, table, engine.kv
        tables = brought(plan, models["draft"])
        step = Step(*given, tables, collective=collective, poison=0xA5)
        out = serve(step, plan, engine, rng)
    except SpeccError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"out": out, "pools": {name: bits(pool[1:]) for name, pool in step.pools.items()}, "error": None}


def brought(plan: Plan, draft: Model) -> dict[str, Tensor]:
    """The tables that an engine brings: of a head all entries, of which each rank reads its own."""
    known = {TOKEN_MAP: draft.tokens and torch.tensor(draft.tokens), HEAD: draft.head and draft.head.table}
    return {name: table for name, table in known.items() if name in plan.tables()}


def serve(step: Step, plan: Plan, engine: Any, rng: random.Random) -> list[dict[str, Any]]:
    """Prefill some requests, then decode batches of some of them."""
    rows = rng.sample(range(1, plan.size("P")), plan.buckets[-1])
    lengths = {row: rng.randint(1, 5) for row in rows}
    engine.prompts |= {row: [rng.randrange(plan.size("V")) for _ in range(length)] for row, length in lengths.items()}
    out = [defined(step.prefill(Batch(rows, list(lengths.values()))).outputs)]
    for _ in range(STEPS):
        chosen = rng.sample(rows, rng.randint(1, len(rows)))
        result = step.decode(Batch(chosen, [lengths[row] for row in chosen]), at_least=rng.choice([0, 1, 3]))
        out.append(defined(result.outputs))
        lengths |= dict(zip(chosen, result.new_seq_lens.tolist(), strict=True))
    return out


def defined(outputs: dict[str, Tensor] | Any) -> dict[str, Any]:
    """Outputs by name, without what is past the accepted length."""
    results: dict[str, Any] = {}
    for name, value in outputs.items():
        kept = value.clone()
        if value.dim() > 1 and "accept_lens" in outputs:
            past = torch.arange(value.shape[1]) >= outputs["accept_lens"][:, None]
            kept[past] = 0
        results[name] = bits(kept)
    return results


def bits(tensor: Tensor) -> list[Any]:
    """Floats as the integers that have their bits."""
    sizes = {2: torch.int16, 4: torch.int32}
    return (tensor.contiguous().view(sizes[tensor.dtype.itemsize]) if tensor.is_floating_point() else tensor).tolist()


def main() -> None:
    """Run all jobs that this rank has a part in, then end."""
    torch.set_num_threads(1)
    rank, size, port = (int(argument) for argument in sys.argv[1:4])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jobs = json.load(sys.stdin)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", PATIENCE, size, rank)
    for job in jobs:
        ranks = list(range(job["ranks"]))
        group: Any = dist.new_group(ranks, timeout=timedelta(seconds=job.get("patience", 60)))
        answer = run(job, rank, group) if rank in ranks else None
        print(json.dumps(answer), file=answers, flush=True)
        del group
    leave()


if __name__ == "__main__":
    main()
