"""One rank of a data-parallel group: takes jobs as JSON, runs them with the others, and answers. Run by the tests."""

from __future__ import annotations

import importlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from specc.lab.engine.data_parallel import GroupPeers, LockStep
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import EngineError
from specc.lab.engine.serving.requests.request import Completion, StopConditions

from .conftest import Case, Models, load_engine
from .gloo import leave
from .ranks import Meeting
from .tree_engine import Faults

PATIENCE = timedelta(seconds=60)


def engine_of(job: dict[str, Any]) -> tuple[Engine, Faults]:
    """An engine for the job's case, and the callbacks that it was bound with."""
    case, directories = Case(**job["case"]), job["models"]
    drafts = {name: Path(path) for name, path in directories["drafts"].items()}
    models = Models(Path(directories["target"]), drafts, Path(directories["corpus"]), Path(directories["token_map"]))
    bound: list[Faults] = []

    def make(callbacks: Any) -> Faults:
        bound.append(Faults(callbacks))
        return bound[0]

    package = importlib.import_module(f"specc_program_{case.name}")
    engine = load_engine(Wrapping(package, make), case, models)
    return engine, bound[0]


class Wrapping:
    """A package whose programs bind other callbacks than they are given."""

    def __init__(self, package: Any, make: Any) -> None:
        self.package, self.make = package, make

    def load(self, device: str) -> Any:
        program = self.package.load(device)
        bind = program.bind
        program.bind = lambda callbacks, *rest, **options: bind(self.make(callbacks), *rest, **options)
        return program


def run(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Serve this rank's prompts; texts in the order of the prompts, the forwards, and how it ended."""
    engine, faults = engine_of(job)
    peers, forwards = (GroupPeers(dist.new_group(backend="gloo", timeout=PATIENCE)) for _ in range(2))
    faults.callbacks = meeting = Meeting(faults.callbacks, forwards)
    faults.countdown = job["fails_after"][rank]
    eos = engine.target.eos_token_ids
    order = [engine.add(prompt, StopConditions(new, eos)) for prompt, new in job["queues"][rank]]
    done, error = list[Completion](), None
    with LockStep(engine, peers) as ranks:
        try:
            while ranks.has_work:
                done += ranks.step()
        except EngineError as raised:
            error = f"{type(raised).__name__}: {type(raised.__cause__).__name__}"
    texts = {completion.request_id: completion.token_ids for completion in done}
    counts = {"prefills": engine.stats.prefills, "steps": engine.stats.steps, "idle": engine.stats.idle}
    return {"texts": [texts.get(number) for number in order], "calls": meeting.calls, "error": error, **counts}


def main() -> None:
    """Run all jobs, then end."""
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[1])
    rank, port = int(sys.argv[2]), int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    jobs = json.load(sys.stdin)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", PATIENCE, len(jobs[0]["queues"]), rank)
    for job in jobs:
        print(json.dumps(run(job, rank)), file=answers, flush=True)
    leave()


if __name__ == "__main__":
    main()
