"""The target's side of a program's callbacks, and what all callbacks share (docs/runtime.md, "Callbacks")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from specc.lab.engine.errors import ContractError
from specc.lab.engine.memory.context import PagedContext
from specc.lab.engine.memory.kv_pool import KVPool
from specc.lab.engine.memory.state_pool import RowStates, StatePool
from specc.lab.engine.memory.tree_attention import RowsContext, TreeContext, node_by_node, seen_columns, visible_keys
from specc.lab.engine.models.causal_models import ModelSizes, TargetModel
from specc.lab.engine.serving.prompts import PrefillPrompt, Prefix, PromptBatch, Span, grouped
from specc.lab.engine.serving.requests.grammar import GrammarMasks
from specc.runtime.entry.callbacks import (
    CommitStateCall,
    GrammarBeginCall,
    GrammarEndCall,
    GrammarPrefillCall,
    PrefillTargetCall,
    TargetCall,
    TargetRowsCall,
)
from specc.runtime.entry.external import Forward
from specc.runtime.plan.plan import Plan
from specc.runtime.semantics.convention import DTYPES


class Masked(NamedTuple):
    """What a callback of grammars returns."""

    bitmask: Tensor


class EngineMemory:
    """What an engine's forwards work on: pools by owner, the request table i32[P, C], prompts by pool row.

    `width` is how many positions the decode forwards attend to. A captured forward needs it constant; else
    the engine sets it before each step to something above every length in the batch.
    """

    def __init__(
        self,
        pools: Mapping[str, KVPool],
        req_to_token: Tensor,
        prompts: Mapping[int, PrefillPrompt],
        states: Mapping[str, StatePool] = MappingProxyType({}),
    ) -> None:
        """Use the pools of ``target`` and, if it has one, ``draft``.

        prompts: what to prefill, by pool row. states: of owners with recurrent layers.
        """
        self.pools, self.req_to_token, self.prompts, self.states = pools, req_to_token, prompts, states
        self.width = req_to_token.shape[1]

    def prefixes(self, rows: Tensor, seq_lens: Tensor) -> list[Prefix]:
        """The prompts of pool rows i64[b]; ContractError where one has another length than i64[b] says."""
        prefixes: list[Prefix] = []
        for row, length in zip(rows.tolist(), seq_lens.tolist(), strict=True):
            tokens, shared, _ = self.prompts.get(row, PrefillPrompt(()))
            if len(tokens) != length:
                reason = f"pool row {row} has {len(tokens)} tokens to prefill, the program asks for {length}"
                raise ContractError(reason)
            host = torch.tensor(tokens, dtype=torch.int64, pin_memory=self.req_to_token.is_cuda)
            prefixes.append(Prefix(row, host.to(self.req_to_token.device, non_blocking=True), shared))
        return prefixes

    def batches(self, owner: str, spans: Sequence[Span]) -> Iterator[PromptBatch]:
        """The batches in which a model runs the tokens at these positions; a prompt's number is its place there.

        Recurrent layers begin with no state, so positions are a text's first; what a batch has left is kept when the
        next one is asked for.
        """
        table, pool = self.req_to_token, self.states.get(owner)
        for members in grouped([span.end - span.start for span in spans], padded=pool is None):
            chosen = [spans[member] for member in members]
            rows, starts, ends = torch.tensor(chosen, device=table.device).unbind(1)
            lengths = tuple(span.end - span.start for span in chosen)
            offsets = torch.arange(max(lengths), device=table.device)
            positions = torch.minimum(starts[:, None] + offsets, ends[:, None] - 1)
            counts = offsets < (ends - starts)[:, None]
            slots = torch.where(counts, table[rows[:, None], positions].long(), 0)
            width = max(span.end for span in chosen)
            states = None if pool is None else RowStates()
            paged = PagedContext(self.pools[owner], table, rows, positions, slots, width, states)
            yield PromptBatch(tuple(members), lengths, positions, paged)
            if pool is not None and states is not None:
                pool.keep(rows, states)

    def joined(self, rows: Iterable[Tensor], facts: ModelSizes, width: int | None = None) -> Tensor:
        """What a model gave for one prompt after the other, T[n, width]; of no prompts no rows.

        width: by default that of the model's hidden states.
        """
        shape = (0, width or facts.hidden_size)
        return torch.cat((torch.empty(shape, dtype=DTYPES[facts.dtype], device=self.req_to_token.device), *rows))


class TargetCallbacks:
    """The target on static inputs over its paged pool; all there is for a program without draft model."""

    def __init__(self, target: TargetModel, memory: EngineMemory, plan: Plan) -> None:
        """Bind the model to memory."""
        self.target_model, self.memory, self.mask_mode = target, memory, plan.serving.mask_mode
        self.nodes = plan.shape.num_nodes
        self.masks = GrammarMasks(plan, target.device)
        self.logits_dtypes = {role: DTYPES[model.logits_dtype] for role, model in plan.models.items()}

    @property
    def capturable(self) -> bool:
        """Whether the decode forwards wait for the device nowhere and keep their shapes."""
        return self.target_model.capturable

    @torch.inference_mode()
    def target(self, **call: Unpack[TargetCall]) -> Forward:
        """See `TargetCall`. `visible_keys` reads the mask of a tree, and `seen_columns` one of slots."""
        tokens, pool = call["tokens"], self.memory.states.get("target")
        window = self._window(call, call["positions"], call["slots"])
        if pool is None:
            states, handed = self._run(tokens, window)
        else:
            where = call["rows"], call["seq_lens"], call.get("points")
            states, handed = node_by_node(self._run, window, tokens, pool, *where)
        return captured(self._target_logits(states), handed, call["capture"])

    @torch.inference_mode()
    def target_rows(self, **call: Unpack[TargetRowsCall]) -> Forward:
        """See `TargetRowsCall`. Every packed row is run as a request of one token, behind those that come before it.

        All keys and values of a layer are written before any row attends, those of the same request among them.
        """
        shape, owners = call["slots"].shape, owners_of(call["lens"], call["starts"], call["slots"].numel())
        tokens, positions, slots = (call[name].view(-1, 1) for name in ("tokens", "positions", "slots"))
        if "mask" in call:
            window = self._window_of_rows(call, owners)
        else:
            rows = torch.where(owners < 0, 0, call["rows"][owners.clamp(min=0)])
            memory = self.memory
            window = PagedContext(memory.pools["target"], memory.req_to_token, rows, positions, slots, memory.width)
        states, handed = self._run(tokens, window)
        return captured(self._target_logits(states).view(*shape, -1), handed.view(*shape, -1), call["capture"])

    def _run(self, tokens: Tensor, paged: PagedContext) -> tuple[Tensor, Tensor]:
        """The target's hidden states T[b, n, H] of tokens i64[b, n], and what is handed over T[b, n, W]."""
        states = self.target_model.forward(tokens, paged.positions, paged)
        return states, self.target_model.handed_over(states)

    def _window_of_rows(self, call: TargetRowsCall, owners: Tensor) -> PagedContext:
        """The memory of packed rows of trees, by the requests i64[r] that they are of, -1 of padding."""
        there, owner = owners >= 0, owners.clamp(min=0)
        column = torch.where(there, torch.arange(len(owners), device=owners.device) - call["starts"][owner], 0)
        nodes = len(call["rows"]), self.nodes
        place = torch.where(there, owner * nodes[1] + column, nodes[0] * nodes[1])  # padding behind them all
        by_request = (
            packed.new_full((nodes[0] * nodes[1] + 1,), -1).index_copy(0, place, packed.flatten())[:-1].view(nodes)
            for packed in (call["positions"], call["slots"])
        )
        return RowsContext(self._window(call, *by_request), call["slots"].flatten(), owner, column)

    def _window(self, call: TargetCall | TargetRowsCall, positions: Tensor, slots: Tensor) -> PagedContext:
        """The memory of all nodes, i64[b, N], in which each sees what the mask shows."""
        mask, mode = call.get("mask"), self.mask_mode
        pool, table, width = self.memory.pools["target"], self.memory.req_to_token, self.memory.width
        if mask is None or mode is None:
            return PagedContext(pool, table, call["rows"], positions, slots, width)
        if (counts := call.get("counts")) is not None:
            mask, mode = seen_columns(mask, counts, slots), "qlen"
        visible = visible_keys(mask, mode, call["seq_lens"], slots.shape[1], width)
        return TreeContext(pool, table, call["rows"], positions, slots, width, call["seq_lens"], visible)

    @torch.inference_mode()
    def commit_state(self, **call: Unpack[CommitStateCall]) -> None:
        """See `CommitStateCall`."""
        self.memory.states["target"].commit(call["rows"], call["accept_index"], call["accept_lens"])

    @torch.inference_mode()
    def prefill_target(self, **call: Unpack[PrefillTargetCall]) -> Forward:
        """See `PrefillTargetCall`.

        Where the token after a prompt is known its logit alone is finite, so that it is drawn, however that is done.
        Shared tokens are not run again. Their hidden states are zeros, which nobody reads: the draft, too, has
        keys and values of everything shared.
        """
        capture = call["capture"]
        memory, model = self.memory, self.target_model
        prompts = memory.prefixes(call["rows"], call["seq_lens"])
        last, handed = dict[int, Tensor](), dict[int, Tensor]()
        for batch in memory.batches("target", [prompt.span for prompt in prompts]):
            tokens = batch.padded([prompt.tokens[prompt.shared :] for prompt in prompts])
            states = model.forward(tokens, batch.positions, batch.paged)
            last.update((member, own_rows[-1:]) for member, own_rows in batch.rows_of(states))
            for member, own_rows in batch.rows_of(model.handed_over(states)):
                shared = own_rows.new_zeros(prompts[member].shared, own_rows.shape[1])
                handed[member] = torch.cat((shared, own_rows)) if capture == "full" else own_rows[-1:]
        scores = self._target_logits(memory.joined(in_order(last), model.facts))
        for index, prompt in enumerate(prompts):
            if (known := memory.prompts[prompt.row].known) is not None:
                scores[index] = -torch.inf
                scores[index, known] = 0.0
        return captured(scores, memory.joined(in_order(handed), model.facts, model.handed_width), capture)

    def grammar_begin(self, **call: Unpack[GrammarBeginCall]) -> Masked:
        """See `GrammarBeginCall`."""
        return Masked(self.masks.begin(call["tokens"], call.get("parent")))

    def grammar_end(self, **call: Unpack[GrammarEndCall]) -> Masked:
        """See `GrammarEndCall`."""
        self.masks.end(call["begun"])
        return Masked(call["begun"])

    def grammar_prefill(self, **call: Unpack[GrammarPrefillCall]) -> Masked:
        """See `GrammarPrefillCall`."""
        return Masked(self.masks.prefill(len(call["rows"])))

    def _target_logits(self, hidden: Tensor) -> Tensor:
        """The target's scores, in the dtype that the program reads."""
        return self.target_model.logits(hidden).to(self.logits_dtypes["target"])


def owners_of(lens: Tensor, starts: Tensor, count: int) -> Tensor:
    """The request i64[count] that each of so many packed rows is of, by lens and starts i32[B]; -1 of padding."""
    row = torch.arange(count, dtype=starts.dtype, device=starts.device)
    owner = torch.searchsorted(starts, row, right=True) - 1
    return torch.where(row < starts[owner] + lens[owner], owner, -1)


def in_order(by_row: Mapping[int, Tensor]) -> list[Tensor]:
    """What was found of prompts, by their numbers."""
    return [by_row[member] for member in sorted(by_row)]


def captured(logits: Tensor, hidden: Tensor, capture: str) -> Forward:
    """Hand over hidden states only where the program captures them."""
    return Forward(logits, None if capture == "null" else hidden)
