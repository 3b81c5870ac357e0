"""What a program calls of an engine: the arguments of every callback and what it returns, for all who implement them.

Each `<Name>Call` is of the callback `<name>`, and has what the op declares that calls it (`model` and `grammar`, see
docs/ir.md): a test compares them. Its last line are the results. A callback takes them as `**call: Unpack[DraftCall]`,
so an argument more is an entry here, and type checkers find who reads one that is not there. What a forward has to
compute of them is in docs/runtime.md.

This is a file of the runtime because only that is in reach of everybody: the reference engine imports it, wheels have
it for engines of others, and adapters name it for type checkers alone, as in wheels they stand elsewhere.

Axes: B requests (the bucket where a step is captured), K branches, N nodes of the verify window, A slots of an accepted
path, S drafts, T tokens of all prompts, V and Vd entries of the target's and the draft's vocabulary, W the width of
hidden rows. T is also the dtype of hidden rows and of logits, each its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NotRequired, TypedDict

from torch import Tensor


@dataclass(frozen=True)
class Forward:
    """What a callback returns: logits, or `states` if the program computes the head, and hidden states if captured.

    Contiguous tensors on the program's device, as the plan has them; read in place, so valid until the step's end.
    """

    logits: Tensor | None = None
    hidden: Tensor | None = None
    states: Tensor | None = None


class Requests(TypedDict):
    """What every call is of: the pool rows of requests, and how long their texts are; of padding both are 0."""

    rows: Annotated[Tensor, "i64[B]"]
    seq_lens: Annotated[Tensor, "i64[B]"]


class Forwarded(Requests):
    """What every forward is given: `capture` says which hidden rows it hands over, `null`, `last` or `full`."""

    capture: str


class Path(Forwarded):
    """What a forward over accepted paths is given, of which the flat rows `select` come back."""

    tokens: Annotated[Tensor, "i64[B, A]"]
    positions: Annotated[Tensor, "i64[B, A]"]
    slots: Annotated[Tensor, "i64[B, A]"]
    select: Annotated[Tensor, "i64[B]"]


class DraftCall(Forwarded):
    """Forward `step` of the draft over one token of every branch, whose keys and values are written to `slots`.

    -> logits: T[B, K, Vd], hidden?: T[B, K, W]
    """

    step: int
    tokens: Annotated[Tensor, "i64[B, K]"]
    positions: Annotated[Tensor, "i64[B, K]"]
    slots: Annotated[Tensor, "i64[B, K]"]
    hidden: NotRequired[Annotated[Tensor, "T[B, K, W]"]]


class AssistCall(Forwarded):
    """Forward `step` of a draft that reads the target's keys and values before `seq_lens`, and writes none.

    -> logits: T[B, *x, Vd], hidden?: T[B, *x, W]
    """

    step: int
    tokens: Annotated[Tensor, "i64[B, *x]"]
    positions: Annotated[Tensor, "i64[B, *x]"]
    hidden: NotRequired[Annotated[Tensor, "T[B, *x, W]"]]


class BlockCall(Forwarded):
    """All drafts at once, over the bonus token and S places to fill.

    -> logits: T[B, S, Vd]
    """

    bonus: Annotated[Tensor, "i32[B]"]
    positions: Annotated[Tensor, "i64[B, A]"]
    slots: Annotated[Tensor, "i64[B, A]"]


class TargetCall(Forwarded):
    """The target over the verify window; a tree has a mask, one of slots counts besides, and a chain is causal.

    -> logits: T[B, N, V], hidden?: T[B, N, W]
    """

    tokens: Annotated[Tensor, "i64[B, N]"]
    positions: Annotated[Tensor, "i64[B, N]"]
    slots: Annotated[Tensor, "i64[B, N]"]
    mask: NotRequired[Annotated[Tensor, "?"]]
    counts: NotRequired[Annotated[Tensor, "i32[B, N]"]]


class ExtendCall(Path):
    """The draft over the accepted path, of whose tokens the first `accept_lens` are text.

    -> logits: T[B, Vd], hidden?: T[B, W]
    """

    accept_lens: Annotated[Tensor, "i32[B]"]
    hidden: NotRequired[Annotated[Tensor, "T[B, A, W]"]]


class ExtendModuleCall(Path):
    """Module `step` of the draft over the accepted path, each token `step` further in the text.

    -> logits: T[B, Vd]
    """

    step: int
    hidden: Annotated[Tensor, "T[B, A, W]"]


class InjectCall(Forwarded):
    """The draft's keys and values of the accepted path, to be made of the target's rows.

    -> nothing
    """

    positions: Annotated[Tensor, "i64[B, A]"]
    slots: Annotated[Tensor, "i64[B, A]"]
    hidden: Annotated[Tensor, "T[B, A, W]"]


class PrefillTargetCall(Forwarded):
    """Prompts through the target: logits of their last rows, hidden rows of all tokens, or of the last ones (`last`).

    -> logits: T[B, V], hidden?: T[$per, W]
    """


class PrefillDraftCall(Forwarded):
    """Prompts and the first tokens behind them through the draft: what it makes of the last rows.

    -> logits: T[B, Vd], hidden?: T[B, W]
    """

    first: Annotated[Tensor, "i32[B]"]
    hidden: NotRequired[Annotated[Tensor, "T[T, W]"]]


class PrefillModuleCall(Forwarded):
    """Prompts from token `step` + 1 on, the first tokens, and `step` of `drafts` through module `step` of the draft.

    -> logits: T[B, Vd]
    """

    step: int
    first: Annotated[Tensor, "i32[B]"]
    hidden: Annotated[Tensor, "T[T, W]"]
    drafts: NotRequired[Annotated[Tensor, "i64[B, S]"]]


class PrefillInjectCall(Forwarded):
    """The draft's keys and values of prompts, to be made of the target's rows.

    -> nothing
    """

    hidden: Annotated[Tensor, "T[T, W]"]


class GrammarBeginCall(Requests):
    """What will be verified, whose parents are those of a tree: where its masks will be.

    -> bitmask: i32[B, N, $words]
    """

    tokens: Annotated[Tensor, "i64[B, N]"]
    parent: NotRequired[Annotated[Tensor, "i64[B, N]"]]


class GrammarEndCall(TypedDict):
    """What `grammar_begin` has returned: the masks of the tokens after every node, made while the target runs.

    -> bitmask: i32[B, N, $words]
    """

    begun: Annotated[Tensor, "i32[B, N, $words]"]
    rows: Annotated[Tensor, "i64[B]"]


class GrammarPrefillCall(Requests):
    """The masks of the first tokens.

    -> bitmask: i32[B, $words]
    """
