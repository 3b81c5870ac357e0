"""Several copies of one program, served the same requests in the same batches, and compared after every call."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any, Protocol

import torch
from fakes.drafts import Engine
from fakes.memory import scattered
from fakes.models import target_next
from fakes.tables import tame_text
from torch import Tensor

from specc.runtime.plan.plan import PROMPT
from specc.runtime.semantics.convention import DTYPES

LONGEST = 120
"""A request leaves when its text is longer."""
WORDS = 60
"""Tokens of a text that drafts may be looked up in besides."""
SUMMED = ("topk_p", "agreement")
"""What is carried that comes from sums over a vocabulary."""
ON_PATH = ("hidden_states", "logprobs", "routed_experts", "indexer_topk")
"""Outputs whose rows past the accepted length mean nothing."""


class Package(Protocol):
    """What is used of a generated package."""

    Batch: Any

    def load(self, device: str | torch.device) -> Any:
        """Load the program onto a device."""
        ...


class Variant:
    """One bound program with models and memory of its own."""

    def __init__(self, package: Package, device: str | torch.device, **options: Any) -> None:
        """`options`: `capture` for `bind`, `padded` for every decode, `returns`: what to bind around the engine."""
        returns = options.pop("returns", None) or (lambda engine: engine)
        program = package.load(device)
        self.batch_type, self.plan = package.Batch, program.plan
        # A budget is that of the bucket: requests have more rows to share out where it is padded.
        self.padded = bool(options.pop("padded", False)) or "G" in self.plan.dims
        self.engine = engine_of(program, scattered(self.plan.size("P"), LONGEST + self.plan.kv.window))
        self.table = self.engine.table
        tables = tables_of(program)
        self.step = program.bind(returns(self.engine), self.table, self.engine.kv, tables=tables, **options)

    def prefill(self, rows: list[int], prompts: list[list[int]]) -> dict[str, list[Any]]:
        """Admit requests; the outputs."""
        self.engine.prompts.update(zip(rows, prompts, strict=True))
        read = PROMPT in self.plan.reads("prefill")
        tokens = [token for prompt in prompts for token in prompt] if read else None
        batch = self.batch_type(rows, [len(prompt) for prompt in prompts], tokens)
        return dict(self.step.prefill(batch).to_host().outputs)

    def decode(self, rows: list[int], lengths: list[int]) -> dict[str, list[Any]]:
        """One step; the outputs."""
        outputs = dict(self.step.decode(self.batch_type(rows, lengths), at_least=int(self.padded)).to_host().outputs)
        for name in outputs.keys() & set(ON_PATH):
            outputs[name] = [row[:count] for row, count in zip(outputs[name], outputs["accept_lens"], strict=True)]
        return outputs

    def carried(self, rows: list[int]) -> dict[str, Tensor]:
        """The state of requests."""
        return {name: values.cpu() for name, values in self.step.read_carry(rows).fields.items()}

    def kept(self, lengths: dict[int, int]) -> list[Tensor]:
        """The KV rows of the committed text of requests, of every model that has some."""
        return [words for row, length in lengths.items() for words in self.engine.content(row, length)]


class Serving:
    """Requests that come, run in batches of changing size and order, and go."""

    def __init__(self, variants: dict[str, Variant], seed: int) -> None:
        self.variants, self.pick = variants, random.Random(seed)
        plan = next(iter(variants.values())).plan
        self.largest, self.pool, self.vocab = plan.buckets[-1], plan.size("P"), plan.size("V")
        self.texts: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.accepted, self.sizes = Counter[int](), Counter[int]()

    def run(self, steps: int) -> None:
        """Serve so many decode steps.

        AssertionError where a variant differs from the first, or that from what the target alone would write.
        """
        for _ in range(steps):
            self.admit()
            rows = self.pick.sample(sorted(self.lengths), self.pick.randint(1, min(self.largest, len(self.lengths))))
            outputs = self.same("decode", rows, [self.lengths[row] for row in rows])
            assert not any(outputs["health"])
            self.sizes[len(rows)] += 1
            for row, length, predict in zip(rows, outputs["new_seq_lens"], outputs["predict"], strict=True):
                accepted = length - self.lengths[row]
                self.write(row, predict[:accepted])
                self.lengths[row] = length
                self.accepted[accepted] += 1
                if length > LONGEST:
                    del self.lengths[row]  # a request that leaves needs no call
            self.same_state()

    def admit(self) -> None:
        """Let requests in, now and then, always when there is none."""
        free = [row for row in range(1, self.pool) if row not in self.lengths]
        if self.lengths and (not free or self.pick.random() < 0.7):
            return
        rows = self.pick.sample(free, self.pick.randint(1, min(self.largest, len(free))))
        prompts = [self.pick.choices(range(self.vocab), k=self.pick.randint(1, 12)) for _ in rows]
        first = self.same("prefill", rows, prompts)["bonus"]
        for row, prompt, token in zip(rows, prompts, first, strict=True):
            self.texts[row] = list(prompt)
            self.write(row, [token])
        self.lengths |= {row: len(prompt) for row, prompt in zip(rows, prompts, strict=True)}

    def readmit(self, row: int, into: int) -> None:
        """Let a request go, and admit it with its committed text on another row; a new one gets its row."""
        length, text = self.lengths.pop(row), self.texts.pop(row)
        for where, prompt in ((into, text[:length]), (row, self.pick.choices(range(self.vocab), k=3))):
            (token,) = self.same("prefill", [where], [prompt])["bonus"]
            self.texts[where], self.lengths[where] = list(prompt), len(prompt)
            self.write(where, [token])
        assert self.texts[into] == text
        self.same_state()

    def write(self, row: int, tokens: list[int]) -> None:
        """Append what was emitted, each token the target's own."""
        target, text = next(iter(self.variants.values())).engine.models["target"], self.texts[row]
        assert tokens
        for token in tokens:
            assert token == target_next(target, text), f"row {row}: {text}"
            text.append(token)

    def same(self, call: str, *arguments: Any) -> dict[str, list[Any]]:
        """Make a call on every variant; all must answer alike."""
        answers = {name: getattr(variant, call)(*arguments) for name, variant in self.variants.items()}
        (first, want), *others = answers.items()
        for name, answer in others:
            assert answer.keys() == want.keys()
            for output, values in want.items():
                what = f"{call}{arguments}: {output} of {name} is not that of {first}"
                assert alike(output, answer[output], values), f"{what}: {answer[output]}, {values}"
        return want

    def same_state(self) -> None:
        """What is carried to the next step must be alike too, and the KV rows of all text."""
        rows = sorted(self.lengths)
        carried = [variant.carried(rows) for variant in self.variants.values()]
        for fields in carried[1:]:
            for field, values in carried[0].items():
                same = torch.allclose(fields[field], values) if field in SUMMED else torch.equal(fields[field], values)
                assert same, field
        kept = [variant.kept(self.lengths) for variant in self.variants.values()]
        for contents in kept[1:]:
            assert all(torch.equal(words, wanted) for words, wanted in zip(contents, kept[0], strict=True))


def alike(output: str, values: list[Any], want: list[Any]) -> bool:
    """Whether two outputs are equal; log probabilities, of a row or of a path of each, depend on the order of a sum."""
    if output != "logprobs":
        return values == want
    pairs = zip(_numbers(values), _numbers(want), strict=True)
    return all(math.isclose(value, wanted, rel_tol=1e-4, abs_tol=1e-5) for value, wanted in pairs)


def _numbers(values: Any) -> list[float]:
    """The numbers in lists of lists."""
    return [number for value in values for number in _numbers(value)] if isinstance(values, list) else [values]


def engine_of(program: Any, table: Tensor) -> Engine:
    """The fake engine of a loaded program, on its device."""
    engine = Engine.of_plan(program.plan, table.to(program.device))
    engine.capturable = True
    return engine


def tables_of(program: Any) -> dict[str, Tensor]:
    """What a program reads besides: a text that drafts may be looked up in."""
    words = tame_text(random.Random(5), WORDS)
    return {
        field.name: torch.tensor(words, dtype=DTYPES[field.dtype], device=program.device)
        for field in program.plan.tables().values()
    }
