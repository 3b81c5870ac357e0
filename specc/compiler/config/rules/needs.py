"""What an algorithm asks of a configuration, as far as loading one must know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specc.compiler.config.block import Block, HiddenSource
from specc.compiler.config.models.pair import Fit, Pair
from specc.compiler.config.rules.draft_kind import DraftKind
from specc.compiler.support.aux_layers import three_levels


def largest_tree(topk: int, num_steps: int) -> int:
    """Return the most nodes of a tree that is grown step by step, root included: 1 + K + (S - 1) * K^2, 1 without S."""
    return 1 + topk + (num_steps - 1) * topk * topk if num_steps else 1


def recognises_nothing(pair: Pair) -> Fit | None:
    """Return None: a draft of this kind is not known by its directory."""
    return None


def one_for_each(num_steps: int) -> int:
    """Return the forwards of a draft that writes one token after the other: the first one extends, also without S."""
    return max(1, num_steps)


@dataclass(frozen=True)
class Needs:
    """What an algorithm asks of a configuration.

    Attributes:
        target_hidden: what the target hands over where the file does not say; None leaves it to the model.
        draft: whether there is a draft model.
        trees: whether topk may be above 1.
        most_nodes: the most nodes of a tree, from topk and num_steps.
        modules: how many modules of multi-token prediction draft num_steps tokens, for a draft that is a head of the
            target; None for one that is none, of which all layers count.
        target_head: whether the head of the vocabulary reads rows of the target's width, whatever the draft's own is.
        forwards: how many forwards of the draft a step of num_steps drafts has, for estimates; of no draft none.
        several: whether requests may change from one number of drafts to another, and to none.
        options: the keys of the algorithm's own, written under ``options:``.
        recognises: why the draft of two models is one of the algorithm's kind, None where it is not. No two algorithms
            are to recognise the same.
        kind: what config.json of such a draft may say of drafting; None for an algorithm that judges by itself.
        usual_layers: the layers of a target that a draft reads which does not list any, from the layers of both.
        runs_as: the algorithm of specc's that a serving engine is told in its place: it has the same forwards and
            carries the same, so that engine's own steps can go before and after. None for one that stands for itself.

    """

    target_hidden: HiddenSource | None = None
    draft: bool = True
    trees: bool = True
    most_nodes: Callable[[int, int], int] = largest_tree
    modules: Callable[[int], int] | None = None
    target_head: bool = False
    forwards: Callable[[int], int] = one_for_each
    several: bool = True
    options: type[Block] = Block
    recognises: Callable[[Pair], Fit | None] = recognises_nothing
    kind: DraftKind | None = None
    usual_layers: Callable[[int, int], tuple[int, ...]] = three_levels
    runs_as: str | None = None

    def fits(self, pair: Pair) -> Fit | None:
        """Return why the draft of two models is one of the algorithm's kind; None for another, and for one like it."""
        strange = pair.draft is not None and self.kind is not None and self.kind.unknown(pair.draft.content)
        return None if strange else self.recognises(pair)

    def strangeness(self, pair: Pair) -> str | None:
        """Return what says that a draft is of no kind that the algorithm knows; None where nothing does.

        That is a class that is neither the algorithm's nor a language model's, or a key that speaks of drafting.
        """
        if pair.draft is None or self.kind is None:
            return None
        if unknown := self.kind.unknown(pair.draft.content):
            return f"its config.json says {', '.join(unknown)}"
        known = pair.draft.language_model is not None or pair.modules is not None or self.recognises(pair) is not None
        return None if known or not pair.draft.classes else f"its class is {', '.join(pair.draft.classes)}"

    @property
    def head(self) -> bool:
        """Whether the draft is a head, which reads rows of its target."""
        return self.modules is not None or self.target_hidden is not None


@dataclass(frozen=True)
class Chosen:
    """An algorithm: its name as it is listed, None where there is none of that name, and what it asks for."""

    name: str | None
    needs: Needs
