"""What nodes add to recurrent states, from which these follow: noted while transformers' own code runs.

A program with `state_form: fold` advances a state by the records of accepted nodes. So no state of a node is kept. A
node's forward begins with the state that its ancestors' records make of the committed one, and what its layers add to
that is noted in the functions that advance a state by one token. Models call these by name, so that each can be watched
while a forward runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from specc.lab.engine.errors import UnsupportedModelError
from specc.lab.engine.memory.state_pool import CONV, RECURRENT, PartShape, RowStates, StatePart, StatePool
from specc.runtime.plan.recurrent.state_tables import CommittedStates
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.state_forms import advanced, shifted

Record = tuple[Tensor, Tensor, Tensor]
"""A decay f32[b, H] or f32[b, H, K], a key [b, G, K] and an update f32[b, H, V], of a node of each request."""
Noted = tuple[Tensor, Record]
"""The state that a function was given, and what it has added to it."""
_INSTEAD = "build the program with `state_form: select`, which copies any state"


class Rule(NamedTuple):
    """A function of transformers' that advances a state by one token.

    record: what it adds, of its arguments: the state f32[b, H, V, K] and the record. keys_first: whether it keeps
    states as [b, H, K, V].
    """

    record: Callable[..., Noted]
    keys_first: bool


def _delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **more: object,
) -> Noted:
    """A gated delta rule: key T[b, 1, G, K], value T[b, 1, H, V], g T[b, 1, H] or T[b, 1, H, K], beta T[b, 1, H]."""
    key, value, g, beta = (given[:, 0].float() for given in (key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        key = key * torch.rsqrt((key * key).sum(-1, keepdim=True) + 1e-6)
    state, decay = initial_state.float(), g.exp()
    each = key.repeat_interleave(state.shape[1] // key.shape[1], dim=1)
    known = state * (decay[..., None, None] if decay.dim() == 2 else decay[..., None])
    update = (value - (known * each[..., None]).sum(-2)) * beta[..., None]
    return initial_state, (decay, key, update)


def _selective(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    **more: object,
) -> Noted:
    """A selective state space (Mamba-2): hidden_states T[b, H, V], dt T[b, H, V], A T[H, V, K] and B T[b, G, K]."""
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    step = (functional.softplus(dt) if dt_softplus else dt)[..., 0].float()
    return state, ((step * A[:, 0, 0].float()).exp(), B.float(), step[..., None] * hidden_states.float())


RULES = {
    "torch_recurrent_gated_delta_rule": Rule(_delta, keys_first=True),
    "recurrent_kimi_delta_attention": Rule(_delta, keys_first=True),
    "mamba2_selective_state_update": Rule(_selective, keys_first=False),
}
"""The rules by the names of their functions."""


def rule_of(model: PreTrainedModel) -> tuple[str, Rule]:
    """The name of the function that a model's layers call, and what it adds; UnsupportedModelError for none."""
    functions = vars(sys.modules[type(model).__module__])
    for name, rule in RULES.items():
        if name in functions:
            return name, rule
    reason = "nothing is known of what tokens add to its recurrent states"
    raise UnsupportedModelError(reason, _INSTEAD)


@contextmanager
def noting(model: PreTrainedModel) -> Iterator[list[Noted]]:
    """Note what the layers of a model add to states while it runs, in order."""
    name, rule = rule_of(model)
    functions, noted = vars(sys.modules[type(model).__module__]), list[Noted]()
    function = functions[name]

    def watched(*arguments: Any, **named: Any) -> Any:
        noted.append(rule.record(*arguments, **named))  # before the function, which may write over the state
        return function(*arguments, **named)

    functions[name] = watched
    try:
        yield noted
    finally:
        functions[name] = function


