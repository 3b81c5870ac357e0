"""`SGLANG_SIMULATE_ACC_LEN` for programs: steps of a given accepted length, to time models whose drafts mean nothing.

The program stays as it is. What is changed are the target's scores, behind its forward: along one path of the tree,
or the chain, every node scores the next one highest, and the last one a token that nobody drafted.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from . import seam
from .attention import Attention
from .forwards import Forwards, Outputs
from .masks import seen
from .shards import Shards

TOKEN = 100
"""What the target says after the accepted path, as in SGLang."""
HIGHEST = 1e30
_spec_utils, _sample_length = seam.found(seam.SIMULATED)
STEPS = 4096
"""Accepted lengths are drawn ahead for so many steps, and again from the first on."""


def simulating() -> bool:
    """Whether the server is to simulate."""
    return seam.there(seam.SIMULATED) and _spec_utils.SIMULATE_ACC_LEN > 0


class Simulated(Forwards):
    """Forwards whose target accepts as much as SGLang would simulate, the same for all requests of a step."""

    def __init__(self, worker: Any, attention: Attention, shards: Shards) -> None:
        """As `Forwards`."""
        super().__init__(worker, attention, shards)
        most = worker.speculative_num_steps + 1
        random.seed(0)
        how = _spec_utils.SIMULATE_ACC_LEN, _spec_utils.SIMULATE_ACC_METHOD
        drawn = [_sample_length(*how, most) for _ in range(STEPS)]
        device = worker.req_to_token_pool.req_to_token.device
        self._accepted = torch.tensor(drawn, dtype=torch.int64, device=device)
        self._turn = torch.zeros(1, dtype=torch.int64, device=device)
        self._depths = torch.arange(most + 1, device=device)
        self._highest = torch.tensor(HIGHEST, device=device)  # a number of the host's could not be captured

    def target(self, **given: Any) -> Outputs:
        """See `Forwards`."""
        output = super().target(**given)
        tokens, seq_lens = given["tokens"], given["seq_lens"]
        length = self._accepted[self._turn % STEPS]
        self._turn += 1
        sees = seen(given["slots"], seq_lens, given.get("mask"), given.get("counts"))
        cols = self._path(length - 1, given["positions"] - seq_lens[:, None], sees)
        follows = self._depths[:-2] < length - 1
        wanted = torch.where(follows, tokens.gather(1, cols[:, 1:]), TOKEN)
        wanted = torch.cat((wanted, torch.full_like(wanted[:, :1], TOKEN)), dim=1)
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        output.logits.index_put_((rows, cols, wanted), self._highest)
        return output

    def _path(self, last: Tensor, depth: Tensor, sees: Tensor) -> Tensor:
        """Columns i64[b, A] of a path to the first node of depth `last` i64[1], that node again and again behind it.

        depth i64[b, N]; sees bool[b, N, N], row node, column itself and its ancestors.
        """
        nodes = depth.shape[1]
        columns = torch.arange(nodes, device=depth.device).expand_as(depth)
        leaf = torch.where(depth == last, columns, nodes).amin(1, keepdim=True) % nodes
        on_path = sees.gather(1, leaf[:, :, None].expand(-1, 1, sees.shape[2]))[:, 0]
        most = len(self._depths) - 1
        path = leaf.repeat(1, most + 1)
        return path.scatter(1, torch.where(on_path, depth, most), columns)[:, :most]
