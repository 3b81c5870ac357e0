"""The oracle of each algorithm: what its draft keeps, drafts and carries."""

from __future__ import annotations

import math
from functools import cached_property
from itertools import pairwise
from typing import Any

from fakes.models import NO_HIDDEN, Model, block_code, draft_code, fold, fold_all, injected_code, mix

from .oracle import DRAFT, EXTEND, PREFILL, Oracle
from .ranking import Branch, Tree, chain, f32, most_probable, products


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
        self.health |= PREFILL * self.draft_bad(stream[-1], self._kept)
        self.carry_choices(stream[-1], self._kept)
        self.carry_hidden("hidden", "draft", self._kept)

    def draft(self, steps: int, nodes: int) -> Tree:
        own: list[list[int]] = [[] for _ in range(self.width)]
        base = self.length + self.first

        def forward(step: int, place: int, branch: Branch) -> tuple[int, int]:
            hidden = branch.hidden if self.reads and branch.hidden is not None else NO_HIDDEN
            own[place].append(draft_code(branch.token, base + step, hidden))
            seen = fold(fold_all(self._kept, own[place]), step)
            return seen, self.hidden("draft", seen)

        return self.grow(self.roots[: self.width], self.handed, steps, nodes, forward)

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        base = len(self.draft_codes)
        given = hidden if self.reads else [NO_HIDDEN] * len(emitted)
        codes = [draft_code(t, base + i, given[i]) for i, t in enumerate(emitted)]
        self.draft_codes += codes
        self._kept = fold_all(self._kept, codes)
        seen = fold(self._kept, len(emitted))
        self.health |= EXTEND * self.draft_bad(emitted[-1], seen)
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
        self.health |= DRAFT * self.draft_bad(root, seen)

        def forward(step: int, place: int, branch: Branch) -> tuple[int, int]:
            saw = assist(step + 1, branch.token, branch.hidden or 0)
            return saw, self.hidden("draft", saw)

        return self.grow(self.choices(root, seen, self.width, 0), self.hidden("draft", seen), steps, nodes, forward)


class Anchored(Oracle):
    """ANCHORED, the plugin: a draft without memory, at the target's hidden row of the last accepted node."""

    def _prefill_draft(self, hidden: list[int]) -> None:
        self.carry_hidden("anchor", "target", self._seen)

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        self.handed = hidden[-1]

    def _outputs(self, path: list[int], states: list[int], tree: Tree) -> dict[str, Any]:
        self.carried["anchor"] = self.models["target"].hidden_rows[Model.hidden_row(states[-1])]
        emitted = self.text[-len(path) :]
        again = sum(token == next_token for token, next_token in pairwise(emitted))
        return super()._outputs(path, states, tree) | {"repeats": again}

    def draft(self, steps: int, nodes: int) -> Tree:
        root = self.text[-1]
        seen = mix(7, 0, self.length, self.handed)
        self.health |= DRAFT * self.argmax("draft", root, seen)[1]

        def forward(step: int, place: int, branch: Branch) -> tuple[int, int]:
            return mix(7, step + 1, self.length + 1 + step, self.handed), 0

        return self.grow(self.most_probable(root, seen, self.width), 0, steps, nodes, forward)


class Modules(Oracle):
    """MULTI_LAYER_EAGLE."""

    def _prefill_draft(self, hidden: list[int]) -> None:
        self.layers: list[list[int]] = []
        self.drafts: list[int] = []
        for step in range(self.config.num_steps):
            stream = [*self.text, *self.drafts][step + 1 :][: len(hidden)]
            codes = [draft_code(t, p, hidden[p]) for p, t in enumerate(stream)]
            self.layers.append(codes)
            seen = fold(fold_all(0, codes), step)
            token = self.next_draft(stream[-1], seen, step)
            self.carry_row(step, stream[-1], seen, token)
            self.health |= PREFILL * self.draft_bad(stream[-1], seen)
            self.drafts.append(token)
        self.carried["topk_index"] = list(self.drafts)

    def draft(self, steps: int, nodes: int) -> Tree:
        return chain(self.text[-1], self.drafts)

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        self.drafts = []
        for step, codes in enumerate(self.layers):
            stream = [*emitted, *self.drafts][step:]
            codes += [draft_code(t, len(codes) + i, hidden[i]) for i, t in enumerate(stream)]
            seen = fold(fold_all(0, codes), step)
            token = self.next_draft(stream[-1], seen, step)
            self.carry_row(step, stream[-1], seen, token)
            self.health |= EXTEND * self.draft_bad(stream[-1], seen)
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
        before = [root]
        while len(before) < steps:
            before.append(self.models["draft"].follow(before[-1]))
        rows = [(token, fold(seen, i)) for i, token in enumerate(before)]
        self.health |= DRAFT * any(self.draft_bad(*row) for row in rows)
        if self.width > 1:
            return products(root, [self.choices(*row, self.width, i) for i, row in enumerate(rows)], nodes)
        return chain(root, [self.next_draft(*row, i) for i, row in enumerate(rows)])

    def commit(self, emitted: list[int], hidden: list[int], steps: int) -> None:
        self.draft_codes += [injected_code(len(self.draft_codes) + i, code) for i, code in enumerate(hidden)]


class Selected(Block):
    """DFLASH2, beside tables of zeros: a place's most probable tokens, which alone are drawn, as probable as they are.

    tests/kernels and tests/e2e have other tables.
    """

    def next_draft(self, token: int, seen: int, number: int) -> int:
        if not self.draws:
            return super().next_draft(token, seen, number)
        assert self.config.draft is not None and self.config.draft.selector_top_k is not None
        draft = self.models["draft"]
        place = draft.row(token, seen)
        self.drawn_of[number] = row = [-math.inf] * len(draft.rows[place])
        for choice in most_probable(place, draft.rows[place], self.config.draft.selector_top_k):
            row[choice.token] = f32(math.log(max(choice.p, 2.0**-126)))
        return self.drawn_from(number, row)

    def draft_bad(self, token: int, seen: int) -> bool:
        return self.argmax("draft", token, seen)[1]


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
        fill = own[-1] if options.beyond == "last" else 0
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
            if len(branches) == self.width or any(branch[0] == source[after] for branch in branches):
                continue
            known = list(source)
            branch = []
            for i in range(steps):
                token = known[after + i] if after + i < len(known) else fill
                branch.append(token)
                if rank == 0 and options.beyond == "period":
                    known.append(token)  # past the root it goes on into the drafts themselves
            branches.append(branch)
        branches += [[fill] * steps] * (self.width - len(branches))
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
    "DSPARK": Block,  # beside tables of zeros; tests/kernels and tests/e2e have others
    "DFLASH2": Selected,
    "NGRAM": LookUp,
}
