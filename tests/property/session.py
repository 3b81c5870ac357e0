"""Running a module for a prefill and a few steps, and what of it must not depend on passes."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from fakes.drafts import Engine
from fakes.heads import Head
from fakes.models import Model
from fakes.rotated import run_target, write_left
from fakes.tables import wild_models
from torch import Tensor

from specc.compiler.algorithms.blocks.scope import dtype_of
from specc.compiler.config import Config
from specc.compiler.ir.core import Module, entry_of, on_nodes
from specc.compiler.ir.interpret import Forward, interpret
from specc.compiler.ir.nodes import callback_of
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.ops.head import MARKOV
from specc.compiler.ir.ops.lattice import SELECTOR
from specc.compiler.ir.ops.model import GIVEN_HIDDEN, GIVEN_LOGITS, GIVEN_PADDED
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.plan.draft_head import BIAS_SCALE, BIAS_WEIGHT, HEAD, SCALE, TOKEN_ENTRIES, WEIGHT
from specc.runtime.plan.parameters import PREFIX
from specc.runtime.plan.plan import TOKEN_MAP
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.step import Step

UNSPECIFIED = ("hidden_states", "logprobs", "routed_experts", "indexer_topk")
"""Outputs whose rows past the accepted length, and in padding rows, may be anything."""


@dataclass
class Script:
    """What the scheduler does: prompts by pool row, then batches of pool rows; 0 is a padding row.

    ``prompts`` are lengths, ``texts`` the tokens of prompts, ``corpus`` the tokens that are looked through besides,
    ``models`` those that all engines of the scenario have, and ``sampled`` says how requests are, where a program asks.
    ``blocks`` are those that the slots of ``table`` are in, of a program that looks slots up so; ``markov`` and
    ``selector`` are tables of a draft that has such a head.
    """

    prompts: dict[int, int]
    batches: list[list[int]]
    table: Tensor
    texts: dict[int, list[int]]
    corpus: Tensor
    models: dict[str, Model]
    sampled: dict[int, Sampling]
    blocks: Tensor | None = None
    markov: tuple[Tensor, ...] = ()
    selector: tuple[Tensor, ...] = ()

    def inputs(self) -> dict[str, Tensor]:
        """Where KV slots are looked up: those of every position; or the blocks of a request, and how many it has.

        Behind them stands what is no block.
        """
        if self.blocks is None:
            return {"req_to_token": self.table}
        rows, held = self.blocks.shape
        stale = torch.full((rows, 2), 1 << 30, dtype=torch.int32)
        counts = torch.full((rows,), held, dtype=torch.int32)
        return {"req_to_token": self.table, "block_table": torch.cat((self.blocks, stale), 1), "num_blocks": counts}

    def pools(self, module: Module, pool_rows: int) -> dict[str, Tensor]:
        """What is carried before anything has run: how requests are sampled, and zeros."""
        pools = {
            name: torch.zeros((pool_rows, *carry.type.sizes(module.dims)[1:]), dtype=DTYPES[carry.type.dtype])
            for name, carry in module.carries.items()
        }
        for name in (name for name, carry in module.carries.items() if carry.given):
            for row, sampling in self.sampled.items():
                pools[name][row] = getattr(sampling, name.removeprefix(PREFIX))
        return pools

    def sample(self, step: Step) -> None:
        """Tell a program how its requests are sampled."""
        if step._plan.samples:
            step.set_sampling(list(self.sampled), list(self.sampled.values()))

    def prompt_tokens(self, rows: Sequence[int]) -> list[int]:
        """The prompts of some pool rows, one after the other."""
        return [token for row in rows for token in self.texts[row]]

    def tables(self, names: Collection[str]) -> dict[str, Tensor]:
        """What the engine brings once, and what the runtime makes of it, of such names."""
        known, draft = {"corpus": self.corpus}, self.models.get("draft")
        known |= {**dict(zip(MARKOV, self.markov, strict=False)), **dict(zip(SELECTOR, self.selector, strict=False))}
        if draft is not None and draft.tokens is not None:
            known[TOKEN_MAP] = torch.tensor(draft.tokens)
            columns = {token: column for column, token in enumerate(draft.tokens)}
            entries = [columns.get(token, -1) for token in range(self.models["target"].logits.shape[-1])]
            known[TOKEN_ENTRIES] = torch.tensor(entries, dtype=torch.int32)
        if draft is not None and draft.head is not None:
            known |= {HEAD: draft.head.table, **dict(zip((WEIGHT, SCALE), draft.head.made, strict=False))}
            for table in self.markov[1:]:
                kept = Head(table, table, table, draft.head.form).made
                known |= dict(zip((BIAS_WEIGHT, BIAS_SCALE), kept, strict=False))
        return {name: table for name, table in known.items() if name in names}


def script(config: Config, seed: int, steps: int = 3) -> Script:
    """A random scenario: batches of some of the requests in any order, padded like a bucket is."""
    rng = random.Random(seed)
    rows = rng.sample(range(1, config.pool_rows), rng.randint(1, min(config.max_batch, config.pool_rows - 1)))
    batches = []
    for _ in range(steps):
        chosen = rng.sample(rows, rng.randint(1, len(rows)))
        size = next(bucket for bucket in config.file.buckets if bucket >= len(chosen))
        batches.append(chosen + [0] * (size - len(chosen)))
    longest = 6 + steps * config.path_slots + room(config)
    blocks = None
    if config.file.tables.slots == "block_table":
        held, page = -(-longest // config.file.page_size), config.file.page_size
        numbers = rng.sample(range(1, 4 * held * config.pool_rows), held * config.pool_rows)
        blocks = torch.tensor(numbers, dtype=torch.int32).view(config.pool_rows, held)
        table = (blocks[..., None] * page + torch.arange(page, dtype=torch.int32)).flatten(1)
    else:
        slots = rng.sample(range(1, 4 * longest * config.pool_rows), longest * config.pool_rows)
        table = torch.tensor(slots, dtype=torch.int32).view(config.pool_rows, longest)
    prompts = {row: rng.randint(1, 5) for row in rows}
    models = wild_models(config, rng, odd=[0.15], padding=0.0)
    texts = {row: _text(models["target"], rng, config, length, 0.2) for row, length in prompts.items()}
    corpus = _text(models["target"], rng, config, rng.randint(0, 60), 0.1)
    sampled = {row: Sampling(rng.choice([0.0, 0.5, 1.0, 20.0]), rng.randrange((1 << 63) - 1)) for row in rows}
    return Script(
        prompts,
        batches,
        table,
        texts,
        torch.tensor(corpus, dtype=torch.int32),
        models,
        sampled,
        blocks,
        _markov(config, seed),
        _selector(config, seed),
    )


def _selector(config: Config, seed: int) -> tuple[Tensor, ...]:
    """Zeros, but for few tokens before which small whole numbers stand; nothing of a draft without a selector."""
    if config.draft is None or config.draft.selector_rank is None:
        return ()
    source, shape = torch.Generator().manual_seed(seed), (config.target.vocab_size, config.draft.selector_rank)
    tables = [torch.randint(-1, 2, shape, generator=source).to(DTYPES[dtype_of(config.draft)]) for _ in range(2)]
    tables[0] *= torch.rand(len(tables[0]), 1, generator=source) < 0.2
    return tuple(tables)


def _markov(config: Config, seed: int) -> tuple[Tensor, ...]:
    """Small whole numbers, whose sums are exact, behind few tokens; nothing of a draft without such a head.

    Those of the second table have one size, so that they are as exact in 8 bits.
    """
    if config.draft is None or config.draft.markov_rank is None:
        return ()
    source, rank, dtype = torch.Generator().manual_seed(seed), config.draft.markov_rank, dtype_of(config.draft)
    entries = config.target.vocab_size, config.draft.vocab_size
    first, second = (torch.randint(-1, 2, (count, rank), generator=source) * 2 for count in entries)
    first *= torch.rand(len(first), 1, generator=source) < 0.1
    return first.to(DTYPES[dtype]), second.to(DTYPES[dtype])


def _text(target: Model, rng: random.Random, config: Config, length: int, noise: float) -> list[int]:
    """Tokens as the models would mostly write them."""
    text = list[int]()
    for _ in range(length):
        fresh = not text or rng.random() < noise
        text.append(rng.randrange(config.target.vocab_size) if fresh else target.follow(text[-1]))
    return text


def room(config: Config) -> int:
    """No fewer positions than a step may touch after the committed length."""
    pages = -(-(config.file.page_size + config.num_steps) // config.file.page_size)
    twice = 2 if config.file.step == "rotated" else 1  # which writes what the next step drafts, too
    return max(config.file.topk * pages * config.file.page_size, config.num_nodes, twice * config.path_slots) + 1


RECURRENT = ("STANDALONE", "EAGLE", "EAGLE3")
"""Algorithms whose draft runs step by step, and over what was accepted."""

Call = tuple[str, int | None, dict[str, Tensor]]
"""Name, step and operands of a forward."""


class RecordingEngine:
    """The fake engine of a scenario, by what the configuration alone says. ``calls`` records what each forward saw."""

    def __init__(self, config: Config, todo: Script) -> None:
        auto = config.algorithm == "STANDALONE"
        true = {"true": True, "shifted": False, "auto": auto}[config.file.draft_positions]
        first = int(true and config.algorithm in RECURRENT)
        owners = [owner for owner in config.models if (owner, config.algorithm) != ("draft", "FROZEN_KV_MTP")]
        self.config, self.calls = config, list[Call]()
        self.engine = Engine.of_config(config, todo.models, todo.table, owners, first=first, room=config.num_steps)
        self.engine.prompts |= todo.texts
        self.engine.on_call = self._record

    def _record(self, name: str, operands: Mapping[str, Any]) -> None:
        seen = {key: value.clone() for key, value in operands.items() if isinstance(value, Tensor)}
        self.calls.append((name, operands.get("step"), seen))

    def __getattr__(self, name: str) -> Any:
        """Forwards as the runtime calls them, and whatever else the engine has."""
        return getattr(self.engine, name)

    def interpreted(self) -> dict[str, Forward]:
        """Forwards by opcode, for the interpreter of modules."""

        def call(name: str, attrs: Mapping[str, Any], operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            given: dict[str, Any] = dict(operands) | {key: attrs[key] for key in ("step", "capture") if key in attrs}
            if name == "draft" and given["slots"].dim() == 3:
                given["slots"] = given["slots"][given["step"]]
            return vars(getattr(self.engine, name)(**given) or SimpleNamespace())

        names = [name.removeprefix("forward_") for name in dir(Engine) if name.startswith("forward_")]
        opcodes = {callback_of(opcode): opcode for opcode in OPS}
        return {opcodes.get(name, f"model.{name}"): partial(call, name) for name in names}


Content = dict[tuple[str, int], list[Tensor]]
"""What the KV buffers hold, as words, at the committed positions, by owner and pool row."""


@dataclass
class Trace:
    """What can be seen from outside: outputs of every run, pools and KV rows after it, and calls of forwards."""

    outputs: list[dict[str, Tensor]] = field(default_factory=list)
    pools: list[dict[str, Tensor]] = field(default_factory=list)
    kv: list[Content] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def interpret_script(module: Module, config: Config, todo: Script) -> Trace:
    """Run a module by the reference semantics.

    What a module does not move yet of the KV rows, because its passes have not run, is moved here, in plain loops.
    """
    engine, trace = RecordingEngine(config, todo), Trace()
    pools = todo.pools(module, config.pool_rows)
    lengths = dict(todo.prompts) | {0: 0}
    for entry, rows in [("prefill", list(todo.prompts)), *[("step", batch) for batch in todo.batches]]:
        if (
            entry == "step"
            and module.find("kv.draft_slots", "kv.branch_slots")
            and not module.find("kv.duplicate_tail")
        ):
            duplicate_tails(engine, {row: lengths[row] for row in rows if row})
        values = interpret_entry(module, entry, engine, todo, rows, lengths, pools)
        outputs = outputs_of(module, entry, values)
        outputs.pop("drafts", None)  # of a prefill whose engine writes them
        if entry == "step":
            paths = accepted_nodes(module, values)
            if not module.find("kv.move"):
                move_paths(engine, {row: lengths[row] for row in rows}, paths)
            on_path = {name: value for name, value in outputs.items() if on_nodes(module.outputs[name])}
            outputs |= {name: along(value, paths, config.path_slots) for name, value in on_path.items()}
            lengths |= dict(zip(rows, outputs["new_seq_lens"].tolist(), strict=True)) | {0: 0}
        trace.outputs.append(defined(outputs, rows))
        trace.pools.append({name: pool.clone() for name, pool in pools.items()})
        trace.kv.append(content(engine, lengths))
    trace.calls = [defined_call(call, config) for call in engine.calls]
    return trace


def interpret_entry(
    module: Module, entry: str, engine: RecordingEngine, todo: Script, rows: Sequence[int],
    lengths: Mapping[int, int], pools: dict[str, Tensor],
) -> dict[str, Tensor]:  # fmt: skip
    """One entry of a module for some rows, 0 for padding, and what its engine does beside it: all values by name."""
    lens = [lengths[row] for row in rows]
    inputs = {
        **todo.inputs(),
        "req_pool_indices": torch.tensor(rows, dtype=torch.int64),
        "seq_lens": torch.tensor(lens, dtype=torch.int64),
        "prompt_tokens": torch.tensor(
            todo.prompt_tokens([row for row in rows if row] if entry == "prefill" else ()), dtype=torch.int64
        ),
        **todo.tables(module.inputs),
    }
    forwards = engine.interpreted()
    if entry == "step" and (given := module.find(GIVEN_LOGITS, GIVEN_PADDED, GIVEN_HIDDEN)):
        capture = "full" if module.find(GIVEN_HIDDEN) else "null"
        results = vars(run_target(engine, pools, rows, lens, capture))
        forwards |= {op.opcode: lambda *_: results for op in given}
    values = interpret(module, entry, inputs, pools, forwards, len(rows), engine.kv)
    outputs = outputs_of(module, entry, values)
    fields = {"seq_lens": outputs.get("new_seq_lens", inputs["seq_lens"])} | outputs
    fields |= {"drafts": outputs["propose.drafts"]} if "propose.drafts" in outputs else {}
    write_left([name for name, carry in module.carries.items() if carry.table == "engine"], pools, rows, fields)
    return values


def duplicate_tails(engine: RecordingEngine, lengths: dict[int, int]) -> None:
    """Copy the partly filled page before every branch but the first, for requests of these lengths."""
    for row, length in lengths.items():
        base = length + engine.first
        page, tail = engine.config.file.page_size, base % engine.config.file.page_size
        run = -(-(tail + engine.config.num_steps) // page) * page
        for buffer in engine.kv["draft"]:
            for branch in range(1, engine.config.file.topk):
                for position in range(base - tail, base):
                    buffer[engine.table[row, position + branch * run]] = buffer[engine.table[row, position]]


def accepted_nodes(module: Module, values: dict[str, Tensor]) -> list[list[int]]:
    """Columns of every request's accepted path, from the results of the op that accepts."""
    (accept,) = [op for op in module.ops() if op.opcode.startswith("verify.")]
    index, lens = (values[result.name].tolist() for result in accept.results[1:3])
    width = values[accept.results[0].name].shape[1]
    return [[node % width for node in path[:count]] for path, count in zip(index, lens, strict=True)]


