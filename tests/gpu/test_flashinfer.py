"""flashinfer's kernels under the adapter's plans: a layer of each forward of a step, in one CUDA graph, against torch.

Needs SGLang and flashinfer beside torch.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

ROWS, COLUMNS, BUCKET, STEPS = 9, 4096, 4, 3
BATCHES = ([5, 700, 1, 64], [6, 703, 3, 65], [4000, 2, 0, 0], [129, 128, 127, 0])
CLOSE = {"atol": 2e-2, "rtol": 2e-2}


class Heads(NamedTuple):
    """Of queries, of keys and values, and their size: with groups of 4 and more SGLang takes tensor cores."""

    queries: int
    keys: int
    size: int


class Layer:
    """One layer: caches of keys and values bf16[slots, heads, size], and SGLang's backends over them."""

    def __init__(self, heads: Heads, device: torch.device, draw: torch.Generator) -> None:
        self.heads, self.device, self._draw = heads, device, draw
        self.cache = [self.random(ROWS * COLUMNS, heads.keys) for _ in range(2)]
        self.workspace = torch.empty(512 << 20, dtype=torch.uint8, device=device)

    def random(self, rows: int, heads: int) -> Tensor:
        return torch.randn(rows, heads, self.heads.size, generator=self._draw, device=self.device).bfloat16()

    @property
    def radix(self) -> Any:
        """The layer as SGLang hands it to a backend."""
        kinds = pytest.importorskip("sglang.srt.layers.radix_attention").AttentionType
        return SimpleNamespace(
            layer_id=0,
            tp_q_head_num=self.heads.queries,
            head_dim=self.heads.size,
            scaling=self.heads.size**-0.5,
            logit_cap=0.0,
            is_cross_attention=False,
            attn_type=kinds.DECODER,
            sliding_window_size=-1,
            k_scale_float=None,
            v_scale_float=None,
        )

    def backend(self, module: Any) -> Any:
        """SGLang's class, its constructor left out."""
        kind = torch.bfloat16
        sizes = SimpleNamespace(data_type=kind, q_data_type=kind, head_dim=self.heads.size)
        sizes.num_qo_heads, sizes.num_kv_heads = self.heads.queries, self.heads.keys
        made = object.__new__(module.FlashInferAttnBackend)
        vars(made).update(
            workspace_buffer=self.workspace,
            decode_backend="fa2",
            prefill_backend="fa2",
            decode_use_tensor_cores=module.should_use_tensor_core(kind, self.heads.queries, self.heads.keys),
            disable_cuda_graph_kv_split=False,
            indices_updater_decode=sizes,
            indices_updater_prefill=sizes,
            token_to_kv_pool=SimpleNamespace(get_kv_buffer=lambda _: tuple(self.cache)),
            num_wrappers=1,
            prefill_uses_dequant_workspace=False,
            decode_uses_dequant_workspace=False,
        )
        return made

    def attend(self, query: Tensor, slots: list[int]) -> Tensor:
        """One query T[heads, size] over the keys in these slots, in f32."""
        group = self.heads.queries // self.heads.keys
        keys, values = (part[slots].float().repeat_interleave(group, dim=1) for part in self.cache)
        scores = torch.einsum("hd,khd->hk", query.float(), keys) / math.sqrt(self.heads.size)
        return torch.einsum("hk,khd->hd", scores.softmax(-1), values)


class Step:
    """The forwards of one step for a bucket, in static memory."""

    def __init__(self, layer: Layer, module: Any, topk: int, draw: torch.Generator) -> None:
        from specc.engines.sglang.attention.prepare.flashinfer import Flashinfer
        from specc.engines.sglang.attention.roles import Roles
        from specc.engines.sglang.attention.step_tables import Sizes, Tables

        device = layer.device
        self.layer, self.topk, self.nodes = layer, topk, STEPS + 1 if topk == 1 else 8
        order = torch.randperm(ROWS * COLUMNS, generator=draw, device=device)
        self.slots = order.view(ROWS, COLUMNS).int()
        roles = Roles([layer.backend(module) for _ in range(STEPS - 1)], None, *(layer.backend(module) for _ in "ve"))
        sizes = Sizes(8, STEPS, topk, self.nodes, 1, context=COLUMNS - 32)
        self.attention = Flashinfer(roles, Tables(self.slots, sizes))
        self.rows = torch.arange(1, BUCKET + 1, device=device)
        self.lengths = torch.zeros(BUCKET, dtype=torch.int64, device=device)
        seen = torch.rand(BUCKET, self.nodes, self.nodes, generator=draw, device=device) < 0.4
        self.mask = None if topk == 1 else seen | torch.eye(self.nodes, dtype=torch.bool, device=device)
        widths = {f"draft {step}": topk for step in range(STEPS - 1)} | {"verify": self.nodes, "extend": STEPS + 1}
        self.queries = {name: layer.random(BUCKET * width, layer.heads.queries) for name, width in widths.items()}

    def run(self) -> dict[str, Tensor]:
        """The layer's output T[b * width, heads, size] in every forward."""
        batch = SimpleNamespace(batch_size=BUCKET, req_pool_indices=self.rows, seq_lens=self.lengths)
        self.attention.begin(batch)
        outputs = {}
        for name, query in self.queries.items():
            if name.startswith("draft"):
                forward = self.attention.draft(int(name[-1]), batch).forward_decode
            elif name == "verify":
                forward = self.attention.target(batch, self.nodes, self.mask, None).forward_extend
            else:
                forward = self.attention.extend(batch, self.lengths, STEPS + 1).forward_extend
            outputs[name] = forward(query.flatten(1), None, None, self.layer.radix, batch).view(query.shape)
        return outputs

    def keys(self, name: str, row: int, length: int, place: int) -> list[int]:
        """The slots that query `place` of a request reads."""
        text = self.slots[row].tolist()
        if name.startswith("draft"):
            own = length + place * STEPS
            return text[:length] + text[own : own + int(name[-1]) + 1]
        if name == "verify" and self.mask is not None:
            seen = self.mask[row - 1, place].nonzero().flatten().tolist()
            return text[:length] + [text[length + node] for node in seen]
        return text[: length + place + 1]


@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("heads", [Heads(32, 8, 128), Heads(8, 8, 128)], ids=str)
def test_a_captured_step_reads_its_keys(heads: Heads, topk: int, device: torch.device) -> None:
    """The lengths of each replay are others than those of the capture, which are padding's."""
    pytest.importorskip("flashinfer")
    module = pytest.importorskip("sglang.srt.layers.attention.flashinfer_backend")
    draw = torch.Generator(device).manual_seed(heads.queries + topk)
    step = Step(Layer(heads, device, draw), module, topk, draw)
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        step.run()
        step.run()
        stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        outputs = step.run()
    for lengths in BATCHES:
        step.lengths.copy_(torch.tensor(lengths))
        step.attention.plan(BUCKET, lengths)
        graph.replay()
        for name, out in outputs.items():
            shaped = out.view(BUCKET, -1, heads.queries, heads.size)
            queries = step.queries[name].view(shaped.shape)
            for b, length in enumerate(lengths):
                for place in range(shaped.shape[1]):
                    wanted = step.layer.attend(queries[b, place], step.keys(name, b + 1, length, place))
                    torch.testing.assert_close(shaped[b, place].float(), wanted, **CLOSE)
