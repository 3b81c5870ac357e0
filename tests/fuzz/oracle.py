"""Speculative decoding of one request, in plain Python, as docs/semantics.md says it.

Nothing here is of the project's own semantics: no torch, no pools, slots, batches or plans. An oracle knows a request's
text and what its draft has kept, and says what a step does: which tree is drafted, what of it is accepted, what is
emitted, carried and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import rejection_oracle
from fakes import grammar
from fakes.models import Model, extra, fold, fold_all, target_code

from specc.compiler.config import Config
from specc.runtime.plan.shape import Shape

from . import rejection
from .ranking import INF, Branch, Choice, Doubt, Tree, argmax, best_of, chain, log_probability, most_probable, ranked
from .sampler import Sampler

DRAFT, TARGET, EXTEND, PREFILL, ORPHAN = 1, 2, 4, 8, 16
"""Bits of the health word (docs/kernels.md)."""


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

    `cache` holds what was found of rows of logits, which all requests of a program share; `counts` what penalties know
    of the text, see `Sampler.changed`, and `drawn_of` the logits of which the drafts of a step were drawn, by number.
    A request is `lost` where rounding has decided in its prefill.
    """

    config: Config
    models: dict[str, Model]
    cache: dict[Any, Any]
    text: list[int]
    sampler: Sampler
    counts: dict[int, int] = field(default_factory=dict[int, int])
    target_codes: list[int] = field(default_factory=list)
    draft_codes: list[int] = field(default_factory=list)
    carried: dict[str, Any] = field(default_factory=dict)
    drawn_of: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    health: int = 0
    grammar: int = grammar.FREE
    lost: bool = False

    # --- rows ---------------------------------------------------------------------------------------------------------

    def argmax(self, role: str, token: int, seen: int) -> tuple[int, bool]:
        """The token that a model says next, and whether the row is bad."""
        number = self.models[role].row(token, seen)
        if (role, number) not in self.cache:
            column, bad = argmax(self.models[role].rows[number])
            self.cache[role, number] = self.models[role].token(column), bad
        return self.cache[role, number]

    def _target_row(self, token: int, seen: int, position: int, path: Sequence[int]) -> list[float]:
        """The target's row for a position, after a token at the one before, changed by what the text and a path have.

        It is -inf of what is not allowed there.
        """
        model = self.models["target"]
        row = model.rows[model.row(token, seen)]
        row = row if self.sampler.plain else self.sampler.changed(row, self.counts, path)
        words = grammar.words(self.grammar, token, position, len(row))
        return [value if words[v // 32] >> v % 32 & 1 else -INF for v, value in enumerate(row)]

    def _as_it_is(self) -> bool:
        """Whether the target's logits are not changed, and the largest is taken."""
        return self.sampler.greedy and self.sampler.plain and not self.grammar

    def target_bad(self, token: int, seen: int, position: int, path: Sequence[int] = ()) -> bool:
        """Whether the target's row for a position, after a token, is bad."""
        if self._as_it_is():
            return self.argmax("target", token, seen)[1]
        row = self._target_row(token, seen, position, path)
        return argmax(row if self.sampler.greedy else self.sampler.scaled(row))[1]

    def target_token(self, token: int, seen: int, position: int, reported: int | None, path: Sequence[int] = ()) -> int:
        """What the target has at a position, after a token at the one before: ``reported`` if rounding decides."""
        if self._as_it_is():
            return self.argmax("target", token, seen)[0]
        drawable = self.sampler.draw(self._target_row(token, seen, position, path), position)
        return reported if reported in drawable else drawable[0]

    def count(self, tokens: Sequence[int]) -> None:
        """Take note of tokens that are emitted."""
        for token in tokens:
            self.counts[token] = self.counts.get(token, 0) + 2

    @cached_property
    def width(self) -> int:
        """K of the last step's shape, which `step` sets."""
        return self.config.topk

    @property
    def judges(self) -> bool:
        """Whether drafts are accepted by what they were drawn from."""
        return self.config.file.verify in rejection.MODES

    @property
    def draws(self) -> bool:
        """Whether drafts are drawn."""
        return self.judges or self.config.file.draft_sampling == "coupled"

    @property
    def drafter(self) -> Sampler:
        """How drafts are drawn: nothing changes their logits."""
        return Sampler(self.sampler.temperature, self.sampler.seed)

    def next_draft(self, token: int, seen: int, number: int) -> int:
        """Draft ``number`` below the root, after a token. Doubt where rounding decides."""
        if not self.draws:
            return self.argmax("draft", token, seen)[0]
        draft = self.models["draft"]
        self.drawn_of[number] = row = draft.rows[draft.row(token, seen)]
        return self.drawn_from(number, row)

    def drawn_from(self, number: int, row: list[float]) -> int:
        """The token that draft ``number`` below the root has of a row of the draft's. Doubt where rounding decides."""
        noise = (self.length + (number << 32), rejection_oracle.DRAFT) if self.judges else (self.length + number + 1, 0)
        column, *others = self.drafter.draw(row, *noise)
        if others:
            raise Doubt
        return self.models["draft"].token(column)

    def draft_bad(self, token: int, seen: int) -> bool:
        """Whether the draft's row after a token is bad."""
        if not self.draws:
            return self.argmax("draft", token, seen)[1]
        draft = self.models["draft"]
        return argmax(self.drafter.scaled(draft.rows[draft.row(token, seen)]))[1]

    def choices(self, token: int, seen: int, count: int, number: int) -> list[Choice]:
        """Drafts after a token: the most probable ones, so many, or the one that is drawn as draft ``number``."""
        if self.draws:
            return [Choice(self.next_draft(token, seen, number), 1.0, True, (number, 0.0))]
        return self.most_probable(token, seen, count)

    def most_probable(self, token: int, seen: int, count: int) -> list[Choice]:
        """The most probable next tokens of the draft, so many."""
        row = self.models["draft"].row(token, seen)
        key = (row, count)
        if key not in self.cache:
            draft = self.models["draft"]
            candidates = most_probable(row, draft.rows[row], count)
            self.cache[key] = [replace(choice, token=draft.token(choice.token)) for choice in candidates]
        return self.cache[key]

    def hidden(self, role: str, seen: int) -> int:
        """The code of the hidden row of who has seen that."""
        return self.models[role].hidden_codes[Model.hidden_row(seen)]

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
        return int(own[self.config.file.draft_positions])

    # --- prefill ------------------------------------------------------------------------------------------------------

    def prefill(self, reported: int | None = None) -> None:
        """Target and draft over the prompt: the first token, which a program ``reported``, is the root."""
        self.target_codes = [target_code(token, position) for position, token in enumerate(self.text)]
        self._seen = fold_all(0, self.target_codes)
        first = self.target_token(self.text[-1], self._seen, len(self.text), reported)
        self.health = TARGET * self.target_bad(self.text[-1], self._seen, len(self.text))
        states, state = [], 0
        for code in self.target_codes:
            state = fold(state, code)
            states.append(state)
        self.text.append(first)
        self.count([first])
        self._carry_bonus()
        self._prefill_draft([self.hidden("target", state) for state in states])
        if self.config.file.step == "rotated":
            self._redraft(self.config.num_steps)

    def _prefill_draft(self, hidden: list[int]) -> None:
        """What the draft makes of the prompt, with the target's hidden row of each of its tokens."""

    def _carry_bonus(self) -> None:
        """What every request carries, of the fields that a program has."""
        sampler = self.sampler
        self.carried = {"bonus": self.text[-1], "seq_lens": self.length}
        self.carried |= {f"sampling_{name}": value for name, value in asdict(sampler).items()}
        self.carried["sampling_counts"] = dict(self.counts)

    # --- a step -------------------------------------------------------------------------------------------------------

    def step(self, shape: Shape, reported: Sequence[int] = ()) -> Expected:
        """One step of a shape, at which a program ``reported`` these tokens.

        Doubt when rounding decides what is drafted.
        """
        steps, self.width, nodes, _ = shape
        self.health = 0
        if self.config.file.step != "rotated":
            return self.verify(self.draft(steps, nodes) if steps else chain(self.text[-1], []), steps, reported)
        expected = self.verify(chain(self.text[-1], self.carried["drafts"]), steps, reported)
        self._redraft(steps)
        return replace(expected, health=self.health)  # of both halves

    def _redraft(self, steps: int) -> None:
        """Draft, at the end of a rotated step, what the next one verifies."""
        self.carried["drafts"] = self.draft(steps, steps + 1).tokens[1:]

    def draft(self, steps: int, nodes: int) -> Tree:
        """What is verified."""
        raise NotImplementedError

    def verify(self, tree: Tree, steps: int, reported: Sequence[int] = ()) -> Expected:
        """The target over all nodes, the walk, and what follows from what was accepted."""
        seen, codes = [], []
        for column, token in enumerate(tree.tokens):
            codes.append(target_code(token, self.length + tree.depth(column)))
        for column in range(len(tree.tokens)):
            visible = tree.ancestors(column)
            if self.width > 1 and self.config.file.mask == "none":
                visible = list(range(column + 1))
            seen.append(fold_all(self._seen, [codes[c] for c in visible]))
        walk = self._judged if self.judges and steps and not self.sampler.greedy else self._walked
        path, emitted = walk(tree, seen, steps, reported)
        rows = [
            self._scored_row(tree.tokens[column], seen[column], len(self.text) + i, self._known(emitted[:i]))
            for i, column in enumerate(path)
        ]
        for column in path if self.config.file.verify == "target_only" else range(len(tree.tokens)):
            before = [tree.tokens[c] for c in tree.ancestors(column) if c > 0]
            position = self.length + tree.depth(column) + 1
            self.health |= TARGET * self.target_bad(tree.tokens[column], seen[column], position, self._known(before))
        states = [seen[column] for column in path]
        self._seen = fold_all(self._seen, [codes[c] for c in path])
        self.target_codes += [codes[column] for column in path]
        self.text += emitted
        self.count(emitted)
        self._carry_bonus()
        outputs = self._outputs(path, states, tree) | self._scores(rows, emitted)
        self.commit(emitted, [self.hidden("target", state) for state in states], steps)
        return Expected(emitted, path, self.length, self.health, outputs)

    def _known(self, path: list[int]) -> list[int]:
        """Of the tokens since the step has begun, those that penalties know."""
        return path if self.config.file.penalties == "exact" else []

    def _walked(
        self, tree: Tree, seen: list[int], steps: int, reported: Sequence[int], accepted: Sequence[int] = ()
    ) -> tuple[list[int], list[int]]:
        """The accepted columns and the emitted tokens, where a draft is accepted that is the target's own token.

        Drafts of a chain may be ``accepted`` already.
        """
        path, emitted = list(range(len(accepted) + 1)), [*accepted]
        while True:
            reported_token = reported[len(emitted)] if len(emitted) < len(reported) else None
            position = len(self.text) + len(emitted)
            token = self.target_token(
                tree.tokens[path[-1]], seen[path[-1]], position, reported_token, self._known(emitted)
            )
            emitted.append(token)
            children = [c for c, parent in enumerate(tree.parents) if parent == path[-1] and tree.tokens[c] == token]
            if not children or len(path) > steps:
                return path, emitted
            path.append(children[0])

    def _judged(self, tree: Tree, seen: list[int], steps: int, reported: Sequence[int]) -> tuple[list[int], list[int]]:
        """The same of a chain whose drafts are accepted by what they were drawn from. Doubt where rounding decides."""
        drafts, p = tree.tokens[1:], list[list[float]]()
        for i, token in enumerate(tree.tokens):
            row = self.sampler.kept(self._target_row(token, seen[i], len(self.text) + i, self._known(drafts[:i])))
            if row is None:
                raise Doubt
            p.append(rejection.probabilities(row, self.sampler.scale))
        token, scale = self.models["draft"].token, self.sampler.scale
        q = [rejection.of_tokens(self.drawn_of[i], scale, token, len(p[i])) for i in range(steps)]
        count, rest = rejection.judge(self.config.file.verify, p, q, drafts, self.sampler.seed, self.length)
        position = len(self.text) + count
        drawable = rejection.drawable(rest, self.sampler.seed, position)
        if not drawable:
            return self._walked(tree, seen, steps, reported, drafts[:count])
        reported_token = reported[count] if count < len(reported) else None
        return list(range(count + 1)), [*drafts[:count], reported_token if reported_token in drawable else drawable[0]]

    def _scored_row(self, token: int, seen: int, position: int, path: Sequence[int]) -> list[float] | None:
        """The row whose softmax the log-probabilities are of; None where rounding decides."""
        if self.config.file.logprobs == "processed":
            return self.sampler.processed(self._target_row(token, seen, position, path))
        model = self.models["target"]
        return model.rows[model.row(token, seen)]

    def _scores(self, rows: list[list[float] | None], emitted: list[int]) -> dict[str, Any]:
        """Log-probabilities of what was emitted and of the most probable tokens; None of a row that is None."""
        if "logprobs" not in self.config.file.outputs:
            return {}
        best = [row and ranked(row)[: self.config.file.best_logprobs] for row in rows]
        return {
            "logprobs": [row and log_probability(row, token) for row, token in zip(rows, emitted, strict=True)],
            "best_tokens": best,
            "best_logprobs": [
                row and [log_probability(row, token) for token in tokens or ()]
                for row, tokens in zip(rows, best, strict=True)
            ],
        }

    def _outputs(self, path: list[int], states: list[int], tree: Tree) -> dict[str, Any]:
        """What a configuration may ask for, of the accepted nodes."""
        model, target = self.models["target"], self.config.target
        outputs: dict[str, Any] = {
            "hidden_states": [model.hidden_rows[Model.hidden_row(state)] for state in states],
            "drafted": [tree.tokens[column] for column in path],
        }
        for number, name in enumerate(("routed_experts", "indexer_topk")):
            size = int((target.experts_per_token, target.index_topk)[number] or 0)
            outputs[name] = [
                [[extra(state, number, layer, i) for i in range(size)] for layer in range(target.depth)]
                for state in states
            ] if name in self.config.file.outputs else []  # fmt: skip
        return outputs

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
                self.health |= DRAFT * self.draft_bad(branch.token, seen)
                back.append(row)
                for choice in self.choices(branch.token, seen, self.width, step + 1):
                    grown.append(branch.child(count + len(grown), choice))
            first, count = count, count + len(grown)
            candidates += grown
            if step < steps - 2:
                frontier = best_of(grown, len(frontier), ordered=self.width > 1)
                handed = [back[(branch.number - first) // len(frontier)] for branch in frontier]
        kept = sorted(best_of(candidates, nodes - 1, ordered=False), key=lambda branch: branch.number)
        columns = {-1: 0} | {branch.number: column for column, branch in enumerate(kept, start=1)}
        parents = [columns[branch.parent.number] for branch in kept if branch.parent is not None]
        return Tree([self.text[-1], *(branch.token for branch in kept)], [-1, *parents])

    def carry_choices(self, token: int, seen: int) -> None:
        """The children of the next root."""
        self.roots = self.choices(token, seen, self.config.widest, 0)
        self.carry_row(0, token, seen, self.roots[0].token)
        self.carried |= {
            "topk_index": [choice.token for choice in self.roots],
            "topk_p": [choice.p for choice in self.roots],
        }

    def carry_row(self, number: int, token: int, seen: int, drawn: int) -> None:
        """The logits of a draft that the next step verifies, and what makes its probability of them."""
        model = self.models["draft"]
        row = model.rows[model.row(token, seen)]
        self.carried[f"draft_logits{number}"] = row
        top, total = rejection.mass(row, self.sampler.scale)
        share = rejection.probabilities(row, self.sampler.scale)[model.column(drawn)] if self.draws else 1.0
        # Without a temperature the draft is sure.
        self.carried[f"draft_mass{number}"] = [top, 1.0, 1.0] if self.sampler.greedy else [top, total, share]

    def carry_hidden(self, name: str, role: str, seen: int) -> None:
        """A hidden row that the next step reads."""
        self.handed = self.hidden(role, seen)
        self.carried[name] = self.models[role].hidden_rows[Model.hidden_row(seen)]
