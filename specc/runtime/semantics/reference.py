"""What every op means, in plain torch: the oracle of the tests and the CPU backend of every generated program.

`OPS[name](operands, attrs, dims) -> results`: `operands` and `results` are tuples of tensors in the order of the op
table, `attrs` the op's attributes, `dims` the size of every axis with `B` the rows of this batch. Every function is
functional: it changes no operand, and no result shares memory with one. In-place ops return the new value. None reads a
value on the host, and none copies one from there: on CUDA they are queued, and captured, like kernels.

State is explicit. The ops of the dialects `carry` and `relay` take the pool of their field, T[P, ...], as an extra
last operand, and the stores return the new pool. `evaluate` supplies it: give it `pools`, a mapping from field to pool,
and it reads the pool, or writes rows of it in place, so that callers treat all ops alike.

Conventions: b counts requests, `rows[b] == 0` is a padding row. `model.*` and `spec.*` have no entry: they are
external calls and unexpanded programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from .convention import DTYPES, Attrs, Dims, Semantics, Tensors, bad_rows, comparable, ranking, zero_rows
from .convention import register as _register
from .reference_kv import KV_OPS
from .reference_ngram import NGRAM_OPS
from .reference_reject import REJECT_OPS
from .reference_sample import SAMPLE_OPS
from .reference_scores import SCORE_OPS
from .reference_shards import SHARD_OPS
from .reference_slots import SLOT_OPS
from .reference_tree import TREE_OPS
from .reference_walk import WALK_OPS

Pools: TypeAlias = Mapping[str, Tensor]
Store: TypeAlias = Callable[[Tensors, Tensor], Tensor]

OPS: dict[str, Semantics] = {
    **SLOT_OPS, **TREE_OPS, **NGRAM_OPS, **SAMPLE_OPS, **SCORE_OPS, **REJECT_OPS, **WALK_OPS, **SHARD_OPS
}  # fmt: skip
STORES: dict[str, Store] = {}
"""By op, of its operands, of which rows i64[B] come first, and the pool: what these rows of the pool become."""
LOAD = "carry.load"


def evaluate(
    op: str,
    operands: Tensors,
    attrs: Attrs,
    dims: Dims,
    pools: Pools,
    kv: Mapping[str, Sequence[Tensor]] | None = None,
    semantics: Mapping[str, Semantics] = OPS,
) -> Tensors:
    """Run one op with state: pools of `pools` are read and written, and do not show in operands or results.

    `kv` has the KV buffers of each owner, T[slots, ...] each; ops on them change them in place. Without it they do
    nothing. `semantics` are `OPS`, and those of ops that a plugin brought. Raises KeyError for an op that has no
    reference semantics, or a field or owner that has no pool.
    """
    if op in KV_OPS:
        owner, function = KV_OPS[op]
        if kv is not None:
            function(operands, attrs, dims, kv[owner])
        return ()
    if op in STORES:
        pool = pools[attrs["field"]]
        pool.index_copy_(0, operands[0], STORES[op](operands, pool))
        return ()
    return semantics[op]((*operands, pools[attrs["field"]]) if op == LOAD else operands, attrs, dims)


# --- health -----------------------------------------------------------------------------------------------------------


@_register(OPS, "health.clear")
def health_clear(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B] -> health i32[B], all zero."""
    (rows,) = operands
    return (torch.zeros_like(rows, dtype=torch.int32),)


