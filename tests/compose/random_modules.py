"""Legal modules composed at random: any op on any values that its signature and its meaning allow.

A value may be read often, stored, handed out and carried; several walks, several reductions of one forward's logits and
long chains of ops occur. What types do not say is kept apart by `Fact`: which integers are lengths, paths or parents.
Tensors of any kind come from a forward, `SOURCE`, that is given some values and returns others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from programs import config_text

from specc.algorithms import names, needs
from specc.config import LoadedConfig, load_text
from specc.driver.compile import start_module
from specc.ir.builder import Builder
from specc.ir.core import NODE, Attr, Carry, Module, Value, is_state, on_nodes, tensor_type
from specc.ir.declarations import KvLayout, Options
from specc.ir.infer import assign_types
from specc.ir.opdef import OpDef
from specc.ir.ops import OPS
from specc.ir.types import REDUCED, Dim, StateType, TensorType
from specc.runtime.plan.plan import RANK, TOKEN_MAP

SOURCE = OpDef(
    "model.source",
    "rows: i64[B], reads*: ? -> gives*: ?",
    "A forward of a test: anything is read, anything is given.",
    {"gives": str, "capture": str, "step": int},
    effect="external",
)
LONGEST, COLUMNS = 40, 128
"""Committed lengths are below the first; rows of the request table have as many columns as the second."""
FLOATS = ("f32", "f16", "bf16")
ESTABLISHED = ("typed", "live", "tree-form", "verify-selected", "compacted", "kv-bound")


class Fact(NamedTuple):
    """What is known of a value besides its type.

    kind: ``rows``, ``lens``, ``path`` and ``count`` (accepted nodes, how many), ``parent``, ``kept``, ``slots``,
    ``token`` (below every vocabulary), ``scale`` (finite, not below 0), or nothing.
    axis: of a path and a parent, the axis that its numbers count along.
    most: of lengths, the largest.
    pair: of a count, the path that is as long.
    rough: it comes from a sum whose order is free, or from a logarithm.
    """

    kind: str = ""
    axis: str = ""
    most: int = 0
    pair: Value | None = None
    rough: bool = False


class Unfit(Exception):
    """The values that there are do not fit an op."""


@dataclass
class Composed:
    """A module, the configuration whose sizes it has, and what its values and carried fields hold."""

    loaded: LoadedConfig
    module: Module
    facts: dict[str, Fact]
    fields: dict[str, Fact]


def compose(rng: random.Random) -> Composed:
    """One module, typed and legal: what form-kernels starts from."""
    loaded = _configuration(rng)
    module = start(loaded)
    if module.size("K") == 1 and rng.random() < 0.4:
        module.erase_input("req_to_token")
        module.add_input("block_table", TensorType("i32", ("P", "C")))
        module.add_input("num_blocks", TensorType("i32", ("P",)))
    composer = Composer(rng, module)
    composer.prefill()
    composer.step()
    facts = {value.name: fact for value, fact in composer.facts.items()}
    return Composed(loaded, composer.module, facts, composer.fields)


def _configuration(rng: random.Random) -> LoadedConfig:
    branches, steps = rng.choice([1, 2, 3]), rng.randint(1, 4)
    keys = {
        "num_steps": steps,
        "topk": branches,
        "buckets": sorted({rng.randint(1, 3), rng.randint(3, 5)}),
        "max_requests": 7,
        "page_size": rng.choice([1, 4]),
    }
    if branches > 1:
        keys |= {"num_draft_tokens": rng.randint(2, min(14, 1 + branches + (steps - 1) * branches**2)), "mask": "none"}
    model = {"num_layers": rng.randint(1, 2), "head_dim": 4, "dtype": rng.choice(["float32", "bfloat16"])}
    model |= {"vocab_size": rng.randint(5, 70)}
    reduced = {"vocab_size": rng.randint(5, max(5, model["vocab_size"] - 1)), "token_map": "engine"}
    draft = model | (reduced if reduced["vocab_size"] < model["vocab_size"] and rng.random() < 0.5 else {})
    text = config_text("STANDALONE", target=model, draft=draft, **keys)
    return load_text(text, Path("random.yaml"), names(), needs)


def start(loaded: LoadedConfig) -> Module:
    """A module without ops that has the dimensions and inputs of a step, and claims what the front establishes."""
    config, module = loaded.config, start_module(loaded)
    module.erase(next(module.ops()))
    sizes = {"B": ("request", config.buckets[-1]), "K": ("branch", config.topk), "S": ("step", config.num_steps)}
    sizes |= {"D": ("forward", config.num_steps - 1), "A": ("path", config.path_slots), "P": ("pool", config.pool_rows)}
    if config.topk > 1:
        sizes[NODE] = ("node", config.num_nodes)
    assert config.draft is not None
    numbered = REDUCED if config.draft.token_map else "draft_vocab"
    sizes |= {"V": ("vocab", config.target.vocab_size), "Vd": (numbered, config.draft.vocab_size)}
    module.dims = {name: Dim(name, axis, size, dynamic=name == "B") for name, (axis, size) in sizes.items()}
    module.dims |= {n: Dim(n, axis, None) for n, axis in {"C": "context", "T": "token", "M": "corpus"}.items()}
    module.add_input("req_pool_indices", TensorType("i64", ("B",)))
    module.add_input("seq_lens", TensorType("i64", ("B",)))
    module.add_input("req_to_token", TensorType("i32", ("P", "C")))
    window = COLUMNS - LONGEST
    room = config.num_steps if config.topk > 1 else 0
    module.decls.append(KvLayout("kv", config.page_size, 0, config.num_nodes, room, window, 2 * window))
    module.established = set(ESTABLISHED)
    return module


class Composer(Builder):
    """Adds random ops to a module. Methods named after an op build one, or raise `Unfit`."""

    def __init__(self, rng: random.Random, module: Module) -> None:
        super().__init__(module)
        self.rng, self.chain = rng, module.size("K") == 1
        self.facts: dict[Value, Fact] = {}
        self.fields: dict[str, Fact] = {}
        self.here: list[Value] = []
        self.nodes = "A" if self.chain else NODE
        self.sources = 0
        self.blocks = "block_table" in module.inputs
        self.table = module.inputs["block_table" if self.blocks else "req_to_token"]
        self.stored, self.loaded = set[str](), set[str]()

    # --- entries ---------------------------------------------------------------------------------------------

    def prefill(self) -> None:
        """Perhaps some ops of a prefill."""
        if self.rng.random() < 0.4:
            with self.phase("prefill"):
                self._enter()
                self._some(
                    3,
                    8,
                    (
                        self.source,
                        self.reduce,
                        self.draw,
                        self.change,
                        self.store,
                        self.health,
                        self.ngram_start,
                        self.handed_on,
                    ),
                )
                self._read_nodes()
                self._leave("prefill.")

    def step(self) -> None:
        """Ops of every phase of a step."""
        self._enter()
        with self.phase("prepare"):
            self._some(1, 3, (self.admit, self.load, self.load))
            self._some(1, 5, (self.positions, self.slots, self.branch_slots, self.health, self.handed_on, self.propose))
        middle = (
            self.source,
            self.source,
            self.reduce,
            self.reduce,
            self.draw,
            self.draw,
            self.mass,
            self.mass,
            self.change,
            self.keys,
            self.translate,
            self.part,
            self.allow,
            self.cut,
            self.row,
            self.row,
            self.logprob,
            self.scale,
            self.best,
            self.grow,
            self.grow,
            self.select,
            self.comb,
            self.tree_positions,
            self.mask,
            self.gather,
            self.handed_on,
            self.health,
            self.advance,
            self.chain_of_tokens,
            self.join,
            self.walk,
            self.visit,
            self.positions,
        )
        with self.phase("draft"):
            self._some(2, 8, middle)
        with self.phase("verify"):
            self._some(2, 9, (*middle, self.walk, self.walk, self.reject, self.reject, *[self.scores] * 3))
            self._read_nodes()
        with self.phase("commit"):
            self._some(
                2,
                9,
                (
                    self.compact,
                    self.compact,
                    self.compact,
                    self.move,
                    self.move,
                    self.last,
                    self.lengths,
                    self.extend_ids,
                    self.chosen,
                    self.shift,
                    self.scores,
                    self.scores,
                    self.store,
                    self.append,
                    self.count,
                    self.health,
                    self.handed_on,
                    self.tail,
                ),
            )
        with self.phase("extend"):
            self._some(
                0,
                6,
                (
                    self.source,
                    self.reduce,
                    self.draw,
                    self.change,
                    self.keys,
                    self.translate,
                    self.allow,
                    self.cut,
                    self.logprob,
                    self.scale,
                    self.best,
                    self.store,
                    self.handed_on,
                    self.health,
                    self.extend_ids,
                ),
            )
            self._leave("")

    def _read_nodes(self) -> None:
        """Let a forward read the rows of all nodes that nothing has read: no output can be such a value."""
        if unread := [value for value in self.here if on_nodes(value) and not self.module.users(value)]:
            self._forward(unread, [("seen", TensorType("i32", ("B",)), Fact())])

    def _enter(self) -> None:
        """Nothing is there but what the engine gives."""
        rows, lens = self.module.inputs["req_pool_indices"], self.module.inputs["seq_lens"]
        self.here, self.stored = [rows, lens], set()
        self.facts |= {rows: Fact("rows"), lens: Fact("lens", most=LONGEST)}
        self.states: dict[str, Value | None] = {"target": None, "draft": None}

    def _some(self, least: int, most: int, makers: tuple[Callable[[], object], ...]) -> None:
        for _ in range(self.rng.randint(least, most)):
            for _ in range(20):
                try:
                    self.rng.choice(makers)()
                    break
                except Unfit:
                    continue

    def _leave(self, prefix: str) -> None:
        """Hand out what nothing reads, and some of what is read; a forward reads what has been moved."""
        if moved := [state for state in self.states.values() if state is not None]:
            self._forward(moved, [("moved", TensorType("i32", ("B",)), Fact())])
        for value in (value for value in self.here if value.source and not on_nodes(value)):
            if not self.module.users(value) or self.rng.random() < 0.2:
                self.module.outputs[prefix + value.name] = value

    # --- picking ---------------------------------------------------------------------------------------------

    def fact(self, value: Value) -> Fact:
        """What is known of a value."""
        return self.facts.get(value, Fact())

    def pick(self, fits: Callable[[TensorType, Fact], bool]) -> Value:
        """A value that fits, rather a late one."""
        found = [
            value for value in self.here if not tensor_type(value).of and fits(tensor_type(value), self.fact(value))
        ]
        if not found:
            raise Unfit
        return found[max(self.rng.randrange(len(found)), self.rng.randrange(len(found)))]

    def of(self, dtype: str, *shape: str | int) -> Value:
        """A value of a type, perhaps one that a forward gives for it."""
        type_ = TensorType(dtype, shape)
        try:
            return self.pick(lambda found, _: found == type_)
        except Unfit:
            return self._asked("asked", type_, Fact())

    def kind(self, kind: str, axis: str = "") -> Value:
        """A value of a kind, perhaps one that a forward gives for it."""
        try:
            return self.pick(lambda _, fact: (fact.kind, fact.axis) == (kind, axis))
        except Unfit:
            if kind != "kept":
                raise
            return self._asked(kind, TensorType("i64", ("B", "K")), Fact(kind))

    def _asked(self, name: str, type_: TensorType, fact: Fact) -> Value:
        if self._late or self.rng.random() < 0.5:
            raise Unfit
        self._forward([], [(name, type_, fact)])
        return self.here[-1]

    def rows(self) -> Value:
        """Pool rows."""
        return self.kind("rows")

    def lens(self, most: int = 1 << 30) -> Value:
        """Lengths up to a largest."""
        return self.pick(lambda _, fact: fact.kind == "lens" and fact.most <= most)

    def make(self, opcode: str, *operands: Value, facts: Iterable[Fact] = (), **attrs: Attr) -> tuple[Value, ...]:
        """Build an op; its tensors are there from now on, and what it replaces is not."""
        results = self.many(opcode, *operands, **attrs)
        self._typed(results, facts)
        if OPS[opcode].inplace:
            self.here.remove(operands[0])
        return results

    def _typed(self, results: tuple[Value, ...], facts: Iterable[Fact]) -> None:
        assign_types(self.module, self.module.phases[self._phase][-1])
        self.here += [value for value in results if not is_state(value)]
        self.facts |= dict(zip(results, facts, strict=False))

    def replaced(self, fits: Callable[[TensorType, Fact], bool]) -> Value:
        """A value that an op in place may replace: one in memory of the program's own."""

        def own(value: Value) -> bool:
            return value.source is not None and value.source.opcode != SOURCE.name

        found = [value for value in self.here if own(value) and fits(tensor_type(value), self.fact(value))]
        if not found:
            raise Unfit
        return self.rng.choice(found)

    # --- sources ---------------------------------------------------------------------------------------------

    def source(self) -> None:
        """A forward that reads some values, and gives logits, hidden rows or numbers of any kind."""
        there = [value for value in self.here if not (self._late and on_nodes(value))]
        reads = self.rng.sample(there, min(len(there), self.rng.randint(0, 3)))
        self._forward(reads, [self._given() for _ in range(self.rng.randint(1, 3))])

    def _forward(self, reads: list[Value], gives: list[tuple[str, TensorType, Fact]]) -> None:
        gives = [pair for given in gives for pair in self._with_count(*given)]
        text = ", ".join(f"{name}{i}: {type_}" for i, (name, type_, _) in enumerate(gives))
        names = tuple(f"{name}{i}_{self.sources}" for i, (name, _, _) in enumerate(gives))
        rows = self.module.inputs["req_pool_indices"]
        results = self.many(
            SOURCE.name,
            rows,
            *reads,
            names=names,
            gives=text,
            capture="null",
            step=self.sources,
        )
        self.sources += 1
        self._typed(results, [fact for _, _, fact in gives])
        for path, count in pairwise(results):
            if self.fact(count).kind == "count":
                self.facts[count] = Fact("count", pair=path)

    def _with_count(self, name: str, type_: TensorType, fact: Fact) -> list[tuple[str, TensorType, Fact]]:
        given = [(name, type_, fact)]
        return [*given, ("count", TensorType("i32", ("B",)), Fact("count"))] if fact.kind == "path" else given

    def _given(self) -> tuple[str, TensorType, Fact]:
        """A name, a type and a kind."""
        rng, nodes = self.rng, "A" if self._late else self.nodes
        path, axes = rng.choice(["A", self.nodes]), rng.choice([(), ("K",), (nodes,), ("A",), ("S",)])
        floats = rng.choice(FLOATS)
        choices: list[tuple[str, TensorType, Fact]] = [
            ("logits", TensorType(floats, ("B", *axes, rng.choice(["V", "Vd"]))), Fact()),
            ("logits", TensorType(floats, ("B", *axes, rng.choice(["V", "Vd"]))), Fact()),
            ("hidden", TensorType(floats, ("B", *axes, rng.randint(1, 40))), Fact()),
            ("extra", TensorType(rng.choice(["i32", "i64", "u8"]), ("B", *axes, rng.randint(1, 3))), Fact()),
            ("tokens", TensorType("i64", ("B", *(axes or ("K",)))), Fact("token")),
            ("ids", TensorType("i32", ("B", *axes)), Fact("token")),
            ("path", TensorType("i32", ("B", "A")), Fact("path", path)),
            ("parent", TensorType("i64", ("B", nodes)), Fact("parent", nodes)),
            ("text", TensorType("i32", ("B", rng.randint(3, 60))), Fact("token")),
            ("flag", TensorType("i1", ("B", *axes)), Fact()),
            ("heat", TensorType("f32", ("B", *axes)), Fact()),
            ("mass", TensorType("f32", ("B", *axes, 3)), Fact()),
        ]
        if not self.chain:
            choices += [
                ("kept", TensorType("i64", ("B", "K")), Fact("kept")),
                ("scores", TensorType("f32", ("B", "K")), Fact()),
                ("scores", TensorType("f32", ("B", "K", "K")), Fact()),
                ("numbers", TensorType("i64", ("B", "K", "K")), Fact("token")),
            ]
        return rng.choice(choices)

    def load(self) -> None:
        """A carried field, of any type that a forward could give; lengths as well."""
        name, type_, fact = self._given()
        if fact.kind == "path" or on_nodes(Value("", type_)):
            raise Unfit
        if self.rng.random() < 0.2:
            name, type_, fact = "lens", TensorType("i64", ("B",)), Fact("lens", most=LONGEST)
        known = [name for name in self.fields if name not in self.loaded]
        chosen = self.rng.choice(known) if known and self.rng.random() < 0.5 else self.field(name, type_, fact)
        self.loaded.add(chosen)
        self.make("carry.load", self.rows(), field=chosen, facts=[self.fields[chosen]])

    def field(self, name: str, type_: TensorType, fact: Fact) -> str:
        """A new carried field."""
        name = f"{name}_{len(self.fields)}"
        self.module.carries[name], self.fields[name] = Carry(name, type_, kept=True), fact
        return name

    # --- health, carry, positions ----------------------------------------------------------------------------

    def health(self) -> None:
        words = [v for v in self.here if v.source and v.source.opcode.startswith("health.")]
        if not words or self.rng.random() < 0.2:
            self.make("health.clear", self.rows())
            return
        bad = self.pick(lambda type_, _: type_.dtype == "i1" and not (self._late and NODE in type_.shape[1:2]))
        self.make("health.raise", self.rng.choice(words), bad, bit=self.rng.randrange(31))

    @property
    def _late(self) -> bool:
        """Whether ops may read rows of the path only."""
        return self._phase in ("commit", "extend")

    def store(self) -> None:
        value = self.pick(
            lambda type_, fact: (
                NODE not in type_.shape[1:]
                and type_.shape[0] == "B"
                and fact.kind not in ("rows", "path")
                and "T" not in type_.shape
                and len(type_.shape) < 4
            )
        )
        type_ = tensor_type(value)
        same = [
            name
            for name, carry in self.module.carries.items()
            if carry.type == type_ and name not in self.stored and self.fields[name].kind in ("", self.fact(value).kind)
        ]
        fact = self.fact(value)._replace(pair=None, rough=False)
        if fact.most > LONGEST or fact.kind in ("count", "slots"):
            fact = Fact()
            same = [name for name in same if not self.fields[name].kind]
        name = self.rng.choice(same) if same else self.field("kept", type_, fact)
        self.stored.add(name)
        published = self._phase == "commit" and self.rng.random() < 0.3
        self.make("relay.publish" if published else "carry.store", self.rows(), value, field=name)

    def append(self) -> None:
        values = self.pick(lambda type_, _: type_.shape == ("B", "A") and type_.dtype in ("i32", "i64"))
        ring = TensorType(tensor_type(values).dtype, ("B", self.rng.randint(self.module.size("A"), 60)))
        count = self.kind("count")
        rings = [
            name
            for name, carry in self.module.carries.items()
            if carry.type.dtype == ring.dtype
            and len(carry.type.shape) == 2
            and name not in self.stored
            and isinstance(size := carry.type.shape[1], int)
            and size >= self.module.size("A")
            and not self.fields[name].kind
        ]
        name = self.rng.choice(rings) if rings else self.field("ring", ring, Fact())
        self.stored.add(name)
        self.make("carry.append", self.rows(), self.lens(), values, count, field=name)

    def count(self) -> None:
        """Tokens of a request, all or the first of some, in a field of its own."""
        values = self.pick(
            lambda type_, fact: type_.dtype == "i32" and fact.kind == "token" and type_.shape in (("B",), ("B", "A"))
        )
        counted = (self.of("i32", "B"),) if self.rng.random() < 0.5 else ()
        axis, field = "A" * (len(tensor_type(values).shape) - 1), self._table("i32", "V")
        self.stored.add(field)
        self.make("carry.count", self.rows(), values, *counted, field=field, axis=axis)

    def _table(self, dtype: str, vocab: str | int) -> str:
        """A new field with a number of every token."""
        return self.field("table", TensorType(dtype, ("B", vocab)), Fact())

    def admit(self) -> None:
        if self.module.find("kv.admit", "kv.admit_blocks"):
            raise Unfit
        bound = {"page": self._page()} if self.blocks else {"longest": self.rng.choice([-1, 30])}
        counts = (self.module.inputs["num_blocks"],) if self.blocks else ()
        self.make(
            "kv.admit_blocks" if self.blocks else "kv.admit",
            self.table,
            *counts,
            self.rows(),
            self.lens(LONGEST),
            window=COLUMNS - self.rng.randint(20, LONGEST),
            **bound,
            facts=[Fact("rows"), Fact("lens", most=LONGEST)],
        )

    def _page(self) -> int:
        return self.module.decl(Options).page_size

    def positions(self) -> None:
        axis = self.rng.choice(["", "K", "A", "S", self.nodes])
        self.make("kv.positions", self.lens(), axis=axis, offset=self.rng.randint(-2, 3), stride=self.rng.randint(0, 2))

    def advance(self) -> None:
        self.make(
            "kv.advance", self.replaced(lambda type_, fact: type_ == TensorType("i64", ("B", "K")) and not fact.kind)
        )

    def slots(self) -> None:
        axis = self.rng.choice(["A", self.nodes, *(["D"] if self.chain and self.module.size("D") else [])])
        kind = [Fact("slots", axis)] if axis == NODE else []
        lens = self.lens(COLUMNS - 64)
        paged = {"page": self._page()} if self.blocks else {}
        opcode, offset = "kv.block_slots" if self.blocks else "kv.slots", self.rng.randint(0, 2)
        self.make(opcode, self.table, self.rows(), lens, axis=axis, offset=offset, **paged, facts=kind)

    def _runs(self) -> dict[str, Attr]:
        if self.chain:
            raise Unfit
        return {"offset": self.rng.randint(0, 1), "page": self.rng.choice([1, 2, 4]), "room": self.module.size("S")}

    def branch_slots(self) -> None:
        if not self.module.size("D"):
            raise Unfit
        self.make("kv.branch_slots", self.table, self.rows(), self.lens(COLUMNS - 64), **self._runs())

    def state(self, owner: str) -> Value:
        """The KV state of a model as it is by now; it is read once."""
        found = self.states[owner] or self.module.inputs.get(f"kv_{owner}")
        return found or self.module.add_input(f"kv_{owner}", StateType(owner))

    def move(self) -> None:
        slots, count = (
            self.kind("slots", NODE),
            self.pick(lambda _, fact: fact.pair is not None and self.fact(fact.pair).axis == NODE),
        )
        path = self.fact(count).pair
        assert path is not None
        (self.states["target"],) = self.make("kv.move", slots, path, count, self.state("target"))

    def tail(self) -> None:
        operands = self.table, self.rows(), self.lens(COLUMNS - 64), self.state("draft")
        (self.states["draft"],) = self.make("kv.duplicate_tail", *operands, **self._runs())

    # --- reductions ------------------------------------------------------------------------------------------

    def logits(self, columns: int = 1) -> Value:
        """Floats with rows of so many columns at least."""

        def fits(type_: TensorType, fact: Fact) -> bool:
            wide = len(type_.shape) > 1 and type_.dtype in FLOATS and not fact.rough and type_.shape[0] == "B"
            return (
                wide
                and not (self._late and NODE in type_.shape[1:2])
                and TensorType("i1", type_.shape[-1:]).sizes(self.module.dims)[0] >= columns
            )

        return self.pick(fits)

    def reduce(self) -> None:
        """An argmax or a top-k."""
        if self.rng.random() < 0.4:
            logits = self.logits(self.module.size("K"))
            self.make("vocab.topk", logits, self.rows(), facts=[Fact(rough=True)])
            return
        self._argmax(self.logits())

    def _argmax(self, logits: Value) -> None:
        keep = "K" if self.chain and self.rng.random() < 0.5 else ""
        self.make("vocab.argmax", logits, self.rows(), dtype=self.rng.choice(["i32", "i64"]), keep=keep)

    def part(self) -> None:
        """An argmax by way of a rank's record, of columns that are tokens or padding."""
        logits, module = self.logits(), self.module
        rank = module.inputs.get(RANK) or module.add_input(RANK, TensorType("i64", (1,)))
        entries = TensorType("i1", tensor_type(logits).shape[-1:]).sizes(module.dims)[0]
        if self.rng.random() < 0.6:
            (logits,) = self.make("comm.pad", logits, rank, vocab=self.rng.randint(1, entries + 1))
        chunks = self.rng.choice([1, 2, 64])
        chunks = min(chunks, entries & -entries)
        (record,) = self.make("vocab.argmax_part", logits, self.rows(), rank, words=1, chunks=chunks)
        keep = "K" if self.chain and self.rng.random() < 0.5 else ""
        numbers = tensor_type(logits).shape[-1] == "Vd" and self.module.dims["Vd"].axis == REDUCED
        dtype = self.rng.choice(["i32", "i64"])
        self.make("vocab.argmax_merge", record, self.rows(), dtype=dtype, keep=keep, of="Vd" if numbers else "")

    def translate(self) -> None:
        """The tokens that numbers of a reduced vocabulary stand for."""
        found = [value for value in self.here if tensor_type(value).of and tensor_type(value).dtype == "i64"]
        if not found:
            raise Unfit
        table = self.module.inputs.get(TOKEN_MAP) or self.module.add_input(TOKEN_MAP, TensorType("i64", ("Vd",)))
        self.make("vocab.translate", self.rng.choice(found), table, self.rows())

    def keys(self) -> None:
        """What the noise of rows is made with, at positions of any kind."""
        self._keys(
            self.pick(
                lambda type_, _: (
                    type_.dtype == "i64" and type_.shape[0] == "B" and not (self._late and NODE in type_.shape)
                )
            )
        )

    def _keys(self, positions: Value) -> tuple[Value, ...]:
        temperature = self.of("f32", "B")
        if self.fact(temperature).rough:
            raise Unfit
        offset, kind = self.rng.randrange(2), self.rng.choice([0, 1, (1 << 16) - 1])
        return self.make("sample.keys", self.of("i64", "B"), temperature, positions, offset=offset, kind=kind)

    def scales(self, *shape: str | int) -> Value:
        """What logits are multiplied with, which are finite."""
        type_ = TensorType("f32", shape)
        try:
            return self.pick(lambda found, fact: found == type_ and fact.kind == "scale")
        except Unfit:
            return self._asked("scales", type_, Fact("scale"))

    def cut(self) -> None:
        """What of a row may be drawn, by whatever numbers."""
        logits = self.logits()
        shape = tensor_type(logits).shape[:-1]
        name = self.rng.choice(["top_k", "top_p", "min_p"])
        operands = [self.of("f32", *shape), self.of("i32" if name == "top_k" else "f32", "B")]
        operands += [self.of("f32", *shape)] if self.rng.random() < 0.4 else []
        rough = name != "top_k" or any(self.fact(value).rough for value in operands)
        self.make(f"sample.{name}", logits, *operands, facts=[Fact(rough=rough)])

    def row(self) -> None:
        """One row of a request's logits, chosen by a number of any size, which is reduced as likely as not."""
        logits = self.pick(lambda type_, fact: len(type_.shape) == 3 and type_.dtype in FLOATS and not fact.rough)
        (row,) = self.make("vocab.row", logits, self.of("i64", "B"))
        if self.rng.random() < 0.5:
            self._argmax(row)

    def allow(self) -> None:
        """Logits of what words let through, as many words as there are entries for, or fewer, or more."""
        logits = self.logits()
        *shape, entries = tensor_type(logits).shape
        words = -(-TensorType("i1", (entries,)).sizes(self.module.dims)[0] // 32)
        bitmask = self.of("i32", *shape, self.rng.choice([words, words, max(1, words - 1), words + 1]))
        (allowed,) = self.make("sample.allow", logits, bitmask, facts=[Fact()])
        if self.rng.random() < 0.4:
            self._argmax(allowed)

    def draw(self) -> None:
        """A token of logits, with keys that were made for it or any numbers, with a cut or without."""
        logits = self.logits()
        shape = tensor_type(logits).shape[:-1]
        numbers = self.of("i64", *shape)
        keys = self._keys(numbers) if self.rng.random() < 0.6 else (numbers, self.scales(*shape))
        cuts = (self.of("f32", *shape),) if self.rng.random() < 0.4 else ()
        if any(self.fact(value).rough for value in (logits, keys[1], *cuts)):
            raise Unfit
        keep = "K" if self.chain and self.rng.random() < 0.3 else ""
        self.make("sample.draw", logits, self.rows(), *keys, *cuts, dtype=self.rng.choice(["i32", "i64"]), keep=keep)

    def change(self) -> None:
        """Logits with a bias or penalties, of nodes perhaps, by tables that are carried or were made."""
        logits = self.logits()
        *axes, vocab = tensor_type(logits).shape[1:]
        if self._late and vocab == NODE:  # tables of it would lie along the nodes
            raise Unfit
        if self.rng.random() < 0.3:
            operands = [self._tokenwise("f32", vocab)]
            opcode = "sample.bias"
        else:
            operands = [self._tokenwise("i32", vocab), *(self.of("f32", "B") for _ in range(3))]
            opcode = "sample.penalize"
            if len(axes) == 1 and self.rng.random() < 0.7:
                opcode = "sample.penalize_nodes"
                operands += [self.of("i64", "B", *axes) for _ in range(self.rng.choice([1, 2]))]
        rough = any(self.fact(value).rough for value in operands)
        (changed,) = self.make(opcode, logits, *operands, facts=[Fact(rough=rough)])
        if self.rng.random() < 0.7 and not rough:
            self._argmax(changed)

    def _tokenwise(self, dtype: str, vocab: str | int) -> Value:
        """A number of every token, of a field of its own or of whatever makes them."""
        if self.rng.random() < 0.4:
            return self.of(dtype, "B", vocab)
        field = self._table(dtype, vocab)
        self.loaded.add(field)
        return self.make("carry.load", self.rows(), field=field)[0]

    def mass(self) -> None:
        """Of the rows that a token was drawn from, with its probability, or that of any numbers'."""
        drawn = [v for v in self.here if v.source and v.source.opcode == "sample.draw" and v is v.source.out("index")]
        index = self.rng.choice(drawn or [self._unfit()])
        draw, keep = index.source, ""
        assert draw is not None
        logits, scales = draw["logits"], draw["scales"]
        own = tensor_type(index).dtype == "i64" and self.rng.random() < 0.6
        if own:
            keep = str(draw.attrs["keep"])
        elif self._late and on_nodes(logits):
            raise Unfit
        entries = index if own else self.of("i64", *tensor_type(logits).shape[:-1])
        cuts = [] if draw.get("cuts") is None else [draw["cuts"]]
        ahead = 0 if own or len(tensor_type(logits).shape) < 3 else self.rng.randrange(2)
        operands = (logits, draw["rows"], scales, entries, *cuts)
        self.make("sample.mass", *operands, ahead=ahead, keep=keep, facts=[Fact(rough=True)])

    def _unfit(self) -> Value:
        raise Unfit

    def reject(self) -> None:
        """The tokens of a chain by whatever its drafts were drawn from: rows one by one, or together, or carried."""
        rng, floats, steps = self.rng, self.rng.choice(FLOATS), self.module.size("S")
        logits, together = self.of(floats, "B", "A", "V"), rng.random() < 0.5
        axes = ("B", "S") if together else ("B",)
        asked = [("i64", "B", "A"), ("i64", "B"), ("i64", "B", "A"), ("f32", "B", "A"), ("f32", "B", "A", 3)]
        asked += [("i32", "B", "A"), ("f32", *axes, 3), (floats, *axes, "V")]
        facts = [Fact("scale" if n == 3 else "") for n in range(len(asked))]
        gives = [
            ("asked", TensorType(dtype, tuple(shape)), fact) for (dtype, *shape), fact in zip(asked, facts, strict=True)
        ]
        self._forward([], gives)
        tokens, coins, keys, scales, mass, drawn, own, row = self.here[-len(asked) :]
        cuts = [self.of("f32", "B", "A")] if rng.random() < 0.4 else []
        masses, q = ([one] * (1 if together else steps) for one in (own, row))
        if any(self.fact(value).rough for value in (logits, *cuts)):
            raise Unfit
        if not together and rng.random() < 0.5:
            field = self.field("row", tensor_type(q[0]), self.fact(q[0]))
            self.loaded.add(field)
            q[0] = self.make("carry.load", self.rows(), field=field)[0]
        rows, mode, parts = self.rows(), rng.choice(["rejection", "block"]), len(q)
        (weights,) = self.make("sample.weigh", rows, coins, scales, mass, *masses, mode=mode, parts=parts)
        left, sums = self.make(
            "sample.residual", tokens, logits, rows, keys, scales, drawn, mass, weights, *cuts, *masses, *q,
            parts=parts, cut=len(cuts), most=rng.randint(1, steps), facts=[Fact(), Fact(rough=True)],
        )  # fmt: skip
        self.make("sample.accept", tokens, rows, coins, drawn, weights, left, sums)

    def logprob(self) -> None:
        """Of the winners of the same logits, or of tokens that are below every vocabulary."""
        logits = self.logits(4)
        shape = tensor_type(logits).shape[:-1]

        def fits(type_: TensorType, fact: Fact) -> bool:
            return type_ == TensorType("i32", shape) and fact.kind == "token"

        same = [
            v
            for v in self.here
            if v.source
            and v.source.opcode == "vocab.argmax"
            and v.source["logits"] is logits
            and tensor_type(v) == TensorType("i32", shape)
        ]
        index = self.rng.choice(same) if same else self.pick(fits)
        self.make("vocab.logprob", logits, self.rows(), index, facts=[Fact(rough=True)])

    def scale(self) -> None:
        """Logits as a token is drawn from them, with a cut or without."""
        logits = self.logits()
        shape = tensor_type(logits).shape[:-1]
        operands = [self.of("f32", *shape) for _ in range(self.rng.choice([1, 2]))]
        rough = any(self.fact(value).rough for value in operands)
        (scaled,) = self.make("sample.scale", logits, *operands, facts=[Fact(rough=rough)])
        if self.rng.random() < 0.5 and not rough:
            self._argmax(scaled)

    def best(self) -> None:
        """The best tokens of all rows."""
        count = self.rng.randint(1, 5)
        facts = [Fact(), Fact(rough=True)]
        self.make("vocab.best", self.logits(count), self.rows(), count=count, facts=facts)

    def _tokens(self) -> Value:
        """Tokens along a path, perhaps such as a forward gives for it."""
        type_ = TensorType("i32", ("B", "A"))
        try:
            return self.pick(lambda found, fact: found == type_ and fact.kind == "token")
        except Unfit:
            return self._asked("ids", type_, Fact("token"))

    def scores(self) -> None:
        """Log-probabilities along a path, of tokens, or of the best ones, or of both."""
        path = self.pick(lambda _, fact: fact.kind == "path")
        count, axis, which = self.rng.randint(1, 4), self.fact(path).axis, self.rng.randrange(3)
        logits = self.pick(
            lambda type_, fact: type_.shape[:2] == ("B", axis) and type_.shape[2:] in (("V",), ("Vd",))
            and type_.dtype in FLOATS and not fact.rough
        )  # fmt: skip
        rows = self.rows()
        if which:
            index = self._tokens()
            self.make("vocab.logprob_path", logits, rows, index, path, facts=[Fact(rough=True)])
        if which != 1:
            facts = [Fact(), Fact(rough=True)]
            self.make("vocab.best_path", logits, rows, path, count=count, facts=facts)

    # --- trees and chains ------------------------------------------------------------------------------------

    def _only(self, *, chain: bool) -> None:
        if self.chain != chain:
            raise Unfit

    def grow(self) -> None:
        self._only(chain=False)
        scores, p, index = self.of("f32", "B", "K"), self.of("f32", "B", "K", "K"), self.of("i64", "B", "K", "K")
        facts = [self.fact(index), Fact(rough=True), Fact("kept"), Fact(rough=True)]
        self.make("tree.grow", scores, p, index, facts=facts)

    def select(self) -> None:
        self._only(chain=False)
        branches, nodes, steps = self.module.size("K"), self.module.size(NODE), 1
        while branches + (steps - 1) * branches**2 < nodes - 1:
            steps += 1
        steps += self.rng.randint(0, 1)
        scores = [self.of("f32", "B", "K"), *(self.of("f32", "B", "K", "K") for _ in range(1, steps))]
        tokens = [self.of("i64", "B", "K"), *(self.of("i64", "B", "K", "K") for _ in range(1, steps))]
        kept = [self.kind("kept") for _ in range(1, steps - 1)]
        operands = self.rows(), self.of("i32", "B"), *scores, *tokens, *kept
        self.make("tree.select", *operands, steps=steps, facts=[Fact(), Fact("parent", NODE)])

    def comb(self) -> None:
        self._only(chain=False)
        steps = -(-(self.module.size(NODE) - 1) // self.module.size("K")) + self.rng.randint(0, 1)
        self.make("tree.comb", self.rows(), steps=steps, facts=[Fact("parent", NODE)])

    def tree_positions(self) -> None:
        self._only(chain=False)
        self.make("tree.positions", self.lens(), self.of("i64", "B", NODE))

    def mask(self) -> None:
        self._only(chain=False)
        nodes = self.module.size(NODE)
        mode = self.rng.choice(["qlen", "bitpacked", "full"])
        lens = self.module.inputs["seq_lens"] if mode == "full" else self.lens()
        width = {"qlen": 0, "bitpacked": 1 if nodes <= 8 else 2, "full": nodes * (LONGEST + nodes)}[mode]
        self.make("tree.mask", lens, self.kind("parent", NODE), mode=mode, width=width)

    def gather(self) -> None:
        self._only(chain=False)
        x = self.pick(lambda type_, _: type_.shape[:2] == ("B", "K"))
        self.make(
            "tree.gather", x, self.kind("kept"), facts=[self.fact(x) if self.fact(x).kind != "kept" else Fact("kept")]
        )

    def handed_on(self) -> None:
        """One copy per branch, or the root as a token."""
        if self.rng.random() < 0.5:
            x = self.pick(
                lambda type_, _: (
                    len(type_.shape) == 2 and type_.shape[0] == "B" and not (self._late and type_.shape[1] == NODE)
                )
            )
            fact = self.fact(x)
            self.make("tree.repeat", x, facts=[Fact(rough=fact.rough)])
        else:
            bonus = self.of("i32", "B")
            self.make("tree.root", bonus)

    def chain_of_tokens(self) -> None:
        """A chain, column after column, of any tokens."""
        self._only(chain=True)
        token = self.of("i64", "B", "K")
        if self.rng.random() < 0.5:
            (tokens,), size, done = self.make("chain.start", self.of("i32", "B"), token), self.module.size("A"), 2
        else:
            (tokens,), size, done = self.make("chain.first", token), self.module.size("S"), 1
        for column in range(done, size):
            (tokens,) = self.make("chain.append", tokens, self.of("i64", "B", "K"), column=column)

    def join(self) -> None:
        self._only(chain=True)
        self.make("chain.join", self.of("i32", "B"), self.of("i64", "B", "S"))

    def shift(self) -> None:
        self._only(chain=True)
        tokens = self.replaced(lambda type_, fact: type_ == TensorType("i64", ("B", "A")))
        self.make("chain.shift", tokens, self.kind("count"), self.of("i64", "B", "K"))

    def ngram_start(self) -> None:
        prompt = self.module.inputs.get("prompt_tokens") or self.module.add_input(
            "prompt_tokens", TensorType("i64", ("T",))
        )
        self.make(
            "ngram.start",
            self.rows(),
            self.module.inputs["seq_lens"],
            self.of("i32", "B"),
            prompt,
            window=self.rng.randint(3, 60),
        )

    def propose(self) -> None:
        text = self.pick(lambda type_, _: type_.dtype == "i32" and len(type_.shape) == 2)
        corpus = [self.module.inputs.get("corpus") or self.module.add_input("corpus", TensorType("i32", ("M",)))]
        operands = self.rows(), self.lens(), text, *corpus[: self.rng.randint(0, 1)]
        steps = self.module.size("S") if self.chain else -(-(self.module.size(NODE) - 1) // self.module.size("K"))
        shortest = self.rng.randint(1, 2)
        self.make(
            "ngram.propose",
            *operands,
            axis=self.nodes,
            steps=steps,
            shortest=shortest,
            longest=shortest + self.rng.randint(0, 3),
        )

    # --- verification and what follows -----------------------------------------------------------------------

    def walk(self) -> None:
        axis = self.rng.choice(["A", self.nodes])
        tokens, argmax = self.of("i64", "B", axis), self.of("i32", "B", axis)
        parents = [self.kind("parent", axis)] if self.rng.random() < 0.7 and not self.chain else []
        results = self.make("verify.greedy", tokens, argmax, self.rows(), *parents)
        self.facts |= {results[1]: Fact("path", axis), results[2]: Fact("count", pair=results[1])}

    def visit(self) -> None:
        """Some steps of a walk node by node, by tokens that are drawn, or are any; with what nodes have on its way."""
        axis, rows = self.rng.choice(["A", self.nodes]), self.rows()
        tokens = self.of("i64", "B", axis)
        parents = [self.kind("parent", axis)] if self.rng.random() < 0.7 and not self.chain else []
        (node,) = self.make("walk.root", rows)
        found, nodes = [self.of("i32", "B")], [node]
        for _ in range(self.rng.randint(0, self.module.size("A") - 1)):
            rows, node = self.make("walk.step", tokens, found[-1], rows, node, *parents, facts=[Fact("rows")])
            if self.rng.random() < 0.5:
                dtype = self.rng.choice(["i32", "i64", "f32"])
                self.make("walk.at", self.of(dtype, "B", axis), node)
            try:
                logits = self.pick(
                    lambda type_, fact: type_.shape[1:] == (axis, "V") and type_.dtype in FLOATS and not fact.rough
                )
                (row,) = self.make("vocab.row", logits, node)
                token, _ = self.make("vocab.argmax", row, rows, dtype="i32", keep="")
            except Unfit:
                token = self.of("i32", "B")
            found.append(token)
            nodes.append(node)
        results = self.make("verify.path", *found, *nodes, axis=axis, parts=len(nodes))
        self.facts |= {results[1]: Fact("path", axis), results[2]: Fact("count", pair=results[1])}
        if self.rng.random() < 0.5:
            self.make("walk.bad", self.of("i1", "B", axis), self.kind("path", axis), rows="eager")

    def compact(self) -> None:
        self._only(chain=False)
        x = self.pick(lambda type_, _: type_.shape[:2] == ("B", NODE))
        self.make("commit.compact", x, self.kind("path", NODE), facts=[Fact(rough=self.fact(x).rough)])

    def last(self) -> None:
        count = self.pick(lambda _, fact: fact.pair is not None)
        path = self.fact(count).pair
        assert path is not None
        axis = self.fact(path).axis
        x = self.pick(lambda type_, _: type_.shape[:2] == ("B", axis) and type_.shape[2:3] != (NODE,))
        self.make("commit.last", x, path, count, facts=[Fact(rough=self.fact(x).rough)])

    def lengths(self) -> None:
        lens = self.lens()
        longer = Fact("lens", most=self.fact(lens).most + self.module.size("A"))
        self.make("commit.lengths", lens, self.kind("count"), self.of("i32", "B", "A"), facts=[longer])

    def extend_ids(self) -> None:
        self.make("commit.extend_ids", self.of("i32", "B", "A"), self.kind("count"))

    def chosen(self) -> None:
        self.make("commit.select", self.kind("count"))