def along(value: Tensor, paths: list[list[int]], slots: int) -> Tensor:
    """T[B, slots, ...]: the rows of a value T[B, N, ...] that lie on the accepted paths, zeros behind them."""
    rows = value.new_zeros(len(value), slots, *value.shape[2:])
    for b, path in enumerate(paths):
        rows[b, : len(path)] = value[b, path]
    return rows


def move_paths(engine: RecordingEngine, lengths: dict[int, int], paths: list[list[int]]) -> None:
    """Move the accepted nodes' KV rows to the front of the window; one request after another, padding has no path."""
    for (row, length), path in zip(lengths.items(), paths[: len(lengths)], strict=True):
        slots = [int(slot) for slot in engine.table[row, length : length + engine.config.num_nodes]]
        for buffer in engine.kv["target"]:
            held = [buffer[slots[node]].clone() for node in path]
            for slot, content in zip(slots, held, strict=False):
                buffer[slot] = content


def content(engine: RecordingEngine, lengths: dict[int, int]) -> Content:
    """The KV rows of all committed positions of all requests."""
    contents: Content = {}
    for row, length in lengths.items():
        for owner, memory in engine.memory.items() if row else ():
            contents[owner, row] = list(memory.words[:, engine.table[row, : engine.positions(owner, length)].long()])
    return contents


