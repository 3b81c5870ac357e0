"""Serve one job with one engine of SGLang: `.sglang/bin/python tests/sglang/serve.py JOB.json OUT.json`.

A job is `{"device": "cpu" | "cuda", "engine": {...}, "requests": [...]}`: arguments of `sglang.Engine` beside those of
`ENGINE`, and for each request

* `text` or `input_ids`; `pictures`, files of those that the text has places for; `sampling`, SGLang's sampling
  parameters; `logprobs`, whether to return them, of the prompt too; `top_logprobs`, of how many most probable tokens;
  `experts`, whether to return those that tokens went to, as SGLang encodes them; `adapter`, the name of one;
* `room`, of two servers of which one prefills and one decodes, the port and the number by which they find each other;
* `after`, `[k, n]`: it arrives when request k has n tokens or has ended; or `delay`, in seconds;
* `abort_after`, a number of tokens after which it is aborted; `stream`, false for one that answers once.

The answer has what SGLang said for each request, and its internal state when all had ended. A leak of KV slots ends the
scheduler, and the process with it: SGLang checks at every step and when idle.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import multiprocessing
import os
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ENGINE: dict[str, Any] = {
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "skip_server_warmup": True,
    "mem_fraction_static": 0.3,
    "context_length": 1024,
    "random_seed": 1,
    "log_level": "info",
}
ENGINE_ON: dict[str, dict[str, Any]] = {
    "cpu": {"attention_backend": "intel_amx", "disable_cuda_graph": True},
    "cuda": {"disable_prefill_cuda_graph": True, "mem_fraction_static": 0.7},
}
ENVIRONMENT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
ENVIRONMENT_ON = {"cpu": {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_OPT_USE_GUMBEL_SAMPLE": "0"}, "cuda": {}}
"""SGLang's draws of drafts are by a kernel of a GPU's otherwise."""
ENVIRONMENT_COMPRESSED = {
    "SPECC_TEST_COMPRESSED": "1",
    "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1",
    "SGLANG_OPT_FLASHMLA_SPARSE_PREFILL": "0",
    "SGLANG_OPT_USE_TILELANG_MHC_PRE": "0",
    "SGLANG_OPT_USE_TOPK_V2": "0",
}
"""What SGLang has in plain torch itself, or does by the same kernels as other forwards."""
ENVIRONMENT_SPARSE = {
    "cpu": {"SPECC_TEST_SPARSE": "1", "TORCHDYNAMO_DISABLE": "1"},
    "cuda": {"SPECC_TEST_SPARSE": "1"},
}
IDLE_S = 30
OTHER_S = 240
MODELS = {
    "MiMoV2ForCausalLM": {"mimo_v2", "mimo_v2_nextn"},
    "Step3p5ForCausalLM": {"step3p5", "step3p5_mtp"},
    "LlamaForCausalLM": {"dflash", "dspark", "llama", "llama_eagle", "llama_eagle3"},
    "DeepseekV3ForCausalLM": {"deepseek_v2", "deepseek_nextn"},
    "DeepseekV4ForCausalLM": {"deepseek_v4", "deepseek_v4_dspark", "deepseek_v4_nextn"},
    "DeepseekV41ForCausalLM": {"deepseek_v4", "deepseek_v4_dspark"},
    "Gemma3ForCausalLM": {"gemma3_causal"},
    "Gemma4ForConditionalGeneration": {"gemma3_causal", "gemma4_causal", "gemma4_mm", "gemma4_mtp"},
    "GptOssForCausalLM": {"gpt_oss", "llama", "llama_eagle3"},
    "LagunaForCausalLM": {"dflash", "laguna"},
    "MuseGlimmerForConditionalGeneration": {"dflash", "muse_glimmer"},
    "KimiLinearForCausalLM": {"dspark", "kimi_linear", "llama"},
    "NemotronHForCausalLM": {"dflash", "dspark", "llama", "nemotron_h", "nemotron_h_mtp"},
    "Qwen2MoeForCausalLM": {"qwen2_moe"},
    "Qwen3NextForCausalLM": {"dflash", "dspark", "llama", "llama_eagle3", "qwen3_next", "qwen3_next_mtp"},
    "Qwen3_5ForCausalLM": {"llama", "qwen3_5", "qwen3_5_mtp", "qwen3_5_text"},
    "Qwen3_5ForConditionalGeneration": {"dspark", "qwen3_5", "qwen3_5_mtp", "qwen3_vl"},
    "Qwen3_5MoeForConditionalGeneration": {"qwen3_5", "qwen3_5_mtp", "qwen3_vl"},
    "Qwen4ExpForConditionalGeneration": {"qwen3_5", "qwen3_5_mtp", "qwen3_vl", "qwen4_exp", "qwen4_exp_mtp"},
    "Qwen3MoeForCausalLM": {"llama", "llama_eagle3", "qwen2_moe", "qwen3_moe"},
    "Qwen2VLForConditionalGeneration": {"qwen2", "qwen2_vl"},
}
"""Modules of a target and its drafts, by the target's architecture. SGLang would import some two hundred more."""
COMPRESSED = "DeepseekV4"
SPARSE = "Qwen4Exp"
RECURRENT = ("KimiLinear", "NemotronH", "Qwen3Next", "Qwen3_5", SPARSE)
"""How the names of architectures begin that keep a recurrent state."""


