"""Attention for forwards that a program calls: which backend each role has, and what all of them share of a step."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..._shapes import largest
from ..candidates import candidates_of, in_state
from ..seam import need
from ..windows import map_of
from .backend import StepAttention
from .kinds import backend_of
from .prepare.eager import Eager
from .prepare.reading import Reading
from .recurrent import BesideStates
from .roles import Roles, name_of, roles_of
from .step_tables import Sizes, Tables


class Attention:
    """Prepares attention for the forwards of steps of one shape; every method returns the backend that then runs it.

    Attributes:
        captured: whether steps are captured, in a server that captures its own.
        states: SGLang's object around the attention of layers of the target, if it keeps a recurrent state.

    """

    def __init__(self, roles: Roles, tables: Tables, *, captured: bool) -> None:
        """Over the backends of a worker, see `attention_of`."""
        self.captured, self.states = captured, roles.states
        names = roles.named()
        self._tables = tables
        self._shared = any(backend_of(name).tables for name in names.values())
        made = {name: self._make(name, roles, captured=captured) for name in set(names.values())}
        self._by_role = {role: made[name] for role, name in names.items()}
        if roles.draft and roles.container is None:
            self._by_role["draft"] = Reading(roles, tables, captured=captured)
        self._beside = None if roles.states is None else BesideStates(roles.states)
        self._modules = [self._make(name_of(of), replace(roles, extend=of), captured=captured) for of in roles.further]
        self._backends = [*made.values(), *self._modules]
        self._first = "draft" if "draft" in names else "target"

    @property
    def plans(self) -> bool:
        """Whether `plan` must be called on the host before each step."""
        return any(backend.plans for backend in self._backends)

    def draft(self, step: int, batch: Any) -> Any:
        """For forward `step` of the draft."""
        if step == 0:
            self._begin(batch)
        return self._by_role["draft"].draft(step, batch)

    def block(self, batch: Any, width: int) -> Any:
        """For the draft's forward over `width` tokens of each request."""
        self._begin(batch)
        return self._by_role["draft"].block(batch, width)

    def target(self, batch: Any, width: int, mask: Tensor | None, counts: Tensor | None) -> Any:
        """For `width` nodes of each request; `mask` and `counts` are the program's of a tree."""
        if self._first == "target":
            self._begin(batch)
        backend = self._by_role["verify"].target(batch, width, mask, counts)
        return backend if self._beside is None else self._beside.over(backend, batch, width)

    def packed(
        self, batch: Any, width: int, lens: Tensor, starts: Tensor, mask: Tensor | None, counts: Tensor | None
    ) -> Any:
        """For rows of the target, `lens` i32[b] of each request from `starts` i32[b] on, at most `width`.

        `mask` and `counts` are the program's of a tree, by request.
        """
        if self._first == "target":
            self._begin(batch)
        return self._by_role["verify"].packed(batch, width, lens, starts, mask, counts)

    def extend(self, batch: Any, seq_lens: Tensor, width: int, module: int = 0) -> Any:
        """For `width` tokens of each request behind `seq_lens` i64[b], in a module of the draft."""
        of_module = self._modules[module - 1] if module else self._by_role["extend"]
        return of_module.extend(batch, seq_lens, width)

    def plan(self, rows: int, lengths: Sequence[int]) -> None:
        """Plan a step of so many rows, a bucket's where it is captured, with these lengths: 0 for padding."""
        for backend in self._backends:
            backend.plan(rows, lengths)

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """While steps are captured, and run before that."""
        with contextlib.ExitStack() as entered:
            for backend in self._backends:
                entered.enter_context(backend.capturing())
            yield

    def _begin(self, batch: Any) -> None:
        if self._shared:
            self._tables.fill(batch)
        for backend in self._backends:
            backend.begin(batch)

    def _make(self, name: str, roles: Roles, *, captured: bool) -> StepAttention:
        """The preparation of a backend; its module imports SGLang's, so only those in use are imported."""
        backend = backend_of(name)
        if not backend.prepared_by or (backend.graphs and not captured):
            return Eager(roles, self._tables)
        need(backend)
        module, _, kind = backend.prepared_by.partition(".")
        return getattr(importlib.import_module(f".prepare.{module}", __package__), kind)(roles, self._tables)


def branches(shape: Any) -> int:
    """How many branches the draft's forwards have at a shape: 1 of a step without drafts, whatever it carries."""
    return shape.topk if shape.is_tree else 1


def attention_of(worker: Any, plans: Mapping[Any, Any], *, captured: bool) -> dict[Any, Attention]:
    """Attention for the steps of a program in a worker, by shape; a single one of drafts is the server's own.

    The server's own shape says nothing of the steps of a kind whose programs have branches of their own. Where SGLang
    changes the number of steps it has backends of each, and of states as many as the most of them need.
    """
    roles, kind, adaptive = roles_of(worker), worker.kind, bool(candidates_of(worker))
    rows = largest(plans)
    slots, target = worker.req_to_token_pool.req_to_token, worker.target_worker.model_runner
    context, places = target.model_config.context_len, map_of(target.token_to_kv_pool)
    made: dict[Any, Attention] = {}
    beside: Tables | None = None
    for shape, plan in plans.items():
        sizes = shape.num_steps, branches(shape), shape.num_nodes
        steps = kind.behind(worker.draft_worker, shape.num_steps)
        tables = _tables(slots, Sizes(rows, steps, *sizes[1:], plan.kv.page_size, context), beside, places)
        if adaptive:
            with in_state(worker, shape.num_steps):
                of_shape = roles_of(worker).with_states(shape.num_nodes)
        else:
            own = len(plans) == 1 and (not kind.own_branches or (kind.blocks and not shape.is_tree))
            of_shape = roles if own else roles.sized(*sizes)
        made[shape] = Attention(of_shape, tables, captured=captured)
        beside = beside or tables
    return made


def _tables(slots: Tensor, sizes: Sizes, beside: Tables | None, places: Tensor | None) -> Tables:
    """The tables of a step; `places` is the map to slots of a second pool, which not all models have."""
    if places is None:
        return Tables(slots, sizes, beside)
    from .windowed.second_pool import TwoPools

    return TwoPools(slots, sizes, beside, places)