def outputs_of(module: Module, entry: str, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs of one entry by bare name."""
    prefix = "prefill." if entry == "prefill" else ""
    names = [name for name in module.outputs if name.startswith("prefill.") == bool(prefix)]
    assert all(entry_of(v.source.phase) == entry for n, v in module.outputs.items() if n in names and v.source)
    return {name.removeprefix(prefix): values[module.outputs[name].name] for name in names}


def defined(outputs: dict[str, Tensor], rows: Sequence[int]) -> dict[str, Tensor]:
    """Outputs without what is unspecified: rows past the accepted length, and those of padding rows."""
    outputs = dict(outputs)
    for name in outputs.keys() & set(UNSPECIFIED) if "accept_lens" in outputs else ():  # a prefill has no path
        value = outputs[name]
        kept = torch.arange(value.shape[1]) < outputs["accept_lens"][:, None]
        outputs[name] = value.masked_fill(~kept.view(*kept.shape, *[1] * (value.dim() - 2)), 0)
    assert all(len(tensor) == len(rows) for tensor in outputs.values())
    return outputs


def defined_call(call: Call, config: Config) -> Call:
    """Operands of a forward without hidden rows of extend that nobody accepted, and without the end of a flat mask.

    Without the mask of a chain as well: passes remove it, and the engine's target is then causal. Nor does it matter
    at which positions the nodes of padding rows are, which drafts there are before they are made, and which rows of
    an injection are past what was accepted: what it wrote is compared as keys and values.
    """
    name, step, operands = call
    if name == "target":
        operands = operands | {"positions": operands["positions"].masked_fill((operands["rows"] == 0)[:, None], 0)}
    if config.file.tables.padding_slot != 0 and "slots" in operands:  # from the pass on that looks slots up
        operands = operands | {"slots": operands["slots"].clamp(min=0)}
    if config.chain:
        operands = {key: value for key, value in operands.items() if key not in ("mask", "counts")}
    mask = operands.get("mask")
    if mask is not None and mask.dim() == 2:
        nodes, flat = operands["tokens"].shape[1], mask.reshape(-1).clone()
        flat[int((nodes * (operands["seq_lens"] + nodes)).sum()) :] = False
        operands = operands | {"mask": flat}
    if name == "inject":
        operands = {key: value for key, value in operands.items() if key != "hidden"}
    if name == "prefill_module" and "drafts" in operands:
        operands = operands | {"drafts": operands["drafts"][:, : step or 0]}
    if name.startswith("extend") and "hidden" in operands:
        hidden = operands["hidden"]
        last = operands["select"] % hidden.shape[1]
        kept = (torch.arange(hidden.shape[1]) <= last[:, None]) & (operands["rows"] != 0)[:, None]
        operands = operands | {"hidden": torch.where(kept[..., None], hidden, 0)}
    return name, step, operands


def equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors have the same values, which may be NaN."""
    return torch.equal(first.isnan(), second.isnan()) and torch.equal(first.nan_to_num(), second.nan_to_num())


def assert_same(first: Trace, second: Trace, what: str) -> None:
    """Everything that both traces have is equal; what ``second`` lacks must be pools only."""
    assert len(first.outputs) == len(second.outputs)
    for index, (first_outputs, second_outputs) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        assert first_outputs.keys() == second_outputs.keys()
        for name in first_outputs:
            assert torch.equal(first_outputs[name], second_outputs[name]), f"{what}: output {name} of run {index}"
    for index, (before, after) in enumerate(zip(first.pools, second.pools, strict=True)):
        for name in before.keys() & after.keys():
            first_pool, second_pool = before[name], after[name]
            if not first_pool.is_floating_point():  # a table of the engine's may have other integers
                first_pool, second_pool = first_pool.long(), second_pool.long()
            assert equal(first_pool, second_pool), f"{what}: pool {name} after run {index}"
    for index, (before, after) in enumerate(zip(first.kv, second.kv, strict=True)):
        assert before.keys() == after.keys()
        for (owner, row), words in before.items():
            same = [torch.equal(a, b) for a, b in zip(words, after[owner, row], strict=True)]
            assert all(same), f"{what}: KV rows of {owner}, pool row {row}, after run {index}"
    calls = first.calls, second.calls
    if any(name == "target_rows" for name, *_ in second.calls):  # which has other rows than a target of all drafts
        calls = tuple([call for call in trace if not call[0].startswith("target")] for trace in calls)
    assert [call[:2] for call in calls[0]] == [call[:2] for call in calls[1]], what
    for (name, step, first_operands), (_, _, second_operands) in zip(*calls, strict=True):
        assert first_operands.keys() == second_operands.keys(), f"{what}: operands of {name}"
        for operand in first_operands:
            assert torch.equal(first_operands[operand], second_operands[operand]), f"{what}: {operand} of {name} {step}"
