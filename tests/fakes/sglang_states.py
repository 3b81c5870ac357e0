"""What SGLang has for targets that keep a recurrent state, as far as the adapter looks for it: none of it runs here."""

from __future__ import annotations

from typing import Any

from .sglang_modules import at


@at("layers.attention.hybrid_linear_attn_backend")
class HybridLinearAttnBackend:
    attn_backend_list: Any
    full_attn_backend: Any
    linear_attn_backend: Any


@at("mem_cache.memory_pool")
class MambaPool:
    linear_replayssm_cache_len: Any
    mamba_cache: Any
    replayssm_cache_base: Any
    replayssm_is_flush: Any
    replayssm_spec_write_pos: Any

    def clear_slots(self, indices: Any) -> None:
        raise AssertionError("no target here keeps a recurrent state")


@at("mem_cache.memory_pool")
class HybridReqToTokenPool:
    mamba_pool: Any
    req_index_to_mamba_index_mapping: Any


@at("speculative.spec_utils")
def commit_mamba_states_after_verify(
    target_worker: Any, batch: Any, accept_lens: Any, accept_index: Any, draft_token_num: int
) -> None:
    raise AssertionError("no target here keeps a recurrent state")


@at("speculative.spec_utils")
def prepare_mamba_track_for_verify(batch: Any) -> None:
    raise AssertionError("no target here keeps a recurrent state")


@at("runtime_context")
def get_memory() -> Any:
    raise AssertionError("no target here keeps a recurrent state")


@at("runtime_context")
def mamba_track_grid(tree_page: int) -> int:
    raise AssertionError("no target here keeps a recurrent state")


@at("model_executor.model_runner_components.ngram_embedding_manager")
class NgramEmbeddingManager:
    """What a target has that looks n-grams up, if it has a hasher: it notes what it is told behind verifications."""

    engram_hasher: Any

    def __init__(self, engram_hasher: object = None) -> None:
        self.engram_hasher, self.committed = engram_hasher, list[tuple[list[Any], ...]]()

    def update_after_verify(self, *, verify_ids_2d: Any, req_pool_indices: Any, commit_lens: Any) -> None:
        told = (verify_ids_2d, req_pool_indices, commit_lens)
        self.committed.append(tuple(values.tolist() for values in told))
