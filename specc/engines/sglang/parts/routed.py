"""Experts that tokens went to, as results of requests (`--enable-return-routed-experts`).

SGLang's layers write the experts of all rows of a forward into one buffer, and its scheduler keeps them on the host by
KV slot, from where a request that ends takes those of its text (`sglang/srt/state_capturer`). A program takes those of
its nodes out of the buffer, and hands out those of the accepted path, which belong to the slots of that path. SGLang's
own step leaves those of a tree at the slots that nodes had before the path was moved to the front. Here they follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from sglang.srt.state_capturer.base import TopkCaptureOutput
from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer
from torch import Tensor

OUTPUT = "routed_experts"
"""What a program calls them, in its key `outputs` and in what its target hands over."""


class Routed:
    """The experts of a program's steps; nothing in a server that returns none.

    Args:
        table: SGLang's table of KV slots.

    """

    def __init__(self, table: Tensor) -> None:
        """Read them where SGLang's layers write them."""
        self._capturer, self._table = get_global_experts_capturer(), table
        self._own: Tensor | None = None
        if self._capturer is not None:
            written = self._capturer.device_cache.buffer
            if written.shape[-1] > self._capturer.topk_size:  # shared experts stand behind
                self._own = written[..., : self._capturer.topk_size].clone()

    def of_nodes(self, tokens: Tensor) -> Tensor | None:
        """Those of the nodes i64[b, N] of the target's last forward, i32[b, N, layers, n], where they stay."""
        if self._capturer is None:
            return None
        rows = self._capturer.device_cache.buffer[: tokens.numel()]
        if self._own is not None:
            rows = self._own[: len(rows)].copy_(rows[..., : self._capturer.topk_size])
        return rows.view(*tokens.shape, *rows.shape[1:])

    def of_step(self, rows: Tensor, decoded: Any, host: Mapping[str, Tensor]) -> TopkCaptureOutput | None:
        """What SGLang is to keep of a step of requests in pool rows i64[b]; `host` has its outputs."""
        if self._capturer is None:
            return None
        slots = self._path(rows, decoded.new_seq_lens, decoded.accept_lens, host[OUTPUT].shape[1])
        return TopkCaptureOutput(slots, host[OUTPUT].flatten(0, 1), self._capturer.host_cache)

    def follow(self, rows: Tensor, result: Any) -> None:
        """After a step of SGLang's own: have the experts of its accepted path at the slots of that path."""
        if self._capturer is not None:
            index = result.accept_index
            slots = self._path(rows, result.new_seq_lens, result.accept_lens, index.shape[1])
            chosen = self._capturer.device_cache.buffer[index.clamp_min(0).flatten(), :, : self._capturer.topk_size]
            result.routed_experts_output = TopkCaptureOutput(slots, chosen, self._capturer.host_cache)

    def _path(self, rows: Tensor, ends: Tensor, lengths: Tensor, width: int) -> Tensor:
        """The slots i64[b * A] of paths of these lengths, behind which texts have these ends; 0 behind a path."""
        places = torch.arange(width, device=rows.device)
        inside = places < lengths[:, None]
        columns = ((ends - lengths)[:, None] + places).where(inside, 0)
        return self._table[rows[:, None], columns].where(inside, 0).long().flatten()


def misfits(plans: Mapping[Any, Any]) -> Iterator[str]:
    """What of the experts that a program hands out, or of those that the server returns, does not go together."""
    capturer, plan = get_global_experts_capturer(), next(iter(plans.values()))
    handed = OUTPUT in plan.serving.extras
    if handed != (capturer is not None):
        has = f"has {OUTPUT}, and the server returns none" if handed else f"lacks {OUTPUT}, which the server returns"
        yield f"outputs {has}"
    if not handed or capturer is None:
        return
    most = max(plan.buckets[-1] * shape.num_nodes for shape, plan in plans.items())
    value = next(output.value for output in plan.outputs if output.name == OUTPUT)
    compiled = tuple(map(plan.size, plan.values[value].axes[2:]))
    captured = (capturer.num_layers, capturer.topk_size)
    if compiled != captured:
        yield f"{OUTPUT} are {compiled} in the program, {captured} in the server, by layer and token"
    if most > (room := len(capturer.device_cache.buffer)):
        yield f"a step has up to {most} nodes, the server has room for {OUTPUT} of {room}"
