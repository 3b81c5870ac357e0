"""What vLLM makes of command lines: `.vllm/bin/python tests/vllm/resolve.py JOB.json OUT.json`.

A job is a list of `{"words": [...], "gpu": "sm_90", "environment": {...}}`. Of each the answer has what vLLM's own
argument code and configuration say on a machine with that GPU, and what the adapter's `fit` refuses of it. `backends`
of an answer to all are vLLM's first choices of attention by GPU.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from other_machine import MEMORY_GIB, Gpu, cuda
from transformers import AutoConfig, Qwen2Config
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser

from specc.adapters.vllm import fit
from specc.adapters.vllm.served import refusals

AutoConfig.register("mimo", type("MiMoConfig", (Qwen2Config,), {"model_type": "mimo"}))
"""In the place of the code that comes with the model, which is not run."""


def parsed(words: list[str]) -> Any:
    """The arguments of `vllm serve`, but for those of its HTTP server."""
    parser = FlexibleArgumentParser()
    serve = parser.add_subparsers(dest="subparser").add_parser("serve")
    serve.add_argument("model_tag", nargs="?")
    serve.add_argument("--port")
    serve.add_argument("--config")
    arguments = AsyncEngineArgs.add_cli_args(serve) and parser.parse_args(["serve", *words])
    if arguments.model_tag is not None:
        arguments.model = arguments.model_tag
    return arguments


def answer(words: list[str], gpu: str) -> dict[str, Any]:
    """Of one command line."""
    Gpu.arch = gpu
    arguments = AsyncEngineArgs.from_cli_args(parsed([*words, "--skip-tokenizer-init"]))
    config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
    spec = config.speculative_config
    modules = getattr(spec.draft_model_config.hf_config, "num_nextn_predict_layers", 1)
    facts = dataclasses.replace(
        fit.facts(config),
        method=spec.method,
        modules=min(modules, spec.num_speculative_tokens) if spec.use_multi_module_mtp() else 1,
        assistant=spec.use_gemma4_mtp(),
        first_runner="" if config.use_v2_model_runner else "V1",
    )
    return {
        "runner": "V2" if config.use_v2_model_runner else "V1",
        "method": spec.method,
        "num_steps": spec.num_speculative_tokens,
        "max_requests": config.scheduler_config.max_num_seqs,
        "largest_graph": config.compilation_config.max_cudagraph_capture_size,
        "longest": config.model_config.max_model_len,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "written_block": config.cache_config.block_size if config.cache_config.user_specified_block_size else None,
        "lookups": [spec.prompt_lookup_max, spec.prompt_lookup_min],
        "mla": config.model_config.use_mla,
        "hybrid": config.model_config.is_hybrid,
        "refusals": sorted(refusal.about for refusal in refusals(facts)),
    }


def first_choices() -> dict[str, str]:
    """VLLM's first choices of attention in bfloat16, by GPU and layout of the KV cache."""
    choices: dict[str, str] = {}
    for gpu in MEMORY_GIB:
        Gpu.arch = gpu
        for mla in (False, True):
            names = [
                backend.name
                for backend in cuda._get_backend_priorities(mla, Gpu.get_device_capability(), num_heads=128)
            ]
            choices[f"{gpu} {'mla' if mla else 'mha'}"] = names[0]
    return choices


def main() -> None:
    """Read a job, answer it, write what came out; what vLLM refuses has its message instead."""
    job, out = (Path(name) for name in sys.argv[1:])
    answers: list[dict[str, Any]] = []
    for case in json.loads(job.read_text()):
        os.environ.pop("VLLM_USE_V2_MODEL_RUNNER", None)
        os.environ.update(case["environment"])
        try:
            answers.append(answer(case["words"], case["gpu"]))
        except (Exception, SystemExit) as error:  # vLLM raises anything, and its parser ends the process
            if os.environ.get("RAISE"):
                raise
            answers.append({"error": f"{type(error).__name__}: {str(error)[:2000]}"})
    out.write_text(json.dumps({"answers": answers, "backends": first_choices()}))


if __name__ == "__main__":
    main()
