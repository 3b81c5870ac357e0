"""Positions of models that see pictures and videos (mrope): three for each token, for time, height and width.

A picture has as many positions as its longest side, not as it has tokens. So the text behind it is at its place plus a
delta, which a request keeps for its whole life. Only a prefill, which is SGLang's, has tokens of pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def text_positions(runner: Any, positions: Tensor) -> Tensor | None:
    """Positions i64[3, n] of text without pictures at places i64[n]; None for a model that has no such positions."""
    return positions.repeat(3, 1) if runner.model_config.model_is_mrope else None


class Deltas:
    """How far the text of a request is from its places, by pool row: nothing where it has no pictures.

    Args:
        runners: SGLang's of target and draft, by role.
        table: SGLang's table of KV slots, which has a row for each request, and one of padding.

    """

    def __init__(self, runners: Mapping[str, Any], table: Tensor) -> None:
        """No request has pictures."""
        self._asked = any(runner.model_config.model_is_mrope for runner in runners.values())
        self._deltas = torch.zeros(len(table), dtype=torch.int64, device=table.device)

    def note(self, batch: Any) -> None:
        """Before a prefill of SGLang's: keep the deltas of its requests."""
        if self._asked:
            inputs = [request.multimodal_inputs for request in batch.reqs]
            deltas = [0 if media is None else int(media.mrope_position_delta) for media in inputs]
            self._deltas[batch.req_pool_indices] = torch.tensor(deltas).to(self._deltas.device, non_blocking=True)

    def give(self, runner: Any, batch: Any, starts: Tensor | None = None) -> None:
        """Give a forward of a step its positions i64[3, n], where its model has such.

        A request has rows from `starts` i32[b] on, by default as many as others.
        """
        if not runner.model_config.model_is_mrope:
            return
        deltas = self._deltas[batch.req_pool_indices]
        if starts is None:
            moved = (batch.positions.view(batch.batch_size, -1) + deltas[:, None]).flatten()
        else:
            rows = torch.arange(len(batch.positions), device=deltas.device)
            request = torch.searchsorted(starts, rows, right=True, out_int32=True) - 1
            moved = batch.positions + deltas[request]
        batch.mrope_positions = text_positions(runner, moved)
