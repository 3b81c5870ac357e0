"""What a step of a session must say and leave."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specc.runtime.entry.result import StepResult
from specc.runtime.plan.shape import Shape

from .bound import Bound
from .oracle import Expected, Oracle
from .outcome import expect
from .ranking import Doubt, chain

ROOM = 32
"""The bit of the health word of a request that a step has left out, having no room for it."""


class Checks(Bound):
    """Compares a step with what the oracles say."""

    def _check_result(self, result: StepResult, rows: list[int], shape: Shape) -> None:
        host = result.to_host()
        for b, row in enumerate(rows):
            oracle = self.requests[row]
            got = host.tokens(b)
            where = f"step {self.steps}, request {b} in pool row {row}, shape {shape}"
            try:
                wanted, doubt = oracle.step(shape, got), False
            except Doubt:
                self.doubts += 1
                if oracle.draws or (shape.topk > 1 and self.config.file.mask == "none"):
                    self.requests.pop(row)  # it cannot be followed
                    continue
                wanted, doubt = oracle.verify(chain(oracle.text[-1], got[:-1]), len(got) - 1, got), True
            expect(got == wanted.tokens, f"{where}: emitted {got}, not {wanted.tokens}")
            slots = len(host.predict[b])
            expect(slots == shape.num_steps + 1, f"{where}: predict has {slots} slots")
            expect(host.predict[b] == got + [0] * (slots - len(got)), f"{where}: predict {host.predict[b]}")
            expect(host.accept_lens[b] == len(got), f"{where}: accept_len {host.accept_lens[b]}")
            expect(host.new_seq_lens[b] == wanted.length, f"{where}: new_seq_len {host.new_seq_lens[b]}")
            expect(host.bonus[b] == got[-1], f"{where}: bonus {host.bonus[b]}")
            if not doubt:
                expect(host.health[b] == wanted.health, f"{where}: health {host.health[b]}, not {wanted.health}")
            self._check_outputs(host, b, wanted, shape.num_nodes, where, doubt)

    def _check_outputs(self, host: Any, b: int, wanted: Expected, nodes: int, where: str, doubt: bool) -> None:
        count = len(wanted.tokens)
        for name in host.outputs:
            got = host.outputs[name][b]
            if name in ("predict", "accept_lens", "new_seq_lens", "bonus", "health"):
                continue
            if name == "accept_index":
                path = [b * nodes + column for column in wanted.path]
                expect(doubt or got == path + [-1] * (len(got) - count), f"{where}: accept_index {got}, not {path}")
                continue
            value = wanted.outputs[name]
            if not isinstance(value, list):
                expect(got == value, f"{where}: {name} {got}, not {value}")
                continue
            value = [list(row) if isinstance(row, tuple) else row for row in value]
            value = [actual if row is None else row for actual, row in zip(got, value, strict=False)]
            if name in ("logprobs", "best_logprobs"):
                pairs = zip(got, value, strict=False)
                if name == "best_logprobs":
                    pairs = (pair for rows in pairs for pair in zip(*rows, strict=True))
                near = all(
                    score == wanted_score or abs(score - wanted_score) <= 1e-3 + 1e-5 * abs(wanted_score)
                    for score, wanted_score in pairs
                )
                expect(near, f"{where}: {name} {got}, not {value}")
                continue
            expect(got[:count] == value, f"{where}: {name} {got[:count]}, not {value}")

    def _check_pools(self, before: dict[str, Tensor], rows: list[int], *, untouched: bool = False) -> None:
        """Rows of other requests are as they were; those of these hold what their oracles carry."""
        for name, pool in self.step.pools.items():
            others = torch.ones(len(pool), dtype=torch.bool)
            others[rows] = False
            same = pool[others].contiguous().view(torch.uint8) == before[name][others].contiguous().view(torch.uint8)
            expect(same.all(), f"pool {name}: a row that is in no batch has changed")
            for row in rows if not untouched else ():
                if row in self.requests:
                    self._check_field(name, pool[row], self.requests[row].carried)

    @staticmethod
    def _check_field(name: str, got: Tensor, carried: dict[str, Any]) -> None:
        expect(name in carried, f"{name} is carried, and nothing says what it is")
        wanted, values = carried[name], got.tolist()
        if isinstance(wanted, dict):
            ring = [wanted.get(i, 0) for i in range(len(values))]
            expect(values == ring, f"carried {name}: {values}, not {ring}")
        elif name == "topk_p" or name.startswith("draft_mass"):
            near = all(
                score == wanted_score or abs(score - wanted_score) <= 1e-5 * abs(wanted_score) + 1e-36
                for score, wanted_score in zip(values, wanted, strict=True)
            )
            expect(near, f"carried {name}: {values}, not {wanted}")
        elif name.startswith("draft_logits"):
            expect(str(values) == str(wanted), f"carried {name}: {values}, not {wanted}")  # of which some are NaN
        else:
            wanted = list(wanted) if isinstance(wanted, list | tuple) else wanted
            expect(values == wanted, f"carried {name}: {values}, not {wanted}")

    def _check_kv(self, before: dict[str, Tensor], lengths: dict[int, int], window: int) -> None:
        """The text's keys and values are those of its tokens, and only slots of the step's windows were written."""
        for owner, pool in self.engine.memory.items():
            allowed = torch.zeros(pool.words.shape[1], dtype=torch.bool)
            allowed[0] = owner == "target" or self.config.file.tables.padding_slot == 0
            for row, length in lengths.items():
                allowed[self.table[row, length : length + window].long()] = True
            changed = (pool.words != before[owner]).any(-1).any(0)
            expect(not (changed & ~allowed).any(), f"{owner}: slots outside the windows were written")
        for row in lengths.keys() & self.requests.keys():
            oracle, slots = self.requests[row], self.table[row]
            codes = self.engine.memory["target"].read(slots[: oracle.length]).tolist()
            expect(codes == oracle.target_codes, f"row {row}: the target's keys and values of the text are others")
            for layer, kept in self._kept(oracle):
                codes = self.engine.memory["draft"].read(slots[: len(kept)], layer).tolist()
                expect(codes == kept, f"row {row}: the draft's keys and values of the text are others")

    @staticmethod
    def _kept(oracle: Oracle) -> list[tuple[int | None, list[int]]]:
        layers = getattr(oracle, "layers", None)
        if layers is not None:
            return list(enumerate(layers))
        return [(None, oracle.draft_codes)] if oracle.draft_codes else []

    def _check_left_out(self, result: StepResult, full: list[int], start: int) -> None:
        """A request without room emits nothing and says why; its pool rows are checked with those of no batch."""
        host = result.to_host()
        for b, row in enumerate(full, start):
            results = host.accept_lens[b], host.new_seq_lens[b], host.bonus[b], host.health[b]
            expect(results == (0, 0, 0, ROOM), f"step {self.steps}, pool row {row} without room: {results}")