class RecordedStates(StatePool):
    """The states of all pool rows; of nodes there is what they add, in `pending` [requests, N, ...] by part and name.

    Matrices lie as programs read them, [P, H, V, K], whichever way a model sees them.
    """

    def __init__(
        self,
        shapes: Sequence[PartShape],
        rows: int,
        model: PreTrainedModel,
        folded: CommittedStates,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate `rows` pool rows (P). UnsupportedModelError where a program advances other states."""
        _, self._rule = rule_of(model)
        self._model, self._folded = model, folded
        if reason := _difference(shapes, folded, self._rule):
            raise UnsupportedModelError(reason, "rebuild with the sizes of this model as `state` of the target")
        super().__init__(shapes, rows, device)
        for part in [part for part in self.parts if part.kind == RECURRENT and self._rule.keys_first]:
            self.parts[part] = self.parts[part].mT.contiguous().mT
        self.records: dict[StatePart, tuple[Tensor, ...]] = {}

    def make_room(self, requests: int, nodes: int) -> None:
        """Allocate what is pending, for so many requests and nodes at most. It stays where it is."""
        for part, kept in self.parts.items():
            known = self._folded.parts[part.kind == CONV].records
            made = [kept.new_zeros(requests, nodes, *each.shape, dtype=DTYPES[each.dtype]) for each in known]
            self.records[part] = tuple(made)
        self.pending = {part: records[0] for part, records in self.records.items()}

    @property
    def bound(self) -> list[tuple[Tensor, ...]]:
        """Each tensor of what is kept, beside what nodes add to it, by layers: a matrix, then a window."""
        matrices_first = sorted(self.parts, key=lambda part: (part.layer, part.kind == CONV))
        return [(self._seen(part, self.parts[part]), *self.records[part]) for part in matrices_first]

    def runs(
        self, rows: Tensor, parents: Tensor, order: Tensor, points: Tensor | None = None
    ) -> Iterator[tuple[Tensor, RowStates]]:
        """As of snapshots: the states of a node's parent are what its ancestors have added to the committed ones."""
        self._fit(*parents.shape)
        row = torch.arange(len(rows), device=rows.device)
        begun = {part: self._seen(part, states)[rows] for part, states in self.parts.items()}
        for node in order.unbind(1):
            path = _ancestors(parents, parents[row, node])
            follows = {part: self._seen(part, self._followed(part, begun[part], path)) for part in self.parts}
            left = RowStates(
                {part: state.clone(memory_format=torch.contiguous_format) for part, state in follows.items()}
            )
            with noting(self._model) as noted:
                yield node, left
            self._note(row, node, left, noted)

    def _note(self, row: Tensor, node: Tensor, left: RowStates, noted: Sequence[Noted]) -> None:
        """Keep what the forward of a node has added; of a window that is its last input."""
        tensors = left.tensors()
        added = {id(state): record for state, record in noted}
        for part, records in self.records.items():
            if part.kind != CONV and id(tensors[part]) not in added:
                raise UnsupportedModelError(f"layer {part.layer} advances its state by code of its own", _INSTEAD)
            new = (tensors[part][..., -1],) if part.kind == CONV else added[id(tensors[part])]
            for record, values in zip(records, new, strict=True):
                record[row, node] = values.to(record.dtype)

    def _followed(self, part: StatePart, state: Tensor, path: Sequence[Tensor]) -> Tensor:
        """Return the state behind the nodes i64[b] of a path, one after the other; -1 is none."""
        row = torch.arange(len(state), device=state.device)
        step = shifted if part.kind == CONV else advanced
        for node in path:
            new = step(state, *(record[row, node.clamp(min=0)] for record in self.records[part]))
            state = torch.where((node >= 0).view(-1, *[1] * (state.dim() - 1)), new, state)
        return state

    def _seen(self, part: StatePart, states: Tensor) -> Tensor:
        """States as a program sees them, of those that a model sees, or the other way round."""
        return states.mT if part.kind == RECURRENT and self._rule.keys_first else states


def _ancestors(parents: Tensor, node: Tensor) -> list[Tensor]:
    """The nodes i64[b] from the root to `node`, itself included, by parents i64[b, N]; -1 where a path is shorter."""
    path = list[Tensor]()
    while bool((node >= 0).any()):
        path.append(node)
        node = torch.where(node >= 0, parents.gather(1, node.clamp(min=0)[:, None])[:, 0], -1)
    return path[::-1]


def _difference(shapes: Sequence[PartShape], folded: CommittedStates, rule: Rule) -> str:
    """Why a program does not advance the states of a model, or nothing."""
    matrix, window = folded.parts
    layers: dict[int, dict[str, PartShape]] = {}
    for shape in shapes:
        layers.setdefault(shape.part.layer, {})[shape.part.kind] = shape
    heads, values, keys = matrix.shape
    wanted: Mapping[str, tuple[tuple[int, ...], torch.dtype]] = {
        RECURRENT: ((heads, keys, values) if rule.keys_first else matrix.shape, DTYPES[matrix.dtype]),
        CONV: (window.shape[:1], DTYPES[window.dtype]),
    }
    if len(layers) != folded.layers or len(shapes) != 2 * len(layers):
        return f"the program advances the states of {folded.layers} layers, {len(layers)} of the target keep some"
    for layer, kinds in layers.items():
        for kind, (size, dtype) in wanted.items():
            own = kinds[kind].size if kind == RECURRENT else kinds[kind].size[:1]
            if own != size or kinds[kind].dtype != dtype:
                has = f"the {kind} state of layer {layer} is {kinds[kind].dtype}{list(own)}"
                return f"{has}, the program was built for {dtype}{list(size)}"
        if kinds[CONV].size[-1] < window.shape[-1]:
            return f"layer {layer} keeps {kinds[CONV].size[-1]} inputs, the program moves {window.shape[-1]} or more"
    return ""
