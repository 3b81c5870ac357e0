"""How far stand-ins of state spaces are from SGLang's own kernels, and from float64 token by token.

`real_states.py` runs them; what is to be written is NaN before, and so is what must stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import torch
from sglang.kernels.ops.mamba.triton_ops import ssd_bmm, ssd_chunk_scan, ssd_chunk_state, ssd_state_passing
from sglang.kernels.ops.mamba.triton_ops.mamba_ssm import selective_state_update
from sglang.kernels.ops.mamba.triton_ops.ssd_combined import mamba_chunk_scan_combined
from sglang.srt.layers.attention.mamba.mamba2_metadata import Mamba2Metadata
from specc_testing_spaces import scan, update
from torch import Tensor
from triton.runtime.autotuner import Autotuner

SLOTS, REQUESTS, HEADS, GROUPS, WIDE, COLUMNS = 9, 5, 4, 2, 8, 16
CHUNK = 16
LENGTHS, PROMPTED = (5, 2 * CHUNK + 3, CHUNK + 1), (3, 7, 1)
"""Prompts, and the rows of their states, of which the first is new."""
TRACKED = torch.tensor([1, 1, 2]), torch.tensor([2 * CHUNK, 5 + CHUNK, 5 + 2 * CHUNK + 3 + CHUNK])
"""Of which prompts states are to be kept, and behind which of all tokens."""
Pair = tuple[Callable[[], Sequence[Tensor]], Callable[[], Sequence[Tensor]]]
torch.cpu.device = lambda _: nullcontext()  # SGLang says on which GPU a kernel runs
for module in (ssd_bmm, ssd_chunk_scan, ssd_chunk_state, ssd_state_passing):
    for kernel in vars(module).values():
        if isinstance(kernel, Autotuner):  # which would measure
            kernel.configs = kernel.configs[:1]


class Tokens:
    """Inputs of a state space for so many tokens."""

    def __init__(self, tokens: int) -> None:
        self.x, self.dt = torch.randn(tokens, HEADS, WIDE), torch.randn(tokens, HEADS)
        self.b, self.c = torch.randn(2, tokens, GROUPS, COLUMNS) / 2
        self.rates, self.d, self.dt_bias = -torch.rand(HEADS) - 0.1, torch.randn(HEADS), torch.randn(HEADS)
        self.states = torch.randn(SLOTS, HEADS, WIDE, COLUMNS)

    def stepped(self, parents: Sequence[int], begin: int, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return what tokens read [n, H, P], and states behind them [n, H, P, N], in float64, one after the other."""
        states = list[Tensor]()
        read = torch.zeros(len(parents), HEADS, WIDE, dtype=torch.float64)
        for node, parent in enumerate(parents):
            state = (first if parent < 0 else states[parent]).double().clone()
            for head in range(HEADS):
                group, at = head * GROUPS // HEADS, begin + node
                step = torch.log1p((self.dt[at, head] + self.dt_bias[head]).double().exp())
                x = self.x[at, head].double()
                state[head] *= torch.exp(self.rates[head].double() * step)
                state[head] += step * torch.outer(x, self.b[at, group].double())
                read[node, head] = state[head] @ self.c[at, group].double() + self.d[head].double() * x
            states.append(state)
        return read, torch.stack(states)


