"""The head of a draft that a program computes, in an engine: what the adapters of all engines share."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ._plugin import TOKENS, ServerError

HEAD, TOKEN_MAP = "draft_head", "d2t"
"""Tables of a program: the engine's head, and the tokens that a draft of a part of them scores."""
WEIGHT, SCALE = "head_weight", "head_scale"
"""The tables that the program makes of the head when it is bound: weights and, in 8 bits, a scale of each entry."""


def saved(plan: Any, head: Tensor) -> str:
    """Say for the log what a draft reads of a head T[H, W] in a program, and in the engine's own step, on each rank."""
    (entries, width), in_8_bits = map(plan.size, plan.inputs[WEIGHT].axes), SCALE in plan.inputs
    reads = entries * (width + 4 if in_8_bits else width * head.element_size())
    own = head.numel() * head.element_size()
    return f"the program computes the draft's head: a draft reads {reads:,} bytes of it in place of {own:,}"


def scores_part(plan: Any) -> bool:
    """Return whether the draft of a program that computes its head scores a part of the tokens."""
    return bool(plan.computes_head) and TOKEN_MAP in plan.tables()


def unnamed_tokens() -> str | None:
    """Return what is wrong with a server where a draft scores all tokens and its program a part that no file names."""
    if os.environ.get(TOKENS):
        return None
    return f"the program's draft scores a part of the tokens, the server's scores all: {TOKENS} names no file"


def named_tokens(package: Any) -> Tensor:
    """Return the tokens i64[n] of the file that `SPECC_TOKEN_MAP` names, read by a package of a program.

    Binding checks that they ascend and are tokens. ServerError where there is none, or where it cannot be read.
    """
    if (unnamed := unnamed_tokens()) is not None:
        raise ServerError(unnamed)
    path = os.environ[TOKENS]
    try:
        return torch.tensor(package.read_listed_tokens(Path(path)), dtype=torch.int64)
    except (package.SpeccError, ValueError) as error:
        raise ServerError(f"{TOKENS}={path} lists no tokens: {error}") from error


def digest(tokens: Tensor) -> str:
    """Return what tokens i64[n] are, in a few digits: ranks compare them."""
    return hashlib.sha256(tokens.numpy().tobytes()).hexdigest()[:12]


def of_rank(plan: Any, shard: Tensor, tokens: Tensor | None, group: Any) -> Tensor:
    """The table of the head on a rank, of which a `GroupCoordinator` of ranks has a shard T[h, W] each, one by one.

    It is the shard itself where the program shares out the same entries. Otherwise it has a row of each entry that is
    scored, those of `tokens` i64[Vd] or all: a rank reads others than it has, so that all read as many. The rows come
    from the ranks that have them, so all ranks call this.
    """
    scored = plan.size("Vd")
    if TOKEN_MAP not in plan.tables() and len(shard) == plan.size(plan.inputs[WEIGHT].axes[0]):
        return shard
    entries = torch.arange(scored, device=shard.device) if tokens is None else tokens.to(shard.device)
    places = entries - group.rank_in_group * len(shard)
    mine = (places >= 0) & (places < len(shard))
    rows = shard.new_zeros((scored, shard.shape[1]))
    rows[mine] = shard[places[mine]]
    summed: Tensor = group.all_reduce(rows)
    return summed
