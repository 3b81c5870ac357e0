"""FlashAttention 3 by SGLang's adapter on a GPU, against attention in plain torch: needs SGLang and its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.engines.sglang.attention.roles import Roles
from specc.engines.sglang.attention.step_tables import Sizes, Tables

pytestmark = pytest.mark.gpu
pytest.importorskip("sgl_kernel")
pytest.importorskip("sglang")

HEADS, KV_HEADS, WIDTH, COLUMNS, CONTEXT = 8, 2, 128, 2176, 2048
ROWS = 9
NEAR = 2e-2
"""What bf16 may differ from float32, of values that are about 1."""


class Layer:
    """Keys and values of one layer in slots, and a query for every token that a forward has."""

    def __init__(self, page: int) -> None:
        generator = torch.Generator("cuda").manual_seed(3)
        count = COLUMNS // page
        pages = torch.randperm(ROWS * count, generator=generator, device="cuda").view(ROWS, count) + 1
        slots = pages[:, :, None] * page + torch.arange(page, device="cuda")
        self.slots = slots.view(ROWS, -1).to(torch.int32)
        self.slots[0] = 0
        size = (ROWS * count + 1) * page, KV_HEADS, WIDTH
        self.keys, self.values = (
            torch.randn(size, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(2)
        )
        self.page = page

    def query(self, tokens: int, seed: int) -> Tensor:
        """T[tokens, HEADS, WIDTH]."""
        generator = torch.Generator("cuda").manual_seed(seed)
        return torch.randn(tokens, HEADS, WIDTH, generator=generator, device="cuda").to(torch.bfloat16)

    def expected(self, query: Tensor, slots: Tensor) -> Tensor:
        """One query's attention f32[HEADS, WIDTH] over these slots."""
        keys, values = (
            rows[slots.long()].float().repeat_interleave(HEADS // KV_HEADS, 1) for rows in (self.keys, self.values)
        )
        scores = torch.einsum("hd,nhd->hn", query.float(), keys) / WIDTH**0.5
        return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)

    def attend(self, query: Tensor, backend: Any, *, causal: bool) -> Tensor:
        """As SGLang's backend does it with the metadata that is set."""
        from sgl_kernel import merge_state_v2
        from sglang.srt.layers.attention import flashattention_backend as fa

        text, tree = backend.forward_metadata, backend.forward_metadata_spec_decode_expand

        def run(metadata: Any, page: int, causal: bool) -> Any:
            return fa.flash_attn_with_kvcache(
                q=query,
                k_cache=self.keys.view(-1, page, KV_HEADS, WIDTH),
                v_cache=self.values.view(-1, page, KV_HEADS, WIDTH),
                page_table=metadata.page_table,
                cache_seqlens=metadata.cache_seqlens_int32,
                cu_seqlens_q=metadata.cu_seqlens_q,
                cu_seqlens_k_new=metadata.cu_seqlens_k,
                max_seqlen_q=metadata.max_seq_len_q,
                softmax_scale=WIDTH**-0.5,
                causal=causal,
                return_softmax_lse=tree is not None,
                num_splits=0,
                ver=3,
            )

        if tree is None:
            return run(text, self.page, causal)
        read, read_lse, *_ = run(text, self.page, False)
        own, own_lse, *_ = run(tree, 1 if causal else self.page, False)
        return merge_state_v2(read, read_lse.T.contiguous(), own, own_lse.T.contiguous())[0]


def fake_backend() -> Any:
    """What of a FlashAttentionBackend the adapter reads."""
    from sgl_kernel.flash_attn import get_scheduler_metadata

    return SimpleNamespace(
        use_mla=False,
        _get_scheduler_metadata=get_scheduler_metadata,
        num_attention_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=WIDTH,
        kv_cache_dtype=torch.bfloat16,
        has_softcap=False,
        num_splits=0,
        token_to_kv_pool=SimpleNamespace(
            k_buffer=[torch.empty(1, KV_HEADS, WIDTH)], v_buffer=[torch.empty(1, KV_HEADS, WIDTH)]
        ),
    )


def batches(sizes: Sizes) -> Iterator[SimpleNamespace]:
    """Rows and lengths, one of them a padding row, in memory of their own."""
    draw = torch.Generator().manual_seed(7)
    for lengths in ([1, 37, 1000, 2040, 512], [2000, 3, 64, 65, 1777]):
        rows = (torch.randperm(ROWS - 1, generator=draw) + 1)[: len(lengths) + 1].cuda()
        rows[2] = 0
        longest = COLUMNS - 4 * sizes.topk * (sizes.steps + sizes.page) - sizes.nodes
        lens = torch.tensor([*lengths[:2], 0, *lengths[2:]]).clamp(max=longest).cuda()
        yield SimpleNamespace(batch_size=len(rows), req_pool_indices=rows, seq_lens=lens)


