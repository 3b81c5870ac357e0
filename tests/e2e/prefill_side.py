"""The process that prefills: takes jobs as lines of JSON, runs each, and answers with a line. Run by the tests."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specc.lab.engine.disaggregation import Channel, PrefillWorker, Role, connect
from specc.lab.engine.serving.requests.request import StopConditions

from .conftest import Case, Models, load_engine


@dataclass
class Dying:
    """A channel that takes its process along after so many more tensors, once told to."""

    channel: Channel
    left: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)

    def send(self, tensor: torch.Tensor, timeout: float) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.left is not None:
            self.left -= 1
        self.channel.send(tensor, timeout)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Prefill the job's prompts for the peer at its port; what `step` said of each request, and what is left."""
    case, directories = Case(**job["case"]), job["models"]
    drafts = {name: Path(path) for name, path in directories["drafts"].items()}
    models = Models(Path(directories["target"]), drafts, Path(directories["corpus"]), Path(directories["token_map"]))
    engine = load_engine(importlib.import_module(f"specc_program_{case.name}"), case, models)
    channel = Dying(connect(Role.prefill, "127.0.0.1", job["port"]))
    try:
        worker = PrefillWorker(engine, channel)
    except Exception as error:
        return {"refused": type(error).__name__, "message": str(error)}
    for name, prompt in job["prompts"].items():
        worker.add(name, prompt, StopConditions(job["new"], engine.target.eos_token_ids))
    channel.left = job["dies_after"]
    prefilled: dict[str, Any] = {}
    while worker.has_work:
        prefilled |= worker.step()
    gone = {name: error and str(error) for name, error in prefilled.items()}
    worker.close()
    engine.prefixes.clear()
    lost = engine.allocator.capacity - engine.allocator.free_pages
    return {"gone": gone, "pages": lost, "rows": engine.plan.size("P") - 1 - engine.table.free_rows}


def main() -> None:
    """Serve jobs until there are no more."""
    torch.set_num_threads(1)
    sys.path.insert(0, sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        importlib.invalidate_caches()
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
