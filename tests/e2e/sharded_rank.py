"""One rank of the reference engine with sharded logits, as torchrun starts them; the first prints all texts."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from specc.lab.engine.data_parallel import GroupPeers
from specc.lab.engine.engine import Engine
from specc.lab.engine.models.loading import load_draft, load_target
from specc.lab.engine.serving.requests.request import StopConditions

from .gloo import leave
from .tensor_parallel import SameStep, of_rank


def serve(package: str, target: str, draft: str, prompts: list[str]) -> list[tuple[int, ...]]:
    """The texts of prompts, which are the same on every rank."""
    k = importlib.import_module(package)
    program = k.load("cpu")
    model = load_target(target, program.plan)
    head = load_draft(draft, program.plan, model)
    engine = Engine(of_rank(program, k.GroupCollective()), model, head, max_context=256)
    for prompt in prompts:
        engine.add(prompt, StopConditions(16, model.eos_token_ids))
    with SameStep(engine, GroupPeers(dist.new_group(backend="gloo"))) as ranks:
        return [
            completion.token_ids for completion in sorted(ranks.run(), key=lambda completion: completion.request_id)
        ]


def main() -> None:
    """Serve, then end."""
    torch.set_num_threads(1)  # sums in one order
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    package, target, draft, prompts = sys.argv[1:]
    done = serve(package, target, draft, json.loads(prompts))
    if dist.get_rank() == 0:
        print(json.dumps(done))
    leave()


if __name__ == "__main__":
    main()
