"""Forwards that are a CUDA graph each, for steps that are not one graph as a whole.

SGLang's own graph runners are not used for this: they copy every input into buffers of theirs and fill padding anew in
each step, the draft's holds the whole loop, and extend's is N tokens wide where a path has A. A program's inputs are
static and padded already, so that a forward is recorded on them as it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attention.step import Attention
from ..parts.parts import Parts
from .forwards import ForwardOutputs, Forwards

Key = tuple[Any, ...]


@dataclass(frozen=True)
class RecordedForward:
    """A graph, and the tensors that hold its results after each replay."""

    graph: torch.cuda.CUDAGraph
    outputs: ForwardOutputs


class RecordedForwards(Forwards):
    """Forwards that run once as they are, are then recorded, and from the third time on replayed.

    What attention needs is prepared before each of them, outside of the graphs. A forward whose inputs are somewhere
    else is another forward: all of a program's have been met when its segments are captured.
    """

    def __init__(self, worker: Any, attention: Attention, parts: Parts, shape: Any) -> None:
        """As `Forwards`."""
        super().__init__(worker, attention, parts, shape)
        self._met = Counter[Key]()
        self._recorded: dict[Key, RecordedForward] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def _run(
        self, runner: Any, backend: Any, batch: Any, shape: tuple[int, ...], starts: Tensor | None = None
    ) -> ForwardOutputs:
        key = (id(backend), batch.forward_mode, batch.batch_size, *_places(batch))
        if key in self._recorded:
            self._recorded[key].graph.replay()
            return self._recorded[key].outputs
        self._met[key] += 1
        if self._met[key] == 1:
            return super()._run(runner, backend, batch, shape, starts)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            outputs = super()._run(runner, backend, batch, shape, starts)
        self._recorded[key] = RecordedForward(graph, outputs)
        graph.replay()
        return outputs


def _places(batch: Any) -> list[int]:
    """Where the inputs of a forward are."""
    hidden = getattr(batch.spec_info, "hidden_states", None)
    inputs = (batch.input_ids, batch.positions, batch.out_cache_loc, batch.req_pool_indices, batch.seq_lens, hidden)
    return [tensor.data_ptr() for tensor in inputs if tensor is not None]
