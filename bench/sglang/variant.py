"""One server that is compared: its models, the arguments that somebody starts it with, and the program of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCEPT_LENGTH = 2.5
"""The accepted length of models whose weights are made up: SGLANG_SIMULATE_ACC_LEN."""
Shape = tuple[int, int, int]
"""S, K, N: draft steps, branches, nodes."""
CHAIN: Shape = (3, 1, 4)
Arguments = tuple[tuple[str, Any], ...]
"""Some of sglang.Engine, by name."""


@dataclass(frozen=True)
class Models:
    """A target, and the server that is started for it.

    Attributes:
        target: folder of the target.
        made_up: whether weights are made up when the server starts; if not, its texts mean something.
        rows: batch sizes that are captured, the last of them requests at a time.
        context: tokens of the longest text.
        tokens: KV slots.
        arguments: what else its server is told.

    """

    target: str
    made_up: bool
    rows: tuple[int, ...]
    context: int
    tokens: int
    arguments: Arguments = ()


STATES: Arguments = (("max_mamba_cache_size", 160),)
"""Recurrent states of a server with 32 requests at a time, as many as SGLang wants of each."""
MODELS = {
    "ex": Models("ex_target", False, (1, 2, 4, 8, 16, 32), 2048, 65536),
    "exmla": Models("exmla_target", False, (1, 2, 4, 8, 16, 32), 2048, 65536),
    "llama": Models("llama_target", True, (1, 8, 32, 64), 9216, 300_000),
    "load": Models("llama_target", True, (1, 8, 32, 64, 128), 2048, 250_000),
    "budget8": Models("llama_target", True, (1, 8, 32, 64, 128), 2048, 250_000),
    "budget14": Models("q14_target", True, (1, 8, 32, 64, 128), 2048, 250_000),
    "tp2": Models("llama_target", True, (1, 8, 32, 64), 2048, 250_000),
    "mla": Models("mla_target", True, (1, 8, 32, 64), 9216, 600_000),
    "shapes": Models("llama_target", True, (1, 2, 4, 8, 16, 32, 64), 2048, 120_000),
    "qwen3": Models("qwen3_target", True, (1, 8, 32, 64), 9216, 120_000),
    "moe": Models("moe_target", True, (1, 8, 32, 64), 9216, 120_000),
    "oss": Models("oss_target", True, (1, 8, 32, 64), 9216, 200_000),
    "mimo": Models("mimo_target", True, (1, 8, 32, 64), 9216, 200_000),
    "gemma": Models("gemma_target", True, (1, 8, 32, 64), 9216, 200_000, (("enable_multimodal", False),)),
    "v4": Models("v4_target", True, (1, 8, 32, 64), 2048, 1_000_000, (("moe_runner_backend", "triton"),)),
    "q27": Models("q27_target", True, (1, 8, 16, 32), 9216, 200_000, STATES),
    "q35": Models("q35_target", True, (1, 8, 16, 32), 9216, 200_000, STATES),
}


@dataclass(frozen=True)
class Variant:
    """One server.

    Attributes:
        name: begins with the name of its models.
        algorithm: None decodes without speculation.
        draft: folder of the draft model; "" where SGLang finds it in the target's.
        shape: S, K, N.
        written: whether the shape is an argument; if not, it is what SGLang takes by default.
        backend: the argument --attention-backend; None leaves it to SGLang.
        overlap: whether the scheduler runs ahead of the results.
        page_size: tokens per page of the KV pool.
        sampling: parameters of the requests.
        config: of its program, configs/<config>.yaml.
        token_map: file of the tokens that an EAGLE head scores; "" for all of them.
        program_map: file of those that the head of its program scores, and SGLang's own step does not read.
        arguments: what else the server is told.
        plugins: a folder beside this file of plugins that SGLang loads besides the program.

    """

    name: str
    algorithm: str | None = None
    draft: str = ""
    shape: Shape = CHAIN
    written: bool = True
    backend: str | None = None
    overlap: bool = True
    page_size: int = 1
    sampling: tuple[tuple[str, float], ...] = (("temperature", 0),)
    config: str = ""
    token_map: str = ""
    program_map: str = ""
    ranks: int = 1
    arguments: Arguments = ()
    plugins: str = ""

    @property
    def models(self) -> Models:
        """Whose server it is."""
        return MODELS[self.name.split("_", 1)[0]]

    @property
    def text(self) -> bool:
        """Whether its texts are compared; if not, its steps are timed."""
        return not self.models.made_up

    @property
    def plain(self) -> str:
        """The variant of the same target without speculation."""
        return self.name.split("_", 1)[0] + "_nospec"

    @property
    def program(self) -> str | None:
        """The package of its program, if it has one."""
        return f"specc_program_bench_{self.config}" if self.config else None

    def engine(self, folder: Path, device: str) -> dict[str, Any]:
        """Arguments of sglang.Engine on "cuda" or "cpu", with models below a folder."""
        own = self.models
        steps, topk, nodes = self.shape
        shape = {
            "speculative_num_steps": steps,
            "speculative_eagle_topk": topk,
            "speculative_num_draft_tokens": nodes,
        }
        draft = {"speculative_draft_model_path": str(folder / self.draft)} if self.draft else {}
        mapped = {"speculative_token_map": str(folder / self.token_map)} if self.token_map else {}
        speculation = {"speculative_algorithm": self.algorithm} | draft | mapped | (shape if self.written else {})
        cpu = device == "cpu"
        return (
            COMMON
            | {"model_path": str(folder / own.target), "device": device}
            | {"dtype": "float32" if cpu else "bfloat16", "context_length": own.context}
            | {"max_running_requests": max(own.rows), "max_total_tokens": own.tokens}
            | ({"load_format": "dummy"} if own.made_up else {"mem_fraction_static": 0.3})
            | ({"disable_cuda_graph": True} if cpu else {"cuda_graph_bs_decode": list(own.rows)})
            | ({"attention_backend": "intel_amx" if cpu else self.backend} if cpu or self.backend else {})
            | ({"page_size": self.page_size} if self.page_size > 1 else {})
            | ({"tp_size": self.ranks} if self.ranks > 1 else {})
            | ({} if self.overlap else {"disable_overlap_schedule": True})
            | (speculation if self.algorithm else {})
            | dict(own.arguments + self.arguments)
        )

    def environment(self, folder: Path) -> dict[str, str]:
        """What SGLang reads beside its arguments, and its program, with models below a folder."""
        simulated = self.models.made_up and self.algorithm
        accepted = min(ACCEPT_LENGTH, self.shape[2] - 0.5)
        return ({"SGLANG_SIMULATE_ACC_LEN": str(accepted)} if simulated else {}) | (
            {"SPECC_TOKEN_MAP": str(folder / self.program_map)} if self.program_map else {}
        )


COMMON: dict[str, Any] = {
    "grammar_backend": "none",
    "skip_tokenizer_init": True,
    "disable_prefill_cuda_graph": True,
    "skip_server_warmup": True,
    "random_seed": 1,
    "log_level": "info",
}
"""Arguments of all servers that make them start sooner and change no decode step."""
