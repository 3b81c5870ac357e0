"""Greedy speculative decoding of one request, in plain Python, as docs/semantics.md says it.

Nothing here is of the project's own semantics: no torch, no pools, slots, batches or plans. An oracle knows a request's
text and what its draft has kept, and says what a step does: which tree is drafted, what of it is accepted, what is
emitted, carried and reported.

Where two path scores are so close that rounding decides (docs/semantics.md asks for f32, not for an order of adding
up), an oracle does not know which of two drafts is verified; `Doubt` says so. Only drafts can be in doubt: whatever
they are, the text is the target's own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from specc.config import Config

from .fake import (
    NO_HIDDEN,
    Model,
    block_code,
    draft_code,
    extra,
    fold,
    fold_all,
    injected_code,
    mix,
    target_code,
)

DRAFT, TARGET, EXTEND, PREFILL, ORPHAN = 1, 2, 4, 8, 16
"""Bits of the health word (docs/kernels.md)."""
INF = float("inf")
CLOSE = 1e-5
"""How far, relatively, two programs' f32 scores of one path may lie apart."""


class Doubt(Exception):
    """Which drafts are verified hangs on rounding."""


def f32(value: float) -> float:
    """The nearest f32."""
    return struct.unpack("f", struct.pack("f", value))[0]


# --- one row of logits ------------------------------------------------------------------------------------------------


def argmax(row: list[float]) -> tuple[int, bool]:
    """The largest value, lowest index on ties, NaN as -inf; and whether the row is bad."""
    best, index, bad = -INF, 0, False
    for i, value in enumerate(row):
        if math.isnan(value):
            bad = True
        elif value > best:
            best, index = value, i
    return index, bad or math.isinf(best)


@dataclass(frozen=True)
class Choice:
    """One of the most probable tokens of a row: f32 probability, and whether every program finds exactly that.

    `same`: equal for choices of one row that are equally probable.
    """

    token: int
    p: float
    exact: bool
    same: tuple[int, float]


def most_probable(number: int, row: list[float], count: int) -> list[Choice]:
    """The most probable tokens in descending order, lowest index on ties."""
    values = [-INF if math.isnan(value) else value + 0.0 for value in row]
    best = max(values)
    ranked = sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
    if best == -INF:
        return [Choice(token, 0.0, True, (number, -INF)) for token in ranked]
    weights = [1.0 if value == best else math.exp(value - best) if value > -INF else 0.0 for value in values]
    exact = all(weight in (0.0, 1.0) for weight in weights)
    total = math.fsum(weights)
    found = []
    for token in ranked:
        p = f32(weights[token] / total)
        found.append(Choice(token, p, exact or weights[token] / total < 1e-47, (number, values[token])))
    return found


def log_probability(row: list[float], index: int) -> float:
    """The logarithm of a token's probability."""
    values = [-INF if math.isnan(value) else value for value in row]
    best = max(values)
    if best == -INF:
        return -INF
    shifted = [0.0 if value == best else value - best for value in values]
    return shifted[index] - math.log(math.fsum(math.exp(value) for value in shifted))


# --- trees ------------------------------------------------------------------------------------------------------------


@dataclass
class Branch:
    """A candidate: a token at the end of a path, by its number over all steps.

    `path` is equal for candidates whose scores are the same product; `exact` says that every program finds the score.
    """

    number: int
    token: int
    score: float
    exact: bool
    path: tuple[Any, ...]
    depth: int
    parent: Branch | None
    hidden: int | None = None

    def child(self, number: int, choice: Choice) -> Branch:
        """The candidate that continues this one."""
        score = f32(self.score * choice.p)
        zero = (choice.exact and choice.p == 0.0) or (self.exact and self.score == 0.0)
        return Branch(
            number, choice.token, score, (self.exact and choice.exact) or zero, (*self.path, choice.same),
            self.depth + 1, self,
        )  # fmt: skip


def best_of(branches: list[Branch], count: int, *, ordered: bool) -> list[Branch]:
    """Those of the highest score, lowest number on ties. Doubt when rounding decides who, or, if `ordered`, where."""
    ranked = sorted(branches, key=lambda branch: (-branch.score, branch.number))
    for i, (one, other) in enumerate(pairwise(ranked)):
        if not ordered and i != count - 1:
            continue
        if i >= count:
            break
        if _in_doubt(one, other):
            raise Doubt
    # Candidates that tie by rounding with the first left out may stand anywhere behind it.
    if count < len(ranked):
        edge = ranked[count - 1]
        if any(_in_doubt(edge, other) for other in ranked[count:]):
            raise Doubt
        if any(_in_doubt(kept, ranked[count]) for kept in ranked[:count]):
            raise Doubt
    return ranked[:count]


