"""What a program calls an engine with: the arguments of every callback, for all who implement one.

Each `<Name>Call` is of the callback `<name>`, and has what the op declares that calls it (`model` and `grammar`, see
docs/ir.md): a test compares them. Its docstring ends with the results. A callback takes `**call: Unpack[DraftCall]`, so
an argument more is an entry here, and type checkers find who reads one that is not there. What a forward has to compute
is in docs/runtime.md.

This is a file of the runtime because only that is in reach of the reference engine and of adapters. It is for type
checkers: nothing that a program runs imports it, so wheels do without, and adapters, which wheels have, name it for
type checkers alone.

Axes: B requests (the bucket where a step is captured), K branches, N nodes of the verify window, G rows of a budget, A
slots of an accepted path, S drafts, T tokens of all prompts, V and Vd entries of the target's and the draft's
vocabulary, W the width of hidden rows. T is also the dtype of hidden rows and of logits, each its own.
"""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from torch import Tensor


class Requests(TypedDict):
    """The pool rows of requests, and how long their texts are; of padding both are 0."""

    rows: Annotated[Tensor, "i64[B]"]
    seq_lens: Annotated[Tensor, "i64[B]"]


class Forwarded(Requests):
    """Every forward gets these; `capture` says which hidden rows it hands over: `null`, `last` or `full`."""

    capture: str


class Slots(Forwarded):
    """What a forward writes that has A places in a request."""

    positions: Annotated[Tensor, "i64[B, A]"]
    slots: Annotated[Tensor, "i64[B, A]"]


class Path(Slots):
    """The accepted path, of which a draft returns what it makes of the flat rows `select`."""

    tokens: Annotated[Tensor, "i64[B, A]"]
    select: Annotated[Tensor, "i64[B]"]


class DraftCall(Forwarded):
    """Forward `step` over one token of every branch -> logits: T[B, K, Vd], hidden?: T[B, K, W]."""

    step: int
    tokens: Annotated[Tensor, "i64[B, K]"]
    positions: Annotated[Tensor, "i64[B, K]"]
    slots: Annotated[Tensor, "i64[B, K]"]
    hidden: NotRequired[Annotated[Tensor, "T[B, K, W]"]]


class AssistCall(Forwarded):
    """Forward `step` of a draft that reads what the target keeps -> logits: T[B, *x, Vd], hidden?: T[B, *x, W]."""

    step: int
    tokens: Annotated[Tensor, "i64[B, *x]"]
    positions: Annotated[Tensor, "i64[B, *x]"]
    hidden: NotRequired[Annotated[Tensor, "T[B, *x, W]"]]


class BlockCall(Slots):
    """All drafts at once, over the bonus token and S places to fill -> logits: T[B, S, Vd], hidden?: T[B, S, W]."""

    bonus: Annotated[Tensor, "i32[B]"]


class TargetCall(Forwarded):
    """The nodes, a tree's with a mask, from the states at `points` -> logits: T[B, N, V], hidden?: T[B, N, W]."""

    tokens: Annotated[Tensor, "i64[B, N]"]
    positions: Annotated[Tensor, "i64[B, N]"]
    slots: Annotated[Tensor, "i64[B, N]"]
    points: NotRequired[Annotated[Tensor, "i32[B]"]]
    mask: NotRequired[Annotated[Tensor, "?"]]
    counts: NotRequired[Annotated[Tensor, "i32[B, N]"]]


class TargetRowsCall(Forwarded):
    """Packed rows, a request's from `starts` on; a mask is by request -> logits: T[B, G, V], hidden?: T[B, G, W]."""

    tokens: Annotated[Tensor, "i64[B, G]"]
    positions: Annotated[Tensor, "i64[B, G]"]
    slots: Annotated[Tensor, "i64[B, G]"]
    lens: Annotated[Tensor, "i32[B]"]
    starts: Annotated[Tensor, "i32[B]"]
    mask: NotRequired[Annotated[Tensor, "?"]]
    counts: NotRequired[Annotated[Tensor, "i32[B, N]"]]


class CommitStateCall(Forwarded):
    """What the target's recurrent layers keep is from now on what the last accepted node has left -> nothing."""

    accept_index: Annotated[Tensor, "i32[B, A]"]
    accept_lens: Annotated[Tensor, "i32[B]"]


class ExtendCall(Path):
    """The draft over the path, of which the first `accept_lens` are text -> logits: T[B, Vd], hidden?: T[B, W]."""

    accept_lens: Annotated[Tensor, "i32[B]"]
    hidden: NotRequired[Annotated[Tensor, "T[B, A, W]"]]


class ExtendModuleCall(Path):
    """Module `step` of the draft over the path, each token `step` further in the text -> logits: T[B, Vd]."""

    step: int
    hidden: Annotated[Tensor, "T[B, A, W]"]


class InjectCall(Slots):
    """The draft's keys and values of the path, to be made of the target's rows -> nothing."""

    hidden: Annotated[Tensor, "T[B, A, W]"]


class PrefillTargetCall(Forwarded):
    """Prompts; hidden rows are of all tokens or of the last ones -> logits: T[B, V], hidden?: T[$per, W]."""


class PrefillDraftCall(Forwarded):
    """Prompts and the first tokens behind them, of which the last rows count -> logits: T[B, Vd], hidden?: T[B, W]."""

    first: Annotated[Tensor, "i32[B]"]
    hidden: NotRequired[Annotated[Tensor, "T[T, W]"]]


class PrefillModuleCall(Forwarded):
    """Prompts from token `step` + 1 on, first tokens, and `step` of `drafts`, by module `step` -> logits: T[B, Vd]."""

    step: int
    first: Annotated[Tensor, "i32[B]"]
    hidden: Annotated[Tensor, "T[T, W]"]
    drafts: NotRequired[Annotated[Tensor, "i64[B, S]"]]


class PrefillInjectCall(Forwarded):
    """The draft's keys and values of prompts, to be made of the target's rows -> nothing."""

    hidden: Annotated[Tensor, "T[T, W]"]


class GrammarBeginCall(Requests):
    """What will be verified, in a tree with parents: where its masks will be -> bitmask: i32[B, N, $words]."""

    tokens: Annotated[Tensor, "i64[B, N]"]
    parent: NotRequired[Annotated[Tensor, "i64[B, N]"]]


class GrammarEndCall(TypedDict):
    """What `grammar_begin` has returned, to be filled while the target runs -> bitmask: i32[B, N, $words]."""

    begun: Annotated[Tensor, "i32[B, N, $words]"]
    rows: Annotated[Tensor, "i64[B]"]


class GrammarPrefillCall(Requests):
    """The masks of the first tokens -> bitmask: i32[B, $words]."""