def verified(
    step: Callable[..., None], given: Tokens, rows: Tensor, parents: Tensor | None, *, keep: bool, more: int = 0
) -> Sequence[Tensor]:
    """Go over all nodes: what is read of real requests, the states behind their nodes, and the states of slots.

    There is room for `more` nodes of each request, of which the step does not know.
    """
    shape = (len(rows), len(given.x) // len(rows))
    states, out = given.states.clone(), torch.full((*shape, HEADS, WIDE), float("nan"))
    behind = torch.full((REQUESTS, shape[1] + more, HEADS, WIDE, COLUMNS), float("nan"))
    kept = {"intermediate_states_buffer": behind, "cache_steps": shape[1], "disable_state_update": True}
    kept |= {"intermediate_state_indices": torch.arange(len(rows), dtype=torch.int32), "retrieve_parent_token": parents}
    tokens = (given.x, given.dt[..., None].expand_as(given.x), given.b, given.c)
    x, dt, b, c = (tensor.unflatten(0, shape) if keep else tensor for tensor in tokens)
    step(
        states,
        x,
        dt,
        given.rates[:, None, None].expand(-1, WIDE, COLUMNS),
        b,
        c,
        given.d[:, None].expand(-1, WIDE),
        z=None,
        dt_bias=given.dt_bias[:, None].expand(-1, WIDE),
        dt_softplus=True,
        state_batch_indices=rows,
        out=out if keep else out[:, 0],
        **(kept if keep else {}),
    )
    return out[rows >= 0], behind, states


def exactly(given: Tokens, rows: Tensor, parents: Sequence[Sequence[int]], *, keep: bool) -> Sequence[Tensor]:
    """Return the same as `verified`, in float64."""
    nodes, read, states = len(parents[0]), list[Tensor](), given.states.double()
    behind = torch.full((REQUESTS, nodes, HEADS, WIDE, COLUMNS), float("nan"), dtype=torch.float64)
    for request, row in enumerate(rows.tolist()):
        if row < 0:
            continue
        output, after = given.stepped(parents[request], request * nodes, given.states[row])
        read.append(output)
        if keep:
            behind[request] = after
        else:
            states[row] = after[-1]
    return torch.stack(read), behind, states


def prompted(go: Callable[..., Sequence[Tensor]], given: Tokens) -> Sequence[Tensor]:
    """Go over prompts: what was read, states before chunks, those behind prompts, and those to be kept."""
    begins = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32)
    known = torch.tensor([False, True, True])[:, None, None, None]
    total, out = len(given.x), torch.full((1, len(given.x), HEADS, WIDE), float("nan"))
    indices, offsets = Mamba2Metadata._query_start_loc_to_chunk_indices_offsets(begins, CHUNK, total)
    before, lasts, tracked = go(
        given.x[None],
        given.dt[None],
        given.rates,
        given.b[None],
        given.c[None],
        chunk_size=CHUNK,
        D=given.d,
        z=None,
        dt_bias=given.dt_bias,
        seq_idx=torch.repeat_interleave(torch.arange(3), begins.diff())[None].to(torch.int32),
        chunk_indices=indices,
        chunk_offsets=offsets,
        cu_seqlens=begins,
        initial_states=torch.where(known, given.states[list(PROMPTED)], 0),
        return_varlen_states=True,
        return_final_states=False,
        return_track_states=True,
        track_seq_idx=TRACKED[0],
        track_end_locs=TRACKED[1],
        dt_softplus=True,
        dt_limit=(0.0, float("inf")),
        out=out,
        state_dtype=torch.float32,
    )
    return out, before, lasts, tracked


def exact_prompts(given: Tokens) -> Sequence[Tensor]:
    """Return the same as `prompted`, in float64."""
    read, behind, lasts = list[Tensor](), [torch.zeros(HEADS, WIDE, COLUMNS, dtype=torch.float64)], list[Tensor]()
    for place, (row, length) in enumerate(zip(PROMPTED, LENGTHS, strict=True)):
        first = given.states[row] if place else torch.zeros(HEADS, WIDE, COLUMNS)
        output, states = given.stepped(range(-1, length - 1), len(behind) - 1, first)
        read.append(output)
        behind += states
        lasts.append(states[-1])
    before = torch.stack(behind[: len(given.x) : CHUNK])
    return torch.cat(read)[None], before[None], torch.stack(lasts), torch.stack([behind[at] for at in TRACKED[1]])[None]


def pairs(rows: Tensor, chain: Sequence[Sequence[int]], tree: Sequence[Sequence[int]]) -> Mapping[str, Pair]:
    """Return what stand-ins leave, and what is to be compared with it, for requests in rows with such parents."""
    nodes, links = len(chain[0]), torch.tensor(tree, dtype=torch.int32).clamp(min=0)
    many, one, text = Tokens(len(rows) * nodes), Tokens(len(rows)), Tokens(sum(LENGTHS))
    roots = [[-1]] * len(rows)

    def of(
        step: Callable[..., None], given: Tokens, parents: Tensor | None, more: int = 0
    ) -> Callable[[], Sequence[Tensor]]:
        return lambda: verified(step, given, rows, parents, keep=given is many, more=more)

    return {
        "spaces of a chain": (of(update, many, None), of(selective_state_update, many, None)),
        "spaces of a chain with room": (of(update, many, None, 2), of(selective_state_update, many, None, 2)),
        "spaces of a tree": (of(update, many, links), of(selective_state_update, many, links)),
        "spaces of tokens": (of(update, one, None), of(selective_state_update, one, None)),
        "spaces of prompts": (lambda: prompted(scan, text), lambda: prompted(mamba_chunk_scan_combined, text)),
        "exact spaces of a chain": (of(update, many, None), lambda: exactly(many, rows, chain, keep=True)),
        "exact spaces of a tree": (of(update, many, links), lambda: exactly(many, rows, tree, keep=True)),
        "exact spaces of tokens": (of(update, one, None), lambda: exactly(one, rows, roots, keep=False)),
        "exact spaces of prompts": (lambda: prompted(scan, text), lambda: exact_prompts(text)),
    }
