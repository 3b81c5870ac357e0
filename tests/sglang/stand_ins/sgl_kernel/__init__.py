"""The operators of sglang-kernel 0.4.10 that SGLang 0.5.23 calls on a CPU, in plain torch: for correctness, not speed.

The package index has it built for CUDA only. What SGLang calls as `torch.ops.sgl_kernel.*` is registered, the rest are
functions. An operator that is missing fails when it is called.
"""

from __future__ import annotations

from typing import Any

from . import attention, projections  # noqa: F401 (register operators)
from .flash_attn import merge_state_v2
from .slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    rotate_input_ids_cpu,
)
from .trees import (
    build_tree_kernel_efficient_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    verify_tree_greedy_cpu,
)

__version__ = "0.4.10"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "merge_state_v2",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]


def __getattr__(name: str) -> Any:
    """An operator that SGLang imports and that its CPU path does not call."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*operands: Any, **named: Any) -> None:
        raise NotImplementedError(f"sgl_kernel.{name}")

    return missing