class Progress:
    """How many tokens each request has, for those that wait for it."""

    def __init__(self, requests: int) -> None:
        self.tokens = [0.0] * requests
        self.changed = asyncio.Condition()

    async def reach(self, request: int, tokens: float) -> None:
        """Say that a request has so many tokens."""
        async with self.changed:
            self.tokens[request] = tokens
            self.changed.notify_all()

    async def reached(self, request: int, tokens: int) -> None:
        """Wait until a request has so many tokens or has ended."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.tokens[request] >= tokens)


async def answer(engine: Any, number: int, request: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Run one request of the job to its end."""
    if "after" in request:
        await progress.reached(*request["after"])
    await asyncio.sleep(request.get("delay", 0))
    given = {
        "prompt": request.get("text"),
        "input_ids": request.get("input_ids"),
        "image_data": request.get("pictures"),
        "sampling_params": request["sampling"],
        "return_logprob": request.get("logprobs", False),
        "top_logprobs_num": request.get("top_logprobs", 0),
        "logprob_start_len": 0 if request.get("logprobs", False) else -1,
        "return_routed_experts": request.get("experts", False),
        "lora_path": request.get("adapter"),
    }
    if "room" in request:
        port, room = request["room"]
        given |= {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}
    rid = f"{number:06}"  # all of one length: SGLang aborts every request whose name starts so
    limit = request.get("abort_after", float("inf"))
    last, about = {}, {}
    try:
        if request.get("stream", True):
            async for last in await engine.async_generate(**given, rid=rid, stream=True):
                about |= last["meta_info"]  # of a request that is aborted while it waits the last has little
                await progress.reach(number, about["completion_tokens"])
                if about["completion_tokens"] >= limit:
                    engine.tokenizer_manager.abort_request(rid)
        else:
            last = await engine.async_generate(**given, rid=rid)
            about = last["meta_info"]
    finally:
        await progress.reach(number, float("inf"))
    return {"text": last["text"], "token_ids": last["output_ids"], **summary(about)}


def summary(about: dict[str, Any]) -> dict[str, Any]:
    """What of SGLang's words about an answer goes into ours."""
    kept = {name: value for name, value in about.items() if name.startswith("spec_")}
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "num_retractions", "finish_reason")
    kept |= {name: about[name] for name in names}
    kept |= {name: about[name] for name in ("routed_experts",) if name in about}
    logprobs = about.get("output_token_logprobs")
    if logprobs is not None:
        kept["logprobs"] = [[value, token] for value, token, _ in logprobs]
        kept["top_logprobs"] = [
            [[value, token] for value, token, _ in best] for best in about.get("output_top_logprobs", [])
        ]
        kept["prompt_logprobs"] = [[value, token] for value, token, _ in about["input_token_logprobs"]]
    return kept


