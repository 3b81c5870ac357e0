"""What an installed vLLM makes of command lines: a script, `python answer.py JOB.json OUT.json`.

It runs where vLLM is: specc and what it imports need not be there.

A job is a list of `{"words": [...], "arch": "sm_90", "memory": 80, "environment": {...}}`: the server's own arguments,
the GPU with its GiB, and variables. The answers are as many dicts of plain values, which `asked.py` describes; where
vLLM refuses the arguments there is `error` alone, with its message.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.metadata
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ADAPTER: Any = ModuleType("specc_vllm")
"""The folder of the adapter as a package, of which nothing is imported by itself."""
ADAPTER.__path__ = [str(Path(__file__).resolve().parents[1])]
sys.modules[ADAPTER.__name__] = ADAPTER
served: Any = importlib.import_module(f"{ADAPTER.__name__}.served")
machine: Any = importlib.import_module(f"{ADAPTER.__name__}.check.machine")
GpuMachine: Any = machine.GpuMachine

import vllm.model_executor.layers.mamba.abstract as abstract
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.attention.selector import get_attn_backend

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
USUAL_BLOCK = 16


def parsed(words: Sequence[str]) -> Any:
    """Return the arguments of `vllm serve`."""
    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    arguments = parser.parse_args(["serve", *words])
    if arguments.model_tag is not None:
        arguments.model = arguments.model_tag
    return arguments


def configured(words: Sequence[str], arch: str, memory: int) -> Any:
    """Return the VllmConfig of a server with these arguments on such a GPU."""
    GpuMachine.arch, GpuMachine.memory = arch, memory
    arguments = AsyncEngineArgs.from_cli_args(parsed([*words, "--skip-tokenizer-init"]))
    return arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)


def answer(config: Any) -> dict[str, Any]:
    """Return what is asked of a VllmConfig."""
    spec, model = config.speculative_config, config.model_config
    server = dataclasses.replace(
        served.facts(config),
        first_runner="" if config.use_v2_model_runner else "by its own word",
    )
    return {
        "version": importlib.metadata.version("vllm"),
        "facts": {**vars(server), "settings": {name: _plain(value) for name, value in server.settings.items()}},
        "num_steps": spec.num_speculative_tokens,
        "max_requests": config.scheduler_config.max_num_seqs,
        "largest_graph": config.compilation_config.max_cudagraph_capture_size or 0,
        "longest": model.max_model_len,
        "dtype": str(model.dtype).removeprefix("torch."),
        "page_size": page_size(config),
        "options": {name: getattr(spec, key) for name, key in server.kind.written.items()} if server.kind else {},
        "hybrid": model.is_hybrid,
    }


def _plain(value: Any) -> Any:
    """Return a setting as it is, or the name of its type where JSON has none of that."""
    return value if value is None or isinstance(value, bool | int | str) else type(value).__name__


def kept_step(config: Any) -> int | None:
    """Return of how many tokens a block is a multiple so that prefill keeps states, as vLLM's layers will say it."""
    exports = hasattr(config.model_config.hf_text_config, "linear_key_head_dim")
    if config.cache_config.mamba_cache_mode != "align" or not exports or "Olmo" in config.model_config.architecture:
        return None
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import _resolve_gdn_prefill_backend
    from vllm.v1.attention.backends.gdn_attn import FLASHINFER_GDN_CHECKPOINT_ALIGNMENT

    prefills = _resolve_gdn_prefill_backend(config)[1]
    return FLASHINFER_GDN_CHECKPOINT_ALIGNMENT if prefills == "flashinfer" else None


def window_block(begin: str) -> int:
    """Return the tokens of a block of windows in layers of a key of `OWN_LAYERS`, as these make the cache of one."""
    module, _, name = f"vllm.{served.OWN_LAYERS[begin]}".rpartition(".")
    module = importlib.import_module(module)
    source = textwrap.dedent(inspect.getsource(getattr(module, name).__init__))
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    [made] = [call for call in calls if ast.unparse(call.func) == "DeepseekV4SWACache"]
    said = [ast.literal_eval(keyword.value) for keyword in made.keywords if keyword.arg == "block_size"]
    return (said or [inspect.signature(module.DeepseekV4SWACache).parameters["block_size"].default])[0]


def page_size(config: Any) -> int | None:
    """Return the tokens of a block where they are written, or follow from a recurrent state or from the class.

    None where attention alone decides on it.
    """
    model, cache = config.model_config, config.cache_config
    if (begin := served.own_layers(model.architecture)) is not None:
        return window_block(begin)
    if model.is_hybrid:
        with set_current_vllm_config(config):
            heads = model.get_num_attention_heads(config.parallel_config)
            backend = get_attn_backend(
                model.get_head_size(), model.dtype, cache.cache_dtype, use_mla=model.use_mla, num_heads=heads
            )
            if not cache.user_specified_block_size:
                cache.block_size = backend.get_preferred_block_size(USUAL_BLOCK)
        abstract.get_mamba_prefill_checkpoint_alignment = kept_step
        GpuMachine._align_hybrid_block_size(config, backend)
    return cache.block_size if model.is_hybrid or cache.user_specified_block_size else None


def answers(job: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an answer to each case, each with the variables of its own alone."""
    made: list[dict[str, Any]] = []
    before = {**os.environ}
    for case in job:
        os.environ.pop(RUNNER, None)
        os.environ.update(case["environment"])
        try:
            made.append(answer(configured(case["words"], case["arch"], case["memory"])))
        except (Exception, SystemExit) as error:  # vLLM raises anything, and its parser ends the process
            made.append({"error": str(error)[:2000] or type(error).__name__})
        os.environ.clear()
        os.environ.update(before)
    return made


def main() -> None:
    """Read a job, answer it, write what came out."""
    job, out = (Path(name) for name in sys.argv[1:])
    out.write_text(json.dumps(answers(json.loads(job.read_text()))))


if __name__ == "__main__":
    main()
