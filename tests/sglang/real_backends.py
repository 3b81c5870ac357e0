"""What SGLang's own attention backends prepare when the adapter asks them by their contract, as JSON.

Run in SGLang's environment, with Triton's interpreter: `.sglang/bin/python -O tests/sglang/real_backends.py`; SGLang
asserts that tensors are on a GPU, which `-O` leaves out. The backends are SGLang's classes without what belongs to a
GPU: their metadata is made by their own code, no layer is run.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

sys.path.append(str(Path(__file__).resolve().parents[2]))

from specc.engines.sglang.attention.prepare.contract import Contract
from specc.engines.sglang.attention.prepare.reading import Reading
from specc.engines.sglang.attention.roles import Roles, name_of
from specc.engines.sglang.attention.step_tables import Sizes, Tables

STEPS, NODES, LARGEST, CONTEXT, PAGE = 3, 4, 4, 512, 64
GROUP = 4
"""Tokens whose index keys are one (qsa)."""
DRAW = random.Random(0)
BATCHES = (
    *({1: 7, 2: 300, 3: 64}, {2: 7, 3: 300, 4: 64}, {3: 500, 4: 1}, {4: 63, 5: 62, 6: 127}),
    *({row: DRAW.randint(1, 500) for row in DRAW.sample(range(1, 9), DRAW.randint(1, LARGEST))} for _ in range(12)),
)
"""The texts' lengths, by the requests' rows."""
PACKAGE = "sglang.srt.layers.attention"
COMMON: dict[str, Any] = {
    "device": "cpu",
    "page_size": PAGE,
    "max_context_len": CONTEXT,
    "topk": 1,
    "speculative_num_steps": STEPS,
    "speculative_num_draft_tokens": NODES,
    "num_draft_tokens": NODES,
    "speculative_step_id": 0,
    "max_num_pages": CONTEXT // PAGE,
    "use_sliding_window_kv_pool": False,
    "is_draft_runner": True,
    "skip_prefill": True,
    "kv_index_translator": SimpleNamespace(is_translating=False, reads_are_translated=False),
}
SLOTS = (
    (torch.randperm(9 * 9, generator=torch.Generator().manual_seed(0)).view(9, 9, 1) * PAGE + torch.arange(PAGE))
    .view(9, -1)
    .int()
)
"""Requests' tables i32[9, 576]: pages that lie anywhere."""
PAGES = 9 * 9
PLACES = (
    (torch.randperm(PAGES, generator=torch.Generator().manual_seed(1))[:, None] + 1) * PAGE + torch.arange(PAGE)
).flatten()
"""Where the second slot of each slot is i64[5184], in pages of a second pool that lie elsewhere."""


def check(holds: bool) -> None:
    """An assertion that outlives `-O`."""
    if not holds:
        raise AssertionError


def bare(module: str, kind: str, **more: Any) -> Any:
    """A backend of that class with these attributes, its constructor left out."""
    made = object.__new__(getattr(importlib.import_module(f"{PACKAGE}.{module}"), kind))
    vars(made).update(COMMON | {"req_to_token": SLOTS} | more)
    return made


def trtllm_mha(step: int, places: torch.Tensor | None = None) -> Any:
    second = None if places is None else SimpleNamespace(full_to_swa_index_mapping=places)
    more = {"speculative_step_id": step, "expand_encoder_only_verify": False, "_swa_full_to_swa_mapping": places}
    more |= {"_swa_kv_pool": second, "use_sliding_window_kv_pool": second is not None}
    made = bare("trtllm_mha_backend", "TRTLLMHAAttnBackend", **more)
    made.init_cuda_graph_state(LARGEST, LARGEST * NODES)
    return made


def two_pools(step: int) -> Any:
    return trtllm_mha(step, PLACES)


