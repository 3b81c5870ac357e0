"""The variants that are compared, each with the arguments of its engine and the program that replaces SGLang's step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = 3
ACCEPT_LENGTH = 2.5
"""Of the large models, whose drafts mean nothing: SGLANG_SIMULATE_ACC_LEN."""
CONTEXT = 2048


@dataclass(frozen=True)
class Variant:
    """One way to decode.

    Attributes:
        name: its models (ex, small, large), its draft, its form.
        algorithm: None decodes without speculation.
        draft: folder of the draft model, beside the target's.
        topk: K, 1 for a chain.
        nodes: N.
        overlap: whether the scheduler runs ahead of the results.
        page_size: tokens per page of the KV pool.

    """

    name: str
    algorithm: str | None = None
    draft: str = ""
    topk: int = 1
    nodes: int = STEPS + 1
    overlap: bool = True
    page_size: int = 1

    @property
    def kind(self) -> str:
        """What its models' names begin with."""
        return self.name.split("_", 1)[0]

    @property
    def text(self) -> bool:
        """Whether its texts mean something: models are trained, nothing is simulated."""
        return self.kind == "ex"

    @property
    def program(self) -> str | None:
        """The package of its program, compiled from configs/<name without _sync>.yaml."""
        return f"specc_program_bench_{self.name.removesuffix('_sync')}" if self.algorithm else None

    def engine(self, models: Path, device: str) -> dict[str, Any]:
        """Arguments of sglang.Engine on "cuda" or "cpu"."""
        speculation = {
            "speculative_algorithm": self.algorithm,
            "speculative_draft_model_path": str(models / f"{self.kind}_{self.draft}"),
            "speculative_num_steps": STEPS,
            "speculative_eagle_topk": self.topk,
            "speculative_num_draft_tokens": self.nodes,
        }
        return (
            DEVICES[device]
            | {"model_path": str(models / f"{self.kind}_target")}
            | ({} if self.text else {"skip_tokenizer_init": True})
            | {"page_size": self.page_size}
            | ({} if self.overlap else {"disable_overlap_schedule": True})
            | (speculation if self.algorithm else {})
        )

    def environment(self) -> dict[str, str]:
        """What SGLang reads beside its arguments."""
        simulated = self.kind == "large" and self.algorithm
        return {"SGLANG_SIMULATE_ACC_LEN": str(ACCEPT_LENGTH)} if simulated else {}


COMMON: dict[str, Any] = {
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "max_running_requests": 8,
    "context_length": CONTEXT,
    "mem_fraction_static": 0.3,
    "disable_radix_cache": True,
    "skip_server_warmup": True,
    "random_seed": 1,
    "log_level": "info",
}
DEVICES: dict[str, dict[str, Any]] = {
    "cuda": COMMON
    | {
        "device": "cuda",
        "dtype": "bfloat16",
        "attention_backend": "triton",
        "disable_prefill_cuda_graph": True,
        "cuda_graph_bs_decode": [1, 2, 4, 8],
        "max_total_tokens": 65536,
    },
    "cpu": COMMON
    | {
        "device": "cpu",
        "dtype": "float32",
        "attention_backend": "intel_amx",
        "disable_cuda_graph": True,
        "max_total_tokens": 8192,
    },
}

VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("ex_nospec"),
        Variant("ex_standalone_chain", "STANDALONE", "standalone"),
        Variant("ex_standalone_tree", "STANDALONE", "standalone", 4, 12),
        Variant("ex_eagle_chain", "EAGLE", "eagle"),
        Variant("ex_eagle_chain_sync", "EAGLE", "eagle", overlap=False),
        Variant("ex_eagle_tree", "EAGLE", "eagle", 4, 12),
        Variant("ex_eagle_tree_sync", "EAGLE", "eagle", 4, 12, overlap=False),
        Variant("ex_eagle_chain_p16", "EAGLE", "eagle", page_size=16),
        Variant("ex_eagle_tree_p16", "EAGLE", "eagle", 4, 12, page_size=16),
        Variant("small_standalone_chain", "STANDALONE", "target"),
        Variant("small_standalone_tree", "STANDALONE", "target", 4, 16),
        Variant("large_nospec"),
        Variant("large_standalone_chain", "STANDALONE", "standalone"),
        Variant("large_eagle_chain", "EAGLE", "eagle"),
        Variant("large_eagle_tree", "EAGLE", "eagle", 4, 16),
    )
}
