"""Serve one job with one engine of vLLM: `.vllm/bin/python tests/vllm/serve.py JOB.json OUT.json`.

A job is `{"device": "cpu" | "cuda", "canaries": bool, "drafts": [...], "engine": {...}, "requests": [...]}`: whether
`watch.py` fills blocks of nobody, numbers of drafts of which each step has another one (none: as the server has it),
arguments of `vllm.EngineArgs` beside those of `ENGINE`, and for each request

* `prompt`, its token ids; `sampling`, vLLM's sampling parameters;
* `after`, `[k, n]`: it arrives when request k has n tokens or has ended;
* `abort_after`, a number of tokens after which it is aborted.

Everything happens in this process, one step after the other, so a job has one outcome. The answer has what vLLM said
for each request, and what `watch.py` saw. Memory that is written though no request owns it ends the process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
ENVIRONMENT_ON = {
    "cpu": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TRITON_INTERPRET": "1"},
    "cuda": {"VLLM_FLOAT32_MATMUL_PRECISION": "highest", "TRITON_F32_DEFAULT": "ieee"},
}
"""On a GPU no product of float32 is rounded to TF32, in torch's matrix products or in Triton's."""
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "enable_prefix_caching": False,
    "disable_log_stats": True,
    "seed": 1,
    "worker_extension_cls": "watched.Watched",
}


class Job:
    """The requests of a job, and how far each has come."""

    def __init__(self, engine: Any, requests: list[dict[str, Any]]) -> None:
        """`engine` is a vLLM LLMEngine."""
        self.engine = engine
        self.requests = requests
        self.waiting = list(range(len(requests)))
        self.names: dict[str, int] = {}
        self.answers: list[dict[str, Any]] = [{"token_ids": [], "finish_reason": None} for _ in requests]

    def run(self) -> None:
        """Serve all requests to their ends."""
        while self.waiting or self.engine.has_unfinished_requests():
            due = [number for number in self.waiting if self.is_due(number)]
            if not due and not self.engine.has_unfinished_requests():
                raise SystemExit(f"requests {self.waiting} wait for what never comes")
            for number in due:
                self.waiting.remove(number)
                self.add(number)
            for output in self.engine.step():
                self.take(output)

    def is_due(self, number: int) -> bool:
        """Whether a request may arrive."""
        predecessor, tokens = self.requests[number].get("after", (None, 0))
        return (
            predecessor is None
            or self.answers[predecessor]["finish_reason"]
            or len(self.answers[predecessor]["token_ids"]) >= tokens
        )

    def add(self, number: int) -> None:
        """Hand a request over."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        request = self.requests[number]
        asked = {"detokenize": False, **request["sampling"]}
        if "structured_outputs" in asked:
            asked["structured_outputs"] = StructuredOutputsParams(**asked["structured_outputs"])
        sampling = SamplingParams(**asked)
        name = self.engine.add_request(str(number), {"prompt_token_ids": request["prompt"]}, sampling)
        self.names[name] = number

    def take(self, output: Any) -> None:
        """Note what a request has by now, and abort it if it has enough."""
        number, [text] = int(output.request_id), output.outputs
        answer = self.answers[number]
        answer["token_ids"] = list(text.token_ids)
        answer["finish_reason"] = text.finish_reason
        answer["cached_tokens"] = output.num_cached_tokens
        if text.logprobs is not None:
            pairs = zip(text.token_ids, text.logprobs, strict=True)
            answer["logprobs"] = [values[token].logprob for token, values in pairs]
            answer["best"] = [
                sorted((token, logprob.rank, logprob.logprob) for token, logprob in place.items())
                for place in text.logprobs
            ]
        if not output.finished and len(text.token_ids) >= self.requests[number].get("abort_after", float("inf")):
            answer["finish_reason"] = "abort"
            self.engine.abort_request([output.request_id])


class Turns:
    """In the place of the table in which vLLM's scheduler looks up how many drafts the next step has: any number."""

    def __init__(self, drafts: list[int]) -> None:
        """Draw from these."""
        self.drafts, self.random = drafts, Random(7)

    def __getitem__(self, requests: int) -> int:
        """Another one than in the last step, most of the time."""
        return self.random.choice(self.drafts)


def keep_async() -> None:
    """Take away what turns async scheduling off on a CPU.

    A step is over there when it is launched; the order in which the host schedules steps and reads results is that of
    a GPU, and what it knows of lengths and drafts.
    """
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def kept(config: Any) -> None:
        asked = config.scheduler_config.async_scheduling
        check(config)
        config.scheduler_config.async_scheduling = asked

    CpuPlatform.check_and_update_config = staticmethod(kept)


def see_no_pictures() -> None:
    """Put a stand-in where a library of pictures is missing, which classes of models import that read text as well.

    VLLM looks at classes in a process of its own.
    """
    if importlib.util.find_spec("torchvision") is None:
        sys.path.append(folder := str(HERE / "resolvable"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), folder)))


def tune_nothing() -> None:
    """Have Triton take the first way to compile a kernel of several: what is fastest is not tested.

    Engines start beside each other, and each would compile all of them.
    """
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs

    def first(self: Any, named: dict[str, Any]) -> list[Any]:
        return prune(self, named)[:1]

    Autotuner.prune_configs = first


def main() -> None:
    """Read a job, serve it, write what came out."""
    job, out = (Path(name) for name in sys.argv[1:])
    given = json.loads(job.read_text())
    os.environ.update(ENVIRONMENT | ENVIRONMENT_ON[given["device"]])
    sys.path.append(str(HERE.parent))
    if given["device"] == "cpu":
        sys.path.append(str(HERE / "stand_ins"))
    see_no_pictures()
    begin = time.monotonic()
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine
    from watch import Watch

    if given["device"] == "cpu":
        keep_async()
    else:
        tune_nothing()
    engine = LLMEngine.from_engine_args(EngineArgs(**ENGINE | given["engine"]))
    core = engine.engine_core.engine_core
    if given["drafts"]:
        core.scheduler.dynamic_sd_lookup = Turns(given["drafts"])
    watch = Watch(core, canaries=given["canaries"])
    started = time.monotonic()
    served = Job(engine, given["requests"])
    served.run()
    ended = time.monotonic()
    for name, accepted in watch.accepted.items():
        served.answers[served.names[name]]["accepted"] = accepted
    seen = watch.report()
    result = {"outputs": served.answers, "seen": seen, "counts": seen.pop("counts")[0]}
    result["start_s"] = round(started - begin, 1)
    out.write_text(json.dumps(result | {"serving_s": round(ended - started, 1)}))


if __name__ == "__main__":
    main()
