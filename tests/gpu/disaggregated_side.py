"""A process that prefills or decodes on a GPU, as its one argument says in JSON; its answer is a line of JSON.

The tests start two of them, so that neither shares a CUDA context, or its end, with the other or with the tests.
"""

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
from torch import Tensor

from specc.lab.engine.disaggregation import Channel, DecodeWorker, PrefillWorker, Role, connect
from specc.lab.engine.disaggregation.messages import Patience
from specc.lab.engine.engine import Engine
from specc.lab.engine.models.loading import load_draft, load_target
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions

MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
HOST = "127.0.0.1"
START_SECONDS = 240.0
"""The other side may still be loading its libraries."""


@dataclass
class Dying:
    """A channel that takes its process along instead of sending one more tensor than `left`."""

    channel: Channel
    left: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)

    def send(self, tensor: Tensor, timeout: float) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        self.channel.send(tensor, timeout)


def make_engine(job: dict[str, Any]) -> Engine:
    """The job's program with the example models, on the job's GPU."""
    program = importlib.import_module(job["package"]).load(job["device"])
    target = load_target(MODELS / "target", program.plan, job["device"])
    draft = load_draft(MODELS / job["draft"], program.plan, target) if job["draft"] else None
    return Engine(program, target, draft, max_context=256)


def prefill(job: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Announce all prompts, prefill and send them; what `step` said of each."""
    worker = PrefillWorker(engine, connect(Role.prefill, HOST, job["port"], job["channel"], timeout=START_SECONDS))
    for name, prompt in job["prompts"].items():
        worker.add(name, prompt, StopConditions(job["new"], engine.target.eos_token_ids))
    if job["whole"] is not None:
        tensors = 1 + sum(len(pool.buffers) for pool in engine.pools.values())
        dying: Any = Dying(worker.channel, job["whole"] * (2 + tensors) + 2 + tensors // 2)
        worker.channel = dying
    gone: dict[str, Any] = {}
    while worker.has_work:
        gone |= worker.step()
    worker.close()
    return {"gone": {name: error and str(error) for name, error in gone.items()}, **what_is_left(engine)}


def decode(job: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """Decode what comes; the outcomes, what the target alone writes, and how it was done with and without moving."""
    worker = DecodeWorker(engine, Patience(moving=job["moving"]))
    worker.connect(connect(Role.decode, HOST, job["port"], job["channel"], timeout=START_SECONDS))
    outcomes = list(worker.serve())
    answer: dict[str, Any] = {"prefills": engine.stats.prefills, "unhealthy": engine.stats.unhealthy}
    answer["accepted"] = engine.stats.mean_accept_len
    answer["tokens"] = {o.request: o.completion.token_ids for o in outcomes if o.completion}
    answer["errors"] = {o.request: [type(o.error).__name__, str(o.error)] for o in outcomes if o.error}
    engine.stats.accept_lens.clear()
    conditions = StopConditions(job["new"], engine.target.eos_token_ids)
    stayed = engine.generate(job["prompts"].values(), conditions)
    answer["accepted_here"] = engine.stats.mean_accept_len
    texts = (greedy(engine.target, c.prompt_ids, job["new"], engine.target.eos_token_ids) for c in stayed)
    answer["expected"] = dict(zip(job["prompts"], texts, strict=True))
    return answer | what_is_left(engine)


def what_is_left(engine: Engine) -> dict[str, int]:
    """Pages and rows that somebody still holds."""
    engine.prefixes.clear()
    pages = engine.allocator.capacity - engine.allocator.free_pages
    return {"pages": pages, "rows": engine.plan.size("P") - 1 - engine.table.free_rows}


def main() -> None:
    """Run the job; nothing but the answer goes to standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.argv[1])
    torch.cuda.set_device(job["device"])
    answer = {"prefill": prefill, "decode": decode}[job["role"]](job, make_engine(job))
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
