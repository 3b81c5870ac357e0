"""How far stand-ins of recurrent layers are from SGLang's own kernels, and from float64 token by token, as JSON.

Run in SGLang's environment, with Triton's interpreter: `.sglang/bin/python tests/sglang/real_states.py`. Inputs are
drawn. What is to be written is NaN before, and so is what must stay: that of requests that are not in the batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import real_records
import real_spaces
import torch
from sgl_kernel.mamba import (
    CHUNK,
    causal_conv1d_fn_cpu,
    causal_conv1d_update_cpu,
    chunk_gated_delta_rule_cpu,
    chunk_kda,
    gated_delta_rule_update,
    gates,
)
from sglang.kernels.ops.attention.fla.fused_norm_gate import rms_norm_gated
from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating
from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import fused_sigmoid_gating_delta_rule_update
from sglang.kernels.ops.elementwise.elementwise import fused_gate_sigmoid_mul_add
from sglang.kernels.ops.mamba import causal_conv1d_triton as convolutions
from sglang.kernels.ops.mamba import mamba_state_scatter_triton as copies
from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
from specc_testing_states import add_gated, norm_gated, track
from torch import Tensor

CHANNELS, WIDTH, SLOTS, REQUESTS, NODES, LAYERS = 20, 4, 9, 5, 6, 2
KEY_HEADS, HEADS, KEYS, VALUES = 2, 4, 8, 16
ROWS = torch.tensor([3, 7, -1, 1], dtype=torch.int32)
"""The slots of the requests of a batch, of which one is padding."""
CHILDREN = torch.tensor(
    [[1, 3, -1, -1, 5, -1], [1, 2, 3, 4, 5, -1], [-1] * 6, [1, -1, 4, 5, -1, -1]], dtype=torch.int32
)
SIBLINGS = torch.tensor([[-1, 2, -1, 4, -1, -1], [-1] * 6, [-1] * 6, [-1, 2, 3, -1, -1, -1]], dtype=torch.int32)
"""Links of a tree for each."""
PARENTS = [[-1, 0, 0, 1, 1, 4], [-1, 0, 1, 2, 3, 4], [-1, 0, 0, 0, 0, 0], [-1, 0, 0, 0, 2, 3]]
CHAIN = [[-1, 0, 1, 2, 3, 4]] * len(ROWS)
POSITIONS = torch.arange(len(ROWS), dtype=torch.int32)


TRACKED = (-1, 1, 0)
"""The chunk of each prompt before which a state is kept for prefixes (KDA), if any."""


class OnGpu(Tensor):
    """A tensor that is said to be on a GPU."""

    is_cuda = True


def apart(found: Tensor, expected: Tensor) -> float:
    """Return how far two tensors are from each other at most; infinity if one alone has a NaN somewhere."""
    found, expected = found.double(), expected.double()
    if not torch.equal(found.isnan(), expected.isnan()):
        return float("inf")
    return (found - expected).nan_to_num().abs().max().item()


def furthest(stand_in: Callable[[], Sequence[Tensor]], other: Callable[[], Sequence[Tensor]]) -> float:
    """Return how far what two functions leave is from each other."""
    return max(apart(found, expected) for found, expected in zip(stand_in(), other(), strict=True))


def poison(*shape: int) -> Tensor:
    return torch.full(shape, float("nan"))


class Steps:
    """Inputs of a recurrent layer for so many tokens, in which all of a state decays, or each of its columns (KDA)."""

    def __init__(self, tokens: int, *, columns: bool = False) -> None:
        gates = HEADS * KEYS if columns else HEADS
        self.columns = columns
        self.q, self.k = torch.randn(2, 1, tokens, HEADS if columns else KEY_HEADS, KEYS)
        self.v = torch.randn(1, tokens, HEADS, VALUES)
        self.a, self.b = torch.randn(tokens, gates), torch.randn(tokens, HEADS)
        self.a_log, self.dt_bias = torch.randn(HEADS) / 2, torch.randn(gates)
        self.states = torch.randn(SLOTS, HEADS, VALUES, KEYS)

    def stepped(self, parents: Sequence[int], begin: int, row: int) -> tuple[Tensor, Tensor]:
        """Return what tokens read [n, H, V], and states behind them [n, H, V, K], in float64, one after the other."""
        read, states = list[Tensor](), list[Tensor]()
        first = self.states[row].double() if row >= 0 else torch.zeros(HEADS, VALUES, KEYS, dtype=torch.float64)
        for node, parent in enumerate(parents):
            at, heads = begin + node, list[Tensor]()
            output = torch.empty(HEADS, VALUES, dtype=torch.float64)
            for head in range(HEADS):
                query, key = (given[0, at, head * given.shape[2] // HEADS].double() for given in (self.q, self.k))
                query, key = (vector / (vector @ vector + 1e-6).sqrt() for vector in (query, key))
                step = (self.a[at] + self.dt_bias).double().view(HEADS, -1)[head]
                decay = torch.exp(-self.a_log[head].double().exp() * torch.log1p(step.exp()))
                state = decay * (first if parent < 0 else states[parent])[head]
                missing = self.v[0, at, head].double() - state @ key
                state = state + torch.sigmoid(self.b[at, head].double()) * torch.outer(missing, key)
                output[head] = state @ query / KEYS**0.5
                heads.append(state)
            read.append(output)
            states.append(torch.stack(heads))
        return torch.stack(read), torch.stack(states)


def verified(
    rule: Callable[..., Tensor], given: Steps, parents: Tensor | None, *, keep: bool, more: int = 0
) -> Sequence[Tensor]:
    """Run a rule over all nodes: what is read of real requests, the states behind nodes, and the states of slots.

    There is room for `more` nodes of each request, of which the rule does not know.
    """
    nodes = len(given.a) // len(ROWS)
    states, behind = given.states.clone(), poison(REQUESTS, nodes + more, HEADS, VALUES, KEYS)
    kept = {"intermediate_states_buffer": behind, "intermediate_state_indices": POSITIONS, "cache_steps": nodes}
    kept |= {"disable_state_update": True, "retrieve_parent_token": parents}
    read = rule(
        A_log=given.a_log,
        a=given.a,
        dt_bias=given.dt_bias,
        softplus_beta=1.0,
        softplus_threshold=20.0,
        q=given.q,
        k=given.k,
        v=given.v,
        b=given.b,
        initial_state_source=states,
        initial_state_indices=ROWS,
        use_qk_l2norm_in_kernel=True,
        is_kda=given.columns,
        cu_seqlens=torch.arange(0, len(given.a) + 1, nodes, dtype=torch.int32),
        **(kept if keep else {}),
    )
    return read.view(len(ROWS), nodes, HEADS, VALUES)[ROWS >= 0], behind, states


def exactly(given: Steps, parents: Sequence[Sequence[int]]) -> Sequence[Tensor]:
    """Return the same as `verified`, in float64."""
    nodes, read = len(parents[0]), list[Tensor]()
    behind = torch.full((REQUESTS, nodes, HEADS, VALUES, KEYS), float("nan"), dtype=torch.float64)
    for request, row in enumerate(ROWS.tolist()):
        output, behind[request] = given.stepped(parents[request], request * nodes, row)
        read += [output] * (row >= 0)
    return torch.stack(read), behind, given.states


def convolved(update: Callable[..., Tensor], *, nodes: int, tree: bool) -> Sequence[Tensor]:
    """Convolve nodes, or one token of each request: of real ones what came out, windows behind nodes, and of slots."""
    draw = torch.Generator().manual_seed(nodes)
    x = torch.randn(len(ROWS), nodes, CHANNELS, generator=draw).transpose(1, 2)
    windows = torch.randn(SLOTS, CHANNELS, WIDTH - 1, generator=draw)
    weight, bias = torch.randn(CHANNELS, WIDTH, generator=draw), torch.randn(CHANNELS, generator=draw)
    behind, parents = (
        poison(REQUESTS, nodes, CHANNELS, WIDTH - 1),
        torch.full((len(ROWS), nodes), -7, dtype=torch.int32),
    )
    links = {"retrieve_next_token": CHILDREN, "retrieve_next_sibling": SIBLINGS, "retrieve_parent_token": parents}
    kept = {"intermediate_conv_window": behind, "intermediate_state_indices": POSITIONS}
    out = update(
        x if nodes > 1 else x[..., 0],
        windows,
        weight,
        bias,
        "silu",
        conv_state_indices=ROWS,
        **(kept if nodes > 1 else {}),
        **(links if tree else {}),
    )
    return out[ROWS >= 0], behind, windows, parents[ROWS >= 0]


def prompts(convolve: Callable[..., Tensor]) -> Sequence[Tensor]:
    """Convolve prompts, one of which goes on behind a cached prefix: what came out, and the windows of slots."""
    draw = torch.Generator().manual_seed(1)
    begins = [0, 3, 12, 13]
    x, windows = torch.randn(13, CHANNELS, generator=draw).T, torch.randn(SLOTS, CHANNELS, WIDTH - 1, generator=draw)
    out = convolve(
        x,
        torch.randn(CHANNELS, WIDTH, generator=draw),
        torch.randn(CHANNELS, generator=draw),
        activation="silu",
        conv_states=windows,
        has_initial_state=torch.tensor([False, True, True]),
        cache_indices=torch.tensor([3, 7, 1], dtype=torch.int32),
        query_start_loc=torch.tensor(begins, dtype=torch.int32),
        seq_lens_cpu=[3, 9, 1],
    )
    return out, windows


def prompted(given: Steps, lengths: Sequence[int], rows: Sequence[int], *, exact: bool) -> Sequence[Tensor]:
    """Go over prompts: what was read, the states before chunks, and those of slots."""
    states, begins = given.states.double() if exact else given.states.clone(), [0]
    for length in lengths:
        begins.append(begins[-1] + length)
    steps: dict[str, Any] = {
        "initial_state": states,
        "cu_seqlens": torch.tensor(begins, dtype=torch.int32),
        "use_qk_l2norm_in_kernel": True,
        "initial_state_indices": torch.tensor(rows, dtype=torch.int32),
    }
    if exact:
        return exact_prompts(given, lengths, rows, states)
    if not given.columns:
        g, beta = gates(given.a_log, given.a, given.b, given.dt_bias)
        read, _, before = chunk_gated_delta_rule_cpu(given.q, given.k, given.v, g, beta, head_first=False, **steps)
        return read[0], before[0], states
    tracked = poison(len(rows), HEADS, VALUES, KEYS)
    read, before = chunk_kda(
        given.q,
        given.k,
        given.v.clone(),
        given.a.view(1, -1, HEADS, KEYS),
        given.b[None],
        A_log=given.a_log,
        dt_bias=given.dt_bias,
        beta_is_raw=True,
        output_intermediate_states=True,
        track_state=tracked,
        track_chunk_idx=torch.tensor(TRACKED, dtype=torch.int32),
        **steps,
    )
    return read[0], before[0], states, tracked


def exact_prompts(given: Steps, lengths: Sequence[int], rows: Sequence[int], states: Tensor) -> Sequence[Tensor]:
    """Return the same in float64, with what is tracked."""
    read, before, tracked, begin = list[Tensor](), list[Tensor](), poison(len(rows), HEADS, VALUES, KEYS).double(), 0
    for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        output, behind = given.stepped(range(-1, length - 1), begin, row)
        chunks = [given.states[row].double(), *behind[CHUNK - 1 : length - 1 : CHUNK]]
        if TRACKED[place] >= 0:
            tracked[place] = chunks[TRACKED[place]]
        states[row], begin = behind[-1], begin + length
        before += chunks
        read.append(output)
    return torch.cat(read), torch.stack(before), states, *([tracked] if given.columns else [])


def copied(copy: Callable[..., None], shape: Sequence[int]) -> Sequence[Tensor]:
    """Copy the states of nodes into slots, of two requests that have both."""
    draw = torch.Generator().manual_seed(2)
    source = torch.randn(LAYERS, REQUESTS, NODES, *shape, generator=draw).as_subclass(OnGpu)
    slots = poison(LAYERS, SLOTS, *shape).as_subclass(OnGpu)
    copy(slots, source, ROWS, torch.tensor([4, -1, 2, 0], dtype=torch.int64))
    return [slots.as_subclass(Tensor)]


def tracked(copy: Callable[..., None]) -> Sequence[Tensor]:
    """Copy the states of the requests that are to be kept for prefixes into slots of these."""
    draw = torch.Generator().manual_seed(3)
    windows = torch.randn(LAYERS, SLOTS, CHANNELS, WIDTH - 1, generator=draw)
    states = torch.randn(LAYERS, SLOTS, HEADS, VALUES, KEYS, generator=draw)
    rows, to = torch.tensor([3, 7, 1], dtype=torch.int32), torch.tensor([2, 4, 8])
    copy(windows, states, rows, torch.tensor([True, False, True]), to, 3)
    return windows, states


def added(add: Callable[..., None]) -> Sequence[Tensor]:
    draw = torch.Generator().manual_seed(4)
    hidden, shared, experts = torch.randn(3, 7, CHANNELS, generator=draw)
    add(hidden, torch.randn(CHANNELS, generator=draw), shared, experts)
    return [experts]


def of_columns(lengths: Sequence[int], rows: Sequence[int], links: Tensor) -> dict[str, float]:
    """Return the same of states whose columns decay one by one."""
    text, many, one = (Steps(tokens, columns=True) for tokens in (sum(lengths), len(ROWS) * NODES, len(ROWS)))

    def of(rule: Callable[..., Tensor], given: Steps, parents: Tensor | None) -> Callable[[], Sequence[Tensor]]:
        return lambda: verified(rule, given, parents, keep=given is many)

    mine, kernel = gated_delta_rule_update, fused_sigmoid_gating_delta_rule_update
    pairs = {
        "columns of a chain": (of(mine, many, None), of(kernel, many, None)),
        "columns of a tree": (of(mine, many, links), of(kernel, many, links)),
        "columns of tokens": (of(mine, one, None), of(kernel, one, None)),
        "exact columns of a chain": (of(mine, many, None), lambda: exactly(many, CHAIN)),
        "exact columns of a tree": (of(mine, many, links), lambda: exactly(many, PARENTS)),
        "exact columns of prompts": (
            lambda: prompted(text, lengths, rows, exact=False),
            lambda: prompted(text, lengths, rows, exact=True),
        ),
    }
    return {name: furthest(*pair) for name, pair in pairs.items()}


def compared() -> dict[str, float]:
    """Return how far each stand-in is from SGLang's kernel, or from float64."""
    torch.manual_seed(0)
    whole, one, links = (
        Steps(len(ROWS) * NODES),
        Steps(len(ROWS)),
        torch.tensor(PARENTS, dtype=torch.int32).clamp(min=0),
    )
    lengths, rows = (3, 2 * CHUNK + 5, CHUNK), (3, 7, 1)
    text, kernel = Steps(sum(lengths)), fused_sigmoid_gating_delta_rule_update
    sigmoids = (whole.a_log, whole.a, whole.b, whole.dt_bias)
    x, z, weights = torch.randn(7, VALUES), torch.randn(7, VALUES), torch.randn(VALUES)
    shared: dict[str, Any] = {"residual": None, "prenorm": False, "residual_in_fp32": False}
    scatter, update = HybridLinearAttnBackend._scatter_speculative_state_with_mask, convolutions.causal_conv1d_update
    verify = verified
    return {
        "chain": furthest(
            lambda: verify(gated_delta_rule_update, whole, None, keep=True),
            lambda: verify(kernel, whole, None, keep=True),
        ),
        "chain with room": furthest(
            lambda: verify(gated_delta_rule_update, whole, None, keep=True, more=2),
            lambda: verify(kernel, whole, None, keep=True, more=2),
        ),
        "tree": furthest(
            lambda: verify(gated_delta_rule_update, whole, links, keep=True),
            lambda: verify(kernel, whole, links, keep=True),
        ),
        "decode": furthest(
            lambda: verify(gated_delta_rule_update, one, None, keep=False),
            lambda: verify(kernel, one, None, keep=False),
        ),
        "exact chain": furthest(
            lambda: verify(gated_delta_rule_update, whole, None, keep=True), lambda: exactly(whole, CHAIN)
        ),
        "exact tree": furthest(
            lambda: verify(gated_delta_rule_update, whole, links, keep=True), lambda: exactly(whole, PARENTS)
        ),
        "exact prompts": furthest(
            lambda: prompted(text, lengths, rows, exact=False), lambda: prompted(text, lengths, rows, exact=True)
        ),
        **of_columns(lengths, rows, links),
        "windows": furthest(
            lambda: convolved(causal_conv1d_update_cpu, nodes=NODES, tree=False),
            lambda: convolved(update, nodes=NODES, tree=False),
        ),
        "windows of a tree": furthest(
            lambda: convolved(causal_conv1d_update_cpu, nodes=NODES, tree=True),
            lambda: convolved(update, nodes=NODES, tree=True),
        ),
        "windows of tokens": furthest(
            lambda: convolved(causal_conv1d_update_cpu, nodes=1, tree=False),
            lambda: convolved(update, nodes=1, tree=False),
        ),
        "windows of prompts": furthest(
            lambda: prompts(causal_conv1d_fn_cpu), lambda: prompts(convolutions.causal_conv1d_fn)
        ),
        "gates": furthest(lambda: gates(*sigmoids), lambda: fused_gdn_gating(*sigmoids)),
        "copy of states": furthest(
            lambda: copied(scatter, (HEADS, VALUES, KEYS)),
            lambda: copied(copies.fused_mamba_state_scatter_with_mask, (HEADS, VALUES, KEYS)),
        ),
        "copy of windows": furthest(
            lambda: copied(scatter, (CHANNELS, WIDTH - 1)),
            lambda: copied(copies.fused_conv_window_scatter_with_mask, (CHANNELS, WIDTH - 1)),
        ),
        "copy for prefixes": furthest(lambda: tracked(track), lambda: tracked(copies.track_mamba_states_all_layers)),
        "norm": furthest(
            lambda: [norm_gated(x, z, weights, None, "silu", eps=1e-6, **shared)],
            lambda: [rms_norm_gated(x.clone(), z, weights, None, "silu", eps=1e-6, **shared)],
        ),
        "shared expert": furthest(lambda: added(add_gated), lambda: added(fused_gate_sigmoid_mul_add)),
        **{name: furthest(*pair) for name, pair in real_spaces.pairs(ROWS, CHAIN, PARENTS).items()},
        **{name: furthest(*pair) for name, pair in real_records.pairs().items()},
    }


if __name__ == "__main__":
    print(json.dumps(compared()))