async def internal_state(engine: Any) -> dict[str, Any]:
    """The internal state of the first scheduler once none has anything to do, with what `specc_testing` has of each."""
    for _ in range(10 * IDLE_S):
        states = await engine.tokenizer_manager.get_internal_state()
        if all(state["specc_testing"]["idle"] for state in states):
            return states[0] | {"groups": {str(place): state["specc_testing"] for place, state in enumerate(states)}}
        await asyncio.sleep(0.1)
    raise SystemExit(f"something still runs {IDLE_S} s after the last request ended")


async def run(engine: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Serve all requests of a job."""
    progress = Progress(len(requests))
    begin = time.monotonic()
    answers = [answer(engine, number, request, progress) for number, request in enumerate(requests)]
    outputs = await asyncio.gather(*answers)
    seconds = time.monotonic() - begin
    state = await internal_state(engine)
    return {
        "outputs": outputs,
        "serving_s": round(seconds, 1),
        "state": {name: value for name, value in state.items() if isinstance(value, str | int | float | dict)},
    }


def other_models(architecture: str) -> str:
    """The modules of all models but a target of this architecture, and its drafts."""
    folder = Path(find_spec("sglang").submodule_search_locations[0], "srt", "models")
    return ",".join(sorted({path.stem for path in folder.glob("*.py")} - MODELS[architecture]))


def fork_engines() -> None:
    """Let SGLang's processes be forked off this one: each would spend seven seconds on what it has imported.

    SGLang asks for spawned ones, as whoever uses CUDA must. A process with threads must not be forked either.
    """
    start_method = multiprocessing.set_start_method
    multiprocessing.set_start_method = lambda method, force=False: start_method("fork", force)
    for module in ("scheduler", "detokenizer_manager"):
        importlib.import_module(f"sglang.srt.managers.{module}")
    os.register_at_fork(before=check_threads)


def check_threads() -> None:
    """SystemExit if there is another thread than this one."""
    if len(threads := os.listdir("/proc/self/task")) > 1:
        names = sorted(Path("/proc/self/task", thread, "comm").read_text().strip() for thread in threads)
        raise SystemExit(f"SGLang's processes are forked beside threads: {names}")


def wait_for_the_other(port: int) -> None:
    """Wait until the server that prefills can be asked where it is. SystemExit if it cannot."""
    asked = "&".join(
        f"{name}=-1" for name in ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    )
    for _ in range(OTHER_S):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/route?{asked}").close()
        except OSError:
            time.sleep(1)
        else:
            return
    raise SystemExit(f"no server that prefills is there after {OTHER_S} s")


def main() -> None:
    """Read a job, serve it, write what came out."""
    job, out = (Path(name) for name in sys.argv[1:])
    given = json.loads(job.read_text())
    device, config = given["device"], Path(given["engine"]["model_path"], "config.json")
    architecture = json.loads(config.read_text())["architectures"][0]
    others = other_models(architecture)
    os.environ.update(ENVIRONMENT | ENVIRONMENT_ON[device], SGLANG_DISABLED_MODEL_ARCHS=others)
    if (ranks := given["engine"].get("tp_size", 1)) > 1:  # SGLang wants to be told a processor for each
        os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(ranks)))
    if device == "cpu" and architecture.startswith(RECURRENT):
        os.environ |= {"SPECC_TEST_STATES": "1", "SGLANG_MAMBA_CONV_DTYPE": "float32"}
    if device == "cpu" and architecture.startswith(COMPRESSED):
        os.environ.update(ENVIRONMENT_COMPRESSED)
    if architecture.startswith(SPARSE):
        os.environ.update(ENVIRONMENT_SPARSE[device])
    if device == "cpu" and given["engine"].get("attention_backend") == "fa3":  # its metadata is computed in Triton
        os.environ["TRITON_INTERPRET"] = "1"
    if device == "cpu":
        fork_engines()
    import sglang

    begin = time.monotonic()
    engine = sglang.Engine(**{"device": device} | ENGINE | ENGINE_ON[device] | given["engine"])
    started = round(time.monotonic() - begin, 1)
    if given["engine"].get("disaggregation_mode") == "decode":
        wait_for_the_other(given["engine"]["disaggregation_bootstrap_port"])
    result = engine.loop.run_until_complete(run(engine, given["requests"]))
    engine.shutdown()
    out.write_text(json.dumps({"start_s": started, **result}))


if __name__ == "__main__":
    main()