@_register(OPS, "health.raise")
def health_raise(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Health i32[B], bad i1[B, ...] -> health with bit `bit` set where any bad[b]."""
    health, bad = operands
    raised = bad.flatten(1).any(dim=1) if bad.dim() > 1 else bad
    return (torch.where(raised, health | (1 << int(attrs["bit"])), health),)


# --- state between steps ----------------------------------------------------------------------------------------------


@_register(OPS, LOAD)
def carry_load(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B], pool T[P, ...] -> T[B, ...]: the rows of the pool; padding rows: 0."""
    rows, pool = operands
    return (zero_rows(pool[rows], rows == 0),)


def _store(name: str) -> Callable[[Store], Store]:
    """Decorator: the function has the rows and what they become, for an op `name` that stores."""

    def add(function: Store) -> Store:
        def stored(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
            *given, pool = operands
            return (pool.index_copy(0, given[0], function(tuple(given), pool)),)

        STORES[name] = function
        OPS[name] = stored
        return function

    return add


@_store("relay.publish")
@_store("carry.store")
def carry_store(operands: Tensors, pool: Tensor) -> Tensor:
    """Rows i64[B], value T[B, ...], pool T[P, ...] -> what the rows become; padding rows store nothing.

    A value that only lacks or has extra axes of size 1 is reshaped to the pool's row.
    """
    rows, value = operands
    value = value.reshape(rows.shape[0], *pool.shape[1:])
    active = (rows != 0).view(-1, *[1] * (pool.ndim - 1))
    return torch.where(active, value, pool[:1])


@_register(OPS, "carry.convert")
def carry_convert(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Integers [B, ...] -> the same as `dtype`, of whose bits the lowest are kept."""
    return (operands[0].to(DTYPES[attrs["dtype"]]),)


@_store("carry.append")
def carry_append(operands: Tensors, pool: Tensor) -> Tensor:
    """Rows i64[B], seq_lens i64[B], values T[B, A], count i32[B], pool T[P, L] -> what the rows become.

    values[b, i], i < count[b], replaces entry (seq_lens[b] + 1 + i) % L of its row; padding rows store nothing.
    """
    rows, seq_lens, values, count = operands
    size, written = pool.shape[1], count[:, None].clamp(max=values.shape[1])
    first = (torch.arange(size, device=rows.device) - seq_lens[:, None] - 1) % size
    last = first + (written - 1 - first) // size * size  # of the values that come to an entry
    ring = torch.where(first < written, values.gather(1, last.clamp(min=0)), pool[rows])
    return carry_store((rows, ring), pool)


@_store("carry.count")
def carry_count(operands: Tensors, pool: Tensor) -> Tensor:
    """Rows i64[B], values i32[B, ...][, count i32[B]], pool i32[P, V] -> what the rows become.

    2 more in the words of values[b, i], i < count[b]; padding rows store nothing.
    """
    rows, values, *count = operands
    values = values[:, None].flatten(1).to(torch.int64)
    columns = torch.arange(values.shape[1], device=rows.device).expand(values.shape)
    counted = columns < count[0][:, None] if count else columns >= 0
    return carry_store((rows, pool[rows].scatter_add(1, values, 2 * counted.to(torch.int32))), pool)


# --- vocabulary -------------------------------------------------------------------------------------------------------


@_register(OPS, "vocab.argmax")
def vocab_argmax(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V], rows i64[B] -> index `dtype`[B, ...], bad i1[B, ...]; padding rows: 0, False.

    The largest value, lowest index on ties, NaN as -inf, -0.0 == 0.0; a row of only NaN and -inf: index 0. A row is bad
    if it holds NaN or its largest value is not finite. With `keep` the index has a last axis of length 1 in place of
    the vocabulary.
    """
    logits, rows = operands
    scores = torch.nan_to_num(logits, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    padding = rows == 0
    index = zero_rows(scores.max(dim=-1).indices, padding).to(DTYPES[attrs["dtype"]])  # the first of equal ones
    return index[..., None] if attrs.get("keep") else index, zero_rows(bad_rows(logits), padding)


@_register(OPS, "vocab.topk")
def vocab_topk(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, ..., V][, rows i64[B]] -> p f32[B, ..., K], index i64[B, ..., K], bad i1[B, ...].

    The K most probable tokens in descending order, lowest index on ties; p is the f32 softmax over the whole
    vocabulary. NaN counts as -inf; equal infinities share the probability; a row of only NaN and -inf has p 0 and the
    indices 0..K-1. A row is bad as in `vocab.argmax`. Padding rows: 0, 0, False.
    """
    logits, *rest = operands
    scores = comparable(logits)
    best = scores.amax(dim=-1, keepdim=True)
    weights = torch.where(scores == best, 1.0, torch.exp(scores - best))
    bad = bad_rows(logits)
    p = torch.where(best == -torch.inf, 0.0, weights / weights.sum(dim=-1, keepdim=True))
    index = ranking(scores)[..., : dims["K"]]
    padding = rest[0] == 0 if rest else torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    results = p.gather(-1, index), index, bad
    return tuple(zero_rows(result, padding).contiguous() for result in results)


@_register(OPS, "vocab.row")
def vocab_row(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Logits T[B, n, V], at i64[B] -> the row T[B, V] of each request, the nearest one where there is no such row."""
    logits, at = operands
    chosen = at.clamp(0, logits.shape[1] - 1).view(-1, 1, 1).expand(-1, 1, logits.shape[2])
    return (logits.gather(1, chosen).squeeze(1),)


@_register(OPS, "vocab.translate")
def vocab_translate(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Index i64[B, ...], map i64[Vd], rows i64[B] -> token i64[B, ...]: map[index]; padding rows: 0."""
    index, table, rows = operands
    return (zero_rows(table[index.clamp(0, len(table) - 1)], rows == 0),)


# --- chains -----------------------------------------------------------------------------------------------------------


@_register(OPS, "chain.start")
def chain_start(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Bonus i32[B], token i64[B, 1] -> tokens i64[B, A]: column 0 the bonus, column 1 the token, else 0."""
    bonus, token = operands
    tokens = torch.zeros(bonus.shape[0], dims["A"], dtype=torch.int64, device=bonus.device)
    tokens[:, 0] = bonus
    tokens[:, 1] = token.reshape(-1)
    return (tokens,)


@_register(OPS, "chain.first")
def chain_first(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Token i64[B, 1] -> drafts i64[B, S]: column 0 the token, else 0."""
    (token,) = operands
    drafts = torch.zeros(token.shape[0], dims["S"], dtype=torch.int64, device=token.device)
    drafts[:, :1] = token.reshape(-1, 1)
    return (drafts,)


@_register(OPS, "chain.drafts")
def chain_drafts(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, A] -> drafts i64[B, S]: what follows the first."""
    return (operands[0][:, 1:].clone(),)


@_register(OPS, "chain.join")
def chain_join(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Bonus i32[B], drafts i64[B, S] -> tokens i64[B, A]: the bonus, then the drafts."""
    bonus, drafts = operands
    return (torch.cat((bonus.to(torch.int64)[:, None], drafts), dim=1),)


@_register(OPS, "chain.shift")
def chain_shift(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, A], accept_lens i32[B], token i64[B, 1] -> tokens one further in the text, then the token.

    Entry i < accept_len - 1 is entry i + 1, entry accept_len - 1 the token; the others stay.
    """
    tokens, accept_lens, token = operands
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    last = accept_lens.to(torch.int64)[:, None] - 1
    shifted = torch.where(columns < last, tokens.roll(-1, dims=1), tokens)
    return (torch.where(columns == last, token.reshape(-1, 1), shifted),)


@_register(OPS, "chain.append")
def chain_append(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Tokens i64[B, A or S], token i64[B, 1] -> tokens with column `column` replaced."""
    tokens, token = operands
    appended = tokens.clone()
    appended[:, int(attrs["column"])] = token.reshape(-1)
    return (appended,)


# --- verification -----------------------------------------------------------------------------------------------------


@_register(OPS, "verify.greedy")
def verify_greedy(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Accept a path of the target's own tokens; at most A - 1 drafts.

    tokens i64[B, N], argmax i32[B, N], rows i64[B][, parent i64[B, N]]
    -> predict i32[B, N], accept_index i32[B, A], accept_lens i32[B]. Without parents node c + 1 is the child of node c.
    """
    tokens, argmax, rows, *parents = operands
    count, nodes = tokens.shape
    columns = torch.arange(nodes, device=tokens.device)
    (parent,) = parents or ((columns - 1).expand(count, nodes),)
    node, alive = torch.zeros_like(rows), rows != 0
    path: list[Tensor] = []
    for _ in range(dims["A"]):
        path.append(torch.where(alive, node, -1))
        agreed = (parent == node[:, None]) & (tokens == argmax.gather(1, node[:, None])) & (columns > 0)
        child = torch.where(agreed, columns, nodes).amin(dim=1)  # in ascending column the first that agrees
        alive = alive & (child < nodes)
        node = torch.where(alive, child, 0)
    accepted = torch.stack(path, dim=1)
    on_path = (accepted[:, None] == columns[:, None]).any(dim=2)
    first = torch.arange(count, device=tokens.device)[:, None] * nodes
    accept_index = torch.where(accepted < 0, -1, first + accepted)
    accept_lens = (accepted >= 0).sum(dim=1)
    predict = torch.where(on_path, argmax, 0)
    return tuple(result.to(torch.int32) for result in (predict, accept_index, accept_lens))


# --- commit -----------------------------------------------------------------------------------------------------------


@_register(OPS, "commit.compact")
@_register(OPS, "commit.path")
def commit_path(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values T[B, N, ...], accept_index i32[B, A] of global node ids -> T[B, A, ...]: those on the path, else 0."""
    x, accept_index = operands
    flat = x.reshape(-1, *x.shape[2:])
    index = accept_index.to(torch.int64)
    path = flat[index.clamp(min=0)]
    return (path.masked_fill((index < 0).view(*index.shape, *([1] * (x.dim() - 2))), 0),)


@_register(OPS, "commit.last")
def commit_last(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Values T[B, N, ...], accept_index i32[B, A], accept_lens i32[B] -> T[B, ...]: that of the last accepted node.

    Padding rows: 0.
    """
    x, accept_index, accept_lens = operands
    last = (accept_lens.to(torch.int64) - 1).clamp(min=0)
    node = accept_index.to(torch.int64).gather(1, last[:, None]).squeeze(1)
    return (zero_rows(x.reshape(-1, *x.shape[2:])[node.clamp(min=0)], accept_lens == 0),)


@_register(OPS, "commit.lengths")
def commit_lengths(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Lengths i64[B], accept_lens i32[B], predict i32[B, A] -> new_seq_lens i64[B], bonus i32[B]; padding: 0, 0."""
    seq_lens, accept_lens, predict = operands
    active = accept_lens > 0
    last = (accept_lens.to(torch.int64) - 1).clamp(min=0)
    bonus = predict.gather(1, last[:, None]).squeeze(1)
    new_seq_lens = seq_lens + accept_lens.to(torch.int64)
    return torch.where(active, new_seq_lens, 0), torch.where(active, bonus, 0).to(torch.int32)


@_register(OPS, "commit.extend_ids")
def commit_extend_ids(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Predict i32[B, A], accept_lens i32[B] -> i64[B, A]: the token after accepted node i, 0 past accept_len."""
    predict, accept_lens = operands
    columns = torch.arange(predict.shape[1], device=predict.device)
    return (torch.where(columns < accept_lens[:, None], predict.to(torch.int64), 0),)


@_register(OPS, "commit.select")
def commit_select(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """accept_lens i32[B] -> i64[B]: the flat extend row b * A + max(accept_len - 1, 0)."""
    (accept_lens,) = operands
    first = torch.arange(accept_lens.shape[0], device=accept_lens.device) * dims["A"]
    return (first + (accept_lens.to(torch.int64) - 1).clamp(min=0),)