def of_second_pool(backend: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths, and the pages of the first pool whose second are read; what is written has its second slot."""
    of = backend.forward_metadata
    check(torch.equal(of.swa_out_cache_loc, PLACES[batch.out_cache_loc]))
    firsts = torch.full((len(PLACES) // PAGE + 1,), -1).index_copy_(0, PLACES[::PAGE] // PAGE, torch.arange(PAGES))
    return of.cache_seqlens_int32, firsts[of.swa_page_table.long()]


def fa4(step: int) -> Any:
    more = {
        "speculative_step_id": step,
        "fa_impl_ver": 4,
        "use_mla": True,
        "has_swa": False,
        "is_encoder_decoder": False,
    }
    more |= {"local_attn_builder": None, "is_prefill_aware_swa": False, "needs_cpu_seq_lens": False}
    made = bare("flashattention_backend", "FlashAttentionBackend", **more, _get_scheduler_metadata=None)
    made._maybe_init_local_attn_metadata = lambda *_, **__: None
    made.init_cuda_graph_state(LARGEST, LARGEST * NODES)
    return made


def trtllm_mla(_: int, module: str = "trtllm_mla_backend", kind: str = "TRTLLMMLABackend") -> Any:
    tables = torch.full((LARGEST, CONTEXT // PAGE), -1, dtype=torch.int32)
    more = {"decode_cuda_graph_metadata": {}, "decode_cuda_graph_kv_indices": tables, "forward_decode_metadata": None}
    base = importlib.import_module(f"{PACKAGE}.trtllm_mla_backend")
    base.get_parallel = lambda: SimpleNamespace(dcp_enabled=False)
    return bare(module, kind, **more)


def cutedsl_mla(step: int) -> Any:
    return trtllm_mla(step, "cutedsl_mla_backend", "CuteDslMLABackend")


def flashmla(_: int) -> Any:
    interface: Any = ModuleType("flash_mla_interface")  # of a library that is not here
    interface.get_mla_metadata = lambda lengths, *_, **__: (
        lengths.new_zeros(2, 8),
        lengths.new_zeros(len(lengths) + 1),
    )
    interface.flash_mla_with_kvcache = None
    sys.modules["sglang.kernels.ops.attention.flash_mla_interface"] = interface
    more = {"cuda_graph_kv_indices": torch.full((LARGEST, CONTEXT // PAGE), 1, dtype=torch.int32), "num_q_heads": 16}
    more |= {
        "cuda_graph_mla_metadata": torch.zeros(2, 8).int(),
        "cuda_graph_num_splits": torch.zeros(LARGEST + 1).int(),
    }
    more |= {"cuda_graph_mla_metadata_view": None, "cuda_graph_num_splits_view": None, "is_fp8_kvcache": False}
    more |= {"cuda_graph_draft_extend_seq_lens_k": torch.ones(LARGEST).int()}
    return bare("flashmla_backend", "FlashMLABackend", **more)


def dsa(_: int) -> Any:
    more = {"physical_page_size": PAGE, "dsa_index_topk": 2048, "dsa_index_kpool": 1, "dsa_decode_impl": "fa3"}
    more |= {"dsa_drop_wide_page_table": False, "experimental_kpool_metadata_fusion": False}
    more |= {"_arange_buf": torch.arange(64, dtype=torch.int32), "set_dsa_prefill_impl": lambda forward_batch: None}
    module = importlib.import_module(f"{PACKAGE}.dsa_backend")
    module.is_cuda, module.get_platform = lambda: True, lambda: SimpleNamespace(is_sm100=False)
    module.resolve_paged_mqa_logits_metadata_fn = lambda: lambda lengths, *_: lengths.new_zeros(3)
    module.resolve_num_sms = lambda: 2
    more["dsa_topk_backend"] = SimpleNamespace(should_use_topk_v2=lambda: False)
    more["decode_cuda_graph_metadata"] = {
        "cu_seqlens_q": torch.arange(LARGEST + 1, dtype=torch.int32),
        "page_table": torch.zeros(LARGEST * NODES, SLOTS.shape[1], dtype=torch.int32),
    }
    made = bare("dsa_backend", "DeepseekSparseAttnBackend", **more)
    made._init_kpool_metadata_fusion()
    return made


def dsa_read(backend: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths and pages of each request; rows of verify and extend are queries, each with keys of its own."""
    of = backend.forward_metadata
    queries = 1 if batch.forward_mode.is_decode() else NODES
    ends = of.cache_seqlens_int32.repeat_interleave(queries).view(-1, queries)
    check(torch.equal(of.dsa_seqlens_expanded.view(-1, queries), ends - queries + 1 + torch.arange(queries)))
    check(torch.equal(of.dsa_cache_seqlens_int32, of.dsa_seqlens_expanded.clamp(max=backend.dsa_index_topk)))
    return of.cache_seqlens_int32, of.real_page_table[::queries]


def qsa(_: int) -> Any:
    """With a pool's sizes, and its kernels, which SGLang launches on a GPU alone."""
    module = importlib.import_module(f"{PACKAGE}.qwen_sparse_attn_backend")
    heads = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32}
    config = SimpleNamespace(**heads, indexer_budget=512 * GROUP, indexer_compress_ratio=GROUP)
    pool = {"qsa_compressed_page_size": PAGE // GROUP, "qsa_compress_ratio": GROUP, "qsa_block_topk": 512}
    runner = SimpleNamespace(
        token_to_kv_pool=SimpleNamespace(**pool),
        device="cpu",
        is_draft_worker=False,
        model_config=SimpleNamespace(hf_text_config=config, context_len=CONTEXT),
        req_to_token_pool=SimpleNamespace(req_to_token=SLOTS),
    )
    made, zeros = module.QwenSparseAttnBackend(runner), torch.zeros
    made._can_replay_with_gpu_kernels = lambda *_: True
    module.maybe_create_verify_mask = lambda **_: None
    unpinned = patch("torch.zeros", lambda *sizes, pin_memory=False, **named: zeros(*sizes, **named))
    with unpinned, patch.object(module, "get_spec"):
        made.init_cuda_graph_state(LARGEST, LARGEST * NODES)
    return made


def qsa_read(backend: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths and pages of each request; rows are queries. All of it is what SGLang prepares outside of graphs."""
    of, own = backend.forward_metadata, backend._metadata_from_forward_batch(batch)
    mine, wanted = of.indexer_metadata, own.indexer_metadata
    queries = 1 if batch.forward_mode.is_decode() else NODES
    check(torch.equal(of.sequence_lengths, own.sequence_lengths))
    check(torch.equal(of.row_req_pool_indices, own.row_req_pool_indices.int()))
    check(torch.equal(mine.sequence_lengths, of.sequence_lengths))
    check(torch.equal(mine.token_to_batch_idx, wanted.token_to_batch_idx))
    for name, same in (("decode_logical_positions", torch.int32), ("pending_ring_slots", torch.int64)):
        check(torch.equal(getattr(mine, name), getattr(wanted, name).to(same)))
    check(torch.equal(mine.graph_compressed_lengths, wanted.decode_lengths))
    pages = mine.graph_compressed_page_table
    for row, count in enumerate((-(-of.sequence_lengths // PAGE)).tolist()):
        check(torch.equal(pages[row, :count], wanted.decode_page_table[row, :count]))
    whole = of.sequence_lengths % GROUP == 0
    check(int(whole.sum()) == int((wanted.write_locs != 0).sum()))
    check(bool((mine.graph_write_locs[~whole] == 0).all()))
    for place, row in enumerate(whole.nonzero()[:, 0].tolist()):
        check(int(wanted.compress_sequence_ids[place]) == row)
        check(int(mine.graph_write_locs[row]) == int(wanted.write_locs[place]))
        check(mine.graph_ring_group_locs[row].tolist() == wanted.compress_group_ring_locs[place].tolist())
    return of.sequence_lengths[queries - 1 :: queries], pages[::queries]


def flashmla_lengths(backend: Any, batch: Any) -> torch.Tensor:
    """As its forwards read them: from the batch, but for extend."""
    own = backend.forward_metadata.seq_lens_k
    return batch.seq_lens + NODES * batch.forward_mode.is_target_verify() if own is None else own


def held(name: str, lengths: str, table: str) -> Callable[[Any, Any], tuple[torch.Tensor, torch.Tensor]]:
    """What layers read of a backend: fields of the object that it holds under that name."""
    return lambda backend, _: (getattr(getattr(backend, name), lengths), getattr(getattr(backend, name), table))


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any, Any], tuple[torch.Tensor, torch.Tensor]]]] = {
    "trtllm_mha": (trtllm_mha, held("forward_metadata", "cache_seqlens_int32", "page_table")),
    "trtllm_mha over two pools": (two_pools, of_second_pool),
    "fa4": (fa4, held("forward_metadata", "cache_seqlens_int32", "page_table")),
    "trtllm_mla": (trtllm_mla, held("forward_decode_metadata", "seq_lens_k", "block_kv_indices")),
    "cutedsl_mla": (cutedsl_mla, held("forward_decode_metadata", "seq_lens_k", "block_kv_indices")),
    "flashmla": (
        flashmla,
        lambda backend, batch: (flashmla_lengths(backend, batch), backend.forward_metadata.block_kv_indices),
    ),
    "dsa": (dsa, dsa_read),
    "qsa": (qsa, qsa_read),
}


def batch_of(mode: str, rows: torch.Tensor, lengths: torch.Tensor, text: torch.Tensor) -> Any:
    """A forward's batch behind a text, as far as metadata reads it."""
    infos = importlib.import_module("sglang.srt.speculative.eagle_info")
    modes = importlib.import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode
    names = {"draft": "EagleDraftInput", "verify": "EagleVerifyInput", "extend": "EagleDraftExtendInput"}
    info = object.__new__(getattr(infos, names[mode]))
    width = 1 if mode == "draft" else NODES
    vars(info).update(num_tokens_per_req=width, draft_token_num=width, topk=1, ragged_verify_layout=None)
    positions = text[:, None] + torch.arange(width)
    return SimpleNamespace(
        forward_mode={"draft": modes.DECODE, "verify": modes.TARGET_VERIFY, "extend": modes.DRAFT_EXTEND_V2}[mode],
        batch_size=len(rows),
        req_pool_indices=rows,
        seq_lens=lengths,
        seq_lens_cpu=None,
        seq_lens_sum=None,
        encoder_lens=None,
        positions=positions.flatten(),
        out_cache_loc=SLOTS[rows[:, None], positions].long().flatten(),
        input_ids=positions.flatten(),
        kv_loc_plan=None,
        spec_info=info,
    )


def steps(kind: str) -> list[Any]:
    """For each batch: by forward the keys that are read of each request, and the pages where they are found."""
    make, read = KINDS[kind]
    backends = [make(0), make(1), make(0), make(0)]
    check({name_of(backend) for backend in backends} == {kind.partition(" ")[0]})
    for backend, mode in zip(backends, ("draft", "draft", "verify", "extend"), strict=True):
        text = torch.tensor([9, 9])
        given = batch_of(mode, torch.tensor([1, 2]), text, text)  # a size that SGLang has captured
        backend.init_forward_metadata_out_graph(given, in_capture=True)
    before = [dict(of) for backend in backends for of in vars(backend).values() if isinstance(of, dict)]
    sizes = Sizes(LARGEST, STEPS, 1, NODES, PAGE, context=CONTEXT)
    attention, reads = Contract(Roles(backends[:2], None, *backends[2:]), Tables(SLOTS, sizes)), []
    for lengths in BATCHES:
        rows, text = torch.tensor([*lengths]), torch.tensor([*lengths.values()])
        by_forward: dict[str, Any] = {}
        for step in range(STEPS - 1):
            given = batch_of("draft", rows, text, text + step)
            by_forward[f"draft {step}"] = read(attention.draft(step, given), given)
        given = batch_of("verify", rows, text, text)
        by_forward["verify"] = read(attention.target(given, NODES, None, None), given)
        given = batch_of("extend", rows, text + STEPS + 1, text)
        by_forward["extend"] = read(attention.extend(given, text, STEPS + 1), given)
        reads.append({forward: [part.tolist() for part in parts] for forward, parts in by_forward.items()})
    now = [dict(of) for backend in backends for of in vars(backend).values() if isinstance(of, dict)]
    same = [a.keys() == b.keys() and all(a[key] is b[key] for key in a) for a, b in zip(before, now, strict=True)]
    return [all(same), reads]


def assisted() -> list[Any]:
    """For each batch the keys that an assistant reads of each request in the target's second pool, and the pages."""
    backend, sizes = two_pools(0), Sizes(LARGEST, STEPS, 1, NODES, PAGE, context=CONTEXT)
    attention, reads = Reading(Roles([backend], None, two_pools(0), None), Tables(SLOTS, sizes), captured=True), []
    for lengths in BATCHES:
        text = torch.tensor([*lengths.values()])
        given = batch_of("draft", torch.tensor([*lengths]), text, text)
        reads.append([part.tolist() for part in of_second_pool(attention.draft(0, given), given)])
        check(attention.draft(1, given) is backend and given.spec_info is not None)
    return reads


if __name__ == "__main__":
    made = {"slots": SLOTS.tolist(), "assisted": assisted(), **{kind: steps(kind) for kind in KINDS}}
    json.dump(made, sys.stdout)