def a_tree(nodes: int, slots: Tensor, lengths: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, list[list[int]]]:
    """The slots i32[b, N, N] and counts i32[b, N] that nodes of one random tree see, and their columns."""
    draw = torch.Generator().manual_seed(11)
    parents = [-1] + [int(torch.randint(0, c, (), generator=draw)) for c in range(1, nodes)]
    sees: list[list[int]] = []
    for node, parent in enumerate(parents):
        sees.append([*(sees[parent] if node else []), node])
    mask = torch.zeros(len(rows), nodes, nodes, dtype=torch.int32, device="cuda")
    for b, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        for node, columns in enumerate(sees):
            mask[b, node, : len(columns)] = slots[row, [length + c for c in columns]]
    counts = torch.tensor([len(columns) for columns in sees], dtype=torch.int32, device="cuda").expand(len(rows), -1)
    return mask, counts.contiguous(), sees


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize(("steps", "topk", "nodes"), [(3, 1, 4), (5, 4, 8), (3, 4, 16)])
def test_forwards_read_what_they_should(page: int, steps: int, topk: int, nodes: int) -> None:
    """In a captured step whose rows and lengths change, with the layers' shared schedule and without."""
    from specc.engines.sglang.attention.prepare.flash import Flash

    layer, sizes = Layer(page), Sizes(ROWS, steps, topk, nodes, page, CONTEXT)
    drafts = [fake_backend() for _ in range(steps - 1)]
    flash = Flash(Roles(drafts, None, fake_backend(), fake_backend()), Tables(layer.slots, sizes))
    first, *others = batches(sizes)
    rows = first.batch_size
    mask, counts, _ = a_tree(nodes, layer.slots, first.seq_lens, first.req_pool_indices)
    width = {"draft": topk, "target": nodes, "extend": steps + 1}
    queries = {name: layer.query(rows * count, seed) for seed, (name, count) in enumerate(width.items())}

    def step() -> list[Tensor]:
        flash._tables.fill(first)
        flash.begin(first)
        outputs = [layer.attend(queries["draft"], flash.draft(i, first), causal=topk == 1) for i in range(steps - 1)]
        seen = (mask, counts) if topk > 1 else (None, None)
        outputs.append(layer.attend(queries["target"], flash.target(first, nodes, *seen), causal=True))
        outputs.append(layer.attend(queries["extend"], flash.extend(first, first.seq_lens, steps + 1), causal=True))
        return outputs

    plain = [tensor.clone() for tensor in step()]
    graph = torch.cuda.CUDAGraph()
    with flash.capturing():
        for left, right in zip(step(), plain, strict=True):
            assert torch.equal(left, right), "a schedule of the step's is another than a layer's own"
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = step()
    for batch in (first, *others):
        first.req_pool_indices.copy_(batch.req_pool_indices)
        first.seq_lens.copy_(batch.seq_lens)
        new, _, sees = a_tree(nodes, layer.slots, batch.seq_lens, batch.req_pool_indices)
        mask.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        for b, (row, length) in enumerate(zip(batch.req_pool_indices.tolist(), batch.seq_lens.tolist(), strict=True)):
            if row:
                _check_row(layer, sizes, queries, captured, b, layer.slots[row], length, sees)


def _check_row(
    layer: Layer,
    sizes: Sizes,
    queries: dict[str, Tensor],
    outputs: list[Tensor],
    b: int,
    slots: Tensor,
    length: int,
    sees: Any,
) -> None:
    steps, topk, nodes, page = sizes.steps, sizes.topk, sizes.nodes, sizes.page

    def same(name: str, at: int, got: Tensor, read: Tensor) -> None:
        torch.testing.assert_close(got[at].float(), layer.expected(queries[name][at], read), atol=NEAR, rtol=NEAR)

    tail = length % page if topk > 1 else 0
    run = -(-(tail + steps) // page) * page
    for step in range(steps - 1):
        for k in range(topk):
            begin = length - tail + k * run
            own = slots[begin : begin + tail + step + 1]
            same("draft", b * topk + k, outputs[step], torch.cat((slots[: length - tail], own)))
    for node in range(nodes):
        columns = sees[node] if topk > 1 else list(range(node + 1))
        own = slots[[length + column for column in columns]]
        same("target", b * nodes + node, outputs[-2], torch.cat((slots[:length], own)))
    for at in range(steps + 1):
        same("extend", b * (steps + 1) + at, outputs[-1], slots[: length + at + 1])
