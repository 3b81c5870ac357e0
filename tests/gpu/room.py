"""Requests that come to the end of their room, in batches with others that have not; the table lies amid poison.

Without room are requests whose next step would leave their row of `req_to_token`, or a full mask, and those whose
length is no length. A step has to leave them alone, and everyone else must be served as if they were not there.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from fakes.memory import scattered
from fakes.models import target_next
from torch import Tensor

from specc.runtime.plan.plan import PROMPT

from .serving import ON_PATH, Package, engine_of, tables_of

BAND, NO_SLOT = 512, 2**30
"""Columns of poison on both sides of every row, and what stands there: a slot that no KV buffer has."""
ROOM_BIT = 1 << 5
SHORT = 40
"""The longest text with room for a step, where no mask says otherwise."""
NO_LENGTHS = (-(2**63), -1, 2**31, 2**40, 2**63 - 1)


class Requests:
    """A bound program with models and memory of its own, and requests by pool row."""

    def __init__(self, package: Package, device: str | torch.device, **options: Any) -> None:
        """`options` are those of `bind`."""
        program = package.load(device)
        self.plan, self.batch_type = program.plan, package.Batch
        window, longest = self.plan.kv.window, self.plan.kv.longest
        self.last = SHORT if longest is None else int(longest)
        columns = self.last + window + (0 if longest is None else 7)
        whole = torch.full((self.plan.size("P"), columns + 2 * BAND), NO_SLOT, dtype=torch.int32, device=program.device)
        self.table = whole[:, BAND : BAND + columns]
        self.table.copy_(scattered(self.plan.size("P"), columns))
        self.table[0] = 0
        self.engine, tables = engine_of(program, self.table), tables_of(program)
        self.step = program.bind(self.engine, self.table, self.engine.kv, tables=tables, **options)
        self.overlap = "seq_lens" in self.step.pools
        self.lengths: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}

    def prefill(self, prompts: dict[int, list[int]]) -> None:
        """Admit requests by pool row."""
        self.engine.prompts |= prompts
        tokens = [token for prompt in prompts.values() for token in prompt]
        given = tokens if PROMPT in self.plan.reads("prefill") else None
        batch = self.batch_type(list(prompts), [len(prompt) for prompt in prompts.values()], given)
        first = self.step.prefill(batch).to_host().bonus
        self.lengths |= {row: len(prompt) for row, prompt in prompts.items()}
        self.texts |= {row: [*prompt, token] for (row, prompt), token in zip(prompts.items(), first, strict=True)}

    def decode(self, rows: list[int], lies: dict[int, int]) -> dict[int, dict[str, Any]]:
        """One step: outputs by row. ``lies`` are lengths that some requests are said to have in this step only."""
        lengths = torch.tensor([lies.get(row, self.lengths[row]) for row in rows], device=self.table.device)
        if self.overlap:
            self.step.pools["seq_lens"][rows] = lengths
        outputs = self.step.decode(self.batch_type(rows, None if self.overlap else lengths)).to_host().outputs
        if self.overlap:
            for row in lies:
                assert int(self.step.pools["seq_lens"][row]) == lies[row]
                self.step.pools["seq_lens"][row] = self.lengths[row]
        return {row: {name: values[i] for name, values in outputs.items()} for i, row in enumerate(rows)}

    def state(self, rows: list[int]) -> list[Tensor]:
        """What is carried of requests, and the KV rows of their committed text."""
        tensors = [pool[rows].cpu() for pool in self.step.pools.values()]
        return tensors + [words for row in rows for words in self.engine.content(row, self.lengths[row])]

    def commit(self, row: int, outputs: dict[str, Any]) -> None:
        """Append what a request emitted: each token the target's own."""
        text, count = self.texts[row], outputs["accept_lens"]
        assert count >= 1
        assert outputs["new_seq_lens"] == self.lengths[row] + count
        for token in outputs["predict"][:count]:
            assert token == target_next(self.engine.models["target"], text)
            text.append(token)
        self.lengths[row] += count


def run_out(package: Package, device: str | torch.device, seed: int, **options: Any) -> None:
    """Serve requests until none has room. AssertionError where one is served that should not be, or another is not."""
    pick = random.Random(seed)
    crowd, others = (Requests(package, device, **options) for _ in range(2))
    last, vocab = crowd.last, crowd.plan.size("V")
    masked = crowd.plan.kv.longest is not None
    sizes = {3: last - 9, 1: last - 1, 6: last, 4: last - 4 if masked else last + 1}
    prompts = {row: pick.choices(range(vocab), k=size) for row, size in sizes.items()}
    for requests in (crowd, others):
        requests.prefill(prompts)
    edges = [last + 1, crowd.table.shape[1], crowd.table.shape[1] + 1, *NO_LENGTHS]
    turn = 0
    while any(length <= last for length in crowd.lengths.values()):
        rows = pick.sample(sorted(prompts), len(prompts))
        victim = rows[turn % len(rows)]
        lies = {victim: edges[turn // 2 % len(edges)]} if turn % 2 else {}
        served = [row for row in rows if lies.get(row, crowd.lengths[row]) in range(last + 1)]
        left = [row for row in rows if row not in served]
        before = crowd.state(left)
        stepped = crowd.decode(rows, lies)
        assert all(map(torch.equal, before, crowd.state(left)))
        for row in left:
            assert stepped[row]["health"] == ROOM_BIT
            outputs = {name: stepped[row][name] for name in ("predict", "accept_lens", "new_seq_lens", "bonus")}
            assert not any(torch.tensor(value).any() for value in outputs.values()), outputs
        without = others.decode(served, {}) if served else {}
        for row in served:
            assert not stepped[row]["health"]
            assert along_path(stepped[row]) == along_path(without[row])
            crowd.commit(row, stepped[row])
            others.commit(row, without[row])
        assert all(map(torch.equal, crowd.state(served), others.state(served)))
        turn += 1
    assert turn > 3
    assert all(last < length <= last + crowd.plan.size("A") for length in crowd.lengths.values())


def along_path(outputs: dict[str, Any]) -> dict[str, Any]:
    """Outputs of a request without what means nothing, and without where in the batch it is."""
    count = outputs["accept_lens"]
    kept = {name: value for name, value in outputs.items() if name != "accept_index"}
    return {name: value[:count] if name in ON_PATH else value for name, value in kept.items()}