def _in_doubt(one: Branch, other: Branch) -> bool:
    if (one.exact and other.exact) or one.path == other.path:
        return False
    return abs(one.score - other.score) <= CLOSE * max(one.score, other.score) + 1e-36


@dataclass
class Tree:
    """What the target verifies: tokens and parents by column, the root first with the parent -1."""

    tokens: list[int]
    parents: list[int]

    def depth(self, column: int) -> int:
        """Steps below the root."""
        return 0 if column == 0 else 1 + self.depth(self.parents[column])

    def ancestors(self, column: int) -> list[int]:
        """Columns from the root to the node itself."""
        return [0] if column == 0 else [*self.ancestors(self.parents[column]), column]


def chain(root: int, drafts: list[int]) -> Tree:
    """A tree of one branch."""
    return Tree([root, *drafts], list(range(-1, len(drafts))))


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """What a step must say of one request; `carried` by field."""

    tokens: list[int]
    path: list[int]
    length: int
    health: int
    outputs: dict[str, Any]


@dataclass
class Oracle:
    """One request: its text, of which the last token is the root, and what its draft knows.

    `cache` holds what was found of rows of logits, which all requests of a program share.
    """

    config: Config
    models: dict[str, Model]
    cache: dict[Any, Any]
    text: list[int]
    target_codes: list[int] = field(default_factory=list)
    draft_codes: list[int] = field(default_factory=list)
    carried: dict[str, Any] = field(default_factory=dict)
    health: int = 0

    # --- rows ---------------------------------------------------------------------------------------------------------

    def argmax(self, side: str, token: int, seen: int) -> tuple[int, bool]:
        """The token that a model says next, and whether the row is bad."""
        number = self.models[side].row(token, seen)
        if (side, number) not in self.cache:
            self.cache[side, number] = argmax(self.models[side].rows[number])
        return self.cache[side, number]

    def choices(self, token: int, seen: int) -> list[Choice]:
        """The K most probable next tokens of the draft."""
        number = self.models["draft"].row(token, seen)
        key = (number, self.config.topk)
        if key not in self.cache:
            self.cache[key] = most_probable(number, self.models["draft"].rows[number], self.config.topk)
        return self.cache[key]

    def hidden(self, side: str, seen: int) -> int:
        """The code of the hidden row of who has seen that."""
        return self.models[side].hidden_codes[Model.hidden_row(seen)]

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self.text) - 1

    @cached_property
    def first(self) -> int:
        """1 where the draft stands at the text's own positions and reads its tokens there, 0 in a shifted stream."""
        if self.config.algorithm not in ("STANDALONE", "EAGLE", "EAGLE3"):
            return 0
        own = {"auto": self.config.algorithm == "STANDALONE", "true": True, "shifted": False}
        return int(own[self.config.draft_positions])

    # --- prefill ------------------------------------------------------------------------------------------------------

    def prefill(self) -> None:
        """Target and draft over the prompt: the first token is the root."""
        self.target_codes = [target_code(token, position) for position, token in enumerate(self.text)]
        self._seen = fold_all(0, self.target_codes)
        first, bad = self.argmax("target", self.text[-1], self._seen)
        self.health = TARGET * bad
        states, state = [], 0
        for code in self.target_codes:
            state = fold(state, code)
            states.append(state)
        self.text.append(first)
        self.carried = {"bonus": first, "seq_lens": self.length}
        self._prefill_draft([self.hidden("target", state) for state in states])

    def _prefill_draft(self, hidden: list[int]) -> None:
        """What the draft makes of the prompt, with the target's hidden row of each of its tokens."""

    # --- a step -------------------------------------------------------------------------------------------------------

    def step(self, steps: int, nodes: int) -> Expected:
        """One step of S drafts and N nodes. Doubt when rounding decides what is drafted."""
        self.health = 0
        return self.verify(self.draft(steps, nodes), steps)

    def draft(self, steps: int, nodes: int) -> Tree:
        """What is verified."""
        raise NotImplementedError

    def verify(self, tree: Tree, steps: int, follow: list[int] | None = None) -> Expected:
        """The target over all nodes, the walk, and what follows from what was accepted.

        `follow` is a path that was walked, of a tree that is in doubt and stands for itself as a chain.
        """
        seen, codes = [], []
        for column, token in enumerate(tree.tokens):
            codes.append(target_code(token, self.length + tree.depth(column)))
        for column in range(len(tree.tokens)):
            visible = tree.ancestors(column)
            if self.config.topk > 1 and self.config.mask == "none":
                visible = list(range(column + 1))
            seen.append(fold_all(self._seen, [codes[c] for c in visible]))
        wanted = [self.argmax("target", token, state) for token, state in zip(tree.tokens, seen, strict=True)]
        if any(bad for _, bad in wanted):
            self.health |= TARGET
        path = [0]
        while len(path) <= steps:
            token = wanted[path[-1]][0]
            children = [c for c, parent in enumerate(tree.parents) if parent == path[-1] and tree.tokens[c] == token]
            if not children:
                break
            path.append(children[0])
        emitted = [wanted[column][0] for column in path]
        states = [seen[column] for column in path]
        self._seen = fold_all(self._seen, [codes[c] for c in path])
        self.target_codes += [codes[column] for column in path]
        self.text += emitted
        self.carried = {"bonus": emitted[-1], "seq_lens": self.length}
        outputs = self._outputs(path, states, tree)
        self.commit(emitted, [self.hidden("target", state) for state in states], steps)
        return Expected(emitted, path, self.length, self.health, outputs)

    def _outputs(self, path: list[int], states: list[int], tree: Tree) -> dict[str, Any]:
        """What a configuration may ask for, of the accepted nodes."""
        model, target = self.models["target"], self.config.target
        found: dict[str, Any] = {
            "hidden_states": [model.hidden_rows[Model.hidden_row(state)] for state in states],
            "drafted": [tree.tokens[column] for column in path],
        }
        found["logprobs"] = []
        for column, state, token in zip(path, states, self.text[-len(path) :], strict=True):
            number = model.row(tree.tokens[column], state)
            if ("log", number) not in self.cache:
                self.cache["log", number] = log_probability(model.rows[number], token)
            found["logprobs"].append(self.cache["log", number])
        for number, name in enumerate(("routed_experts", "indexer_topk")):
            size = int((target.experts_per_token, target.index_topk)[number] or 0)
            found[name] = [
                [[extra(state, number, layer, i) for i in range(size)] for layer in range(target.depth)]
                for state in states
            ] if name in self.config.outputs else []  # fmt: skip
        return found

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        """What the draft makes of accepted tokens; `hidden` are the target's rows of the accepted nodes."""

    # --- growing a tree -----------------------------------------------------------------------------------------------

    def grow(
        self, roots: list[Choice], hidden: int, steps: int, nodes: int,
        forward: Callable[[int, int, Branch], tuple[int, int]],
    ) -> Tree:  # fmt: skip
        """Grow the children of the root step by step, and choose the nodes to verify.

        `forward` says, of the forward's number, a place of the frontier and what stands there, what the draft has seen
        then and the code of the hidden row it hands back.
        """
        start = Branch(-1, self.text[-1], 1.0, True, (), 0, None)
        candidates = [start.child(number, choice) for number, choice in enumerate(roots)]
        for candidate, choice in zip(candidates, roots, strict=True):
            candidate.score, candidate.exact = choice.p, choice.exact
        frontier = list(candidates)
        handed = [hidden] * len(frontier)
        count = len(roots)
        for step in range(steps - 1):
            grown, back = list[Branch](), list[int]()
            for place, branch in enumerate(frontier):
                branch.hidden = handed[place]
                seen, row = forward(step, place, branch)
                self.health |= DRAFT * self.argmax("draft", branch.token, seen)[1]
                back.append(row)
                for choice in self.choices(branch.token, seen):
                    grown.append(branch.child(count + len(grown), choice))
            first, count = count, count + len(grown)
            candidates += grown
            if step < steps - 2:
                frontier = best_of(grown, len(frontier), ordered=self.config.topk > 1)
                handed = [back[(branch.number - first) // len(frontier)] for branch in frontier]
        kept = sorted(best_of(candidates, nodes - 1, ordered=False), key=lambda branch: branch.number)
        columns = {-1: 0} | {branch.number: column for column, branch in enumerate(kept, start=1)}
        parents = [columns[branch.parent.number] for branch in kept if branch.parent is not None]
        return Tree([self.text[-1], *(branch.token for branch in kept)], [-1, *parents])

    def carry_choices(self, token: int, seen: int) -> None:
        """The children of the next root."""
        self.roots = self.choices(token, seen)
        self.carried |= {
            "topk_index": [choice.token for choice in self.roots],
            "topk_p": [choice.p for choice in self.roots],
        }

    def carry_hidden(self, name: str, side: str, seen: int) -> None:
        """A hidden row that the next step reads."""
        self.handed = self.hidden(side, seen)
        self.carried[name] = self.models[side].hidden_rows[Model.hidden_row(seen)]


class Recurrent(Oracle):
    """STANDALONE, EAGLE and EAGLE3."""

    @cached_property
    def reads(self) -> bool:
        """Whether the draft reads hidden states."""
        return self.config.algorithm != "STANDALONE"

    def _prefill_draft(self, hidden: list[int]) -> None:
        given = [*([NO_HIDDEN] if self.first else []), *hidden] if self.reads else [NO_HIDDEN] * len(self.text)
        stream = self.text[1 - self.first :]
        self.draft_codes = [draft_code(t, p, given[p]) for p, t in enumerate(stream)]
        self._kept = fold_all(0, self.draft_codes)
        self.health |= PREFILL * self.argmax("draft", stream[-1], self._kept)[1]
        self.carry_choices(stream[-1], self._kept)
        self.carry_hidden("hidden", "draft", self._kept)

    def draft(self, steps: int, nodes: int) -> Tree:
        own: list[list[int]] = [[] for _ in range(self.config.topk)]
        base = self.length + self.first

        def forward(step: int, place: int, branch: Branch) -> tuple[int, int]:
            hidden = branch.hidden if self.reads and branch.hidden is not None else NO_HIDDEN
            own[place].append(draft_code(branch.token, base + step, hidden))
            seen = fold(fold_all(self._kept, own[place]), step)
            return seen, self.hidden("draft", seen)

        return self.grow(self.roots, self.handed, steps, nodes, forward)

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        base = len(self.draft_codes)
        given = hidden if self.reads else [NO_HIDDEN] * len(emitted)
        codes = [draft_code(t, base + i, given[i]) for i, t in enumerate(emitted)]
        self.draft_codes += codes
        self._kept = fold_all(self._kept, codes)
        seen = fold(self._kept, len(emitted))
        self.health |= EXTEND * self.argmax("draft", emitted[-1], seen)[1]
        self.carry_choices(emitted[-1], seen)
        self.carry_hidden("hidden", "draft", seen)


class Frozen(Oracle):
    """FROZEN_KV_MTP."""

    def _prefill_draft(self, hidden: list[int]) -> None:
        self.carry_hidden("hidden", "target", self._seen)

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        # The last accepted node has seen the whole path only where it attends to it.
        self.handed = hidden[-1]

    def _outputs(self, path: list[int], states: list[int], tree: Tree) -> dict[str, Any]:
        self.carried["hidden"] = self.models["target"].hidden_rows[Model.hidden_row(states[-1])]
        return super()._outputs(path, states, tree)

    def draft(self, steps: int, nodes: int) -> Tree:
        def assist(step: int, token: int, hidden: int) -> int:
            return mix(6, step, self._seen, self.length - 1, hidden)

        root = self.text[-1]
        seen = assist(0, root, self.handed)
        self.health |= DRAFT * self.argmax("draft", root, seen)[1]

        def forward(step: int, place: int, branch: Branch) -> tuple[int, int]:
            saw = assist(step + 1, branch.token, branch.hidden or 0)
            return saw, self.hidden("draft", saw)

        return self.grow(self.choices(root, seen), self.hidden("draft", seen), steps, nodes, forward)


class Anchored(Oracle):
    """ANCHORED, the plugin: a draft without memory, at the target's hidden row of the last accepted node."""

    def _prefill_draft(self, hidden: list[int]) -> None:
        self.carry_hidden("anchor", "target", self._seen)

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        self.handed = hidden[-1]

    def _outputs(self, path: list[int], states: list[int], tree: Tree) -> dict[str, Any]:
        self.carried["anchor"] = self.models["target"].hidden_rows[Model.hidden_row(states[-1])]
        return super()._outputs(path, states, tree)

    def draft(self, steps: int, nodes: int) -> Tree:
        root = self.text[-1]
        seen = mix(7, 0, self.length, self.handed)
        self.health |= DRAFT * self.argmax("draft", root, seen)[1]

        def forward(step: int, place: int, branch: Branch) -> tuple[int, int]:
            return mix(7, step + 1, self.length + 1 + step, self.handed), 0

        return self.grow(self.choices(root, seen), 0, steps, nodes, forward)


class Modules(Oracle):
    """MULTI_LAYER_EAGLE."""

    def _prefill_draft(self, hidden: list[int]) -> None:
        self.layers: list[list[int]] = []
        self.drafts: list[int] = []
        for step in range(self.config.num_steps):
            stream = [*self.text, *self.drafts][step + 1 :][: len(hidden)]
            codes = [draft_code(t, p, hidden[p]) for p, t in enumerate(stream)]
            self.layers.append(codes)
            token, bad = self.argmax("draft", stream[-1], fold(fold_all(0, codes), step))
            self.health |= PREFILL * bad
            self.drafts.append(token)
        self.carried["topk_index"] = list(self.drafts)

    def draft(self, steps: int, nodes: int) -> Tree:
        return chain(self.text[-1], self.drafts)

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        self.drafts = []
        for step, codes in enumerate(self.layers):
            stream = [*emitted, *self.drafts][step:]
            codes += [draft_code(t, len(codes) + i, hidden[i]) for i, t in enumerate(stream)]
            token, bad = self.argmax("draft", stream[-1], fold(fold_all(0, codes), step))
            self.health |= EXTEND * bad
            self.drafts.append(token)
        self.carried["topk_index"] = list(self.drafts)


class Block(Oracle):
    """DFLASH."""

    def _prefill_draft(self, hidden: list[int]) -> None:
        self.draft_codes = [injected_code(p, code) for p, code in enumerate(hidden)]

    def draft(self, steps: int, nodes: int) -> Tree:
        root = self.text[-1]
        places = [block_code(root, self.length + i) for i in range(steps + 1)]
        seen = fold_all(0, [*self.draft_codes, *places])
        found = [self.argmax("draft", root + i, fold(seen, i)) for i in range(steps)]
        self.health |= DRAFT * any(bad for _, bad in found)
        return chain(root, [token for token, _ in found])

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        self.draft_codes += [injected_code(len(self.draft_codes) + i, code) for i, code in enumerate(hidden)]


class LookUp(Oracle):
    """NGRAM. `corpus` are the tokens that are looked through besides."""

    corpus: tuple[int, ...] = ()

    def _prefill_draft(self, hidden: list[int]) -> None:
        self._carry()

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        self._carry()

    def _carry(self) -> None:
        window = int(getattr(self.config.options, "window"))  # noqa: B009
        self.carried["text"] = {
            p % window: self.text[p] for p in range(max(0, len(self.text) - window), len(self.text))
        }

    def draft(self, steps: int, nodes: int) -> Tree:
        options: Any = self.config.options
        own = self.text[-options.window :]
        places = []
        for rank, source in enumerate((own, list(self.corpus))):
            for end in range(len(source) - 1):
                same = 0
                while same < min(options.longest, end + 1, len(own)) and source[end - same] == own[-1 - same]:
                    same += 1
                if same >= options.shortest:
                    places.append((-same, rank, -end))
        branches: list[list[int]] = []
        for _, rank, negative in sorted(places):
            source, after = (own, list(self.corpus))[rank], 1 - negative
            if len(branches) == self.config.topk or any(branch[0] == source[after] for branch in branches):
                continue
            told = list(source)
            branch = []
            for i in range(steps):
                token = told[after + i] if after + i < len(told) else 0
                branch.append(token)
                if rank == 0:
                    told.append(token)  # past the root it goes on into the drafts themselves
            branches.append(branch)
        branches += [[0] * steps] * (self.config.topk - len(branches))
        tokens, parents = [self.text[-1]], [-1]
        for branch in branches:
            for i, token in enumerate(branch):
                parents.append(len(tokens) - 1 if i else 0)
                tokens.append(token)
        return Tree(tokens[:nodes], parents[:nodes])


ORACLES: dict[str, type[Oracle]] = {
    "STANDALONE": Recurrent,
    "EAGLE": Recurrent,
    "EAGLE3": Recurrent,
    "FROZEN_KV_MTP": Frozen,
    "ANCHORED": Anchored,
    "MULTI_LAYER_EAGLE": Modules,
    "DFLASH": Block,
    "NGRAM": LookUp,
}
