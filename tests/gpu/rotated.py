"""An engine that runs the target by itself: its tables, its block table, and what it writes between the halves."""

from __future__ import annotations

from typing import Any

import torch
from fakes.memory import scattered
from torch import Tensor

from specc.runtime.plan.plan import BLOCKS, COUNTS, PROMPT
from specc.runtime.rotated import laid_apart
from specc.runtime.semantics.convention import DTYPES

from .serving import LONGEST, Package, Variant, engine_of

SPARE = 5
"""Elements between the rows of a table, and blocks behind those of a request, which nothing may touch."""
UNTOUCHED = -9


class RotatedVariant(Variant):
    """A rotated program bound to tables of the engine's, which has a row in front that only the program knows."""

    def __init__(self, package: Package, device: str | torch.device, **options: Any) -> None:
        """`options`: as of `Variant`, without `returns`; with `makes` the engine makes what it hands over."""
        self.padded, makes = bool(options.pop("padded", False)), bool(options.pop("makes", False))
        program = package.load(device)
        self.batch_type, self.plan = package.Batch, program.plan
        table, tables = self.plan.table, dict[str, Tensor]()
        rows, page = self.plan.size("P"), self.plan.kv.page_size
        columns = -(-(LONGEST + self.plan.kv.window) // page)
        bound = scattered(rows, columns * (1 if table == BLOCKS else page))
        slots = (bound[..., None] * page + torch.arange(page)).flatten(1).int() if table == BLOCKS else bound
        self.engine = engine_of(program, slots)
        if table == BLOCKS:
            stale = torch.full((rows, SPARE), 1 << 30, dtype=torch.int32)
            bound = torch.cat((bound, stale), 1)
            tables[COUNTS] = torch.full((rows,), columns, dtype=torch.int32, device=program.device)
        self.table = bound.to(program.device)
        self.tables = {name: self.made(name) for name, field in self.plan.carry.items() if field.written_by}
        self.scores, self.left = Tensor(), torch.zeros(self.plan.buckets[-1], dtype=torch.int32, device=program.device)
        self.drafted = torch.zeros(self.plan.buckets[-1], self.plan.size("S"), dtype=torch.int64, device=program.device)
        if makes:
            most = self.plan.buckets[-1] * self.plan.size("A")
            self.scores, self.hidden = (
                torch.zeros(most, self.plan.size(value.axes[-1]), dtype=DTYPES[value.dtype], device=program.device)
                for value in (
                    self.plan.values[self.given.get(name, self.given["logits"])] for name in ("logits", "hidden")
                )
            )
            vars(self.engine).update(make_logits=self.make_logits, make_hidden=self.make_hidden)
            vars(self.engine).update(committed=self.committed, proposed=self.proposed)
        self.step = program.bind(self.engine, self.table, tables=tables, carry=self.tables, **options)

    @property
    def given(self) -> dict[str, str]:
        """The values of what the engine hands over."""
        nodes = [node for node in self.plan.nodes("step") if node.kind == "given"]
        return {name: value for node in nodes for name, value in node.results.items()}

    def make_logits(self, *, tokens: int) -> Tensor:
        """A copy of what the target's forward has left, in rows as far apart as the plan has them."""
        return laid_apart(self.plan, self.given["logits"], self.scores[:tokens] + 0)

    def make_hidden(self, *, tokens: int) -> Tensor:
        """A copy of what the target's forward has left, of two halves side by side."""
        return torch.cat(self.hidden[:tokens].chunk(2, -1), -1)

    def committed(self, *, predict: Tensor, accept_lens: Tensor, **_: Tensor) -> None:
        """Keep how many tokens each request was given."""
        self.left[: len(predict)].copy_(accept_lens)

    def proposed(self, *, drafts: Tensor, **_: Tensor) -> None:
        """Keep what is drafted."""
        self.drafted[: len(drafts)].copy_(drafts)

    def made(self, name: str) -> Tensor:
        """A table of the engine's for a field; rows of drafts are a part of longer ones."""
        field = self.plan.carry[name]
        sizes = [self.plan.size(axis) for axis in ("P", *field.axes[1:])]
        wide = [*sizes[:-1], sizes[-1] + SPARE * (field.axes[1:] == ("S",))]
        device = self.engine.table.device
        return torch.full(wide, UNTOUCHED, dtype=DTYPES[field.dtype], device=device)[..., : sizes[-1]]

    def update(self, rows: list[int], fields: dict[str, Any]) -> None:
        """Let the engine write what it writes by itself."""
        for name, table in self.tables.items():
            if self.plan.carry[name].written_by == "engine" and name in fields:
                at, values = (torch.tensor(entries, device=table.device) for entries in (rows, fields[name]))
                table[at] = values.to(table.dtype)

    def prefill(self, rows: list[int], prompts: list[list[int]]) -> dict[str, list[Any]]:
        """Admit requests; the outputs."""
        self.engine.prompts.update(zip(rows, prompts, strict=True))
        lengths = [len(prompt) for prompt in prompts]
        tokens = [token for prompt in prompts for token in prompt] if PROMPT in self.plan.reads("prefill") else None
        result = self.step.prefill(self.batch_type(rows, lengths, tokens))
        outputs = {name: values.tolist() for name, values in result.outputs.items()}
        self.update(rows, outputs | {"seq_lens": lengths})
        return outputs

    def decode(self, rows: list[int], lengths: list[int]) -> dict[str, list[Any]]:
        """One step, between whose halves the engine has written its tables; the outputs of both."""
        size = self.plan.bucket(len(rows))
        given = self.target(rows + [0] * (size - len(rows)), lengths + [0] * (size - len(rows)))
        batch, logits = self.batch_type(rows, lengths), laid_apart(self.plan, self.given["logits"], given.logits)
        hidden = given.hidden if self.step.reads_hidden else None
        if len(self.scores):
            self.scores[: logits.shape[0] * logits.shape[1]].copy_(logits.flatten(0, 1))
            if hidden is not None:
                self.hidden[: hidden.shape[0] * hidden.shape[1]].copy_(hidden.flatten(0, 1))
                hidden = None
        committed = self.step.commit(batch, None if len(self.scores) else logits, at_least=int(self.padded)).to_host()
        if len(self.scores):
            assert self.left[: len(rows)].tolist() == committed.accept_lens
        self.update(rows, {"bonus": committed.bonus, "seq_lens": committed.new_seq_lens})
        proposed = self.step.propose(batch, hidden).to_host()
        if len(self.scores):
            assert self.drafted[: len(rows)].tolist() == proposed.drafts
        self.update(rows, {"drafts": proposed.drafts})
        outputs = {**committed.outputs, "drafts": proposed.drafts}
        outputs["health"] = [
            first_half | second_half for first_half, second_half in zip(committed.health, proposed.health, strict=True)
        ]
        if "logprobs" in outputs:
            outputs["logprobs"] = [p[:n] for p, n in zip(outputs["logprobs"], committed.accept_lens, strict=True)]
        return outputs

    def target(self, rows: list[int], lengths: list[int]) -> Any:
        """The target over bonus and drafts, and over padding."""
        slots, pools = self.engine.table, self.step.pools
        at, lens = (torch.tensor(numbers, device=slots.device) for numbers in (rows, lengths))
        tokens = torch.cat((pools["bonus"][at][:, None].long(), pools["drafts"][at].long()), 1)
        positions = lens[:, None] + torch.arange(tokens.shape[1], device=slots.device)
        places = torch.where(at[:, None] != 0, slots[at[:, None], positions].long(), 0)
        return self.engine.target(
            tokens=tokens, positions=positions, slots=places, rows=at, seq_lens=lens, capture="full"
        )

    def carried(self, rows: list[int]) -> dict[str, Tensor]:
        """The state of requests, in memory of the program's and in the engine's, around which nothing was written."""
        for table in self.tables.values():
            wide = table.as_strided((len(table), table.stride(0)), (table.stride(0), 1))
            assert (wide[:, table[0].numel() :] == UNTOUCHED).all()
            assert (table[0] == UNTOUCHED).all()
        at = torch.tensor(rows, device=self.table.device)
        return {name: pool[at].cpu() for name, pool in self.step.pools.items()}
